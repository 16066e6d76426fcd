"""Penalties: add named terms of their own beside the policy term."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from rljax import ops, transforms, types
from rljax.transforms import reduce as reductions

Reduction = types.PrepareTransform | None


def _penalty(
    name: str, term: Callable[..., tuple[types.Array, types.Array]], needs: types.Needs, reduction: Reduction
) -> types.LossTransform:
    """Add ``term(rollout, scores) -> (term, metric)`` under ``name``; penalties of one name and reduction add up."""
    key = name if reduction is None else f"{name}/{reduction.spec}"

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        value, metric = term(rollout, scores)
        if key in loss.terms:
            value = loss.terms[key] + value
        return loss.replace(
            terms={**loss.terms, key: value}, metrics={**loss.metrics, name: jax.lax.stop_gradient(metric)}
        )

    built = transforms.stateless(types.LossTransform, apply, needs=needs)
    return dataclasses.replace(built, prepare=() if reduction is None else (reductions.named(key, reduction),))


@transforms.piece
def kl(
    estimator: Literal["k1", "k2", "k3", "abs", "reverse_kl", "forward_kl", "js"] = "k3",
    coefficient: types.NonNegative = 1e-3,
    reduce: Reduction = None,
):
    """Penalise divergence from the reference: coefficient k(d), d = logp - ref_logp, unfiltered.

    k1, k2, k3, abs are estimators on the sampled tokens (``ops.kl_estimate``; in the loss, k1 has no expected
    gradient, k2 that of reverse KL, k3 that of forward KL); reverse_kl, forward_kl and js are exact over
    the vocabulary. The metric ``kl`` is the last one's. ``reduce`` None: the common reduction. Source: GRPO
    (arXiv 2402.03300, eq. 4) for k3.
    """
    exact = estimator in ops.DIVERGENCES

    def term(rollout: types.Rollout, scores: types.Scores) -> tuple[types.Array, types.Array]:
        if exact:
            value = scores.divergence[estimator]
        else:
            reference = ops.given(rollout.ref_logp, "penalty.kl: the rollout has no ref_logp")
            logp = ops.given(scores.logp if scores.raw_logp is None else scores.raw_logp, "penalty.kl: no logp")
            value = ops.kl_estimate(estimator, jnp.where(rollout.mask > 0, logp - reference, 0.0))
        return coefficient * value, value

    needs = types.Needs(divergence=frozenset({estimator})) if exact else types.Needs(reference=True)
    return _penalty("kl", term, needs, reduce)


@transforms.piece
def entropy(coefficient: types.NonNegative = 1e-3, reduce: Reduction = None):
    """Reward randomness: -coefficient H, the full-vocabulary entropy in nats. ``reduce`` None: the common one."""

    def term(rollout: types.Rollout, scores: types.Scores) -> tuple[types.Array, types.Array]:
        del rollout
        value = ops.given(scores.entropy, "penalty.entropy: the scores have no entropy")
        return -coefficient * value, value

    return _penalty("live_entropy", term, types.Needs(entropy=True), reduce)
