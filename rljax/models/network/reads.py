"""Attention of decoded tokens to the keys and values of a cache; see ``caches``.

Its kernel is for GPUs, written with Pallas; a CPU interprets it, for tests alone.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from rljax.models.layouts import Layout, Names
from rljax.models.network import attention
from rljax.transforms import ops
from rljax.types import Array

Pair = tuple[Array, Array]
Blocks = tuple[Pair, ...]


def mixed(
    before: Callable[[Array], attention.Partial],
    query: Array,
    prompt: Pair,
    read: Callable[[Array], list[attention.Partial]],
) -> Array:
    """Attend from ``query`` [B, 1, H, K] to the prompt and to the row; ``read`` returns the row's partial softmaxes."""
    rows, _, heads, size = query.shape
    prompts, kv = prompt[0].shape[:2]
    lanes, group = rows // prompts, heads // kv
    # The rows of a prompt are the queries of one product with its keys.
    together = query.reshape(prompts, lanes, kv, group, size).transpose(0, 2, 1, 3, 4)
    part = before(together.reshape(prompts, kv, -1, size))

    def per_row(x: Array) -> Array:
        return x.reshape(prompts, kv, lanes, group, -1).swapaxes(1, 2).reshape(rows, kv, group, -1)

    parts = [attention.Partial(*map(per_row, part)), *read(query.reshape(rows, kv, group, size))]
    return attention.merged(parts).reshape(rows, 1, heads, size)


def prompts(
    form: attention.Form, query: Array, *, cache: Any, seen: Array, number: Array | int, prompt: Pair
) -> attention.Partial:
    """Attend from ``query`` [P, G, q, K] to the prompts of layer ``number``.

    Args:
      form: the formula of the weights.
      query: of the rows of each prompt.
      cache: its prompts are read if they are histories.
      seen: ``[P, 1, lanes or 1, L]`` bool, the visible keys.
      number: of the layer.
      prompt: keys and values of the layer.
    """
    if cache.history:
        return history(form, query, cache, seen[:, 0], number)
    lanes = seen.shape[2]
    return attention.partial(
        form, query, *prompt, ops.repeat(seen, query.shape[2] // lanes, axis=2) if lanes > 1 else seen
    )


def history(form: attention.Form, query: Array, cache: Any, seen: Array, number: Array | int) -> attention.Partial:
    """Attend from ``query`` [B, G, q, K] to the blocks in use of the histories of layer ``number``.

    Args:
      form: the formula of the weights.
      query: of each row.
      cache: of histories.
      seen: ``[B, q or 1, L]`` bool, the visible keys.
      number: of the layer.

    Returns:
      The partial softmax over the histories.
    """
    last = jnp.max(jnp.sum(cache.prompt_mask, axis=1, dtype=jnp.int32)) - 1
    pair = cache.prompt
    if not cache.stacked:
        pair, number = jax.tree.map(lambda x: x[None], pair[number]), 0
    return looped(form, query, pair=pair, seen=seen, last=last, number=number, block=cache.history)[0]


def stored(key: Array, value: Array) -> Pair:
    """Return keys and values [B, W, G, K] as a cache stores them, [B, G, K, W] and [B, G, W, K]."""
    return key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)


# --- unrolled layers: a list of blocks for each ----------------------------------------------------------


def write(blocks: Blocks, new: Pair, column: Array) -> Blocks:
    """Write one token's key [B, G, K, 1] and value [B, G, 1, K] into ``column``."""
    written, start, zero = [], 0, jnp.zeros_like(column)
    for keys, values in blocks:
        width = keys.shape[3]
        local = jnp.clip(column - start, 0, width - 1)
        inside = (column >= start) & (column < start + width)
        at = ((zero, zero, zero, local), (zero, zero, local, zero))
        pair = []
        for whole, part, where in zip((keys, values), new, at, strict=True):
            # every block is written, all but one with its present values: lax.cond would copy the blocks
            old = jax.lax.dynamic_slice(whole, where, part.shape) if len(blocks) > 1 else part
            pair.append(jax.lax.dynamic_update_slice(whole, jnp.where(inside, part, old), where))
        written.append((pair[0], pair[1]))
        start += width
    return tuple(written)


def listed(
    form: attention.Form, query: Array, *, blocks: Blocks, seen: Array, last: Array, layout: Layout
) -> list[attention.Partial]:
    """Attend from ``query`` [B, G, q, K] to every block in use, ``last`` the newest column."""
    del layout  # the compiler splits rows
    parts, start = [], 0
    for keys, values in blocks:
        width = keys.shape[3]
        operands = (query, keys, values, seen[:, None, None, start : start + width])
        if start:
            empty = lambda query, *_: attention.empty(query)  # noqa: E731
            attend = functools.partial(attention.partial, form)
            parts.append(jax.lax.cond(last >= start, attend, empty, *operands))
        else:
            parts.append(attention.partial(form, *operands))
        start += width
    return parts


def whole(
    form: attention.Form, query: Array, *, blocks: Blocks, seen: Array, last: Array, layout: Layout
) -> list[attention.Partial]:
    """Attend to the one block of a layer by ``decode``, each device to its rows and heads; like ``listed``."""

    def run(*arrays: Array) -> Array:
        calls = {name: functools.partial(decode, form, interpret=name == "cpu") for name in ("cpu", "cuda")}
        return jnp.concatenate(jax.lax.platform_dependent(*arrays, last, **calls), axis=-1)

    heads: Names = ("rows", "kv_heads", None, None)
    out = layout.apart(run, [heads, heads, heads, ("rows", None)], heads)(query, *blocks[0], seen)
    return [attention.Partial(out[..., :1], out[..., 1:2], out[..., 2:])]


UNROLLED = {"plain": listed, "kernel": whole}  # by ``decode_attention``


# --- scanned layers: one stacked array, read in a loop over the blocks in use ----------------------------


def put(stack: Pair, new: Pair, column: Array, number: Array | int) -> Pair:
    """Write one token's key [B, G, K, 1] and value [B, G, 1, K] into ``column`` of layer ``number``."""
    zero = jnp.zeros_like(column)
    start = jnp.asarray(number, column.dtype), zero, zero
    keys = jax.lax.dynamic_update_slice(stack[0], new[0][None], (*start, zero, column))
    return keys, jax.lax.dynamic_update_slice(stack[1], new[1][None], (*start, column, zero))


def looped(
    form: attention.Form, query: Array, *, pair: Pair, seen: Array, last: Array, number: Array | int, block: int
) -> list[attention.Partial]:
    """Attend from ``query`` [B, G, q, K] to every block in use of layer ``number``, ``last`` the newest column.

    ``seen`` is [B, q or 1, S] bool.
    """
    rows, kv, _, size = query.shape
    zero = jnp.zeros_like(last)

    def attend(i: Array, partial: attention.Partial) -> attention.Partial:
        at = jnp.asarray(i * block, last.dtype)
        start = jnp.asarray(number, last.dtype), zero, zero
        keys = jax.lax.dynamic_slice(pair[0], (*start, zero, at), (1, rows, kv, size, block))[0]
        values = jax.lax.dynamic_slice(pair[1], (*start, at, zero), (1, rows, kv, block, size))[0]
        valid = jax.lax.dynamic_slice_in_dim(seen, at, block, axis=2)[:, None]
        return attention.joined([partial, attention.partial(form, query, keys, values, valid)])

    return [jax.lax.fori_loop(0, last // block + 1, attend, attention.empty(query))]


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
