"""One decoder-only transformer: RMSNorm before each block, rotary positions, grouped-query attention, gated layers.

What the public families do differently is a field of ``Architecture``. Dimension key beside that of ``types``: F hidden
width of the gated layer, G key-value heads, P prompts, W positions of a row that shares one. Pure functions over plain
dictionaries; attention alone knows which position sees which. Decoding stands in ``cache.py``.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.models import architecture as architectures
from rljax.models import attention, gated
from rljax.models.architecture import Architecture
from rljax.models.layouts import WHOLE, Layout, Names
from rljax.types import Array, Tree

Angles = tuple[Array, Array]  # cosine and sine [B, S, 1, K / 2]
# form, query [B, S, H, K], key, value [B, S, G, K] -> [B, S, H, K]
Mix = Callable[[attention.Form, Array, Array, Array], Array]

_STREAM: Names = ("rows", "positions", None)


def apply(architecture: Architecture, params: Tree, token: Array, mask: Array, layout: Layout = WHOLE) -> Array:
    """Read whole rows; see ``models.Model.apply``."""
    if token.ndim != 2 or token.shape != mask.shape:
        raise ValueError(f"token {token.shape} and mask {mask.shape} must share one shape [B, S]")
    rows = whole(mask)

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> Array:
        return attention.attend(architecture.attention, form, query, key, value, rows, layout=layout)

    return _trunk(architecture, params, token, rows.position, mix, layout)


def whole(mask: Array) -> attention.Rows:
    """Return who sees whom in rows [B, S] that are read from their start, real where ``mask`` is not 0."""
    return attention.Rows((mask != 0).astype(jnp.int32), places(mask != 0))


def places(real: Array) -> Array:
    """Return the position [B, S] of each token: how many real ones stand before it in its row."""
    return jnp.cumsum(real, axis=1, dtype=jnp.int32) - real.astype(jnp.int32)


def apply_shared(
    architecture: Architecture,
    params: Tree,
    prompt: Array,
    prompt_mask: Array,
    token: Array,
    segment: Array,
    layout: Layout = WHOLE,
) -> tuple[Array, Array]:
    """Read rows that share prompts; see ``models.Model.apply_shared``."""
    (prompts, length), (rows, width) = prompt.shape, token.shape
    if rows % prompts or token.shape != segment.shape or prompt.shape != prompt_mask.shape:
        raise ValueError(
            f"token {token.shape} and segment {segment.shape} must share one shape [B, W], prompt {prompt.shape} and "
            f"its mask {prompt_mask.shape} another [P, L], and P divide B"
        )
    real = prompt_mask != 0
    column = jnp.arange(width, dtype=jnp.int32)[None, :]
    fresh = jnp.concatenate([jnp.ones_like(segment[:, :1], bool), segment[:, 1:] != segment[:, :-1]], axis=1)
    own = column - jax.lax.cummax(jnp.where(fresh, column, 0), axis=1)  # places since the segment began
    own = own.reshape(prompts, -1) + jnp.sum(real, axis=1, keepdims=True, dtype=jnp.int32)
    ahead = whole(prompt_mask)
    behind = attention.Rows(segment, own.reshape(rows, width))
    attend = functools.partial(attention.attend, architecture.attention, layout=layout)

    # One stream for each prompt, [prompt | its rows]: a mesh that splits prompts has nothing to move.
    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> Array:
        q, k, v = (x[:, :length] for x in (query, key, value))
        first = attend(form, q, k, v, ahead)
        shared = attention.Prompt(k, v, real, ahead.position)
        q, k, v = (x[:, length:].reshape(rows, width, *x.shape[2:]) for x in (query, key, value))
        second = attend(form, q, k, v, behind, shared)
        return jnp.concatenate([first, second.reshape(prompts, -1, *second.shape[2:])], axis=1)

    stream = jnp.concatenate([prompt, token.reshape(prompts, -1)], axis=1)
    x = _trunk(architecture, params, stream, jnp.concatenate([ahead.position, own], axis=1), mix, layout)
    return x[:, :length], x[:, length:].reshape(rows, width, -1)


def _trunk(architecture: Architecture, params: Tree, token: Array, position: Array, mix: Mix, layout: Layout) -> Array:
    """Return hidden [B, S, D] after the final norm of tokens [B, S], whose attention is ``mix``'s business."""
    a = architecture
    angles = rotation(a, position)

    def mixed(*operands: Any) -> tuple[Array, None]:
        return mix(*operands), None

    def block(x: Array, number: int, weights: Tree) -> tuple[Array, None]:
        return layer(a, number, weights, x, angles, mixed, layout)

    if a.remat != "none":
        block = jax.checkpoint(block, prevent_cse=not a.scan, policy=_SAVED[a.remat], static_argnums=1)
    x, _ = each(a, block, layout(embed(a, params, token), _STREAM), params["layers"])
    return final(a, params, x)


def each(a: Architecture, apply: Any, x: Array, layers: Tree) -> tuple[Array, Any]:
    """Apply layers in their order: ``apply(x, number, weights) -> (x, beside)``.

    Returns x after the last and what all said beside: stacked with ``scan``, else a tuple. In a loop a turn is a whole
    pattern, so that each layer knows what it is: its ``number`` is then that of the first of its kind.
    """
    beside: list[Any] = []
    if not a.scan:
        for i, weights in enumerate(layers if isinstance(layers, list) else unstacked(a, layers)):
            x, said = apply(x, i, weights)
            beside.append(said)
        return x, tuple(beside)
    period = len(a.pattern)
    looped = a.layers // period * period

    def turn(x: Array, stack: Tree) -> tuple[Array, Any]:
        said = [None] * period
        for i in range(period):
            x, said[i] = apply(x, i, nth(stack, i))
        return x, jax.tree.map(lambda *y: jnp.stack(y), *said)

    if looped:
        cut = lambda w: w[:looped].reshape(looped // period, period, *w.shape[1:])  # noqa: E731
        x, said = jax.lax.scan(turn, x, jax.tree.map(cut, layers))
        beside.append(jax.tree.map(lambda y: y.reshape(looped, *y.shape[2:]), said))
    for i in range(looped, a.layers):
        x, said = apply(x, i, nth(layers, i))
        beside.append(jax.tree.map(lambda y: y[None], said))
    return x, jax.tree.map(lambda *y: jnp.concatenate(y), *beside)


def balance(
    architecture: Architecture, params: Tree, token: Array, mask: Array, layout: Layout = WHOLE
) -> dict[str, Array]:
    """Describe how evenly rows use the experts; see ``models.Model.balance``."""
    a, rows = architecture, whole(mask)
    angles = rotation(a, rows.position)

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, None]:
        return attention.attend(a.attention, form, query, key, value, rows, layout=layout), None

    def block(x: Array, number: int, weights: Tree) -> tuple[Array, Any]:
        found: list[Any] = []
        watch = lambda y: found.append(gated.balance(a, weights["router"], y, mask))  # noqa: E731
        return layer(a, number, weights, x, angles, mix, layout, watch)[0], found[0]

    _, found = each(a, block, layout(embed(a, params, token), _STREAM), params["layers"])
    return jax.tree.map(jnp.mean, found if a.scan else jax.tree.map(lambda *x: jnp.stack(x), *found))


def unstacked(architecture: Architecture, layers: Tree) -> list[Tree]:
    """Return the parameters of each layer."""
    return [nth(layers, i) for i in range(architecture.layers)]


def nth(stack: Tree, i: int) -> Tree:
    """Return layer ``i`` of what is stacked."""
    return jax.tree.map(lambda w: w[i], stack)


def embed(architecture: Architecture, params: Tree, token: Array) -> Array:
    """Return the embedding [B, S, D] of tokens [B, S]; padding may hold any id."""
    x = jnp.take(params["embedding"], token, axis=0, mode="clip").astype(architecture.dtype)
    return x if architecture.embedding_scale == 1 else x * jnp.asarray(architecture.embedding_scale, x.dtype)


def final(architecture: Architecture, params: Tree, x: Array) -> Array:
    """Return the final norm of the residual stream."""
    return _norm(architecture, x, params["final_norm"])


def rotation(architecture: Architecture, position: Array) -> tuple[Angles, Angles]:
    """Return cosine and sine of position * frequency in float32, for global layers and for local ones.

    Frequencies are f_i = theta^(-2 i / K). Global layers may stretch positions: f_i / factor; or, with
    ``rope_original`` L, only those of wavelength w_i = 2 pi / f_i above L / low, with a ramp between:
    f_i ((1 - s) / factor + s), s = clip((L / w_i - low) / (high - low), 0, 1) (Llama 3.1, arXiv 2407.21783).
    """
    a = architecture
    exponent = -jnp.arange(0, a.head_size, 2, dtype=jnp.float32) / a.head_size
    whole = a.rope_theta**exponent
    stay = jnp.zeros_like(whole)
    if a.rope_original:
        stay = jnp.clip((a.rope_original * whole / (2 * math.pi) - a.rope_low) / (a.rope_high - a.rope_low), 0, 1)

    def turned(frequency: Array) -> Angles:
        angle = position.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
        return jnp.cos(angle), jnp.sin(angle)

    apart = turned(whole * ((1 - stay) / a.rope_factor + stay))
    return apart, turned((a.rope_local_theta or a.rope_theta) ** exponent) if a.window else apart


def layer(
    architecture: Architecture,
    number: int,
    weights: Tree,
    x: Array,
    angles: tuple[Angles, Angles],
    mix: Callable[[attention.Form, Array, Array, Array], tuple[Array, Any]],
    layout: Layout,
    watch: Callable[[Array], None] | None = None,
) -> tuple[Array, Any]:
    """Add attention and gated layer of the normed stream to ``x`` [B, S, D]; return it and what ``mix`` says beside.

    ``watch`` is shown what the gated layer reads.
    """
    a, dtype, local = architecture, architecture.dtype, architecture.local(number)
    y: Any = _norm(a, x, weights["attention_norm"])
    query, key, value = (_heads(a, weights, name, y) for name in ("query", "key", "value"))
    query, key = (_rotate(z, *angles[local]).astype(dtype) for z in (query, key))
    query = layout(query, ("rows", "positions", "heads", None))
    mixed, beside = mix(a.form(local), query, key, value.astype(dtype))
    out: Any = adapted(a, weights, "attention_output", mixed).astype(dtype)
    x = layout(x + (_norm(a, out, weights["attention_post_norm"]) if a.post_norm else out), _STREAM)
    y = _norm(a, x, weights["swiglu_norm"])
    if watch is not None:
        watch(y)
    out = gated.experts(a, weights, y, layout) if a.experts else _gated(a, weights, y, layout)
    return layout(x + (_norm(a, out, weights["swiglu_post_norm"]) if a.post_norm else out), _STREAM), beside


def _heads(a: Architecture, weights: Tree, name: str, y: Array) -> Array:
    """Return query, key or value [B, S, heads, K] in float32, not yet rotated."""
    z = adapted(a, weights, name, y)
    if a.bias:
        z += weights[f"{name}_bias"].astype(jnp.float32)[None, None]
    return _norm(a, z, weights[f"{name}_norm"]) if a.head_norm and name != "value" else z


def _gated(a: Architecture, weights: Tree, y: Array, layout: Layout) -> Array:
    """Return down(activation(gate(y)) * up(y)) [B, S, D]."""
    inner: Any = gated.product(a.activation, *(adapted(a, weights, name, y) for name in ("gate", "up")))
    inner = layout(inner.astype(a.dtype), ("rows", "positions", "hidden"))
    return adapted(a, weights, "down", inner).astype(a.dtype)


def adapted(a: Architecture, weights: Tree, name: str, x: Array) -> Array:
    """Return x W, or x W + scale (x A) B where the matrix has an adapter; float32."""
    contracted = architectures.MATRICES[name][0]
    z = project(x, weights[name], a.dtype, contracted)
    if name not in a.adapted:
        return z
    into, out = (weights[name + end] for end in architectures.ADAPTER)
    return z + a.adapter_scale * project(project(x, into, a.dtype, contracted), out, a.dtype)


def logits(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return the unembedding of ``hidden`` [..., D] as float32 [..., V]."""
    z = project(hidden, unembedding(architecture, params), architecture.dtype)
    return attention.capped(z, architecture.logit_cap)


def unembedding(architecture: Architecture, params: Tree) -> Array:
    """Return the matrix [D, V] from hidden states to logits."""
    if architecture.output == "scalar":
        raise ValueError(f"logits need output='logits'; this model has output={architecture.output!r}")
    return params["embedding"].T if architecture.tied else params["unembedding"]


def scalar(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return one float32 number for each ``hidden`` [..., D]; 0 everywhere at initialisation."""
    if architecture.output == "logits":
        raise ValueError(f"a scalar needs output='scalar'; this model has output={architecture.output!r}")
    dtype = architecture.dtype
    operands = hidden.astype(dtype), params["scalar"].astype(dtype)
    return jnp.einsum("...d,d->...", *operands, preferred_element_type=jnp.float32)


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


class Int8(NamedTuple):
    """A matrix as whole numbers [in..., out...] times a scale for each output [1..., out...]; for decoding only."""

    value: Array
    scale: Array


def project(x: Array, weight: Array | Int8, dtype: str, contracted: int = 1) -> Array:
    """Multiply the last ``contracted`` dimensions of ``x`` into the first of ``weight``, in ``dtype``; float32 out.

    Everything goes through one matrix product of [tokens, in] and [in, out] with a gradient of its own:
    jax's would put the output's gradient first in the weight's, and XLA's CPU backend then fuses the elementwise
    work behind it into a transposition that walks memory across the grain (95 ms for 8 at [13312, 384]).
    """
    if isinstance(weight, Int8):
        y = project(x, weight.value.astype(dtype), dtype, contracted)
        return y * weight.scale.reshape((1,) * (x.ndim - contracted) + weight.scale.shape[contracted:])
    lead, out = x.shape[: x.ndim - contracted], weight.shape[contracted:]
    inner = math.prod(weight.shape[:contracted])
    flat = _matmul(x.astype(dtype).reshape(-1, inner), weight.astype(dtype).reshape(inner, -1))
    return flat.reshape(*lead, *out)


def _norm(a: Architecture, x: Array, scale: Array) -> Array:
    """Return x / sqrt(mean(x^2) + epsilon) * (offset + scale) over the last dimension, in x's dtype."""
    wide = scale.astype(jnp.float32)
    return _rms_norm(x, a.norm_offset + wide if a.norm_offset else wide, a.norm_epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
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
    # Keeps x alone: jax's own derivative would keep and read four arrays of its size.
    x, scale = saved
    unit, inverse = _normed(x, epsilon)
    gradient = gradient.astype(jnp.float32)
    by_unit = gradient * scale.reshape((1,) * (x.ndim - 1) + scale.shape)
    by_x = inverse * (by_unit - unit * jnp.mean(by_unit * unit, axis=-1, keepdims=True))
    return by_x.astype(x.dtype), jnp.sum(gradient * unit, axis=tuple(range(x.ndim - 1)))


_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


def _rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """Turn the pairs (i, i + K / 2) of float32 ``x`` [B, S, heads, K] by their angle."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


_SAVED: dict[str, Any] = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
