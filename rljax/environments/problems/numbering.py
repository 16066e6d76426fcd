"""Numbered problems: a problem is a row of small integers, the digits of its number in a mixed radix.

All numbers are shuffled once and for all and the last of them are held out, so that the splits share no problem. Where
they are more than 2^28, an even sample of at most that many is used: the digits that no number decides are drawn, with
the number as the seed.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rljax import types
from rljax.data import shuffle
from rljax.environments import Split

_LARGEST_SPACE = 2**28  # the most problems that one int32 index distinguishes
_SEED = 20  # decides which problems are held out; part of the task, not of a run


def size(radices: Sequence[int], heldout: float, split: Split, leading: int | None = None) -> int:
    """Return the number of problems of a split.

    Args:
      radices: the number of values of each integer of a problem.
      heldout: fraction of the problems, or of the combinations, that is held out.
      split: the split.
      leading: how many of the integers, the first, form the combination that the splits do not share; None: all.

    Returns:
      At least 1.
    """
    space = math.prod(_enumerated(radices[:leading]))
    held = min(max(1, round(space * heldout)), space - 1)
    return (held if split == "heldout" else space - held) * math.prod(_free(radices, leading))


def values(
    radices: Sequence[int], heldout: float, index: types.Array, split: Split, leading: int | None = None
) -> jax.Array:
    """Return problems ``index`` ``[P]`` of a split, ``[P, len(radices)]`` int32; a large index wraps around."""
    count = size(radices, heldout, split, leading)
    combinations, free = count // math.prod(_free(radices, leading)), _free(radices, leading)
    place = (index % count).astype(jnp.int32)
    if leading is not None:
        place = shuffle.permute(place, count, _SEED + 1)
    enumerated = _enumerated(radices[:leading])
    first = 0 if split == "train" else math.prod(enumerated) - combinations
    number = shuffle.permute(first + place % combinations, math.prod(enumerated), _SEED)
    columns = [*_digits(number, enumerated), *_digits(place // combinations, free)]
    if more := radices[len(columns) :]:
        high, key = jnp.asarray(radices, jnp.int32), jax.random.key(_SEED)
        key = jax.vmap(lambda n: jax.random.fold_in(key, n))(number)
        if leading is not None:
            key = jax.vmap(jax.random.fold_in)(key, place // combinations)
        draw = jax.vmap(lambda k: jax.random.randint(k, high.shape, 0, high))
        columns += [*draw(key)[:, -len(more) :].T]
    return jnp.stack(columns, axis=1)


def mistakes(
    key: types.Key, index: types.Array, slip: float, noise: float, count: int, choices: int
) -> tuple[jax.Array, jax.Array]:
    """Draw the mistakes of demonstrations; a row's depend on ``(key, index)`` only.

    Args:
      key: a typed key.
      index: ``[P]`` int32.
      slip: probability that a step is omitted.
      noise: probability that a step has a wrong value.
      count: M, the steps.
      choices: the number of values that a step may have.

    Returns:
      ``[P, M]`` bool, the omitted steps; ``[P, M]`` int32, 0 or, uniform in [1, choices), what is added to a value.
    """

    def draw(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        omitted, wrong, amount = jax.random.split(jax.random.fold_in(key, i), 3)
        off = jax.random.randint(amount, (count,), 1, choices)
        off = jnp.where(jax.random.bernoulli(wrong, noise, (count,)), off, 0)
        return jax.random.bernoulli(omitted, slip, (count,)), off

    return jax.vmap(draw)(index)


def _digits(number: jax.Array, radices: Sequence[int]) -> list[jax.Array]:
    """List the digits of numbers in a mixed radix, the lowest first."""
    columns = []
    for radix in radices:
        columns.append(number % radix)
        number = number // radix
    return columns


def _free(radices: Sequence[int], leading: int | None) -> list[int]:
    """List the radices after the leading ones that are enumerated."""
    return [] if leading is None else _enumerated(radices[leading:], _LARGEST_SPACE // math.prod(radices[:leading]))


def _enumerated(radices: Sequence[int], limit: int = _LARGEST_SPACE) -> list[int]:
    """List the first radices, as many as their product allows."""
    first: list[int] = []
    for radix in radices:
        if math.prod(first) * radix > limit:
            break
        first.append(radix)
    return first
