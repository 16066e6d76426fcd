"""The fields of a decoder-only transformer, and its parameters.

flax.linen declares the parameters and is used in this file only: callers see plain dictionaries.
"""

import dataclasses
import functools
import math
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.models import attention
from rljax.models.layouts import Names
from rljax.types import Key, Tree

Dtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "full", "dots"]
Output = Literal["logits", "scalar", "both"]
Activation = Literal["silu", "gelu"]
DecodeWeights = Literal["float", "int8"]
Form = attention.Form
# the matrices of a layer: how many dimensions each contracts, and how many it returns
MATRICES: dict[str, tuple[int, int]] = {
    "query": (1, 2),
    "key": (1, 2),
    "value": (1, 2),
    "attention_output": (2, 1),
    "gate": (1, 1),
    "up": (1, 1),
    "down": (1, 1),
}
ADAPTER = ("_adapter_in", "_adapter_out")  # suffixes of a matrix's name: [in..., rank] and [rank, out...]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The shape of a model and how it is computed. Raises ValueError, naming the field, on an invalid value.

    ``remat`` chooses what the backward pass recomputes in each layer: "none" saves every activation, "full" saves the
    layer's input only, "dots" also the results of its weight matmuls. ``scan`` runs the layers in one loop, so that
    compile time does not grow with their number; without it they are unrolled. ``output`` is the unembedding
    ("logits"), one number per position ("scalar": a critic or a reward model), or "both" on one trunk.
    """

    vocabulary: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    head_size: int = 0  # 0: width / heads
    tied: bool = True  # the unembedding is the embedding, transposed
    rope_theta: float = 10_000.0
    rope_local_theta: float = 0.0  # of layers with a window; 0: the same
    rope_factor: float = 1.0  # by which the positions of layers without a window are stretched
    rope_original: int = 0  # 0: all wavelengths alike; else Llama 3's way: those short beside this length stay
    rope_low: float = 1.0  # with rope_original: wavelengths above original / low are stretched whole,
    rope_high: float = 4.0  # those below original / high not at all
    norm_epsilon: float = 1e-6
    norm_offset: float = 0.0  # a norm multiplies by this plus its scale; scales start where the sum is 1
    bias: bool = False  # of query, key and value
    head_norm: bool = False  # a norm of every query and key before it is rotated
    post_norm: bool = False  # a norm also behind attention and behind the gated layer
    activation: Activation = "silu"  # of the gate; "gelu" by tanh
    embedding_scale: float = 1.0  # rounded to dtype, as the families that have it do
    query_scale: float = 0.0  # of attention scores; 0: head_size^-1/2
    attention_cap: float = 0.0  # scores become cap tanh(score / cap); 0: no cap
    logit_cap: float = 0.0  # the same of logits, before any temperature
    window: int = 0  # positions that a local layer sees, itself among them
    pattern: tuple[str, ...] = ("global",)  # of layers, "local" or "global", again and again
    experts: int = 0  # 0: one gated layer; else a router and this many of width ``expert_hidden``
    experts_per_token: int = 0
    expert_hidden: int = 0
    normalise_experts: bool = True  # the chosen experts' probabilities sum to 1
    dtype: Dtype = "float32"  # of activations and matmul operands; reductions are float32
    param_dtype: Dtype = "float32"  # in which parameters are held
    decode_weights: DecodeWeights = "float"  # "int8": the sampler's matrices, rounded; see ``cache.decode_params``
    remat: Remat = "none"
    scan: bool = True
    adapter_rank: int = 0  # 0: none; else of the adapters, see ``adapters``
    adapter_scale: float = 1.0  # of their product: alpha / rank
    adapter_modules: tuple[str, ...] = tuple(MATRICES)  # that have one
    attention: str = "plain"  # one of ``attention.IMPLEMENTATIONS``, outside decoding
    output: Output = "logits"

    def __post_init__(self) -> None:
        for field in ("vocabulary", "layers", "width", "heads", "kv_heads", "hidden"):
            _at_least_one(field, getattr(self, field))
        if not self.head_size:
            if self.width % self.heads:
                raise ValueError(f"width={self.width} must be divisible by heads={self.heads} when head_size is 0")
            object.__setattr__(self, "head_size", self.width // self.heads)
        _at_least_one("head_size", self.head_size)
        if self.head_size % 2:
            raise ValueError(f"head_size={self.head_size} must be even: rotary positions rotate pairs")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be divisible by kv_heads={self.kv_heads}")
        for field in ("rope_theta", "rope_factor", "norm_epsilon", "embedding_scale", "rope_low"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field}={getattr(self, field)!r} must be above 0")
        for field in ("rope_local_theta", "rope_original", "query_scale", "attention_cap", "logit_cap", "window"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field}={getattr(self, field)!r} must be at least 0")
        if self.rope_high <= self.rope_low:
            raise ValueError(f"rope_high={self.rope_high} must be above rope_low={self.rope_low}")
        choices: dict[str, Any] = {
            "dtype": Dtype,
            "param_dtype": Dtype,
            "remat": Remat,
            "output": Output,
            "activation": Activation,
            "decode_weights": DecodeWeights,
        }
        for field, names in choices.items():
            if getattr(self, field) not in get_args(names):
                raise ValueError(f"{field}={getattr(self, field)!r}: choose one of {', '.join(get_args(names))}")
        self._check_attention()
        if self.experts:
            _at_least_one("expert_hidden", self.expert_hidden)
            if not 1 <= self.experts_per_token <= self.experts:
                raise ValueError(f"experts_per_token={self.experts_per_token} must be 1 to experts={self.experts}")
        self._check_adapters()

    def _check_adapters(self) -> None:
        if not isinstance(self.adapter_rank, int) or self.adapter_rank < 0:
            raise ValueError(f"adapter_rank={self.adapter_rank!r} must be an integer of at least 0")
        if not self.adapter_scale > 0:
            raise ValueError(f"adapter_scale={self.adapter_scale!r} must be above 0")
        if not self.adapter_modules or set(self.adapter_modules) - set(MATRICES):
            raise ValueError(f"adapter_modules={self.adapter_modules!r}: choose some of {', '.join(MATRICES)}")
        within = [name for name in self.adapted if name in ("gate", "up", "down")]
        if self.experts and within:
            raise ValueError(
                f"adapter_modules: {', '.join(within)} cannot have adapters with experts={self.experts}; choose some "
                "of query, key, value, attention_output"
            )

    def _check_attention(self) -> None:
        if self.attention not in attention.IMPLEMENTATIONS:
            raise ValueError(f"attention={self.attention!r}: choose one of {', '.join(attention.IMPLEMENTATIONS)}")
        if self.attention == "cudnn" and self.attention_cap:
            raise ValueError(f"attention='cudnn' does not support attention_cap={self.attention_cap}: choose another")
        if not self.pattern or set(self.pattern) - {"local", "global"}:
            raise ValueError(f"pattern={self.pattern!r}: expected a sequence of 'local' and 'global', not empty")
        if ("local" in self.pattern) != bool(self.window):
            raise ValueError(
                f"window={self.window} and pattern={self.pattern!r}: set window above 0 if a layer is local, else to 0"
            )

    @property
    def adapted(self) -> tuple[str, ...]:
        """The matrices of a layer that have an adapter."""
        return tuple(self.adapter_modules) if self.adapter_rank else ()

    def local(self, layer: int) -> bool:
        """Return whether a layer attends to a window only."""
        return self.pattern[layer % len(self.pattern)] == "local"

    def form(self, local: bool) -> Form:
        """Return how attention scores are computed, in a local or a global layer."""
        scale = self.query_scale or self.head_size**-0.5
        return Form(scale, self.attention_cap, self.window if local else 0)


@functools.partial(jax.jit, static_argnums=0)  # without jit it takes seconds
def init(architecture: Architecture, key: Key) -> Tree:
    """Return random parameters as nested dictionaries, those of the layers stacked on dimension 0.

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
    params = _Decoder(architecture).init(key)["params"]
    adapters = _adapters(architecture, params["layers"], jax.random.fold_in(key, 1))
    return {**params, "layers": {**params["layers"], **adapters}}


def _at_least_one(field: str, value: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{field}={value!r} must be an integer of at least 1")


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
            table |= {
                "gate": (("width", "hidden"), (a.width, a.hidden), a.width, 1),
                "up": (("width", "hidden"), (a.width, a.hidden), a.width, 1),
                "down": (("hidden", "width"), (a.hidden, a.width), a.hidden, small),
            }
        if a.bias:
            table |= {
                "query_bias": (heads[1:], (a.heads, a.head_size), 0, 0),
                "key_bias": (kv_heads[1:], (a.kv_heads, a.head_size), 0, 0),
                "value_bias": (kv_heads[1:], (a.kv_heads, a.head_size), 0, 0),
            }
        if a.head_norm:
            table |= {name: ((None,), (a.head_size,), 0, 1 - a.norm_offset) for name in ("query_norm", "key_norm")}
        if a.post_norm:
            table |= {"attention_post_norm": norm, "swiglu_post_norm": norm}
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
            _parameter(self, "scalar", nn.initializers.zeros, ("width",), (a.width,))
        if a.output != "scalar" and not a.tied:
            _parameter(self, "unembedding", normal, ("width", "vocabulary"), (a.width, a.vocabulary))
        stack = nn.scan(
            _Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=a.layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        stack(a, name="layers")(None, None)
        _parameter(self, "final_norm", nn.initializers.constant(1 - a.norm_offset), (None,), (a.width,))
