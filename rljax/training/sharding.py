"""The mesh and the one table that lays parameters, rows and activations out over it.

Mesh axes: ``data`` copies parameters and splits rows, and is the one that may span slices; ``fsdp`` splits rows and,
one layer at a time, the width of parameters; ``tensor`` splits heads, hidden units and vocabulary; ``sequence`` splits
positions; ``expert`` splits experts, and is like ``fsdp`` to everything else. An axis of size 1 does nothing, so the
same program runs on one device and on many.

Updates and rollouts may lay the policy out apart, on the same devices: a decoder that fetched its weights for every
token would do nothing else. By the table "resident" each device keeps whole, for the length of a rollout, what it needs
to decode its rows; where that is too much, ``fsdp_tensor`` helps: it is more of ``fsdp`` in an update, and more of
``tensor`` in such a rollout.

``python -m rljax sharding --config ...`` prints how a config's parameters lie.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rljax.models import layouts
from rljax.models.layouts import Names
from rljax.types import Array, Tree

# Axes that split one dimension together must be neighbours here, in this order: else a gather becomes a sum of zeros.
AXES = ("data", "fsdp_tensor", "fsdp", "expert", "sequence", "tensor")
_NEAREST = ("tensor", "fsdp_tensor", "sequence", "expert", "fsdp", "data")  # whose devices should be neighbours first

# Logical axis -> mesh axes, the outermost first; an axis that an earlier dimension of the array has taken is left out.
# First parameters, then activations, whose width is whole on every device: rows already take the fsdp axis there.
Rules = dict[str | None, tuple[str, ...]]
RULES: Rules = {
    "expert": ("expert",),
    "width": ("fsdp_tensor", "fsdp", "expert"),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "hidden": ("tensor",),
    "vocabulary": ("tensor",),
    "layers": (),
    "head_size": (),
    None: (),
    "rows": ("data", "fsdp_tensor", "fsdp", "expert"),
    "positions": ("sequence",),
    "attending": ("tensor", "sequence"),  # heads while they attend, when positions are whole
    "drawing": ("data", "fsdp_tensor", "fsdp", "expert", "sequence", "tensor"),  # rows of whole logits
}
_SPLIT = ("tensor", "fsdp_tensor")
TABLES: dict[str, Rules] = {
    "update": RULES,
    "resident": {
        **RULES,
        **dict.fromkeys(("heads", "kv_heads", "hidden", "vocabulary", "attending"), _SPLIT),
        "width": (),
        "rows": ("data", "fsdp", "expert", "sequence"),
        "drawing": ("data", "fsdp", "expert", "sequence", *_SPLIT),
        "positions": (),
    },
}


def make_mesh(shape: Mapping[str, int] | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """Return a mesh with the axes of ``AXES``, all automatic: the compiler places what is not constrained.

    Devices of several slices (or nodes, told by ``slice_index``) are joined along ``data``: gradients are all that
    crosses the slower network between them.

    Args:
      shape: devices along each axis; an axis left out has 1, a single -1 takes what remains.
        None: everything along ``fsdp``.
      devices: what to use; None means all of ``jax.devices()``.

    Raises:
      ValueError: unknown axis, a size that is neither -1 nor positive, more than one -1, sizes
        whose product is not the number of devices, or ``data`` not divisible by the number of slices.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = _sizes({"fsdp": -1} if shape is None else shape, len(devices))
    slices = sorted({getattr(device, "slice_index", 0) for device in devices})
    if sizes[0] % len(slices):
        raise ValueError(f"mesh axis data={sizes[0]} must be divisible by the {len(slices)} slices, which it spans")
    within = dict(zip(AXES, (sizes[0] // len(slices), *sizes[1:]), strict=True))
    order = _NEAREST[::-1]
    placed = [
        mesh_utils.create_device_mesh(
            [within[axis] for axis in order],
            [d for d in devices if getattr(d, "slice_index", 0) == i],
            allow_split_physical_axes=True,
        ).transpose([order.index(axis) for axis in AXES])
        for i in slices
    ]
    return Mesh(np.concatenate(placed), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _sizes(shape: Mapping[str, int], count: int) -> tuple[int, ...]:
    """Return the size of each of ``AXES`` for ``count`` devices; raises as ``make_mesh`` does."""
    given = dict(shape)
    for axis, size in given.items():
        if axis not in AXES:
            raise ValueError(f"mesh axis {axis!r}: choose from {', '.join(AXES)}")
        if not isinstance(size, int) or (size < 1 and size != -1):
            raise ValueError(f"mesh axis {axis}={size!r} must be a whole number of at least 1, or -1 for the rest")
    free = [axis for axis, size in given.items() if size == -1]
    if len(free) > 1:
        raise ValueError(f"mesh axes {' and '.join(free)} are both -1: only one can take the rest")
    fixed = math.prod(size for size in given.values() if size != -1)
    if free and count % fixed == 0:
        given[free[0]] = count // fixed
    sizes = tuple(given.get(axis, 1) for axis in AXES)
    if math.prod(sizes) != count:
        asked = ", ".join(f"{axis}={size}" for axis, size in given.items())
        raise ValueError(f"mesh {asked} does not fit {count} devices: the product must be that number")
    return sizes


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
        for name in names:
            if name not in RULES:
                known = ", ".join(str(k) for k in RULES)
                raise ValueError(f"parameter {parameter}: no rule for logical axis {name!r}; the rules have {known}")
        spec = _by_rule(names)
        for dimension, (size, name) in enumerate(zip(leaf.shape, names, strict=True)):
            axes = spec[dimension]
            if size % _count(mesh, axes):
                raise ValueError(
                    f"parameter {parameter}: dimension {dimension} ({name}, size {size}) must be divisible by "
                    f"mesh {_describe(mesh, axes)}"
                )
        return _sharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(lay, shapes, axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array whose first dimension is rows."""
    return _sharding(mesh, _by_rule(("rows",)))


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


def spread(mesh: Mesh, count: int) -> tuple[int, int]:
    """Return over how many devices ``count`` rows divide, and how many there are to split rows over."""
    return layouts.parts(Layout(mesh), (count,), ("rows",)), _count(mesh, RULES["rows"])


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

    A dimension is split over the first of its mesh axes, as many as divide it (one decoded position cannot be split
    over ``sequence``). ``table`` is one of ``TABLES``. Hashable, and equal on equal meshes.
    """

    mesh: Mesh
    table: str = "update"

    def __call__(self, array: Array, names: Names) -> Array:
        """Return ``array`` constrained; ``names`` may be shorter than its dimensions."""
        spec = self._fit([array.shape], [names])[0]
        # A constraint that splits nothing would still force the array to be whole everywhere.
        if all(_count(self.mesh, axes) == 1 for axes in spec):
            return array
        return jax.lax.with_sharding_constraint(array, _sharding(self.mesh, spec))

    def hold(self, array: Array, names: Names) -> Array:
        """Return ``array``, a parameter, constrained, to be whole everywhere as well."""
        spec = self._fit([array.shape], [names])[0]
        # First gather, then trade dimensions: in one go the compiler would make every device hold the whole.
        needed = {axis for axes in spec for axis in axes}
        gathered = [tuple(axis for axis in axes if axis in needed) for axes in _by_rule(names)]
        if all(size % _count(self.mesh, axes) == 0 for size, axes in zip(array.shape, gathered, strict=True)):
            array = jax.lax.with_sharding_constraint(array, _sharding(self.mesh, gathered))
        return jax.lax.with_sharding_constraint(array, _sharding(self.mesh, spec))

    def split(self, shape: Sequence[int], names: Names) -> tuple[dict[str, int], ...]:
        """Return the mesh axes of more than one device, with their sizes, that each dimension is split over."""
        spec = self._fit([shape], [names])[0]
        return tuple({axis: self.mesh.shape[axis] for axis in axes if self.mesh.shape[axis] > 1} for axes in spec)

    def apart(self, function: Callable[..., Array], names: Sequence[Names], out: Names) -> Callable[..., Array]:
        """Return ``function`` run by every device on its own parts of the arrays, which ``names`` lay out."""

        def run(*arrays: Array) -> Array:
            specs = self._fit([x.shape for x in arrays], names)
            if all(_count(self.mesh, axes) == 1 for spec in specs for axes in spec):
                return function(*arrays)
            laid = {
                n: axes for given, spec in zip(names, specs, strict=True) for n, axes in zip(given, spec, strict=True)
            }
            to = [PartitionSpec(*(axes or None for axes in spec)) for spec in (*specs, [laid[n] for n in out])]
            return jax.shard_map(function, mesh=self.mesh, in_specs=tuple(to[:-1]), out_specs=to[-1], check_vma=False)(
                *arrays
            )

        return run

    def _fit(self, shapes: Sequence[Sequence[int]], names: Sequence[Names]) -> list[list[tuple[str, ...]]]:
        """Return the mesh axes of each dimension of some arrays: the first of its rule, as long as all divide."""
        sizes: dict[str | None, list[int]] = {}
        for shape, given in zip(shapes, names, strict=True):
            for size, name in zip(shape, given, strict=False):
                sizes.setdefault(name, []).append(size)

        def fitting(name: str | None, taken: Sequence[str]) -> tuple[str, ...]:
            axes = tuple(axis for axis in TABLES[self.table][name] if axis not in taken)
            while axes and any(size % _count(self.mesh, axes) for size in sizes[name]):
                axes = axes[:-1]
            return axes

        specs = []
        for given in names:
            spec: list[tuple[str, ...]] = []
            for name in given:
                spec.append(fitting(name, [axis for axes in spec for axis in axes]))
            specs.append(spec)
        return specs


def _by_rule(names: Names) -> list[tuple[str, ...]]:
    """Return the mesh axes of each dimension."""
    spec: list[tuple[str, ...]] = []
    for name in names:
        spec.append(tuple(axis for axis in RULES[name] if not any(axis in axes for axes in spec)))
    return spec


def _sharding(mesh: Mesh, spec: Sequence[tuple[str, ...]]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in spec)))


def _count(mesh: Mesh, axes: Sequence[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _describe(mesh: Mesh, axes: Sequence[str]) -> str:
    return " x ".join(f"{axis}={mesh.shape[axis]}" for axis in axes)
