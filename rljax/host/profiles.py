"""Profiles: traces of chosen steps, a memory profile when a device runs out of memory, a clock of host time.

    config.profile = "steps 10-12"      traces these steps, in every process, to WORKDIR/profile
    tensorboard --logdir WORKDIR        shows the traces (needs the package tensorboard-plugin-profile)
    pprof -top WORKDIR/profile/memory-step-3.prof

The host waits for the devices only at traced steps.
"""

import collections
import contextlib
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from etils import epath

from rljax.host import memory

T = TypeVar("T")

_EXHAUSTED = "RESOURCE_EXHAUSTED"


class OutOfMemory(RuntimeError):
    """A device ran out of memory; the message lists the largest arrays."""


# --- traces --------------------------------------------------------------------------------------


def steps(text: str, last: int) -> range:
    """Return the steps named by ``config.profile``: "steps 10-12", "step 10", or "" for none.

    Raises:
      ValueError: the text has another form, or names steps outside 1 to ``last``, the run's last step.
    """
    if not text.strip():
        return range(0)
    match = re.fullmatch(r"\s*steps?\s+(\d+)\s*(?:-\s*(\d+)\s*)?", text)
    if not match:
        raise ValueError(
            f"config.profile={text!r}: expected 'steps FIRST-LAST' or 'step NUMBER', for example 'steps 10-12'."
        )
    first, final = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= final <= last:
        raise ValueError(f"config.profile={text!r}: must be an ascending range within the run's steps, 1 to {last}.")
    return range(first, final + 1)


class Tracer:
    """Writes a trace of chosen steps; a run without a work directory writes none."""

    def __init__(self, steps: range, directory: Any):
        """Trace ``steps`` to the folder "profile" of ``directory``; with None, trace nothing."""
        self._steps = steps if directory is not None else range(0)
        self._target = None if directory is None else epath.Path(directory) / "profile"
        self._files = contextlib.ExitStack()
        self._running = False

    def step(self, number: int, action: Callable[..., T], *arguments: Any) -> T:
        """Return ``action(*arguments)``, traced if ``number`` is one of the chosen steps.

        Before the first traced step the host waits for ``arguments``, after the last for the result, so that the trace
        holds these steps only.

        Args:
          number: the step, from 1.
          action: the step's function.
          *arguments: its arguments.

        Returns:
          The result of ``action``.
        """
        if number not in self._steps:
            return action(*arguments)
        if not self._running:
            jax.block_until_ready(arguments)
            self._start()
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            result = action(*arguments)
        if number == self._steps[-1]:
            jax.block_until_ready(result)
            self.close()
        return result

    def _start(self) -> None:
        assert self._target is not None
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # millions of Python calls would slow the steps and bury them
        folder = self._files.enter_context(_local(self._target))
        jax.profiler.start_trace(str(folder), profiler_options=options)
        self._running = True

    def close(self) -> None:
        """Finish the current trace, if any."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
            self._files.close()


@contextlib.contextmanager
def _local(target: epath.Path) -> Iterator[pathlib.Path]:
    """Yield a local folder whose files are copied to ``target`` at the end: the profilers write only locally."""
    if "://" not in str(target):
        target.mkdir(parents=True, exist_ok=True)
        yield pathlib.Path(target)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)
        for file in pathlib.Path(folder).rglob("*"):
            if file.is_file():
                copy = target / file.relative_to(folder).as_posix()
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())


# --- memory --------------------------------------------------------------------------------------


@contextlib.contextmanager
def explain_out_of_memory(directory: Any, where: Callable[[], str]) -> Iterator[None]:
    """Replace jax's out-of-memory error by a message that lists the largest arrays, and write a memory profile.

    Args:
      directory: the work directory, whose folder "profile" gets the memory profile; None writes none.
      where: returns a description of the current step. Devices run asynchronously, so the failing program may have
        been dispatched some steps earlier.

    Raises:
      OutOfMemory: a device ran out of memory.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _EXHAUSTED not in str(error):
            raise
        line = next(line for line in str(error).splitlines() if _EXHAUSTED in line)
        raise OutOfMemory(
            f"out of memory in {where()}: {line.strip()[:300]} {_memory_profile(directory, where())} Largest arrays "
            f"on each device: {', '.join(live_arrays()) or 'none'}. To fix: increase config.learner.microbatches or "
            "config.mesh.fsdp, or set config.model.remat='full' or config.learner.offload."
        ) from error


def _memory_profile(directory: Any, where: str) -> str:
    """Write the memory profile and return a sentence with its path."""
    if directory is None:
        return "No memory profile: the run has no work directory."
    process = f"-process-{jax.process_index()}" if jax.process_count() > 1 else ""
    target, name = epath.Path(directory) / "profile", f"memory-{where.replace(' ', '-')}{process}.prof"
    try:
        with _local(target) as folder:
            jax.profiler.save_device_memory_profile(str(folder / name))
    except (RuntimeError, OSError) as error:
        return f"The memory profile could not be written ({error})."
    return f"Memory profile: {target / name}."


def live_arrays(count: int = 5) -> list[str]:
    """Return the ``count`` largest kinds of live array by their bytes on one device: "3 x float32[4096,64] 1.0 MiB"."""
    kinds: collections.Counter[tuple[str, int]] = collections.Counter()
    for array in jax.live_arrays():
        kinds[f"{array.dtype.name}[{','.join(map(str, array.shape))}]", memory.held(array)] += 1
    largest = sorted(kinds.items(), key=lambda item: -item[0][1] * item[1])[:count]
    return [f"{number} x {name} {size / 2**20:.1f} MiB" for (name, size), number in largest]


# --- time ----------------------------------------------------------------------------------------


class Clock:
    """Host time by activity. It measures existing waits and adds none.

    A step that is one program has "dispatch" (the call, including compilation the first time), "wait" (for the
    devices, when metrics are fetched), "log", "evaluation" and "checkpoint" (until the background write has started).
    A host task adds "update" (waiting for the previous update), "rollout" (decoding, and reading completions) and
    "verify" (waiting for verdicts while the devices are idle). Rollouts that run ahead, or on devices of their own,
    have "update" and "rows" (waiting for their rows while the devices that update are idle). A trace shows what the
    devices do.
    """

    def __init__(self):
        """Start with all times zero."""
        self._spent: collections.defaultdict[str, float] = collections.defaultdict(float)
        self._open: list[str] = []
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def spent(self, name: str) -> Iterator[None]:
        """Add the time inside the context to ``name``, without the time of nested contexts."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def move(self, seconds: float, source: str, target: str) -> None:
        """Reassign time from one activity to another.

        Args:
          seconds: the time to reassign.
          source: the activity it was counted for.
          target: the activity to count it for.
        """
        self._spent[source] -= seconds
        self._spent[target] += seconds

    def take(self, steps: int) -> dict[str, float]:
        """Return the seconds since the last call by activity, divided by ``steps``, and reset them."""
        self._charge()
        times = {name: seconds / steps for name, seconds in self._spent.items()}
        self._spent.clear()
        return times

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            self._spent[self._open[-1]] += now - self._since
        self._since = now
