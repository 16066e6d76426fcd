"""Low-rank adapters: beside a frozen matrix W, two thin ones A and B that are trained in its place.

An adapted product is x W + scale (x A) B (LoRA, arXiv 2106.09685, equation 3); B starts as 0. ``Architecture`` says
which matrices have them, ``transformer.adapted`` multiplies. Trees of parameters are cut and joined here by the names
of their leaves: a part has None, an empty tree, in place of what it leaves out.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax.models import architecture as architectures
from rljax.models.architecture import Architecture
from rljax.types import Array, Key, Tree

IN, OUT = architectures.ADAPTER
_HEADS = ("scalar",)  # new with an adapted critic or reward model, so trained beside its adapters


def names(path: Any) -> bool:
    """Tell whether a leaf's path is that of an adapter's matrix."""
    return str(path[-1].key).endswith((IN, OUT))


def trained(params: Tree) -> Tree:
    """Return the part of a module's parameters that is trained: adapters and head where there are any, else all.

    ``params`` may hold anything at its leaves: arrays, shapes, shardings.
    """
    if not any(names(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)):
        return params
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x if names(path) or path[-1].key in _HEADS else None, params
    )


def joined(part: Tree, params: Tree) -> Tree:
    """Return ``params`` with the leaves of ``part``, made by ``trained``, in place of its own."""
    return jax.tree.map(lambda own, base: base if own is None else own, part, params, is_leaf=lambda x: x is None)


def matrices(tree: Tree) -> Tree:
    """Return the adapters of a tree like the parameters, None elsewhere."""
    return jax.tree_util.tree_map_with_path(lambda path, x: x if names(path) else None, tree)


def fresh(architecture: Architecture, key: Key) -> Tree:
    """Return the adapters of ``init(architecture, key)``, None elsewhere; nothing else is made."""
    return jax.jit(lambda key: matrices(architectures.init(architecture, key)))(key)


def merged(architecture: Architecture, params: Tree) -> tuple[Architecture, Tree]:
    """Return the model without adapters that computes the same: W + scale A B, in W's dtype.

    Equal up to the rounding of that sum, which in bfloat16 may swallow a small product.
    """
    a = architecture
    plain = dataclasses.replace(a, adapter_rank=0, adapter_scale=1.0, adapter_modules=tuple(architectures.MATRICES))
    layers = {name: w for name, w in params["layers"].items() if not name.endswith((IN, OUT))}
    for name in a.adapted:
        wide = _summed(layers[name], params["layers"][name + IN], params["layers"][name + OUT], a.adapter_scale)
        layers[name] = wide
    return plain, {**params, "layers": layers}


@jax.jit
def _summed(weight: Array, into: Array, out: Array, scale: float) -> Array:
    """Return W + scale A B of all layers; A [N, in..., r], B [N, r, out...]."""
    layers, rank = out.shape[:2]
    product = jnp.einsum("nir,nro->nio", into.reshape(layers, -1, rank), out.reshape(layers, rank, -1))
    return (weight.astype(jnp.float32) + scale * product.reshape(weight.shape)).astype(weight.dtype)
