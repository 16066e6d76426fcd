"""Logits processors: pure functions on tempered float32 logits ``[B, V] -> [B, V]`` that leave out tokens.

A token left out gets minus infinity and the others keep their logit, so each processor of a chain
sees the renormalised result of the one before. Among equal logits the lower token id counts as the
more probable one, so that the kept set is a function of the logits alone. Nothing is sorted.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rljax.sampling.config import SamplerConfig

Array = jax.Array
Processor = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class Processors:
    """How logits become the distribution sampled, ``filter(logits / temperature)``, and a token.

    Temperature 0 is greedy decoding. ``filter`` is None where every token stays in, so that the
    filtered and the unfiltered distribution are one and need not be computed twice. ``draw`` takes a
    row's token from its key and logits [V].
    """

    temperature: float = 1.0
    filter: Processor | None = None
    draw: Callable[[Array, Array], Array] = jax.random.categorical


def top_k(k: int) -> Processor:
    """Keep the ``k`` most probable tokens, all of them where ``k >= V``.

    Raises ValueError unless ``k >= 1``.
    """
    _check("top_k", k, k >= 1, "an integer of at least 1")

    def apply(logits: Array) -> Array:
        return _keep_most_probable(logits, jnp.ones_like(logits), k)

    return apply


def top_p(p: float) -> Processor:
    """Keep the smallest set of most probable tokens whose probability reaches ``p`` (nucleus sampling).

    A token stays in where the tokens before it, in falling order of probability, sum to less than
    ``p``; the first one always does. Raises ValueError unless ``0 < p <= 1``.
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


def inverse(key: Array, logits: Array) -> Array:
    """Draw a token from ``logits`` [V] by inverting their distribution function at one uniform number.

    A Gumbel draw (``jax.random.categorical``) takes a random number for each token of the vocabulary; this takes
    one. The function is summed in about sqrt(V) blocks, then inside the one that holds the number. Resolution is
    2^-24: a rarer token is drawn with probability 0 or 2^-24 (a Gumbel draw in float32 has the same limit).
    """
    size = math.isqrt(logits.shape[0] - 1) + 1
    weight = jnp.exp(logits - jnp.max(logits))
    weight = jnp.pad(weight, (0, -logits.shape[0] % size)).reshape(-1, size)

    def find(weight: Array, target: Array) -> tuple[Array, Array]:
        """Return the first place whose running sum passes ``target``, and what is left of it there."""
        total = jnp.cumsum(weight)
        last = jnp.max(jnp.where(weight > 0, jnp.arange(weight.shape[0]), 0))
        place = jnp.minimum(jnp.sum(total <= target), last)  # rounding must not pass the last one there is
        return place, target - (total[place] - weight[place])

    blocks = jnp.sum(weight, axis=1)
    block, rest = find(blocks, jax.random.uniform(key) * jnp.sum(blocks))
    return block * size + find(weight[block], rest)[0]


_FILTERS = {"top_k": top_k, "top_p": top_p, "min_p": min_p}  # ``build`` has arguments of the same names
_DRAWS: dict[str, Callable[[Array, Array], Array]] = {"gumbel": jax.random.categorical, "inverse": inverse}


def chain(*processors: Processor) -> Processor:
    """Apply ``processors`` from left to right; with none of them the logits pass unchanged."""

    def apply(logits: Array) -> Array:
        return functools.reduce(lambda value, processor: processor(value), processors, logits)

    return apply


@functools.cache
def build(config: SamplerConfig) -> Processors:
    """Return the sampler's processors: temperature, then top-k, then top-p, then min-p.

    The two ways to draw, "gumbel" and "inverse", draw different tokens of one distribution. At temperature 0 the
    filters have no effect, since every one of them keeps the most probable token, and are left out. Equal settings give
    the same record: as a static argument of ``jit`` it compiles once.
    """
    off = {"top_k": 0, "top_p": 1, "min_p": 0}
    active = [_FILTERS[name](value) for name in off if (value := getattr(config, name)) != off[name]]
    filtered = active and config.temperature > 0
    return Processors(config.temperature, chain(*active) if filtered else None, _DRAWS[config.draw])


def _check(field: str, given: float | str, valid: bool, allowed: str) -> None:
    if not valid:
        raise ValueError(f"config.sampler.{field} = {given!r}: expected {allowed}")


def _keep_most_probable(logits: Array, weight: Array, target: float) -> Array:
    """Keep the most probable tokens, as many as it takes for their ``weight [B, V]`` to reach ``target``.

    The least logit kept is found bit by bit, with one sum over V for each of its 32 bits: ten times
    faster than a sort or ``lax.top_k`` on a CPU, and no obstacle to a sharded vocabulary.
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
    """Map float32 to int32 such that the order stays the same; -0.0 and 0.0 are one number."""
    bits = jax.lax.bitcast_convert_type(jnp.where(logits == 0, 0.0, logits), jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest(holds: Callable[[Array], Array], low: Array, bits: int) -> Array:
    """Return the largest int32 in ``[low, low + 2**bits)`` above ``low`` for which ``holds``, else ``low``.

    ``holds`` is true up to some number and false from there on.
    """

    def halve(turn: Array, low: Array) -> Array:
        # The first of 32 steps overflows to minus 2**31, and adding that to minus 2**31 gives 0, as it should.
        bound = low + jnp.left_shift(jnp.int32(1), jnp.int32(bits - 1) - turn)
        return jnp.where(holds(bound), bound, low)

    return jax.lax.fori_loop(0, bits, halve, low)
