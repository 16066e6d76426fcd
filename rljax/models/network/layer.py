"""One layer of the transformer: norms, rotary positions, projections with their adapters, gated layer.

Where the public families differ, the difference is a field of ``Architecture``. Dimension key, in addition to the key
of ``types``: F hidden width of the gated layer, G key-value heads.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.models import architectures, precision
from rljax.models.architectures import Architecture
from rljax.models.layouts import Layout, Names
from rljax.models.network import attention, gated
from rljax.types import Array, Tree

Angles = tuple[Array, Array]  # cosine and sine [B, S, 1, K / 2]

STREAM: Names = ("rows", "positions", None)  # logical axes of the residual stream [B, S, D]


def embed(architecture: Architecture, params: Tree, token: Array, seen: Array | None = None) -> Array:
    """Return the embeddings of tokens, and at the i-th placeholder of a row the i-th of what its pictures are.

    Args:
      architecture: of the parameters.
      params: of the whole model.
      token: ``[B, S]`` int32; padding may hold any id.
      seen: ``[B, n, D]`` from ``models.Model.look``; further placeholders are ordinary tokens. None: all are.

    Returns:
      ``[B, S, D]`` in the compute dtype.
    """
    x = precision.lookup(params["embedding"], token).astype(architecture.dtype)
    x = x if architecture.embedding_scale == 1 else x * jnp.asarray(architecture.embedding_scale, x.dtype)
    if seen is None:
        return x
    number = _placed(architecture, token, seen)
    picture = jnp.take_along_axis(seen, jnp.maximum(number, 0)[:, :, None], axis=1)
    return jnp.where((number >= 0)[:, :, None], picture.astype(x.dtype), x)


def _placed(architecture: Architecture, token: Array, seen: Array) -> Array:
    """Return which of ``seen`` [B, n, D] is in place of each token [B, S]; -1: none."""
    here = token == architecture.vision.placeholder
    number = jnp.cumsum(here, axis=1, dtype=jnp.int32) - 1
    return jnp.where(here & (number < seen.shape[1]), number, -1)


def last(architecture: Architecture, token: Array, seen: Array | None) -> Array | None:
    """Return the last column that each token attends to: its own, or with ``vision.mutual`` the end of its picture.

    Args:
      architecture: of the parameters.
      token: ``[B, S]`` int32; the tokens of a picture are adjacent.
      seen: as in ``embed``.

    Returns:
      ``[B, S]`` int32; None: every token's is its own column.
    """
    if seen is None or not architecture.vision.mutual:
        return None
    number, column = _placed(architecture, token, seen), jnp.arange(token.shape[1], dtype=jnp.int32)[None, :]
    picture = jnp.where(number >= 0, number // architecture.vision.tokens, -1)
    goes_on = (picture >= 0) & (picture == jnp.pad(picture[:, 1:], ((0, 0), (0, 1)), constant_values=-1))
    return jax.lax.cummin(jnp.where(goes_on, token.shape[1], column), axis=1, reverse=True)


def final(architecture: Architecture, params: Tree, x: Array) -> Array:
    """Apply the final norm to the residual stream.

    Args:
      architecture: of the parameters.
      params: of the whole model.
      x: ``[B, S, D]``.

    Returns:
      ``[B, S, D]`` in x's dtype.
    """
    return _norm(architecture, x, params, "final_norm")


def positions(real: Array) -> Array:
    """Return the position [B, S] of each token: the number of real tokens before it in its row."""
    return jnp.cumsum(real, axis=1, dtype=jnp.int32) - real.astype(jnp.int32)


def places(architecture: Architecture, token: Array, real: Array, seen: Array | None) -> Array:
    """Return the positions that turn queries and keys: how many real tokens are before each in its row.

    With ``rope_sections`` (Qwen2-VL, arXiv 2409.12191), a picture of s x s tokens at position p takes s positions: its
    tokens have three, p, p + row, and p + column, and a token of text three equal ones.

    Args:
      architecture: of the parameters.
      token: ``[B, S]`` int32; the tokens of a picture are adjacent.
      real: ``[B, S]`` bool.
      seen: as in ``embed``.

    Returns:
      ``[B, S]`` int32, or ``[3, B, S]`` with ``rope_sections``.
    """
    a = architecture
    if not a.rope_sections:
        return positions(real)
    number = jnp.full(token.shape, -1, jnp.int32) if seen is None else _placed(a, token, seen)
    side, here = math.isqrt(a.vision.tokens), number >= 0
    first = positions(real & ~here) + side * (positions(here) // a.vision.tokens)
    row, column = (jnp.where(here, x, 0) for x in divmod(number % a.vision.tokens, side))
    return jnp.stack([first, first + row, first + column])


def shift(architecture: Architecture, token: Array, real: Array, seen: Array | None) -> Array:
    """Return how many fewer positions than tokens the rows [B, S] take, with the arguments of ``places``: [B]."""
    taken = 1 + jnp.max(jnp.where(real[None], places(architecture, token, real, seen), -1), axis=(0, 2))
    return jnp.sum(real, axis=1, dtype=jnp.int32) - taken


def rotation(architecture: Architecture, position: Array) -> tuple[Angles, Angles]:
    """Return cosine and sine of position * frequency in float32, of global layers and of local ones.

    Positions are ``[B, S]``, or ``[3, B, S]``, of which each of the ``rope_sections`` of frequencies reads its own.

    The frequencies are f_i = theta^(-2 i / K), of wavelengths w_i = 2 pi / f_i. They may be stretched: f_i / factor.
    With ``rope_original`` L, only wavelengths above L / low are stretched fully, and those below L / high are not:
    f_i ((1 - s) / factor + s). Between the two, s is linear in 1 / w_i, s = clip((L / w_i - low) / (high - low), 0, 1)
    (Llama 3.1, arXiv 2407.21783), or in i (YaRN, arXiv 2309.00071, which multiplies cosine and sine by ``rope_scale``).
    Local layers with a theta of their own are not stretched.
    """
    a = architecture
    exponent = -jnp.arange(0, a.head_size, 2, dtype=jnp.float32) / a.head_size
    base = a.rope_theta**exponent
    if position.ndim == 2:
        place = position.astype(jnp.float32)[:, :, None, None]
    else:
        streams = position.astype(jnp.float32)[np.repeat(np.arange(3), a.rope_sections)]
        place = jnp.moveaxis(streams, 0, 2)[:, :, None, :]
    kept = jnp.zeros_like(base)
    if a.rope_original and a.rope_rule == "llama3":
        kept = jnp.clip((a.rope_original * base / (2 * math.pi) - a.rope_low) / (a.rope_high - a.rope_low), 0, 1)
    elif a.rope_original:
        first, last = _ramp(a)
        kept = 1 - jnp.clip((jnp.arange(len(base), dtype=jnp.float32) - first) / (last - first), 0, 1)

    def angles(frequency: Array, scale: float = 1.0) -> Angles:
        angle = place * frequency[None, None, None, :]
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        return (cosine, sine) if scale == 1 else (scale * cosine, scale * sine)

    stretched = angles(base * ((1 - kept) / a.rope_factor + kept), a.rope_scale)
    return stretched, angles(a.rope_local_theta**exponent) if a.window and a.rope_local_theta else stretched


def _ramp(a: Architecture) -> tuple[float, float]:
    """Return the indices between which YaRN's ramp rises, of wavelengths L / high and L / low."""
    first, last = (
        a.head_size * math.log(a.rope_original / (2 * math.pi * turns)) / (2 * math.log(a.rope_theta))
        for turns in (a.rope_high, a.rope_low)
    )
    if a.rope_truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, a.head_size - 1)
    return first, last + 0.001 if first == last else last  # as in the reference code: no division by 0


def layer(
    architecture: Architecture,
    number: int,
    weights: Tree,
    x: Array,
    angles: tuple[Angles | None, Angles | None],
    mix: Callable[[attention.Form, Array, Array, Array], tuple[Array, Any]],
    layout: Layout,
    watch: Callable[[Array], None] | None = None,
) -> tuple[Array, Any]:
    """Apply one layer: add attention, then the gated layer, each of the normed stream, to the residual stream.

    Args:
      architecture: of the parameters.
      number: of a layer of the same kind, global or local.
      weights: of this layer.
      x: residual stream, ``[B, S, D]``.
      angles: from ``rotation``, of global and of local layers; None: queries and keys are not rotated.
      mix: attention, ``(form, query, key, value) -> (mixed, auxiliary)``: query and mixed ``[B, S, H, K]``, key and
        value ``[B, S, G, K]``.
      layout: how arrays are sharded over a mesh.
      watch: called with the input of the gated layer, ``[B, S, D]``; None: not called.

    Returns:
      The new residual stream ``[B, S, D]``, and the auxiliary result of ``mix``.
    """
    a, dtype, local = architecture, architecture.dtype, architecture.local(number)
    y: Any = _norm(a, x, weights, "attention_norm")
    query, key, value = (_heads(a, weights, name, y) for name in ("query", "key", "value"))
    turn = angles[local]
    query, key = ((z if turn is None else _rotate(z, *turn)).astype(dtype) for z in (query, key))
    query = layout(query, ("rows", "positions", "heads", None))
    mixed, auxiliary = mix(a.form(local), query, key, value.astype(dtype))
    out: Any = adapted(a, weights, "attention_output", mixed).astype(dtype)
    x = layout(x + (_norm(a, out, weights, "attention_post_norm") if a.post_norm else out), STREAM)
    y = _norm(a, x, weights, "swiglu_norm")
    if watch is not None:
        watch(y)
    out = gated.experts(a, weights, y, layout) if a.experts else _gated(a, weights, y, layout)
    return layout(x + (_norm(a, out, weights, "swiglu_post_norm") if a.post_norm else out), STREAM), auxiliary


def _heads(a: Architecture, weights: Tree, name: str, y: Array) -> Array:
    """Return query, key or value [B, S, heads, K] in float32, before the rotation."""
    z = adapted(a, weights, name, y)
    return _norm(a, z, weights, f"{name}_norm") if a.head_norm and name != "value" else z


def _gated(a: Architecture, weights: Tree, y: Array, layout: Layout) -> Array:
    """Return down(activation(gate(y)) * up(y)) [B, S, D], or down(activation(up(y))) without a gate."""
    inner: Any = adapted(a, weights, "up", y)
    inner = (
        gated.product(a.activation, adapted(a, weights, "gate", y), inner)
        if a.gated
        else gated.ACTIVATIONS[a.activation](inner)
    )
    inner = layout(inner.astype(a.dtype), ("rows", "positions", "hidden"))
    return adapted(a, weights, "down", inner).astype(a.dtype)


def adapted(a: Architecture, weights: Tree, name: str, x: Array) -> Array:
    """Return x W, plus scale (x A) B if the matrix has an adapter, plus b if it has a bias.

    Args:
      a: the architecture.
      weights: of one layer.
      name: of the matrix, one of ``architecture.MATRICES``.
      x: ``[..., in...]``.

    Returns:
      ``[..., out...]`` float32.
    """
    contracted = architectures.MATRICES[name][0]
    z = project(x, weights[name], a.dtype, contracted)
    if name in a.adapted:
        into, out = (weights[name + end] for end in architectures.ADAPTER)
        z += a.adapter_scale * project(project(x, into, a.dtype, contracted), out, a.dtype)
    return shifted(z, weights[f"{name}_bias"]) if name in a.bias else z


def shifted(x: Array, bias: Array) -> Array:
    """Return float32 ``x`` [..., out...] plus a bias [out...]."""
    wide: Any = precision.wide(bias)
    return x + wide.reshape((1,) * (x.ndim - wide.ndim) + wide.shape)


@jax.custom_vjp
def _matmul(x: Array, weight: Array) -> Array:
    return jnp.matmul(x, weight, preferred_element_type=jnp.float32)


def _matmul_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weight = saved
    gradient = gradient.astype(x.dtype)
    by_x = jnp.matmul(gradient, weight.T, preferred_element_type=jnp.float32).astype(x.dtype)
    by_weight = jnp.matmul(x.T, gradient, preferred_element_type=jnp.float32)
    return by_x, precision.rounded(by_weight, weight.dtype)


_matmul.defvjp(lambda x, weight: (_matmul(x, weight), (x, weight)), _matmul_backward)


class Int8(NamedTuple):
    """A matrix as integers [in..., out...] times a scale for each output [1..., out...]; for decoding only."""

    value: Array
    scale: Array


def project(x: Array, weight: Array | Int8, dtype: str, contracted: int = 1) -> Array:
    """Contract the last dimensions of ``x`` with the first of ``weight``.

    The product is one matmul of [tokens, in] and [in, out] with a custom gradient. JAX's rule would put the output's
    gradient on the left in the weight's gradient; XLA's CPU backend then fuses elementwise work into a strided
    transposition (95 ms in place of 8 ms at [13312, 384]).

    Args:
      x: ``[..., in...]``.
      weight: ``[in..., out...]``.
      dtype: of the operands.
      contracted: how many dimensions are contracted.

    Returns:
      ``[..., out...]`` float32.
    """
    if isinstance(weight, Int8):
        y = project(x, weight.value.astype(dtype), dtype, contracted)
        return y * weight.scale.reshape((1,) * (x.ndim - contracted) + weight.scale.shape[contracted:])
    lead, out = x.shape[: x.ndim - contracted], weight.shape[contracted:]
    inner = math.prod(weight.shape[:contracted])
    flat = _matmul(x.astype(dtype).reshape(-1, inner), weight.astype(dtype).reshape(inner, -1))
    return flat.reshape(*lead, *out)


def _norm(a: Architecture, x: Array, weights: Tree, name: str) -> Array:
    """Return x / sqrt(mean(x^2) + epsilon) * (offset + scale) over the last dimension, in x's dtype.

    The norm "layer" first subtracts the mean of x, and adds a bias.
    """
    scale = precision.wide(weights[name])
    scale = a.norm_offset + scale if a.norm_offset else scale
    if a.norm == "rms":
        return rms_norm(x, scale, a.norm_epsilon)
    wide = x.astype(jnp.float32)
    out: Any = rms_norm(wide - jnp.mean(wide, axis=-1, keepdims=True), scale, a.norm_epsilon)
    return shifted(out, weights[f"{name}_bias"]).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
    """Return x / sqrt(mean(x^2) + epsilon) * scale over the last dimension, in float32, cast back to x's dtype."""
    return _rms_norm_forward(x, scale, epsilon)[0]


def _normed(x: Array, epsilon: float) -> tuple[Array, Array]:
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon)
    return wide * inverse, inverse


def _rms_norm_forward(x: Array, scale: Array, epsilon: float) -> tuple[Array, tuple[Array, Array]]:
    out = _normed(x, epsilon)[0] * scale.reshape((1,) * (x.ndim - 1) + scale.shape)
    return out.astype(x.dtype), (x, scale)


def _rms_norm_backward(epsilon: float, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    # Saves x only: JAX's derivative would save and read four arrays of its size.
    x, scale = saved
    unit, inverse = _normed(x, epsilon)
    gradient = gradient.astype(jnp.float32)
    by_unit = gradient * scale.reshape((1,) * (x.ndim - 1) + scale.shape)
    by_x = inverse * (by_unit - unit * jnp.mean(by_unit * unit, axis=-1, keepdims=True))
    return by_x.astype(x.dtype), jnp.sum(gradient * unit, axis=tuple(range(x.ndim - 1)))


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


def _rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """Rotate the pairs (i, i + K / 2) of float32 ``x`` [B, S, heads, K] by their angles."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
