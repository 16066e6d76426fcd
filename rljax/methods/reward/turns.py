"""Rewards of steps and turns: pieces that write ``token_reward`` and mostly leave the reward of the row unchanged."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.frame import extras
from rljax.transforms.reward import shaping, steps

PAID = types.Needs(token_reward=True)


def turns(r: types.Rollout) -> tuple[types.Array, types.Array]:
    """Return [B, T]: ids of (row, turn), and 1 on the last trained token of each."""
    ids = ops.dense(jnp.indices(r.mask.shape)[0], shaping.field(r, "turn"))
    return ids, ops.segment_first(ids[:, ::-1], r.mask[:, ::-1])[:, ::-1]


@define.reward(needs=PAID)
def clip_process(r, eta: types.Number) -> types.Rollout:
    """Clip the rewards of steps at 0: min(r_k - eta, 0). Effective RL reward (arXiv 2410.15115).

    A step ends where extra["step_end"] is 1, or without it at trained tokens whose token reward is not 0.
    """
    ends = jnp.where(steps.ends(r), r.mask, 0.0)
    clipped = jnp.minimum(steps.payments(r) - eta, 0.0) * ends
    return extras.put(trajectories.repaid(r, clipped), {"step_end": ends})


@define.reward(needs=PAID)
def delta_process(r) -> types.Array:
    """Pay a step r_k - r_{k+1}; the last step keeps its reward. Effective RL reward (arXiv 2410.15115).

    Undiscounted returns are then the steps' rewards, and repeating a good step adds nothing. Steps as in
    ``clip_process``.
    """
    ends = jnp.where(steps.ends(r), r.mask, 0.0)
    return -trajectories.gae(r, jnp.zeros_like(r.mask), steps.payments(r), ends, 1.0, 0.0)


@define.reward(needs=PAID)
def gated(r, threshold: types.Number) -> types.Rollout:
    """Make one reward of the row: R + 1[R >= threshold] sum_t r_t. Gated reward accumulation (arXiv 2508.10548)."""
    dense, won = trajectories.summed(r, jnp.sum(steps.payments(r), axis=1)), trajectories.outcome(r)
    return trajectories.replaced(r, won + jnp.where(won >= threshold, dense, 0.0))


@define.reward(needs=lambda a: types.Needs(turns=True) | modules.needs(a["module"], field="process"))
def progress(r, module: str = "prm") -> types.Rollout:
    """Pay a turn its share of the outcome, as a model predicts it, in place of what the row is paid: c_k.

    c_k is the module's score behind the turn's last trained token, paid there. ``progress_error`` trains the module so
    that the shares add up to the outcome. Source: SPA-RL (arXiv 2505.20732). extra["undistributed"] is the total
    reward before, without charges.

    Args:
      module: name of ``config.module``.
    """
    share = jnp.where(turns(r)[1] > 0, modules.score(r, module, "process"), 0.0)
    r = extras.put(r, {"undistributed": trajectories.uncharged(r)})
    return trajectories.repaid(r.replace(reward=jnp.zeros_like(r.reward)), share)


@define.reward(needs=steps.TURNS | define.reads(extra=("match",)))
def turn_returns(r, gamma: types.Fraction = 0.5) -> types.Array:
    """Pay R_k = r_k + gamma R_{k+1} at a turn's last trained token, r_k where it misses the expert. UI-S1 (2509.11543).

    r_k sums the turn's token rewards, k + 1 is the row's next turn; a turn matches where extra["match"] is 1 on all
    its trained tokens.
    """
    ids, end = turns(r)
    missed = ops.segment_total(jnp.where(ops.extra(r, "match") == 1, 0.0, r.mask), ids)
    factor = jnp.where(missed > 0, 0.0, gamma).astype(end.dtype)
    return trajectories.reward_to_go(r, factor, ops.segment_total(steps.payments(r), ids), end)


@define.reward(needs=lambda a: steps.TURNS | ops.key_needs(a["key"]))
def center_turns(r, key: types.Segments = "agent") -> types.Array:
    """Pay a turn's total at its last trained token, less the mean of all turns with equal ``key``. MARS (2025)."""
    (ids, end), keys = turns(r), ops.segments(r, key)
    keys = jnp.broadcast_to(keys if keys.ndim == 2 else keys[:, None], end.shape)
    total = ops.segment_total(steps.payments(r), ids)
    return (total - ops.segment_mean(total, keys, end * ops.valid_rows(r)[:, None])) * end
