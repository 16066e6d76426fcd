"""The shape of a decoder-only transformer, and its parameters.

flax.linen declares the parameters and does not leave this file: callers see plain dictionaries.
"""

import dataclasses
import functools
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.models import attention
from rljax.types import Key, Tree

Dtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "full", "dots"]
Output = Literal["logits", "scalar"]
Names = tuple[str | None, ...]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The shape of a model and how it is computed. Raises ValueError on a field that makes no model.

    ``remat`` says what the backward pass recomputes in each layer: "none" keeps everything, "full"
    keeps the layer's input only, "dots" also the results of the weight matmuls. ``scan`` runs the layers
    in one loop, which compiles once whatever their number; without it they stand one after the other, and
    nothing is stacked. ``output`` is the unembedding ("logits") or one number per position ("scalar": a
    critic or a reward model).
    """

    vocabulary: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    head_size: int | None = None  # None: width / heads
    tied: bool = True  # the unembedding is the embedding, transposed
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    dtype: Dtype = "float32"  # of activations and matmul operands; parameters and reductions are float32
    remat: Remat = "none"
    scan: bool = True
    attention: str = "plain"  # one of ``attention.IMPLEMENTATIONS``, outside decoding
    output: Output = "logits"

    def __post_init__(self) -> None:
        for field in ("vocabulary", "layers", "width", "heads", "kv_heads", "hidden"):
            _at_least_one(field, getattr(self, field))
        if self.head_size is None:
            if self.width % self.heads:
                raise ValueError(
                    f"width={self.width} must be divisible by heads={self.heads} when head_size is not given"
                )
            object.__setattr__(self, "head_size", self.width // self.heads)
        _at_least_one("head_size", self.head_size)
        if self.size % 2:
            raise ValueError(f"head_size={self.size} must be even: rotary positions turn pairs")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be divisible by kv_heads={self.kv_heads}")
        for field in ("rope_theta", "norm_epsilon"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field}={getattr(self, field)!r} must be above 0")
        for field, choices in (("dtype", Dtype), ("remat", Remat), ("output", Output)):
            if getattr(self, field) not in get_args(choices):
                raise ValueError(f"{field}={getattr(self, field)!r}: choose one of {', '.join(get_args(choices))}")
        if self.attention not in attention.IMPLEMENTATIONS:
            raise ValueError(f"attention={self.attention!r}: choose one of {', '.join(attention.IMPLEMENTATIONS)}")

    @property
    def size(self) -> int:
        """``head_size``, None already replaced."""
        assert self.head_size is not None
        return self.head_size


@functools.partial(jax.jit, static_argnums=0)  # op by op it takes seconds
def init(architecture: Architecture, key: Key) -> Tree:
    """Return float32 parameters as nested dictionaries, layers stacked on the first dimension."""
    return nn.meta.unbox(_boxed(architecture, key))


def axes(architecture: Architecture) -> Tree:
    """Return a tree like the parameters whose leaves are tuples: one logical axis name per dimension."""
    boxed = jax.eval_shape(functools.partial(_boxed, architecture), jax.random.key(0))
    return jax.tree.map(
        lambda box: tuple(box.names), boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )


def _boxed(architecture: Architecture, key: Key) -> Tree:
    return _Decoder(architecture).init(key)["params"]


def _at_least_one(field: str, value: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{field}={value!r} must be a whole number of at least 1")


def _parameter(module: nn.Module, name: str, start: Any, names: Names, shape: tuple[int, ...]) -> None:
    """Declare a float32 parameter of ``module``, with its logical axis names."""
    module.param(name, nn.with_logical_partitioning(start, names), shape, jnp.float32)


class _Layer(nn.Module):
    """The parameters of one layer."""

    architecture: Architecture

    @nn.compact
    def __call__(self, carry: None, index: None) -> tuple[None, None]:
        """Declare every matrix with entries from N(0, scale^2 / fan_in), every norm's scale with ones."""
        a = self.architecture
        small = (2 * a.layers) ** -0.5  # two per layer add to the stream: keeps its variance free of depth at the start
        heads, kv_heads = ("width", "heads", "head_size"), ("width", "kv_heads", "head_size")
        table: dict[str, tuple[Names, tuple[int, ...], int, float]] = {
            "attention_norm": ((None,), (a.width,), 0, 1),
            "query": (heads, (a.width, a.heads, a.size), a.width, 1),
            "key": (kv_heads, (a.width, a.kv_heads, a.size), a.width, 1),
            "value": (kv_heads, (a.width, a.kv_heads, a.size), a.width, 1),
            "attention_output": (
                ("heads", "head_size", "width"),
                (a.heads, a.size, a.width),
                a.heads * a.size,
                small,
            ),
            "swiglu_norm": ((None,), (a.width,), 0, 1),
            "gate": (("width", "hidden"), (a.width, a.hidden), a.width, 1),
            "up": (("width", "hidden"), (a.width, a.hidden), a.width, 1),
            "down": (("hidden", "width"), (a.hidden, a.width), a.hidden, small),
        }
        for name, (names, shape, fan_in, scale) in table.items():  # their order decides their first values
            start = nn.initializers.normal(scale * fan_in**-0.5) if fan_in else nn.initializers.ones
            _parameter(self, name, start, names, shape)
        return None, None


class _Decoder(nn.Module):
    """The parameters of embedding, layers, final norm and head."""

    architecture: Architecture

    @nn.compact
    def __call__(self) -> None:
        """Declare them."""
        a = self.architecture
        normal = nn.initializers.normal(a.width**-0.5)
        _parameter(self, "embedding", normal, ("vocabulary", "width"), (a.vocabulary, a.width))
        if a.output == "scalar":
            _parameter(self, "scalar", nn.initializers.zeros, ("width",), (a.width,))
        elif not a.tied:
            _parameter(self, "unembedding", normal, ("width", "vocabulary"), (a.width, a.vocabulary))
        stack = nn.scan(
            _Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=a.layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        stack(a, name="layers")(None, None)
        _parameter(self, "final_norm", nn.initializers.ones, (None,), (a.width,))
