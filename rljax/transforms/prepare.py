"""Prepare transforms: on the whole minibatch, under stop-gradient, before it is split.

What drops a token from every term changes the mask here; a weight (``transforms.weight``) touches the
policy term only.
"""

from typing import Literal

import jax.numpy as jnp

from rljax import ops, transforms, types


@transforms.piece
def keep(predicate: transforms.Predicate):
    """Drop the rows that do not satisfy ``predicate`` from every term and every denominator."""

    def apply(rollout: types.Rollout, scores: types.Scores | None) -> types.Rollout:
        del scores
        return rollout.replace(mask=jnp.where(transforms.PREDICATES[predicate](rollout), rollout.mask, 0.0))

    return transforms.stateless(types.PrepareTransform, apply)


@transforms.piece
def drop_truncated():
    """Drop the rows that ran into the length limit (the overlong filter of DAPO, arXiv 2503.14476)."""

    def apply(rollout: types.Rollout, scores: types.Scores | None) -> types.Rollout:
        del scores
        if rollout.finish is None:
            raise ValueError("prepare.drop_truncated: the rollout has no finish reason")
        truncated = (rollout.finish == types.Finish.LENGTH)[:, None]
        return rollout.replace(mask=jnp.where(truncated, 0.0, rollout.mask))

    return transforms.stateless(types.PrepareTransform, apply)


@transforms.piece
def reject(estimator: Literal["k2", "k3", "abs"] = "k3", bound: types.NonNegative = 0.5):
    """Drop tokens whose live divergence from the sampler exceeds ``bound``.

    Keep token t iff k(log pi_b - log pi) <= bound, with the live policy's log-probs of the whole minibatch.
    Unlike a weight it also takes the token out of KL, entropy and every denominator.
    """

    def apply(rollout: types.Rollout, scores: types.Scores | None) -> types.Rollout:
        if scores is None or scores.logp is None or rollout.behaviour_logp is None:
            raise ValueError("prepare.reject: needs live scores and behaviour_logp")
        divergence = ops.kl_estimate(estimator, rollout.behaviour_logp - scores.logp)
        mask = jnp.where(divergence <= bound, rollout.mask, 0.0)
        return rollout.replace(mask=mask, extra={**rollout.extra, "rejected": rollout.mask - mask})

    return transforms.stateless(types.PrepareTransform, apply, needs=types.Needs(live=True))
