"""What the unembedding says of given tokens, a part of the vocabulary at a time, with a gradient of its own.

Logits z = h W / temperature, capped before the division where the model does so, of M positions exist for ``chunk``
tokens of the vocabulary at once, forward and backward: nothing grows with V but W and its gradient (unless asked to
keep the logits). One pass gives all that is asked for.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.models import attention
from rljax.types import Array


class Asked(NamedTuple):
    """How to compute and what to return beside ``logp``; hashable."""

    dtype: str
    chunk: int  # tokens of the vocabulary at once
    keep: bool = False  # hold the logits for the backward pass in place of making them again
    log_normaliser: bool = False
    entropy: bool = False
    square_prob: bool = False
    cap: float = 0.0  # of the logits before the temperature, see ``attention.capped``


def scores(
    asked: Asked, hidden: Array, embedding: Array, token: Array, temperature: Array, kept: Array | None = None
) -> dict[str, Array]:
    """Return float32 [...] arrays of the distribution softmax(h W^T / temperature) at each position.

    ``logp`` of ``token``; on request ``log_normaliser`` log sum exp z, ``entropy`` -sum p log p, ``square_prob``
    sum p^2. With ``kept``, ``logp`` is renormalised over that support and ``raw_logp`` is the unfiltered one.

    Args:
      asked: what to return.
      hidden: [..., D], differentiated.
      embedding: W [V, D], differentiated.
      token: [...] int32.
      temperature: [] above 0, not differentiated.
      kept: [..., ceil(V / 32)] uint32, packed bits; the token itself always counts as kept.
    """
    found: Any = _scores(asked, hidden, embedding, token, temperature, kept)
    names = ["logp"] + ["raw_logp"] * (kept is not None)
    names += [n for n in ("log_normaliser", "entropy", "square_prob") if getattr(asked, n)]
    return {name: found[name] for name in names}


class _Sums(NamedTuple):
    """Over the vocabulary so far, each [...]; the sums are scaled by exp(-largest)."""

    largest: Array
    total: Array  # sum exp z
    weighted: Array  # sum exp(z) z
    squared: Array  # sum exp(2 z)
    supported: Array  # sum exp z over the support
    chosen: Array  # z of the token


def _strided(embedding: Array, chunk: int) -> tuple[Array, int]:
    """Cut W [V, D] into [n, c, D] where part j holds the tokens i n + j, padded with zeros; return n too.

    Strided, so that a vocabulary split over devices is cut inside each of them.
    """
    parts = -(-embedding.shape[0] // chunk)
    rows = -(-embedding.shape[0] // parts)
    padded = jnp.pad(embedding, ((0, rows * parts - embedding.shape[0]), (0, 0)))
    return padded.reshape(rows, parts, -1).swapaxes(0, 1), parts


def _logits(asked: Asked, hidden: Array, part: Array, ids: Array, vocabulary: int, temperature: Array) -> Array:
    operands = hidden.astype(asked.dtype), part.astype(asked.dtype)
    z = jnp.einsum("...d,cd->...c", *operands, preferred_element_type=jnp.float32)
    z = attention.capped(z, asked.cap) / temperature
    return jnp.where(ids < vocabulary, z, attention.MASKED)


def _support(kept: Array, ids: Array, chosen: Array) -> Array:
    """Return which of ``ids`` [c] are in the support, [..., c]; ``chosen`` always are."""
    words = jnp.take(kept, ids // 32, axis=-1, mode="clip")
    bit = (ids % 32).astype(jnp.uint32).reshape((1,) * (words.ndim - 1) + ids.shape)
    return ((words >> bit) & 1 > 0) | chosen


def _shaped(ids: Array, like: Array) -> Array:
    return ids.reshape((1,) * like.ndim + ids.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(
    asked: Asked, hidden: Array, embedding: Array, token: Array, temperature: Array, kept: Array | None
) -> dict[str, Array]:
    return _forward(asked, hidden, embedding, token, temperature, kept)[0]


def _forward(
    asked: Asked, hidden: Array, embedding: Array, token: Array, temperature: Array, kept: Array | None
) -> tuple[dict[str, Array], Any]:
    parts, count = _strided(embedding, asked.chunk)

    # the part's number is carried: what follows from a number that is read XLA would compute for all parts at once
    def add(carry: tuple[Array, _Sums], part: Array) -> tuple[tuple[Array, _Sums], Array | None]:
        j, sums = carry
        ids = jnp.arange(part.shape[0]) * count + j
        z = _logits(asked, hidden, part, _shaped(ids, token), embedding.shape[0], temperature)
        chosen = _shaped(ids, token) == token[..., None]
        largest = jnp.maximum(sums.largest, jnp.max(z, axis=-1))
        weight = jnp.exp(z - largest[..., None])
        scale = jnp.exp(sums.largest - largest)
        nothing = jnp.zeros_like(largest)
        sums = _Sums(
            largest,
            sums.total * scale + jnp.sum(weight, axis=-1),
            sums.weighted * scale + jnp.sum(weight * z, axis=-1) if asked.entropy else nothing,
            sums.squared * scale**2 + jnp.sum(weight**2, axis=-1) if asked.square_prob else nothing,
            nothing
            if kept is None
            else sums.supported * scale + jnp.sum(jnp.where(_support(kept, ids, chosen), weight, 0.0), axis=-1),
            sums.chosen + jnp.sum(jnp.where(chosen, z, 0.0), axis=-1),
        )
        return (j + 1, sums), z if asked.keep else None

    zero = jnp.zeros(token.shape, jnp.float32)
    start = _Sums(jnp.full_like(zero, attention.MASKED), zero, zero, zero, zero, zero)
    (_, sums), logits = jax.lax.scan(add, (jnp.int32(0), start), parts)
    normaliser = sums.largest + jnp.log(sums.total)
    raw = sums.chosen - normaliser
    found = {"logp": raw, "raw_logp": raw, "log_normaliser": normaliser}
    supported = normaliser
    if kept is not None:
        supported = sums.largest + jnp.log(sums.supported)
        found["logp"] = sums.chosen - supported
    found["entropy"] = normaliser - sums.weighted / sums.total
    found["square_prob"] = sums.squared / sums.total**2
    return found, (hidden, embedding, token, temperature, kept, found, supported, logits)


def _backward(asked: Asked, saved: Any, by: dict[str, Array]) -> tuple[Array, Array, None, None, None]:
    hidden, embedding, token, temperature, kept, found, supported, logits = saved
    parts, count = _strided(embedding, asked.chunk)
    normaliser = found["log_normaliser"]
    plain = by["raw_logp"] if kept is not None else by["logp"] + by["raw_logp"]

    def add(carry: tuple[Array, Array], item: tuple[Array, Array | None]) -> tuple[tuple[Array, Array], Array]:
        (j, by_hidden), (part, z) = carry, item
        ids = jnp.arange(part.shape[0]) * count + j
        ids_shaped = _shaped(ids, token)
        if z is None:
            z = _logits(asked, hidden, part, ids_shaped, embedding.shape[0], temperature)
        chosen = ids_shaped == token[..., None]
        logp = z - normaliser[..., None]
        prob = jnp.exp(logp)
        by_z = prob * (by["log_normaliser"] - plain)[..., None]
        if kept is not None:
            inside = jnp.where(_support(kept, ids, chosen), jnp.exp(z - supported[..., None]), 0.0)
            by_z -= inside * by["logp"][..., None]
        by_z += jnp.where(chosen, (by["logp"] + by["raw_logp"])[..., None], 0.0)
        if asked.entropy:
            by_z -= by["entropy"][..., None] * prob * (logp + found["entropy"][..., None])
        if asked.square_prob:
            by_z += by["square_prob"][..., None] * 2 * prob * (prob - found["square_prob"][..., None])
        by_z /= temperature
        if asked.cap:  # a padding token's by_z is 0
            by_z *= 1 - jnp.where(ids_shaped < embedding.shape[0], z * temperature / asked.cap, 0.0) ** 2
        by_z = by_z.astype(asked.dtype)
        part, h = part.astype(asked.dtype), hidden.astype(asked.dtype)
        by_hidden += jnp.einsum("...c,cd->...d", by_z, part, preferred_element_type=jnp.float32)
        flat = by_z.reshape(-1, by_z.shape[-1]), h.reshape(-1, h.shape[-1])
        return (j + 1, by_hidden), jnp.einsum("mc,md->cd", *flat, preferred_element_type=jnp.float32)

    start = (jnp.int32(0), jnp.zeros(hidden.shape, jnp.float32))
    (_, by_hidden), by_parts = jax.lax.scan(add, start, (parts, logits))
    by_embedding = by_parts.swapaxes(0, 1).reshape(-1, embedding.shape[1])[: embedding.shape[0]]
    return by_hidden.astype(hidden.dtype), by_embedding.astype(embedding.dtype), None, None, None


_scores.defvjp(_forward, _backward)
