"""Low-rank adapters: two low-rank matrices A and B, trained in place of a frozen matrix W.

An adapted product is x W + scale (x A) B (LoRA, arXiv 2106.09685, equation 3); B starts at 0. ``Architecture`` chooses
the adapted matrices and ``layer.adapted`` multiplies. This file splits trees of parameters by the names of their
leaves: a partial tree has None, an empty tree, in place of the leaves it omits.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax.models import architectures, parameters
from rljax.models.architectures import Architecture
from rljax.types import Array, Key, Tree

IN, OUT = architectures.ADAPTER
_HEADS = ("scalar",)  # of an adapted critic or reward model: randomly initialized, so trained with the adapters


def is_adapter(path: Any) -> bool:
    """Return whether the path of a leaf names an adapter's matrix."""
    return str(path[-1].key).endswith((IN, OUT))


def trained(params: Tree) -> Tree:
    """Return the trained part of a module's parameters: adapters and heads if it has adapters, else all.

    A frozen vision tower is not trained. The leaves of ``params`` may be anything: arrays, shapes, shardings.
    """
    adapted = any(is_adapter(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))

    def is_trained(path: Any) -> bool:
        if not adapted:
            return not str(path[0].key).endswith(architectures.FROZEN)
        return is_adapter(path) or path[0].key in _HEADS

    return jax.tree_util.tree_map_with_path(lambda path, x: x if is_trained(path) else None, params)


def joined(part: Tree, params: Tree) -> Tree:
    """Return ``params`` with the leaves of ``part``, a result of ``trained``, in their places."""
    return jax.tree.map(lambda new, base: base if new is None else new, part, params, is_leaf=lambda x: x is None)


def matrices(tree: Tree) -> Tree:
    """Return the adapters' leaves of a tree like the parameters, None elsewhere."""
    return jax.tree_util.tree_map_with_path(lambda path, x: x if is_adapter(path) else None, tree)


def fresh(architecture: Architecture, key: Key) -> Tree:
    """Return the adapters of ``init(architecture, key)``, None elsewhere; XLA creates no other parameter."""
    return jax.jit(lambda key: matrices(parameters.init(architecture, key)))(key)


def merged(architecture: Architecture, params: Tree) -> tuple[Architecture, Tree]:
    """Return the equivalent model without adapters: each adapted matrix is W + scale A B, in W's dtype.

    It is equal up to the rounding of that sum; in bfloat16 a small product may be lost.
    """
    a = architecture
    plain = dataclasses.replace(a, adapter_rank=0, adapter_scale=1.0, adapter_modules=tuple(architectures.MATRICES))
    parts = {"layers": _merged(a, params["layers"])}
    if a.vision.layers:
        tower = params[a.tower_name]
        parts[a.tower_name] = {**tower, "layers": _merged(a.tower, tower["layers"])}
    return plain, {**params, **parts}


def _merged(a: Architecture, stack: Tree) -> Tree:
    """Return all layers of a network without their adapters."""
    layers = {name: w for name, w in stack.items() if not name.endswith((IN, OUT))}
    for name in a.adapted:
        layers[name] = _sum(layers[name], stack[name + IN], stack[name + OUT], a.adapter_scale)
    return layers


@jax.jit
def _sum(weight: Array, into: Array, out: Array, scale: float) -> Array:
    """Return W + scale A B of all layers; A [N, in..., r], B [N, r, out...]."""
    layers, rank = out.shape[:2]
    product = jnp.einsum("nir,nro->nio", into.reshape(layers, -1, rank), out.reshape(layers, rank, -1))
    return (weight.astype(jnp.float32) + scale * product.reshape(weight.shape)).astype(weight.dtype)
