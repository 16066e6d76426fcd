"""Surrogates of whole rows: the loss of a row is written on each of its tokens.

Those of pairs give both rows the pair's loss, so that ``reduce.mean_over_rows`` is the mean over pairs.
"""

import functools

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories


def on_tokens(row: types.Array, rollout: types.Rollout) -> types.Array:
    """Return a row's number ``[B, 1]`` on each of its tokens, ``[B, T]``."""
    return row * jnp.ones_like(rollout.mask)


def to_reference(rollout: types.Rollout, scores: types.Scores) -> types.Array:
    """Return logp - ref_logp, unfiltered, 0 on masked tokens, [B, T]."""
    reference = ops.given(rollout.ref_logp, "surrogate: the rollout has no ref_logp")
    live = ops.given(scores.logp if scores.raw_logp is None else scores.raw_logp, "surrogate: the scores have no logp")
    return jnp.where(rollout.mask > 0, live - reference, 0.0)


def _desirable(r: types.Rollout, threshold):
    return trajectories.uncharged(r) > threshold


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
) -> types.Array:
    """Value rows one by one: desirable (1 - sigmoid(beta (Delta - z))), undesirable (1 - sigmoid(beta (z - Delta))).

    Delta = sum_t log(pi / ref); rows whose reward is above ``threshold`` are desirable. z, which has no gradient, is
    the mean Delta of the minibatch's rows of the other kind, at least 0, as in the paired loss of the first release;
    the paper estimates it from completions of other prompts. Source: KTO (arXiv 2402.01306, eq. 8).
    """
    gap = beta * (ops.row_sum(to_reference(r, s), r.mask) - ops.extra(r, "shift")[:, None])
    good = _desirable(r, threshold)[:, None]
    value = jnp.where(good, desirable * (1.0 - jax.nn.sigmoid(gap)), undesirable * (1.0 - jax.nn.sigmoid(-gap)))
    return on_tokens(value, r)


PAIR = types.Needs(whole="group", siblings=True)


def preference_sign(rollout: types.Rollout) -> types.Array:
    """Return ``[B]``: 1 on the better row of a pair, -1 on the worse one, 0 on the others."""
    return ops.extra(rollout, "preference")


def margin_of(x, rollout: types.Rollout) -> types.Array:
    """Return x of the better row minus x of the worse one, at every row of the group; x and result [B, 1]."""
    signed = jnp.where(preference_sign(rollout) != 0, x[:, 0], 0.0) * preference_sign(rollout)
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
) -> tuple[types.Array, types.Metrics]:
    """Prefer the better row: -(1 - s) log sigmoid(x) - s log sigmoid(-x), x = beta h, s the label smoothing.

    h = sum_w log(pi / ref) - sum_l log(pi / ref), means in place of sums with ``per_token``. Source: DPO (arXiv
    2305.18290, eq. 7). With ``next_value`` (Step-APO), x = beta h - V(s'_w) + V(s'_l) from the part "next_value".

    Args:
      beta: scale of the log-ratios.
      smoothing: label smoothing s, the probability that the preference is wrong.
      per_token: average log-ratios over tokens instead of summing them.
      next_value: subtract the margin of the part "next_value".
    """
    delta = (ops.row_mean if per_token else ops.row_sum)(to_reference(r, s), r.mask)
    x = beta * margin_of(delta, r)
    if next_value:
        x = x - margin_of(ops.part(r, "next_value")[:, None], r)
    value = -(1.0 - smoothing) * jax.nn.log_sigmoid(x) - smoothing * jax.nn.log_sigmoid(-x)
    return value * jnp.ones_like(r.mask), {"preferred": jnp.where(x > 0, jnp.ones_like(r.mask), 0.0)}


@define.surrogate(needs=PAIR | types.Needs(reference=True))
def squared_preference(loss, r, s, beta: types.Positive = 0.1, per_token: bool = False) -> types.Array:
    """Regress the margin onto 1 / (2 beta): (h - 1 / (2 beta))^2, h as in ``preference``.

    Source: IPO (arXiv 2310.12036, eq. 17); ``per_token`` averages log-ratios over tokens, as TRL and AReaL do.
    """
    delta = (ops.row_mean if per_token else ops.row_sum)(to_reference(r, s), r.mask)
    return (margin_of(delta, r) - 0.5 / beta) ** 2 * jnp.ones_like(r.mask)
