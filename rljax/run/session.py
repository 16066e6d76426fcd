"""A run in progress: its work directory, checkpoints and logs."""

import base64
import collections
import contextlib
import dataclasses
import json
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from rljax import algorithms, environments, types
from rljax.config import files, resolve
from rljax.data import storage
from rljax.host import processes, profiles, sinks, workdirs
from rljax.language import messages
from rljax.run import programs, sharding
from rljax.run.producers import ahead, verified
from rljax.run.records import checkpoints, events, forks, identity, journals, metrics, watch
from rljax.run.reports import records

_WARNED = 3  # steps of a phase in which rows that fail are named


class NonFinite(RuntimeError):
    """Too many consecutive updates were not finite."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The work directory of a run, of which this process is the owner, and its events.

    Attributes:
      code: the digests of the config's code outside rljax.
      directory: the work directory; None: the run is kept in memory.
      happened: the events of the run, from here on.
      tokenizer: the serialized tokenizer of the run, or of the run that it forks; None: it has none yet.
    """

    code: dict[str, str]
    directory: workdirs.WorkDirectory | None
    happened: events.Events
    tokenizer: bytes | None


def claim(
    stack: contextlib.ExitStack,
    resolved: resolve.Resolved,
    workdir: str | os.PathLike[str] | None,
    *,
    allow_change: bool = False,
    fresh: bool = False,
) -> Place:
    """Become the owner of the work directory of a run until ``stack`` closes, see ``identity.claim``."""
    config, code = resolved.config, resolved.code
    identity.check_same(config, code)
    directory = None if workdir is None else workdirs.WorkDirectory(workdir)
    if directory is not None:
        stack.callback(directory.close)
    happened = stack.enter_context(events.Events())
    tokenizer = directory and processes.from_leader(
        lambda: identity.claim(directory, config, code, allow_change=allow_change, fresh=fresh)
    )
    if tokenizer is None and config.checkpoint.init:
        tokenizer = processes.from_leader(lambda: forks.tokenizer(config))
    return Place(code, directory, happened, tokenizer)


class Session(contextlib.AbstractContextManager):
    """A run's files. Without a work directory nothing is written.

    All processes save and restore checkpoints; process 0 writes all other files.
    """

    def __init__(self, program: programs.Program, place: Place, allow_log_gap: bool = False, label: str = ""):
        """Restore the newest checkpoint, if any, and truncate the logs to its step.

        Raises:
          ValueError: the logs lack records from before the checkpoint, and ``allow_log_gap`` is False.
        """
        self.program, self.code, self.directory, self.happened = program, place.code, place.directory, place.happened
        self.label = label  # before its warnings, where several runs have one terminal
        directory = place.directory
        self.saver = None
        self.state: types.TrainState | None = None
        self.step = 0
        logs = None  # what they contained at that step
        self.written = written = directory if processes.leader() else None
        if directory is not None:
            if written is not None:
                written.open()
                storage.empty_trash(directory.path / "checkpoints")  # a finished run saves no more
            ends = [phase.last for phase in program.phases]
            newest = program.settings.checkpoint.max_to_keep
            self.saver = checkpoints.Checkpointer(directory.path / "checkpoints", max_to_keep=newest, keep=ends)
            if self.saver.latest_step() is not None:
                self.state, extras, self.step = self.saver.restore(self._shape)
                logs = None if allow_log_gap else extras.get("logs")
        self.start: forks.Start | None = None
        if self.state is None and program.settings.checkpoint.init:
            self.start = forks.load(program)
            self.state, self.step = self.start.state, self.start.step
        folder = written and written.logs
        self.logger = processes.together(lambda: self._logger(folder, logs))
        if written is not None:
            # first: it is compared where there is a config
            written.write("code.json", json.dumps(place.code, indent=2))
            written.write("config.json", files.dumps(program.config, indent=2))
            written.write("algorithm.txt", _describe(program) + "\n")
            written.write("tokenizer.model", program.tokenizer.serialized)
            self.happened.open(written, self.step, program.settings.log.report)
        if directory is not None:
            processes.check_shared(directory.path / "config.json")
        oldest = self.step if self.state is None else journals.oldest(program, self.state, self.step)
        self.journal = journals.Journal(folder, oldest, journals.judge(program, self.code))
        self.watcher, self.failing = watch.Watcher(), collections.Counter()  # steps with failed rows, by phase
        for record in self.logger.history:  # what was reported before the run was resumed
            collections.deque(self.watcher.step(record["step"], record["phase"], record), maxlen=0)
        traced = profiles.steps(program.settings.profile, program.updates)
        self.tracer = profiles.Tracer(traced, directory and directory.path)
        self.failure: NonFinite | None = None

    def _logger(self, folder: Any, written: Any) -> metrics.Logger:
        config = self.program.config
        return metrics.Logger(
            folder,
            openers=sinks.build(self.program.settings.log.sinks, "config.log.sinks"),
            name=config.name,
            settings={name.removeprefix("config."): value for name, value in files.flatten(config).items()},
            resume_step=self.step,
            written=written,
        )

    def _shape(self, extras: dict[str, Any]) -> types.TrainState:
        """Return the abstract state of the phase that wrote a checkpoint; its tokenizer must be that of the run."""
        assert self.directory is not None
        identity.check_tokenizer(str(self.directory.path), self.program.tokenizer.serialized, extras)
        step = self.program.steps[self.program.number(extras["step"] - 1)]
        return step.shape.replace(ahead=ahead.shapes(step, extras.get("ahead", ())))

    def notes(self) -> Iterator[str]:
        """Yield idle settings of the phases to come and the size of stored rows; algorithm.txt notes defaults."""
        for step in self.program.steps:
            if self.step < step.setup.phase.last:
                yield from (*step.setup.phase.warnings, *(f"note: {note}" for note in step.notes))

    def greeting(self) -> Iterator[str]:
        """Yield where a run begins that does not begin anew, the memory of sources, or that it has nothing to do."""
        if self.start is not None:
            yield self.start.note
        elif self.directory is not None and 0 < self.step < self.program.updates:
            path = self.directory.path.parent if self.label else self.directory.path
            yield f"resumes after step {self.step} of {self.program.updates}, from {path}"
        for step in self.program.steps:
            setup, held = step.setup, sharding.sizes(step.shape).get("pool", 0)
            if held and self.step < setup.phase.last:
                source = setup.algorithm.source.spec
                yield f"phase {setup.phase.name}: {source} keeps {messages.size(held)} on each device"
        if self.step >= self.program.updates:
            finished = f"already finished at step {self.step} of {self.program.updates}"
            yield f"{finished}: nothing was run (--fresh starts anew)"

    def initial(self, number: int) -> dict[str, types.Tree]:
        """Return the parameters of modules that start phase ``number`` from a folder or another run, by module."""
        return {**self.program.initial(number, policy=self.start is None), **(self.forked if number == 0 else {})}

    @property
    def forked(self) -> dict[str, types.Tree]:
        """The parameters of modules with which the first phase starts, from another run."""
        return {} if self.start is None else self.start.initial

    def log(
        self, setup: programs.Setup, step: int, values: dict[str, Any], seconds: float, spent: dict[str, float]
    ) -> dict[str, float]:
        """Write the metrics of a step, and note the failure of the run.

        Args:
          setup: the phase on devices.
          step: the step, from 1.
          values: scalars by name, on the host; "rows", if present, is the ``Rollout`` to log.
          seconds: of the step.
          spent: seconds by activity of the host.

        Returns:
          What was written, without times.
        """
        self.happened.step = step
        rows = values.pop("rows", None)
        if rows is not None and self.written is not None:
            self.logger.rollouts(records.rollouts(self.program, setup, step, rows))
        values = {k: float(v) for k, v in values.items()}
        name, limit, in_row = setup.phase.name, setup.learner.max_skipped, values.pop("skipped_in_row")
        first = values.pop("failed_row", 0.0), values.pop("failed_problem", 0.0)
        self._failed(setup, step, values.get("failed", 0.0), *first)
        rate = values["trained_tokens"] / seconds
        self.logger.step(step, name, values, {"seconds": seconds, "tokens_per_second": rate, **spent})
        if in_row > limit and self.failure is None:
            bad = {k: v for k, v in values.items() if not np.isfinite(v)}
            self.failure = NonFinite(
                f"step {step} (phase {name!r}): {in_row:.0f} consecutive updates were not finite and were "
                f"skipped (config.learner.max_skipped={limit}). "
                f"Not finite in this step: {bad or 'the update'}. A skipped update changes neither parameters nor "
                "optimizer state."
            )
        return values

    def symptoms(self, setup: programs.Setup, step: int, values: dict[str, float]) -> Iterator[str]:
        """Yield what the metrics of a step say about causes of failure."""
        return (self.label + text for text in self.watcher.step(step, setup.phase.name, values))

    def _failed(self, setup: programs.Setup, step: int, count: float, row: float, problem: float) -> None:
        """Warn of rows on which a task or world inside the program failed, in the first such steps of a phase."""
        name, task = setup.phase.name, setup.task
        if not count or self.failing[name] == _WARNED:
            return
        self.failing[name] += 1
        wrong = "a reward or part that is not finite or above 1e15 in size, an outcome that is no types.Outcome"
        wrong += ", or a next_seat outside the seats" if environments.is_world(task) else ""
        text = f"step {step} (phase {name!r}): task {task.name!r} failed on {count:.0f} rows, first on row {row:.0f}, "
        text += f"problem {problem:.0f}: {wrong}. They do not count."
        more = " Later steps are counted in the metric failed alone." if self.failing[name] == _WARNED else ""
        warnings.warn(self.label + text + more, verified.VerifierWarning, stacklevel=2)

    def save(self, state: types.TrainState, step: int, accuracy: float | None = None) -> None:
        """Start writing a checkpoint of a state, after the logs of all steps before it are written.

        Args:
          state: the state after ``step`` updates.
          step: number of updates.
          accuracy: pass@1 of the evaluation at this step, from 0 to 1; None: no evaluation.
        """
        if self.saver is not None:
            extras = {
                "step": step,
                "logs": processes.together(self._store_logs),
                "config": json.loads(files.dumps(self.program.config)),
                "code": self.code,
                "tokenizer": base64.b64encode(self.program.tokenizer.serialized).decode(),
            }
            if state.ahead:
                extras["ahead"] = ahead.finished(state)
            self.happened.memory("checkpoint", step)
            self.saver.save(step, state, extras, None if accuracy is None else {"accuracy": accuracy})

    def _store_logs(self) -> dict[str, tuple[int, int]]:
        """Store the logs durably, on the disk and remotely; return what ``metrics.Logger`` compares on resume."""
        if self.written is None:
            return {}
        self.journal.sync()
        sizes = self.logger.sync()
        self.written.upload()
        return sizes

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Finish writing. If another process is lost, do not wait for the checkpoint, which needs all processes."""
        with contextlib.ExitStack() as stack:  # all are closed, even if one raises
            stack.callback(self.logger.close)
            stack.callback(self.journal.close)
            if error is None:
                stack.callback(self.logger.sync)  # the directory may have been deleted since the last checkpoint
            if self.saver is not None and not processes.lost(error):
                stack.callback(self.saver.close)
            self.tracer.close()


def logs_rows(setup: programs.Setup, step: int) -> bool:
    """Return whether the rows of a step are logged."""
    every = setup.settings.log.rollouts
    return bool(every) and (step % every == 0 or step == setup.phase.last)


def _describe(program: programs.Program) -> str:
    """Describe the phases, with all defaults."""
    return "\n\n".join(
        f"phase {s.phase.name}: steps {s.phase.first + 1} to {s.phase.last}, {s.settings.task}, "
        f"{s.prompts} prompts x {s.settings.batch.samples} samples\n"
        + "".join(f"{text}\n" for text in programs.remarks(step))
        + algorithms.describe(s.algorithm)
        for s, step in zip(program.setups, program.steps, strict=True)
    )
