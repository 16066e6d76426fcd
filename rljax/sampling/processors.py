"""Logits processors: pure functions on tempered float32 logits ``[B, V] -> [B, V]`` that exclude tokens.

An excluded token gets minus infinity and the others keep their logits, so each processor of a chain sees the
renormalized result of the previous one. Among equal logits the lower token id counts as the more probable one, so that
the kept set is a function of the logits alone. Nothing is sorted.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.sampling.config import SamplerConfig

Array = jax.Array
Processor = Callable[[Array], Array]


def inverse(key: Array, logits: Array) -> Array:
    """Draw a token from ``logits`` [V] by inverting their distribution function at one uniform number.

    A Gumbel draw (``jax.random.categorical``) needs a random number per token of the vocabulary; this needs one.
    Its resolution is 2^-23: a rarer token has probability 0 or 2^-23 (a Gumbel draw in float32 has the same limit).
    """
    return inverted(jax.random.uniform(key), logits)


def inverted(number: Array, logits: Array) -> Array:
    """Return the token in which the distribution function of ``logits`` [V] passes a number in [0, 1).

    It is summed over about sqrt(V) chunks, then within the chunk that contains the number.
    """
    size = math.isqrt(logits.shape[0] - 1) + 1
    weight = jnp.exp(logits - jnp.max(logits))
    weight = jnp.pad(weight, (0, -logits.shape[0] % size)).reshape(-1, size)

    def find(weight: Array, target: Array) -> tuple[Array, Array]:
        """Return the first place with weight whose cumulative sum exceeds ``target``, and the remainder there.

        Rounding moves the sum where the weight is 0, and the remainder below 0: the weight decides what may be drawn.
        """
        total, there = jnp.cumsum(weight), jnp.arange(weight.shape[0])
        last = jnp.max(jnp.where(weight > 0, there, 0))
        place = jnp.min(jnp.where((total > target) & (weight > 0), there, last))
        return place, target - (total[place] - weight[place])

    chunks = jnp.sum(weight, axis=1)
    chunk, rest = find(chunks, number * jnp.sum(chunks))
    return chunk * size + find(weight[chunk], rest)[0]


@dataclasses.dataclass(frozen=True)
class Processors:
    """How logits become the distribution sampled, ``filter(logits / temperature)``, and how a token is drawn.

    Temperature 0 is greedy decoding. ``filter`` is None if every token is kept: the filtered and the unfiltered
    distribution are then equal, and computed once. ``draw(key, logits)`` draws the token of a row from logits [V].
    """

    temperature: float = 1.0
    filter: Processor | None = None
    draw: Callable[[Array, Array], Array] = inverse


def keeps(config: SamplerConfig, processors: Processors) -> bool:
    """Return whether the sampler stores the support that it draws from."""
    return config.rescore == "kept" and processors.filter is not None and processors.temperature > 0


def top_k(k: int) -> Processor:
    """Keep the ``k`` most probable tokens, all of them if ``k >= V``.

    Raises ValueError unless ``k >= 1``.
    """
    _check("top_k", k, k >= 1, "an integer of at least 1")

    def apply(logits: Array) -> Array:
        return _keep_most_probable(logits, jnp.ones_like(logits), k)

    return apply


def top_p(p: float) -> Processor:
    """Keep the smallest set of most probable tokens whose probability reaches ``p`` (nucleus sampling).

    A token is kept if the tokens that are more probable sum to less than ``p``; the most probable one always is.
    Raises ValueError unless ``0 < p <= 1``.
    """
    _check("top_p", p, 0 < p <= 1, "a number in (0, 1]")

    def apply(logits: Array) -> Array:
        return _keep_most_probable(logits, jax.nn.softmax(logits, axis=1), p)

    return apply


def min_p(p: float) -> Processor:
    """Keep the tokens at least ``p`` times as probable as the most probable one.

    ``p_v >= p * max_u p_u``, in logits ``l_v >= log p + max_u l_u``. Raises ValueError unless
    ``0 < p <= 1``.
    """
    _check("min_p", p, 0 < p <= 1, "a number in (0, 1]")
    log_p = math.log(p)

    def apply(logits: Array) -> Array:
        floor = jnp.max(logits, axis=1, keepdims=True) + log_p
        return jnp.where(logits >= floor, logits, -jnp.inf)

    return apply


# The filters in the order in which they apply, each by its field of ``SamplerConfig``, whose default keeps every token
FILTERS: dict[str, Callable[[Any], Processor]] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
_OFF = {field.name: field.default for field in dataclasses.fields(SamplerConfig)}
_DRAWS: dict[str, Callable[[Array, Array], Array]] = {"gumbel": jax.random.categorical, "inverse": inverse}


def chain(*processors: Processor) -> Processor:
    """Apply ``processors`` from left to right; without any, the logits pass unchanged."""

    def apply(logits: Array) -> Array:
        return functools.reduce(lambda value, processor: processor(value), processors, logits)

    return apply


def build(config: SamplerConfig) -> Processors:
    """Return the sampler's processors: temperature, then ``FILTERS``.

    At temperature 0 the filters are left out, since each keeps the most probable token. Equal settings return equal
    objects, which compile once as a static argument of ``jit``. The draws "gumbel" and "inverse" are from the same
    distribution, but of different tokens for the same key.
    """
    filters = active(config) if config.temperature > 0 else ()
    return Processors(config.temperature, _filter(filters) if filters else None, _DRAWS[config.draw])


def active(config: SamplerConfig) -> tuple[tuple[str, float], ...]:
    """Return the filters that exclude tokens, (name, value) each, in the order in which they apply."""
    values = ((name, getattr(config, name)) for name in FILTERS)
    return tuple((name, value) for name, value in values if value != _OFF[name])


@functools.cache
def _filter(filters: tuple[tuple[str, float], ...]) -> Processor:
    return chain(*(FILTERS[name](value) for name, value in filters))


def _check(field: str, value: float | str, valid: bool, allowed: str) -> None:
    if not valid:
        raise ValueError(f"config.sampler.{field} = {value!r}: expected {allowed}")


def _keep_most_probable(logits: Array, weight: Array, target: float) -> Array:
    """Keep the fewest most probable tokens whose ``weight`` [B, V] sums to at least ``target``.

    The smallest kept logit is determined bit by bit, with one sum over V for each of its 32 bits: ten times faster
    than a sort or ``lax.top_k`` on a CPU, and it works on a sharded vocabulary.
    """
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    rank = _rank(logits)

    def total(chosen: Array) -> Array:
        return jnp.sum(jnp.where(chosen, weight, 0.0), axis=1, keepdims=True)

    low = jnp.full((logits.shape[0], 1), jnp.iinfo(jnp.int32).min, jnp.int32)
    floor = _largest(lambda bound: total(rank >= bound) >= target, low, 32)
    above, tied = rank > floor, rank == floor
    missing = target - total(above)
    last = _largest(
        lambda bound: total(tied & (ids < bound)) < missing, jnp.zeros_like(low), (logits.shape[1] - 1).bit_length()
    )
    return jnp.where(above | (tied & (ids <= last)), logits, -jnp.inf)


def _rank(logits: Array) -> Array:
    """Map float32 to int32, preserving the order; -0.0 and 0.0 are equal."""
    bits = jax.lax.bitcast_convert_type(jnp.where(logits == 0, 0.0, logits), jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest(holds: Callable[[Array], Array], low: Array, bits: int) -> Array:
    """Return the largest int32 in ``[low, low + 2**bits)`` above ``low`` for which ``holds``, else ``low``.

    ``holds`` is true up to some number and false above it.
    """

    def halve(step: Array, low: Array) -> Array:
        # The first of 32 steps overflows to -2**31; adding it to -2**31 gives 0, the correct bound.
        bound = low + jnp.left_shift(jnp.int32(1), jnp.int32(bits - 1) - step)
        return jnp.where(holds(bound), bound, low)

    return jax.lax.fori_loop(0, bits, halve, low)
