"""Small pure functions that the pieces use: masks, segments, returns, divergences."""

import math
import re
import typing

import jax
import jax.numpy as jnp

from rljax import types

Array = jax.Array

DIVERGENCES = ("reverse_kl", "forward_kl", "js", "hellinger", "total_variation", "alpha_0.5")
"""Exact full-vocabulary divergences from the reference that ``Scores`` may contain; alpha_ takes any number."""
MODES = "greatest", "at_mode"  # no divergences: the log-prob of the policy's most probable token, of the reference's
ESTIMATORS = typing.get_args(types.Estimator)
FLAT = 1e-6  # standard deviations of equal rewards are at most this: their mean may differ in the last bit


def repeat(x: Array, count: int, axis: int = 0) -> Array:
    """Return ``jnp.repeat(x, count, axis)`` by broadcasting, since a gather would fetch the parts of other devices.

    Args:
      x: any shape.
      count: how often each element is repeated.
      axis: the axis that is repeated.

    Returns:
      ``x`` with ``axis`` ``count`` times as long.
    """
    wide = jnp.broadcast_to(jnp.expand_dims(x, axis + 1), (*x.shape[: axis + 1], count, *x.shape[axis + 1 :]))
    return wide.reshape(*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :])


def masked_mean(x: Array, mask: Array) -> Array:
    """Return the mean of ``x`` where ``mask`` is 1; 0 for an empty mask."""
    return jnp.sum(jnp.where(mask > 0, x, 0.0) * mask) / jnp.maximum(jnp.sum(mask), 1.0)


def masked_std(x: Array, mask: Array, ddof: int = 0) -> Array:
    """Return the standard deviation of ``x`` where ``mask`` is 1.

    Args:
      x: any shape.
      mask: shaped like ``x``, 0 or 1.
      ddof: subtracted from the count in the denominator.

    Returns:
      A scalar.
    """
    deviation = jnp.where(mask > 0, x - masked_mean(x, mask), 0.0)
    return jnp.sqrt(jnp.sum(deviation**2) / jnp.maximum(jnp.sum(mask) - ddof, 1.0))


@jax.jit  # traced once for equal shapes: pieces call it many times
def dense(*keys: Array) -> Array:
    """Return for each element the number 0, 1, ... of its tuple of ``keys``, integer arrays of one shape."""
    flat = [k.reshape(-1) for k in keys]
    order = jnp.lexsort(flat)
    changed = jnp.zeros(flat[0].shape, bool).at[0].set(True)
    for ordered in [k[order] for k in flat]:
        changed = changed | (ordered != jnp.roll(ordered, 1))
    number = jnp.cumsum(changed) - 1
    return jnp.zeros_like(number).at[order].set(number).reshape(keys[0].shape)


def segments(rollout: types.Rollout, key: types.Segments) -> Array:
    """Return segment ids: equal where all of ``key`` are. [B], or [B, T] where "turn" or "tag" is among the keys.

    Raises:
      ValueError: the rollout lacks a field that the key names.
    """
    ids = []
    for name in (key,) if isinstance(key, str) else key:
        if name == "batch":
            ids.append(jnp.zeros_like(rollout.group))
        elif name == "tag":
            ids.append(given(rollout.extra.get("tag"), "segments: the rollout has no extra['tag']"))
        else:
            ids.append(given(getattr(rollout, name), f"segments: the rollout has no {name}"))
    width = rollout.mask.shape
    if any(x.ndim == 2 for x in ids):
        ids = [jnp.broadcast_to(x if x.ndim == 2 else x[:, None], width) for x in ids]
    return ids[0] if len(ids) == 1 else dense(*ids)


def key_needs(key: types.Segments | None) -> types.Needs:
    """Return the ids that ``segments`` reads for ``key``, as needs; None reads nothing."""
    names = {key} if isinstance(key, str) else {*(key or ())}
    return types.Needs(
        turns="turn" in names, agents="agent" in names, episodes="episode" in names, domains="domain" in names
    )


@jax.jit
def segment_total(x: Array, ids: Array) -> Array:
    """Return the sum of ``x`` over the elements that share an id, at every element; ``ids`` are integers."""
    number = dense(ids).reshape(-1)
    return jax.ops.segment_sum(x.reshape(-1), number, num_segments=x.size)[number].reshape(x.shape)


@jax.jit
def segment_max(x: Array, ids: Array, weight: Array | None = None) -> Array:
    """Return the largest ``x`` over each segment, at every element; -inf, or the least integer, where none has weight.

    Args:
      x: any shape.
      ids: integers, shaped like ``x``; elements with equal ids are one segment.
      weight: shaped like ``x``, at least 0; None: every element counts.
    """
    if weight is not None:
        x = jnp.where(weight > 0, x, -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min)
    number = dense(ids).reshape(-1)
    return jax.ops.segment_max(x.reshape(-1), number, num_segments=x.size)[number].reshape(x.shape)


def segment_mean(x: Array, ids: Array, weight: Array) -> Array:
    """Return the weighted mean of ``x`` over each segment, at every element; 0 where nothing has weight.

    Args:
      x: any shape.
      ids: integers, shaped like ``x``; elements with equal ids are one segment.
      weight: shaped like ``x``, at least 0.
    """
    total = segment_total(jnp.where(weight > 0, x, 0.0) * weight, ids)
    count = segment_total(weight, ids)
    return total / jnp.where(count > 0, count, 1.0)


def segment_std(x: Array, ids: Array, weight: Array, ddof: int = 0) -> Array:
    """Return the standard deviation over each segment, at every element; 0 where at most ``ddof`` elements count.

    Args:
      x: any shape.
      ids: integers, shaped like ``x``; elements with equal ids are one segment.
      weight: shaped like ``x``, 0 or 1.
      ddof: subtracted from the count in the denominator.
    """
    deviation = jnp.where(weight > 0, x - segment_mean(x, ids, weight), 0.0)
    count = segment_total(weight, ids)
    square = segment_total(deviation**2 * weight, ids)
    return jnp.where(count > ddof, jnp.sqrt(square / jnp.maximum(count - ddof, 1e-6)), 0.0)


def segment_first(ids: Array, weight: Array) -> Array:
    """Return 1 on the first element with weight of each segment and 0 elsewhere, which counts a segment once."""
    rank = jnp.where(weight > 0, jnp.arange(ids.size, 0, -1).reshape(ids.shape), 0)
    return jnp.where((rank > 0) & (rank == segment_max(rank, ids)), jnp.ones_like(weight), 0.0)


def segment_top(x: Array, ids: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return the largest two elements with weight of each segment, at every element.

    Args:
      x: any shape.
      ids: integers, shaped like ``x``; elements with equal ids are one segment.
      weight: shaped like ``x``, 0 or 1.

    Returns:
      (largest, second largest, 1 on the first of the largest), each shaped like ``x``; -inf where there is none.
    """
    best = segment_max(x, ids, weight)
    leads = segment_first(ids, jnp.where(x == best, weight, 0.0))
    return best, segment_max(x, ids, jnp.where(leads > 0, 0.0, weight)), leads


def given(array: Array | None, missing: str) -> Array:
    """Return an optional field of a record; ValueError with ``missing`` when it is absent."""
    if array is None:
        raise ValueError(missing)
    return array


def part(rollout: types.Rollout, name: str) -> Array:
    """Return the verifier's number ``name`` of each row, [B]; ValueError with the list of parts if it is absent."""
    names = ", ".join(sorted(rollout.parts)) or "none"
    return given(rollout.parts.get(name), f"the rollout has no part {name!r}; it has {names}")


def extra(rollout: types.Rollout, name: str) -> Array:
    """Return the array ``name`` of ``rollout.extra``; ValueError with the list of extras if it is absent."""
    names = ", ".join(sorted(rollout.extra)) or "none"
    return given(rollout.extra.get(name), f"the rollout has no extra {name!r}; it has {names}")


def valid_rows(rollout: types.Rollout) -> Array:
    """Return [B], 1 on rows that count."""
    return jnp.ones_like(reward(rollout)) if rollout.valid is None else rollout.valid


def trained_tokens(rollout: types.Rollout) -> Array:
    """Return [B, T], 1 on tokens that count: mask 1, in a valid row."""
    return rollout.mask * valid_rows(rollout)[:, None]


def with_advantage(rollout: types.Rollout, advantage: Array) -> types.Rollout:
    """Write an advantage, [B] or [B, T]; tokens that do not count get 0."""
    counted, a = trained_tokens(rollout), advantage if advantage.ndim == 2 else advantage[:, None]
    return rollout.replace(advantage=jnp.where(counted > 0, a * counted, 0.0))


def reward(rollout: types.Rollout) -> Array:
    """Return the row's reward, [B]; ValueError when it is absent."""
    return given(rollout.reward, "the rollout has no reward")


def live_logp(rollout: types.Rollout, scores: types.Scores) -> Array:
    """Return the live logp, 0 on masked tokens, [B, T]; differentiable."""
    return jnp.where(rollout.mask > 0, given(scores.logp, "the scores have no logp"), 0.0)


def proximal_logp(rollout: types.Rollout, scores: types.Scores) -> Array:
    """Return the proximal policy's log-probs, a constant: the live ones where there is a single gradient step."""
    logp = scores.logp if rollout.proximal_logp is None else rollout.proximal_logp
    return jax.lax.stop_gradient(given(logp, "neither rollout nor scores have a log-prob"))


def current_version(rollout: types.Rollout) -> Array:
    """Return the trainer's version, extra["now"] [B], or without it the version of the newest trained token."""
    if "now" in rollout.extra:
        return jnp.max(rollout.extra["now"])
    version = given(rollout.version, "the rollout has no version")
    return jnp.max(jnp.where(rollout.mask > 0, version, jnp.iinfo(version.dtype).min))


def length(rollout: types.Rollout) -> Array:
    """Return [B], the number of trained tokens of each row."""
    return jnp.sum(rollout.mask, axis=1)


def row_mean(x: Array, mask: Array) -> Array:
    """Return [B, 1], each row's mean of ``x`` [B, T] over its tokens with mask 1; 0 for a row of none."""
    total = jnp.sum(jnp.where(mask > 0, x, 0.0), axis=1, keepdims=True)
    return total / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1.0)


def row_sum(x: Array, mask: Array) -> Array:
    """Return [B, 1], each row's sum of ``x`` [B, T] over its tokens with mask 1."""
    return jnp.sum(jnp.where(mask > 0, x, 0.0), axis=1, keepdims=True)


def last_token(mask: Array) -> Array:
    """Return [B, T], 1 on the last position of each row with mask 1; a row of zeros stays so."""
    width = mask.shape[1]
    last = width - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    return jax.nn.one_hot(last, width, dtype=mask.dtype) * mask


def first_token(mask: Array) -> Array:
    """Return [B, T], 1 on the first position of each row with mask 1."""
    return last_token(mask[:, ::-1])[:, ::-1]


def token_rewards(rollout: types.Rollout) -> Array:
    """Return [B, T], the reward of each token: token rewards, and the row's reward at its last token."""
    terminal = reward(rollout)[:, None] * last_token(rollout.mask)
    return terminal if rollout.token_reward is None else terminal + rollout.token_reward * rollout.mask


def reward_to_go(reward: Array, mask: Array, gamma: Array | float = 1.0, end: Array | None = None) -> Array:
    """Return G_t = r_t + gamma G_{t+1} over tokens with mask 1; tokens with mask 0 are skipped.

    Args:
      reward: ``[B, T]``, paid at each token.
      mask: ``[B, T]``, 1 on the tokens that are steps.
      gamma: discount of a step, in [0, 1]; also ``[B, T]``, the discount of what follows each token.
      end: ``[B]``, what follows the last token; None: 0.

    Returns:
      ``[B, T]``, 0 where ``mask`` is 0.
    """

    def back(carry: Array, column: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        r, m, factor = column
        carry = jnp.where(m > 0, r + factor * carry, carry)
        return carry, carry * m

    factor = jnp.broadcast_to(jnp.asarray(gamma, reward.dtype), reward.shape)
    end = jnp.zeros_like(reward[:, 0]) if end is None else end
    _, out = jax.lax.scan(back, end, (reward.T, mask.T, factor.T), reverse=True)
    return out.T


def gae(
    reward: Array,
    value: Array,
    mask: Array,
    gamma: Array | float,
    lam: Array | float,
    end: tuple[Array, Array] | None = None,
) -> Array:
    """Return generalized advantage estimates (Schulman et al., arXiv 1506.02438, eq. 16).

    delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1}; tokens with mask 0 are skipped.

    Args:
      reward: ``[B, T]``, paid at each token.
      value: ``[B, T]``, the critic's estimate before the token.
      mask: ``[B, T]``, 1 on the tokens that are steps.
      gamma: discount of a step, in [0, 1].
      lam: lambda, in [0, 1]; also ``[B]``, one for each row.
      end: ``[B]`` each, value and advantage that follow the last token; None: 0.

    Returns:
      ``[B, T]``, 0 where ``mask`` is 0.
    """

    def back(carry: tuple[Array, Array], column: tuple[Array, Array, Array]):
        next_value, next_advantage = carry
        r, v, m = column
        advantage = r + gamma * next_value - v + gamma * lam * next_advantage
        carry = (jnp.where(m > 0, v, next_value), jnp.where(m > 0, advantage, next_advantage))
        return carry, advantage * m

    zero = jnp.zeros_like(reward[:, 0])
    _, out = jax.lax.scan(back, (zero, zero) if end is None else end, (reward.T, value.T, mask.T), reverse=True)
    return out.T


def kl_estimate(estimator: str, log_ratio: Array) -> Array:
    """Estimate KL(pi || ref) per token from d = log pi - log ref on samples of pi (Schulman 2020).

    k1 = d, unbiased; k2 = d^2 / 2, biased, with the gradient of reverse KL; k3 = exp(-d) - 1 + d, unbiased and
    never negative, with the gradient of forward KL, and where d < -20 it continues along its tangent; abs = |d|.
    "k1+" and "k3+" have the value of k1 and k3 and the gradient of k2. ``transforms/KL.md`` has measurements.
    """
    if estimator in ("k1+", "k3+"):
        k2 = kl_estimate("k2", log_ratio)
        return k2 + jax.lax.stop_gradient(kl_estimate(estimator[:2], log_ratio) - k2)
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    if estimator == "k3":
        # expm1(-d) + d loses less near d = 0 than exp(-d) - 1 + d
        tangent = math.expm1(20.0) - math.exp(20.0) * (log_ratio + 20.0)
        return jnp.where(log_ratio < -20.0, tangent, jnp.expm1(-jnp.maximum(log_ratio, -20.0))) + log_ratio
    if estimator == "abs":
        # jnp.abs has slope 1 at 0, where the policy starts; the subgradient there is 0
        return log_ratio * jax.lax.stop_gradient(jnp.sign(log_ratio))
    raise ValueError(f"estimator={estimator!r}: choose one of {', '.join(ESTIMATORS)}")


def bernoulli_kl(p: Array, q: Array) -> Array:
    """Return KL(Bernoulli(p) || Bernoulli(q)) for probabilities, clamped to [1e-7, 1 - 1e-7]."""
    p, q = (jnp.clip(x, 1e-7, 1.0 - 1e-7) for x in (p, q))
    return p * (jnp.log(p) - jnp.log(q)) + (1.0 - p) * (jnp.log1p(-p) - jnp.log1p(-q))


def divergence(name: str, logp: Array, ref_logp: Array) -> Array:
    """Return an exact divergence over the last dimension of two arrays of log-probabilities.

    With p the policy and q the reference: reverse_kl = KL(p || q); forward_kl = KL(q || p); js_b = b KL(q || m) +
    (1 - b) KL(p || m), m = b q + (1 - b) p, js at b = 1/2; hellinger = 1 - sum sqrt(p q); total_variation = sum
    |p - q| / 2; alpha_a = (1 - sum p^a q^(1 - a)) / (a (1 - a)), which is KL(p || q) at a = 1 and KL(q || p) at a = 0.

    Args:
      name: one of ``DIVERGENCES``, or "alpha_" or "js_" and a number, for js in (0, 1); or one of ``MODES``.
      logp: ``[..., V]``, of the policy.
      ref_logp: ``[..., V]``, of the reference.

    Returns:
      ``[...]``; the Kullback-Leibler divergences and js in nats, the others without a unit.

    Raises:
      ValueError: another name.
    """

    def kl(left: Array, right: Array) -> Array:
        return jnp.sum(jnp.exp(left) * (left - right), axis=-1)

    if name in MODES:
        return jnp.take_along_axis(logp, jnp.argmax(ref_logp if name == "at_mode" else logp, -1)[..., None], -1)[..., 0]
    if name in ("reverse_kl", "forward_kl"):
        return kl(logp, ref_logp) if name == "reverse_kl" else kl(ref_logp, logp)
    if name.startswith("js"):
        middle = jnp.logaddexp(ref_logp + math.log(b := float(name[3:] or 0.5)), logp + math.log1p(-b))
        return b * kl(ref_logp, middle) + (1.0 - b) * kl(logp, middle)
    if name == "hellinger":
        return 1.0 - jnp.sum(jnp.exp(0.5 * (logp + ref_logp)), axis=-1)
    if name == "total_variation":
        return 0.5 * jnp.sum(jnp.abs(jnp.exp(logp) - jnp.exp(ref_logp)), axis=-1)
    alpha = float(name.removeprefix("alpha_")) if is_divergence(name) else math.nan
    if alpha in (0.0, 1.0):
        return divergence("reverse_kl" if alpha else "forward_kl", logp, ref_logp)
    if math.isnan(alpha):
        raise ValueError(f"divergence {name!r}: choose from {', '.join(DIVERGENCES)}")
    return (1.0 - jnp.sum(jnp.exp(alpha * logp + (1.0 - alpha) * ref_logp), axis=-1)) / (alpha * (1.0 - alpha))


def is_divergence(name: str) -> bool:
    """Return whether ``divergence`` accepts the name."""
    return name in (*DIVERGENCES, *MODES) or re.fullmatch(r"(alpha_-?|js_)[0-9.]+(e-?[0-9]+)?", name) is not None
