"""The fields of a decoder-only transformer, and its parameters.

flax.linen declares the parameters and is used in this file only: callers see plain dictionaries.
"""

import dataclasses
import functools
import math
from typing import Annotated, Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.language import settings
from rljax.language.settings import NonNegative, Positive, Size, group, setting
from rljax.models import towers
from rljax.models.layouts import Names
from rljax.models.network import attention
from rljax.types import Key, Range, Tree

Dtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "full", "dots", "auto"]
Output = Literal["logits", "scalar", "both"]
Activation = Literal["silu", "gelu"]
RopeRule = Literal["llama3", "yarn"]
# bounds far above published models: a nonsense value is refused before a tree of arrays is made from it
Layers = Annotated[int, Range(1, 1000)]
Heads = Annotated[int, Range(1, 4000)]
OptionalSize = Annotated[int, Range(0, 4000)]
Experts = Annotated[int, Range(0, 500)]
Width = Annotated[int, Range(1, 10**6)]
OptionalWidth = Annotated[int, Range(0, 10**6)]
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
FROZEN = "_frozen"  # suffix of the name of a part of the parameters that is never trained


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The shape of a model and how it is computed. Raises ValueError, naming the field, on an invalid value.

    ``remat`` chooses what the backward pass recomputes in each layer: "none" saves every activation, "full" saves the
    layer's input only, "dots" also the results of its weight matmuls; "auto" is "none" here, and a program chooses
    between "none" and "full" by ``saved``. ``scan`` runs the layers in one loop, so that
    compile time does not grow with their number; without it they are unrolled. ``output`` is the unembedding
    ("logits"), one number per position ("scalar": a critic or a reward model), or "both" on one trunk. ``bins`` (first
    center, last center, number) makes that number the expectation of a distribution over bins.
    """

    vocabulary: Size = setting(0, "Ids of the vocabulary; 0: the tokenizer's.", fixed=True)
    layers: Layers = setting(2, "Layers.", fixed=True)
    width: Width = setting(128, "Width of the residual stream.", fixed=True)
    heads: Heads = setting(4, "Query heads of a layer.", fixed=True)
    kv_heads: Heads = setting(2, "Key and value heads of a layer; divides ``heads``.", fixed=True)
    hidden: Width = setting(384, "Hidden units of a layer's gated unit.", fixed=True)
    head_size: OptionalSize = setting(0, "Size of a head, even; 0: width / heads.", fixed=True)
    tied: bool = setting(True, "Whether the unembedding is the embedding, transposed.", fixed=True)
    rope_theta: Positive = setting(10_000.0, "Base of the rotary frequencies.", fixed=True)
    rope_local_theta: NonNegative = setting(
        0.0, "Base in layers with a window, whose wavelengths are then not stretched; 0: as in the others.", fixed=True
    )
    rope_factor: Positive = setting(1.0, "Factor that stretches the wavelengths.", fixed=True)
    rope_original: Size = setting(
        0, "0: the factor stretches all wavelengths; else the long ones, relative to this original length.", fixed=True
    )
    rope_rule: RopeRule = setting(
        "llama3", "With rope_original: stretch as a function of wavelength ('llama3') or of index ('yarn').", fixed=True
    )
    rope_low: Positive = setting(
        1.0, "With rope_original: longer wavelengths than original / low are stretched.", fixed=True
    )
    rope_high: Positive = setting(
        4.0, "With rope_original: shorter wavelengths than original / high are not.", fixed=True
    )
    rope_truncate: bool = setting(True, "Whether 'yarn' rounds the two indices to whole numbers.", fixed=True)
    rope_scale: Positive = setting(1.0, "Factor of the rotated queries and keys; 'yarn' uses one above 1.", fixed=True)
    norm_epsilon: Positive = setting(1e-6, "Added to the mean square in a norm.", fixed=True)
    norm_offset: NonNegative = setting(
        0.0, "Added to the scale of a norm; scales start where the sum is 1.", fixed=True
    )
    bias: tuple[str, ...] = setting((), "Matrices that have a bias.", fixed=True)
    head_norm: bool = setting(False, "Whether queries and keys are normalized before the rotation.", fixed=True)
    post_norm: bool = setting(False, "Whether attention and the gated unit are followed by a norm.", fixed=True)
    activation: Activation = setting("silu", "Activation of the gate; 'gelu' is the approximation by tanh.", fixed=True)
    embedding_scale: Positive = setting(1.0, "Factor of the embeddings, rounded to ``dtype``.", fixed=True)
    query_scale: NonNegative = setting(0.0, "Factor of the attention scores; 0: head_size^-1/2.", fixed=True)
    attention_cap: NonNegative = setting(0.0, "Attention scores become cap tanh(score / cap); 0: no cap.", fixed=True)
    logit_cap: NonNegative = setting(0.0, "Logits become cap tanh(logit / cap); 0: no cap.", fixed=True)
    window: Size = setting(0, "Positions that a local layer attends to, its position included.", fixed=True)
    pattern: tuple[str, ...] = setting(("global",), "Kinds of the layers, 'local' or 'global', repeated.", fixed=True)
    experts: Experts = setting(0, "Experts of a layer; 0: one gated unit.", fixed=True)
    experts_per_token: Experts = setting(0, "Experts that the router chooses for a token.", fixed=True)
    expert_hidden: OptionalWidth = setting(0, "Hidden units of an expert.", fixed=True)
    normalise_experts: bool = setting(True, "Whether the chosen experts' probabilities sum to 1.", fixed=True)
    dtype: Dtype = setting("float32", "Type of activations and matmul operands; reductions are float32.", fixed=True)
    param_dtype: Dtype = setting("float32", "Type of the parameters.", fixed=True)
    decode_attention: Literal["plain", "kernel"] = setting(
        "plain", "Attention of decoding; 'kernel': one kernel a layer, on GPUs, for heads of 16, 32, 64, ..."
    )
    decode_weights: DecodeWeights = setting("float", "Type of the sampler's matrices; 'int8' rounds them.")
    remat: Remat = setting(
        "none",
        "What the backward pass recomputes: nothing, layers, all but weight matmuls; auto: 'full' above 2 GiB saved.",
    )
    scan: bool = setting(True, "Whether the layers run in one loop: compiles once for all of them, runs slower.")
    adapter_rank: OptionalSize = setting(0, "Rank of low-rank adapters; 0: the whole network is trained.", fixed=True)
    adapter_scale: Positive = setting(1.0, "Factor of the adapters' product: alpha / rank.", fixed=True)
    adapter_modules: tuple[str, ...] = setting(tuple(MATRICES), "Matrices that have an adapter.", fixed=True)
    attention: Literal["plain", "blocked", "cudnn", "splash"] = setting(
        "plain", "Implementation of attention outside decoding; 'cudnn' on GPU, 'splash' on TPU."
    )
    vision: towers.Vision = group(towers.Vision, fixed=True)
    output: Output = "logits"
    bins: tuple[float, float, int] | None = None

    def __post_init__(self) -> None:
        settings.check(self)
        if not self.head_size:
            if self.width % self.heads:
                raise ValueError(f"width={self.width} must be divisible by heads={self.heads} when head_size is 0")
            object.__setattr__(self, "head_size", self.width // self.heads)
        if self.head_size % 2:
            raise ValueError(f"head_size={self.head_size} must be even: rotary positions rotate pairs")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be divisible by kv_heads={self.kv_heads}")
        if self.rope_high <= self.rope_low:
            raise ValueError(f"rope_high={self.rope_high} must be above rope_low={self.rope_low}")
        if self.rope_original and self.rope_rule == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"rope_theta={self.rope_theta} must be above 1 with rope_rule='yarn'")
        if self.output not in get_args(Output):
            raise ValueError(f"output={self.output!r}: must be one of {', '.join(get_args(Output))}")
        self._check_attention()
        self._check_bias()
        if self.experts:
            if not self.expert_hidden:
                raise ValueError(f"expert_hidden={self.expert_hidden}: must be at least 1 with experts={self.experts}")
            if not 1 <= self.experts_per_token <= self.experts:
                raise ValueError(f"experts_per_token={self.experts_per_token} must be 1 to experts={self.experts}")
        self._check_adapters()

    def _check_bias(self) -> None:
        if set(self.bias) - set(MATRICES):
            raise ValueError(f"bias={self.bias!r}: choose some of {', '.join(MATRICES)}")
        if self.experts and {"gate", "up", "down"} & set(self.bias):
            raise ValueError(f"bias={self.bias!r}: experts have no biases (experts={self.experts})")

    def _check_adapters(self) -> None:
        if not self.adapter_modules or set(self.adapter_modules) - set(MATRICES):
            raise ValueError(f"adapter_modules={self.adapter_modules!r}: choose some of {', '.join(MATRICES)}")
        within = [name for name in self.adapted if name in ("gate", "up", "down")]
        if self.experts and within:
            raise ValueError(
                f"adapter_modules: {', '.join(within)} cannot have adapters with experts={self.experts}; choose some "
                "of query, key, value, attention_output"
            )

    def _check_attention(self) -> None:
        if self.decode_attention == "kernel" and (self.head_size < 16 or self.head_size & (self.head_size - 1)):
            raise ValueError(f"decode_attention='kernel': head_size={self.head_size}, must be 16, 32, 64, ...")
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

    @functools.cached_property
    def tower(self) -> "Architecture":
        """The layers of the vision tower."""
        v = self.vision
        return Architecture(
            layers=v.layers,
            width=v.width,
            heads=v.heads,
            kv_heads=v.heads,
            hidden=v.hidden,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            remat=self.remat,
            scan=self.scan,
            adapter_rank=self.adapter_rank if v.trained else 0,
            adapter_scale=self.adapter_scale,
        )

    @property
    def tower_name(self) -> str:
        """The name of the tower's parameters; the name of frozen ones ends in ``FROZEN``."""
        return "tower" if self.vision.trained else f"tower{FROZEN}"

    def saved(self, tokens: int, length: int) -> int:
        """Return about how many bytes a backward pass keeps of all layers without rematerialization.

        A layer keeps its input, both norms and projections (5 D a token), queries, keys and values before and after
        rotation, the mixed values (H), and four numbers for each hidden unit that a token uses; "plain" attention also
        keeps scores and their softmax.

        Args:
          tokens: tokens of the batch.
          length: tokens of a row.

        Returns:
          An estimate from shapes, without what a compiler saves.
        """
        heads, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        hidden = self.experts_per_token * (self.expert_hidden or self.hidden) if self.experts else self.hidden
        scores = 2 * self.heads * length if self.attention == "plain" else 0
        each = 5 * self.width + 3 * heads + 4 * kv + 4 * hidden + scores
        return tokens * self.layers * each * (2 if self.dtype == "bfloat16" else 4)

    def local(self, layer: int) -> bool:
        """Return whether a layer attends to a window only."""
        return self.pattern[layer % len(self.pattern)] == "local"

    def form(self, local: bool) -> Form:
        """Return how attention scores are computed, in a local or a global layer."""
        scale = self.query_scale or self.head_size**-0.5
        return Form(scale, self.attention_cap, self.window if local else 0)


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
        for name, (contracted, _) in MATRICES.items():
            if name in a.bias:
                matrix_axes, shape, _, _ = table[name]
                table[f"{name}_bias"] = (matrix_axes[contracted:], shape[contracted:], 0, 0)
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
        size = 3 * v.patch**2
        _parameter(self, "patch", nn.initializers.normal(size**-0.5), (None, "width"), (size, v.width))
        _stack(self, self.architecture.tower)


class _Projector(nn.Module):
    """The matrix from a tower's output to the policy's embeddings."""

    architecture: Architecture

    @nn.compact
    def __call__(self) -> None:
        """Declare the matrix: projections are as large as embeddings."""
        shape = (self.architecture.vision.width, self.architecture.width)
        start = nn.initializers.normal((shape[0] * shape[1]) ** -0.5)
        _parameter(self, "matrix", start, (None, "width"), shape)


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
