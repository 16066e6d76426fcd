"""Decoding with a cache of keys and values; a prompt's are stored once for all its samples.

A cache holds the keys and values of P prompts and, for each of B rows (row b continues prompt b // (B / P)), of its
completion, in blocks of columns. All rows write the same column at a time, and a block is read once its first
column is written, so that the cost of a token grows with the tokens written. With ``scan`` the layers are a loop over
stacked arrays; without it they are unrolled: faster on a CPU, whose loops copy weights and cache at each token.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from rljax.models import parameters, precision
from rljax.models.architectures import MATRICES, Architecture
from rljax.models.layouts import Layout, Names
from rljax.models.network import attention, layer, reads, transformer
from rljax.types import Array, Tree

Pair = reads.Pair


@flax.struct.dataclass
class Cache:
    """Keys (rotated) and values of each layer, in the compute dtype. With ``stacked``, dimension 0 is the layer."""

    prompt: Any  # key [N, P, G, K, L], value [N, P, G, L, K]; or one such pair for each layer
    completion: Any  # key [N, B, G, K, S], value [N, B, G, S, K]; or for each layer its blocks, pairs with S = C
    prompt_mask: Array  # [P, L] bool
    mask: Array  # [B, S] bool, the columns that hold a real token
    length: Array  # [] int32, columns written so far
    shift: Array  # [P] int32, how many fewer positions than tokens a prompt takes, if it has pictures
    block: int = flax.struct.field(pytree_node=False)  # C, columns of a block
    stacked: bool = flax.struct.field(pytree_node=False)
    history: int = flax.struct.field(pytree_node=False, default=0)  # columns of a block of ``prompt``; 0: one block


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

    def operand(path: Any, names: Names, w: Array) -> Array:
        return layout.hold(w if precision.is_vector(path) else w.astype(a.dtype), names)

    def converted(axes: Tree, weights: Tree) -> Tree:
        return jax.tree_util.tree_map_with_path(operand, axes, weights, is_leaf=_is_names)

    def rounded(weights: Tree) -> Tree:
        return {name: _rounded(name, w) for name, w in weights.items()} if a.decode_weights == "int8" else weights

    def one(weights: Tree) -> Tree:
        """Convert one layer: of all layers at once, the compiler would keep a second array for each gather."""
        return rounded(converted(within, weights))

    axes, layers = parameters.axes(a), params["layers"]
    within = jax.tree.map(lambda names: names[1:], axes["layers"], is_leaf=_is_names)
    layers = jax.lax.map(one, layers) if a.scan else _in_turn(one, transformer.unstacked(a, layers))
    rest = {name: x for name, x in params.items() if name != "layers"}
    return {**converted({name: axes[name] for name in rest}, rest), "layers": layers}


def _in_turn(function: Callable[[Tree], Tree], trees: Sequence[Tree]) -> list[Tree]:
    """Return ``function`` of each tree; it is computed for one tree after another."""
    out = [function(trees[0])]
    for tree in trees[1:]:
        tree, out[-1] = jax.lax.optimization_barrier((tree, out[-1]))
        out.append(function(tree))
    return out


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
    seen: Array | None = None,
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
      seen: of the pictures, ``[P, n, D]``; None: there are none.

    Returns:
      Hidden states of the prompts ``[P, L, D]``, and a cache of ``P * samples`` rows.
    """
    a = architecture
    x, angles, attend = transformer.whole(a, weights, token, mask, layout, seen)

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Pair]:
        return attend(form, query, key, value), reads.stored(key, value)

    def apply_layer(x: Array, number: int, weights: Tree) -> tuple[Array, Pair]:
        x, (key, value) = layer.layer(a, number, weights, x, angles, mix, layout)
        names = ("rows", "kv_heads", None, None)
        return x, (layout(key, names), layout(value, names))

    x, prompt = transformer.apply_layers(a, apply_layer, x, weights["layers"])
    cache = unwritten(a, prompt, mask != 0, token.shape[0] * samples, columns, block, layout)
    if a.rope_sections:
        cache = dataclasses.replace(cache, shift=layer.shift(a, token, mask != 0, seen))
    return layer.final(a, weights, x), cache


def unwritten(
    architecture: Architecture, prompt: Any, mask: Array, rows: int, columns: int, block: int, layout: Layout
) -> Cache:
    """Return the cache of rows without a completion; ``Cache`` explains ``prompt``, and ``prefill`` the sizes."""
    a = architecture
    if a.decode_attention == "kernel":
        columns = block = -(-columns // reads.COLUMNS) * reads.COLUMNS
    block = min(block or columns, columns)
    widths = [min(block, columns - i) for i in range(0, columns, block)]
    if a.scan:  # one array of equal blocks
        columns = len(widths) * block
        widths = [columns]
    blocks = tuple((zeros(a, rows, (a.head_size, w), layout), zeros(a, rows, (w, a.head_size), layout)) for w in widths)
    return Cache(
        prompt=prompt,
        completion=blocks[0] if a.scan else (blocks,) * a.layers,
        prompt_mask=mask,
        mask=layout(jnp.zeros((rows, columns), bool), ("rows", None)),
        length=jnp.zeros((), jnp.int32),
        shift=jnp.zeros(mask.shape[:1], jnp.int32),
        block=block,
        stacked=a.scan,
    )


def zeros(architecture: Architecture, rows: int, shape: tuple[int, int], layout: Layout) -> Array:
    """Return keys or values of 0, ``[rows, G, *shape]``, of all layers if they are stacked."""
    lead = (architecture.layers,) if architecture.scan else ()
    empty = jnp.zeros((*lead, rows, architecture.kv_heads, *shape), architecture.dtype)
    return layout(empty, (*(None for _ in lead), "rows", "kv_heads", None, None))


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
    angles = layer.rotation(a, (position - attention.per_row(cache.shift, token))[:, None])
    seen, angles = jax.tree.map(lambda x: layout(x, ("rows",)), (seen, angles))  # once, before the layers

    def apply_layer(
        number: int, i: Array | int, x: Array, weights: Tree, prompt: Pair, completion: Any
    ) -> tuple[Array, Any]:
        """Apply layer ``i``, which has the kind of layer ``number``."""

        def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Any]:
            in_prompt, in_row = visible[form]
            before = functools.partial(reads.prompts, form, cache=cache, seen=in_prompt, number=i, prompt=prompt)
            if a.scan:
                written = reads.put(completion, reads.stored(key, value), cache.length, i)
                read = functools.partial(
                    reads.looped, form, pair=written, seen=in_row[:, None], number=i, block=cache.block
                )
            else:
                written = reads.write(completion, reads.stored(key, value), cache.length)
                read = functools.partial(
                    reads.UNROLLED[a.decode_attention], form, blocks=written, seen=in_row, layout=layout
                )
            return reads.mixed(before, query, prompt, functools.partial(read, last=cache.length)), written

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
        for i, parts in enumerate(zip(weights["layers"], cache.prompt, cache.completion, strict=True)):
            x, blocks = apply_layer(i, i, x, *parts)
            written.append(blocks)
        completion = tuple(written)
    cache = dataclasses.replace(cache, completion=completion, mask=seen, length=cache.length + 1)
    return layer.final(a, weights, x)[:, 0], cache


def _visible(
    form: attention.Form, prompt_mask: Array, seen: Array, position: Array, prompt_length: Array
) -> tuple[Array, Array]:
    """Return the keys of the prompt [P, 1, lanes or 1, L] and of the row [B, S] that a token at ``position`` sees."""
    in_prompt = prompt_mask[:, None, None, :]
    if not form.window:
        return in_prompt, seen
    query = position.reshape(prompt_mask.shape[0], 1, -1, 1)
    key = prompt_length[:, None] + layer.positions(seen)
    return (
        in_prompt & attention.near(form, query, layer.positions(prompt_mask)[:, None, None, :]),
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
        shift=cache.shift if prompts is None else cache.shift[prompts],
        completion=take(cache.completion, rows),
        mask=cache.mask[rows],
    )
