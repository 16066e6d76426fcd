"""Compile and run the parts of a step under several settings: in this process, or in one with other CPU devices.

JAX creates its CPU devices once in a process, so another number of them needs another process. ``Remote`` starts it;
it is this module run as a program, which reads requests from its standard input, one line of JSON each.
"""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
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
        settings = resolve.check(resolve.complete(work.config))
        backends.start(settings.cpu_devices)  # before the tokenizer's corpus, which may be computed with JAX
        self._tokenizer = None
        if not work.shape:
            resolved = resolve.phases(files.last_phase(resolve.complete(work.config)))
            self._tokenizer = programs.make_tokenizer(settings, resolved)
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
        sampled = self.setup.stored is None and self.setup.algorithm.source.origin == "policy"
        return choices.BOTH if sampled else ("update",)

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
def _refused() -> Any:
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
        environment = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
        if "XLA_FLAGS" in environment:  # a number of devices in them would prevail
            environment["XLA_FLAGS"] = re.sub(
                r"--xla_force_host_platform_device_count=\d+", "", environment["XLA_FLAGS"]
            )
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        fields = {f.name: getattr(work, f.name) for f in dataclasses.fields(work)}
        try:
            self._ask({**fields, "config": json.loads(files.dumps(config))})
        except ValueError:
            self.close()
            raise

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(f"the process with other cpu_devices ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["result"]

    def compile(self, part: choices.Part, edits: Edits) -> Compiled:
        """See ``Worker``."""
        return Compiled(**self._ask({"compile": [part, dict(edits)]}))

    def run(self, number: int) -> float:
        """See ``Worker``."""
        return self._ask({"run": number})

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def serve(requests: Any, answers: Any) -> None:
    """Answer requests of a ``Remote``, one line of JSON each, until they end.

    Args:
      requests: lines; the first one has the fields of a ``Work``.
      answers: where answers are written.
    """
    worker: Local | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if worker is None:
                config = files.from_dict(request.pop("config"))
                worker, result = Local(Work(config, **request)), None
            elif "compile" in request:
                result = dataclasses.asdict(worker.compile(*request["compile"]))
            else:
                result = worker.run(request["run"])
            answer = {"result": result}
        except ValueError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print
        serve(sys.stdin, answers)
