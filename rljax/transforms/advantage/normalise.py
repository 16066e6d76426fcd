"""Centre and scale: two general functions, their presets, and other scales; what all pieces of the seam share."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import ops

SIBLINGS = types.Needs(siblings=True)


def current(r: types.Rollout):
    """Return [B, T], the advantage so far; the reward-to-go where there is none."""
    return ops.reward_to_go(ops.token_rewards(r), r.mask) if r.advantage is None else r.advantage


def trained(r: types.Rollout):
    """Return [B, T], 1 on tokens that count: mask 1, in a valid row."""
    return r.mask * ops.valid_rows(r)[:, None]


def write(r: types.Rollout, advantage) -> types.Rollout:
    """Write an advantage, [B] or [B, T]; tokens that do not count get 0, whatever stands there."""
    counted, a = trained(r), advantage if advantage.ndim == 2 else advantage[:, None]
    return r.replace(advantage=jnp.where(counted > 0, a * counted, 0.0))


def sets(needs: types.Needs | Callable[[Mapping[str, Any]], types.Needs] = types.Needs()):
    """Make a piece of ``function(rollout, *arguments)``, the new advantage; the piece takes the arguments alone.

    The function may return (advantage, the critic's target), ``needs`` be a function of the arguments by name.
    """

    def lift(function, arguments) -> types.RolloutTransform:
        def apply(r: types.Rollout) -> types.Rollout:
            out = function(r)
            return write(r, out[0]).replace(returns=out[1] * r.mask) if isinstance(out, tuple) else write(r, out)

        asked = needs if isinstance(needs, types.Needs) else needs(arguments)
        return transforms.stateless(types.RolloutTransform, apply, needs=asked)

    return transforms.formula(lift, 1)


def reads(part: str = "", extra: str = "", **needs) -> types.Needs:
    """Return the needs of a piece that reads a part or an extra."""
    return types.Needs(parts=frozenset({part} - {""}), extra=frozenset({extra} - {""}), **needs)


def over(a, scale):
    """Divide, except by 0."""
    return a / jnp.where(scale > 0, scale, 1.0)


def flat(r: types.Rollout):
    """Return [B], whether the row's group has no spread."""
    return ops.segment_std(ops.row_reward(r), r.group, ops.valid_rows(r)) <= 1e-6


def asks(key: types.Segments, per: types.Unit = "token", only: types.Predicate | None = None) -> types.Needs:
    """Return what a statistic needs."""
    names = {key} if isinstance(key, str) else {*key}
    if per != "token" and names & {"turn", "tag"}:
        raise ValueError(f"key={key!r}: turns and tags are keys of tokens, so per='token'")
    siblings = per != "token" and "group" in names
    named = types.Needs(siblings=siblings, extra=frozenset({"tag"} & names), episodes=per == "episode")
    return named | ops.key_needs(key) | transforms.predicate_needs(only)


def _moments(
    r: types.Rollout,
    key: types.Segments = "group",
    per: types.Unit = "row",
    only: types.Predicate | None = None,
    ddof: int = 0,
):
    """Return (mean, standard deviation) over each segment, [B, 1] of row keys, else [B, T]; 0 of nothing."""
    ids, valid = ops.segments(r, key), ops.valid_rows(r)[:, None]
    chosen = valid > 0 if only is None else transforms.PREDICATES[only](r)
    if per == "token":
        x, weight = current(r), jnp.where(chosen, trained(r), 0.0)
    else:
        x, weight = ops.row_reward(r)[:, None], jnp.where(jnp.any(chosen, axis=1, keepdims=True), valid, 0.0)
    if per == "episode":
        unit = ops.dense(ids, ops.given(r.episode, "advantage: the rollout has no episode ids"))[:, None]
        x, weight = ops.segment_mean(x, unit, weight), ops.segment_first(unit, weight)

    def total(y):
        return ops.segment_total(y, ids) if ids.ndim == 2 else ops.segment_total(jnp.sum(y, axis=1), ids)[:, None]

    count = total(weight)
    mean = over(total(jnp.where(weight > 0, x, 0.0) * weight), count)
    square = total(jnp.where(weight > 0, x - mean, 0.0) ** 2 * weight)
    return mean, jnp.where(count > ddof, jnp.sqrt(square / jnp.maximum(count - ddof, 1e-6)), 0.0)


@sets(lambda a: asks(a["key"], a["per"], a["only"]))
def center_by(r, key: types.Segments = "group", per: types.Unit = "row", only: types.Predicate | None = None):
    """Subtract the mean of what shares ``key``: A - mean.

    The mean is of the rows' total reward, each row counted once (``per`` "row") or each rollout, by the mean of its
    rows ("episode"); or of the advantage so far over trained tokens ("token"). ``only`` says what enters the mean,
    which is then subtracted everywhere.
    """
    return current(r) - _moments(r, key, per, only)[0]


@sets(lambda a: asks(a["key"], a["per"], a["only"]))
def scale_by(
    r,
    key: types.Segments = "group",
    epsilon: types.NonNegative = 1e-6,
    ddof: int = 1,
    per: types.Unit = "row",
    only: types.Predicate | None = None,
):
    """Divide by the standard deviation of what shares ``key``: A / (std + epsilon). See ``center_by``.

    What ``only`` leaves out of a statistic without spread comes out of the order of 1 / epsilon.
    """
    return over(current(r), _moments(r, key, per, only, ddof)[1] + epsilon)


@transforms.piece
def center_by_group():
    """Subtract the group's mean reward: A = r - mean(group). Dr. GRPO (arXiv 2503.20783, eq. 3). Sums to 0."""
    return center_by("group")


@transforms.piece
def scale_by_group(epsilon: types.NonNegative = 1e-6, ddof: int = 1):
    """Divide by the standard deviation of the group's rewards: A / (std + epsilon).

    With ``center_by_group`` before it, GRPO's advantage (arXiv 2402.03300, section 4.1.2). ``ddof`` 1 is what
    most systems use; 0 makes mean |A| = 2 sqrt(p (1 - p)) for 0/1 rewards.
    """
    return scale_by("group", epsilon, ddof)


@transforms.piece
def scale_by_batch(epsilon: types.NonNegative = 1e-4, ddof: int = 1):
    """Divide by the standard deviation of all the batch's rewards (Lite PPO, arXiv 2508.08221)."""
    return scale_by("batch", epsilon, ddof)


@transforms.piece
def zscore_by_group(epsilon: types.NonNegative = 1e-6, ddof: int = 1):
    """Standardise in the group: ``center_by_group``, then ``scale_by_group`` (arXiv 2402.03300)."""
    return transforms.chain(center_by("group"), scale_by("group", epsilon, ddof))


@sets(lambda a: asks(a["key"]))
def whiten(r, epsilon: types.NonNegative = 1e-8, key: types.Segments = "batch"):
    """Standardise over all tokens that share ``key``: (A - mean) / sqrt(var + epsilon), var with ddof 1.

    Long rows weigh more. Source: PPO practice; REINFORCE++ (arXiv 2501.03262).
    """
    mean, std = _moments(r, key, "token", ddof=1)
    return over(current(r) - mean, jnp.sqrt(std**2 + epsilon))


@sets()
def standardise_rows(r, epsilon: types.NonNegative = 1e-6, ddof: int = 1):
    """Standardise the rows' mean advantages over the batch: (mean_t A - mean) / (std + epsilon) on a row's tokens.

    Source: SPO (arXiv 2509.13232). Unlike ``whiten`` it counts rows: those with a trained token.
    """
    row, weight = ops.row_mean(current(r), r.mask), jnp.max(trained(r), axis=1, keepdims=True)
    return over(row - ops.masked_mean(row, weight), ops.masked_std(row, weight, ddof) + epsilon)


@sets(SIBLINGS)
def scale_by_group_mean(r, epsilon: types.NonNegative = 0.0):
    """Divide by the group's mean reward: A / (mean + epsilon), 0 where mean <= 0. MaxRL (arXiv 2602.02710)."""
    mean = _moments(r)[0]
    return jnp.where(mean > 0, over(current(r), mean + epsilon), 0.0)


@sets(types.Needs(siblings=True, domains=True))
def scale_by_task(r, epsilon: types.NonNegative = 1e-6):
    """Divide by a domain's spread: A / (s + epsilon), s^2 its groups' mean variance (ddof 1). GoLongRL (2025)."""
    domain, valid = ops.given(r.domain, "scale_by_task: the rollout has no domain"), ops.valid_rows(r)
    variance = ops.segment_std(ops.row_reward(r), r.group, valid, 1) ** 2
    once = ops.segment_first(r.group, jnp.where(ops.segment_total(valid, r.group) > 1, valid, 0.0))
    return over(current(r), jnp.sqrt(ops.segment_mean(variance, domain, once))[:, None] + epsilon)


@sets(SIBLINGS)
def scale_by_informative_share(r, floor: types.Fraction = 0.5):
    """Divide by the share of groups that have spread: A / max(share, floor). GPG (arXiv 2504.02546)."""
    once = ops.segment_first(r.group, ops.valid_rows(r))
    share = ops.masked_mean(jnp.where(flat(r), 0.0, jnp.ones_like(once)), once)
    return over(current(r), jnp.maximum(share, floor))


@sets(SIBLINGS)
def scale_mixed_groups(r, all_wrong: types.NonNegative = 0.25, epsilon: types.NonNegative = 1e-6):
    """Divide by the group's std + epsilon; without a positive reward, times ``all_wrong``. LENS (arXiv 2510.08696)."""
    best, _, _ = ops.segment_top(r.reward, r.group, ops.valid_rows(r))
    scaled = over(current(r), _moments(r, ddof=1)[1] + epsilon)
    return jnp.where(best[:, None] > 0, scaled, all_wrong * current(r))


@sets()
def drop_outliers(r, sigmas: types.NonNegative = 3.0):
    """Zero what lies far out in the batch: |A - mean| > sigmas std over tokens. R1-Reward (arXiv 2505.02835)."""
    mean, std = _moments(r, "batch", "token")
    return jnp.where(jnp.abs(current(r) - mean) > sigmas * std, 0.0, current(r))


@sets()
def clamp(r, limit: types.Positive):
    """Hold the advantage within [-limit, limit] (MARS, 2025)."""
    return jnp.clip(current(r), -limit, limit)


@sets()
def binarise(r, threshold: types.Number = 0.0):
    """Keep what is better than ``threshold``, at one weight: 1[A > threshold]. Filtered behaviour cloning."""
    return jnp.where(current(r) > threshold, jnp.ones_like(r.mask), 0.0)


@sets()
def positive_part(r):
    """Keep what is better than its baseline: max(A, 0). A-LoL (arXiv 2305.14718)."""
    return jnp.maximum(current(r), 0.0)
