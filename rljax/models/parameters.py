"""The parameters of a decoder-only transformer, and their logical axes.

flax.linen declares the parameters and is used in this file only: callers see plain dictionaries.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.models.architectures import ADAPTER, MATRICES, Architecture
from rljax.models.layouts import Names
from rljax.types import Key, Tree


@functools.partial(jax.jit, static_argnums=0)  # without jit it takes seconds
def init(architecture: Architecture, key: Key) -> Tree:
    """Return random parameters as nested dictionaries; arrays of the layers are stacked on dimension 0.

    They have ``param_dtype``, except adapters and the scalar head, which are small, trained, and float32.
    """
    params = nn.meta.unbox(_boxed(architecture, key))

    def cast(path: Any, w: jax.Array) -> jax.Array:
        small = path[-1].key == "scalar" or path[-1].key.endswith(ADAPTER)
        return w if small else w.astype(architecture.param_dtype)

    return jax.tree_util.tree_map_with_path(cast, params)


def axes(architecture: Architecture) -> Tree:
    """Return a tree like the parameters whose leaves are tuples: one logical axis name per dimension."""
    boxed = jax.eval_shape(functools.partial(_boxed, architecture), jax.random.key(0))
    return jax.tree.map(
        lambda box: tuple(box.names), boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )


def _boxed(architecture: Architecture, key: Key) -> Tree:
    params = _whole(architecture, _Decoder(architecture), key)
    if not architecture.vision.layers:
        return params
    tower, eyes = architecture.tower, jax.random.fold_in(key, 2)
    projector = _Projector(architecture).init(jax.random.fold_in(eyes, 0))["params"]
    return {**params, "projector": projector, architecture.tower_name: _whole(tower, _Tower(architecture), eyes)}


def _whole(architecture: Architecture, module: nn.Module, key: Key) -> Tree:
    """Return the boxed parameters of a module, with the adapters of its layers."""
    params = module.init(key)["params"]
    adapters = _adapters(architecture, params["layers"], jax.random.fold_in(key, 1))
    return {**params, "layers": {**params["layers"], **adapters}}


def _parameter(module: nn.Module, name: str, start: Any, names: Names, shape: tuple[int, ...]) -> None:
    """Declare a float32 parameter of ``module``, with its logical axis names."""
    module.param(name, nn.with_logical_partitioning(start, names), shape, jnp.float32)


def _adapters(a: Architecture, layers: Tree, key: Key) -> Tree:
    """Return the adapters of boxed matrices, A from N(0, 1 / fan_in) and B = 0; other parameters keep their keys."""
    boxed = {}
    for i, name in enumerate(a.adapted):
        (_, *names), (_, *shape), cut = layers[name].names, layers[name].value.shape, MATRICES[name][0]
        into = jax.random.normal(jax.random.fold_in(key, i), (a.layers, *shape[:cut], a.adapter_rank), jnp.float32)
        into *= math.prod(shape[:cut]) ** -0.5
        out = jnp.zeros((a.layers, a.adapter_rank, *shape[cut:]), jnp.float32)
        boxed[name + ADAPTER[0]] = nn.LogicallyPartitioned(into, ("layers", *names[:cut], None))
        boxed[name + ADAPTER[1]] = nn.LogicallyPartitioned(out, ("layers", None, *names[cut:]))
    return boxed


class _Layer(nn.Module):
    """The parameters of one layer."""

    architecture: Architecture

    @nn.compact
    def __call__(self, carry: None, index: None) -> tuple[None, None]:
        """Declare matrices with entries from N(0, scale^2 / fan_in), norms that start as 1 and biases as 0."""
        a = self.architecture
        small = (
            2 * a.layers
        ) ** -0.5  # two outputs per layer: the initial variance of the stream does not grow with depth
        heads, kv_heads = ("width", "heads", "head_size"), ("width", "kv_heads", "head_size")
        norm = ((None,), (a.width,), 0, 1 - a.norm_offset)
        table: dict[str, tuple[Names, tuple[int, ...], int, float]] = {
            "attention_norm": norm,
            "query": (heads, (a.width, a.heads, a.head_size), a.width, 1),
            "key": (kv_heads, (a.width, a.kv_heads, a.head_size), a.width, 1),
            "value": (kv_heads, (a.width, a.kv_heads, a.head_size), a.width, 1),
            "attention_output": (
                ("heads", "head_size", "width"),
                (a.heads, a.head_size, a.width),
                a.heads * a.head_size,
                small,
            ),
            "swiglu_norm": norm,
        }
        if a.experts:
            into, out = ("expert", "width", "hidden"), ("expert", "hidden", "width")
            table |= {
                "router": (("width", None), (a.width, a.experts), a.width, 1),
                "gate": (into, (a.experts, a.width, a.expert_hidden), a.width, 1),
                "up": (into, (a.experts, a.width, a.expert_hidden), a.width, 1),
                "down": (out, (a.experts, a.expert_hidden, a.width), a.expert_hidden, small),
            }
        else:
            if a.gated:
                table["gate"] = (("width", "hidden"), (a.width, a.hidden), a.width, 1)
            table |= {
                "up": (("width", "hidden"), (a.width, a.hidden), a.width, 1),
                "down": (("hidden", "width"), (a.hidden, a.width), a.hidden, small),
            }
        for name, (contracted, _) in MATRICES.items():
            if name in a.bias:
                matrix_axes, shape, _, _ = table[name]
                table[f"{name}_bias"] = (matrix_axes[contracted:], shape[contracted:], 0, 0)
        if a.head_norm:
            table |= {name: ((None,), (a.head_size,), 0, 1 - a.norm_offset) for name in ("query_norm", "key_norm")}
        if a.post_norm:
            table |= {"attention_post_norm": norm, "swiglu_post_norm": norm}
        if a.norm == "layer":
            table |= {f"{name}_bias": (*table[name][:2], 0, 0) for name in tuple(table) if name.endswith("norm")}
        for name, (
            names,
            shape,
            fan_in,
            scale,
        ) in table.items():  # the order decides the keys, hence the initial values
            start = nn.initializers.normal(scale * fan_in**-0.5) if fan_in else nn.initializers.constant(scale)
            _parameter(self, name, start, names, shape)
        return None, None


class _Decoder(nn.Module):
    """The parameters of embedding, layers, final norm and head."""

    architecture: Architecture

    @nn.compact
    def __call__(self) -> None:
        """Declare the parameters."""
        a = self.architecture
        normal = nn.initializers.normal(a.width**-0.5)
        _parameter(self, "embedding", normal, ("vocabulary", "width"), (a.vocabulary, a.width))
        if a.output != "logits":
            names, shape = (("width",), (a.width,)) if a.bins is None else ((None, "width"), (a.bins[2], a.width))
            _parameter(self, "scalar", nn.initializers.zeros, names, shape)
        if a.output != "scalar" and not a.tied:
            _parameter(self, "unembedding", normal, ("width", "vocabulary"), (a.width, a.vocabulary))
        _stack(self, a)


class _Tower(nn.Module):
    """The parameters of patches, layers and final norm of a vision tower."""

    architecture: Architecture

    @nn.compact
    def __call__(self) -> None:
        """Declare the parameters."""
        v = self.architecture.vision
        size = 3 * v.patch**2 * (2 if v.form == "qwen2.5" else 1)
        _parameter(self, "patch", nn.initializers.normal(size**-0.5), (None, "width"), (size, v.width))
        if v.form == "siglip":
            _parameter(self, "patch_bias", nn.initializers.zeros, (None,), (v.width,))
            start = nn.initializers.normal(v.width**-0.5)
            _parameter(self, "position", start, (None, "width"), (v.side**2, v.width))
        _stack(self, self.architecture.tower)


class _Projector(nn.Module):
    """The parameters from a tower's output to the policy's embeddings."""

    architecture: Architecture

    @nn.compact
    def __call__(self) -> None:
        """Declare the matrix: projections are as large as embeddings."""
        v = self.architecture.vision
        shape = (v.joined, self.architecture.width)
        start = nn.initializers.normal((shape[0] * shape[1]) ** -0.5)
        _parameter(self, "matrix", start, (None, "width"), shape)
        if v.form == "siglip":
            _parameter(self, "norm", nn.initializers.zeros, (None,), shape[:1])
        if v.form == "qwen2.5":
            _parameter(self, "inner", nn.initializers.normal(v.joined**-0.5), (None, "hidden"), (v.joined, v.joined))
            _parameter(self, "inner_bias", nn.initializers.zeros, (None,), (v.joined,))
            _parameter(self, "matrix_bias", nn.initializers.zeros, (None,), shape[1:])


def _stack(module: nn.Module, a: Architecture) -> None:
    """Declare the layers and the final norm of a module."""
    stack = nn.scan(
        _Layer,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=a.layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    stack(a, name="layers")(None, None)
    _parameter(module, "final_norm", nn.initializers.constant(1 - a.norm_offset), (None,), (a.width,))
    if a.norm == "layer":
        _parameter(module, "final_norm_bias", nn.initializers.zeros, (None,), (a.width,))
