"""Episodes of control worlds, and policies for them that are written by hand."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 4))
def episodes(rules, policy, split, indices, horizon=None):
    """Return all states ``[n, H + 1]``, actions and ``Moved`` ``[n, H]`` of ``policy(rules, state, key)``."""

    def one(index):
        first, keys = rules.begin(index, split), jax.random.split(jax.random.key(index), horizon or rules.horizon)

        def step(state, key):
            action = policy(rules, state, key)
            after, moved = rules.step(state, action, key)
            return after, (after, action, moved)

        _, (states, actions, moved) = jax.lax.scan(step, first, keys)
        states = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, states)
        return states, actions, moved

    return jax.vmap(one)(indices)


def begun(rules, split, count=256):
    """Return the first states of a split."""
    return jax.device_get(_begun(rules, split, jnp.arange(count)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _begun(rules, split, index):
    return jax.vmap(lambda one: rules.begin(one, split))(index)


def random(rules, state, key):
    """Act at random."""
    if hasattr(rules.actions, "count"):
        return jax.random.randint(key, (), 0, rules.actions.count)
    return jax.random.uniform(key, (rules.actions.size,), minval=-1.0)


def bouncer(rules, state, key):
    """Push a point on in the direction of its motion, away from a wall that stopped it, and sometimes at random."""
    action, kept = random(rules, state, key), jax.random.bernoulli(key, 0.9)
    return jnp.where(kept & (state["velocity"] != 0), jnp.sign(state["velocity"]), action)


def follower(rules, state, key):
    """Push a point of a maze to the middle of the next cell of the path, along one axis after the other."""
    side, place = rules.side, state["place"]
    column, row = jnp.floor(place).astype(jnp.int32)
    cell = row * side + column
    offsets = jnp.asarray([-side, 1, side, -1])
    distance = jnp.where(state["ways"][cell], state["distance"][(cell + offsets) % side**2], side**2)
    after = cell + offsets[jnp.argmin(distance)]
    target = jnp.stack([after % side, after // side]) + 0.5
    return jnp.clip(4 * (target - place) - 12 * state["velocity"], -1, 1)


def pilot(rules, state, key):
    """Fly towards a point behind the next gate, with the thrust along the wanted acceleration."""
    number = jnp.minimum(state["passed"], rules.gates - 1)
    gate, direction, velocity = state["gate"][number], state["direction"][number], state["velocity"]
    away = gate + 0.6 * direction - state["position"]
    wanted = 3.0 * away / jnp.maximum(jnp.linalg.norm(away), 1.0)
    push = 3.0 * (wanted - velocity) + jnp.asarray([0.0, 0.0, 9.81])
    up = push / jnp.linalg.norm(push)
    w, vector = state["attitude"][0], state["attitude"][1:]
    up = up - 2 * w * jnp.cross(vector, up) + 2 * jnp.cross(vector, jnp.cross(vector, up))  # in the body's frame
    rates = 5.0 * jnp.stack([-up[1], up[0], 0.0]) / 6.0
    thrust = jnp.linalg.norm(push) * up[2] / 9.81 - 1
    return jnp.clip(jnp.concatenate([thrust[None], rates]), -1, 1)
