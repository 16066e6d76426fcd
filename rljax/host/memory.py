"""Memory of programs and devices."""

import contextlib
import math
import os
import pathlib
import resource
import sys
from collections.abc import Sequence
from typing import Any

import jax


def held(tree: Any) -> int:
    """Return the bytes on each device of arrays with shardings, which may be abstract."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def peak() -> int:
    """Return the largest memory of this process so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_of_devices(devices: Sequence[Any]) -> int:
    """Return the largest memory so far of any of some devices, bytes; 0 if they do not report it."""
    return max((device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in devices)


def check(devices: Sequence[Any], kind: str, field: str) -> None:
    """Check that devices have a memory of a kind.

    Args:
      devices: of this process.
      kind: memory kind, such as "pinned_host".
      field: field of the config that the error names.

    Raises:
      ValueError: a device has no such memory.
    """
    for device in devices:
        kinds = [memory.kind for memory in device.addressable_memories()]
        if kind not in kinds:
            raise ValueError(
                f"config.{field}: needs a memory of kind {kind!r}; {device.platform} device {device.id} has "
                f"{', '.join(kinds)}"
            )


def needed(compiled: Any) -> int:
    """Return the bytes on a device that a compiled program needs while it runs, its arguments included."""
    sizes = compiled.memory_analysis()
    parts = sizes.argument_size_in_bytes, sizes.output_size_in_bytes, sizes.temp_size_in_bytes
    return sum(parts) - sizes.alias_size_in_bytes


def available(devices: Sequence[Any]) -> int:
    """Return the bytes that are free on all of some devices: a CPU's devices share the memory of the host."""
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in s for s in stats):
        return min(s["bytes_limit"] - s["bytes_in_use"] for s in stats) * len(devices)
    try:
        with open("/proc/meminfo") as lines:  # what is free without swapping, which sysconf does not say
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = pathlib.Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return free
