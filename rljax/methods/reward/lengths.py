"""Rewards of length and repetition. The length of a row is its number of trained tokens; right is reward > 0."""

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.methods.reward import outcomes
from rljax.methods.reward import turns as turns_lib
from rljax.transforms import define, ops, trajectories
from rljax.transforms.frame import idle
from rljax.transforms.reward import shaping


def _right(r: types.Rollout):
    """Return bool [B], whether the total reward so far is positive."""
    return trajectories.uncharged(r) > 0


def _cosine(x):
    """Return half a cosine: 1 at 0, 0 at 1, 1 again at 2."""
    return 0.5 * (1 + jnp.cos(jnp.pi * x))


@define.reward(needs=shaping.GROUP)
def min_max_length(r, weight: types.NonNegative = 1.0) -> types.Array:
    """Add weight (0.5 - (len - min) / (max - min)) by group, to wrong rows no more than 0. Kimi k1.5 (2501.12599)."""
    length, shortest = ops.length(r), -shaping.largest(-ops.length(r), r)
    span = shaping.largest(length, r) - shortest
    lam = jnp.where(span > 0, 0.5 - shaping.over(length - shortest, span), 0.0)  # 0 where all are equally long
    return r.reward + weight * jnp.where(_right(r), lam, jnp.minimum(lam, 0.0))


@define.reward(needs=shaping.GROUP)
def solve_rate_length(r, share: types.Fraction = 0.2, alpha: types.Fraction = 0.5) -> types.Rollout:
    """Pay right rows 1, but 1 - alpha sigmoid(z(len)) in the ``share`` of groups solved best; wrong rows 0.

    z over the group's right rows (ddof 0); the best are the first ceil(share * groups) by solve rate, earlier ones
    first among equals. GRPO-lambda (arXiv 2505.18086), whose alpha is not public.
    """
    valid = ops.valid_rows(r)
    right = jnp.where(_right(r), valid, 0.0)
    leads = ops.segment_first(r.group, valid)  # one row represents each group
    order = jnp.lexsort((-ops.segment_mean(right, r.group, valid), -leads))
    ahead = ops.segment_total(jnp.argsort(order).astype(leads.dtype) * leads, r.group)
    best = ahead < share * jnp.sum(leads) * (1 - 1e-6)  # 0.2 of 5 groups is 1, however it is rounded
    short = 1 - alpha * jax.nn.sigmoid(outcomes.zscore(ops.length(r), r, right, 0))
    return trajectories.replaced(r, right * jnp.where(best, short, 1.0))


@define.reward(needs=shaping.GROUP)
def brevity_if_solved(r, limit: types.Positive, weight: types.NonNegative = 1.0) -> types.Array:
    """Add weight max(0, 1 - len / limit) to the rows of groups of which all rows are right; others are unchanged.

    Source: L-GRPO, the second stage of ConciseR (arXiv 2505.21178). That only solved groups are paid for brevity is the
    paper's; the form of the payment is not in a public source that was read, and this is the plainest.

    Args:
      limit: tokens of the longest row.
      weight: what a row of no tokens would be paid.
    """
    wrong = jnp.where(_right(r), 0.0, ops.valid_rows(r))
    spare = jnp.maximum(1.0 - ops.length(r) / limit, 0.0)
    return r.reward + jnp.where(ops.segment_total(wrong, r.group) > 0, 0.0, weight * spare)


@define.reward
def cosine_length(
    r, limit: types.Positive, correct: outcomes.Pair = (0.5, 1.0), wrong: outcomes.Pair = (-1.0, -0.5)
) -> types.Rollout:
    """Replace the reward by low + (high - low) (1 + cos(pi len / limit)) / 2, for wrong rows the ends swapped.

    Short right answers get most, short wrong ones least. ``limit`` in tokens; longer rows count as that long.
    Demystifying Long Chain-of-Thought (arXiv 2502.03373).

    Args:
      limit: tokens; longer rows count as that long.
      correct: (low, high) of right rows.
      wrong: (low, high) of wrong rows.
    """
    short = _cosine(jnp.minimum(ops.length(r), limit) / limit)
    paid = correct[0] + (correct[1] - correct[0]) * short
    paid = jnp.where(_right(r), paid, wrong[1] + (wrong[0] - wrong[1]) * short)
    return trajectories.replaced(r, paid.astype(r.reward.dtype))


@define.reward(needs=shaping.GROUP)
def sibling_cosine(r, fallback: types.Positive = 750) -> types.Array:
    """Add -(1 + cos(pi len / L)) / 4 to wrong rows, -0.5 from 2 L on. VL-Cogito (arXiv 2507.22607).

    L is the mean length of the group's right rows, ``fallback`` tokens where there are none.
    """
    length, right = ops.length(r), jnp.where(_right(r), ops.valid_rows(r), 0.0)
    mean = ops.segment_mean(length, r.group, right)
    target = jnp.where(ops.segment_total(right, r.group) > 0, mean, fallback)
    return r.reward - jnp.where(_right(r), 0.0, 0.5) * _cosine(shaping.over(jnp.minimum(length, 2 * target), target))


@define.reward(needs=define.reads("tag", "easy", siblings=True))
def tag_cosine(r) -> types.Array:
    """Add part "tag", and (1 + cos(pi len / group's longest)) / 2 to right rows with part "easy" 1. AdaCtrl (2025)."""
    short = _cosine(shaping.over(ops.length(r), shaping.largest(ops.length(r), r)))
    return r.reward + ops.part(r, "tag") + jnp.where((ops.part(r, "easy") == 1) & _right(r), short, 0.0)


@define.reward(needs=define.reads("think"))
def mode_balance(r, limit: types.Fraction = 0.5, balance: types.NonNegative = 2.0) -> types.Rollout:
    """Pay thinking (part "think" 1) 1 or 0, no thinking 2 or -1, less clip(balance (share - limit), 0, 1).

    The share counts the row's mode in the batch. AutoThink (arXiv 2505.10832), stage 1; ``limit`` 1 subtracts
    nothing: stages 2 and 3.
    """
    think, valid = ops.part(r, "think") > 0, ops.valid_rows(r)
    thinking = jnp.sum(jnp.where(think, valid, 0.0)) / jnp.maximum(jnp.sum(valid), 1.0)
    base = jnp.where(_right(r), jnp.where(think, 1.0, 2.0), jnp.where(think, 0.0, -1.0))
    charge = jnp.clip(balance * (jnp.where(think, thinking, 1 - thinking) - limit), 0.0, 1.0)
    return trajectories.replaced(r, (base - charge).astype(r.reward.dtype))


@define.reward(needs=shaping.GROUP)
def length_zscore(r, alpha: types.NonNegative = 0.05, beta: types.NonNegative = 0.05) -> types.Array:
    """Add exp(-alpha z) - 1 to right rows, 1 - exp(-beta z) to wrong ones. AutoThink (arXiv 2505.10832), stage 3.

    z is the z-score of the length in the group (ddof 0).
    """
    z = outcomes.zscore(ops.length(r), r, ops.valid_rows(r), 0)
    return r.reward + jnp.where(_right(r), jnp.expm1(-alpha * z), -jnp.expm1(-beta * z))


@define.reward
def budget_triangle(
    r, budget: types.Positive, correct: types.Number = 1.0, length: types.Number = 0.5
) -> types.Rollout:
    """Pay correct r + length max(0, 1 - |len - budget| / budget), in tokens. Train Long, Think Short (2508.08940).

    Args:
      budget: target length in tokens.
      correct: weight of the reward.
      length: weight of the length.
    """
    short = jnp.maximum(1 - jnp.abs(ops.length(r) - budget) / budget, 0.0)
    return trajectories.replaced(r, correct * trajectories.uncharged(r) + length * short)


@define.reward(needs=lambda a: shaping.GROUP | types.Needs(turns=not idle.equals(a["turns"], 0)))
def relative_length(r, output: types.NonNegative = 0.1, turns: types.NonNegative = 0.0) -> types.Array:
    """Charge length against the group's longest: r - mean(r) sum_k w_k x_k / max x_k. prime-rl (2025).

    x: trained tokens (weight ``output``) and turns that have one (weight ``turns``); mean and max over the group.
    """
    used = output * shaping.over(ops.length(r), shaping.largest(ops.length(r), r))
    if not idle.equals(turns, 0):
        count = jnp.sum(turns_lib.turns(r)[1], axis=1)
        used = used + turns * shaping.over(count, shaping.largest(count, r))
    return r.reward - ops.segment_mean(trajectories.uncharged(r), r.group, trajectories.once(r)) * used


@define.reward(needs=define.reads("length_gap"))
def length_gap(r, weight: types.NonNegative = 0.05, limit: types.Positive = 10.0) -> types.Array:
    """Charge right rows weight min(limit, |part "length_gap"|): how much longer the answer is than the reference's.

    In tokens of the answer alone. Source: General-Reasoner (arXiv 2505.14652).
    """
    charge = weight * jnp.minimum(jnp.abs(ops.part(r, "length_gap")), limit)
    return jnp.where(_right(r), r.reward - charge, r.reward)


def _at_the_right(r: types.Rollout, mask):
    """Return the row's tokens with mask 1, in order, as the last of [B, T]; and how many they are, [B, 1]."""
    order = jnp.argsort(mask > 0, axis=1, stable=True)
    token = jnp.take_along_axis(shaping.field(r, "action").token, order, axis=1)
    return token, jnp.sum(mask > 0, axis=1, keepdims=True)


@define.reward
def repetition(
    r, penalty: types.Number = -1.0, ngram: types.Count = 3, only: types.Predicate | None = None
) -> types.Array:
    """Add penalty (1 - distinct / all) over the n-grams of trained tokens. Long Chain-of-Thought (arXiv 2502.03373).

    ``only``: of the tokens that satisfy a predicate, such as the tokens of "wrong" rows. 0 where there is no n-gram.

    Args:
      penalty: added to a row that only repeats.
      ngram: tokens of an n-gram.
      only: the predicate of the tokens that count; None: all.
    """
    mask = r.mask if only is None else jnp.where(transforms.PREDICATES[only](r), r.mask, 0.0)
    token, count = _at_the_right(r, mask)
    starts = token.shape[1] - ngram + 1
    if starts < 1:
        return r.reward
    row, start = jnp.indices((token.shape[0], starts))
    real = (start >= token.shape[1] - count).astype(mask.dtype)
    number = ops.dense(row, *[token[:, k : k + starts] for k in range(ngram)])
    total, distinct = jnp.sum(real, axis=1), jnp.sum(ops.segment_first(number, real), axis=1)
    return r.reward + penalty * shaping.over(total - distinct, total)


@define.reward
def tail_repetition(r, penalty: types.NonNegative = 0.2, period_limit: types.Count = 8) -> types.Array:
    """Subtract ``penalty`` from truncated rows whose last p tokens equal the p before. CAMPO (arXiv 2507.14683).

    For some p up to ``period_limit``.
    """
    (token, count), width = _at_the_right(r, r.mask), r.mask.shape[1]
    loops = jnp.zeros_like(r.reward, bool)
    for p in range(1, min(period_limit, width // 2) + 1):
        same = token[:, width - p :] == token[:, width - 2 * p : width - p]
        loops = loops | jnp.all(same & (count >= 2 * p), axis=1)
    cut = shaping.field(r, "finish") == types.Finish.LENGTH
    return r.reward - jnp.where(cut & loops, penalty, 0.0).astype(r.reward.dtype)


@define.reward
def truncated(r, factor: types.Number = 0.0) -> types.Rollout:
    """Multiply the reward of rows cut at the limit by ``factor``: ProRL's "stop properly", as in OpenRLHF."""
    cut = trajectories.summed(r, (shaping.field(r, "finish") == types.Finish.LENGTH).astype(r.reward.dtype))
    return shaping.pay_instead(r, cut > 0, factor * trajectories.uncharged(r))
