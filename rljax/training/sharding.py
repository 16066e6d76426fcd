"""The mesh, and the table of rules by which parameters, rows and activations are sharded over it.

Mesh axes: ``data`` replicates parameters and splits rows, and is the only axis that may span slices; ``fsdp`` splits
rows and the width of parameters, which are gathered one layer at a time; ``tensor`` splits heads, hidden units and
vocabulary; ``sequence`` splits positions; ``expert`` splits experts, and acts like ``fsdp`` on everything else. An axis
of size 1 has no effect, so the same program runs on one device and on many.

Updates and rollouts may shard the policy differently over the same devices, because a decoder that gathers its weights
for every token is limited by communication. With the table "resident" each device stores all weights that it needs to
decode its rows for the duration of a rollout. If they do not fit, use ``fsdp_tensor``, which acts like ``fsdp`` in an
update and like ``tensor`` in such a rollout.

``python -m rljax sharding CONFIG`` prints the sharding of a config's parameters.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import layout, mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rljax.models import layouts, precision
from rljax.models.layouts import Names
from rljax.types import Array, Tree

# Axes that split one dimension together must be adjacent here, in this order: otherwise XLA replaces the gather by an
# all-reduce over zero-padded arrays.
AXES = ("data", "fsdp_tensor", "fsdp", "expert", "sequence", "tensor")
# by priority: devices of the first axes should be neighbors
_NEAREST = ("tensor", "fsdp_tensor", "sequence", "expert", "fsdp", "data")

# Logical axis -> mesh axes, the outermost first; an axis that splits an earlier dimension of the array is left out.
# First parameters, then activations, whose width is not split: the fsdp axis already splits their rows.
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
    "attending": ("tensor", "sequence"),  # heads in attention, where positions are not split
    "drawing": ("data", "fsdp_tensor", "fsdp", "expert", "sequence", "tensor"),  # rows of unsplit logits
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
    """Return a mesh with the axes of ``AXES``, all automatic: the compiler shards arrays without a constraint.

    Devices of several slices (or nodes, see ``slice_of``) are joined along ``data``, so that only
    gradients cross the slower network between them.

    Args:
      shape: devices along each axis; an omitted axis has 1, and -1 on at most one axis means the remaining devices.
        None: all devices along ``fsdp``.
      devices: the devices of the mesh; None: ``jax.devices()``.

    Returns:
      The mesh.

    Raises:
      ValueError: an unknown axis, a size that is neither -1 nor positive, more than one -1, sizes whose product is not
        the number of devices, or ``data`` not divisible by the number of slices.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = _sizes({"fsdp": -1} if shape is None else shape, len(devices))
    slices = sorted({slice_of(device) for device in devices})
    if sizes[0] % len(slices):
        raise ValueError(f"mesh axis data={sizes[0]} must be divisible by the number of slices, {len(slices)}")
    within = dict(zip(AXES, (sizes[0] // len(slices), *sizes[1:]), strict=True))
    order = _NEAREST[::-1]
    nearest = [_placed([within[axis] for axis in order], [d for d in devices if slice_of(d) == i]) for i in slices]
    placed = [each.transpose([order.index(axis) for axis in AXES]) for each in nearest]
    return Mesh(np.concatenate(placed), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _placed(shape: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Return the devices of a slice in the shape of a mesh, the last axes over neighbors where they fill a box."""
    try:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except AssertionError:  # the chips of a torus without those that sample; any order is valid
        return np.array(devices).reshape(shape)


def slice_of(device: Any) -> int:
    """Return the slice, or node, of a device; a GPU that is not attached has it in its coordinates alone."""
    known = getattr(device, "slice_index", 0) or 0
    return known or (device.coords[0] if device.platform == "gpu" and getattr(device, "coords", None) else 0)


def apart(devices: Sequence[Any] | None, count: int) -> tuple[list[Any], list[Any]]:
    """Return ``count`` devices that only sample, the first ones of each process, and the others.

    Args:
      devices: all devices; None: ``jax.devices()``.
      count: ``mesh.rollout``; 0: all devices are others.

    Raises:
      ValueError: no device is left, or processes would have unequal numbers.
    """
    devices = jax.devices() if devices is None else list(devices)
    processes = sorted({device.process_index for device in devices})
    if count >= len(devices) or count % len(processes):
        many = f", and divide over {len(processes)} processes" if len(processes) > 1 else ""
        raise ValueError(
            f"config.mesh.rollout={count}: must be below the number of devices, {len(devices)}{many}. The others "
            "update."
        )
    each = count // len(processes)
    sampling = [d for p in processes for d in [d for d in devices if d.process_index == p][:each]]
    return sampling, [device for device in devices if device not in sampling]


def _sizes(shape: Mapping[str, int], count: int) -> tuple[int, ...]:
    """Return the size of each of ``AXES`` for ``count`` devices; raises the errors of ``make_mesh``."""
    requested = dict(shape)
    for axis, size in requested.items():
        if axis not in AXES:
            raise ValueError(f"mesh axis {axis!r}: choose from {', '.join(AXES)}")
        if not isinstance(size, int) or (size < 1 and size != -1):
            raise ValueError(f"mesh axis {axis}={size!r} must be a whole number of at least 1, or -1 for the rest")
    free = [axis for axis, size in requested.items() if size == -1]
    if len(free) > 1:
        raise ValueError(f"mesh axes {' and '.join(free)} are both -1: only one can take the rest")
    fixed = math.prod(size for size in requested.values() if size != -1)
    if free and count % fixed == 0:
        requested[free[0]] = count // fixed
    sizes = tuple(requested.get(axis, 1) for axis in AXES)
    if math.prod(sizes) != count:
        product = ", ".join(f"{axis}={size}" for axis, size in requested.items())
        raise ValueError(f"mesh {product} does not fit {count} devices: the product of the sizes must be {count}")
    return sizes


def param_sharding(mesh: Mesh, axes: Tree, shapes: Tree) -> Tree:
    """Return the sharding of each parameter by the table of rules.

    Args:
      mesh: from ``make_mesh``.
      axes: ``model.axes``: for each parameter a tuple of logical axis names.
      shapes: the parameters, or a tree of their shapes.

    Returns:
      A tree of ``NamedSharding``, one for each parameter.

    Raises:
      ValueError: a dimension is not divisible by its mesh axes, or the rules lack its logical axis.
    """

    def shard(path: tuple[Any, ...], leaf: Any, names: tuple[str | None, ...]) -> NamedSharding:
        parameter = jax.tree_util.keystr(path, simple=True, separator=".")
        for name in names:
            if name not in RULES:
                known = ", ".join(str(k) for k in RULES)
                raise ValueError(f"parameter {parameter}: no rule for logical axis {name!r}. Valid: {known}.")
        spec = _by_rule(names)
        for dimension, (size, name) in enumerate(zip(leaf.shape, names, strict=True)):
            axes = spec[dimension]
            if size % _count(mesh, axes):
                raise ValueError(
                    f"parameter {parameter}: dimension {dimension} ({name}, size {size}) must be divisible by "
                    f"mesh {_describe(mesh, axes)}"
                )
        return _sharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(shard, shapes, axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array whose first dimension is rows."""
    return _sharding(mesh, _by_rule(("rows",)))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that is replicated on every device."""
    return NamedSharding(mesh, PartitionSpec())


def check_rows(mesh: Mesh, rows: int, field: str) -> None:
    """Check that rows divide evenly over the mesh axes that split rows.

    Args:
      mesh: from ``make_mesh``.
      rows: number of rows.
      field: field of the config that the error names.

    Raises:
      ValueError: they do not.
    """
    count = _count(mesh, RULES["rows"])
    if rows % count:
        raise ValueError(
            f"config.{field}={rows}: rows must be divisible by {count} (mesh {_describe(mesh, RULES['rows'])})"
        )


def spread(mesh: Mesh, count: int) -> tuple[int, int]:
    """Return how many devices ``count`` rows can be split over, and how many devices split rows."""
    return layouts.parts(Layout(mesh), (count,), ("rows",)), _count(mesh, RULES["rows"])


def constrain(tree: Tree, mesh: Mesh, leading: int = 0) -> Tree:
    """Inside jit, constrain every array of a tree to be split by rows.

    Arrays of fewer dimensions, and rows that do not divide over the mesh, are left to the compiler: a sharding never
    changes a value.

    Args:
      tree: arrays ``[..., B, ...]``.
      mesh: from ``make_mesh``.
      leading: number of dimensions before the rows.

    Returns:
      The tree, constrained.
    """
    names = (None,) * leading + ("rows",)
    layout = Layout(mesh)
    return jax.tree.map(lambda x: layout(x, names) if x.ndim > leading else x, tree)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Shards activations by their logical axis names: ``models.build(architecture, sharding.Layout(mesh))``.

    A dimension is split over its mesh axes in order, as long as their product divides it (one decoded position cannot
    be split over ``sequence``). ``table`` is a key of ``TABLES``. Layouts are hashable, and equal on equal meshes.
    """

    mesh: Mesh
    table: str = "update"

    def __call__(self, array: Array, names: Names) -> Array:
        """Return ``array`` constrained; ``names`` may be shorter than its dimensions."""
        spec = self._fit([array.shape], [names])[0]
        # A constraint that splits no dimension would still force replication.
        if all(_count(self.mesh, axes) == 1 for axes in spec):
            return array
        return jax.lax.with_sharding_constraint(array, _sharding(self.mesh, spec))

    def hold(self, array: Array, names: Names) -> Array:
        """Return a parameter, constrained; unlike a call, this also replicates what the table does not split."""
        if self.mesh.size == 1:
            return array
        # Convert shards, then gather, then exchange dimensions: from one constraint the compiler would gather what the
        # parameter is converted from, or replicate the whole array.
        spec, stored = self._fit([array.shape], [names])[0], self._stored(array, names)
        gathered = [tuple(axis for axis in axes if any(axis in other for other in spec)) for axes in stored]
        for each in (stored, gathered, spec):
            array = jax.lax.with_sharding_constraint(array, _sharding(self.mesh, each))
        if self.mesh.devices.flat[0].platform == "gpu":  # a gather leaves its dimension outermost: transpose it once
            array = layout.with_layout_constraint(array, layout.Layout(tuple(range(array.ndim))))
        return array

    def used(self, array: Array, names: Names) -> Array:
        """Return a parameter as a layer of an update reads it: its width is gathered, and its gradient scattered."""
        stored = self._stored(array, names)
        whole = [() if name == "width" else axes for name, axes in zip(names, stored, strict=True)]
        return array if whole == stored else _gathered(array, *(_sharding(self.mesh, each) for each in (stored, whole)))

    def _stored(self, array: Array, names: Names) -> list[tuple[str, ...]]:
        """Return the mesh axes of each dimension of a parameter in the train state."""
        return dataclasses.replace(self, table="update")._fit([array.shape], [names])[0]

    def split(self, shape: Sequence[int], names: Names) -> tuple[dict[str, int], ...]:
        """Return the mesh axes of more than one device, with their sizes, that each dimension is split over."""
        spec = self._fit([shape], [names])[0]
        return tuple({axis: self.mesh.shape[axis] for axis in axes if self.mesh.shape[axis] > 1} for axes in spec)

    def apart(self, function: Callable[..., Array], names: Sequence[Names], out: Names) -> Callable[..., Array]:
        """Return a function that every device applies to its shards of the arrays.

        Args:
          function: maps arrays to one array.
          names: logical axis names of each argument.
          out: logical axis names of the result, each among ``names``.

        Returns:
          The function, with the same arguments; it is ``function`` where no dimension is split.
        """

        def run(*arrays: Array) -> Array:
            specs = self._fit([x.shape for x in arrays], names)
            if all(_count(self.mesh, axes) == 1 for spec in specs for axes in spec):
                return function(*arrays)
            by_name = dict(pair for key, spec in zip(names, specs, strict=True) for pair in zip(key, spec, strict=True))
            # An array has a dimension of copies, one for each device that shares a shard.
            specs = [[tuple(a for a in AXES if all(a not in axes for axes in spec)), *spec] for spec in specs]
            *in_specs, out_specs = (
                PartitionSpec(*(axes or None for axes in spec)) for spec in (*specs, [by_name[n] for n in out])
            )
            mapped = jax.shard_map(
                lambda *copies: function(*(x[0] for x in copies)),
                mesh=self.mesh,
                in_specs=tuple(in_specs),
                out_specs=out_specs,
                check_vma=False,
            )
            return mapped(*(_copies(x, _count(self.mesh, spec[0])) for x, spec in zip(arrays, specs, strict=True)))

        return run

    def _fit(self, shapes: Sequence[Sequence[int]], names: Sequence[Names]) -> list[list[tuple[str, ...]]]:
        """Return the mesh axes of each dimension of arrays: the axes of its rule, as long as all sizes divide."""
        sizes: dict[str | None, list[int]] = {}
        for shape, dimensions in zip(shapes, names, strict=True):
            for size, name in zip(shape, dimensions, strict=False):
                sizes.setdefault(name, []).append(size)

        def fitting(name: str | None, used: Sequence[str]) -> tuple[str, ...]:
            axes = tuple(axis for axis in TABLES[self.table][name] if axis not in used)
            while axes and any(size % _count(self.mesh, axes) for size in sizes[name]):
                axes = axes[:-1]
            return axes

        specs = []
        for dimensions in names:
            spec: list[tuple[str, ...]] = []
            for name in dimensions:
                spec.append(fitting(name, [axis for axes in spec for axis in axes]))
            specs.append(spec)
        return specs


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(x: Array, stored: NamedSharding, whole: NamedSharding) -> Array:
    """Return x gathered; its gradient is summed into the shards of ``stored``."""
    return jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(x, stored), whole)


def _scattered(stored: NamedSharding, whole: NamedSharding, saved: None, gradient: Array) -> tuple[Array]:
    del whole, saved
    return (jax.lax.with_sharding_constraint(gradient, stored),)


_gathered.defvjp(lambda x, stored, whole: (_gathered(x, stored, whole), None), _scattered)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _copies(x: Array, count: int) -> Array:
    """Return x [count, ...]; the gradients of the copies are summed in float32 (shard_map would sum in x's dtype)."""
    return jnp.broadcast_to(x[None], (count, *x.shape))


def _copies_backward(count: int, saved: None, gradient: Array) -> tuple[Array | None]:
    del count, saved
    if gradient.dtype == jax.dtypes.float0:  # of integers
        return (None,)
    return (precision.rounded(jnp.sum(gradient, axis=0, dtype=jnp.float32), gradient.dtype),)


_copies.defvjp(lambda x, count: (_copies(x, count), None), _copies_backward)


def _by_rule(names: Names) -> list[tuple[str, ...]]:
    """Return the mesh axes of each dimension by ``RULES``, whatever its size."""
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
