"""Reward shaping: on the whole batch, before advantages, no gradient."""

from typing import Literal

import jax.numpy as jnp

from rljax import ops, transforms, types


def _rollout(function, needs: types.Needs = types.Needs()) -> types.RolloutTransform:
    return transforms.stateless(types.RolloutTransform, function, needs=needs)


@transforms.piece
def affine(scale: types.Number = 1.0, bias: types.Number = 0.0, limit: types.Positive = float("inf")):
    """Rescale and clip the row's reward: clip((r + bias) scale, -limit, limit)."""
    return _rollout(lambda r: r.replace(reward=jnp.clip((r.reward + bias) * scale, -limit, limit)))


@transforms.piece
def overlong(limit: types.Count, cache: types.Count, factor: types.NonNegative = 1.0):
    """Punish length softly: add min(-(len - (limit - cache)) / cache * factor, 0), no further than -factor.

    Source: DAPO (arXiv 2503.14476, eq. 13). ``limit`` and ``cache`` are in tokens.
    """

    def apply(r: types.Rollout) -> types.Rollout:
        excess = (jnp.sum(r.mask, axis=1) - (limit - cache)) / cache
        shaping = -factor * jnp.clip(excess, 0.0, 1.0)
        return r.replace(reward=r.reward + shaping, parts={**r.parts, "overlong": shaping})

    return _rollout(apply)


@transforms.piece
def kl(estimator: Literal["k1", "k2", "k3", "abs"] = "k1", coefficient: types.NonNegative = 0.05):
    """Charge each token its divergence from the reference: r_t -= coefficient k(log pi_b - log pi_ref).

    Unfiltered log-probs at sampling. Only "k1" gives the gradient of reverse KL. Source: Ziegler et al.
    (arXiv 1909.08593, eq. 2). Differs from ``penalty.kl``, which stands in the loss and is differentiated.
    """

    def apply(r: types.Rollout) -> types.Rollout:
        if r.raw_logp is None or r.ref_logp is None:
            raise ValueError("reward.kl: the rollout has no raw_logp or no ref_logp")
        cost = -coefficient * ops.kl_estimate(estimator, (r.raw_logp - r.ref_logp) * r.mask) * r.mask
        return r.replace(token_reward=cost if r.token_reward is None else r.token_reward + cost)

    return _rollout(apply, types.Needs(reference=True))
