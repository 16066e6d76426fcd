"""Advantages from comparisons: the best row, a reference row, budgets."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.advantage import normalise


@define.advantage(needs=normalise.SIBLINGS)
def best_minus_second(r, scale: bool = False, epsilon: types.NonNegative = 1e-6) -> types.Array:
    """Pay a group's best row its lead over the second; ``scale`` divides it by std + epsilon (arXiv 2503.19595)."""
    reward, valid = trajectories.total(r), trajectories.once(r)
    best, second, leads = ops.segment_top(reward, r.group, valid)
    leads = trajectories.summed(r, leads)
    lead = jnp.where((leads > 0) & jnp.isfinite(second), best - second, 0.0)
    return normalise.over(lead, ops.segment_std(reward, r.group, valid, 1) + epsilon) if scale else lead


@define.advantage(needs=define.reads("beats_reference", siblings=True))
def pairwise_reference(r, limit: types.Positive = 0.6) -> types.Array:
    """Let A be the part "beats_reference" (1, -1 or 0); groups with |mean| > limit get 0. BRPO, Writing-Zero (2025)."""
    beats = ops.part(r, "beats_reference")
    mean = ops.segment_mean(beats, r.group, ops.valid_rows(r))
    return jnp.where(jnp.abs(mean) > limit, 0.0, beats)


@define.advantage(needs=define.reads(extra=("reference_answer",)))
def reward_on_reference_answer(r) -> types.Array:
    """Set A to the row's reward where extra["reference_answer"] is 1. VeriFree (arXiv 2505.21493)."""
    return jnp.where(ops.extra(r, "reference_answer") > 0, r.reward[:, None], normalise.current(r))


@define.advantage(needs=define.reads(extra=("segment", "cut_reward"), siblings=True))
def budget_relative(r, budgets: Literal["uniform", "linear", "last"] = "uniform") -> types.Array:
    """Credit segment s of a thought with the rewards at the S budgets still ahead, against row and group.

    F_s = sum over j >= s of P_j r_j; A_s = F_s - (s/S) prev_s sum over j >= s of P_j - ((S-s)/S) mean_group F_s, where
    prev_s is the mean of r_j, j < s, weighed by 2^j. extra["cut_reward"] [B, S] holds r, extra["segment"] [B, T] holds
    s from 0; where it is S the token is of a summary, with the advantage extra["summary"] [B]. Source: BRPO of
    AnytimeReasoner (arXiv 2505.13438). S = 1 is ``center_by_group``.

    Args:
      budgets: P, equal, in proportion to the budget, or 1 for the last one.
    """
    cut, segment = ops.extra(r, "cut_reward"), ops.extra(r, "segment")
    count = cut.shape[1]
    s = np.arange(count)
    weight = {"uniform": np.ones(count), "linear": s + 1.0, "last": (s == count - 1) * 1.0}[budgets]
    weight = jnp.asarray(weight / weight.sum(), cut.dtype)[None]
    rest = jnp.cumsum(weight[:, ::-1], axis=1)[:, ::-1]
    ahead = jnp.cumsum((weight * cut)[:, ::-1], axis=1)[:, ::-1]
    earlier = np.tril(np.broadcast_to(2.0**s, (count, count)), -1) / np.maximum(2.0 ** s[:, None] - 1.0, 1.0)
    before = jnp.sum(cut[:, None] * jnp.asarray(earlier, cut.dtype)[None], axis=2)
    done, left = (jnp.asarray(x / count, cut.dtype)[None] for x in (s, count - s))
    mean = jax.vmap(ops.segment_mean, in_axes=(1, None, None), out_axes=1)(ahead, r.group, ops.valid_rows(r))
    stretch = ahead - done * before * rest - left * mean
    if "summary" in r.extra:
        stretch = jnp.concatenate([stretch, r.extra["summary"][:, None]], axis=1)
    return jnp.take_along_axis(stretch, jnp.clip(segment, 0, stretch.shape[1] - 1), axis=1)
