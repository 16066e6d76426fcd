"""Where a step's time and memory go: traces of chosen steps, a profile of what filled the devices, a clock.

    config.profile = "steps 10-12"      traces these steps, in every process, to WORKDIR/profile
    tensorboard --logdir WORKDIR        shows them, with the package tensorboard-plugin-profile
    pprof -top WORKDIR/profile/memory-step-3.prof

Nothing here makes the host wait for the devices, but for the steps that are traced.
"""

import collections
import contextlib
import math
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from etils import epath

T = TypeVar("T")

_EXHAUSTED = "RESOURCE_EXHAUSTED"


class OutOfMemory(RuntimeError):
    """A device's memory was exhausted; the message says by what."""


# --- traces --------------------------------------------------------------------------------------


def steps(text: str, last: int) -> range:
    """Return the steps that ``config.profile`` names: "steps 10-12", "step 10", or "" for none.

    Raises:
      ValueError: it is neither, or names no step of the run's 1 to ``last``.
    """
    if not text.strip():
        return range(0)
    found = re.fullmatch(r"\s*steps?\s+(\d+)\s*(?:-\s*(\d+)\s*)?", text)
    if not found:
        raise ValueError(f"config.profile={text!r}: expected 'steps FIRST-LAST' or 'step NUMBER', as 'steps 10-12'.")
    first, final = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= final <= last:
        raise ValueError(f"config.profile={text!r}: must go upwards within the run's steps, 1 to {last}.")
    return range(first, final + 1)


class Tracer:
    """Writes a trace of the steps that were asked for. A run without a work directory keeps none."""

    def __init__(self, steps: range, directory: Any):
        """Trace ``steps`` to the folder "profile" of ``directory``, a path or None."""
        self._steps = steps if directory is not None else range(0)
        self._target = None if directory is None else epath.Path(directory) / "profile"
        self._files = contextlib.ExitStack()
        self._running = False

    def step(self, number: int, action: Callable[..., T], *arguments: Any) -> T:
        """Return ``action(*arguments)``, traced if it is a step to trace.

        The first waits for the arguments, so that the trace begins with this step; the last waits for its result.
        """
        if number not in self._steps:
            return action(*arguments)
        if not self._running:
            jax.block_until_ready(arguments)
            self._start()
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            made = action(*arguments)
        if number == self._steps[-1]:
            jax.block_until_ready(made)
            self.close()
        return made

    def _start(self) -> None:
        assert self._target is not None
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every Python call, by the million, would slow the steps and hide them
        folder = self._files.enter_context(_local(self._target))
        jax.profiler.start_trace(str(folder), profiler_options=options)
        self._running = True

    def close(self) -> None:
        """Finish a trace under way."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
            self._files.close()


@contextlib.contextmanager
def _local(target: epath.Path) -> Iterator[pathlib.Path]:
    """Yield a folder on this machine whose files end up in ``target``: the profilers write nowhere else."""
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
    """Turn exhausted memory into one line that says what fills it, and write a memory profile beside it.

    Args:
      directory: the work directory; its folder "profile" gets the file. None writes none.
      where: tells what was going on. Devices run behind the host: it may have begun some steps before.

    Raises:
      OutOfMemory: in place of jax's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _EXHAUSTED not in str(error):
            raise
        what = next(line for line in str(error).splitlines() if _EXHAUSTED in line)
        raise OutOfMemory(
            f"out of memory in {where()}: {what.strip()[:300]} {_memory_profile(directory, where())} Largest arrays "
            f"there, on each device: {', '.join(live_arrays()) or 'none'}. More config.learner.microbatches, "
            "config.mesh.fsdp, config.model.remat='full' or config.learner.offload need less."
        ) from error


def _memory_profile(directory: Any, where: str) -> str:
    """Write the memory profile; return the sentence that says where."""
    if directory is None:
        return "No work directory, so no memory profile."
    process = f"-process-{jax.process_index()}" if jax.process_count() > 1 else ""
    target, name = epath.Path(directory) / "profile", f"memory-{where.replace(' ', '-')}{process}.prof"
    try:
        with _local(target) as folder:
            jax.profiler.save_device_memory_profile(str(folder / name))
    except (RuntimeError, OSError) as error:
        return f"No memory profile could be written ({error})."
    return f"Memory profile: {target / name}."


def live_arrays(count: int = 5) -> list[str]:
    """Return the largest kinds of array there are, by their bytes on a device: "3 x float32[4096,64] 1.0 MiB"."""
    kinds: collections.Counter[tuple[str, int]] = collections.Counter()
    for array in jax.live_arrays():
        shard = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        kinds[f"{array.dtype.name}[{','.join(map(str, array.shape))}]", shard] += 1
    largest = sorted(kinds.items(), key=lambda item: -item[0][1] * item[1])[:count]
    return [f"{number} x {name} {size / 2**20:.1f} MiB" for (name, size), number in largest]


# --- time ----------------------------------------------------------------------------------------


class Clock:
    """What the host spends its time on. It measures waits that happen anyway and adds none.

    Of a step in one program the host sees little: "dispatch" (the call; compiling, the first time), "wait" (for
    the devices, when metrics are fetched), "log", "evaluation", "checkpoint" (until it is under way). With a host
    task also "update" (waiting for the update before), "rollout" (decoding, and reading completions) and "verify"
    (waiting for verdicts while the devices have nothing to do). A trace tells the rest.
    """

    def __init__(self):
        """Start with nothing spent."""
        self._spent: collections.defaultdict[str, float] = collections.defaultdict(float)
        self._open: list[str] = []
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def spent(self, name: str) -> Iterator[None]:
        """Count the time within as spent on ``name``, less what is spent on others inside."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count so much of ``source`` as ``target``."""
        self._spent[source] -= seconds
        self._spent[target] += seconds

    def take(self, steps: int) -> dict[str, float]:
        """Return the seconds of each name for one of so many steps, since the last call."""
        self._charge()
        out = {name: seconds / steps for name, seconds in self._spent.items()}
        self._spent.clear()
        return out

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            self._spent[self._open[-1]] += now - self._since
        self._since = now
