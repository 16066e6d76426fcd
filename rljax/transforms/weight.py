"""Weights: constants that multiply the policy term, and only it, since they stand before the penalties."""

import jax
import jax.numpy as jnp

from rljax import ops, transforms, types


def _weigh(loss: types.Loss, weight) -> types.Loss:
    weight = jax.lax.stop_gradient(weight)
    return loss.replace(
        terms={name: term * weight for name, term in loss.terms.items()},
        metrics={**loss.metrics, "weight": weight},
    )


@transforms.piece
def truncated_importance(cap: types.Positive = 2.0):
    """Correct for a sampler that differs from the trainer: w = min(exp(proximal - behaviour), cap).

    Source: truncated importance sampling as in verl, slime, open-instruct (cap 2). 1 where they agree.
    """

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        behaviour = ops.given(rollout.behaviour_logp, "weight.truncated_importance: the rollout has no behaviour_logp")
        logp = scores.logp if rollout.proximal_logp is None else rollout.proximal_logp
        proximal = ops.given(logp, "weight.truncated_importance: the scores have no logp")
        d = jnp.where(rollout.mask > 0, proximal - behaviour, 0.0)
        return _weigh(loss, jnp.minimum(jnp.exp(d), cap))

    return transforms.stateless(types.LossTransform, apply, needs=types.Needs(proximal=True))


@transforms.piece
def fresh(lag: int = 0):
    """Keep the policy term only on tokens at most ``lag`` versions older than the batch's newest one."""

    def newest(rollout: types.Rollout, scores: types.Scores | None) -> types.Rollout:
        del scores
        if rollout.version is None:
            raise ValueError("weight.fresh: the rollout has no version")
        latest = jnp.max(jnp.where(rollout.mask > 0, rollout.version, 0))
        stale = (rollout.version < latest - lag).astype(rollout.mask.dtype)
        return rollout.replace(extra={**rollout.extra, "stale": stale})

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        del scores
        return _weigh(loss, 1.0 - rollout.extra["stale"])

    return types.LossTransform(
        apply=lambda loss, rollout, scores, state, key: apply(loss, rollout, scores),
        prepare=(transforms.stateless(types.PrepareTransform, newest),),
    )


@transforms.piece
def by_sign(positive: types.NonNegative = 1.0, negative: types.NonNegative = 1.0):
    """Multiply the loss of tokens of positive advantage by ``positive``, of the others by ``negative``."""

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        del scores
        return _weigh(loss, jnp.where(transforms.PREDICATES["positive"](rollout), positive, negative))

    return transforms.stateless(types.LossTransform, apply)
