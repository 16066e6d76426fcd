"""How the arrays of a network are sharded over a mesh: the protocol ``Layout``, and one that constrains nothing."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from rljax.types import Array

Names = tuple[str | None, ...]  # a logical axis name for each dimension


class Layout(Protocol):
    """Shards arrays by their logical axis names and never changes a value; see ``training.sharding.Layout``."""

    def __call__(self, array: Array, names: Names) -> Array:
        """Return ``array``, constrained to the sharding that ``names`` stand for."""
        ...

    def hold(self, array: Array, names: Names) -> Array:
        """Return ``array`` sharded as it is kept while it is read many times; a resident layout replicates weights."""
        ...

    def used(self, array: Array, names: Names) -> Array:
        """Return a parameter as a layer of an update reads it; its gradient is sharded as the parameter."""
        ...

    def split(self, shape: Sequence[int], names: Names) -> tuple[dict[str, int], ...]:
        """Return, for each dimension, the mesh axes it is split over, with their numbers of devices."""
        ...

    def apart(self, function: Callable[..., Array], names: Sequence[Names], out: Names) -> Callable[..., Array]:
        """Return ``function`` mapped over the shards of its arguments (``jax.shard_map``).

        Inside, an array has the shape of its shard, and ``function`` calls the collectives it needs over the axes that
        ``split`` returns. One logical name is split in the same way in all arrays.

        Args:
          function: of one array for each entry of ``names``.
          names: the logical axis names of each argument.
          out: the logical axis names of the result.

        Returns:
          A function of whole arrays.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Unconstrained:
    """Constrains nothing: the compiler places every array."""

    def __call__(self, array: Array, names: Names) -> Array:
        """Return ``array`` as it is."""
        del names
        return array

    def hold(self, array: Array, names: Names) -> Array:
        """Return ``array`` as it is."""
        del names
        return array

    def used(self, array: Array, names: Names) -> Array:
        """Return ``array`` as it is."""
        del names
        return array

    def split(self, shape: Sequence[int], names: Names) -> tuple[dict[str, int], ...]:
        """Return no axis for any dimension."""
        del names
        return tuple({} for _ in shape)

    def apart(self, function: Callable[..., Array], names: Sequence[Names], out: Names) -> Callable[..., Array]:
        """Return ``function`` as it is.

        Args:
          function: of one array for each entry of ``names``.
          names: ignored.
          out: ignored.

        Returns:
          ``function``.
        """
        del names, out
        return function


UNCONSTRAINED = Unconstrained()


def parts(layout: Layout, shape: Sequence[int], names: Names) -> int:
    """Count the shards that an array is split into.

    Args:
      layout: the layout of the array.
      shape: the shape of the whole array.
      names: its logical axis names, one for each dimension.

    Returns:
      The product of the numbers of devices over the mesh axes of all dimensions.
    """
    return math.prod(size for axes in layout.split(shape, names) for size in axes.values())
