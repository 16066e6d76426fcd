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


def size(radices: Sequence[int], heldout: float, split: Split) -> int:
    """Return the number of problems of a split.

    Args:
      radices: the number of values of each integer of a problem.
      heldout: fraction of the problems that is held out.
      split: the split.

    Returns:
      At least 1.
    """
    space = math.prod(_enumerated(radices))
    held = min(max(1, round(space * heldout)), space - 1)
    return held if split == "heldout" else space - held


def values(radices: Sequence[int], heldout: float, index: types.Array, split: Split) -> jax.Array:
    """Return problems ``index`` ``[P]`` of a split, ``[P, len(radices)]`` int32; a large index wraps around."""
    first = 0 if split == "train" else size(radices, heldout, "train")
    place = first + index % size(radices, heldout, split)
    enumerated = _enumerated(radices)
    number = shuffle.permute(place.astype(jnp.int32), math.prod(enumerated), _SEED)
    columns, rest = [], number
    for radix in enumerated:
        columns.append(rest % radix)
        rest = rest // radix
    if more := radices[len(enumerated) :]:
        high = jnp.asarray(radices, jnp.int32)
        draw = jax.vmap(lambda n: jax.random.randint(jax.random.fold_in(jax.random.key(_SEED), n), high.shape, 0, high))
        columns += [*draw(number)[:, -len(more) :].T]
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


def _enumerated(radices: Sequence[int]) -> list[int]:
    """List the first radices, as many as their product allows."""
    first: list[int] = []
    for radix in radices:
        if math.prod(first) * radix > _LARGEST_SPACE:
            break
        first.append(radix)
    return first
