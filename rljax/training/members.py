"""Members: runs that differ in their seed or in numbers, computed by one program over several devices.

Arrays of members have them along the first axis, which is split over the devices. A device computes ``width`` of its
members at a time, by ``vmap``, and one such part after another. Devices exchange nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "member"


def make_mesh(devices: Sequence[Any]) -> Mesh:
    """Return a mesh of one axis, over which members are split."""
    return Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,))


def sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of arrays of members."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def each(function: Callable[..., Any], mesh: Mesh, width: int, donate: bool = False) -> Any:
    """Return the compiled function ``(common, *members)`` that applies a function to every member.

    Args:
      function: ``(common, *member) -> tree``; ``common`` is the same for all members.
      mesh: from ``make_mesh``.
      width: members that a device computes at a time.
      donate: whether the first argument of members may be overwritten.

    Returns:
      The function; its other arguments and its results are trees of arrays ``[M, ...]``.
    """

    def of_device(common: Any, *members: Any) -> Any:
        batch = width if width > 1 else None  # without, the loop's body is the function itself, as for one run alone
        return jax.lax.map(lambda member: function(common, *member), members, batch_size=batch)

    whole, split = PartitionSpec(), PartitionSpec(AXIS)

    def run(common: Any, *members: Any) -> Any:
        specs = (whole, *(split for _ in members))
        return jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(common, *members)

    return jax.jit(run, donate_argnums=(1,) if donate else ())
