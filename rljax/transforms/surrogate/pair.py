"""Surrogates of pairs: ``prepare.best_and_worst`` chooses the two rows of a group.

Both rows have the pair's loss, so that ``reduce.mean_over_rows`` is the mean over pairs.
"""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, idle, ops
from rljax.transforms.surrogate import row, token

PAIR = types.Needs(whole="group", siblings=True)


def _preference(rollout: types.Rollout):
    return ops.extra(rollout, "preference")  # [B], 1 on the better row, -1 on the worse, 0 on the others


def _margin(x, rollout: types.Rollout):
    """Return x of the better row minus x of the worse one, at every row of the group; x and result [B, 1]."""
    signed = jnp.where(_preference(rollout) != 0, x[:, 0], 0.0) * _preference(rollout)
    return ops.segment_total(signed, rollout.group)[:, None]


def _preference_needs(a) -> types.Needs:
    return PAIR | types.Needs(reference=True, parts=frozenset({"next_value"} if a["next_value"] else ()))


@define.surrogate(needs=_preference_needs)
def preference(
    loss,
    r,
    s,
    beta: types.Positive = 0.1,
    smoothing: types.Fraction = 0.0,
    per_token: bool = False,
    next_value: bool = False,
):
    """Prefer the better row: -(1 - s) log sigmoid(x) - s log sigmoid(-x), x = beta h, s the label smoothing.

    h = sum_w log(pi / ref) - sum_l log(pi / ref), means in place of sums with ``per_token``. Source: DPO (arXiv
    2305.18290, eq. 7). With ``next_value`` (Step-APO), x = beta h - V(s'_w) + V(s'_l) from the part "next_value".

    Args:
      beta: scale of the log-ratios.
      smoothing: label smoothing s, the probability that the preference is wrong.
      per_token: average log-ratios over tokens instead of summing them.
      next_value: subtract the margin of the part "next_value".
    """
    delta = (ops.row_mean if per_token else ops.row_sum)(row.to_reference(r, s), r.mask)
    x = beta * _margin(delta, r)
    if next_value:
        x = x - _margin(ops.part(r, "next_value")[:, None], r)
    value = -(1.0 - smoothing) * jax.nn.log_sigmoid(x) - smoothing * jax.nn.log_sigmoid(-x)
    return value * jnp.ones_like(r.mask), {"preferred": jnp.where(x > 0, jnp.ones_like(r.mask), 0.0)}


@define.surrogate(needs=PAIR | types.Needs(reference=True))
def squared_preference(loss, r, s, beta: types.Positive = 0.1, per_token: bool = False):
    """Regress the margin onto 1 / (2 beta): (h - 1 / (2 beta))^2, h as in ``preference``.

    Source: IPO (arXiv 2310.12036, eq. 17); ``per_token`` averages log-ratios over tokens, as TRL and AReaL do.
    """
    delta = (ops.row_mean if per_token else ops.row_sum)(row.to_reference(r, s), r.mask)
    return (_margin(delta, r) - 0.5 / beta) ** 2 * jnp.ones_like(r.mask)


@define.surrogate(needs=types.Needs(siblings=True))
@idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0)
def pairwise_clip(loss, r, s, low: types.NonNegative = 0.2, high: types.NonNegative = 0.2):
    """Clip the ratios of both rows separately, with advantages +-(r_w - r_l) / 2; the pair's loss is their sum.

    Source: P3O (arXiv 2310.00212), V1. At ratio 1 its gradient is -(r_w - r_l) grad(logp_w - logp_l) / 2.
    """
    a = 0.5 * (ops.extra(r, "margin") * _preference(r))[:, None]
    rho = jnp.exp(token.log_ratio(loss))
    # the mean over rows halves the sum of two
    return 2.0 * jnp.maximum(-a * rho, -a * jnp.clip(rho, 1.0 - low, 1.0 + high))


def _difference_needs(a) -> types.Needs:
    return PAIR | types.Needs(reference=True, proximal=a["proximal"] is not None)


@define.surrogate(needs=_difference_needs)
@idle.until("steps", proximal=idle.ABOVE_0)
def reward_difference(
    loss,
    r,
    s,
    beta: types.Positive = 0.1,
    limit: types.Positive | None = None,
    proximal: types.Positive | None = None,
):
    """Regress the difference of log-ratios onto that of rewards: (r_w - r_l - beta (Delta_w - Delta_l))^2.

    Delta = sum_t log(pi / ref), clamped to [-limit, limit] if ``limit`` is set. With ``proximal`` the loss is the
    larger of this one and of one in which log pi of each token is clamped to within ``proximal`` of that at the start
    of the update; where that is the larger, tokens beyond the bound have no gradient. Source: PRDP (arXiv 2402.08714,
    eq. 7), whose steps are those of denoising; its proximal form is taken from summaries of the paper, without a bound.

    Args:
      beta: scale of the log-ratios.
      limit: bound of |Delta|, nats a row; None: no bound.
      proximal: bound of |log(pi / proximal)|, nats a token; None: the plain loss.
    """
    margin, ratio = ops.extra(r, "margin")[:, None], row.to_reference(r, s)

    def squared(per_token):
        delta = ops.row_sum(per_token, r.mask)
        delta = delta if limit is None else jnp.clip(delta, -limit, limit)
        return (margin - beta * _margin(delta, r)) ** 2

    value = squared(ratio)
    if proximal is not None:
        moved = ops.live_logp(r, s) - jnp.where(r.mask > 0, ops.proximal_logp(r, s), 0.0)
        near = jax.lax.stop_gradient(ratio - moved + jnp.clip(moved, -proximal, proximal))
        value = jnp.maximum(value, squared(jnp.where(jnp.abs(moved) > proximal, near, ratio)))
    return value * jnp.ones_like(r.mask)


@define.surrogate(needs=PAIR)
def length_normalised_preference(loss, r, s, beta: types.Positive = 2.0, margin: types.NonNegative = 1.0):
    """Prefer the better row by its mean log-prob, without a reference: -log sigmoid(beta h - margin).

    h = sum_w logp / |y_w| - sum_l logp / |y_l|. Source: SimPO (arXiv 2405.14734, eq. 6).
    """
    x = beta * _margin(ops.row_mean(s.logp, r.mask), r) - margin
    return -jax.nn.log_sigmoid(x) * jnp.ones_like(r.mask), {"preferred": jnp.where(x > 0, jnp.ones_like(r.mask), 0.0)}


@define.surrogate(needs=PAIR)
def odds_ratio(loss, r, s, coefficient: types.NonNegative = 0.1):
    """Fit the better row, and prefer it by its odds: -m_w - coefficient log sigmoid(log odds_w - log odds_l).

    m = sum logp / |y|, odds = exp(m) / (1 - exp(m)). Source: ORPO (arXiv 2403.07691, eq. 6).
    """
    mean = jnp.minimum(ops.row_mean(s.logp, r.mask), -1e-6)  # of certain rows the odds are infinite
    odds = mean - jnp.log(-jnp.expm1(mean))
    better = jnp.where(_preference(r) > 0, mean[:, 0], 0.0)
    fit = -ops.segment_total(better, r.group)[:, None]
    return (fit - coefficient * jax.nn.log_sigmoid(_margin(odds, r))) * jnp.ones_like(r.mask)
