"""Baselines: for each token, of remembered prompts, of the best or a reference row, and of budgets."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.advantage import baseline, normalise


@define.advantage(needs=normalise.SIBLINGS)
def length_weighted_baseline(r) -> types.Array:
    """Subtract the group's reward averaged over tokens: b = sum_i |y_i| r_i / sum_i |y_i|. OPO (arXiv 2505.23585)."""
    return baseline.minus(r, ops.segment_mean(trajectories.total(r), r.group, ops.valid_rows(r) * ops.length(r)))


@define.advantage(needs=types.Needs(square_prob=True, siblings=True))
def optimal_token_baseline(r) -> types.Array:
    """Subtract at each position the group's mean return, weighed by the squared score so far: A_t = G_t - B_t.

    B_t = sum_i G_t W_t / (sum_i W_t + 1e-8), W_t = sum over s <= t of 1 - 2 pi_s + sum_v pi_s(v)^2, the squared norm
    of the logit gradient; 0 on the longest row's tail beyond the second longest. Source: arXiv 2602.07078.
    """
    logp = ops.given(r.raw_logp, "optimal_token_baseline: the rollout has no raw_logp")
    square = ops.given(r.square_prob, "optimal_token_baseline: the rollout has no square_prob")
    norm = jnp.where(r.mask > 0, jnp.maximum(1.0 - 2.0 * jnp.exp(logp) + square, 0.0), 0.0)
    weight = jnp.cumsum(norm, axis=1) * ops.trained_tokens(r)
    to_go = trajectories.reward_to_go(r)
    by_column = jax.vmap(ops.segment_total, in_axes=(1, None), out_axes=1)
    total = by_column(jnp.where(weight > 0, to_go * weight, 0.0), r.group)
    baseline = total / (by_column(weight, r.group) + 1e-8)
    column = jnp.arange(1, r.mask.shape[1] + 1, dtype=r.mask.dtype)[None]
    _, second, _ = ops.segment_top(jnp.max(column * r.mask, axis=1), r.group, ops.valid_rows(r))
    tail = (column > second[:, None]) & jnp.isfinite(second)[:, None]  # a group of one row has no tail
    return to_go - jnp.where(tail, 0.0, baseline)


@define.advantage(needs=normalise.SIBLINGS)
def log_partition_baseline(r, tau: types.Positive = 0.01) -> types.Array:
    """Subtract the soft maximum of the other rows' rewards: A_i = r_i - tau log mean over j != i of exp(r_j / tau).

    Source: OpenKimi, PMD-partition. tau to infinity is ``leave_one_out``, tau to 0 subtracts the best other row.
    """
    reward, valid, once, peers = trajectories.total(r), ops.valid_rows(r), trajectories.once(r), trajectories.peers(r)
    best, second, leads = ops.segment_top(reward, peers, once)
    leads = trajectories.summed(r, leads)
    others = ops.segment_total(once, peers) - valid

    def beside(top):  # ``top`` is the largest of the other rows, so their sum is at least 1
        power = jnp.where(valid > 0, jnp.exp(jnp.minimum(reward - top, 0.0) / tau), 0.0)
        total = jnp.maximum(ops.segment_total(jnp.where(once > 0, power, 0.0), peers) - power, 1.0)
        return top + tau * (jnp.log(total) - jnp.log(jnp.maximum(others, 1.0)))

    return baseline.minus(r, jnp.where(others > 0, jnp.where(leads > 0, beside(second), beside(best)), reward))


@define.constructor("advantage")
def value_tracker(
    prompts: types.Count,
    half_life: types.Positive = 0.06,
    low: types.Fraction = 0.875,
    high: types.Fraction = 0.96,
    count: types.Positive = 8.0,
) -> types.RolloutTransform:
    """Subtract a running success rate of the prompt: A = r - a / (a + b), then a <- k a + r, b <- k b + 1 - r.

    k = clip(2^(-drift / half_life), low, high), the part "drift" being the mean |change of log-prob| of the prompt's
    last row, in nats. Starts at ``count`` samples, half of them right; rewards in [0, 1]; rows of one prompt add up
    and fade by their mean k. Source: SPO (arXiv 2509.13232).

    Args:
      prompts: number of prompts; ``index`` is less than that.
      half_life: drift, in nats, that halves the weight of earlier rows.
      low: lower bound of k.
      high: upper bound of k.
      count: samples that the first estimate counts for.
    """

    def apply(r: types.Rollout, state, key):
        a, b = state
        index = ops.given(r.index, "value_tracker: the rollout has no index")
        keep = jnp.clip(2.0 ** (-ops.part(r, "drift") / half_life), low, high)
        out, rows, right, keep = baseline.minus_remembered(r, index, a / (a + b), trajectories.total(r), keep)
        keep = jnp.where(rows > 0, keep / jnp.maximum(rows, 1.0), 1.0)
        return out, (keep * a + right, keep * b + rows - right)

    def init():
        return jnp.full(prompts, count / 2), jnp.full(prompts, count / 2)

    return types.RolloutTransform(apply=apply, init=init, needs=define.reads("drift"))


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
