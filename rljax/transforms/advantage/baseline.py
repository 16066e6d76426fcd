"""Baselines other than a mean: from other rows, from parts, and running ones by role."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.advantage import normalise


def minus(r: types.Rollout, baseline: types.Array) -> types.Array:
    """Return the advantage so far minus a baseline of each row, ``[B]``."""
    return normalise.current(r) - baseline[:, None]


def others(r: types.Rollout, x: types.Array) -> types.Array:
    """Return the mean of a number ``[B]`` over the other trajectories of its peers; its own if there are none.

    Peers are written by the same agent, in the same group (``trajectories.peers``).
    """
    counts, once, peers = ops.valid_rows(r), trajectories.once(r), trajectories.peers(r)
    x = jnp.where(counts > 0, x, 0.0)
    number = ops.segment_total(once, peers) - counts
    return jnp.where(number > 0, (ops.segment_total(x * once, peers) - x) / jnp.maximum(number, 1.0), x)


@define.advantage(needs=normalise.SIBLINGS)
def leave_one_out(r) -> types.Array:
    """Subtract the mean reward of the group's other rows: r_i - mean over j != i of r_j. RLOO (arXiv 2402.14740)."""
    return minus(r, others(r, trajectories.total(r)))


@define.advantage(needs=lambda a: define.reads(a["name"]))
def part_baseline(r, name: str) -> types.Array:
    """Subtract a number the verifier gives with each row: A_t = G_t - part.

    For example the greedy completion's reward (ReMax, arXiv 2310.10505), the prompt's optimal value (A*-PO, arXiv
    2505.20686), or the reference's value of it (A-LoL, arXiv 2305.14718).
    """
    return minus(r, ops.part(r, name))


def minus_remembered(r: types.Rollout, ids, old, *numbers) -> tuple[types.Rollout, *tuple[types.Array, ...]]:
    """Subtract ``old`` [size] from the advantage; return (rollout, count, totals) of trajectories by id."""
    valid = trajectories.once(r)
    out = ops.with_advantage(r, normalise.current(r) - old[ids].astype(r.reward.dtype)[:, None])
    counted = [jnp.where(valid > 0, x, 0.0).astype(old.dtype) for x in (valid, *numbers)]
    return out, *(jax.ops.segment_sum(x, ids, num_segments=old.size) for x in counted)


@define.constructor("advantage")
def role_baseline(roles: types.Count, decay: types.Fraction = 0.95, games: types.Count = 1) -> types.RolloutTransform:
    """Subtract a running mean of the role's rewards: A = r - b, then b <- decay b + (1 - decay) mean r of the batch.

    One number for each of ``games`` values of ``domain`` and ``roles`` values of ``agent``, from 0; larger ones share
    the last. Source: SPIRAL (arXiv 2506.24119), RAE.
    """

    def apply(r: types.Rollout, state, key):
        agent = jnp.minimum(ops.given(r.agent, "role_baseline: the rollout has no agent"), roles - 1)
        if games > 1:
            agent += roles * jnp.minimum(ops.given(r.domain, "role_baseline: the rollout has no domain"), games - 1)
        out, rows, total = minus_remembered(r, agent, state, trajectories.total(r))
        moved = decay * state + (1.0 - decay) * total / jnp.maximum(rows, 1.0)
        return out, jnp.where(rows > 0, moved, state)

    needs = types.Needs(agents=True, domains=games > 1)
    return types.RolloutTransform(apply=apply, init=lambda: jnp.zeros(games * roles), needs=needs)
