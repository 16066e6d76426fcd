"""Attention of a batch of rows over themselves and over a prompt that several rows share.

A query attends to the tokens of its segment up to and including itself, or the end of its picture, and to every real
token of its prompt, which precedes the row; with a window, only to keys of the last ``window`` positions and later. The
keys and values of a prompt are stored once for all its rows: row b belongs to prompt b // (B / P).

Dimension key, in addition to the key of ``types``: W positions of a row, L of a prompt, P prompts, G key-value heads,
R = H / G query heads that share a key-value head.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.models.layouts import UNCONSTRAINED, Layout, Names
from rljax.transforms import ops
from rljax.types import Array

# So low that exp underflows to exactly 0, finite so that a query without any visible key has a finite result.
MASKED = -1e30
_TILE, _TILES = 64, 8  # "blocked": the fewest queries of a tile, and the most tiles: each one is compiled
_HEADS: Names = ("rows", None, "attending", None)
_COLUMNS: Names = ("rows", None)


class Form(NamedTuple):
    """The formula of a weight: softmax(cap tanh(scale q k / cap)) over the last ``window`` positions."""

    scale: float
    cap: float = 0.0  # 0: no cap
    window: int = 0  # 0: all positions
    ahead: int = 0  # the most columns after its own that a query attends to


class Rows(NamedTuple):
    """Which tokens of a row attend to which."""

    segment: Array  # [B, W] int32, 0 on padding; a query attends within its segment
    position: Array  # [B, W] int32, read if there is a window
    last: Array | None = None  # [B, W] int32, the last column that a query attends to; None: its own


class Prompt(NamedTuple):
    """The prompts that rows attend to."""

    key: Array  # [P, L, G, K], rotated
    value: Array  # [P, L, G, K]
    mask: Array  # [P, L], nonzero on real tokens
    position: Array  # [P, L] int32


def attend(
    implementation: str,
    form: Form,
    query: Array,
    key: Array,
    value: Array,
    rows: Rows,
    prompt: Prompt | None = None,
    layout: Layout = UNCONSTRAINED,
) -> Array:
    """Return softmax(score) v. Matrix products keep the dtype of their operands and accumulate in float32.

    Each device computes its rows and heads over all positions. If a mesh splits positions, an all-to-all exchanges
    them for heads before, and back after (DeepSpeed Ulysses, arXiv 2309.14509); key-value heads that are too few to be
    split are repeated.

    Args:
      implementation: one of ``IMPLEMENTATIONS``.
      form: the formula of the weights.
      query: ``[B, W, H, K]``, rotated.
      key: ``[B, W, G, K]``, rotated.
      value: ``[B, W, G, K]``.
      rows: the segment and position of each token.
      prompt: visible to every segment of a row; None: there is no prompt.
      layout: how the arrays are sharded over a mesh.

    Returns:
      ``[B, W, H, K]`` float32.
    """
    shards = math.prod(layout.split(query.shape, _HEADS)[2].values())
    repeats = math.lcm(key.shape[2], shards) // key.shape[2]

    def spread(x: Array) -> Array:
        return x if repeats == 1 else ops.repeat(x, repeats, axis=2)

    columns = [x for x in rows if x is not None]

    def run(query: Array, key: Array, value: Array, *rest: Array) -> Array:
        each, prompt = Rows(*rest[: len(columns)]), rest[len(columns) :]
        shared = Prompt(*prompt) if prompt else None
        return IMPLEMENTATIONS[implementation](form, query, key, value, each, shared)

    arrays, names = [query, spread(key), spread(value), *columns], [_HEADS] * 3 + [_COLUMNS] * len(columns)
    if prompt is not None:
        arrays += [spread(prompt.key), spread(prompt.value), prompt.mask, prompt.position]
        names += [_HEADS] * 2 + [_COLUMNS] * 2
    return layout.apart(run, names, _HEADS)(*arrays)


def capped(z: Array, cap: float) -> Array:
    """Return cap tanh(z / cap), or z if ``cap`` is 0."""
    return cap * jnp.tanh(z / cap) if cap else z


def near(form: Form, query: Array, key: Array) -> Array | bool:
    """Return whether keys are inside the window of queries.

    Args:
      form: its ``window`` is read.
      query: positions, int32, broadcast against ``key``.
      key: positions, int32.

    Returns:
      A bool array of the broadcast shape, or True if there is no window.
    """
    return query - key < form.window if form.window else True


def _visible(form: Form, rows: Rows, prompt: Prompt | None, start: int, stop: int, end: int) -> Array:
    """Return which keys [prompt | row up to ``end``] the queries [start, stop) attend to: bool [B, q, L + end]."""
    segment, position = rows.segment, rows.position
    last = jnp.arange(segment.shape[1])[None] if rows.last is None else rows.last
    in_row = segment[:, start:stop, None] == segment[:, None, :end]
    in_row &= (segment != 0)[:, None, :end]
    in_row &= jnp.arange(end)[None, None, :] <= last[:, start:stop, None]
    in_row &= near(form, position[:, start:stop, None], position[:, None, :end])
    if prompt is None:
        return in_row
    in_prompt = per_row(prompt.mask, segment)[:, None, :] != 0
    in_prompt &= near(form, position[:, start:stop, None], per_row(prompt.position, segment)[:, None, :])
    shape = (segment.shape[0], stop - start, prompt.mask.shape[1])
    return jnp.concatenate([jnp.broadcast_to(in_prompt, shape), in_row], axis=2)


def per_row(x: Array, like: Array) -> Array:
    """Repeat x [P, ...] for the adjacent rows of each prompt, to [B, ...] with the B of ``like``."""
    return ops.repeat(x, like.shape[0] // x.shape[0])


def _joined(key: Array, value: Array, prompt: Prompt | None) -> tuple[Array, Array]:
    """Concatenate the prompt's keys and values with every row's."""
    if prompt is None:
        return key, value
    return (
        jnp.concatenate([per_row(prompt.key, key), key], axis=1),
        jnp.concatenate([per_row(prompt.value, value), value], axis=1),
    )


def _product(spec: str, left: Array, right: Array) -> Array:
    return jnp.einsum(spec, left, right, preferred_element_type=jnp.float32)


def _largest(score: Array) -> Array:
    """Return each query's largest score [..., 1], rounded up to a multiple of log 2.

    exp(score - largest) over any part of the keys then differs by a power of two, so that bfloat16 rounds the weights
    of a decoder, which reads the keys in parts, as it rounds a whole row's.
    """
    largest = jnp.max(score, axis=-1, keepdims=True)
    return jnp.where(largest > MASKED / 2, jnp.ceil(largest / math.log(2)) * math.log(2), largest)


def _plain(form: Form, query: Array, key: Array, value: Array, rows: Rows, prompt: Prompt | None) -> Array:
    """One softmax over all keys, differentiated by JAX: the definition."""
    count, width, heads, size = query.shape
    valid = _visible(form, rows, prompt, 0, width, width)
    key, value = _joined(key, value, prompt)
    grouped = query.reshape(count, width, key.shape[2], heads // key.shape[2], size)
    score = capped(_product("bsgrk,btgk->bgrst", grouped, key) * form.scale, form.cap)
    score = jnp.where(valid[:, None, None], score, MASKED)
    weight = jax.nn.softmax(score, axis=-1)
    if weight.dtype == value.dtype:
        return _product("bgrst,btgk->bsgrk", weight, value).reshape(query.shape)
    # Weights are rounded as ``partial`` rounds them, before the division by their sum.
    largest = jnp.max(score, axis=-1, keepdims=True)
    total = jnp.exp(largest - _largest(score)) / jnp.max(weight, axis=-1, keepdims=True)
    total = jax.lax.stop_gradient(total)
    out = _product("bgrst,btgk->bgrsk", (weight * total).astype(value.dtype), value) / total
    return out.transpose(0, 3, 1, 2, 4).reshape(query.shape)


# --- tiles of queries: masked tiles are not computed, weights are recomputed in the backward pass --------


def _tiled(form: Form, query: Array, key: Array, value: Array, rows: Rows, prompt: Prompt | None) -> Array:
    """Split queries into tiles, each over the keys up to its end; save one number per query for the gradient."""
    count, width, heads, size = query.shape
    kv = key.shape[2]
    length = 0 if prompt is None else prompt.mask.shape[1]
    tiles = max(1, min(width // _TILE, _TILES))
    edges = [width * i // tiles for i in range(tiles + 1)]
    key, value = _joined(key, value, prompt)
    # [B, G, ...]: contiguous for each row and key-value head
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    query = query.reshape(count, width, kv, heads // kv, size).transpose(0, 2, 3, 1, 4)
    out = []
    for start, stop in itertools.pairwise(edges):
        end = stop if rows.last is None else min(stop + form.ahead, width)
        valid = _visible(form, rows, prompt, start, stop, end)
        keys = slice(0, length + end)
        out.append(_tile(form, query[:, :, :, start:stop], key[:, :, keys], value[:, :, keys], valid))
    return jnp.concatenate(out, axis=3).transpose(0, 3, 1, 2, 4).reshape(count, width, heads, size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tile(form: Form, query: Array, key: Array, value: Array, valid: Array) -> Array:
    """Return the attention of query [B, G, R, q, K] over key and value [B, G, S, K], ``valid`` [B, q, S]; float32."""
    return _tile_forward(form, query, key, value, valid)[0]


def _scores(form: Form, query: Array, key: Array, valid: Array) -> Array:
    """Return masked scores [B, G, R, q, S]."""
    shape = (*query.shape[:4], key.shape[2])
    flat = query.reshape(*query.shape[:2], -1, query.shape[-1])
    score = capped(_product("bgqk,bgtk->bgqt", flat, key) * form.scale, form.cap).reshape(shape)
    return jnp.where(valid[:, None, None], score, MASKED)


def _tile_forward(form: Form, query: Array, key: Array, value: Array, valid: Array) -> tuple[Array, Any]:
    score = _scores(form, query, key, valid)
    largest = _largest(score)
    weight = jnp.exp(score - largest)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    flat = weight.astype(value.dtype).reshape(*query.shape[:2], -1, key.shape[2])
    out = _product("bgqt,bgtk->bgqk", flat, value).reshape(query.shape) / total
    return out, (query, key, value, valid, out, largest + jnp.log(total))


def _tile_backward(form: Form, saved: Any, gradient: Array) -> tuple[Array, Array, Array, None]:
    query, key, value, valid, out, normaliser = saved
    lead, length, size = query.shape[:2], key.shape[2], query.shape[-1]
    score = _scores(form, query, key, valid)
    weight = jnp.exp(score - normaliser).reshape(*lead, -1, length)
    inner = jnp.sum(gradient * out, axis=-1).reshape(*lead, -1, 1)
    by_out = gradient.reshape(*lead, -1, size).astype(value.dtype)
    by_weight = _product("bgqk,bgtk->bgqt", by_out, value)
    by_score = weight * (by_weight - inner) * form.scale
    if form.cap:  # masked scores have weight 0; their squares would overflow
        slope = 1 - (jnp.where(valid[:, None, None], score, 0.0) / form.cap) ** 2
        by_score *= slope.reshape(by_score.shape)
    by_score = by_score.astype(key.dtype)
    flat = query.reshape(*lead, -1, size)
    by_query = _product("bgqt,bgtk->bgqk", by_score, key).reshape(query.shape)
    by_key = _product("bgqt,bgqk->bgtk", by_score, flat)
    by_value = _product("bgqt,bgqk->bgtk", weight.astype(value.dtype), by_out)
    return by_query.astype(query.dtype), by_key.astype(key.dtype), by_value.astype(value.dtype), None


_tile.defvjp(_tile_forward, _tile_backward)


# --- accelerator kernels --------------------------------------------------------------------------------


def _cudnn(form: Form, query: Array, key: Array, value: Array, rows: Rows, prompt: Prompt | None) -> Array:
    """Run cuDNN's fused attention (GPU, bfloat16, no cap)."""
    valid = _visible(form, rows, prompt, 0, query.shape[1], query.shape[1])
    key, value = _joined(key, value, prompt)
    out = jax.nn.dot_product_attention(query, key, value, mask=valid[:, None], scale=form.scale, implementation="cudnn")
    return out.astype(jnp.float32)


def _splash(
    form: Form,
    query: Array,
    key: Array,
    value: Array,
    rows: Rows,
    prompt: Prompt | None,
    *,
    interpret: bool = False,
) -> Array:
    """Run JAX's splash kernel (TPU); widths must be multiples of 128.

    It masks by column and by equal segment ids: with a prompt, a row must hold one segment of adjacent real tokens.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    segment, width, heads = rows.segment, *query.shape[1:3]
    length = 0 if prompt is None else prompt.mask.shape[1]
    short = -length % 128  # the prompt is padded on the left to whole tiles of 128 keys
    kv_segment = segment
    if prompt is not None:
        # the prompt has the id of the row's only segment
        shared = jnp.where(per_row(prompt.mask != 0, segment), jnp.max(segment, axis=1, keepdims=True), 0)
        kv_segment = jnp.concatenate([jnp.pad(shared, ((0, 0), (short, 0))), segment], axis=1)
    key, value = _joined(key, value, prompt)
    if short and prompt is not None:
        key, value = (jnp.pad(x, ((0, 0), (short, 0), (0, 0), (0, 0))) for x in (key, value))
    shape, offset = (width, key.shape[1]), key.shape[1] - width
    mask = masks.LocalMask(shape, (form.window - 1, 0), offset) if form.window else masks.CausalMask(shape, offset)
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * heads), attn_logits_soft_cap=form.cap or None, interpret=interpret
    )

    def row(query: Array, key: Array, value: Array, segment: Array, kv_segment: Array) -> Array:
        repeat = functools.partial(ops.repeat, count=heads // key.shape[1], axis=1)
        q, k, v = (x.transpose(1, 0, 2) for x in (query * form.scale, repeat(key), repeat(value)))
        # padding (segment 0) attends to padding: its result is finite and not used
        out: Any = kernel(q, k, v, segment_ids=splash.SegmentIds(q=segment, kv=kv_segment))
        return out.transpose(1, 0, 2)

    return jax.vmap(row)(query, key, value, segment, kv_segment).astype(jnp.float32)


IMPLEMENTATIONS: dict[str, Callable[..., Array]] = {
    "plain": _plain,
    "blocked": _tiled,
    "cudnn": _cudnn,
    "splash": _splash,
}


# --- decoding: one query per row, partial softmaxes over blocks of the cache ------------------------------


class Partial(NamedTuple):
    """An unnormalized softmax over some of the keys, scaled by exp(-largest)."""

    largest: Array  # [..., 1] float32, the largest score, rounded up to a multiple of log 2
    total: Array  # [..., 1] float32, the sum of the weights
    out: Array  # [..., K] float32, the weighted sum of the values


def partial(form: Form, query: Array, key: Array, value: Array, valid: Array) -> Partial:
    """Attend to some of the keys.

    Args:
      form: the formula of the weights; the window is in ``valid``.
      query: ``[B, G, q, K]``, rotated.
      key: ``[B, G, K, S]``, rotated.
      value: ``[B, G, S, K]``.
      valid: ``[B, 1, q or 1, S]`` bool, the visible keys.

    Returns:
      The partial softmax over these keys, ``[B, G, q, ...]``.
    """
    score = capped(_product("bgqk,bgks->bgqs", query, key) * form.scale, form.cap)
    weight, largest = weighed(jnp.where(valid, score, MASKED))
    out = _product("bgqs,bgsk->bgqk", weight.astype(value.dtype), value)
    return Partial(largest, jnp.sum(weight, axis=-1, keepdims=True), out)


def weighed(score: Array) -> tuple[Array, Array]:
    """Return exp(score - largest) and the largest score of each query, rounded up as ``Partial`` says."""
    largest = _largest(score)
    return jnp.exp(score - largest), largest


def empty(query: Array) -> Partial:
    """Return the partial softmax over no key, for ``query`` [B, G, q, K]."""
    column = query[..., :1].astype(jnp.float32)
    return Partial(jnp.full_like(column, MASKED), jnp.zeros_like(column), jnp.zeros(query.shape, jnp.float32))


def joined(parts: list[Partial]) -> Partial:
    """Return the partial softmax over the union of the keys of all parts."""
    largest = functools.reduce(jnp.maximum, [p.largest for p in parts])
    scale = [jnp.exp(p.largest - largest) for p in parts]
    total = sum(p.total * s for p, s in zip(parts, scale, strict=True))
    out = sum(p.out * s for p, s in zip(parts, scale, strict=True))
    return Partial(largest, jnp.asarray(total), jnp.asarray(out))


def merged(parts: list[Partial]) -> Array:
    """Return the attention over the union of the keys of all parts, [..., K] float32."""
    whole = joined(parts)
    return whole.out / whole.total
