"""Surrogates of whole rows: the loss of a row is written on each of its tokens."""

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
