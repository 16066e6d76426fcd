"""What the tests of recipes on worlds share."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.transforms import chain

KEY = jax.random.key(0)


def rows(mask, paid=None, **fields):
    """Return a rollout; fields are arrays of its fields."""
    mask = jnp.asarray(mask, jnp.float32)
    count = mask.shape[0]
    filled = {
        "reward": np.zeros(count, np.float32),
        "group": np.zeros(count, np.int32),
        "episode": np.arange(count, dtype=np.int32),
        "agent": np.zeros(count, np.int32),
        "domain": np.zeros(count, np.int32),
        "turn": np.zeros(mask.shape, np.int32),
        "valid": np.ones(count, np.float32),
        **fields,
    }
    nested = {name: filled.pop(name) for name in ("parts", "extra") if name in filled}
    rollout = types.Rollout(mask=mask, **{name: jnp.asarray(x) for name, x in filled.items()})
    rollout = rollout.replace(**{name: jax.tree.map(jnp.asarray, x) for name, x in nested.items()})
    return rollout if paid is None else rollout.replace(token_reward=jnp.asarray(paid, jnp.float32))


def run(rollout, *pieces):
    """Return the rollout after rollout transforms."""
    chained = chain(*pieces)
    return jax.jit(lambda r: chained.apply(r, chained.init(), KEY)[0])(rollout)  # faster than to compile each operation


def chapters(seed, episodes=4, turns=3, seats=2, width=5):
    """Return rows of episodes of 1 to ``turns`` turns, seats in turn; half of the episodes are of each group."""
    r = np.random.default_rng(seed)
    count = episodes * turns
    number, episode = np.arange(count) % turns, np.arange(count) // turns
    present = number < r.integers(1, turns + 1, episodes)[episode]
    mask = (r.random((count, width)) < 0.7) * present[:, None]
    mask[:, 1] = present
    value = r.random((count, width)).astype(np.float32)
    return rows(
        mask,
        np.where(mask > 0, r.integers(-3, 4, mask.shape), 99),
        group=episode * 2 // episodes,
        episode=episode + 7,
        agent=number % seats,
        turn=np.broadcast_to(number[:, None], mask.shape).copy(),
        valid=present.astype(np.float32),
        value=value,
    )
