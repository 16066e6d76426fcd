"""Gated layers: the elementwise product, and mixtures of experts.

Dimension key, in addition to the key of ``types``: M tokens, E experts, F their hidden width, k experts of a token.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rljax.models.architectures import Architecture
from rljax.models.layouts import UNCONSTRAINED, Layout, Names
from rljax.types import Array, Tree


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(activation: str, gate: Array, up: Array) -> Array:
    """Return activation(gate) * up; the backward pass saves ``gate`` and ``up`` only.

    Args:
      activation: "silu", or "gelu" (the tanh approximation).
      gate: ``[..., F]``.
      up: ``[..., F]``.

    Returns:
      ``[..., F]``.
    """
    return ACTIVATIONS[activation](gate) * up


ACTIVATIONS: dict[str, Any] = {"silu": jax.nn.silu, "gelu": functools.partial(jax.nn.gelu, approximate=True)}


def _backward(activation: str, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    # Recomputed from gate and up: without a custom rule JAX would save the intermediate values too.
    gate, up = saved
    value, slope = jax.jvp(ACTIVATIONS[activation], (gate,), (jnp.ones_like(gate),))
    return gradient * up * slope, gradient * value


product.defvjp(lambda activation, gate, up: (product(activation, gate, up), (gate, up)), _backward)


def route(architecture: Architecture, router: Array, y: Array) -> tuple[Array, Array, Array]:
    """Choose the experts of each token.

    Args:
      architecture: its ``experts_per_token`` is k.
      router: ``[D, E]``.
      y: tokens, ``[M, D]``.

    Returns:
      Probabilities of all experts ``[M, E]`` (float32 softmax); the k most probable ``[M, k]`` int32 (the lower index
      among equals); their weights ``[M, k]`` float32: the probability, divided by their sum with ``normalise_experts``.
    """
    a = architecture
    logits = jnp.matmul(y.astype(a.dtype), router.astype(a.dtype), preferred_element_type=jnp.float32)
    prob = jax.nn.softmax(logits, axis=-1)
    weight, chosen = jax.lax.top_k(prob, a.experts_per_token)
    if a.normalise_experts:
        weight /= jnp.sum(weight, axis=-1, keepdims=True)
    return prob, chosen, weight


def experts(architecture: Architecture, weights: Tree, y: Array, layout: Layout = UNCONSTRAINED) -> Array:
    """Return the sum over a token's experts of weight * down(activation(gate(y)) * up(y)).

    No token is dropped. Each device sorts its tokens by expert, so that each expert multiplies contiguous rows. Where
    a mesh splits the experts, the devices that share them gather each other's tokens, multiply the tokens of their
    experts, and reduce-scatter the sums. A token without an expert on a device uses memory on it, but no FLOPs.

    Args:
      architecture: with ``experts`` above 0.
      weights: of one layer: ``router`` ``[D, E]``, ``gate`` and ``up`` ``[E, D, F]``, ``down`` ``[E, F, D]``.
      y: ``[B, S, D]``.
      layout: how the arrays are sharded over a mesh.

    Returns:
      ``[B, S, D]`` in y's dtype.
    """
    a = architecture
    stream: Names = ("rows", "positions", None)
    into, out = ("expert", None, "hidden"), ("expert", "hidden", None)
    gate = weights["gate"]
    holders, _, slices = layout.split(gate.shape, into)  # mesh axes over experts, and over hidden units
    gathered = [axis for dimension in layout.split(y.shape, stream) for axis in dimension if axis in holders]

    def shard(y: Array, router: Array, gate: Array, up: Array, down: Array) -> Array:
        for axis in gathered:
            y = jax.lax.all_gather(y, axis, tiled=True)
        first = jax.lax.axis_index(tuple(holders)) * gate.shape[0] if holders else 0
        z = _held_experts(a, router, (gate, up, down), y, first)
        z = jax.lax.psum(z, (*slices, *(axis for axis in holders if axis not in gathered)))
        for axis in reversed(gathered):
            z = jax.lax.psum_scatter(z, axis, tiled=True)
        return z.astype(y.dtype)

    cast = (weights[name].astype(a.dtype) for name in ("gate", "up", "down"))
    run = layout.apart(shard, [stream, (None, None), into, into, out], stream)
    return run(y, weights["router"], *cast)


def _held_experts(a: Architecture, router: Array, weights: tuple[Array, ...], y: Array, first: Array | int) -> Array:
    """Return the float32 sum over the experts in ``weights``, from number ``first``, of tokens [B, S, D]."""
    flat, count = y.reshape(-1, y.shape[-1]), weights[0].shape[0]
    _, chosen, weight = route(a, router, flat)
    expert = chosen.reshape(-1) - first
    expert = jnp.where((expert >= 0) & (expert < count), expert, count)  # experts of other devices sort last
    order = jnp.argsort(expert, stable=True)  # [M k]
    token = order // a.experts_per_token
    sizes = jnp.bincount(expert, length=count).astype(jnp.int32)

    def multiply(x: Array, matrix: Array) -> Array:
        return jax.lax.ragged_dot(x.astype(a.dtype), matrix, sizes, preferred_element_type=jnp.float32)

    gate, up, down = weights
    rows = flat[token]
    inner: Any = product(a.activation, multiply(rows, gate), multiply(rows, up))
    share = jnp.where(expert < count, weight.reshape(-1), 0.0)[order]
    out = jnp.where(share[:, None] > 0, multiply(inner, down), 0.0) * share[:, None]
    return jnp.zeros(flat.shape, jnp.float32).at[token].add(out).reshape(y.shape)


def balance(architecture: Architecture, router: Array, y: Array, mask: Array) -> dict[str, Array]:
    """Measure how evenly tokens use the experts of one layer.

    With f_e the fraction of choices that fall on expert e and p_e its mean probability: ``loss`` is E sum_e f_e p_e,
    1 when both are uniform (Switch Transformer, arXiv 2101.03961, equation 4); ``fullest`` is E max_e f_e; ``unused``
    is the fraction of experts that no token chose.

    Args:
      architecture: with ``experts`` above 0.
      router: ``[D, E]``.
      y: ``[B, S, D]``.
      mask: ``[B, S]``, nonzero on real tokens.

    Returns:
      {"loss", "fullest", "unused"}, float32 scalars.
    """
    a, real = architecture, (mask.reshape(-1) != 0).astype(jnp.float32)
    prob, chosen, _ = route(a, router, y.reshape(-1, y.shape[-1]))
    total = jnp.maximum(jnp.sum(real), 1.0)
    share = jnp.zeros((a.experts,)).at[chosen].add(jnp.broadcast_to(real[:, None], chosen.shape))
    share /= total * a.experts_per_token
    mean = jnp.sum(prob * real[:, None], axis=0) / total
    loss, fullest = a.experts * jnp.sum(share * mean), a.experts * jnp.max(share)
    return {"loss": loss, "fullest": fullest, "unused": jnp.mean((share == 0) * 1.0)}
