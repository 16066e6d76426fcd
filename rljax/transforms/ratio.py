"""Ratios: write ``Loss.log_ratio``, the log of the importance ratio each surrogate uses.

The denominator is ``proximal_logp``, the policy at the start of the update. With a single gradient step
it is the live log-prob under stop-gradient, and no extra pass is made.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from rljax import ops, transforms, types

Anchor = Literal["proximal", "behaviour"]


def _difference(rollout: types.Rollout, scores: types.Scores, anchor: Anchor):
    logp = ops.given(scores.logp, "ratio: the scores have no logp")
    if anchor == "behaviour":
        missing = "ratio: anchor='behaviour', but the rollout has no behaviour_logp"
        denominator = ops.given(rollout.behaviour_logp, missing)
    else:
        denominator = logp if rollout.proximal_logp is None else rollout.proximal_logp
    # masked tokens may hold anything, infinities included: they must not reach the exponential
    return jnp.where(rollout.mask > 0, logp - jax.lax.stop_gradient(denominator), 0.0)


def _loss(function, needs: types.Needs) -> types.LossTransform:
    return transforms.stateless(types.LossTransform, function, needs=needs)


def _metrics(loss: types.Loss, log_ratio) -> dict[str, jax.Array]:
    d = jax.lax.stop_gradient(log_ratio)
    return {**loss.metrics, "ratio": jnp.exp(d), "proximal_kl": jnp.expm1(d) - d}


@transforms.piece
def token(anchor: Anchor = "proximal"):
    """Use each token's own ratio: rho_t = exp(logp_t - anchor_t). Source: PPO (arXiv 1707.06347, section 3)."""

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        d = _difference(rollout, scores, anchor)
        return loss.replace(log_ratio=d, metrics=_metrics(loss, d))

    return _loss(apply, types.Needs(proximal=anchor == "proximal"))


@transforms.piece
def sequence(anchor: Anchor = "proximal"):
    """Use the geometric mean over the row: s = exp(sum_t m_t (logp_t - anchor_t) / |y|), on every token.

    Source: GSPO (arXiv 2507.18071, eq. 7). Equals ``token`` on rows of one token.
    """

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        d = _difference(rollout, scores, anchor)
        length = jnp.maximum(jnp.sum(rollout.mask, axis=1, keepdims=True), 1.0)
        row = jnp.sum(d, axis=1, keepdims=True) / length * jnp.ones_like(d)
        row = jnp.where(rollout.mask > 0, row, 0.0)
        return loss.replace(log_ratio=row, metrics=_metrics(loss, row))

    return _loss(apply, types.Needs(proximal=anchor == "proximal"))
