"""Decoding: what was read stays as keys and values, the prompt's once for all its samples.

A cache holds the keys of P prompts and, for each of B rows (row b of prompt b // (B / P)), those of its own tokens, in
blocks of columns. All rows write the same column at a time and a block is read once it is in use, so work follows the
tokens that exist. With ``scan`` the layers are a loop, and everything of theirs is stacked; without it they stand one
after the other, which a CPU prefers: its loops copy weights and cache at each token.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from rljax.models import architecture as architectures
from rljax.models import attention, transformer
from rljax.models.architecture import MATRICES, Architecture
from rljax.models.layouts import Layout
from rljax.transforms import ops
from rljax.types import Array, Tree

Pair = tuple[Array, Array]
Blocks = tuple[Pair, ...]


@flax.struct.dataclass
class Cache:
    """Keys and values of each layer in the compute dtype; keys are rotated already. N stands there where stacked."""

    prompt: Any  # key [N, P, G, K, L], value [N, P, G, L, K]; or such a pair of each layer
    own: Any  # key [N, B, G, K, S], value [N, B, G, S, K]; or of each layer its blocks: key [B, G, K, C], value
    prompt_mask: Array  # [P, L] bool
    mask: Array  # [B, S] bool: columns of all blocks that hold a real token
    length: Array  # [] int32, columns written so far
    block: int = flax.struct.field(pytree_node=False)  # C, columns that come into use together
    stacked: bool = flax.struct.field(pytree_node=False)


def decode_params(architecture: Architecture, params: Tree, layout: Layout) -> Tree:
    """Return the parameters as decoding reads them: in the compute dtype, in its layout, once for many tokens.

    With ``decode_weights`` "int8" the layers' matrices are rounded to 255 steps for each of their outputs, which halves
    what a token reads of them in bfloat16. The policy that samples is then another one: its log-probs are the
    ``behaviour_logp`` that importance weights correct for, and ``sampler_gap`` is the distance.
    """
    a = architecture
    cast = jax.tree.map(lambda w: w.astype(a.dtype), {k: v for k, v in params.items() if k != "final_norm"})
    cast = {**cast, "final_norm": params["final_norm"]}
    cast = jax.tree.map(lambda names, w: layout.hold(w, names), architectures.axes(a), cast, is_leaf=_is_names)

    def rounded(layer: Tree) -> Tree:
        return {name: _rounded(name, w) for name, w in layer.items()} if a.decode_weights == "int8" else layer

    layers = cast["layers"]
    return {
        **cast,
        "layers": jax.vmap(rounded)(layers) if a.scan else [rounded(x) for x in transformer.unstacked(a, layers)],
    }


def _is_names(leaf: Any) -> bool:
    return isinstance(leaf, tuple)


def _rounded(name: str, weight: Array) -> Array | transformer.Int8:
    """Round a matrix [in..., out...] to int8, by the largest entry of each output; leave what is none."""
    inputs, outputs = MATRICES.get(name, (0, 0))
    if not inputs or weight.ndim > inputs + outputs:  # experts are left
        return weight
    largest = jnp.max(jnp.abs(weight), axis=tuple(range(inputs)), keepdims=True).astype(jnp.float32)
    scale = jnp.where(largest > 0, largest, 1.0) / 127
    return transformer.Int8(jnp.round(weight / scale).astype(jnp.int8), scale)


def prefill(
    architecture: Architecture,
    weights: Tree,
    token: Array,
    mask: Array,
    samples: int,
    columns: int,
    block: int,
    layout: Layout,
) -> tuple[Array, Cache]:
    """Read prompts [P, L]; return hidden [P, L, D] and a cache for P * ``samples`` rows of ``columns`` each."""
    a, reads = architecture, transformer.whole(mask)
    rows = token.shape[0] * samples
    block = min(block or columns, columns)
    widths = [min(block, columns - i) for i in range(0, columns, block)]
    if a.scan:  # one array, of whole blocks
        columns = len(widths) * block
        widths = [columns]
    angles = transformer.rotation(a, reads.position)

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Pair]:
        mixed = attention.attend(a.attention, form, query, key, value, reads, layout=layout)
        return mixed, (key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3))

    def layer(x: Array, number: int, weights: Tree) -> tuple[Array, Pair]:
        x, (key, value) = transformer.layer(a, number, weights, x, angles, mix, layout)
        names = ("rows", "kv_heads", None, None)
        return x, (layout(key, names), layout(value, names))

    def empty(*shape: int) -> Array:
        lead = (a.layers,) if a.scan else ()
        zeros = jnp.zeros((*lead, rows, a.kv_heads, *shape), a.dtype)
        return layout(zeros, (*(None for _ in lead), "rows", "kv_heads", None, None))

    x, prompt = transformer.each(a, layer, transformer.embed(a, weights, token), weights["layers"])
    blocks = tuple((empty(a.head_size, w), empty(w, a.head_size)) for w in widths)
    cache = Cache(
        prompt=prompt,
        own=blocks[0] if a.scan else (blocks,) * a.layers,
        prompt_mask=mask != 0,
        mask=layout(jnp.zeros((rows, columns), bool), ("rows", None)),
        length=jnp.zeros((), jnp.int32),
        block=block,
        stacked=a.scan,
    )
    return transformer.final(a, weights, x), cache


def extend(
    architecture: Architecture, weights: Tree, token: Array, mask: Array, cache: Cache, layout: Layout
) -> tuple[Array, Cache]:
    """Append one token [B] to each row, real where ``mask`` [B]; return hidden [B, D] and the cache."""
    a = architecture
    before = attention.per_row(jnp.sum(cache.prompt_mask, axis=1, dtype=jnp.int32), token)
    position = before + jnp.sum(cache.mask, axis=1, dtype=jnp.int32)
    seen = jax.lax.dynamic_update_slice(cache.mask, mask[:, None] != 0, (jnp.zeros_like(cache.length), cache.length))
    visible = {a.form(a.local(i)): None for i in range(len(a.pattern))}
    visible = {form: _visible(form, cache.prompt_mask, seen, position, before) for form in visible}
    place = lambda x: layout(x, ("rows",))  # noqa: E731  here, lest every layer fetch it
    seen, angles = place(seen), jax.tree.map(place, transformer.rotation(a, position[:, None]))

    def layer(number: int, i: Array | int, x: Array, weights: Tree, prompt: Pair, own: Any) -> tuple[Array, Any]:
        """Layer ``i``, whose kind is that of ``number``."""

        def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Any]:
            ahead, behind = visible[form]
            pair = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
            if a.scan:
                written = _put(own, pair, cache.length, i)
                read = functools.partial(_looped, form, pair=written, seen=behind, last=cache.length, layer=i)
                return _read(form, query, prompt, ahead, functools.partial(read, block=cache.block)), written
            written = _write(own, pair, cache.length)
            read = functools.partial(_listed, form, blocks=written, seen=behind, last=cache.length)
            return _read(form, query, prompt, ahead, read), written

        return transformer.layer(a, number, weights, x, angles, mix, layout)

    x = transformer.embed(a, weights, token[:, None])
    if a.scan:
        period = len(a.pattern)

        def one(carry: tuple[Array, Pair], number: int, i: Array | int) -> tuple[Array, Pair]:
            nth = functools.partial(jax.lax.dynamic_index_in_dim, index=i, keepdims=False)
            taken, prompt = jax.tree.map(nth, (weights["layers"], cache.prompt))
            return layer(number, i, carry[0], taken, prompt, carry[1])

        def turn(t: Array, carry: tuple[Array, Pair]) -> tuple[Array, Pair]:
            for j in range(period):
                carry = one(carry, j, t * period + j)
            return carry

        x, own = jax.lax.fori_loop(0, a.layers // period, turn, (x, cache.own))
        for i in range(a.layers // period * period, a.layers):
            x, own = one((x, own), i, i)
    else:
        written = []
        for i, (taken, prompt, blocks) in enumerate(zip(weights["layers"], cache.prompt, cache.own, strict=True)):
            x, blocks = layer(i, i, x, taken, prompt, blocks)
            written.append(blocks)
        own = tuple(written)
    hidden = transformer.final(a, weights, x)[:, 0]
    return hidden, dataclasses.replace(cache, own=own, mask=seen, length=cache.length + 1)


def _visible(
    form: attention.Form, prompt_mask: Array, seen: Array, position: Array, before: Array
) -> tuple[Array, Array]:
    """Which keys of the prompt [P, 1, lanes or 1, L] and of the row [B, S] the new token at ``position`` [B] sees."""
    ahead = prompt_mask[:, None, None, :]
    if not form.window:
        return ahead, seen
    each = position.reshape(prompt_mask.shape[0], 1, -1, 1)
    own = before[:, None] + transformer.places(seen)
    return (
        ahead & attention.near(form, each, transformer.places(prompt_mask)[:, None, None, :]),
        seen & attention.near(form, position[:, None], own),
    )


def select(cache: Cache, prompts: Array | None, rows: Array) -> Cache:
    """Return the cache of some rows [b] alone, and of some prompts [p] (None: all of them), p dividing b."""

    def take(tree: Any, index: Array | None) -> Any:
        axis = 1 if cache.stacked else 0
        return tree if index is None else jax.tree.map(lambda x: jnp.take(x, index, axis=axis), tree)

    return dataclasses.replace(
        cache,
        prompt=take(cache.prompt, prompts),
        prompt_mask=cache.prompt_mask if prompts is None else cache.prompt_mask[prompts],
        own=take(cache.own, rows),
        mask=cache.mask[rows],
    )


def _read(
    form: attention.Form,
    query: Array,
    prompt: Pair,
    ahead: Array,
    own: Callable[[Array], list[attention.Partial]],
) -> Array:
    """Attend from ``query`` [B, 1, H, K] to the prompt and to what ``own`` says of the row's own tokens."""
    rows, _, heads, size = query.shape
    prompts, kv = prompt[0].shape[:2]
    lanes, group = rows // prompts, heads // kv
    # The lanes of a prompt are queries of one product with its keys.
    together = query.reshape(prompts, lanes, kv, group, size).transpose(0, 2, 1, 3, 4)
    if ahead.shape[2] > 1:
        ahead = ops.repeat(ahead, group, axis=2)
    part = attention.partial(form, together.reshape(prompts, kv, -1, size), *prompt, ahead)

    def apart(x: Array) -> Array:
        return x.reshape(prompts, kv, lanes, group, -1).swapaxes(1, 2).reshape(rows, kv, group, -1)

    parts = [attention.Partial(*map(apart, part)), *own(query.reshape(rows, kv, group, size))]
    return attention.merged(parts).reshape(rows, 1, heads, size)


# --- layers one after the other: a list of blocks for each ----------------------------------------------


def _write(blocks: Blocks, new: Pair, column: Array) -> Blocks:
    """Write one token's key [B, G, K, 1] and value [B, G, 1, K] into ``column``."""
    written, start, zero = [], 0, jnp.zeros_like(column)
    for keys, values in blocks:
        width = keys.shape[3]
        place = jnp.clip(column - start, 0, width - 1)
        inside = (column >= start) & (column < start + width)
        at = ((zero, zero, zero, place), (zero, zero, place, zero))
        pair = []
        for whole, part, where in zip((keys, values), new, at, strict=True):
            # every block is written, most of them with what stands there: a condition would copy them
            old = jax.lax.dynamic_slice(whole, where, part.shape) if len(blocks) > 1 else part
            pair.append(jax.lax.dynamic_update_slice(whole, jnp.where(inside, part, old), where))
        written.append((pair[0], pair[1]))
        start += width
    return tuple(written)


def _listed(form: attention.Form, query: Array, *, blocks: Blocks, seen: Array, last: Array) -> list[attention.Partial]:
    """Attend from ``query`` [B, G, R, K] to every block in use, ``last`` the newest column."""
    parts, start = [], 0
    for keys, values in blocks:
        width = keys.shape[3]
        operands = (query, keys, values, seen[:, None, None, start : start + width])
        if start:
            empty = lambda query, *_: attention.nothing(query)  # noqa: E731
            some = functools.partial(attention.partial, form)
            parts.append(jax.lax.cond(last >= start, some, empty, *operands))
        else:
            parts.append(attention.partial(form, *operands))
        start += width
    return parts


# --- layers in a loop: one stack, read in a loop of its own over the blocks in use -----------------------


def _put(stack: Pair, new: Pair, column: Array, layer: Array | int) -> Pair:
    """Write one token's key [B, G, K, 1] and value [B, G, 1, K] into ``column`` of ``layer``."""
    zero = jnp.zeros_like(column)
    start = jnp.asarray(layer, column.dtype), zero, zero
    keys = jax.lax.dynamic_update_slice(stack[0], new[0][None], (*start, zero, column))
    return keys, jax.lax.dynamic_update_slice(stack[1], new[1][None], (*start, column, zero))


def _looped(
    form: attention.Form, query: Array, *, pair: Pair, seen: Array, last: Array, layer: Array | int, block: int
) -> list[attention.Partial]:
    """Attend from ``query`` [B, G, R, K] to every block in use of ``layer``, ``last`` the newest column."""
    rows, kv, _, size = query.shape
    zero = jnp.zeros_like(last)

    def turn(i: Array, found: attention.Partial) -> attention.Partial:
        at = jnp.asarray(i * block, last.dtype)
        start = jnp.asarray(layer, last.dtype), zero, zero
        keys = jax.lax.dynamic_slice(pair[0], (*start, zero, at), (1, rows, kv, size, block))[0]
        values = jax.lax.dynamic_slice(pair[1], (*start, at, zero), (1, rows, kv, block, size))[0]
        valid = jax.lax.dynamic_slice(seen, (zero, at), (rows, block))[:, None, None, :]
        return attention.joined([found, attention.partial(form, query, keys, values, valid)])

    return [jax.lax.fori_loop(0, last // block + 1, turn, attention.nothing(query))]
