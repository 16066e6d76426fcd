"""How a network's arrays lie over a mesh: what it asks of a layout, and the layout of a network that knows of none."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from rljax.types import Array

Names = tuple[str | None, ...]  # a logical axis name for each dimension


class Layout(Protocol):
    """Places arrays by their logical axis names and never changes a value, as ``training.sharding.Layout`` does."""

    def __call__(self, array: Array, names: Names) -> Array:
        """Return ``array`` laid out."""
        ...

    def hold(self, array: Array, names: Names) -> Array:
        """Return ``array`` laid out, whole on every device where that is its layout: for what is read many times."""
        ...

    def split(self, shape: Sequence[int], names: Names) -> tuple[dict[str, int], ...]:
        """Return the mesh axes, with their devices, that each dimension of an array is split over."""
        ...

    def apart(self, function: Callable[..., Array], names: Sequence[Names], out: Names) -> Callable[..., Array]:
        """Return ``function`` of arrays named ``names``, run by every device on its own part alone.

        Inside, an array has the shape of the part, and what the parts owe each other ``function`` does with collectives
        over the axes that ``split`` tells. A name is split alike in all arrays; ``out`` names the result.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Whole:
    """Everything whole, wherever the compiler puts it."""

    def __call__(self, array: Array, names: Names) -> Array:
        """Return ``array`` as it is."""
        del names
        return array

    def hold(self, array: Array, names: Names) -> Array:
        """Return ``array`` as it is."""
        del names
        return array

    def split(self, shape: Sequence[int], names: Names) -> tuple[dict[str, int], ...]:
        """Return no axis for any dimension."""
        del names
        return tuple({} for _ in shape)

    def apart(self, function: Callable[..., Array], names: Sequence[Names], out: Names) -> Callable[..., Array]:
        """Return ``function`` as it is."""
        del names, out
        return function


WHOLE = Whole()


def parts(layout: Layout, shape: Sequence[int], names: Names) -> int:
    """Count the parts that an array is split into."""
    return math.prod(size for axes in layout.split(shape, names) for size in axes.values())
