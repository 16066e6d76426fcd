"""Optimizers: optax chains, an update that a non-finite gradient cannot poison, and one that bfloat16 can hold.

Whatever the parameters are held in, gradients and moments are float32: the second moment of Adam decays by a
thousandth a step, less than half the distance between neighbouring numbers of bfloat16, and would stand still. To hold
less, name an optimizer that keeps less: ``adamw(mu_dtype="bfloat16")`` rounds the first moment, ``adafactor`` keeps
sums over rows and columns, ``muon`` one moment. optax has no states of 8 bits.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from rljax import types
from rljax.models import architecture as architectures

HOST = "pinned_host"  # the memory that optimizer state waits in when it is offloaded


def build(
    parts: Sequence[optax.GradientTransformation], *, clip_norm: float, warmup: int
) -> optax.GradientTransformation:
    """Return clip by global norm | parts | linear warm-up of the whole update over ``warmup`` steps, all in float32.

    ``clip_norm`` 0 leaves clipping out. The first update already moves: it has 1 / warmup of full size.
    """
    before = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    after = [optax.scale_by_schedule(optax.linear_schedule(1.0 / warmup, 1.0, warmup - 1))] if warmup > 1 else []
    inner = optax.chain(*before, *parts, *after)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return inner.update(wide(updates), state, wide(params))

    return optax.GradientTransformation(lambda params: inner.init(wide(params)), update)


def wide(tree: types.Tree) -> types.Tree:
    """Return a tree of arrays in float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def muon(
    learning_rate: float,
    adam_learning_rate: float | None = None,
    beta: float = 0.95,
    weight_decay: float = 0.0,
    consistent_rms: float | None = None,
) -> optax.GradientTransformation:
    """Orthogonalise the momentum of every layer's matrices; Adam (Nesterov's) for embedding, norms, biases and routers.

    Muon (Jordan 2024, kellerjordan.github.io/posts/muon), ``optax.contrib.muon`` told which dimensions of a stacked
    parameter are rows and columns of a matrix: by itself it would take the embedding, and none of the layers.

    Args:
      learning_rate: of the matrices.
      adam_learning_rate: of the rest; None: the same.
      beta: decay of the momentum.
      weight_decay: of the matrices, times the learning rate.
      consistent_rms: root mean square of an update; 0.2 is that of AdamW (arXiv 2502.16982). None: 1 for square ones.
    """
    return optax.contrib.muon(
        learning_rate,
        beta=beta,
        weight_decay=weight_decay,
        adam_learning_rate=adam_learning_rate,
        muon_weight_dimension_numbers=_sides,
        consistent_rms=consistent_rms,
    )


def _sides(params: types.Tree) -> types.Tree:
    """Say of each parameter which dimensions a product contracts and gives; the others, leading, are matrices apart."""

    def one(path: Any, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        name = str(path[-1].key)
        matrix = name.removesuffix(architectures.ADAPTER[0]).removesuffix(architectures.ADAPTER[1])
        if matrix not in architectures.MATRICES:
            return None
        into, out = architectures.MATRICES[matrix]
        into = 1 if name.endswith(architectures.ADAPTER[1]) else into
        out = 1 if name.endswith(architectures.ADAPTER[0]) else out
        axes = tuple(range(leaf.ndim))[-into - out :]
        return optax.contrib.MuonDimensionNumbers(axes[:into], axes[into:])

    return jax.tree_util.tree_map_with_path(one, params)


def apply(
    optimizer: optax.GradientTransformation,
    gradient: types.Tree,
    loss: types.Array,
    params: types.Tree,
    state: types.Tree,
    key: types.Key | None = None,
) -> tuple[types.Tree, types.Tree, types.Array, types.Array]:
    """Update parameters unless the loss or the gradient is not finite.

    With a ``key``, parameters in bfloat16 are rounded stochastically, else to nearest.

    Returns:
      parameters, optimizer state, the gradient's global norm before clipping, and whether the update was made.
      A skipped update leaves parameters and optimizer state, its step count included, as they were.
    """
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    updates, moved = optimizer.update(gradient, state, params)

    def keep(new: types.Tree, old: types.Tree) -> types.Tree:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    added = optax.apply_updates(params, updates) if key is None else _added(params, updates, key)
    return keep(added, params), keep(moved, state), norm, finite


def _added(params: types.Tree, updates: types.Tree, key: types.Key) -> types.Tree:
    """Add updates in float32; round to bfloat16, each leaf with a key of its own, where a parameter is."""
    leaves, structure = jax.tree.flatten(params)
    added = []
    for i, (p, u) in enumerate(zip(leaves, structure.flatten_up_to(updates), strict=True)):
        new = p.astype(jnp.float32) + u
        added.append(rounded(new, jax.random.fold_in(key, i)) if p.dtype == jnp.bfloat16 else new.astype(p.dtype))
    return structure.unflatten(added)


def rounded(x: types.Array, key: types.Key) -> types.Array:
    """Round float32 to one of the two neighbours in bfloat16 so that the expectation is x (arXiv 1502.02551).

    The 16 bits that bfloat16 lacks are the chance, in 2^-16, of the neighbour farther from 0: a uniform number of 16
    bits is added, and what is below the kept mantissa cut off.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    kept = jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), kept, x.astype(jnp.bfloat16))  # a carry would turn NaN into a number


def shardings(
    optimizer: optax.GradientTransformation, params: types.Tree, param_shardings: types.Tree, other: types.Tree
) -> types.Tree:
    """Return the optimizer state's shardings.

    Like the parameter where a leaf's path ends in a parameter's and the shapes are equal, or equal but for one
    dimension that was summed over; ``other`` elsewhere.
    """
    laid = {
        path: (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(param_shardings), strict=True
        )
    }

    def lay(path: Any, leaf: jax.ShapeDtypeStruct) -> Any:
        ends = (path[i:] for i in range(len(path)))
        shape, sharding = next((laid[end] for end in ends if end in laid), ((), other))
        if leaf.shape == shape:
            return sharding
        for i in range(len(shape)):
            if leaf.shape == shape[:i] + shape[i + 1 :]:
                names = (*sharding.spec, *(None for _ in range(len(shape) - len(sharding.spec))))
                return sharding.update(spec=jax.sharding.PartitionSpec(*names[:i], *names[i + 1 :]))
        return other

    return jax.tree_util.tree_map_with_path(lay, jax.eval_shape(optimizer.init, params))
