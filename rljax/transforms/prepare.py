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
        return rollout.replace(mask=rollout.mask * transforms.PREDICATES[predicate](rollout))

    return transforms.stateless(types.PrepareTransform, apply)


@transforms.piece
def drop_truncated():
    """Drop the rows that ran into the length limit (the overlong filter of DAPO, arXiv 2503.14476)."""

    def apply(rollout: types.Rollout, scores: types.Scores | None) -> types.Rollout:
        del scores
        if rollout.finish is None:
            raise ValueError("prepare.drop_truncated: the rollout has no finish reason")
        return rollout.replace(mask=rollout.mask * (rollout.finish != types.Finish.LENGTH)[:, None])

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
        kept = divergence <= bound
        dropped = jnp.where(rollout.mask > 0, 1.0 - kept, 0.0)
        return rollout.replace(mask=rollout.mask * kept, extra={**rollout.extra, "rejected": dropped})

    return transforms.stateless(types.PrepareTransform, apply, needs=types.Needs(live=True))
