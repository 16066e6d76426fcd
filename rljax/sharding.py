"""The mesh and the one table that lays parameters, rows and activations out over it.

Mesh axes: ``data`` copies parameters and splits rows; ``fsdp`` splits rows and, one layer at a time,
the width of parameters; ``tensor`` splits heads, hidden units and vocabulary; ``sequence`` splits
positions. An axis of size 1 does nothing, so the same program runs on one device and on many.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rljax.types import Array, Tree

AXES = ("data", "fsdp", "tensor", "sequence")

# Logical axis -> mesh axes. The first four rows lay out parameters, the last two activations, whose
# width is whole on every device: rows already take the fsdp axis there.
RULES: dict[str | None, tuple[str, ...]] = {
    "width": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "hidden": ("tensor",),
    "vocabulary": ("tensor",),
    "layers": (),
    "head_size": (),
    "expert": (),
    None: (),
    "rows": ("data", "fsdp"),
    "positions": ("sequence",),
}


def make_mesh(shape: Mapping[str, int] | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """Return a mesh with the axes of ``AXES``, all automatic: the compiler places what is not constrained.

    Args:
      shape: devices along each axis; an axis left out has 1, a single -1 takes what remains.
        None: everything along ``fsdp``.
      devices: what to use; None means all of ``jax.devices()``.

    Raises:
      ValueError: unknown axis, a size that is neither -1 nor positive, more than one -1, or sizes
        whose product is not the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    given = {"fsdp": -1} if shape is None else dict(shape)
    for axis, size in given.items():
        if axis not in AXES:
            raise ValueError(f"mesh axis {axis!r}: choose from {', '.join(AXES)}")
        if not isinstance(size, int) or (size < 1 and size != -1):
            raise ValueError(f"mesh axis {axis}={size!r} must be a whole number of at least 1, or -1 for the rest")
    free = [axis for axis, size in given.items() if size == -1]
    if len(free) > 1:
        raise ValueError(f"mesh axes {' and '.join(free)} are both -1: only one can take the rest")
    fixed = math.prod(size for size in given.values() if size != -1)
    if free and len(devices) % fixed == 0:
        given[free[0]] = len(devices) // fixed
    sizes = tuple(given.get(axis, 1) for axis in AXES)
    if math.prod(sizes) != len(devices):
        asked = ", ".join(f"{axis}={size}" for axis, size in given.items())
        raise ValueError(f"mesh {asked} does not fit {len(devices)} devices: the product must be that number")
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def param_sharding(mesh: Mesh, axes: Tree, shapes: Tree) -> Tree:
    """Return the tree of ``NamedSharding`` that lays parameters out by the table of rules.

    Args:
      mesh: from ``make_mesh``.
      axes: ``model.axes``: at each parameter a tuple of logical axis names.
      shapes: the parameters, or anything with their shapes.

    Raises:
      ValueError: a dimension is not divisible by the mesh axes it goes to, or the rules lack its name.
    """

    def lay(path: tuple[Any, ...], leaf: Any, names: tuple[str | None, ...]) -> NamedSharding:
        parameter = jax.tree_util.keystr(path, simple=True, separator=".")
        for dimension, (size, name) in enumerate(zip(leaf.shape, names, strict=True)):
            if name not in RULES:
                known = ", ".join(str(k) for k in RULES)
                raise ValueError(f"parameter {parameter}: no rule for logical axis {name!r}; the rules have {known}")
            if size % _count(mesh, RULES[name]):
                raise ValueError(
                    f"parameter {parameter}: dimension {dimension} ({name}, size {size}) must be divisible by "
                    f"mesh {_describe(mesh, RULES[name])}"
                )
        return NamedSharding(mesh, _spec(names))

    return jax.tree_util.tree_map_with_path(lay, shapes, axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array whose first dimension is rows."""
    return NamedSharding(mesh, _spec(("rows",)))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def check_rows(mesh: Mesh, rows: int, field: str) -> None:
    """Raise ValueError naming ``config.<field>`` unless ``rows`` divides over the mesh axes of rows."""
    count = _count(mesh, RULES["rows"])
    if rows % count:
        raise ValueError(
            f"config.{field}={rows}: rows must be divisible by {count} (mesh {_describe(mesh, RULES['rows'])})"
        )


def check_memory(mesh: Mesh, kind: str, field: str) -> None:
    """Raise ValueError naming ``config.<field>`` unless every device of the mesh has a memory of this kind."""
    for device in mesh.local_devices:
        kinds = [memory.kind for memory in device.addressable_memories()]
        if kind not in kinds:
            raise ValueError(
                f"config.{field}: needs a memory of kind {kind!r}; {device.platform} device {device.id} has "
                f"{', '.join(kinds)}"
            )


def constrain(tree: Tree, mesh: Mesh, leading: int = 0) -> Tree:
    """Inside jit: split every array of ``tree`` by rows, which stand behind ``leading`` other dimensions.

    Arrays of fewer dimensions, and rows that do not divide over the mesh, are left to the compiler:
    a layout never changes a value.
    """
    names = (None,) * leading + ("rows",)
    layout = Layout(mesh)
    return jax.tree.map(lambda x: layout(x, names) if x.ndim > leading else x, tree)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Lays activations out by their logical axis names: ``models.build(architecture, sharding.Layout(mesh))``.

    Dimensions that do not divide over their mesh axes stay whole (one decoded position cannot be
    split over ``sequence``). Hashable, and equal on equal meshes.
    """

    mesh: Mesh

    def __call__(self, array: Array, names: tuple[str | None, ...]) -> Array:
        """Return ``array`` constrained; ``names`` may be shorter than its dimensions."""
        fitting = tuple(
            name if size % _count(self.mesh, RULES[name]) == 0 else None
            for size, name in zip(array.shape, names, strict=False)
        )
        # A constraint that splits nothing would still force the array to be whole everywhere.
        if all(_count(self.mesh, RULES[name]) == 1 for name in fitting):
            return array
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, _spec(fitting)))


def _spec(names: tuple[str | None, ...]) -> PartitionSpec:
    return PartitionSpec(*(RULES[name] or None for name in names))


def _count(mesh: Mesh, axes: tuple[str, ...]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _describe(mesh: Mesh, axes: tuple[str, ...]) -> str:
    return " x ".join(f"{axis}={mesh.shape[axis]}" for axis in axes)
