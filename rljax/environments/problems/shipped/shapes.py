"""Shapes of problems, drawn on the host: isomorphic ones are in one class, and a class is in one split."""

import abc
import functools
import random as random_lib
import zlib
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rljax.language import settings

CLASSES = 40
_MOST, _SEED = 2**12, 20
Sections = tuple[list[int], ...]
Table = tuple[list[np.ndarray], np.ndarray]


class Shaped(abc.ABC):
    """Rules of problems that have a shape, in one class, and a domain for each value of a setting, one or a range."""

    knob: ClassVar[str]  # the setting
    unit: ClassVar[str]  # of its values
    leading = 1

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        self.check_order(self.knob, self.range)

    def check_order(self, name: str, range: tuple[int, int]) -> None:
        """Raise ValueError if a range is empty."""
        if range[0] > range[1]:
            raise ValueError(f"{name}: {range} is empty; give (least, most)")

    @property
    @abc.abstractmethod
    def layout(self) -> dict[str, tuple[int, int]]:
        """The number of values of each kind of integer of a problem, and how many; "class" first, then "domain"."""

    @property
    def radices(self) -> list[int]:
        """The class of the shape first."""
        return [radix for radix, count in self.layout.values() for _ in range(count)]

    def split(self, value: jax.Array) -> dict[str, jax.Array]:
        """Return each kind of integer of problems."""
        ends = np.cumsum([count for _, count in self.layout.values()])[:-1].tolist()
        return dict(zip(self.layout, jnp.split(value, ends, axis=1), strict=True))

    @property
    def range(self) -> tuple[int, int]:
        """The least and the most of the setting."""
        value = getattr(self, self.knob)
        return value if isinstance(value, tuple) else (value, value)

    @property
    def domain_names(self) -> tuple[str, ...]:
        """A text for each domain."""
        low, high = self.range
        return tuple(f"{number} {self.unit}{'s' * (number > 1)}" for number in range(low, high + 1))

    def domain(self, value: jax.Array) -> jax.Array:
        """Return the domain of problems, ``[P]``."""
        return self.split(value)["domain"][:, 0]


@functools.cache
def table(
    draw: Callable[..., tuple[str, Sections] | None], numbers: tuple[int, int], why: str, *arguments: Any
) -> Table:
    """Draw the shapes of several numbers, of steps for example, each number a domain.

    Args:
      draw: from a generator, a number and ``arguments``, a text that isomorphic shapes share and sections of integers;
        or None.
      numbers: the least and the most.
      why: the start of the message of the error.
      *arguments: settings.

    Returns:
      Each section of all shapes, ``[S, W]`` int16, padded by 0; the first shape of every domain and class, and S,
      ``[domains CLASSES + 1]``. The class of a shape is a function of its text alone.

    Raises:
      ValueError: a class of a domain has no shape.
    """
    rows, start = list[Sections](), [0]
    for number in range(numbers[0], numbers[1] + 1):
        random = random_lib.Random(f"{_SEED} {number}")
        classes: list[dict[str, Sections]] = [{} for _ in range(CLASSES)]
        for _ in range(_MOST):
            if drawn := draw(random, number, *arguments):
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


def pick(table: Table, x: dict[str, jax.Array]) -> list[jax.Array]:
    """Return each section ``[P, W]`` int32 of the shapes of problems, from their "class", "domain" and "shape"."""
    (sections, start), place = table, (x["domain"] * CLASSES + x["class"])[:, 0]
    first = jnp.asarray(start)
    row = first[place] + x["shape"][:, 0] % (first[place + 1] - first[place])
    return [jnp.asarray(section)[row].astype(jnp.int32) for section in sections]
