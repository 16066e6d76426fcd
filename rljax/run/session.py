"""A run in progress: its checkpoints, logs and progress line."""

import base64
import collections
import contextlib
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rljax import algorithms, environments, types
from rljax.config import files
from rljax.data import storage
from rljax.environments import worlds
from rljax.host import processes, profiles, workdirs
from rljax.language import messages
from rljax.run import (
    checkpoints,
    events,
    forks,
    host_rollouts,
    host_worlds,
    identity,
    metrics,
    programs,
    sharding,
    sinks,
    verdicts,
    watch,
)
from rljax.run.progress import Progress
from rljax.run.reports import records

FLUSH_SECONDS = 0.5  # after which metrics are written
_WARNED = 3  # steps of a phase in which rows that fail are named


class NonFinite(RuntimeError):
    """Too many consecutive updates were not finite."""


class Session(contextlib.AbstractContextManager):
    """A run's files and its progress line. Without a work directory nothing is written.

    All processes save and restore checkpoints; process 0 writes all other files.
    """

    def __init__(
        self,
        program: programs.Program,
        code: dict[str, str],
        directory: workdirs.WorkDirectory | None,
        happened: events.Events,
        progress: bool,
        allow_log_gap: bool,
        label: str = "",
    ):
        """Restore the newest checkpoint, if any, and truncate the logs to its step.

        Raises:
          ValueError: the logs lack records from before the checkpoint, and ``allow_log_gap`` is False.
        """
        self.program, self.code, self.directory, self.happened = program, code, directory, happened
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
            written.write("code.json", json.dumps(code, indent=2))  # first: it is compared where there is a config
            written.write("config.json", files.dumps(program.config, indent=2))
            written.write("algorithm.txt", _describe(program) + "\n")
            written.write("tokenizer.model", program.tokenizer.serialized)
            happened.open(written, self.step, program.settings.log.report)
        if directory is not None:
            processes.check_shared(directory.path / "config.json")
        hosted = any(environments.scored_on_host(task) for task in program.tasks)
        self.verdicts = metrics.StepLog(written.logs / "verdicts.jsonl") if written and hosted else None
        judge = _judge(program, code)
        self.journal = verdicts.Journal(self.verdicts, self.step, judge)
        in_turns = any(worlds.on_host(task) for task in program.tasks)
        self.turns = metrics.StepLog(written.logs / "turns.jsonl") if written and in_turns else None
        self.answers = host_worlds.Journal(self.turns, self.step, judge)
        self.watcher, self.failing = watch.Watcher(), collections.Counter()  # steps with failed rows, by phase
        for record in self.logger.history:  # what was reported before the run was resumed
            collections.deque(self.watcher.step(record["step"], record["phase"], record), maxlen=0)
        self.bar = Progress(total=program.updates, quiet=not (progress and processes.leader()))
        self.pending: list[tuple[int, dict[str, Any]]] = []
        self.label = label  # before its warnings, where several runs have one terminal
        self.flushed = time.perf_counter()
        self.seconds: float | None = None  # of a step, where others measure it
        self.clock = profiles.Clock()
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
        return self.program.steps[self.program.number(extras["step"] - 1)].shape

    def greet(self) -> None:
        """Print where a fork begins, the memory of sources, or that a finished run has nothing to do."""
        if self.start is not None:
            print(self.start.note, flush=True)
        for step in self.program.steps:
            setup, held = step.setup, sharding.sizes(step.shape).get("pool", 0)
            if held and self.step < setup.phase.last:
                source = setup.algorithm.source.spec
                print(f"phase {setup.phase.name}: {source} keeps {messages.size(held)} on each device", flush=True)
        if self.step >= self.program.updates:
            finished = f"already finished at step {self.step} of {self.program.updates}"
            print(f"{finished}: nothing was run (--fresh starts anew)", flush=True)

    def initial(self, number: int) -> dict[str, types.Tree]:
        """Return the parameters of modules that start phase ``number`` from a folder or another run, by module."""
        return {**self.program.initial(number, policy=self.start is None), **(self.forked if number == 0 else {})}

    @property
    def forked(self) -> dict[str, types.Tree]:
        """The parameters of modules with which the first phase starts, from another run."""
        return {} if self.start is None else self.start.initial

    def push(self, setup: programs.Setup, step: int, values: dict[str, Any]) -> None:
        """Add the metrics of a step. They are fetched in batches, so that devices do not wait for the host.

        Args:
          setup: the phase on devices.
          step: the step, from 1.
          values: scalars by name, on devices; "rows", if present, is the ``Rollout`` to log.
        """
        self._keep(setup, step, values)
        if step % setup.settings.log.every == 0:
            self.flush(setup)
        elif time.perf_counter() - self.flushed > FLUSH_SECONDS:
            self._log(setup)

    def extend(self, setup: programs.Setup, steps: Sequence[tuple[int, dict[str, Any]]], seconds: float) -> None:
        """Add and write the metrics of several steps of so many seconds each, as ``push`` and ``flush``."""
        self.seconds = seconds
        for step, values in steps:
            self._keep(setup, step, values)
        self.flush(setup)

    def _keep(self, setup: programs.Setup, step: int, values: dict[str, Any]) -> None:
        rows = values.pop("rows", None)
        if rows is not None and logs_rows(setup, step) and self.written is not None:
            self._log(setup)  # first the steps before: Weights & Biases ignores a step lower than the last one
            self.logger.rollouts(records.rollouts(self.program, setup, step, self._fetch(rows)))
        self.pending.append((step, values))

    def _fetch(self, tree: Any) -> Any:
        with self.clock.spent("wait"):
            return jax.device_get(tree)

    def flush(self, setup: programs.Setup) -> None:
        """Write the pending metrics. All processes flush at the same steps, independently of their clocks.

        Raises:
          NonFinite: too many consecutive updates were skipped.
        """
        self._log(setup)
        if self.failure is not None:
            raise self.failure

    def _log(self, setup: programs.Setup) -> None:
        if not self.pending:
            return
        fetched = self._fetch(self.pending)
        now = time.perf_counter()
        seconds = self.seconds or (now - self.flushed) / len(fetched)
        self.pending, self.flushed = [], now
        spent = self.clock.take(len(fetched))
        name, limit = setup.phase.name, setup.learner.max_skipped
        self.happened.step = fetched[-1][0]
        for step, values in fetched:
            values = {k: float(v) for k, v in values.items()}
            in_row = values.pop("skipped_in_row")
            first = values.pop("failed_row", 0.0), values.pop("failed_problem", 0.0)
            self._failed(setup, step, values.get("failed", 0.0), *first)
            rate = values["length"] * setup.rows / seconds
            self.logger.step(step, name, values, {"seconds": seconds, "tokens_per_second": rate, **spent})
            self.bar.update(step, name, values, tokens_per_second=rate)
            self._warn(*(self.label + text for text in self.watcher.step(step, name, values)))
            if in_row > limit and self.failure is None:
                bad = {k: v for k, v in values.items() if not np.isfinite(v)}
                self.failure = NonFinite(
                    f"step {step} (phase {name!r}): {in_row:.0f} consecutive updates were not finite and were "
                    f"skipped (config.learner.max_skipped={limit}). "
                    f"Not finite in this step: {bad or 'the update'}. A skipped update changes neither parameters nor "
                    "optimizer state."
                )

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
        warnings.warn(self.label + text + more, host_rollouts.VerifierWarning, stacklevel=2)

    def announce(self) -> None:
        """Print idle settings of the phases to come and the size of stored rows; algorithm.txt notes defaults."""
        for step in self.program.steps:
            if self.step < step.setup.phase.last:
                stored = step.setup.stored
                lines = () if stored is None else (f"stored rows: {stored.describe()}",)
                self._warn(*step.setup.phase.warnings, *(f"note: {note}" for note in (*lines, *step.notes)))

    def _warn(self, *texts: str) -> None:
        if texts and processes.leader():
            self.bar.close()
            for text in texts:
                print(text, file=sys.stderr, flush=True)

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
            self.happened.memory("checkpoint", step)
            with self.clock.spent("checkpoint"):
                self.saver.save(step, state, extras, None if accuracy is None else {"accuracy": accuracy}, force=True)

    def _store_logs(self) -> dict[str, tuple[int, int]]:
        """Store the logs durably, on the disk and remotely; return what ``metrics.Logger`` compares on resume."""
        if self.written is None:
            return {}
        for journal in (self.verdicts, self.turns):
            if journal is not None:
                journal.sync()
        sizes = self.logger.sync()
        self.written.upload()
        return sizes

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Finish writing. If another process is lost, do not wait for the checkpoint, which needs all processes."""
        with contextlib.ExitStack() as stack:  # all are closed, even if one raises
            stack.callback(self.logger.close)
            if error is None:
                stack.callback(self.logger.sync)  # the directory may have been deleted since the last checkpoint
            if self.saver is not None and not processes.lost(error):
                stack.callback(self.saver.close)
            stack.callback(self.bar.close)
            self.tracer.close()


def _judge(program: programs.Program, code: dict[str, str]) -> str:
    """Return a digest of what verdicts depend on; a journal of another one is not read."""
    judges = [(p.settings.task, p.settings.verifier.threshold, p.settings.verifier.timeout) for p in program.phases]
    return hashlib.sha256(json.dumps([judges, code]).encode()).hexdigest()[:32]


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
