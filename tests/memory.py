"""Release of compiled programs: each holds memory maps, and a process may have at most 65,530."""

import gc
import pathlib

import jax


def forget_programs(limit: int = 20_000) -> None:
    """Clear jax's caches if the process has more than ``limit`` maps: at the kernel's limit the compiler crashes."""
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > limit:
        jax.clear_caches()
        gc.collect()
