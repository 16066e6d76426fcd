"""Attention of a batch of rows over themselves and over a prompt that several rows share.

A row's query sees its own tokens up to itself within its segment, and every real token of its prompt, which stands
before them; of both, those of the last ``window`` positions where there is one. Prompt keys are held once for all the
rows of a prompt: row b belongs to prompt b // (B / P).

Dimension key beside that of ``types``: W positions of a row, L of a prompt, P prompts, G key-value heads, R = H / G
query heads that share one.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.models.layouts import WHOLE, Layout, Names
from rljax.transforms import ops
from rljax.types import Array

# Large enough that exp underflows to exactly 0, finite so that a row with nothing to attend to stays finite.
MASKED = -1e30
_BLOCK, _BLOCKS = 64, 8  # queries of a block in "blocked", at least; blocks, at most: each is compiled
_HEADS: Names = ("rows", None, "attending", None)
_COLUMNS: Names = ("rows", None)


class Form(NamedTuple):
    """How a score becomes a weight: softmax(cap tanh(scale q k / cap)) over the last ``window`` positions."""

    scale: float
    cap: float = 0.0  # 0: none, the score as it is
    window: int = 0  # 0: all


class Rows(NamedTuple):
    """Who may see whom among a row's tokens."""

    segment: Array  # [B, W] int32, 0 on padding; a query sees earlier tokens of its own segment
    position: Array  # [B, W] int32, read where there is a window


class Prompt(NamedTuple):
    """What rows see beside themselves: keys and values [P, L, G, K], which are real and their positions [P, L]."""

    key: Array
    value: Array
    mask: Array
    position: Array


def attend(
    implementation: str,
    form: Form,
    query: Array,
    key: Array,
    value: Array,
    rows: Rows,
    prompt: Prompt | None = None,
    layout: Layout = WHOLE,
) -> Array:
    """Return softmax(score) v, float32 [B, W, H, K]; operands in their own dtype, sums in float32.

    Each device attends for its own rows and heads, positions whole: where a mesh splits positions, they trade places
    with heads here and back behind (DeepSpeed Ulysses, arXiv 2309.14509), and key-value heads that are too few for that
    are repeated.

    Args:
      implementation: one of ``IMPLEMENTATIONS``.
      form: what a score is.
      query: [B, W, H, K], rotated.
      key: [B, W, G, K], rotated.
      value: [B, W, G, K].
      rows: which token is of which segment, and where.
      prompt: what every segment of a row sees as well.
      layout: of the arrays over a mesh.
    """
    shards = math.prod(layout.split(query.shape, _HEADS)[2].values())
    repeats = math.lcm(key.shape[2], shards) // key.shape[2]

    def spread(x: Array) -> Array:
        return x if repeats == 1 else ops.repeat(x, repeats, axis=2)

    def run(query: Array, key: Array, value: Array, segment: Array, position: Array, *prompt: Array) -> Array:
        ahead = Prompt(*prompt) if prompt else None
        return IMPLEMENTATIONS[implementation](form, query, key, value, Rows(segment, position), ahead)

    arrays, names = [query, spread(key), spread(value), *rows], [_HEADS] * 3 + [_COLUMNS] * 2
    if prompt is not None:
        arrays += [spread(prompt.key), spread(prompt.value), prompt.mask, prompt.position]
        names += [_HEADS] * 2 + [_COLUMNS] * 2
    return layout.apart(run, names, _HEADS)(*arrays)


def capped(z: Array, cap: float) -> Array:
    """Return cap tanh(z / cap), or z where ``cap`` is 0."""
    return cap * jnp.tanh(z / cap) if cap else z


def near(form: Form, query: Array, key: Array) -> Array | bool:
    """Return whether a key's position is inside the window of a query's; they broadcast."""
    return query - key < form.window if form.window else True


def _visible(form: Form, rows: Rows, prompt: Prompt | None, start: int, stop: int) -> Array:
    """Which keys [prompt | own up to ``stop``] the queries [start, stop) of a row see: bool [B, q, L + stop]."""
    segment, position = rows
    own = segment[:, start:stop, None] == segment[:, None, :stop]
    own &= (segment != 0)[:, None, :stop]
    own &= jnp.arange(stop)[None, None, :] <= jnp.arange(start, stop)[None, :, None]
    own &= near(form, position[:, start:stop, None], position[:, None, :stop])
    if prompt is None:
        return own
    ahead = per_row(prompt.mask, segment)[:, None, :] != 0
    ahead &= near(form, position[:, start:stop, None], per_row(prompt.position, segment)[:, None, :])
    shape = (segment.shape[0], stop - start, prompt.mask.shape[1])
    return jnp.concatenate([jnp.broadcast_to(ahead, shape), own], axis=2)


def per_row(x: Array, like: Array) -> Array:
    """Repeat [P, ...] for the adjacent rows of each prompt, B of them as in ``like`` [B, ...]."""
    return ops.repeat(x, like.shape[0] // x.shape[0])


def _joined(key: Array, value: Array, prompt: Prompt | None) -> tuple[Array, Array]:
    """Put the prompt's keys and values before those of every row."""
    if prompt is None:
        return key, value
    return (
        jnp.concatenate([per_row(prompt.key, key), key], axis=1),
        jnp.concatenate([per_row(prompt.value, value), value], axis=1),
    )


def _product(spec: str, left: Array, right: Array) -> Array:
    return jnp.einsum(spec, left, right, preferred_element_type=jnp.float32)


def _plain(form: Form, query: Array, key: Array, value: Array, rows: Rows, prompt: Prompt | None) -> Array:
    """One softmax over all keys, differentiated by jax: the definition."""
    count, width, heads, size = query.shape
    valid = _visible(form, rows, prompt, 0, width)
    key, value = _joined(key, value, prompt)
    grouped = query.reshape(count, width, key.shape[2], heads // key.shape[2], size)
    score = capped(_product("bsgrk,btgk->bgrst", grouped, key) * form.scale, form.cap)
    weight = jax.nn.softmax(jnp.where(valid[:, None, None], score, MASKED), axis=-1)
    return _product("bgrst,btgk->bsgrk", weight.astype(value.dtype), value).reshape(query.shape)


# --- blocked: what the future hides is not computed, what the backward pass can remake is not kept ------


def _blocked(form: Form, query: Array, key: Array, value: Array, rows: Rows, prompt: Prompt | None) -> Array:
    """Cut queries into blocks that stop at their own last key; keep one number a query for the gradient."""
    count, width, heads, size = query.shape
    kv = key.shape[2]
    before = 0 if prompt is None else prompt.mask.shape[1]
    blocks = max(1, min(width // _BLOCK, _BLOCKS))
    edges = [width * i // blocks for i in range(blocks + 1)]
    key, value = _joined(key, value, prompt)
    # [B, G, ...]: one contiguous panel for each row and key-value head
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    query = query.reshape(count, width, kv, heads // kv, size).transpose(0, 2, 3, 1, 4)
    out = []
    for start, stop in itertools.pairwise(edges):
        valid = _visible(form, rows, prompt, start, stop)
        seen = slice(0, before + stop)
        out.append(_panel(form, query[:, :, :, start:stop], key[:, :, seen], value[:, :, seen], valid))
    return jnp.concatenate(out, axis=3).transpose(0, 3, 1, 2, 4).reshape(count, width, heads, size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _panel(form: Form, query: Array, key: Array, value: Array, valid: Array) -> Array:
    """Attention of [B, G, R, q, K] over [B, G, S, K] where ``valid`` [B, q, S]; float32."""
    return _panel_forward(form, query, key, value, valid)[0]


def _scores(form: Form, query: Array, key: Array, valid: Array) -> Array:
    """Masked scores [B, G, R, q, S]."""
    shape = (*query.shape[:4], key.shape[2])
    flat = query.reshape(*query.shape[:2], -1, query.shape[-1])
    score = capped(_product("bgqk,bgtk->bgqt", flat, key) * form.scale, form.cap).reshape(shape)
    return jnp.where(valid[:, None, None], score, MASKED)


def _panel_forward(form: Form, query: Array, key: Array, value: Array, valid: Array) -> tuple[Array, Any]:
    score = _scores(form, query, key, valid)
    largest = jnp.max(score, axis=-1, keepdims=True)
    weight = jnp.exp(score - largest)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    flat = weight.astype(value.dtype).reshape(*query.shape[:2], -1, key.shape[2])
    out = _product("bgqt,bgtk->bgqk", flat, value).reshape(query.shape) / total
    return out, (query, key, value, valid, out, largest + jnp.log(total))


def _panel_backward(form: Form, saved: Any, gradient: Array) -> tuple[Array, Array, Array, None]:
    query, key, value, valid, out, normaliser = saved
    lead, length, size = query.shape[:2], key.shape[2], query.shape[-1]
    score = _scores(form, query, key, valid)
    weight = jnp.exp(score - normaliser).reshape(*lead, -1, length)
    inner = jnp.sum(gradient * out, axis=-1).reshape(*lead, -1, 1)
    by_out = gradient.reshape(*lead, -1, size).astype(value.dtype)
    by_weight = _product("bgqk,bgtk->bgqt", by_out, value)
    by_score = weight * (by_weight - inner) * form.scale
    if form.cap:  # masked scores have weight 0, and must not square to infinity
        slope = 1 - (jnp.where(valid[:, None, None], score, 0.0) / form.cap) ** 2
        by_score *= slope.reshape(by_score.shape)
    by_score = by_score.astype(key.dtype)
    flat = query.reshape(*lead, -1, size)
    by_query = _product("bgqt,bgtk->bgqk", by_score, key).reshape(query.shape)
    by_key = _product("bgqt,bgqk->bgtk", by_score, flat)
    by_value = _product("bgqt,bgqk->bgtk", weight.astype(value.dtype), by_out)
    return by_query.astype(query.dtype), by_key.astype(key.dtype), by_value.astype(value.dtype), None


_panel.defvjp(_panel_forward, _panel_backward)


# --- kernels of the accelerators ------------------------------------------------------------------------


def _cudnn(form: Form, query: Array, key: Array, value: Array, rows: Rows, prompt: Prompt | None) -> Array:
    """Run cuDNN's fused attention (GPU, bfloat16, no cap)."""
    valid = _visible(form, rows, prompt, 0, query.shape[1])
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
    """Run jax's block-sparse splash kernel (TPU); widths must divide by 128.

    Its mask is by column and by equal segment ids: with a prompt a row holds one segment, and real tokens are adjacent.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    segment, width, heads = rows.segment, *query.shape[1:3]
    before = 0 if prompt is None else prompt.mask.shape[1]
    # whole blocks of 128 keys: padding stands before the prompt
    short = -before % 128
    kv_segment = segment
    if prompt is not None:
        # the prompt goes by the name of the row's one segment
        own = jnp.where(per_row(prompt.mask != 0, segment), jnp.max(segment, axis=1, keepdims=True), 0)
        kv_segment = jnp.concatenate([jnp.pad(own, ((0, 0), (short, 0))), segment], axis=1)
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
        # padding, 0, sees padding: any finite value will do there
        out: Any = kernel(q, k, v, segment_ids=splash.SegmentIds(q=segment, kv=kv_segment))
        return out.transpose(1, 0, 2)

    return jax.vmap(row)(query, key, value, segment, kv_segment).astype(jnp.float32)


IMPLEMENTATIONS: dict[str, Callable[..., Array]] = {
    "plain": _plain,
    "blocked": _blocked,
    "cudnn": _cudnn,
    "splash": _splash,
}


# --- decoding: one query, keys in blocks of columns -----------------------------------------------------


class Partial(NamedTuple):
    """A softmax over some of the keys: largest score and sum [..., 1], weighted values [..., K]."""

    largest: Array
    total: Array
    out: Array


def partial(form: Form, query: Array, key: Array, value: Array, valid: Array) -> Partial:
    """Attend to some keys: query [B, G, q, K], key [B, G, K, S], value [B, G, S, K], valid [B, 1, q or 1, S]."""
    score = capped(_product("bgqk,bgks->bgqs", query, key) * form.scale, form.cap)
    score = jnp.where(valid, score, MASKED)
    largest = jnp.max(score, axis=-1, keepdims=True)
    weight = jnp.exp(score - largest)
    out = _product("bgqs,bgsk->bgqk", weight.astype(value.dtype), value)
    return Partial(largest, jnp.sum(weight, axis=-1, keepdims=True), out)


def nothing(query: Array) -> Partial:
    """Return the softmax over no key at all, for ``query`` [B, G, q, K]."""
    column = query[..., :1].astype(jnp.float32)
    return Partial(jnp.full_like(column, MASKED), jnp.zeros_like(column), jnp.zeros(query.shape, jnp.float32))


def joined(parts: list[Partial]) -> Partial:
    """Return the softmax over the keys of all parts together, as a part again."""
    largest = functools.reduce(jnp.maximum, [p.largest for p in parts])
    scale = [jnp.exp(p.largest - largest) for p in parts]
    total = sum(p.total * s for p, s in zip(parts, scale, strict=True))
    out = sum(p.out * s for p, s in zip(parts, scale, strict=True))
    return Partial(largest, jnp.asarray(total), jnp.asarray(out))


def merged(parts: list[Partial]) -> Array:
    """Return the weighted values of all parts together."""
    whole = joined(parts)
    return whole.out / whole.total
