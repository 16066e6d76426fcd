"""Surrogates of whole rows: the loss of a row is written on each of its tokens."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, idle, ops, trajectories
from rljax.transforms.surrogate import token

GROUP = types.Needs(whole="group")


def _row_advantage(rollout: types.Rollout):
    return ops.row_mean(token.advantage(rollout), rollout.mask)


def _on_tokens(row, rollout: types.Rollout):
    return row * jnp.ones_like(rollout.mask)


@define.surrogate
@idle.until("ratio", epsilon=idle.ABOVE_0)
def geometric_mean(loss, r, s, epsilon: types.NonNegative = 0.4):
    """Clip tokens in log space, then take the row's geometric mean: -A exp(sum_t d'_t / |y|).

    d' = sgn(A) min(sgn(A) d, sgn(A) clip(d, -epsilon, epsilon)), d = log rho. Source: GMPO (arXiv 2507.20673, eq. 4).
    Differs from ``clip`` on ``ratio.sequence`` by clipping before the mean.
    """
    d, a = token.log_ratio(loss), _row_advantage(r)
    sign = jnp.sign(a)
    clipped = sign * jnp.minimum(sign * d, sign * jnp.clip(d, -epsilon, epsilon))
    return _on_tokens(-a * jnp.exp(ops.row_mean(clipped, r.mask)), r)


@define.surrogate
def mirror_descent(loss, r, s, tau: types.Positive = 0.1):
    """Regress the row's log-ratio onto its advantage: (A - tau Delta)^2, Delta = sum_t log rho_t.

    Source: Kimi k1.5 (arXiv 2501.12599, eq. 3). At Delta = 0 the gradient is 2 tau times that of ``reinforce`` summed
    over the row.
    """
    delta = ops.row_sum(token.log_ratio(loss), r.mask)
    return _on_tokens((_row_advantage(r) - tau * delta) ** 2, r)


@define.surrogate
@idle.until("ratio", tau=None)
def scaled_mirror_descent(loss, r, s, tau: types.Positive = 0.01):
    """Regress as ``mirror_descent`` does, scaled to REINFORCE by row mean: tau / 2 (A / tau - Delta)^2 / |y|.

    Source: OpenKimi. At Delta = 0 its gradient is that of ``reinforce`` under ``reduce.mean_over_rows``.
    """
    delta = ops.row_sum(token.log_ratio(loss), r.mask)
    length = jnp.maximum(ops.length(r), 1.0)[:, None]
    return _on_tokens(0.5 * tau * (_row_advantage(r) / tau - delta) ** 2 / length, r)


@define.surrogate(needs=lambda a: types.Needs(reference=True, turns=a["unit"] == "turn"))
def reference_regression(loss, r, s, beta: types.Positive = 1.0, unit: Literal["row", "turn"] = "row"):
    """Regress the log-ratio of a row, or of a turn, to the reference onto its advantage: (beta sum log(pi/ref) - A)^2.

    Source: A*-PO (arXiv 2505.20686), rows; WebRL (arXiv 2411.02337), turns. Differs from ``mirror_descent`` by the
    anchor.
    """
    delta = to_reference(r, s)
    if unit == "turn":
        row = jnp.arange(delta.shape[0])[:, None] * jnp.ones_like(r.turn)
        delta = ops.segment_total(delta, ops.dense(row, ops.segments(r, "turn")))
        return (beta * delta - token.advantage(r)) ** 2
    return _on_tokens((beta * ops.row_sum(delta, r.mask) - _row_advantage(r)) ** 2, r)


def to_reference(rollout: types.Rollout, scores: types.Scores):
    """Return logp - ref_logp, unfiltered, 0 on masked tokens, [B, T]."""
    reference = ops.given(rollout.ref_logp, "surrogate: the rollout has no ref_logp")
    live = ops.given(scores.logp if scores.raw_logp is None else scores.raw_logp, "surrogate: the scores have no logp")
    return jnp.where(rollout.mask > 0, live - reference, 0.0)


@define.surrogate(needs=GROUP | types.Needs(siblings=True))
def group_variance(loss, r, s, beta: types.Positive = 0.1):
    """Match the spread of log-ratios to that of advantages: (beta (Delta_i - mean Delta) - A_i)^2 / 2 * G / (G - 1).

    Delta_i = sum_t log rho_t; mean and G over the group's rows with a token. Source: GVPO (arXiv 2504.19599). Adding
    a constant to every Delta of a group changes nothing.
    """
    counted = jnp.any(r.mask > 0, axis=1).astype(r.mask.dtype)
    delta = ops.row_sum(token.log_ratio(loss), r.mask)[:, 0]
    size = ops.segment_total(counted, r.group)
    spread = beta * (delta - ops.segment_mean(delta, r.group, counted)) - _row_advantage(r)[:, 0]
    scale = jnp.where(size > 1, size / jnp.maximum(size - 1.0, 1.0), 0.0)
    return _on_tokens((0.5 * spread**2 * scale)[:, None], r)


@define.surrogate(needs=types.Needs(reference=True, value=True))
@idle.until("ratio", cap=idle.FROM_1)
def trajectory_balance(loss, r, s, beta: types.Positive = 15.0, cap: types.Positive = 10.0):
    """Match the policy to exp(beta A) ref: w (log Z + mean_t logp - beta A - mean_t ref)^2.

    w = sg(min(prod_t rho_t, cap)); log Z is the value before the first token, a constant here. Source: FlowRL
    (arXiv 2509.15207, eq. 6).
    """
    value = ops.given(r.value, "surrogate.trajectory_balance: the rollout has no value")
    normaliser = ops.row_sum(value, ops.first_token(r.mask))
    per_token = ops.row_mean(to_reference(r, s), r.mask)
    product = jnp.exp(jnp.minimum(ops.row_sum(token.log_ratio(loss), r.mask), jnp.log(cap)))
    return _on_tokens(token.sg(product) * (normaliser + per_token - beta * _row_advantage(r)) ** 2, r)


def _desirable(r: types.Rollout, threshold):
    return trajectories.total(r) > threshold


def _shift(r: types.Rollout, s: types.Scores, a):
    """Return z of each row: the mean log-ratio, at least 0, of the rows of the other kind."""
    delta = ops.row_sum(to_reference(r, s), r.mask)[:, 0]
    counts, good = jnp.where(jnp.any(r.mask > 0, axis=1), ops.valid_rows(r), 0.0), _desirable(r, a["threshold"])
    of_good = jnp.maximum(ops.masked_mean(delta, jnp.where(good, counts, 0.0)), 0.0)
    of_bad = jnp.maximum(ops.masked_mean(delta, jnp.where(good, 0.0, counts)), 0.0)
    return jnp.where(good, of_bad, of_good)


@define.surrogate(
    needs=types.Needs(reference=True),
    statistics=lambda a: (
        define.statistic("shift", functools.partial(_shift, a=a), types.Needs(live=True, reference=True)),
    ),
)
def kahneman_tversky(
    loss,
    r,
    s,
    beta: types.Positive = 0.1,
    desirable: types.NonNegative = 1.0,
    undesirable: types.NonNegative = 1.0,
    threshold: types.Number = 0.0,
):
    """Value rows one by one: desirable (1 - sigmoid(beta (Delta - z))), undesirable (1 - sigmoid(beta (z - Delta))).

    Delta = sum_t log(pi / ref); rows whose reward is above ``threshold`` are desirable. z, which has no gradient, is
    the mean Delta of the minibatch's rows of the other kind, at least 0, as in the paired loss of the first release;
    the paper estimates it from completions of other prompts. Source: KTO (arXiv 2402.01306, eq. 8).
    """
    gap = beta * (ops.row_sum(to_reference(r, s), r.mask) - ops.extra(r, "shift")[:, None])
    good = _desirable(r, threshold)[:, None]
    value = jnp.where(good, desirable * (1.0 - jax.nn.sigmoid(gap)), undesirable * (1.0 - jax.nn.sigmoid(-gap)))
    return _on_tokens(value, r)
