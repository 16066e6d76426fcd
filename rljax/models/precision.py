"""Gradients of parameters in a narrow type: summed in float32 over tokens and devices, rounded once."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax.types import Array


def is_vector(path: Any) -> bool:
    """Return whether the path of a leaf names a norm's scale or a bias, which are applied in float32."""
    return path[-1].key.endswith(("norm", "bias"))


def rounded(x: Array, dtype: jax.typing.DTypeLike) -> Array:
    """Return float32 ``x`` in ``dtype``, rounded after the sums over devices that compute it.

    With ``astype`` alone, XLA may round the part of each device and add the parts in ``dtype``.
    """
    if dtype == x.dtype:
        return x
    info = jnp.finfo(dtype)
    return jax.lax.reduce_precision(x, info.nexp, info.nmant).astype(dtype)


@jax.custom_vjp
def wide(parameter: Array) -> Array:
    """Return the parameter in float32; its gradient is ``rounded``."""
    return parameter.astype(jnp.float32)


wide.defvjp(lambda parameter: (wide(parameter), parameter), lambda saved, gradient: (rounded(gradient, saved.dtype),))


def _rows(embedding: Array, token: Array) -> Array:
    return jnp.take(embedding, token, axis=0, mode="clip")


@jax.custom_vjp
def lookup(embedding: Array, token: Array) -> Array:
    """Return the rows of ``embedding`` [V, D] with the ids ``token`` [...], clipped: [..., D] float32.

    The gradients of all reads of a row are summed in float32, then ``rounded``.
    """
    return _rows(embedding, token).astype(jnp.float32)


def _lookup_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    embedding, token = saved
    like = jax.ShapeDtypeStruct(embedding.shape, jnp.float32)
    (by_embedding,) = jax.linear_transpose(lambda embedding: _rows(embedding, token), like)(gradient)
    return rounded(by_embedding, embedding.dtype), None


lookup.defvjp(lambda embedding, token: (lookup(embedding, token), (embedding, token)), _lookup_backward)
