"""Surrogates: write the term whose gradient is the update. Advantages are constants."""

import dataclasses

import jax
import jax.numpy as jnp

from rljax import ops, transforms, types


def _loss(function, needs: types.Needs = types.Needs()) -> types.LossTransform:
    return transforms.stateless(types.LossTransform, function, needs=needs)


def _policy(loss: types.Loss, term, **metrics) -> types.Loss:
    return loss.replace(terms={**loss.terms, "policy": term}, metrics={**loss.metrics, **metrics})


def _advantage(rollout: types.Rollout):
    missing = "surrogate: the rollout has no advantage; give the recipe an advantage piece"
    return jax.lax.stop_gradient(ops.given(rollout.advantage, missing))


def _ratio(loss: types.Loss):
    return jnp.exp(ops.given(loss.log_ratio, "surrogate: no ratio; put a ratio piece before it, such as ratio.token()"))


def _logp(scores: types.Scores):
    return ops.given(scores.logp, "surrogate: the scores have no logp")


@transforms.piece
def reinforce():
    """Follow the score function: -A logp (Williams 1992). The reference for all the others."""

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        return _policy(loss, -_advantage(rollout) * _logp(scores))

    return _loss(apply)


@transforms.piece
def unclipped():
    """Weigh by the plain ratio: -A rho. On-policy its gradient is ``reinforce``'s."""

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        del scores
        return _policy(loss, -_advantage(rollout) * _ratio(loss))

    return _loss(apply)


@transforms.piece
def clip(low: types.NonNegative = 0.2, high: types.NonNegative = 0.2, dual: types.Positive | None = None):
    """Take the larger loss of -A rho and -A rho', where rho' is rho held to [1 - low, 1 + high].

    Tokens beyond the bound in the direction of A have no gradient. ``dual`` > 1 bounds the loss of negative
    advantages by -dual A (arXiv 1912.09729, eq. 5); None leaves it out. Source: PPO (arXiv 1707.06347, eq. 7);
    separate bounds: DAPO (arXiv 2503.14476, eq. 10).
    """

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        del scores
        a, rho = _advantage(rollout), _ratio(loss)
        clipped = -a * jnp.clip(rho, 1.0 - low, 1.0 + high)
        term = jnp.maximum(-a * rho, clipped)
        if dual is not None:
            term = jnp.where(a < 0, jnp.minimum(term, -dual * a), term)
        outside = jnp.where(a >= 0, rho > 1.0 + high, rho < 1.0 - low)
        return _policy(loss, term, clipped=jax.lax.stop_gradient(outside.astype(term.dtype)))

    return _loss(apply)


@transforms.piece
def likelihood():
    """Fit the rows as they are: -logp. The surrogate of supervised fine-tuning; reads no advantage."""

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        del rollout
        return _policy(loss, -_logp(scores))

    return _loss(apply)


@transforms.piece
def value_error(clip: types.Positive | None = 0.2):
    """Regress the critic: max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2.

    Source: the PPO implementation of value clipping (arXiv 2005.12729, section 3); ``clip`` None is plain squared
    error. ``returns`` and V_old are constants.
    """

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        if scores.value is None or rollout.returns is None or rollout.value is None:
            raise ValueError("surrogate.value_error: needs scores.value, rollout.value and rollout.returns")
        error = (scores.value - rollout.returns) ** 2
        if clip is not None:
            near = rollout.value + jnp.clip(scores.value - rollout.value, -clip, clip)
            error = jnp.maximum(error, (near - rollout.returns) ** 2)
        return loss.replace(terms={**loss.terms, "value": 0.5 * error})

    return dataclasses.replace(_loss(apply), needs=types.Needs(value=True))
