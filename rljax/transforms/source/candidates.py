"""The prompts that a source keeps statistics of: all of a task, or a fixed number of them."""

from typing import Annotated

import jax.numpy as jnp

from rljax import types

Array = types.Array
LARGEST = 65536
Number = Annotated[int, types.Range(0, LARGEST)]


def index(problems: types.Problems, count: int) -> Array:
    """Return the candidates, ``[N]`` int32, ascending.

    Args:
      problems: the training prompts.
      count: how many, drawn by a seeded permutation; 0: all.

    Raises:
      ValueError: all are asked for, and there are more than 65,536.
    """
    size = problems.size
    if count == 0 and size > LARGEST:
        raise ValueError(
            f"the task has {size:,} training prompts; each number kept of all of them takes {4 * size:,} bytes. Set "
            f"candidates={LARGEST}, or fewer: that many prompts are drawn once, and only they are trained on."
        )
    if count == 0 or count >= size:
        return jnp.arange(size, dtype=jnp.int32)
    return jnp.sort(problems.shuffled(jnp.arange(count, dtype=jnp.int32)))


def slot(candidates: Array, wanted: Array) -> tuple[Array, Array]:
    """Return the place of prompts ``wanted`` ``[n]`` among the candidates, and whether they are there, ``[n]`` each."""
    place = jnp.minimum(jnp.searchsorted(candidates, wanted), candidates.size - 1).astype(jnp.int32)
    return place, candidates[place] == wanted


def add(statistic: Array, candidates: Array, wanted: Array, amount: Array) -> Array:
    """Add ``amount`` ``[n]`` to a statistic ``[N]`` of prompts ``wanted`` ``[n]``; others are not counted."""
    place, there = slot(candidates, wanted)
    return statistic.at[jnp.where(there, place, candidates.size)].add(amount, mode="drop")
