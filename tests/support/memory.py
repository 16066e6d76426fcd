"""Dropping compiled programs, which hold memory and memory maps; a process may have 65,530 maps."""

import ctypes
import gc
import pathlib

import jax

STATUS = pathlib.Path("/proc/self")
MEBIBYTES = 2500  # resident memory that a process may keep
EVERY = 100  # programs that are compiled between two looks: to count 15,000 maps takes 16 ms


class _Compiled:
    """The number of programs that were compiled since the last look."""

    number = 0


@jax.monitoring.register_event_duration_secs_listener
def _count(event: str, _: float, **__: object) -> None:
    _Compiled.number += event == "/jax/core/compile/backend_compile_duration"


def forget_programs(maps: int = 20_000, mebibytes: int = MEBIBYTES) -> None:
    """Drop compiled programs once the process holds much memory or many maps: without maps the compiler crashes.

    Args:
      maps: memory maps that the process may keep.
      mebibytes: resident memory that the process may keep.
    """
    if not STATUS.exists() or _Compiled.number < EVERY:
        return
    _Compiled.number = 0
    resident = int((STATUS / "statm").read_text().split()[1]) / 256  # pages of 4 KiB
    if resident > mebibytes or (STATUS / "maps").read_bytes().count(b"\n") > maps:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # else glibc keeps what was freed
