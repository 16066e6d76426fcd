"""Surrogates of whole rows, and of the pairs of ``prepare.best_and_worst``: a row's loss is on each of its tokens."""

from typing import Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.methods.reward import turns
from rljax.transforms import define, ops, trajectories
from rljax.transforms.frame import idle
from rljax.transforms.surrogate import row, token

GROUP = types.Needs(whole="group")


def _row_advantage(rollout: types.Rollout):
    return ops.row_mean(token.advantage(rollout), rollout.mask)


@define.surrogate
@idle.until("ratio", epsilon=idle.ABOVE_0)
def geometric_mean(loss, r, s, epsilon: types.NonNegative = 0.4) -> types.Array:
    """Clip tokens in log space, then take the row's geometric mean: -A exp(sum_t d'_t / |y|).

    d' = sgn(A) min(sgn(A) d, sgn(A) clip(d, -epsilon, epsilon)), d = log rho. Source: GMPO (arXiv 2507.20673, eq. 4).
    Differs from ``clip`` on ``ratio.sequence`` by clipping before the mean.
    """
    d, a = token.log_ratio(loss), _row_advantage(r)
    sign = jnp.sign(a)
    clipped = sign * jnp.minimum(sign * d, sign * jnp.clip(d, -epsilon, epsilon))
    return row.on_tokens(-a * jnp.exp(ops.row_mean(clipped, r.mask)), r)


@define.surrogate(needs=types.Needs(process=True, turns=True), term="reward")
def progress_error(loss, r, s) -> types.Array:
    """Regress the sum of a score behind each turn of a row onto the row's outcome: (sum_k c_k - R)^2 / 2.

    So each turn gets a share of R though only R is known. R is extra["undistributed"], which ``reward.progress``
    writes, or else the total reward. Source: the progress estimator of SPA-RL (arXiv 2505.20732). Differs from
    ``reward_error`` by a score for each turn.
    """
    score = ops.given(s.process, "it needs scores.process, the scalar after each token")
    target = r.extra.get("undistributed", trajectories.uncharged(r))
    shares = jnp.sum(jnp.where(turns.turns(r)[1] > 0, score, 0.0), axis=1)
    return row.on_tokens(0.5 * (shares - target)[:, None] ** 2, r)


@define.surrogate
def mirror_descent(loss, r, s, tau: types.Positive = 0.1) -> types.Array:
    """Regress the row's log-ratio onto its advantage: (A - tau Delta)^2, Delta = sum_t log rho_t.

    Source: Kimi k1.5 (arXiv 2501.12599, eq. 3). At Delta = 0 the gradient is 2 tau times the gradient of ``reinforce``
    summed over the row.
    """
    delta = ops.row_sum(token.log_ratio(loss), r.mask)
    return row.on_tokens((_row_advantage(r) - tau * delta) ** 2, r)


@define.surrogate
@idle.until("ratio", tau=None)
def scaled_mirror_descent(loss, r, s, tau: types.Positive = 0.01) -> types.Array:
    """Regress as ``mirror_descent`` does, scaled to REINFORCE by row mean: tau / 2 (A / tau - Delta)^2 / |y|.

    Source: OpenKimi. At Delta = 0 it has the gradient of ``reinforce`` under ``reduce.mean_over_rows``.
    """
    delta = ops.row_sum(token.log_ratio(loss), r.mask)
    length = jnp.maximum(ops.length(r), 1.0)[:, None]
    return row.on_tokens(0.5 * tau * (_row_advantage(r) / tau - delta) ** 2 / length, r)


@define.surrogate(needs=lambda a: types.Needs(reference=True, turns=a["unit"] == "turn"))
def reference_regression(loss, r, s, beta: types.Positive = 1.0, unit: Literal["row", "turn"] = "row") -> types.Array:
    """Regress the log-ratio of a row, or of a turn, to the reference onto its advantage: (beta sum log(pi/ref) - A)^2.

    Source: A*-PO (arXiv 2505.20686), rows; WebRL (arXiv 2411.02337), turns. Differs from ``mirror_descent`` by the
    anchor.
    """
    delta = row.to_reference(r, s)
    if unit == "turn":
        delta = ops.segment_total(delta, turns.turns(r)[0])
        return (beta * delta - token.advantage(r)) ** 2
    return row.on_tokens((beta * ops.row_sum(delta, r.mask) - _row_advantage(r)) ** 2, r)


@define.surrogate(needs=GROUP | types.Needs(siblings=True))
def group_variance(loss, r, s, beta: types.Positive = 0.1) -> types.Array:
    """Match the spreads of log-ratios and advantages: (beta (Delta_i - mean Delta) - A_i)^2 / 2 * G / (G - 1).

    Delta_i = sum_t log rho_t; mean and G over the group's rows with a token. Source: GVPO (arXiv 2504.19599). Adding
    a constant to every Delta of a group changes nothing.
    """
    counted = jnp.any(r.mask > 0, axis=1).astype(r.mask.dtype)
    delta = ops.row_sum(token.log_ratio(loss), r.mask)[:, 0]
    size = ops.segment_total(counted, r.group)
    spread = beta * (delta - ops.segment_mean(delta, r.group, counted)) - _row_advantage(r)[:, 0]
    scale = jnp.where(size > 1, size / jnp.maximum(size - 1.0, 1.0), 0.0)
    return row.on_tokens((0.5 * spread**2 * scale)[:, None], r)


@define.surrogate(needs=types.Needs(reference=True, value=True))
@idle.until("ratio", cap=idle.FROM_1)
def trajectory_balance(loss, r, s, beta: types.Positive = 15.0, cap: types.Positive = 10.0) -> types.Array:
    """Match the policy to exp(beta A) ref: w (log Z + mean_t logp - beta A - mean_t ref)^2.

    w = sg(min(prod_t rho_t, cap)); log Z is the value before the first token, a constant here. Source: FlowRL
    (arXiv 2509.15207, eq. 6).
    """
    value = ops.given(r.value, "surrogate.trajectory_balance: the rollout has no value")
    normaliser = ops.row_sum(value, ops.first_token(r.mask))
    per_token = ops.row_mean(row.to_reference(r, s), r.mask)
    product = jnp.exp(jnp.minimum(ops.row_sum(token.log_ratio(loss), r.mask), jnp.log(cap)))
    return row.on_tokens(token.sg(product) * (normaliser + per_token - beta * _row_advantage(r)) ** 2, r)


@define.surrogate(needs=types.Needs(siblings=True))
@idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0)
def pairwise_clip(loss, r, s, low: types.NonNegative = 0.2, high: types.NonNegative = 0.2) -> types.Array:
    """Clip the ratios of both rows separately, with advantages +-(r_w - r_l) / 2; the pair's loss is their sum.

    Source: P3O (arXiv 2310.00212), V1. At ratio 1 its gradient is -(r_w - r_l) grad(logp_w - logp_l) / 2.
    """
    a = 0.5 * (ops.extra(r, "margin") * row.preference_sign(r))[:, None]
    rho = jnp.exp(token.log_ratio(loss))
    # the mean over rows halves the sum of two
    return 2.0 * jnp.maximum(-a * rho, -a * jnp.clip(rho, 1.0 - low, 1.0 + high))


@define.surrogate(needs=lambda a: row.PAIR | types.Needs(reference=True, proximal=a["proximal"] is not None))
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
        return (margin - beta * row.margin_of(delta, r)) ** 2

    value = squared(ratio)
    if proximal is not None:
        moved = ops.live_logp(r, s) - jnp.where(r.mask > 0, ops.proximal_logp(r, s), 0.0)
        near = jax.lax.stop_gradient(ratio - moved + jnp.clip(moved, -proximal, proximal))
        value = jnp.maximum(value, squared(jnp.where(jnp.abs(moved) > proximal, near, ratio)))
    return value * jnp.ones_like(r.mask)


@define.surrogate(needs=row.PAIR)
def length_normalised_preference(
    loss, r, s, beta: types.Positive = 2.0, margin: types.NonNegative = 1.0
) -> tuple[types.Array, types.Metrics]:
    """Prefer the better row by its mean log-prob, without a reference: -log sigmoid(beta h - margin).

    h = sum_w logp / |y_w| - sum_l logp / |y_l|. Source: SimPO (arXiv 2405.14734, eq. 6).
    """
    x = beta * row.margin_of(ops.row_mean(s.logp, r.mask), r) - margin
    return -jax.nn.log_sigmoid(x) * jnp.ones_like(r.mask), {"preferred": jnp.where(x > 0, jnp.ones_like(r.mask), 0.0)}


@define.surrogate(needs=row.PAIR)
def odds_ratio(loss, r, s, coefficient: types.NonNegative = 0.1) -> types.Array:
    """Fit the better row, and prefer it by its odds: -m_w - coefficient log sigmoid(log odds_w - log odds_l).

    m = sum logp / |y|, odds = exp(m) / (1 - exp(m)). Source: ORPO (arXiv 2403.07691, eq. 6).
    """
    mean = jnp.minimum(ops.row_mean(s.logp, r.mask), -1e-6)  # of certain rows the odds are infinite
    odds = mean - jnp.log(-jnp.expm1(mean))
    better = jnp.where(row.preference_sign(r) > 0, mean[:, 0], 0.0)
    fit = -ops.segment_total(better, r.group)[:, None]
    return (fit - coefficient * jax.nn.log_sigmoid(row.margin_of(odds, r))) * jnp.ones_like(r.mask)
