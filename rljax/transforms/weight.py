"""Weights: constants that multiply the policy term, and only it, since they come before the penalties.

Denominators count what a weight of 0 drops; pieces of ``transforms.prepare`` remove it from them too. "Proximal"
is the policy at the start of the update (or what ``ratio.interpolated`` puts in its place), "behaviour" what the
sampler assigned: x = log proximal - log behaviour.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, modules, ops
from rljax.transforms.frame import idle

GAP = types.Needs(proximal=True, behaviour=True)


def on_minibatch(name: str, function, arguments, needs: types.Needs = types.Needs()) -> types.PrepareTransform:
    """Write extra[name], ``function(rollout, scores, *arguments)`` of the whole minibatch."""
    return define.statistic(name, functools.partial(function, **arguments), needs)


def proximal(loss: types.Loss, r: types.Rollout, s: types.Scores) -> types.Array:
    """Return the proximal log-probs, or what the ratio seam has put in their place."""
    return ops.proximal_logp(r, s) if loss.proximal_logp is None else jax.lax.stop_gradient(loss.proximal_logp)


def gap(loss: types.Loss, r: types.Rollout, s: types.Scores) -> types.Array:
    """Return x = log proximal - log behaviour, 0 on masked tokens."""
    behaviour = ops.given(r.behaviour_logp, "weight: the rollout has no behaviour_logp")
    return jnp.where(r.mask > 0, proximal(loss, r, s) - behaviour, 0.0)


def importance(x: types.Array, mask: types.Array, level: types.Level = "token") -> types.Array:
    """Return exp(x) of each token, or of its row: of the mean of x, or of the sum ("product")."""
    if level != "token":
        x = (ops.row_sum if level == "product" else ops.row_mean)(x, mask)
    return jnp.exp(jnp.clip(x, -20.0, 20.0))


@define.weight
def constant(loss, r, s, scale: types.Number = 1.0) -> types.Array:
    """Multiply by a number."""
    return scale * jnp.ones_like(r.mask)


@define.weight(needs=GAP)
@idle.until("sampler", cap=idle.FROM_1, floor=types.Range(0, 1), level=None)
def truncated_importance(
    loss, r, s, cap: types.Cap = 2.0, floor: types.NonNegative = 0.0, level: types.Level = "token"
) -> types.Array:
    """Correct for a sampler that differs from the trainer: w = clip(exp(x), floor, cap).

    Truncated importance sampling as in verl, slime, open-instruct (cap 2). 1 where they agree. ``level`` "product" is
    the row's unbiased weight, "geometric" its mean.

    Args:
      cap: upper bound of the weight.
      floor: lower bound of the weight.
      level: "token", "product" or "geometric".
    """
    return jnp.clip(importance(gap(loss, r, s), r.mask, level), floor, cap)


@define.weight(needs=GAP)
@idle.until("sampler", low=types.Range(0, 1), high=idle.FROM_1, level=None)
def masked_importance(
    loss, r, s, low: types.NonNegative = 0.0, high: types.Positive = 5.0, level: types.Level = "token"
) -> types.Array:
    """Use w = exp(x) where low <= w <= high, else 0: IcePop (arXiv 2510.18855) with (0.5, 5).

    Args:
      low: smallest weight that is kept.
      high: largest weight that is kept.
      level: "token", "product" or "geometric".
    """
    w = importance(gap(loss, r, s), r.mask, level)
    return jnp.where((w >= low) & (w <= high), w, 0.0)


def _stale(r: types.Rollout, s: types.Scores, lag):
    version = ops.given(r.version, "weight.fresh: the rollout has no version")
    return (version < ops.current_version(r) - lag).astype(r.mask.dtype)


@define.weight(statistics=lambda a: (on_minibatch("stale", _stale, a),))
@idle.until("sampler", lag=idle.FROM_0)
def fresh(loss, r, s, lag: int = 0) -> types.Array:
    """Keep the policy term only on tokens at most ``lag`` versions older than the trainer."""
    return 1.0 - r.extra["stale"]


def _forking(r: types.Rollout, s: types.Scores, share):
    entropy = ops.given(r.entropy, "weight.high_entropy: the rollout has no entropy")
    bound = jnp.nanquantile(jnp.where(r.mask > 0, entropy, jnp.nan), 1.0 - share)
    return (entropy >= bound).astype(r.mask.dtype)


@define.weight(statistics=lambda a: (on_minibatch("forking", _forking, a),))
def high_entropy(loss, r, s, share: types.Fraction = 0.2) -> types.Array:
    """Keep the ``share`` of the minibatch's tokens with the highest entropy at sampling, from their quantile up.

    Source: Beyond the 80/20 Rule (arXiv 2506.01939).
    """
    return r.extra["forking"]


def _token_score(a) -> types.Needs:
    name = a["module"]
    return modules.needs(name, field="value") if name else types.Needs(extra=frozenset({"token_score"}))


@define.weight(needs=_token_score)
def token_scores(loss, r, s, module: str = "") -> types.Array:
    """Weigh by a token reward model: clip((q - 1/2) / (1/2), 0, 1) on right rows, with 1 - q on wrong ones.

    q = sigmoid(running mean of the scores). Source: OREAL (arXiv 2502.06781). ``surrogate.token_outcome`` trains one.

    Args:
      module: name of ``config.module`` that scores the tokens; '': extra["token_score"] has the scores.
    """
    score = modules.score(r, module, "value") if module else ops.extra(r, "token_score")
    score = jnp.where(r.mask > 0, score, 0.0)
    q = jax.nn.sigmoid(jnp.cumsum(score, axis=1) / jnp.maximum(jnp.cumsum(r.mask, axis=1), 1.0))
    side = jnp.where(transforms.PREDICATES["correct"](r), q, 1.0 - q)
    return jnp.clip(2.0 * side - 1.0, 0.0, 1.0)


def __getattr__(name: str) -> Any:
    return transforms.piece("weight", name)
