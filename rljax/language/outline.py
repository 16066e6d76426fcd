"""Short texts for records of arrays."""

import dataclasses
import math
from typing import Any

import jax


def outline(self: Any) -> str:
    """Return the class of a record of arrays, and the fields that it has, with shapes, of trees numbers of elements."""

    def size(value: Any) -> str:
        if hasattr(value, "shape"):
            return f"[{', '.join(map(str, value.shape))}]"
        arrays = [x for x in jax.tree.leaves(value) if hasattr(x, "shape")]
        return f"{sum(math.prod(x.shape) for x in arrays):,}"

    fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    present = [f"{name} {size(value)}" for name, value in fields.items() if jax.tree.leaves(value)]
    return f"{type(self).__name__}({', '.join(present)})"
