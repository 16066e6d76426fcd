"""Diagnostics of an update: metrics that are computed only if ``config.log.diagnostics`` names them; see README.md.

This module has their formulas. ``gradients``, ``updates`` and ``row_metrics`` call them where their inputs are.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import optax

from rljax import transforms, types
from rljax.models.scores import packing
from rljax.training import phases
from rljax.transforms import ops

_PARTS = 8  # gradients of a minibatch that the noise is estimated from


def parts(prompts: int, microbatches: int) -> int:
    """Return into how many equal parts the prompts of a minibatch are split for their gradients' noise.

    The fewest that divide the prompts and are at least 8, so that values do not depend on fewer micro-batches than
    that, and at least the micro-batches, so that a part takes no more memory than one.
    """
    least = min(prompts, max(_PARTS, microbatches))
    return next(n for n in range(least, prompts + 1) if prompts % n == 0)


def noise(
    small: types.Array, large: types.Array, small_size: float, large_size: float
) -> tuple[types.Array, types.Array]:
    """Return unbiased estimates of |G|^2 and tr(Sigma): the true gradient, and the covariance of one prompt's.

    With g_b the mean gradient of b independent prompts, E |g_b|^2 = |G|^2 + tr(Sigma) / b, so

        |G|^2 = (L |g_L|^2 - s |g_s|^2) / (L - s)        tr(Sigma) = (|g_s|^2 - |g_L|^2) / (1 / s - 1 / L)

    Source: An Empirical Model of Large-Batch Training (arXiv 1812.06162, appendix A.1; equations from memory).

    Args:
      small: |g_s|^2, averaged over batches of the small size.
      large: |g_L|^2.
      small_size: s, prompts.
      large_size: L, prompts, more than s.

    Returns:
      (|G|^2, tr(Sigma)), scalars; either may be below 0.
    """
    square = (large_size * large - small_size * small) / (large_size - small_size)
    return square, (small - large) / (1.0 / small_size - 1.0 / large_size)


def noise_scale(square: types.Array, trace: types.Array) -> types.Array:
    """Return tr(Sigma) / |G|^2, the simple noise scale (arXiv 1812.06162, eq. 2.9), in prompts; 0 if |G|^2 <= 0."""
    return jnp.where(square > 0, trace / jnp.where(square > 0, square, 1.0), 0.0)


def by_sign(rollout: types.Rollout, loss: types.Loss) -> types.Array:
    """Return the policy term of tokens with positive advantage and of those with negative advantage.

    Args:
      rollout: rows with coefficients.
      loss: their terms.

    Returns:
      ``[2]``, each the sum of term * coefficient; the two add up to the term where it is 0 at advantage 0.
    """
    coefficient = rollout.coefficient.get("policy", rollout.coefficient["common"])
    halves = (transforms.PREDICATES[sign](rollout) & (coefficient != 0) for sign in ("positive", "negative"))
    return jnp.stack([jnp.sum(jnp.where(half, loss.terms["policy"], 0.0) * coefficient) for half in halves])


def of_signs(positive: types.Tree, negative: types.Tree) -> dict[str, types.Array]:
    """Return the norms of two gradients and their cosine, 0 if one of them is 0."""
    norms = optax.tree.norm(positive), optax.tree.norm(negative)
    product = norms[0] * norms[1]
    cosine = jnp.asarray(optax.tree.vdot(positive, negative)) / jnp.where(product > 0, product, 1.0)
    return {"gradient_positive": norms[0], "gradient_negative": norms[1], "gradient_cosine": cosine}


def of_clip(rollout: types.Rollout, loss: types.Loss) -> dict[str, types.Array]:
    """Return the fraction of all tokens that are clipped and have positive, or negative, advantage.

    The rest of ``clipped`` has advantage 0: rows of flat groups, on which a clip changes nothing.
    """
    share = loss.metrics["clipped"] * rollout.coefficient["metric"]
    return {
        f"clipped_{sign}": jnp.sum(jnp.where(transforms.PREDICATES[sign](rollout), share, 0.0))
        for sign in ("positive", "negative")
    }


MOMENTS = ("weight_count", "weight_sum", "weight_square")


def moments(log_weight: types.Array, mask: types.Array) -> dict[str, types.Array]:
    """Return n, sum w and sum w^2 of importance weights; they add up over micro-batches."""
    w = jnp.where(mask > 0, jnp.exp(jnp.where(mask > 0, log_weight, 0.0)), 0.0)
    return dict(zip(MOMENTS, (jnp.sum((mask > 0) * 1.0), jnp.sum(w), jnp.sum(w * w)), strict=True))


def effective_samples(count: types.Array, total: types.Array, square: types.Array) -> types.Array:
    """Return (sum w)^2 / (n sum w^2), the effective sample size as a share of n (Kong 1992); 1 if weights are equal."""
    possible = count * square
    return jnp.where(possible > 0, total**2 / jnp.where(possible > 0, possible, 1.0), 0.0)


def moved(before: types.Array, after: types.Array, mask: types.Array) -> dict[str, types.Array]:
    """Return mean and largest |p_after - p_before| of tokens.

    Args:
      before: log-probs, ``[B, T]``.
      after: those after the update, ``[B, T]``.
      mask: ``[B, T]``, 1 on tokens that count.

    Returns:
      Scalars by name.
    """
    change = jnp.where(mask > 0, jnp.abs(jnp.exp(after) - jnp.exp(before)), 0.0)
    return {"moved_mean": ops.masked_mean(change, mask), "moved_largest": jnp.max(change)}


def thirds(mask: types.Array) -> Iterator[tuple[str, types.Array]]:
    """Yield (name, mask) of the tokens in each third of their row, by their number among those that count."""
    number, length = jnp.cumsum(mask, axis=1) - 1.0, jnp.sum(mask, axis=1, keepdims=True)
    for third, name in enumerate(("early", "middle", "late")):
        yield name, mask * (jnp.floor(3.0 * number / jnp.maximum(length, 1.0)) == third)


def of_gradient_steps(means: dict[str, types.Array]) -> dict[str, types.Array]:
    """Return the metrics of an update with ``noise_scale``, if they have the estimates whose quotient it is."""
    if "noise_trace" not in means:
        return means
    return {**means, "noise_scale": noise_scale(means["noise_square"], means["noise_trace"])}


def completed(metrics: dict[str, types.Array]) -> dict[str, types.Array]:
    """Return the metrics of a minibatch with ``effective_samples`` in place of the moments."""
    if MOMENTS[0] not in metrics:
        return metrics
    rest = {name: x for name, x in metrics.items() if name not in MOMENTS}
    return {**rest, "effective_samples": effective_samples(*(metrics[name] for name in MOMENTS))}


def experts(setup: phases.Setup, params: types.Tree, rollout: types.Rollout) -> dict[str, types.Array]:
    """Return metrics of expert balance on one micro-batch, empty for a policy without experts."""
    model = setup.networks["policy"]
    if rollout.context is None or rollout.action is None or not model.architecture.experts:
        return {}
    rows = jax.tree.map(lambda x: x[: x.shape[0] // setup.learner.microbatches], rollout)
    prompt, seen = rows.context.training
    token = jnp.concatenate([prompt, rows.action.token], axis=1)
    mask = jnp.concatenate([seen, packing.written(rows.mask).astype(seen.dtype)], axis=1)
    return {f"experts/{name}": x for name, x in model.balance(params, token, mask, rows.context.image).items()}
