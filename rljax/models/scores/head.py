"""Log-probabilities of given tokens, computed over parts of the vocabulary, with a custom gradient.

The logits are z = h W^T / temperature, capped before the division if the model caps them. Forward and backward, only
one group of positions and ``chunk`` tokens of the vocabulary are in memory at a time: no array but W and its gradient
grows with V, unless the logits are kept. One pass computes every requested quantity. Whatever W's dtype, its gradient
is summed over the groups in float32.
"""

import functools
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.models import precision
from rljax.models.network import attention
from rljax.types import Array

_LEAST = math.log(jnp.finfo(jnp.float32).tiny)  # log-probability of what is left beside some tokens
_SUMS = ("logp", "raw_logp", "log_normaliser")  # what every pass has


class Request(NamedTuple):
    """How to compute, and which quantities to return besides ``logp``; hashable."""

    dtype: str  # of the operands of the matrix products
    chunk: int  # tokens of the vocabulary at once
    keep: bool = False  # save the logits for the backward pass instead of recomputing them
    asked: tuple[str, ...] = ()  # "log_normaliser", and names of ``STATISTICS``
    cap: float = 0.0  # of the logits, before the temperature; see ``attention.capped``


class Statistic(NamedTuple):
    """A function of the distribution p = softmax(z) at a position, from a sum over the vocabulary.

    The sum is in units of the largest logit m so far: its terms are in w = exp(z - m).
    """

    add: Callable[[Array, Array, Array, Array], Array]  # (sum so far, scale of w, w, z) -> the sum with a part
    value: Callable[[Array, Array, "_Sums"], Array]  # (sum, log sum exp z, all sums) -> the statistic
    gradient: Callable[..., Array]  # (by z so far, by the statistic, p, log p, the statistic) -> by z
    whole: Callable[[Array], Array]  # log p [..., V] -> the statistic


# Each statistic by its field of ``types.Scores``, in the order of the fields
STATISTICS = {
    "entropy": Statistic(
        add=lambda total, scale, w, z: total * scale + jnp.sum(w * z, axis=-1),
        value=lambda total, normaliser, sums: normaliser - total / sums.total,
        gradient=lambda by_z, by, p, logp, entropy: by_z - by * p * (logp + entropy),
        whole=lambda logp: -jnp.sum(jnp.exp(logp) * logp, axis=-1),
    ),
    "square_prob": Statistic(
        add=lambda total, scale, w, z: total * scale**2 + jnp.sum(w**2, axis=-1),
        value=lambda total, normaliser, sums: total / sums.total**2,
        gradient=lambda by_z, by, p, logp, square: by_z + by * 2 * p * (p - square),
        whole=lambda logp: jnp.sum(jnp.exp(2 * logp), axis=-1),
    ),
}


def check(names: Collection[str]) -> None:
    """Check that every score of a distribution that pieces ask for is computed here.

    Args:
      names: fields of ``types.Scores`` that no number head gives.

    Raises:
      ValueError: a field has a row and a need in rljax/types.py, and nothing computes it.
    """
    for name in names:
        if name not in _SUMS and name not in STATISTICS:
            raise ValueError(
                f"types.Scores.{name} is asked for, and nothing computes it: add its row to STATISTICS of "
                f"rljax/models/scores/head.py, which has {', '.join(STATISTICS)}, or say at which place a number head "
                "gives it (at= of its row in rljax/types.py)."
            )


def scores(
    request: Request,
    hidden: Array,
    embedding: Array,
    token: Array,
    temperature: Array,
    kept: Array | None = None,
    top: tuple[Array, ...] = (),
) -> dict[str, Any]:
    """Compute log-probabilities and statistics of softmax(h W^T / temperature) at each position.

    Args:
      request: which quantities to return, and how to compute them.
      hidden: h, ``[n, ..., D]``, n groups of positions, differentiated.
      embedding: W, ``[V, D]``, differentiated.
      token: ``[n, ...]`` int32.
      temperature: scalar above 0, not differentiated.
      kept: ``[n, ..., ceil(V / 32)]`` uint32, packed bits of the support (``scoring.pack_bits``); the token itself
        always counts as kept. None: the whole vocabulary.
      top: sets of other tokens, ``[n, ..., k]`` int32 each.

    Returns:
      Float32 arrays ``[n, ...]``: ``logp`` of ``token`` in nats and, on request, ``log_normaliser`` log sum exp z,
      ``entropy`` -sum p log p, ``square_prob`` sum p^2. With ``kept``, ``logp`` is renormalized over that support and
      ``raw_logp`` is the unfiltered log-probability. With ``top``, ``top`` has for each set the
      log-probabilities of its tokens, and of all others together, ``[n, ..., k + 1]``.
    """
    result: Any = _scores(request, hidden, embedding, token, temperature, kept, top)
    names = ["logp"] + ["raw_logp"] * (kept is not None) + ["top"] * bool(top)
    return {name: result[name] for name in (*names, *request.asked)}


def most_probable(
    request: Request, hidden: Array, embedding: Array, temperature: Array, count: int
) -> tuple[Array, Array]:
    """Return the ``count`` = k most probable tokens at each position, and their log-probabilities.

    Args:
      request: how to compute.
      hidden: h, ``[n, ..., D]``, n groups of positions.
      embedding: W, ``[V, D]``.
      temperature: scalar above 0.
      count: k, at most V.

    Returns:
      ``[n, ..., k]`` int32, the most probable first, and ``[n, ..., k + 1]`` float32, their log-probabilities and that
      of all other tokens together, which is at least log(1.2e-38). Not to be differentiated.

    Raises:
      ValueError: k exceeds V.
    """
    if count > embedding.shape[0]:
        raise ValueError(f"top={count} exceeds the {embedding.shape[0]} tokens of the vocabulary")
    parts = _strided(embedding, request.chunk)

    def of_group(hidden: Array) -> tuple[Array, Array]:
        def add(carry: tuple[Array, ...], part: Array) -> tuple[tuple[Array, ...], None]:
            j, ids, best, rest = carry
            new = _shaped(jnp.arange(part.shape[0]) * parts.shape[0] + j, rest)
            z = _logits(request, hidden, part, new, embedding.shape[0], temperature)
            every = jnp.concatenate([best, z], axis=-1)
            every_id = jnp.concatenate([ids, jnp.broadcast_to(new, z.shape)], axis=-1)
            flat = jax.lax.top_k(every.reshape(-1, every.shape[-1]), count)  # of more dimensions it is a sort on a CPU
            best, place = (x.reshape(best.shape) for x in flat)
            last = best[..., -1:]
            below = jax.nn.logsumexp(jnp.where(every < last, every, attention.MASKED), axis=-1)
            tied = jnp.sum(every >= last, axis=-1) - count  # equal to the last one, and left out
            out = jnp.where(tied > 0, last[..., 0] + jnp.log(jnp.maximum(tied, 1).astype(z.dtype)), attention.MASKED)
            rest = jnp.logaddexp(jnp.logaddexp(rest, below), out)
            return (j + 1, jnp.take_along_axis(every_id, place, axis=-1), best, rest), None

        shape = (*hidden.shape[:-1], count)
        none = jnp.full(shape, attention.MASKED, jnp.float32)
        start = jnp.int32(0), jnp.zeros(shape, jnp.int32), none, none[..., 0]
        (_, ids, best, rest), _ = jax.lax.scan(add, start, parts)
        z = jnp.concatenate([best, rest[..., None]], axis=-1)
        return ids, jnp.maximum(jax.nn.log_softmax(z, axis=-1), _LEAST)

    return jax.lax.map(of_group, hidden)


class _Sums(NamedTuple):
    """Running sums over the vocabulary, each [...], scaled by exp(-largest)."""

    largest: Array
    total: Array  # sum exp z
    statistics: tuple[Array, ...]  # of ``STATISTICS``
    supported: Array  # sum exp z over the support
    chosen: Array  # z of the token
    top: tuple[Array, ...]  # z of sets of tokens, [..., k] each
    rest: tuple[Array, ...]  # sum exp z beside each set


def _strided(embedding: Array, chunk: int) -> Array:
    """Split W [V, D] into m parts [m, c, D], padded with zeros; part j holds the tokens i m + j.

    With strided parts, a vocabulary that is sharded over devices is split within each shard.
    """
    parts = -(-embedding.shape[0] // chunk)
    rows = -(-embedding.shape[0] // parts)
    padded = jnp.pad(embedding, ((0, rows * parts - embedding.shape[0]), (0, 0)))
    return padded.reshape(rows, parts, -1).swapaxes(0, 1)


def _logits(request: Request, hidden: Array, part: Array, ids: Array, vocabulary: int, temperature: Array) -> Array:
    operands = hidden.astype(request.dtype), part.astype(request.dtype)
    z = jnp.einsum("...d,cd->...c", *operands, preferred_element_type=jnp.float32)
    z = attention.capped(z, request.cap) / temperature
    return jnp.where(ids < vocabulary, z, attention.MASKED)


def _support(kept: Array, ids: Array, chosen: Array) -> Array:
    """Return which of ``ids`` [c] are in the support, bool [..., c]; ``chosen`` always are."""
    words = jnp.take(kept, ids // 32, axis=-1, mode="clip")
    bit = (ids % 32).astype(jnp.uint32).reshape((1,) * (words.ndim - 1) + ids.shape)
    return ((words >> bit) & 1 > 0) | chosen


def _shaped(ids: Array, like: Array) -> Array:
    return ids.reshape((1,) * like.ndim + ids.shape)


def _among(tokens: Array, j: Array, count: int, like: Array) -> tuple[Array, Array]:
    """Return the places of ``tokens`` [..., k] in part j of ``count``, and where it has others, bool like [..., c].

    The place of a token of another part is c. Gathers and scatters, as comparisons would be an array [..., k, c].
    """
    place = jnp.where(tokens % count == j, tokens // count, like.shape[-1])
    others = jnp.put_along_axis(jnp.ones(like.shape, bool), place, False, axis=-1, inplace=False, mode="drop")
    return place, others


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(request: Request, *arguments: Any) -> dict[str, Array]:
    return _forward(request, *arguments)[0]


def _forward(
    request: Request,
    hidden: Array,
    embedding: Array,
    token: Array,
    temperature: Array,
    kept: Array | None,
    top: tuple[Array, ...],
) -> tuple[dict[str, Any], Any]:
    parts = _strided(embedding, request.chunk)
    of_group = functools.partial(_group_forward, request, embedding.shape[0], parts, temperature)
    result, supported, logits = jax.lax.map(of_group, (hidden, token, kept, top))
    return result, (embedding, temperature, (hidden, token, kept, top, result, supported, logits))


def _group_forward(
    request: Request, vocabulary: int, parts: Array, temperature: Array, group: tuple[Any, ...]
) -> tuple[dict[str, Array], Array, Array | None]:
    """Return the scores of one group, the log of the sum of exp z over its support, and its logits if they are kept."""
    hidden, token, kept, top = group
    count = parts.shape[0]

    # The number of the part is carried. If it were scanned over, XLA would compute the ids of all parts at once.
    def add(carry: tuple[Array, _Sums], part: Array) -> tuple[tuple[Array, _Sums], Array | None]:
        j, sums = carry
        ids = jnp.arange(part.shape[0]) * count + j
        z = _logits(request, hidden, part, _shaped(ids, token), vocabulary, temperature)
        chosen = _shaped(ids, token) == token[..., None]
        largest = jnp.maximum(sums.largest, jnp.max(z, axis=-1))
        weight = jnp.exp(z - largest[..., None])
        scale = jnp.exp(sums.largest - largest)
        unused = jnp.zeros_like(largest)
        among = [_among(tokens, j, count, z) for tokens in top]
        at = (jnp.take_along_axis(z, place, axis=-1, mode="fill", fill_value=0.0) for place, _ in among)
        beside = (jnp.sum(jnp.where(others, weight, 0.0), axis=-1) for _, others in among)
        sums = _Sums(
            largest,
            sums.total * scale + jnp.sum(weight, axis=-1),
            tuple(
                statistic.add(so_far, scale, weight, z) if name in request.asked else unused
                for (name, statistic), so_far in zip(STATISTICS.items(), sums.statistics, strict=True)
            ),
            unused
            if kept is None
            else sums.supported * scale + jnp.sum(jnp.where(_support(kept, ids, chosen), weight, 0.0), axis=-1),
            sums.chosen + jnp.sum(jnp.where(chosen, z, 0.0), axis=-1),
            tuple(map(jnp.add, sums.top, at)),
            tuple(rest * scale + x for rest, x in zip(sums.rest, beside, strict=True)),
        )
        return (j + 1, sums), z if request.keep else None

    zero = jnp.zeros(token.shape, jnp.float32)
    at = tuple(jnp.zeros(tokens.shape, jnp.float32) for tokens in top)
    each = (zero,) * len(STATISTICS)
    start = _Sums(jnp.full_like(zero, attention.MASKED), zero, each, zero, zero, at, (zero,) * len(top))
    (_, sums), logits = jax.lax.scan(add, (jnp.int32(0), start), parts)
    normaliser = sums.largest + jnp.log(sums.total)
    raw = sums.chosen - normaliser
    result: dict[str, Any] = {"logp": raw, "raw_logp": raw, "log_normaliser": normaliser}
    supported = normaliser
    if kept is not None:
        supported = sums.largest + jnp.log(sums.supported)
        result["logp"] = sums.chosen - supported
    for (name, statistic), total in zip(STATISTICS.items(), sums.statistics, strict=True):
        result[name] = statistic.value(total, normaliser, sums)
    rests = [jnp.maximum(sums.largest - normaliser + jnp.log(rest), _LEAST)[..., None] for rest in sums.rest]
    result["top"] = tuple(
        jnp.concatenate([at - normaliser[..., None], rest], axis=-1) for at, rest in zip(sums.top, rests, strict=True)
    )
    return result, supported, logits


def _backward(request: Request, saved: Any, by: dict[str, Array]) -> tuple[Array, Array, None, None, None, None]:
    embedding, temperature, groups = saved
    parts = _strided(embedding, request.chunk)
    of_group = functools.partial(_group_backward, request, embedding.shape[0], parts, temperature)
    by_parts, by_hidden = jax.lax.scan(of_group, jnp.zeros(parts.shape, jnp.float32), (groups, by))
    by_embedding = by_parts.swapaxes(0, 1).reshape(-1, embedding.shape[1])[: embedding.shape[0]]
    return by_hidden, precision.rounded(by_embedding, embedding.dtype), None, None, None, None


def _group_backward(
    request: Request, vocabulary: int, parts: Array, temperature: Array, by_parts: Array, item: tuple[Any, Any]
) -> tuple[Array, Array]:
    """Add the gradient of one group to ``by_parts`` [m, c, D]; return the sum, and the gradient by hidden states."""
    (hidden, token, kept, top, result, supported, logits), by = item
    count, normaliser = parts.shape[0], result["log_normaliser"]
    plain = by["raw_logp"] if kept is not None else by["logp"] + by["raw_logp"]

    def add(carry: tuple[Array, Array, Array], item: tuple[Array, Array | None]) -> tuple[Any, None]:
        (j, by_hidden, by_parts), (part, z) = carry, item
        ids = jnp.arange(part.shape[0]) * count + j
        ids_shaped = _shaped(ids, token)
        if z is None:
            z = _logits(request, hidden, part, ids_shaped, vocabulary, temperature)
        chosen = ids_shaped == token[..., None]
        logp = z - normaliser[..., None]
        prob = jnp.exp(logp)
        by_z = prob * (by["log_normaliser"] - plain)[..., None]
        if kept is not None:
            inside = jnp.where(_support(kept, ids, chosen), jnp.exp(z - supported[..., None]), 0.0)
            by_z -= inside * by["logp"][..., None]
        by_z += jnp.where(chosen, (by["logp"] + by["raw_logp"])[..., None], 0.0)
        for tokens, top_logp, by_top in zip(top, result["top"], by["top"], strict=True):
            place, others = _among(tokens, j, count, z)
            zeros = jnp.zeros_like(z)
            by_z += jnp.put_along_axis(zeros, place, by_top[..., :-1], axis=-1, inplace=False, mode="drop")
            share = jnp.exp(jnp.where(others, logp - top_logp[..., -1:], attention.MASKED))
            by_z += share * by_top[..., -1:] - prob * jnp.sum(by_top, axis=-1, keepdims=True)
        for name, statistic in STATISTICS.items():
            if name in request.asked:
                by_z = statistic.gradient(by_z, by[name][..., None], prob, logp, result[name][..., None])
        by_z /= temperature
        if request.cap:  # a padding token's by_z is 0
            by_z *= 1 - jnp.where(ids_shaped < vocabulary, z * temperature / request.cap, 0.0) ** 2
        by_z = by_z.astype(request.dtype)
        part, h = part.astype(request.dtype), hidden.astype(request.dtype)
        by_hidden += jnp.einsum("...c,cd->...d", by_z, part, preferred_element_type=jnp.float32)
        flat = by_z.reshape(-1, by_z.shape[-1]), h.reshape(-1, h.shape[-1])
        by_part = jax.lax.dynamic_index_in_dim(by_parts, j, keepdims=False)
        by_part += jnp.einsum("mc,md->cd", *flat, preferred_element_type=jnp.float32)
        return (j + 1, by_hidden, jax.lax.dynamic_update_index_in_dim(by_parts, by_part, j, 0)), None

    start = (jnp.int32(0), jnp.zeros(hidden.shape, jnp.float32), by_parts)
    (_, by_hidden, by_parts), _ = jax.lax.scan(add, start, (parts, logits))
    return by_parts, by_hidden.astype(hidden.dtype)


_scores.defvjp(_forward, _backward)
