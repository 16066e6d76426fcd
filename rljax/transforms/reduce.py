"""Reductions: the constant coefficient of every token, computed on the whole minibatch.

loss = sum over terms, rows and tokens of term * coefficient. A coefficient is 0 on masked tokens and on
invalid rows; a term uses the common one unless a penalty names its own.
"""

from collections.abc import Callable

import jax.numpy as jnp

from rljax import ops, transforms, types


def _coefficient(rule: Callable[[types.Rollout, types.Array], types.Array]) -> types.PrepareTransform:
    def apply(rollout: types.Rollout, scores: types.Scores | None) -> types.Rollout:
        del scores
        mask = rollout.mask * ops.valid_rows(rollout)[:, None]
        return rollout.replace(coefficient={**rollout.coefficient, "common": rule(rollout, mask)})

    return transforms.stateless(types.PrepareTransform, apply)


def named(name: str, reduction: types.PrepareTransform) -> types.PrepareTransform:
    """Return ``reduction`` writing the coefficient of the term ``name`` instead of the common one."""

    def apply(rollout, scores, state, key):
        out, state = reduction.apply(rollout, scores, state, key)
        return rollout.replace(coefficient={**rollout.coefficient, name: out.coefficient["common"]}), state

    return types.PrepareTransform(apply, reduction.init, reduction.observe, reduction.needs, "reduce", reduction.spec)


def _trained_rows(mask):
    return jnp.maximum(jnp.sum(jnp.any(mask > 0, axis=1).astype(mask.dtype)), 1.0)


@transforms.piece
def mean_over_tokens():
    """Average over all tokens of the minibatch: m_t / sum m (DAPO, arXiv 2503.14476, section 3.3)."""
    return _coefficient(lambda r, mask: mask / jnp.maximum(jnp.sum(mask), 1.0))


@transforms.piece
def mean_over_rows():
    """Average over rows of token means: m_t / (|y_i| n) (GRPO, arXiv 2402.03300, eq. 3).

    n counts the rows with a trained token. Short rows' tokens weigh more.
    """

    def rule(r: types.Rollout, mask):
        return mask / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1.0) / _trained_rows(mask)

    return _coefficient(rule)


@transforms.piece
def mean_over_rows_of_sums():
    """Average over rows of token sums: m_t / n, the gradient of the expected return of a row."""
    return _coefficient(lambda r, mask: mask / _trained_rows(mask))


@transforms.piece
def fixed_length(length: types.Count | None = None):
    """Divide by a constant length: m_t / (n length) (Dr. GRPO, arXiv 2503.20783, section 3.2).

    ``length`` in tokens; None is the width of the record, which is the sampler's limit.
    """
    return _coefficient(lambda r, mask: mask / _trained_rows(mask) / (mask.shape[1] if length is None else length))


@transforms.piece
def sum_over_tokens():
    """Add all tokens up: m_t."""
    return _coefficient(lambda r, mask: mask)
