"""Rewards of steps and turns: pieces that write ``token_reward`` and mostly leave the row's reward unchanged."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.reward import shaping

PAID = types.Needs(token_reward=True)
TURNS = types.Needs(token_reward=True, turns=True)


def _paid(r: types.Rollout):
    return jnp.where(r.mask > 0, shaping.field(r, "token_reward"), 0.0)


def _steps(r: types.Rollout):
    """Return [B, T], 1 where a step ends: extra["step_end"], or trained tokens that are paid something."""
    return jnp.where(r.extra.get("step_end", _paid(r)) != 0, r.mask, 0.0)


def turns(r: types.Rollout):
    """Return [B, T]: ids of (row, turn), and 1 on the last trained token of each."""
    ids = ops.dense(jnp.indices(r.mask.shape)[0], shaping.field(r, "turn"))
    return ids, ops.segment_first(ids[:, ::-1], r.mask[:, ::-1])[:, ::-1]


@define.reward(needs=PAID)
def clip_process(r, eta: types.Number):
    """Clip the rewards of steps at 0: min(r_k - eta, 0). Effective RL reward (arXiv 2410.15115).

    A step ends where extra["step_end"] is 1, or without it at trained tokens whose token reward is not 0.
    """
    steps = _steps(r)
    clipped = jnp.minimum(_paid(r) - eta, 0.0) * steps
    return r.replace(token_reward=clipped, extra={**r.extra, "step_end": steps})


@define.reward(needs=PAID)
def delta_process(r):
    """Pay a step r_k - r_{k+1}; the last step keeps its reward. Effective RL reward (arXiv 2410.15115).

    Undiscounted returns are then the steps' rewards, and repeating a good step adds nothing. Steps as in
    ``clip_process``.
    """
    return -ops.gae(jnp.zeros_like(r.mask), _paid(r), _steps(r), 1.0, 0.0)  # one-step differences, the sign turned


@define.reward(needs=PAID)
def gated(r, threshold: types.Number):
    """Make one reward of the row: R + 1[R >= threshold] sum_t r_t. Gated reward accumulation (arXiv 2508.10548)."""
    dense, won = trajectories.summed(r, jnp.sum(_paid(r), axis=1)), trajectories.outcome(r)
    return r.replace(reward=won + jnp.where(won >= threshold, dense, 0.0), token_reward=None)


@define.reward(needs=TURNS)
def improvement(r, alpha: types.NonNegative = 10.0):
    """Add alpha (r2 - r1) at the last trained token of turn 1: token rewards of turns 1 and 0. SCoRe (2409.12917).

    Rows without a trained token in either turn get nothing more.
    """
    first, second = (jnp.where(shaping.field(r, "turn") == k, r.mask, 0.0) for k in (0, 1))
    gain = trajectories.summed(r, jnp.sum(_paid(r) * (second - first), axis=1))
    began = trajectories.summed(r, jnp.max(first, axis=1)) > 0
    return _paid(r) + alpha * jnp.where(began, gain, 0.0)[:, None] * ops.last_token(second)


@define.reward(needs=TURNS)
def only_turn(r, turn: int):
    """Pay one turn alone: its token rewards, and the row's reward where the row ends in it.

    SCoRe (arXiv 2409.12917), stage I, pays turn 1.
    """
    paid = shaping.field(r, "turn") == turn
    ends = jnp.sum(jnp.where(paid, ops.last_token(r.mask), 0.0), axis=1)
    return r.replace(reward=r.reward * ends, token_reward=jnp.where(paid, _paid(r), 0.0))


@define.reward(needs=TURNS | define.reads(extra=("match",)))
def turn_returns(r, gamma: types.Fraction = 0.5):
    """Pay R_k = r_k + gamma R_{k+1} at a turn's last trained token, r_k where it misses the expert. UI-S1 (2509.11543).

    r_k sums the turn's token rewards, k + 1 is the row's next turn; a turn matches where extra["match"] is 1 on all
    its trained tokens.
    """
    ids, end = turns(r)
    missed = ops.segment_total(jnp.where(ops.extra(r, "match") == 1, 0.0, r.mask), ids)
    factor = jnp.where(missed > 0, 0.0, gamma).astype(end.dtype)
    return trajectories.reward_to_go(r, factor, ops.segment_total(_paid(r), ids), end)


@define.reward(needs=lambda a: TURNS | ops.key_needs(a["key"]))
def center_turns(r, key: types.Segments = "agent"):
    """Pay a turn's total at its last trained token, less the mean of all turns with equal ``key``. MARS (2025)."""
    (ids, end), keys = turns(r), ops.segments(r, key)
    keys = jnp.broadcast_to(keys if keys.ndim == 2 else keys[:, None], end.shape)
    total = ops.segment_total(_paid(r), ids)
    return (total - ops.segment_mean(total, keys, end * ops.valid_rows(r)[:, None])) * end
