"""Decoding: what was read stays as keys and values, the prompt's once for all its samples.

A cache holds the keys of P prompts and, for each of B rows (row b of prompt b // (B / P)), those of its own tokens, in
blocks of columns. All rows write the same column at a time and a block is read once it is in use, so work follows the
tokens that exist. The layers stand one after the other: a loop over them would copy weights and cache at each token.
"""

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp

from rljax.models import attention, transformer
from rljax.models.architecture import MATRICES, Architecture
from rljax.types import Array, Tree

Pair = tuple[Array, Array]


@flax.struct.dataclass
class Cache:
    """Keys and values of each layer in the compute dtype; keys are rotated already."""

    prompt: tuple[Pair, ...]  # of each layer: key [P, G, K, L], value [P, G, L, K]
    own: tuple[tuple[Pair, ...], ...]  # of each layer and block: key [B, G, K, C], value [B, G, C, K]
    prompt_mask: Array  # [P, L] bool
    mask: Array  # [B, S] bool: columns of all blocks that hold a real token
    length: Array  # [] int32, columns written so far


def prepare(architecture: Architecture, params: Tree) -> Tree:
    """Return the parameters as decoding reads them: in the compute dtype, layers apart, once for many tokens.

    With ``decode_weights`` "int8" the layers' matrices are rounded to 255 steps for each of their outputs, which halves
    what a token reads of them in bfloat16. The policy that samples is then another one: its log-probs are the
    ``behaviour_logp`` that importance weights correct for, and ``sampler_gap`` is the distance.
    """
    a = architecture
    cast = jax.tree.map(lambda w: w.astype(a.dtype), {k: v for k, v in params.items() if k != "final_norm"})
    layers = transformer.unstacked(a, cast["layers"])
    if a.decode_weights == "int8":
        layers = [{name: _rounded(name, w) for name, w in layer.items()} for layer in layers]
    return {**cast, "layers": layers, "final_norm": params["final_norm"]}


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
    constrain: transformer.Constrain,
) -> tuple[Array, Cache]:
    """Read prompts [P, L]; return hidden [P, L, D] and a cache for P * ``samples`` rows of ``columns`` each."""
    a, reads = architecture, transformer.whole(mask)
    rows, kept = token.shape[0] * samples, []
    widths = [min(block, columns - i) for i in range(0, columns, block)] if block else [columns]

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Pair]:
        mixed = attention.attend(a.attention, form, query, key, value, reads)
        return mixed, (key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3))

    x, angles = transformer.embed(a, weights, token), transformer.rotation(a, reads.position)
    for i, layer in enumerate(weights["layers"]):
        x, pair = transformer.layer(a, i, layer, x, angles, mix, constrain)
        kept.append(pair)

    def empty(*shape: int) -> Array:
        return constrain(jnp.zeros((rows, a.kv_heads, *shape), a.dtype), ("rows", "kv_heads", None, None))

    own = tuple(tuple((empty(a.head_size, w), empty(w, a.head_size)) for w in widths) for _ in kept)
    cache = Cache(
        prompt=tuple(kept),
        own=own,
        prompt_mask=mask != 0,
        mask=constrain(jnp.zeros((rows, columns), bool), ("rows", None)),
        length=jnp.zeros((), jnp.int32),
    )
    return transformer.final(a, weights, x), cache


def extend(
    architecture: Architecture,
    weights: Tree,
    token: Array,
    mask: Array,
    cache: Cache,
    constrain: transformer.Constrain,
) -> tuple[Array, Cache]:
    """Append one token [B] to each row, real where ``mask`` [B]; return hidden [B, D] and the cache."""
    a = architecture
    before = attention.per_row(jnp.sum(cache.prompt_mask, axis=1, dtype=jnp.int32), token)
    position = before + jnp.sum(cache.mask, axis=1, dtype=jnp.int32)
    seen = jax.lax.dynamic_update_slice(cache.mask, mask[:, None] != 0, (jnp.zeros_like(cache.length), cache.length))
    own_position = before[:, None] + transformer.places(seen)

    @functools.cache
    def visible(form: attention.Form) -> tuple[Array, Array]:
        """Which keys of the prompt [P, 1, lanes or 1, L] and of the row [B, S] the new token sees."""
        if not form.window:
            return cache.prompt_mask[:, None, None, :], seen
        each = position.reshape(cache.prompt_mask.shape[0], 1, -1, 1)
        ahead = transformer.places(cache.prompt_mask)[:, None, None, :]
        return (
            cache.prompt_mask[:, None, None, :] & attention.near(form, each, ahead),
            seen & attention.near(form, position[:, None], own_position),
        )

    x, angles = transformer.embed(a, weights, token[:, None]), transformer.rotation(a, position[:, None])
    own = []
    for i, (layer, prompt, blocks) in enumerate(zip(weights["layers"], cache.prompt, cache.own, strict=True)):

        def mix(form: attention.Form, query: Array, key: Array, value: Array, prompt=prompt, blocks=blocks):
            written = _write(blocks, key, value, cache.length)
            return _read(form, query, prompt, *visible(form), written, cache.length), written

        x, written = transformer.layer(a, i, layer, x, angles, mix, constrain)
        own.append(written)
    hidden = transformer.final(a, weights, x)[:, 0]
    return hidden, dataclasses.replace(cache, own=tuple(own), mask=seen, length=cache.length + 1)


def select(cache: Cache, prompts: Array | None, rows: Array) -> Cache:
    """Return the cache of some rows [b] alone, and of some prompts [p] (None: all of them), p dividing b."""
    take = (lambda x: x) if prompts is None else (lambda x: x[prompts])
    return dataclasses.replace(
        cache,
        prompt=jax.tree.map(take, cache.prompt),
        prompt_mask=take(cache.prompt_mask),
        own=jax.tree.map(lambda x: x[rows], cache.own),
        mask=cache.mask[rows],
    )


def _write(blocks: tuple[Pair, ...], key: Array, value: Array, column: Array) -> tuple[Pair, ...]:
    """Write one token's key and value [B, 1, G, K] into ``column``."""
    key, value = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
    written, start, zero = [], 0, jnp.zeros_like(column)
    for keys, values in blocks:
        place = jnp.clip(column - start, 0, keys.shape[3] - 1)
        inside = (column >= start) & (column < start + keys.shape[3])
        at = ((zero, zero, zero, place), (zero, zero, place, zero))
        pair = []
        for whole, part, where in zip((keys, values), (key, value), at, strict=True):
            # every block is written, most of them with what stands there: a condition would copy them
            old = jax.lax.dynamic_slice(whole, where, part.shape) if len(blocks) > 1 else part
            pair.append(jax.lax.dynamic_update_slice(whole, jnp.where(inside, part, old), where))
        written.append((pair[0], pair[1]))
        start += keys.shape[3]
    return tuple(written)


def _read(
    form: attention.Form,
    query: Array,
    prompt: Pair,
    ahead: Array,
    seen: Array,
    blocks: tuple[Pair, ...],
    last: Array,
) -> Array:
    """Attend from ``query`` [B, 1, H, K] to the prompt and to every block in use, ``last`` the newest column."""
    rows, _, heads, size = query.shape
    prompts, kv = prompt[0].shape[:2]
    lanes, group = rows // prompts, heads // kv
    # The lanes of a prompt are queries of one product with its keys.
    together = query.reshape(prompts, lanes, kv, group, size).transpose(0, 2, 1, 3, 4)
    if ahead.shape[2] > 1:
        ahead = jnp.repeat(ahead, group, axis=2)
    part = attention.partial(form, together.reshape(prompts, kv, -1, size), *prompt, ahead)

    def apart(x: Array) -> Array:
        return x.reshape(prompts, kv, lanes, group, -1).swapaxes(1, 2).reshape(rows, kv, group, -1)

    parts = [attention.Partial(*map(apart, part))]
    query, start = query.reshape(rows, kv, group, size), 0
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
    return attention.merged(parts).reshape(rows, 1, heads, size)
