"""The arrays of ``Rollout.extra`` that rljax writes or reads by name: the shape and the meaning of each, declared once.

Names of a user need no row: a piece's own array, which ``define.statistic`` names, those that ``World.extra`` declares,
and arrays in hand (``rollout_from_arrays``).
"""

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rljax import types


class Extra(NamedTuple):
    """The row of an array."""

    meaning: str
    shape: tuple[Any, ...]  # ... is any further size


def _rows() -> Iterator[tuple[str, Extra]]:
    """Yield the names and rows of extras.txt, whose lines are like ``segment [B T]: its meaning``."""
    text = pathlib.Path(__file__).with_name("extras.txt").read_text()
    for name, shape, meaning in re.findall(r"^(\w+) \[(.*?)\]: (.*)$", text, re.MULTILINE):
        yield name, Extra(meaning, tuple(... if size == "..." else size for size in shape.split()))


EXTRAS = dict(_rows())


def put(rollout: types.Rollout, arrays: Mapping[str, types.Array]) -> types.Rollout:
    """Write arrays into ``extra``, beside those that it has.

    Args:
      rollout: the rows.
      arrays: by names of ``EXTRAS``, in the shapes of their rows.

    Returns:
      The rows.

    Raises:
      KeyError: a name has no row.
    """
    for name in arrays:
        EXTRAS[name]
    return rollout.replace(extra={**rollout.extra, **arrays})
