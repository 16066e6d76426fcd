"""One decoder-only transformer: RMSNorm before each block, rotary positions, grouped-query attention, SwiGLU.

Dimension key beside that of ``types``: s new tokens in this call, F hidden width of the SwiGLU block,
G key-value heads, R = H / G query heads that share one. With a cache S counts its slots.

flax.linen holds the parameters and the loop over layers and does not leave this file: callers see
pure functions over plain dictionaries (``init``, ``apply``, ``logits``, ``scalar``).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from rljax.types import Array, Key, Tree

Dtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "full", "dots"]
Output = Literal["logits", "scalar"]
Names = tuple[str | None, ...]
Constrain = Callable[[Array, Names], Array]

# Large enough that exp underflows to exactly 0, finite so that a row with nothing to attend to stays finite.
_MASKED = -1e30


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The shape of a model and how it is computed. Raises ValueError on a field that makes no model.

    ``remat`` says what the backward pass recomputes in each layer: "none" keeps everything, "full"
    keeps the layer's input only, "dots" also the results of the weight matmuls. ``output`` is the
    unembedding ("logits") or one number per position ("scalar": a critic or a reward model).
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

    @property
    def size(self) -> int:
        """``head_size``, None already replaced."""
        assert self.head_size is not None
        return self.head_size


@flax.struct.dataclass
class Cache:
    """Keys and values of what was read so far. All rows have used the same slots: pad prompts on the left."""

    key: Array  # [N, B, S, G, K] in the compute dtype, already rotated
    value: Array  # [N, B, S, G, K]
    mask: Array  # [B, S] bool, slots that hold a real token
    length: Array  # [] int32, slots written so far


def unconstrained(array: Array, names: Names) -> Array:
    """Return ``array`` as it is: the layout of a model that knows of no mesh."""
    del names
    return array


def init_cache(architecture: Architecture, rows: int, length: int, constrain: Constrain = unconstrained) -> Cache:
    """Return an empty cache of ``length`` slots for ``rows`` rows."""
    a = architecture
    empty = jnp.zeros((a.layers, rows, length, a.kv_heads, a.size), a.dtype)
    empty = constrain(empty, ("layers", "rows", None, "kv_heads", None))
    mask = constrain(jnp.zeros((rows, length), bool), ("rows", None))
    return Cache(key=empty, value=empty, mask=mask, length=jnp.zeros((), jnp.int32))


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


def apply(
    architecture: Architecture,
    params: Tree,
    token: Array,
    mask: Array,
    cache: Cache | None = None,
    constrain: Constrain = unconstrained,
) -> tuple[Array, Cache | None]:
    """Read tokens; see ``models.Model.apply``."""
    if token.ndim != 2 or token.shape != mask.shape:
        raise ValueError(f"token {token.shape} and mask {mask.shape} must share one shape [B, s]")
    if cache is not None and (cache.mask.shape[0] != token.shape[0] or cache.mask.shape[1] < token.shape[1]):
        raise ValueError(f"cache of [B, S] = {cache.mask.shape} cannot take tokens of [B, s] = {token.shape}")
    read: Any = _Decoder(architecture, constrain).apply({"params": params}, token, mask != 0, cache)
    return read


def logits(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return the unembedding of ``hidden`` [..., D] as float32 [..., V]."""
    if architecture.output != "logits":
        raise ValueError(f"logits need output='logits'; this model has output={architecture.output!r}")
    if architecture.tied:
        return _einsum("...d,vd->...v", hidden, params["embedding"], architecture.dtype)
    return _einsum("...d,dv->...v", hidden, params["unembedding"], architecture.dtype)


def scalar(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return one float32 number for each ``hidden`` [..., D]; 0 everywhere at initialisation."""
    if architecture.output != "scalar":
        raise ValueError(f"a scalar needs output='scalar'; this model has output={architecture.output!r}")
    return _einsum("...d,d->...", hidden, params["scalar"], architecture.dtype)


def _at_least_one(field: str, value: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{field}={value!r} must be a whole number of at least 1")


def _boxed(architecture: Architecture, key: Key) -> Tree:
    token = jnp.zeros((1, 1), jnp.int32)
    return _Decoder(architecture, unconstrained).init(key, token, token == 0, None)["params"]


def _einsum(spec: str, left: Array, right: Array, dtype: str) -> Array:
    """Multiply operands in ``dtype``, accumulate and return in float32."""
    return jnp.einsum(spec, left.astype(dtype), right.astype(dtype), preferred_element_type=jnp.float32)


@jax.custom_vjp
def _matmul(x: Array, weight: Array) -> Array:
    return jnp.matmul(x, weight, preferred_element_type=jnp.float32)


def _matmul_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weight = saved
    gradient = gradient.astype(x.dtype)
    by_x = jnp.matmul(gradient, weight.T, preferred_element_type=jnp.float32).astype(x.dtype)
    by_weight = jnp.matmul(x.T, gradient, preferred_element_type=jnp.float32).astype(weight.dtype)
    return by_x, by_weight


_matmul.defvjp(lambda x, weight: (_matmul(x, weight), (x, weight)), _matmul_backward)


def _project(x: Array, weight: Array, dtype: str, contracted: int = 1) -> Array:
    """Multiply the last ``contracted`` dimensions of ``x`` into the first of ``weight``, in ``dtype``; float32 out.

    Everything goes through one matrix product of [tokens, in] and [in, out] with a gradient of its own:
    jax's would put the output's gradient first in the weight's, and XLA's CPU backend then fuses the elementwise
    work behind it into a transposition that walks memory across the grain (95 ms for 8 at [13312, 384]).
    """
    lead, out = x.shape[: x.ndim - contracted], weight.shape[contracted:]
    inner = math.prod(weight.shape[:contracted])
    flat = _matmul(x.astype(dtype).reshape(-1, inner), weight.astype(dtype).reshape(inner, -1))
    return flat.reshape(*lead, *out)


def _rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
    """Return x / sqrt(mean(x^2) + epsilon) * scale over the last dimension, in float32, cast back to x's dtype."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon)
    return (wide * inverse * scale.reshape((1,) * (x.ndim - 1) + scale.shape)).astype(x.dtype)


def _angles(position: Array, size: int, theta: float) -> tuple[Array, Array]:
    """Return cosine and sine [B, s, 1, K / 2] of position * theta^(-2 i / K), in float32."""
    frequency = theta ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angle = position.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def _rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """Turn the pairs (i, i + K / 2) of float32 ``x`` [B, s, heads, K] by their angle."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _attend(query: Array, key: Array, value: Array, valid: Array, dtype: str) -> Array:
    """Softmax attention of ``query`` [B, s, H, K] over ``key``, ``value`` [B, S, G, K] where ``valid`` [B, s, S]."""
    rows, new, heads, size = query.shape
    grouped = query.reshape(rows, new, key.shape[2], heads // key.shape[2], size)
    score = _einsum("bsgrk,btgk->bgrst", grouped, key, dtype) * size**-0.5
    score = jnp.where(valid[:, None, None, :, :], score, _MASKED)
    weight = jax.nn.softmax(score, axis=-1)
    return _einsum("bgrst,btgk->bsgrk", weight, value, dtype).reshape(rows, new, heads, size)


@flax.struct.dataclass
class _Shared:
    """What every layer reads: which slots may be seen, the rotation, and where new slots start."""

    valid: Array  # [B, s, S] bool
    cosine: Array  # [B, s, 1, K / 2]
    sine: Array
    start: Array | None  # [] int32; None without a cache


def _parameter(module: nn.Module, name: str, start: Any, names: Names, shape: tuple[int, ...]) -> Array:
    """Own a float32 parameter of ``module``, with its logical axis names."""
    value: Any = module.param(name, nn.with_logical_partitioning(start, names), shape, jnp.float32)
    return value


_Carry = tuple[Array, Array | None, Array | None]  # residual stream, the cache's keys, the cache's values


class _Layer(nn.Module):
    """Attention and SwiGLU, each on the normed stream and added back to it."""

    architecture: Architecture
    constrain: Constrain

    def weight(self, name: str, names: Names, shape: tuple[int, ...], fan_in: int, scale: float = 1.0) -> Array:
        """Return the parameter ``name``, drawn from N(0, scale^2 / fan_in)."""
        return _parameter(self, name, nn.initializers.normal(scale * fan_in**-0.5), names, shape)

    def normed(self, name: str, x: Array) -> Array:
        """Return RMSNorm of ``x`` under the scale ``name``."""
        scale = _parameter(self, name, nn.initializers.ones, (None,), (self.architecture.width,))
        return _rms_norm(x, scale, self.architecture.norm_epsilon)

    @nn.compact
    def __call__(self, carry: _Carry, index: Array, shared: _Shared) -> tuple[_Carry, None]:
        """Apply layer ``index``, which owns that slice of the cache."""
        x, keys, values = carry
        mixed, keys, values = self.attention(self.normed("attention_norm", x), keys, values, index, shared)
        x = self.constrain(x + mixed, ("rows", "positions", None))
        x = self.constrain(x + self.swiglu(self.normed("swiglu_norm", x)), ("rows", "positions", None))
        return (x, keys, values), None

    def attention(
        self, x: Array, keys: Array | None, values: Array | None, index: Array, shared: _Shared
    ) -> tuple[Array, Array | None, Array | None]:
        """Grouped-query attention; writes the new keys and values into the stacked cache in place."""
        a, dtype = self.architecture, self.architecture.dtype

        def project(name: str, heads: int, axis: str) -> Array:
            weight = self.weight(name, ("width", axis, "head_size"), (a.width, heads, a.size), a.width)
            return _project(x, weight, dtype)

        query = _rotate(project("query", a.heads, "heads"), shared.cosine, shared.sine).astype(dtype)
        key = _rotate(project("key", a.kv_heads, "kv_heads"), shared.cosine, shared.sine).astype(dtype)
        value = project("value", a.kv_heads, "kv_heads").astype(dtype)
        query = self.constrain(query, ("rows", "positions", "heads", None))
        if keys is not None and values is not None and shared.start is not None:
            # The whole stack is carried and written in place: as outputs of the loop over layers
            # the slices would be stacked anew, a copy of the cache at every decoded token.
            at = (index, jnp.zeros_like(index), shared.start, jnp.zeros_like(index), jnp.zeros_like(index))
            keys = jax.lax.dynamic_update_slice(keys, key[None], at)
            values = jax.lax.dynamic_update_slice(values, value[None], at)
            key = jax.lax.dynamic_index_in_dim(keys, index, keepdims=False)
            value = jax.lax.dynamic_index_in_dim(values, index, keepdims=False)
        mixed = _attend(query, key, value, shared.valid, dtype)
        # Each layer adds to the stream twice: the factor keeps its variance at the start free of depth.
        out = self.weight(
            "attention_output",
            ("heads", "head_size", "width"),
            (a.heads, a.size, a.width),
            a.heads * a.size,
            (2 * a.layers) ** -0.5,
        )
        return _project(mixed, out, dtype, contracted=2).astype(dtype), keys, values

    def swiglu(self, x: Array) -> Array:
        """(silu(x gate) * (x up)) down."""
        a = self.architecture
        gate = self.weight("gate", ("width", "hidden"), (a.width, a.hidden), a.width)
        up = self.weight("up", ("width", "hidden"), (a.width, a.hidden), a.width)
        down = self.weight("down", ("hidden", "width"), (a.hidden, a.width), a.hidden, (2 * a.layers) ** -0.5)
        inner = jax.nn.silu(_project(x, gate, a.dtype)) * _project(x, up, a.dtype)
        inner = self.constrain(inner.astype(a.dtype), ("rows", "positions", "hidden"))
        return _project(inner, down, a.dtype).astype(a.dtype)


class _Decoder(nn.Module):
    """Embedding, the layers under one scan, the final norm; also owns the parameters of the head."""

    architecture: Architecture
    constrain: Constrain

    @nn.compact
    def __call__(self, token: Array, mask: Array, cache: Cache | None) -> tuple[Array, Cache | None]:
        """Return hidden [B, s, D] after the final norm, and the cache with the new tokens in it."""
        a = self.architecture
        own = functools.partial(_parameter, self)
        normal = nn.initializers.normal(a.width**-0.5)
        embedding = own("embedding", normal, ("vocabulary", "width"), (a.vocabulary, a.width))
        if a.output == "scalar":
            own("scalar", nn.initializers.zeros, ("width",), (a.width,))
        elif not a.tied:
            own("unembedding", normal, ("width", "vocabulary"), (a.width, a.vocabulary))

        shared, slots = _see(a, mask, cache)
        # clip: padding may hold any id
        x = jnp.take(embedding, token, axis=0, mode="clip").astype(a.dtype)
        x = self.constrain(x, ("rows", "positions", None))
        stack = nn.scan(
            _LAYERS[a.remat],
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=_PER_LAYER,
            length=a.layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        carry = (x, None, None) if cache is None else (x, cache.key, cache.value)
        index = jnp.arange(a.layers, dtype=jnp.int32)
        (x, keys, values), _ = stack(a, self.constrain, name="layers")(carry, index, shared)
        x = _rms_norm(x, own("final_norm", nn.initializers.ones, (None,), (a.width,)), a.norm_epsilon)
        if cache is None:
            return x, None
        return x, Cache(key=keys, value=values, mask=slots, length=cache.length + token.shape[1])


def _see(architecture: Architecture, mask: Array, cache: Cache | None) -> tuple[_Shared, Array]:
    """Return what the layers share, and the mask [B, S] of real slots once the new tokens stand in theirs."""
    a = architecture
    position = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - mask.astype(jnp.int32)
    if cache is None:
        start, slots = jnp.zeros((), jnp.int32), mask
    else:
        start = cache.length
        position += jnp.sum(cache.mask, axis=1, keepdims=True, dtype=jnp.int32)
        slots = jax.lax.dynamic_update_slice(cache.mask, mask, (jnp.zeros_like(start), start))
    slot = jnp.arange(slots.shape[1], dtype=jnp.int32)
    causal = slot[None, :] <= start + jnp.arange(mask.shape[1], dtype=jnp.int32)[:, None]
    cosine, sine = _angles(position, a.size, a.rope_theta)
    shared = _Shared(
        valid=causal[None, :, :] & slots[:, None, :],
        cosine=cosine,
        sine=sine,
        start=None if cache is None else start,
    )
    return shared, slots


_PER_LAYER: Any = (0, nn.broadcast)  # of the layer's index and of what is shared
_LAYERS: dict[str, Any] = {
    "none": _Layer,
    "full": nn.remat(_Layer, prevent_cse=False),
    "dots": nn.remat(_Layer, prevent_cse=False, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
}
