"""Optimizers: optax chains, and an update that a non-finite gradient cannot poison."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from rljax import types


def build(
    parts: Sequence[optax.GradientTransformation], *, clip_norm: float, warmup: int
) -> optax.GradientTransformation:
    """Return clip by global norm | parts | linear warm-up of the whole update over ``warmup`` steps.

    ``clip_norm`` 0 leaves clipping out. The first update already moves: it has 1 / warmup of full size.
    """
    before = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    after = [optax.scale_by_schedule(optax.linear_schedule(1.0 / warmup, 1.0, warmup - 1))] if warmup > 1 else []
    return optax.chain(*before, *parts, *after)


def apply(
    optimizer: optax.GradientTransformation,
    gradient: types.Tree,
    loss: types.Array,
    params: types.Tree,
    state: types.Tree,
) -> tuple[types.Tree, types.Tree, types.Array, types.Array]:
    """Update parameters unless the loss or the gradient is not finite.

    Returns:
      parameters, optimizer state, the gradient's global norm before clipping, and whether the update was made.
      A skipped update leaves parameters and optimizer state, its step count included, as they were.
    """
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    updates, moved = optimizer.update(gradient, state, params)

    def keep(new: types.Tree, old: types.Tree) -> types.Tree:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    return keep(optax.apply_updates(params, updates), params), keep(moved, state), norm, finite


def shardings(
    optimizer: optax.GradientTransformation, params: types.Tree, param_shardings: types.Tree, other: types.Tree
) -> types.Tree:
    """Return the optimizer state's shardings: those of the parameters where it mirrors them, ``other`` elsewhere."""
    state = jax.eval_shape(optimizer.init, params)
    return optax.tree.map_params(
        optimizer, lambda _, s: s, state, param_shardings, transform_non_params=lambda _: other
    )
