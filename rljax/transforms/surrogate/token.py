"""Surrogates of single tokens."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.language import errors
from rljax.transforms import define, ops
from rljax.transforms.frame import idle

sg = jax.lax.stop_gradient


def advantage(r: types.Rollout) -> types.Array:
    """Return the advantage as a constant, [B, T]."""
    return sg(ops.given(r.advantage, "surrogate: the rollout has no advantage; give the recipe an advantage piece"))


def log_ratio(loss: types.Loss) -> types.Array:
    """Return log rho, [B, T]."""
    return ops.given(loss.log_ratio, "surrogate: no ratio; put a ratio piece before it, such as ratio.token()")


@define.surrogate
def reinforce(loss, r, s) -> types.Array:
    """Follow the score function: -A logp (Williams 1992). The baseline of comparison for the others."""
    return -advantage(r) * ops.live_logp(r, s)


@define.surrogate
def unclipped(loss, r, s) -> types.Array:
    """Weigh by the plain ratio: -A rho. On-policy its gradient is ``reinforce``'s."""
    return -advantage(r) * jnp.exp(log_ratio(loss))


@define.surrogate
@idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0, dual=idle.ABOVE_1)
def clip(
    loss, r, s, low: types.NonNegative = 0.2, high: types.Limit = 0.2, dual: types.Positive | None = None
) -> tuple[types.Array, types.Metrics]:
    """Return the larger loss of -A rho and -A rho', where rho' is rho clamped to [1 - low, 1 + high].

    Tokens beyond the bound in the direction of A have no gradient. ``dual`` > 1 bounds the loss of negative
    advantages by -dual A (arXiv 1912.09729, eq. 5); None leaves it out. Source: PPO (arXiv 1707.06347, eq. 7);
    separate bounds: DAPO (arXiv 2503.14476, eq. 10).

    Args:
      low: distance of the lower bound from 1.
      high: distance of the upper bound from 1.
      dual: bound of the loss of negative advantages, in units of -A; None: no bound.
    """
    a, rho = advantage(r), jnp.exp(log_ratio(loss))
    value, outside = clipped(a, rho, low, high)
    if dual is not None:
        value = jnp.where(a < 0, jnp.minimum(value, -dual * a), value)
    return value, {"clipped": outside.astype(value.dtype)}


def clipped(a, rho, low, high) -> tuple[types.Array, types.Array]:
    """Return PPO's clipped loss, and where it has no gradient."""
    value = jnp.maximum(-a * rho, -a * jnp.clip(rho, 1.0 - low, 1.0 + high))
    return value, jnp.where(a >= 0, rho > 1.0 + high, rho < 1.0 - low)


@define.surrogate
@idle.until("ratio", low=idle.FROM_0, high=idle.FROM_0)
def clipped_importance(loss, r, s, low: types.Limit = float("inf"), high: types.Number = 4.0) -> types.Array:
    """Weigh REINFORCE by a clipped constant: -sg(clip(rho, 1 - low, 1 + high)) A logp.

    Every token keeps its gradient. Source: CISPO (arXiv 2506.13585, eq. 4); ``low`` infinite is the canonical form,
    and AIPO's (arXiv 2505.24034) with the ratio anchored on the sampler.
    """
    return -sg(jnp.clip(jnp.exp(log_ratio(loss)), 1.0 - low, 1.0 + high)) * advantage(r) * ops.live_logp(r, s)


@define.surrogate
def likelihood(loss, r, s) -> types.Array:
    """Fit the rows as they are: -logp. The surrogate of supervised fine-tuning; reads no advantage."""
    return -ops.live_logp(r, s)


@define.surrogate(needs=types.Needs(value=True), term="value")
@idle.until("steps", clip=idle.ABOVE_0)
def value_error(loss, r, s, clip: types.Positive | None = 0.2, expectile: types.Fraction = 0.5) -> types.Array:
    """Regress the critic: max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2.

    Source: the PPO implementation of value clipping (arXiv 2005.12729, section 3); ``clip`` None is plain squared
    error. ``returns`` and V_old are constants. ``expectile`` = tau weighs errors with R >= V by 2 tau and the others by
    2 (1 - tau), so that V is the tau-expectile of the returns; 0.5 is their mean (IQL, arXiv 2110.06169, eq. 5).
    """
    if s.value is None or r.returns is None or r.value is None:
        raise errors.Absent("it needs scores.value, rollout.value and rollout.returns, as the critic of ppo() has them")
    error = (s.value - r.returns) ** 2
    if clip is not None:
        near = r.value + jnp.clip(s.value - r.value, -clip, clip)
        error = jnp.maximum(error, (near - r.returns) ** 2)
    return jnp.where(r.returns >= s.value, expectile, 1.0 - expectile) * error


def _binned(a) -> types.Needs:
    (low, high), bins = a["over"], a["bins"]
    if not low < high or bins < 2:
        raise ValueError(f"value_histogram: over={a['over']} must be increasing, and bins={bins} at least 2")
    return types.Needs(value=True, value_logits=frozenset({(float(low), float(high), bins)}))


@define.surrogate(needs=_binned, term="value")
def value_histogram(
    loss, r, s, over: tuple[float, float], bins: types.Count = 51, sigma: types.NonNegative = 0.75
) -> tuple[types.Array, types.Metrics]:
    """Classify the return: -sum_k p_k(R) log q_k, q the critic's distribution over bins, whose mean is V.

    p_k is the mass that a Gaussian about R, cut to the range of the bins, has in bin k (HL-Gauss, arXiv 2403.03950,
    section 3.1, from memory; Imani and White, arXiv 1806.04613). With ``sigma`` 0 it is two-hot: R lies between two
    centers and each has a share, so that the mean of p is R. A Gaussian's mean is R up to 1e-4 of a bin where R is at
    least 3 ``sigma`` from both ends of the range. R beyond the first or last center counts as that center. The head of
    the critic has one logit for each bin. Differs from ``value_error`` by a gradient in the logits of at most 1.

    Args:
      over: the first and the last center, in the unit of the return; the bins between are equal.
      bins: their number.
      sigma: standard deviation of the Gaussian, in widths of a bin; 0: two-hot.
    """
    if s.value_logits is None or r.returns is None:
        raise errors.Absent("it needs scores.value_logits and rollout.returns, as the critic of ppo(value_range=...)")
    center = jnp.linspace(*over, bins, dtype=r.mask.dtype)[None, None, :]
    width = (over[1] - over[0]) / (bins - 1)
    target = jnp.clip(r.returns, *over)[..., None]
    spread = jnp.maximum(sigma, 1e-6) * width * 2.0**0.5
    edge = jnp.append(center - width / 2, center[..., -1:] + width / 2, axis=-1)
    below = jax.scipy.special.erf((edge - target) / spread)
    smooth = jnp.diff(below) / (below[..., -1:] - below[..., :1])
    p = jnp.where(sigma > 0, smooth, jnp.maximum(1.0 - jnp.abs(target - center) / width, 0.0))
    outside = (r.returns < over[0]) | (r.returns > over[1])
    return -jnp.sum(p * jax.nn.log_softmax(s.value_logits), axis=-1), {"outside": outside.astype(r.mask.dtype)}
