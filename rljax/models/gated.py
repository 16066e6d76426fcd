"""Gated layers: the elementwise product, and many of them behind a router.

Dimension key beside that of ``types``: M tokens, E experts, F their width, k experts that a token takes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rljax.models.architecture import Architecture
from rljax.models.layouts import WHOLE, Layout, Names
from rljax.types import Array, Tree


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(activation: str, gate: Array, up: Array) -> Array:
    """Return silu(gate) * up, or gelu(gate) * up (tanh form)."""
    return _ACTIVATIONS[activation](gate) * up


_ACTIVATIONS: dict[str, Any] = {"silu": jax.nn.silu, "gelu": functools.partial(jax.nn.gelu, approximate=True)}


def _backward(activation: str, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    # From gate and up alone: jax would keep what lies between as well.
    gate, up = saved
    value, slope = jax.jvp(_ACTIVATIONS[activation], (gate,), (jnp.ones_like(gate),))
    return gradient * up * slope, gradient * value


product.defvjp(lambda activation, gate, up: (product(activation, gate, up), (gate, up)), _backward)


def route(architecture: Architecture, router: Array, y: Array) -> tuple[Array, Array, Array]:
    """Choose experts for tokens [M, D].

    Returns:
      probabilities [M, E] of all experts (float32 softmax), the k chosen [M, k] int32 (ties to the lower), and what
      each counts for [M, k] float32: its probability, over their sum with ``normalise_experts``.
    """
    a = architecture
    logits = jnp.matmul(y.astype(a.dtype), router.astype(a.dtype), preferred_element_type=jnp.float32)
    prob = jax.nn.softmax(logits, axis=-1)
    weight, chosen = jax.lax.top_k(prob, a.experts_per_token)
    if a.normalise_experts:
        weight /= jnp.sum(weight, axis=-1, keepdims=True)
    return prob, chosen, weight


def experts(architecture: Architecture, weights: Tree, y: Array, layout: Layout = WHOLE) -> Array:
    """Return sum over a token's experts of weight * down(activation(gate(y)) * up(y)), [B, S, D].

    No token is dropped. Each device sorts its tokens by expert, so that an expert multiplies its own run of them. Where
    a mesh splits the experts, devices that hold different ones first gather each other's tokens, each multiplies those
    of its own experts, and the sums go home; a token whose experts are elsewhere costs its place, not its product.
    """
    a = architecture
    stream: Names = ("rows", "positions", None)
    into, out = ("expert", None, "hidden"), ("expert", "hidden", None)
    gate = weights["gate"]
    holders, _, slices = layout.split(gate.shape, into)  # mesh axes of the experts, and of their hidden units
    fetched = [axis for dimension in layout.split(y.shape, stream) for axis in dimension if axis in holders]

    def own(y: Array, router: Array, gate: Array, up: Array, down: Array) -> Array:
        for axis in fetched:
            y = jax.lax.all_gather(y, axis, tiled=True)
        first = jax.lax.axis_index(tuple(holders)) * gate.shape[0] if holders else 0
        z = _own_experts(a, router, (gate, up, down), y, first)
        z = jax.lax.psum(z, (*slices, *(axis for axis in holders if axis not in fetched)))
        for axis in reversed(fetched):
            z = jax.lax.psum_scatter(z, axis, tiled=True)
        return z.astype(y.dtype)

    cast = (weights[name].astype(a.dtype) for name in ("gate", "up", "down"))
    run = layout.apart(own, [stream, (None, None), into, into, out], stream)
    return run(y, weights["router"], *cast)


def _own_experts(a: Architecture, router: Array, weights: tuple[Array, ...], y: Array, first: Array | int) -> Array:
    """Return what the experts ``first`` and on, whose ``weights`` are given, add to tokens [B, S, D]; float32."""
    flat, here = y.reshape(-1, y.shape[-1]), weights[0].shape[0]
    _, chosen, weight = route(a, router, flat)
    mine = chosen.reshape(-1) - first
    mine = jnp.where((mine >= 0) & (mine < here), mine, here)  # the others stand behind
    order = jnp.argsort(mine, stable=True)  # [M k]
    token = order // a.experts_per_token
    counts = jnp.bincount(mine, length=here).astype(jnp.int32)

    def multiply(x: Array, matrix: Array) -> Array:
        return jax.lax.ragged_dot(x.astype(a.dtype), matrix, counts, preferred_element_type=jnp.float32)

    gate, up, down = weights
    rows = flat[token]
    inner: Any = product(a.activation, multiply(rows, gate), multiply(rows, up))
    share = jnp.where(mine < here, weight.reshape(-1), 0.0)[order]
    out = jnp.where(share[:, None] > 0, multiply(inner, down), 0.0) * share[:, None]
    return jnp.zeros(flat.shape, jnp.float32).at[token].add(out).reshape(y.shape)


def balance(architecture: Architecture, router: Array, y: Array, mask: Array) -> dict[str, Array]:
    """Describe how evenly tokens [B, S, D], real where ``mask`` [B, S], use the experts of one layer.

    ``loss`` E sum_e f_e p_e, f_e the share of choices and p_e the mean probability of expert e: 1 when both are even
    (Switch Transformer, arXiv 2101.03961, equation 4); ``fullest`` E max_e f_e; ``unused`` the share of experts with
    no token.
    """
    a, real = architecture, (mask.reshape(-1) != 0).astype(jnp.float32)
    prob, chosen, _ = route(a, router, y.reshape(-1, y.shape[-1]))
    total = jnp.maximum(jnp.sum(real), 1.0)
    share = jnp.zeros((a.experts,)).at[chosen].add(jnp.broadcast_to(real[:, None], chosen.shape))
    share /= total * a.experts_per_token
    mean = jnp.sum(prob * real[:, None], axis=0) / total
    return {
        "loss": a.experts * jnp.sum(share * mean),
        "fullest": a.experts * jnp.max(share),
        "unused": jnp.mean((share == 0) * 1.0),
    }
