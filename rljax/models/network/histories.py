"""Rows whose keys and values are kept between calls: they begin anew, read texts, and keep what they have written.

The history of a row is the prompt of a ``caches.Cache`` with one row for each prompt: keys and values from column 0 on,
without gaps, in arrays of a fixed width. ``caches.extend`` writes further tokens into the completion of the cache, the
same column in all rows; ``settle`` moves them to the ends of the histories, so that all rows begin at column 0 again.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.models.architectures import Architecture
from rljax.models.layouts import Layout
from rljax.models.network import attention, caches, layer, reads, transformer
from rljax.models.network.caches import Cache, Pair
from rljax.transforms import ops
from rljax.types import Array, Tree

_BLOCK = 128  # columns of a history that are read together


def blank(architecture: Architecture, rows: int, width: int, columns: int, block: int, layout: Layout) -> Cache:
    """Return rows without a token; see ``models.Model.history``."""
    a = architecture
    width = -(-width // _BLOCK) * _BLOCK
    pair = caches.zeros(a, rows, (a.head_size, width), layout), caches.zeros(a, rows, (width, a.head_size), layout)
    mask = layout(jnp.zeros((rows, width), bool), ("rows", None))
    cache = caches.unwritten(a, pair if a.scan else (pair,) * a.layers, mask, rows, columns, block, layout)
    return dataclasses.replace(cache, history=_BLOCK)


def emptied(cache: Cache, rows: Array) -> Cache:
    """Return the cache with no token in the rows ``[B]`` bool, which have nothing to settle."""
    shift = jnp.where(rows, 0, cache.shift)
    return dataclasses.replace(cache, prompt_mask=cache.prompt_mask & ~rows[:, None], shift=shift)


def append(architecture: Architecture, weights: Tree, token: Array, mask: Array, cache: Cache, layout: Layout) -> Cache:
    """Read several tokens into the history of every row; see ``models.Model.append``."""
    a, (rows, width) = architecture, token.shape
    past, lanes = layer.positions(cache.prompt_mask), a.heads // a.kv_heads
    count = jnp.sum(cache.prompt_mask, axis=1, dtype=jnp.int32)
    position = layer.positions(mask != 0) + count[:, None]
    angles, real = (
        layer.rotation(a, position - cache.shift[:, None]),
        (mask != 0)[:, None, :] & jnp.tri(width, dtype=bool)[None],
    )

    def visible(form: attention.Form, keys: Array, at: Array) -> Array:
        """Return which keys [B, 1, k] or [B, W, k] at positions ``at`` [B, k] each query of a head sees."""
        seen = keys & attention.near(form, position[:, :, None], at[:, None, :])
        return ops.repeat(seen, lanes, axis=1) if seen.shape[1] > 1 else seen

    def apply_layer(x: Array, number: int, held: Any) -> tuple[Array, Pair]:
        own, index = held

        def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Pair]:
            queries = query.reshape(rows, width, a.kv_heads, lanes, -1).transpose(0, 2, 1, 3, 4)
            queries, pair = queries.reshape(rows, a.kv_heads, width * lanes, -1), reads.stored(key, value)
            before = visible(form, cache.prompt_mask[:, None, :], past)
            parts = [
                reads.history(form, queries, cache, before, index),
                attention.partial(form, queries, *pair, visible(form, real, position)[:, None]),
            ]
            out = attention.merged(parts).reshape(rows, a.kv_heads, width, lanes, -1)
            return out.transpose(0, 2, 1, 3, 4).reshape(query.shape), pair

        return layer.layer(a, number, own, x, angles, mix, layout)

    number = jnp.arange(a.layers)
    held = (weights["layers"], number) if a.scan else list(zip(weights["layers"], range(a.layers), strict=True))
    _, new = transformer.apply_layers(a, apply_layer, layer.embed(a, weights, token), held)
    return _moved(cache, new, mask != 0)


def placed(
    architecture: Architecture,
    weights: Tree,
    token: Array,
    mask: Array,
    cache: Cache,
    rows: Array,
    layout: Layout,
    seen: Array | None = None,
) -> Cache:
    """Begin rows with whole texts; see ``models.Model.placed``."""
    fresh = caches.prefill(architecture, weights, token, mask, 1, 1, 0, layout, seen)[1]

    def put(whole: Array, part: Array, last: bool) -> Array:
        at = (slice(None),) * cache.stacked + (rows, slice(None))
        columns = slice(token.shape[1])
        return whole.at[(*at, *((slice(None), columns) if last else (columns, slice(None))))].set(part, mode="drop")

    def pair(whole: Pair, part: Pair) -> Pair:
        return put(whole[0], part[0], True), put(whole[1], part[1], False)

    prompt = _each_layer(cache, pair, fresh.prompt)
    held = jnp.pad(mask != 0, ((0, 0), (0, cache.prompt_mask.shape[1] - token.shape[1])))
    whole = cache.prompt_mask.at[rows].set(held, mode="drop")
    shift = cache.shift.at[rows].set(fresh.shift, mode="drop")
    return dataclasses.replace(cache, prompt=prompt, prompt_mask=whole, shift=shift)


def settle(cache: Cache) -> Cache:
    """Move the completions to the ends of the histories; see ``models.Model.settle``."""
    blocks = [cache.completion] if cache.stacked else zip(*cache.completion, strict=True)
    out, start = cache, 0
    for block in blocks:  # one of all layers, or for each layer
        width = jax.tree.leaves(block)[0].shape[-1]
        out = _moved(out, block, cache.mask[:, start : start + width])
        start += width
    return dataclasses.replace(out, mask=jnp.zeros_like(cache.mask), length=jnp.zeros_like(cache.length))


def _moved(cache: Cache, new: Any, mask: Array) -> Cache:
    """Write keys and values of W columns behind the histories; ``mask`` [B, W] is True on tokens, which come first.

    The columns after them are written too, and hold nothing: the next tokens are written over them.
    """
    end = jnp.sum(cache.prompt_mask, axis=1, dtype=jnp.int32)
    row = jnp.arange(end.size)[:, None]
    column = end[:, None] + jnp.arange(mask.shape[1])[None, :]
    lead = (slice(None),) * cache.stacked

    def pair(whole: Pair, part: Pair) -> Pair:  # the dimensions of the indices come first
        keys, values = (jnp.moveaxis(x, at, (0, 1)) for x, at in zip(part, ((-4, -1), (-4, -2)), strict=True))
        return (
            whole[0].at[(*lead, row, slice(None), slice(None), column)].set(keys, mode="drop"),
            whole[1].at[(*lead, row, slice(None), column)].set(values, mode="drop"),
        )

    prompt = _each_layer(cache, pair, new)
    place = jnp.arange(cache.prompt_mask.shape[1])[None, :]
    count = jnp.sum(mask, axis=1, dtype=jnp.int32)
    seen = cache.prompt_mask | ((place >= end[:, None]) & (place < (end + count)[:, None]))
    return dataclasses.replace(cache, prompt=prompt, prompt_mask=seen)


def _each_layer(cache: Cache, pair: Callable[[Pair, Pair], Pair], new: Any) -> Any:
    """Return ``pair(history, new)`` of all layers at once if they are stacked, else of each."""
    return pair(cache.prompt, new) if cache.stacked else tuple(map(pair, cache.prompt, new))
