"""Shapes of problems, drawn on the host: isomorphic ones are in one class, and a class is in one split."""

import random as random_lib
import zlib
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

CLASSES = 40
_MOST, _SEED = 2**12, 20
Sections = tuple[list[int], ...]
Draw = Callable[[random_lib.Random, int], tuple[str, Sections] | None]


def table(draw: Draw, numbers: Iterable[int], why: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw the shapes of several numbers, of steps for example, each number a domain.

    Args:
      draw: from a generator and a number, a text that isomorphic shapes share and sections of integers; or None.
      numbers: the domains.
      why: the start of the message of the error.

    Returns:
      Each section of all shapes, ``[S, W]`` int16, padded by 0; the first shape of every domain and class, and S,
      ``[domains CLASSES + 1]``. The class of a shape is a function of its text alone.

    Raises:
      ValueError: a class of a domain has no shape.
    """
    rows, start = list[Sections](), [0]
    for number in numbers:
        random = random_lib.Random(f"{_SEED} {number}")
        classes: list[dict[str, Sections]] = [{} for _ in range(CLASSES)]
        for _ in range(_MOST):
            if drawn := draw(random, number):
                text, sections = drawn
                classes[zlib.crc32(text.encode()) % CLASSES][str(sections)] = sections
        if not all(classes):
            raise ValueError(f"{why} of {number} are too few: {sum(map(len, classes))} shapes for {CLASSES} classes")
        for each in classes:
            rows += each.values()
            start.append(len(rows))
    widths = [max(map(len, section)) for section in zip(*rows, strict=True)]
    return [
        np.asarray([row[i] + [0] * (width - len(row[i])) for row in rows], np.int16) for i, width in enumerate(widths)
    ], np.asarray(start)


def pick(start: np.ndarray, domain: jax.Array, which: jax.Array, number: jax.Array) -> jax.Array:
    """Return rows of a table, ``[P]``.

    Args:
      start: from ``table``.
      domain: ``[P]``.
      which: the class ``[P]``.
      number: of the shape in its domain and class, ``[P]``; a large one wraps around.
    """
    place, first = domain * CLASSES + which, jnp.asarray(start)
    return first[place] + number % (first[place + 1] - first[place])
