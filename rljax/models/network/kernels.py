"""Kernels of ours, for GPUs, written with Pallas; a CPU interprets them, for tests alone."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from rljax.models.network import attention
from rljax.types import Array

DECODE = "decode_attention"  # the name of the kernel in a compiled program
COLUMNS = 64  # of the cache that are read at a time
_LEAST = 16  # the fewest rows of a matrix product


def decode(
    form: attention.Form, query: Array, keys: Array, values: Array, valid: Array, last: Array, interpret: bool
) -> attention.Partial:
    """Attend from a token of each row to the columns in use of its cache: ``attention.partial`` in one kernel.

    Nothing but the keys and values in use is read from memory; scores and weights stay in registers. A program computes
    the queries of one key-value head of one row.

    Args:
      form: the formula of the weights; the window is in ``valid``.
      query: ``[B, G, q, K]``, rotated.
      keys: ``[B, G, K, S]``, rotated; S is a multiple of ``COLUMNS``, K a power of two.
      values: ``[B, G, S, K]``.
      valid: ``[B, S]`` bool, the visible keys.
      last: ``[]`` int32, the newest column.
      interpret: whether the kernel is interpreted.

    Returns:
      The partial softmax over these keys, ``[B, G, q, ...]``.
    """
    rows, kv, count, size = query.shape
    columns = keys.shape[3]
    padded = max(_LEAST, pl.next_power_of_2(count))
    query = jnp.pad(query, ((0, 0), (0, 0), (0, padded - count), (0, 0)))

    def whole(*shape: int) -> Any:
        return pl.BlockSpec((None, None, *shape), lambda b, g: (b, g, 0, 0))

    one = jax.ShapeDtypeStruct((rows, kv, padded, 1), jnp.float32)
    out = pl.pallas_call(
        functools.partial(_decode, form),
        out_shape=(one, one, jax.ShapeDtypeStruct(query.shape, jnp.float32)),
        grid=(rows, kv),
        in_specs=[
            whole(padded, size),
            whole(size, columns),
            whole(columns, size),
            pl.BlockSpec((None, columns), lambda b, g: (b, 0)),
            pl.BlockSpec((1,), lambda b, g: (0,)),
        ],
        out_specs=(whole(padded, 1), whole(padded, 1), whole(padded, size)),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name=DECODE,
    )(query, keys, values, valid.astype(jnp.int32), last.astype(jnp.int32)[None])
    return attention.Partial(*(x[:, :, :count] for x in out))


def _decode(
    form: attention.Form, query: Any, keys: Any, values: Any, valid: Any, last: Any, largest: Any, total: Any, out: Any
) -> None:
    """Read blocks of columns up to the newest; what is read is rescaled when a larger score is found."""
    asked = query[...]
    exact = jax.lax.Precision.HIGHEST if asked.dtype == jnp.float32 else None

    def product(left: Array, right: Array) -> Array:
        return jnp.dot(left, right, preferred_element_type=jnp.float32, precision=exact)

    def block(i: Array, so_far: attention.Partial) -> attention.Partial:
        at = pl.ds(i * COLUMNS, COLUMNS)
        score = attention.capped(product(asked, keys[:, at]) * form.scale, form.cap)
        weight, new = attention.weighed(jnp.where(valid[at][None] != 0, score, attention.MASKED))
        value = values[at, :]
        part = attention.Partial(
            new, jnp.sum(weight, axis=1, keepdims=True), product(weight.astype(value.dtype), value)
        )
        return attention.joined([so_far, part])

    largest[...], total[...], out[...] = jax.lax.fori_loop(0, last[0] // COLUMNS + 1, block, attention.empty(asked))
