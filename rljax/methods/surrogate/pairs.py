"""Surrogates of pairs: ``prepare.best_and_worst`` chooses the two rows of a group."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.frame import idle
from rljax.transforms.surrogate import pair, row, token


@define.surrogate(needs=types.Needs(siblings=True))
@idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0)
def pairwise_clip(loss, r, s, low: types.NonNegative = 0.2, high: types.NonNegative = 0.2) -> types.Array:
    """Clip the ratios of both rows separately, with advantages +-(r_w - r_l) / 2; the pair's loss is their sum.

    Source: P3O (arXiv 2310.00212), V1. At ratio 1 its gradient is -(r_w - r_l) grad(logp_w - logp_l) / 2.
    """
    a = 0.5 * (ops.extra(r, "margin") * pair.preference_sign(r))[:, None]
    rho = jnp.exp(token.log_ratio(loss))
    # the mean over rows halves the sum of two
    return 2.0 * jnp.maximum(-a * rho, -a * jnp.clip(rho, 1.0 - low, 1.0 + high))


@define.surrogate(needs=lambda a: pair.PAIR | types.Needs(reference=True, proximal=a["proximal"] is not None))
@idle.until("steps", proximal=idle.ABOVE_0)
def reward_difference(
    loss, r, s, beta: types.Positive = 0.1, limit: types.Positive | None = None, proximal: types.Positive | None = None
) -> types.Array:
    """Regress the difference of log-ratios onto the difference of rewards: (r_w - r_l - beta (Delta_w - Delta_l))^2.

    Delta = sum_t log(pi / ref), clamped to [-limit, limit] if ``limit`` is set. With ``proximal`` the loss is the
    larger of this one and of one in which log pi of each token is clamped to within ``proximal`` of that at the start
    of the update; where that is the larger, tokens beyond the bound have no gradient. Source: PRDP (arXiv 2402.08714,
    eq. 7), whose steps are steps of denoising; its proximal form is taken from summaries of the paper, without a bound.

    Args:
      beta: scale of the log-ratios.
      limit: bound of |Delta|, nats a row; None: no bound.
      proximal: bound of |log(pi / proximal)|, nats a token; None: the plain loss.
    """
    margin, ratio = ops.extra(r, "margin")[:, None], row.to_reference(r, s)

    def squared(per_token):
        delta = ops.row_sum(per_token, r.mask)
        delta = delta if limit is None else jnp.clip(delta, -limit, limit)
        return (margin - beta * pair.margin_of(delta, r)) ** 2

    value = squared(ratio)
    if proximal is not None:
        moved = ops.live_logp(r, s) - jnp.where(r.mask > 0, ops.proximal_logp(r, s), 0.0)
        near = jax.lax.stop_gradient(ratio - moved + jnp.clip(moved, -proximal, proximal))
        value = jnp.maximum(value, squared(jnp.where(jnp.abs(moved) > proximal, near, ratio)))
    return value * jnp.ones_like(r.mask)


@define.surrogate(needs=pair.PAIR)
def length_normalised_preference(
    loss, r, s, beta: types.Positive = 2.0, margin: types.NonNegative = 1.0
) -> tuple[types.Array, types.Metrics]:
    """Prefer the better row by its mean log-prob, without a reference: -log sigmoid(beta h - margin).

    h = sum_w logp / |y_w| - sum_l logp / |y_l|. Source: SimPO (arXiv 2405.14734, eq. 6).
    """
    x = beta * pair.margin_of(ops.row_mean(s.logp, r.mask), r) - margin
    return -jax.nn.log_sigmoid(x) * jnp.ones_like(r.mask), {"preferred": jnp.where(x > 0, jnp.ones_like(r.mask), 0.0)}


@define.surrogate(needs=pair.PAIR)
def odds_ratio(loss, r, s, coefficient: types.NonNegative = 0.1) -> types.Array:
    """Fit the better row, and prefer it by its odds: -m_w - coefficient log sigmoid(log odds_w - log odds_l).

    m = sum logp / |y|, odds = exp(m) / (1 - exp(m)). Source: ORPO (arXiv 2403.07691, eq. 6).
    """
    mean = jnp.minimum(ops.row_mean(s.logp, r.mask), -1e-6)  # of certain rows the odds are infinite
    odds = mean - jnp.log(-jnp.expm1(mean))
    better = jnp.where(pair.preference_sign(r) > 0, mean[:, 0], 0.0)
    fit = -ops.segment_total(better, r.group)[:, None]
    return (fit - coefficient * jax.nn.log_sigmoid(pair.margin_of(odds, r))) * jnp.ones_like(r.mask)
