"""Penalties: add named terms of their own beside the policy term."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from rljax import ops, transforms, types
from rljax.transforms import reduce as reductions


def _own(
    name: str, function, needs: types.Needs, reduction: types.PrepareTransform | None
) -> types.LossTransform:
    built = transforms.stateless(types.LossTransform, function, needs=needs)
    return dataclasses.replace(built, prepare=() if reduction is None else (reductions.named(name, reduction),))


@transforms.piece
def kl(
    estimator: Literal["k1", "k2", "k3", "abs", "reverse_kl", "forward_kl", "js"] = "k3",
    coefficient: types.NonNegative = 1e-3,
    reduce: types.PrepareTransform | None = None,
):
    """Penalise divergence from the reference: coefficient k(d), d = logp - ref_logp, unfiltered.

    k1, k2, k3, abs are estimators on the sampled tokens (``ops.kl_estimate``; in the loss, k1 has no expected
    gradient, k2 that of reverse KL, k3 that of forward KL); reverse_kl, forward_kl and js are exact over
    the vocabulary. Source: GRPO (arXiv 2402.03300, eq. 4) for k3. ``reduce`` None: the common reduction.
    """
    exact = estimator in ops.DIVERGENCES

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        if exact:
            value = scores.divergence[estimator]
        else:
            if rollout.ref_logp is None:
                raise ValueError("penalty.kl: the rollout has no ref_logp")
            logp = scores.logp if scores.raw_logp is None else scores.raw_logp
            value = ops.kl_estimate(estimator, jnp.where(rollout.mask > 0, logp - rollout.ref_logp, 0.0))
        return loss.replace(
            terms={**loss.terms, "kl": coefficient * value},
            metrics={**loss.metrics, "kl": jax.lax.stop_gradient(value)},
        )

    needs = types.Needs(divergence=frozenset({estimator})) if exact else types.Needs(reference=True)
    return _own("kl", apply, needs, reduce)


@transforms.piece
def entropy(coefficient: types.NonNegative = 1e-3, reduce: types.PrepareTransform | None = None):
    """Reward randomness: -coefficient H, the full-vocabulary entropy in nats. ``reduce`` None: the common one."""

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        del rollout
        return loss.replace(
            terms={**loss.terms, "entropy": -coefficient * scores.entropy},
            metrics={**loss.metrics, "live_entropy": jax.lax.stop_gradient(scores.entropy)},
        )

    return _own("entropy", apply, types.Needs(entropy=True), reduce)
