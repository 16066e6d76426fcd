"""Center and scale: two general pieces, their presets, other scales, and what the pieces of the seam share."""

import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, ops, trajectories

SIBLINGS = types.Needs(siblings=True)


def current(r: types.Rollout) -> types.Array:
    """Return [B, T], the advantage so far; the reward-to-go where there is none."""
    return trajectories.reward_to_go(r) if r.advantage is None else r.advantage


def over(a, scale) -> types.Array:
    """Divide, except by 0."""
    return a / jnp.where(scale > 0, scale, 1.0)


def scaled(a: types.Array, std: types.Array, epsilon: types.NonNegative) -> types.Array:
    """Return a / (std + epsilon), and ``a`` where the statistic has no spread.

    What is scaled may differ although what the statistic counts does not: rows that ``only`` leaves out, rows of one
    episode, tokens of one row. Dividing by epsilon alone would make it dominate the batch.

    Args:
      a: ``[B, T]`` advantages.
      std: the standard deviation of their segments, ``[B, T]`` or ``[B, 1]``.
      epsilon: added to it.

    Returns:
      ``[B, T]`` advantages.
    """
    return jnp.where(std > ops.FLAT, over(a, std + epsilon), a)


def keyed(key: types.Segments, per: types.Unit = "token") -> types.Needs:
    """Return the needs of a statistic of what shares ``key``."""
    names = {key} if isinstance(key, str) else {*key}
    if per != "token" and names & {"turn", "tag"}:
        raise ValueError(f"key={key!r}: turns and tags are keys of tokens, so per='token'")
    siblings = per != "token" and "group" in names
    named = types.Needs(siblings=siblings, extra=frozenset({"tag"} & names), episodes=per == "episode")
    return named | ops.key_needs(key)


def moments(
    r: types.Rollout,
    key: types.Segments = "group",
    per: types.Unit = "trajectory",
    only: types.Predicate | None = None,
    ddof: int = 0,
) -> tuple[types.Array, types.Array]:
    """Return (mean, standard deviation) over each segment, [B, 1] of row keys, else [B, T]; 0 of nothing."""
    ids, valid = ops.segments(r, key), ops.valid_rows(r)[:, None]
    chosen = valid > 0 if only is None else transforms.PREDICATES[only](r)
    if per == "token":
        x, weight = current(r), jnp.where(chosen, ops.trained_tokens(r), 0.0)
    else:
        x, weight = trajectories.total(r)[:, None], jnp.where(jnp.any(chosen, axis=1, keepdims=True), valid, 0.0)
    if per == "episode":
        ops.given(r.episode, "advantage: the rollout has no episode ids")
    if per in ("episode", "trajectory") and r.episode is not None:
        unit = ops.dense(ids, trajectories.ids(r))[:, None]
        x = ops.segment_mean(trajectories.total(r)[:, None], unit, weight)
        weight = ops.segment_first(unit, weight)

    def total(y):
        return ops.segment_total(y, ids) if ids.ndim == 2 else ops.segment_total(jnp.sum(y, axis=1), ids)[:, None]

    count = total(weight)
    mean = over(total(jnp.where(weight > 0, x, 0.0) * weight), count)
    square = total(jnp.where(weight > 0, x - mean, 0.0) ** 2 * weight)
    return mean, jnp.where(count > ddof, jnp.sqrt(square / jnp.maximum(count - ddof, 1e-6)), 0.0)


@define.advantage(needs=lambda a: keyed(a["key"], a["per"]))
def center_by(
    r, key: types.Segments = "group", per: types.Unit = "trajectory", only: types.Predicate | None = None
) -> types.Array:
    """Subtract the mean of what shares ``key``: A - mean.

    The mean is over total rewards. ``per`` "trajectory" counts each agent of an episode once, however many rows it has;
    "episode" does too, and is refused where every episode has one row; "row" counts every row by itself. "token" is the
    mean over the advantage so far of trained tokens. Only what satisfies the predicate ``only`` enters the mean, which
    is then subtracted everywhere.

    Args:
      key: ids whose equality makes a segment: one name or several.
      per: what is counted once.
      only: the predicate of what enters the mean; None: everything.
    """
    return current(r) - moments(r, key, per, only)[0]


@define.advantage(needs=lambda a: keyed(a["key"], a["per"]))
def scale_by(
    r,
    key: types.Segments = "group",
    epsilon: types.NonNegative = 1e-6,
    ddof: int = 1,
    per: types.Unit = "trajectory",
    only: types.Predicate | None = None,
) -> types.Array:
    """Divide by the standard deviation of what shares ``key``: A / (std + epsilon), A where std is 0.

    ``per`` and ``only`` as in ``center_by``.

    Args:
      key: ids whose equality makes a segment: one name or several.
      epsilon: added to the standard deviation.
      ddof: subtracted from the count in the variance.
      per: what is counted once.
      only: the predicate of what enters the deviation; None: everything.
    """
    return scaled(current(r), moments(r, key, per, only, ddof)[1], epsilon)


@define.advantage(needs=SIBLINGS)
def center_by_group(r) -> types.Array:
    """Subtract the group's mean reward: A = r - mean(group). Dr. GRPO (arXiv 2503.20783, eq. 3). Sums to 0."""
    return current(r) - moments(r)[0]


@define.advantage(needs=SIBLINGS)
def scale_by_group(r, epsilon: types.NonNegative = 1e-6, ddof: int = 1) -> types.Array:
    """Divide by the standard deviation of the group's rewards: A / (std + epsilon).

    With ``center_by_group`` before it, GRPO's advantage (arXiv 2402.03300, section 4.1.2). ``ddof`` 1 is what
    most systems use; 0 makes mean |A| = 2 sqrt(p (1 - p)) for 0/1 rewards.
    """
    return scaled(current(r), moments(r, "group", ddof=ddof)[1], epsilon)


@define.advantage
def scale_by_batch(r, epsilon: types.NonNegative = 1e-4, ddof: int = 1) -> types.Array:
    """Divide by the standard deviation of all the batch's rewards (Lite PPO, arXiv 2508.08221)."""
    return scaled(current(r), moments(r, "batch", ddof=ddof)[1], epsilon)


@define.advantage(needs=lambda a: keyed(a["key"]))
def whiten(r, epsilon: types.NonNegative = 1e-8, key: types.Segments = "batch") -> types.Array:
    """Standardize over all tokens that share ``key``: (A - mean) / sqrt(var + epsilon), var with ddof 1.

    Long rows weigh more. Source: PPO practice; REINFORCE++ (arXiv 2501.03262).
    """
    mean, std = moments(r, key, "token", ddof=1)
    return over(current(r) - mean, jnp.sqrt(std**2 + epsilon))


@define.advantage(needs=SIBLINGS)
def scale_mixed_groups(r, all_wrong: types.NonNegative = 0.25, epsilon: types.NonNegative = 1e-6) -> types.Array:
    """Divide by the group's std + epsilon; without a positive reward, times ``all_wrong``. LENS (arXiv 2510.08696)."""
    best, _, _ = ops.segment_top(trajectories.uncharged(r), r.group, ops.valid_rows(r))
    by_spread = scaled(current(r), moments(r, ddof=1)[1], epsilon)
    return jnp.where(best[:, None] > 0, by_spread, all_wrong * current(r))


@define.advantage
def binarise(r, threshold: types.Number = 0.0) -> types.Array:
    """Keep what is better than ``threshold``, with weight 1: 1[A > threshold]. Filtered behaviour cloning."""
    return jnp.where(current(r) > threshold, jnp.ones_like(r.mask), 0.0)


@define.advantage
def exponentiated(r, beta: types.Positive = 1.0, cap: types.Positive = 20.0) -> types.Array:
    """Weigh by the exponential of the advantage: min(exp(A / beta), cap), above 0 on bad rows too.

    Source: AWR (arXiv 1910.00177, eq. 12), whose weights are truncated at ``cap``. As beta goes to 0 with A <= 0 it is
    the cloning of the best rows, as beta goes to infinity of all.
    """
    return jnp.minimum(jnp.exp(jnp.minimum(current(r) / beta, 80.0)), cap)


@define.advantage
def positive_part(r) -> types.Array:
    """Keep what is better than its baseline: max(A, 0). A-LoL (arXiv 2305.14718)."""
    return jnp.maximum(current(r), 0.0)
