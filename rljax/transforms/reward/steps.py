"""Rewards of turns."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.reward import shaping

TURNS = types.Needs(token_reward=True, turns=True)


def payments(r: types.Rollout) -> types.Array:
    """Return the rewards paid at trained tokens, without what a KL has charged, ``[B, T]``."""
    return jnp.where(r.mask > 0, r.extra.get("paid", shaping.field(r, "token_reward")), 0.0)


def ends(r: types.Rollout) -> types.Array:
    """Return bool [B, T], where a step ends: extra["step_end"], or trained tokens that are paid, charges aside."""
    return (r.extra.get("step_end", payments(r)) != 0) & (r.mask > 0)


@define.reward(needs=TURNS)
def improvement(r, alpha: types.NonNegative = 10.0) -> types.Array:
    """Add alpha (r2 - r1) at the last trained token of turn 1: token rewards of turns 1 and 0. SCoRe (2409.12917).

    Rows without a trained token in either turn get nothing more.
    """
    first, second = (jnp.where(shaping.field(r, "turn") == k, r.mask, 0.0) for k in (0, 1))
    gain = trajectories.summed(r, jnp.sum(payments(r) * (second - first), axis=1))
    began = trajectories.summed(r, jnp.max(first, axis=1)) > 0
    return payments(r) + alpha * jnp.where(began, gain, 0.0)[:, None] * ops.last_token(second)


@define.reward(needs=TURNS)
def only_turn(r, turn: int) -> types.Rollout:
    """Pay one turn alone: its token rewards, and the row's reward where the row ends in it.

    SCoRe (arXiv 2409.12917), stage I, pays turn 1.
    """
    paid = shaping.field(r, "turn") == turn
    ends = jnp.sum(jnp.where(paid, ops.last_token(r.mask), 0.0), axis=1)
    return trajectories.repaid(r.replace(reward=r.reward * ends), jnp.where(paid, payments(r), 0.0))
