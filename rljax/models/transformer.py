"""One decoder-only transformer: RMSNorm before each block, rotary positions, grouped-query attention, SwiGLU.

Dimension key beside that of ``types``: F hidden width of the SwiGLU block, G key-value heads, P prompts, W positions
of a row that shares one. Pure functions over plain dictionaries; attention alone knows which position sees which.
Decoding stands in ``cache.py``.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.models import attention
from rljax.models.architecture import Architecture, Names
from rljax.types import Array, Tree

Constrain = Callable[[Array, Names], Array]
Mix = Callable[[Array, Array, Array], Array]  # query [B, S, H, K], key, value [B, S, G, K] -> [B, S, H, K]

_STREAM: Names = ("rows", "positions", None)


def unconstrained(array: Array, names: Names) -> Array:
    """Return ``array`` as it is: the layout of a model that knows of no mesh."""
    del names
    return array


def apply(
    architecture: Architecture, params: Tree, token: Array, mask: Array, constrain: Constrain = unconstrained
) -> Array:
    """Read whole rows; see ``models.Model.apply``."""
    if token.ndim != 2 or token.shape != mask.shape:
        raise ValueError(f"token {token.shape} and mask {mask.shape} must share one shape [B, S]")
    real = mask != 0

    def mix(query: Array, key: Array, value: Array) -> Array:
        return attention.attend(architecture.attention, query, key, value, real.astype(jnp.int32))

    return _trunk(architecture, params, token, places(real), mix, constrain)


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
    constrain: Constrain = unconstrained,
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

    # One stream for each prompt, [prompt | its rows]: a mesh that splits prompts has nothing to move.
    def mix(query: Array, key: Array, value: Array) -> Array:
        q, k, v = (x[:, :length] for x in (query, key, value))
        first = attention.attend(architecture.attention, q, k, v, real.astype(jnp.int32))
        shared = attention.Prompt(k, v, real)
        q, k, v = (x[:, length:].reshape(rows, width, *x.shape[2:]) for x in (query, key, value))
        second = attention.attend(architecture.attention, q, k, v, segment, shared)
        return jnp.concatenate([first, second.reshape(prompts, -1, *second.shape[2:])], axis=1)

    whole = jnp.concatenate([prompt, token.reshape(prompts, -1)], axis=1)
    x = _trunk(architecture, params, whole, jnp.concatenate([places(real), own], axis=1), mix, constrain)
    return x[:, :length], x[:, length:].reshape(rows, width, -1)


def _trunk(
    architecture: Architecture, params: Tree, token: Array, position: Array, mix: Mix, constrain: Constrain
) -> Array:
    """Return hidden [B, S, D] after the final norm of tokens [B, S], whose attention is ``mix``'s business."""
    a = architecture
    angles = rotation(a, position)

    def block(x: Array, weights: Tree) -> tuple[Array, None]:
        def mixed(query: Array, key: Array, value: Array) -> tuple[Array, None]:
            return mix(query, key, value), None

        return layer(a, weights, x, angles, mixed, constrain)

    if a.remat != "none":
        block = jax.checkpoint(block, prevent_cse=not a.scan, policy=_SAVED[a.remat])
    x = constrain(embed(a, params, token), _STREAM)
    if a.scan:
        x, _ = jax.lax.scan(block, x, params["layers"])
    else:
        for weights in unstacked(a, params["layers"]):
            x, _ = block(x, weights)
    return final(a, params, x)


def unstacked(architecture: Architecture, layers: Tree) -> list[Tree]:
    """Return the parameters of each layer."""
    return [jax.tree.map(lambda w, i=i: w[i], layers) for i in range(architecture.layers)]


def embed(architecture: Architecture, params: Tree, token: Array) -> Array:
    """Return the embedding [B, S, D] of tokens [B, S]; padding may hold any id."""
    return jnp.take(params["embedding"], token, axis=0, mode="clip").astype(architecture.dtype)


def final(architecture: Architecture, params: Tree, x: Array) -> Array:
    """Return the final norm of the residual stream."""
    return _rms_norm(x, params["final_norm"], architecture.norm_epsilon)


def rotation(architecture: Architecture, position: Array) -> tuple[Array, Array]:
    """Return cosine and sine [B, S, 1, K / 2] of position * theta^(-2 i / K), in float32."""
    size = architecture.size
    frequency = architecture.rope_theta ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angle = position.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def layer(
    architecture: Architecture,
    weights: Tree,
    x: Array,
    angles: tuple[Array, Array],
    mix: Callable[[Array, Array, Array], tuple[Array, Any]],
    constrain: Constrain,
) -> tuple[Array, Any]:
    """Add attention and SwiGLU of the normed stream to ``x`` [B, S, D]; return it and what ``mix`` returned beside."""
    a, dtype = architecture, architecture.dtype
    y: Any = _rms_norm(x, weights["attention_norm"], a.norm_epsilon)
    query = _rotate(project(y, weights["query"], dtype), *angles).astype(dtype)
    key = _rotate(project(y, weights["key"], dtype), *angles).astype(dtype)
    value = project(y, weights["value"], dtype).astype(dtype)
    query = constrain(query, ("rows", "positions", "heads", None))
    mixed, beside = mix(query, key, value)
    x = constrain(x + project(mixed, weights["attention_output"], dtype, contracted=2).astype(dtype), _STREAM)
    y = _rms_norm(x, weights["swiglu_norm"], a.norm_epsilon)
    inner: Any = _swiglu(project(y, weights["gate"], dtype), project(y, weights["up"], dtype))
    inner = constrain(inner.astype(dtype), ("rows", "positions", "hidden"))
    return constrain(x + project(inner, weights["down"], dtype).astype(dtype), _STREAM), beside


def logits(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return the unembedding of ``hidden`` [..., D] as float32 [..., V]."""
    return project(hidden, unembedding(architecture, params), architecture.dtype)


def unembedding(architecture: Architecture, params: Tree) -> Array:
    """Return the matrix [D, V] from hidden states to logits."""
    if architecture.output != "logits":
        raise ValueError(f"logits need output='logits'; this model has output={architecture.output!r}")
    return params["embedding"].T if architecture.tied else params["unembedding"]


def scalar(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return one float32 number for each ``hidden`` [..., D]; 0 everywhere at initialisation."""
    if architecture.output != "scalar":
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


def project(x: Array, weight: Array, dtype: str, contracted: int = 1) -> Array:
    """Multiply the last ``contracted`` dimensions of ``x`` into the first of ``weight``, in ``dtype``; float32 out.

    Everything goes through one matrix product of [tokens, in] and [in, out] with a gradient of its own:
    jax's would put the output's gradient first in the weight's, and XLA's CPU backend then fuses the elementwise
    work behind it into a transposition that walks memory across the grain (95 ms for 8 at [13312, 384]).
    """
    lead, out = x.shape[: x.ndim - contracted], weight.shape[contracted:]
    inner = math.prod(weight.shape[:contracted])
    flat = _matmul(x.astype(dtype).reshape(-1, inner), weight.astype(dtype).reshape(inner, -1))
    return flat.reshape(*lead, *out)


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


@jax.custom_vjp
def _swiglu(gate: Array, up: Array) -> Array:
    """Return silu(gate) * up."""
    return jax.nn.silu(gate) * up


def _swiglu_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    gate, up = saved
    sigmoid = jax.nn.sigmoid(gate)
    silu = gate * sigmoid
    return gradient * up * (sigmoid + silu * (1 - sigmoid)), gradient * silu


_swiglu.defvjp(lambda gate, up: (_swiglu(gate, up), (gate, up)), _swiglu_backward)


def _rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """Turn the pairs (i, i + K / 2) of float32 ``x`` [B, S, heads, K] by their angle."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


_SAVED: dict[str, Any] = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
