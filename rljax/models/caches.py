"""Decoding with a cache of keys and values; those of a prompt are stored once for all its samples.

A cache holds the keys and values of P prompts and, for each of B rows (row b continues prompt b // (B / P)), those of
its completion, in blocks of columns. All rows write the same column at a time, and a block is read once its first
column is written, so that the cost of a token grows with the tokens written. With ``scan`` the layers are a loop over
stacked arrays; without it they are unrolled: faster on a CPU, whose loops copy weights and cache at each token.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from rljax.models import architectures, attention, layer, precision, transformer
from rljax.models.architectures import MATRICES, Architecture
from rljax.models.layouts import Layout
from rljax.transforms import ops
from rljax.types import Array, Tree

Pair = tuple[Array, Array]
Blocks = tuple[Pair, ...]


@flax.struct.dataclass
class Cache:
    """Keys (rotated) and values of each layer, in the compute dtype. With ``stacked``, dimension 0 is the layer."""

    prompt: Any  # key [N, P, G, K, L], value [N, P, G, L, K]; or one such pair for each layer
    completion: Any  # key [N, B, G, K, S], value [N, B, G, S, K]; or for each layer its blocks, pairs with S = C
    prompt_mask: Array  # [P, L] bool
    mask: Array  # [B, S] bool, the columns that hold a real token
    length: Array  # [] int32, columns written so far
    block: int = flax.struct.field(pytree_node=False)  # C, columns of a block
    stacked: bool = flax.struct.field(pytree_node=False)


def decode_params(architecture: Architecture, params: Tree, layout: Layout) -> Tree:
    """Convert parameters, once per rollout, to the form that decoding reads: the compute dtype, the resident layout.

    Norm scales and biases keep their dtype: the forward pass over whole rows applies them in float32 too.

    With ``decode_weights`` "int8" the matrices of the layers are rounded to 255 levels for each output, which halves
    the bytes that a token reads in bfloat16. The rounded policy is a different one: its log-probabilities are the
    ``behaviour_logp`` that importance weights correct for, and the metric ``sampler_gap`` measures the difference.

    Args:
      architecture: of the parameters.
      params: from ``architecture.init``.
      layout: how arrays are sharded over a mesh.

    Returns:
      A tree like ``params``; without ``scan``, the layers are a list.
    """
    a = architecture

    def operand(path: Any, w: Array) -> Array:
        return w if precision.is_vector(path) else w.astype(a.dtype)

    cast = jax.tree_util.tree_map_with_path(operand, params)
    cast = jax.tree.map(lambda names, w: layout.hold(w, names), architectures.axes(a), cast, is_leaf=_is_names)

    def rounded(weights: Tree) -> Tree:
        return {name: _rounded(name, w) for name, w in weights.items()} if a.decode_weights == "int8" else weights

    layers = cast["layers"]
    return {
        **cast,
        "layers": jax.vmap(rounded)(layers) if a.scan else [rounded(x) for x in transformer.unstacked(a, layers)],
    }


def _is_names(leaf: Any) -> bool:
    return isinstance(leaf, tuple)


def _rounded(name: str, weight: Array) -> Array | layer.Int8:
    """Round a matrix [in..., out...] to int8, scaled by the largest entry of each output; return others unchanged."""
    inputs, outputs = MATRICES.get(name, (0, 0))
    if not inputs or weight.ndim > inputs + outputs:  # experts are not rounded
        return weight
    largest = jnp.max(jnp.abs(weight), axis=tuple(range(inputs)), keepdims=True).astype(jnp.float32)
    scale = jnp.where(largest > 0, largest, 1.0) / 127
    return layer.Int8(jnp.round(weight / scale).astype(jnp.int8), scale)


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
    """Run the network over prompts and create the cache of their completions; see ``models.Model.prefill``.

    Args:
      architecture: of the parameters.
      weights: from ``decode_params``.
      token: ``[P, L]`` int32.
      mask: ``[P, L]``, nonzero on real tokens.
      samples: rows of each prompt.
      columns: the most tokens that a row may append.
      block: columns of a block; 0: one block.
      layout: how arrays are sharded over a mesh.

    Returns:
      Hidden states of the prompts ``[P, L, D]``, and a cache of ``P * samples`` rows.
    """
    a, visible = architecture, transformer.causal(mask)
    rows = token.shape[0] * samples
    block = min(block or columns, columns)
    widths = [min(block, columns - i) for i in range(0, columns, block)]
    if a.scan:  # one array of equal blocks
        columns = len(widths) * block
        widths = [columns]
    angles = layer.rotation(a, visible.position)

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Pair]:
        mixed = attention.attend(a.attention, form, query, key, value, visible, layout=layout)
        return mixed, (key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3))

    def apply_layer(x: Array, number: int, weights: Tree) -> tuple[Array, Pair]:
        x, (key, value) = layer.layer(a, number, weights, x, angles, mix, layout)
        names = ("rows", "kv_heads", None, None)
        return x, (layout(key, names), layout(value, names))

    def empty(*shape: int) -> Array:
        lead = (a.layers,) if a.scan else ()
        zeros = jnp.zeros((*lead, rows, a.kv_heads, *shape), a.dtype)
        return layout(zeros, (*(None for _ in lead), "rows", "kv_heads", None, None))

    x, prompt = transformer.apply_layers(a, apply_layer, layer.embed(a, weights, token), weights["layers"])
    blocks = tuple((empty(a.head_size, w), empty(w, a.head_size)) for w in widths)
    cache = Cache(
        prompt=prompt,
        completion=blocks[0] if a.scan else (blocks,) * a.layers,
        prompt_mask=mask != 0,
        mask=layout(jnp.zeros((rows, columns), bool), ("rows", None)),
        length=jnp.zeros((), jnp.int32),
        block=block,
        stacked=a.scan,
    )
    return layer.final(a, weights, x), cache


def extend(
    architecture: Architecture, weights: Tree, token: Array, mask: Array, cache: Cache, layout: Layout
) -> tuple[Array, Cache]:
    """Append one token to every row; see ``models.Model.extend``.

    Args:
      architecture: of the parameters.
      weights: from ``decode_params``.
      token: ``[B]`` int32.
      mask: ``[B]``, nonzero where the token is real.
      cache: from ``prefill`` or ``extend``.
      layout: how arrays are sharded over a mesh.

    Returns:
      Hidden states of the tokens ``[B, D]``, and the new cache.
    """
    a = architecture
    prompt_length = attention.per_row(jnp.sum(cache.prompt_mask, axis=1, dtype=jnp.int32), token)
    position = prompt_length + jnp.sum(cache.mask, axis=1, dtype=jnp.int32)
    seen = jax.lax.dynamic_update_slice(cache.mask, mask[:, None] != 0, (jnp.zeros_like(cache.length), cache.length))
    visible = {a.form(a.local(i)): None for i in range(len(a.pattern))}
    visible = {form: _visible(form, cache.prompt_mask, seen, position, prompt_length) for form in visible}
    shard = lambda x: layout(x, ("rows",))  # noqa: E731  once, before the layers
    seen, angles = shard(seen), jax.tree.map(shard, layer.rotation(a, position[:, None]))

    def apply_layer(
        number: int, i: Array | int, x: Array, weights: Tree, prompt: Pair, completion: Any
    ) -> tuple[Array, Any]:
        """Apply layer ``i``, which has the kind of layer ``number``."""

        def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Any]:
            in_prompt, in_row = visible[form]
            pair = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
            if a.scan:
                written = _put(completion, pair, cache.length, i)
                read = functools.partial(_looped, form, pair=written, seen=in_row, last=cache.length, number=i)
                return _read(form, query, prompt, in_prompt, functools.partial(read, block=cache.block)), written
            written = _write(completion, pair, cache.length)
            read = functools.partial(_listed, form, blocks=written, seen=in_row, last=cache.length)
            return _read(form, query, prompt, in_prompt, read), written

        return layer.layer(a, number, weights, x, angles, mix, layout)

    x = layer.embed(a, weights, token[:, None])
    if a.scan:
        period = len(a.pattern)

        def one(carry: tuple[Array, Pair], number: int, i: Array | int) -> tuple[Array, Pair]:
            nth = functools.partial(jax.lax.dynamic_index_in_dim, index=i, keepdims=False)
            layer_weights, prompt = jax.tree.map(nth, (weights["layers"], cache.prompt))
            return apply_layer(number, i, carry[0], layer_weights, prompt, carry[1])

        def apply_pattern(step: Array, carry: tuple[Array, Pair]) -> tuple[Array, Pair]:
            for j in range(period):
                carry = one(carry, j, step * period + j)
            return carry

        x, completion = jax.lax.fori_loop(0, a.layers // period, apply_pattern, (x, cache.completion))
        for i in range(a.layers // period * period, a.layers):
            x, completion = one((x, completion), i, i)
    else:
        written = []
        layers = zip(weights["layers"], cache.prompt, cache.completion, strict=True)
        for i, (layer_weights, prompt, blocks) in enumerate(layers):
            x, blocks = apply_layer(i, i, x, layer_weights, prompt, blocks)
            written.append(blocks)
        completion = tuple(written)
    hidden = layer.final(a, weights, x)[:, 0]
    return hidden, dataclasses.replace(cache, completion=completion, mask=seen, length=cache.length + 1)


def _visible(
    form: attention.Form, prompt_mask: Array, seen: Array, position: Array, prompt_length: Array
) -> tuple[Array, Array]:
    """Return the keys of the prompt [P, 1, lanes or 1, L] and of the row [B, S] that a token at ``position`` sees."""
    in_prompt = prompt_mask[:, None, None, :]
    if not form.window:
        return in_prompt, seen
    query = position.reshape(prompt_mask.shape[0], 1, -1, 1)
    key = prompt_length[:, None] + transformer.positions(seen)
    return (
        in_prompt & attention.near(form, query, transformer.positions(prompt_mask)[:, None, None, :]),
        seen & attention.near(form, position[:, None], key),
    )


def select(cache: Cache, prompts: Array | None, rows: Array) -> Cache:
    """Return the cache of a selection of rows; see ``models.Model.select``.

    Args:
      cache: of B rows and P prompts.
      prompts: ``[p]`` int32; None keeps all.
      rows: ``[b]`` int32; p divides b.

    Returns:
      A cache of b rows and p prompts.
    """

    def take(tree: Any, index: Array | None) -> Any:
        axis = 1 if cache.stacked else 0
        return tree if index is None else jax.tree.map(lambda x: jnp.take(x, index, axis=axis), tree)

    return dataclasses.replace(
        cache,
        prompt=take(cache.prompt, prompts),
        prompt_mask=cache.prompt_mask if prompts is None else cache.prompt_mask[prompts],
        completion=take(cache.completion, rows),
        mask=cache.mask[rows],
    )


def _read(
    form: attention.Form,
    query: Array,
    prompt: Pair,
    in_prompt: Array,
    read: Callable[[Array], list[attention.Partial]],
) -> Array:
    """Attend from ``query`` [B, 1, H, K] to the prompt and to the row; ``read`` returns the row's partial softmaxes."""
    rows, _, heads, size = query.shape
    prompts, kv = prompt[0].shape[:2]
    lanes, group = rows // prompts, heads // kv
    # The rows of a prompt are the queries of one product with its keys.
    together = query.reshape(prompts, lanes, kv, group, size).transpose(0, 2, 1, 3, 4)
    if in_prompt.shape[2] > 1:
        in_prompt = ops.repeat(in_prompt, group, axis=2)
    part = attention.partial(form, together.reshape(prompts, kv, -1, size), *prompt, in_prompt)

    def per_row(x: Array) -> Array:
        return x.reshape(prompts, kv, lanes, group, -1).swapaxes(1, 2).reshape(rows, kv, group, -1)

    parts = [attention.Partial(*map(per_row, part)), *read(query.reshape(rows, kv, group, size))]
    return attention.merged(parts).reshape(rows, 1, heads, size)


# --- unrolled layers: a list of blocks for each ----------------------------------------------------------


def _write(blocks: Blocks, new: Pair, column: Array) -> Blocks:
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


def _listed(form: attention.Form, query: Array, *, blocks: Blocks, seen: Array, last: Array) -> list[attention.Partial]:
    """Attend from ``query`` [B, G, R, K] to every block in use, ``last`` the newest column."""
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


# --- scanned layers: one stacked array, read in a loop over the blocks in use ----------------------------


def _put(stack: Pair, new: Pair, column: Array, number: Array | int) -> Pair:
    """Write one token's key [B, G, K, 1] and value [B, G, 1, K] into ``column`` of layer ``number``."""
    zero = jnp.zeros_like(column)
    start = jnp.asarray(number, column.dtype), zero, zero
    keys = jax.lax.dynamic_update_slice(stack[0], new[0][None], (*start, zero, column))
    return keys, jax.lax.dynamic_update_slice(stack[1], new[1][None], (*start, column, zero))


def _looped(
    form: attention.Form, query: Array, *, pair: Pair, seen: Array, last: Array, number: Array | int, block: int
) -> list[attention.Partial]:
    """Attend from ``query`` [B, G, R, K] to every block in use of layer ``number``, ``last`` the newest column."""
    rows, kv, _, size = query.shape
    zero = jnp.zeros_like(last)

    def attend(i: Array, partial: attention.Partial) -> attention.Partial:
        at = jnp.asarray(i * block, last.dtype)
        start = jnp.asarray(number, last.dtype), zero, zero
        keys = jax.lax.dynamic_slice(pair[0], (*start, zero, at), (1, rows, kv, size, block))[0]
        values = jax.lax.dynamic_slice(pair[1], (*start, at, zero), (1, rows, kv, block, size))[0]
        valid = jax.lax.dynamic_slice(seen, (zero, at), (rows, block))[:, None, None, :]
        return attention.joined([partial, attention.partial(form, query, keys, values, valid)])

    return [jax.lax.fori_loop(0, last // block + 1, attend, attention.empty(query))]
