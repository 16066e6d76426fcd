"""Attention of a batch of rows over themselves and over a prompt that several rows share.

A row's query sees its own tokens up to itself within its segment, and every real token of its prompt, which stands
before them. Prompt keys are held once for all the rows of a prompt: row b belongs to prompt b // (B / P).

Dimension key beside that of ``types``: W positions of a row, L of a prompt, P prompts, G key-value heads, R = H / G
query heads that share one.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.types import Array

# Large enough that exp underflows to exactly 0, finite so that a row with nothing to attend to stays finite.
MASKED = -1e30
_BLOCK = 64  # queries of a block in "blocked"


class Prompt(NamedTuple):
    """What rows see beside themselves: keys and values [P, L, G, K] and which are real [P, L]."""

    key: Array
    value: Array
    mask: Array


def attend(
    implementation: str, query: Array, key: Array, value: Array, segment: Array, prompt: Prompt | None = None
) -> Array:
    """Return softmax(q k / sqrt(K)) v, float32 [B, W, H, K]; operands in their own dtype, sums in float32.

    Args:
      implementation: one of ``IMPLEMENTATIONS``.
      query: [B, W, H, K].
      key: [B, W, G, K], rotated.
      value: [B, W, G, K].
      segment: [B, W] int32, 0 on padding; a query sees earlier positions of its own segment.
      prompt: what every segment of a row sees as well.
    """
    return IMPLEMENTATIONS[implementation](query, key, value, segment, prompt)


def _visible(segment: Array, prompt: Prompt | None, start: int, stop: int) -> Array:
    """Which keys [prompt | own up to ``stop``] the queries [start, stop) of a row see: bool [B, q, L + stop]."""
    own = segment[:, start:stop, None] == segment[:, None, :stop]
    own &= (segment != 0)[:, None, :stop]
    own &= jnp.arange(stop)[None, None, :] <= jnp.arange(start, stop)[None, :, None]
    if prompt is None:
        return own
    shape = (segment.shape[0], stop - start, prompt.mask.shape[1])
    return jnp.concatenate([jnp.broadcast_to(per_row(prompt.mask, segment)[:, None, :] != 0, shape), own], axis=2)


def per_row(x: Array, like: Array) -> Array:
    """Repeat [P, ...] for the adjacent rows of each prompt, B of them as in ``like`` [B, ...]."""
    return jnp.repeat(x, like.shape[0] // x.shape[0], axis=0, total_repeat_length=like.shape[0])


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


def _plain(query: Array, key: Array, value: Array, segment: Array, prompt: Prompt | None) -> Array:
    """One softmax over all keys, differentiated by jax: the definition."""
    rows, width, heads, size = query.shape
    valid = _visible(segment, prompt, 0, width)
    key, value = _joined(key, value, prompt)
    grouped = query.reshape(rows, width, key.shape[2], heads // key.shape[2], size)
    score = _product("bsgrk,btgk->bgrst", grouped, key) * size**-0.5
    weight = jax.nn.softmax(jnp.where(valid[:, None, None], score, MASKED), axis=-1)
    return _product("bgrst,btgk->bsgrk", weight.astype(value.dtype), value).reshape(rows, width, heads, size)


# --- blocked: what the future hides is not computed, what the backward pass can remake is not kept ------


def _blocked(query: Array, key: Array, value: Array, segment: Array, prompt: Prompt | None) -> Array:
    """Cut queries into blocks that stop at their own last key; keep one number a query for the gradient."""
    rows, width, heads, size = query.shape
    kv = key.shape[2]
    before = 0 if prompt is None else prompt.mask.shape[1]
    blocks = max(1, width // _BLOCK)
    edges = [width * i // blocks for i in range(blocks + 1)]
    key, value = _joined(key, value, prompt)
    # [B, G, ...]: one contiguous panel for each row and key-value head
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    query = query.reshape(rows, width, kv, heads // kv, size).transpose(0, 2, 3, 1, 4)
    out = []
    for start, stop in itertools.pairwise(edges):
        valid = _visible(segment, prompt, start, stop)
        seen = slice(0, before + stop)
        out.append(_panel(query[:, :, :, start:stop], key[:, :, seen], value[:, :, seen], valid))
    return jnp.concatenate(out, axis=3).transpose(0, 3, 1, 2, 4).reshape(rows, width, heads, size)


@jax.custom_vjp
def _panel(query: Array, key: Array, value: Array, valid: Array) -> Array:
    """Attention of [B, G, R, q, K] over [B, G, S, K] where ``valid`` [B, q, S]; float32."""
    return _panel_forward(query, key, value, valid)[0]


def _scores(query: Array, key: Array, valid: Array) -> Array:
    """Masked scores [B, G, R, q, S]."""
    shape = (*query.shape[:4], key.shape[2])
    flat = query.reshape(*query.shape[:2], -1, query.shape[-1])
    score = (_product("bgqk,bgtk->bgqt", flat, key) * query.shape[-1] ** -0.5).reshape(shape)
    return jnp.where(valid[:, None, None], score, MASKED)


def _panel_forward(query: Array, key: Array, value: Array, valid: Array) -> tuple[Array, Any]:
    score = _scores(query, key, valid)
    largest = jnp.max(score, axis=-1, keepdims=True)
    weight = jnp.exp(score - largest)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    flat = weight.astype(value.dtype).reshape(*query.shape[:2], -1, key.shape[2])
    out = _product("bgqt,bgtk->bgqk", flat, value).reshape(query.shape) / total
    return out, (query, key, value, valid, out, largest + jnp.log(total))


def _panel_backward(saved: Any, gradient: Array) -> tuple[Array, Array, Array, None]:
    query, key, value, valid, out, normaliser = saved
    lead, length, size = query.shape[:2], key.shape[2], query.shape[-1]
    weight = jnp.exp(_scores(query, key, valid) - normaliser).reshape(*lead, -1, length)
    inner = jnp.sum(gradient * out, axis=-1).reshape(*lead, -1, 1)
    by_out = gradient.reshape(*lead, -1, size).astype(value.dtype)
    by_weight = _product("bgqk,bgtk->bgqt", by_out, value)
    by_score = (weight * (by_weight - inner) * size**-0.5).astype(key.dtype)
    flat = query.reshape(*lead, -1, size)
    by_query = _product("bgqt,bgtk->bgqk", by_score, key).reshape(query.shape)
    by_key = _product("bgqt,bgqk->bgtk", by_score, flat)
    by_value = _product("bgqt,bgqk->bgtk", weight.astype(value.dtype), by_out)
    return by_query.astype(query.dtype), by_key.astype(key.dtype), by_value.astype(value.dtype), None


_panel.defvjp(_panel_forward, _panel_backward)


# --- kernels of the accelerators ------------------------------------------------------------------------


def _cudnn(query: Array, key: Array, value: Array, segment: Array, prompt: Prompt | None) -> Array:
    """Run cuDNN's fused attention (GPU, bfloat16)."""
    valid = _visible(segment, prompt, 0, query.shape[1])
    key, value = _joined(key, value, prompt)
    out = jax.nn.dot_product_attention(query, key, value, mask=valid[:, None], implementation="cudnn")
    return out.astype(jnp.float32)


def _splash(
    query: Array, key: Array, value: Array, segment: Array, prompt: Prompt | None, *, interpret: bool = False
) -> Array:
    """Run jax's block-sparse splash kernel (TPU); widths must divide by 128.

    Its mask is causal and by equal segment ids, so with a prompt a row holds one segment.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, width, heads, size = query.shape
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
    causal = masks.CausalMask((width, key.shape[1]), offset=key.shape[1] - width)
    kernel = splash.make_splash_mha_single_device(masks.MultiHeadMask([causal] * heads), interpret=interpret)

    def row(query: Array, key: Array, value: Array, segment: Array, kv_segment: Array) -> Array:
        repeat = functools.partial(jnp.repeat, repeats=heads // key.shape[1], axis=1)
        q, k, v = (x.transpose(1, 0, 2) for x in (query * size**-0.5, repeat(key), repeat(value)))
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


def partial(query: Array, key: Array, value: Array, valid: Array) -> Partial:
    """Attend to some keys: query [B, G, q, K], key [B, G, K, S], value [B, G, S, K], valid [B, 1, q or 1, S]."""
    score = _product("bgqk,bgks->bgqs", query, key) * query.shape[-1] ** -0.5
    score = jnp.where(valid, score, MASKED)
    largest = jnp.max(score, axis=-1, keepdims=True)
    weight = jnp.exp(score - largest)
    out = _product("bgqs,bgsk->bgqk", weight.astype(value.dtype), value)
    return Partial(largest, jnp.sum(weight, axis=-1, keepdims=True), out)


def nothing(query: Array) -> Partial:
    """Return the softmax over no key at all, for ``query`` [B, G, q, K]."""
    column = query[..., :1].astype(jnp.float32)
    return Partial(jnp.full_like(column, MASKED), jnp.zeros_like(column), jnp.zeros(query.shape, jnp.float32))


def merged(parts: list[Partial]) -> Array:
    """Return the softmax over the keys of all parts together."""
    largest = functools.reduce(jnp.maximum, [p.largest for p in parts])
    scale = [jnp.exp(p.largest - largest) for p in parts]
    total = sum(p.total * s for p, s in zip(parts, scale, strict=True))
    out = sum(p.out * s for p, s in zip(parts, scale, strict=True))
    return jnp.asarray(out / total)
