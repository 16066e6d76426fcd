"""Checks of shapes at public functions, where a wrong shape would broadcast silently or fail without a name."""

from collections.abc import Mapping

import chex

from rljax.types import Array


def check(arrays: Mapping[str, Array | None], shape: tuple[int | None, ...], expected: str) -> None:
    """Raise ValueError, naming the field, unless every array has a shape.

    Args:
      arrays: arrays by the names of their fields; None is not checked.
      shape: the expected shape; None admits any size.
      expected: the shape in words, for the message, such as "[B, T]".

    Raises:
      ValueError: an array has another shape.
    """
    for name, array in arrays.items():
        if array is not None:
            chex.assert_shape(array, shape, custom_message=f"{name}: expected {expected}", exception_type=ValueError)
