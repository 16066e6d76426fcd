"""Compile and run the parts of a step under several settings: in this process, or in one with other CPU devices.

JAX creates its CPU devices once in a process, so another number of them needs another process, which ``Remote`` starts.
"""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import process
from typing import Any, Protocol

import jax

from rljax.bench import choices, shapes
from rljax.config import files, resolve, schema
from rljax.host import backends, memory
from rljax.run import programs
from rljax.training import steps

Edits = Mapping[str, Any]  # field -> value


def place(config: schema.ConfigDict, field: str) -> str:
    """Return where a field is set so that it has an effect on the last phase, and on no other."""
    name = config.phases[-1]
    head, _, last = field.rpartition(".")
    group = config.phase[name][head] if head else config.phase[name]
    if last not in group or (len(config.phases) == 1 and group[last] is None):
        return field
    return f"phase.{name}.{field}"


def value(config: schema.ConfigDict, field: str) -> Any:
    """Return the value of a field in the last phase of a config."""

    def read(path: str) -> Any:
        target: Any = config
        for name in path.split("."):
            target = target[name]
        return target

    of_phase = read(place(config, field))
    return read(field) if of_phase is None else of_phase


@dataclasses.dataclass(frozen=True)
class Work:
    """The step that is timed.

    Attributes:
      config: the config.
      lengths: "fixed" or "longtail", see ``shapes.work``.
      shape: a name in ``shapes.SHAPES``, with ``prompt`` and ``length`` tokens; "": the config's own model and task.
      prompt: tokens per prompt.
      length: maximum tokens per completion.
    """

    config: schema.ConfigDict
    lengths: str
    shape: str = ""
    prompt: int = 0
    length: int = 0

    def edited(self, edits: Edits) -> schema.ConfigDict:
        """Return a copy of the config with fields set in its last phase."""
        config = self.config.copy_and_resolve_references()
        for field, new in edits.items():
            files.override(config, place(config, field), new)
        return config

    def step(self, edits: Edits, tokenizer: Any = None, devices: Sequence[Any] | None = None) -> steps.Step:
        """Return the step of the config with fields set.

        Raises:
          ValueError: an invalid config, or one whose micro-batches do not divide over the devices.
        """
        config = self.edited(edits)
        with warnings.catch_warnings():
            warnings.simplefilter("error", programs.SharedWorkWarning)
            try:
                if not self.shape:
                    return shapes.of_config(config, self.lengths, tokenizer, devices)
                return shapes.work(config, self.shape, self.prompt, self.length, self.lengths, devices)
            except programs.SharedWorkWarning as warning:
                raise ValueError(str(warning)) from None


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A part of a step that is ready to run: its number, the seconds of compiling it, and the bytes that it needs."""

    number: int
    compile_s: float
    bytes: int


class Worker(Protocol):
    """Compiles and runs the parts of a step."""

    def compile(self, part: choices.Part, edits: Edits) -> Compiled:
        """Compile a part of the step with fields set and run it once; ValueError if that is not possible."""
        ...

    def run(self, number: int) -> float:
        """Run a compiled part to its end; return the seconds of CPU time of the process."""
        ...

    def close(self) -> None:
        """Release what the worker holds."""
        ...


class Local:
    """A worker in this process. All settings share one train state and the rows of one rollout."""

    def __init__(self, work: Work, devices: Sequence[Any] | None = None):
        """Make the train state and the rows of a work's config."""
        self._work, self._devices = work, devices
        resolved = resolve.run(files.last_phase(work.config))
        # before the tokenizer's corpus, which may be computed with JAX
        backends.start(resolved.settings.cpu_devices, resolve.parallel(resolved.config))
        self._tokenizer = None if work.shape else programs.make_tokenizer(resolved)
        self._calls: list[Callable[[], Any]] = []
        first = self._step({})
        self._key = jax.random.key(0, impl="threefry2x32")
        self._state: Any = first.begin(None, self._key)
        self.setup, self._rows = first.setup, None
        if not self.parts == choices.BOTH:
            self._rows = first.rollout(self._state, self._key)

    @property
    def parts(self) -> tuple[choices.Part, ...]:
        """The parts of the step; one that reads stored rows or demonstrations samples none."""
        return choices.BOTH if self.setup.algorithm.source.origin == "policy" else ("update",)

    def _step(self, edits: Edits) -> steps.Step:
        return self._work.step(edits, self._tokenizer, self._devices)

    def compile(self, part: choices.Part, edits: Edits) -> Compiled:
        """See ``Worker``."""
        step = self._step(edits)
        with _refused():
            if part == "update" and self._rows is None:
                self._rows = jax.block_until_ready(step.rollout(self._state, self._key))
            start = time.perf_counter()
            if part == "rollout":
                compiled: Any = step.rollout.lower(self._state, self._key).compile()  # type: ignore[attr-defined]
            else:
                compiled = step.update.lower(self._state, self._rows, self._key).compile()  # type: ignore[attr-defined]
            seconds = time.perf_counter() - start
            self._check_memory(compiled)
            self._calls.append(lambda: self._rollout(compiled) if part == "rollout" else self._update(compiled))
            self.run(len(self._calls) - 1)
        return Compiled(len(self._calls) - 1, seconds, memory.needed(compiled))

    def _check_memory(self, compiled: Any) -> None:
        sizes, free = compiled.memory_analysis(), memory.available(self._devices or jax.devices())
        more = sizes.output_size_in_bytes + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes
        if more > free:
            raise ValueError(f"needs {more / 2**30:.2f} GiB more, and {free / 2**30:.2f} GiB are free")

    def _rollout(self, compiled: Any) -> None:
        rows = jax.block_until_ready(compiled(self._state, self._key))
        if self._rows is None:
            self._rows = rows

    def _update(self, compiled: Any) -> None:
        self._state, metrics = compiled(self._state, self._rows, self._key)
        jax.block_until_ready(metrics)

    def run(self, number: int) -> float:
        """See ``Worker``."""
        start = time.process_time()
        self._calls[number]()
        return time.process_time() - start

    def close(self) -> None:
        """See ``Worker``."""
        self._calls, self._state, self._rows = [], None, None


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Turn an error of the device's memory into a ValueError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ValueError(str(error).partition("\n")[0]) from None


class Remote:
    """A worker in a process with another number of CPU devices."""

    def __init__(self, work: Work, cpu_devices: int):
        """Start the process; it compiles nothing yet."""
        config = work.edited({"cpu_devices": cpu_devices})
        fields = {f.name: getattr(work, f.name) for f in dataclasses.fields(work)}
        self._process = futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            self._ask(_begin, {**fields, "config": json.loads(files.dumps(config))})
        except ValueError:
            self.close()
            raise

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._process.submit(function, *arguments).result()
        except process.BrokenProcessPool:
            raise ValueError("the process with other cpu_devices has ended") from None

    def compile(self, part: choices.Part, edits: Edits) -> Compiled:
        """See ``Worker``."""
        return self._ask(_call, "compile", part, dict(edits))

    def run(self, number: int) -> float:
        """See ``Worker``."""
        return self._ask(_call, "run", number)

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()


# --- inside the process of a ``Remote`` ---------------------------------------------------------------------------

_local: Local | None = None


def _begin(fields: dict[str, Any]) -> None:
    """Make the worker of this process from the fields of a ``Work``."""
    global _local
    os.dup2(2, 1)  # what libraries print
    # the environment's number of devices would prevail
    os.environ["XLA_FLAGS"] = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    jax.config.update("jax_num_cpu_devices", -1)
    with _plain_errors():
        _local = Local(Work(**{**fields, "config": files.from_dict(fields["config"])}))


def _call(name: str, *arguments: Any) -> Any:
    with _plain_errors():
        return getattr(_local, name)(*arguments)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise a ValueError as one that any process can read."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error)) from None
