"""The loop: phases of steps, with logs, evaluations and checkpoints between them."""

import base64
import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from rljax import algorithms, types
from rljax.config import files, resolve, schema
from rljax.data import storage, tokenizers
from rljax.host import processes, profiles, workdirs
from rljax.run import checkpoints, evaluate, host_rollouts, metrics, plots, programs
from rljax.run.progress import Progress
from rljax.training import steps

RESUMABLE = 75
"""Exit code after SIGTERM: the work is saved and unfinished (EX_TEMPFAIL)."""

_FLUSH_SECONDS = 0.5


class Interrupted(Exception):
    """SIGTERM came; the state was saved."""


class Recompiled(RuntimeError):
    """A program of the step was compiled more than once."""


class NonFinite(RuntimeError):
    """Too many updates in a row were not finite."""


@dataclasses.dataclass
class Result:
    """What a run leaves in memory."""

    program: programs.Program
    state: types.TrainState
    history: list[dict[str, Any]]  # metrics of each step
    evaluations: list[dict[str, Any]]

    @property
    def params(self) -> types.Tree:
        """The trained policy's parameters."""
        return self.state.params["policy"]

    def learning_curve(self) -> Any:
        """Return the figure of reward, entropy and length against steps."""
        return plots.learning_curve(self.history, path=None, phases=_bounds(self.program))

    def passk(self) -> Any:
        """Return the figure of pass@k of every evaluation."""
        return plots.passk(_named(self.program, self.evaluations), path=None)


def _bounds(program: programs.Program) -> list[tuple[str, int]]:
    return [(p.name, p.last) for p in program.phases]


def _named(program: programs.Program, evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {p.start.evaluate for p in program.phases}
    return [e for e in evaluations if e["name"] in names]


class _Run(contextlib.AbstractContextManager):
    """A run's files and its progress line. Without a work directory everything stays in memory.

    Of several processes all save and restore checkpoints, process 0 alone writes anything else.
    """

    def __init__(self, program: programs.Program, directory: workdirs.WorkDirectory | None, progress: bool):
        """Restore the newest checkpoint, if there is one, and cut the logs back to it."""
        self.program, self.directory = program, directory
        self.saver = None
        self.state: types.TrainState | None = None
        self.step = 0
        self.written = written = directory if processes.leader() else None
        if directory is not None:
            if written is not None:
                written.open()
            keep = program.settings.checkpoint.max_to_keep
            self.saver = checkpoints.Checkpointer(directory.path / "checkpoints", max_to_keep=keep)
            if self.saver.latest_step() is not None:
                self.state, _, self.step = self.saver.restore(self._shape)
        if written is not None:
            written.write("config.json", files.dumps(program.config, indent=2))
            written.write("algorithm.txt", _describe(program))
            written.write("tokenizer.model", program.tokenizer.serialized)
        if directory is not None:
            processes.check_shared(directory.path / "config.json")
        self.logger = metrics.Logger(written and written.logs, resume_step=self.step)
        hosted = any(task.host for task in program.tasks)
        log = metrics.StepLog(written.logs / "verdicts.jsonl") if written and hosted else None
        self.journal = host_rollouts.Journal(log, self.step)
        self.bar = Progress(total=program.updates, quiet=not (progress and processes.leader()))
        self.pending: list[tuple[int, dict[str, Any]]] = []
        self.flushed = time.perf_counter()
        self.clock = profiles.Clock()
        self.tracer = profiles.Tracer(
            profiles.steps(program.settings.profile, program.updates), directory and directory.path
        )
        self.failure: NonFinite | None = None

    def _shape(self, extras: dict[str, Any]) -> types.TrainState:
        """Return the abstract state of the phase that made a checkpoint."""
        return self.program.steps[self.program.number(extras["step"] - 1)].shape

    def push(self, setup: programs.Setup, step: int, values: dict[str, Any]) -> None:
        """Take a step's metrics; fetch them in batches, so that the devices need not wait for the host."""
        rows = values.pop("rows", None)
        log = setup.settings.log
        if rows is not None and log.rollouts and self.written is not None and step % log.rollouts == 0:
            self.logger.rollouts(_dump(self.program, setup, step, self._fetch(rows)))
        self.pending.append((step, values))
        if step % log.every == 0:
            self.flush(setup)
        elif time.perf_counter() - self.flushed > _FLUSH_SECONDS:
            self._log(setup)

    def _fetch(self, tree: Any) -> Any:
        with self.clock.spent("wait"):
            return jax.device_get(tree)

    def flush(self, setup: programs.Setup) -> None:
        """Write what was pushed. Several processes flush at the same step, whatever their clocks say.

        Raises:
          NonFinite: too many updates in a row were skipped.
        """
        self._log(setup)
        if self.failure is not None:
            raise self.failure

    def _log(self, setup: programs.Setup) -> None:
        if not self.pending:
            return
        fetched = self._fetch(self.pending)
        now = time.perf_counter()
        seconds = (now - self.flushed) / len(fetched)
        self.pending, self.flushed = [], now
        spent = self.clock.take(len(fetched))
        name, limit = setup.phase.name, setup.learner.max_skipped
        for step, values in fetched:
            values = {k: float(v) for k, v in values.items()}
            in_row = values.pop("skipped_in_row")
            rate = values["length"] * setup.rows / seconds
            self.logger.step(step, name, values, {"seconds": seconds, "tokens_per_second": rate, **spent})
            self.bar.update(step, name, values, tokens_per_second=rate)
            if in_row > limit and self.failure is None:
                bad = {k: v for k, v in values.items() if not np.isfinite(v)}
                self.failure = NonFinite(
                    f"step {step} (phase {name!r}): {in_row:.0f} updates in a row were not finite and were "
                    f"skipped (config.learner.max_skipped={limit}). "
                    f"Not finite in this step: {bad or 'the gradient'}. The parameters are those before them."
                )

    def announce(self, step: steps.Step) -> None:
        """Say what a phase that begins does not take over although it was asked to."""
        for note in step.notes if processes.leader() else ():
            logging.warning("%s", note)

    def save(self, state: types.TrainState, step: int, accuracy: float | None = None) -> None:
        """Start writing a checkpoint of the state after ``step`` updates; what was logged until then is there first."""
        if self.saver is not None and self.directory is not None:
            processes.together(self.directory.upload if self.written else lambda: None)
            extras = {
                "step": step,
                "config": json.loads(files.dumps(self.program.config)),
                "tokenizer": base64.b64encode(self.program.tokenizer.serialized).decode(),
            }
            with self.clock.spent("checkpoint"):
                self.saver.save(step, state, extras, None if accuracy is None else {"accuracy": accuracy}, force=True)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Finish writing, unless another process is gone: a checkpoint under way would wait for it."""
        with contextlib.ExitStack() as stack:  # each of them, whatever the others raise
            if self.written is not None:
                stack.callback(self.written.close)
            if self.saver is not None and not processes.lost(error):
                stack.callback(self.saver.close)
            stack.callback(self.logger.close)
            stack.callback(self.bar.close)
            self.tracer.close()


def _dump(program: programs.Program, setup: programs.Setup, step: int, rows: Any) -> list[dict[str, Any]]:
    """Write a few rows, a Rollout of NumPy arrays, as a person reads them."""
    texts = host_rollouts.texts(program.tokenizer, rows.action.token, rows.mask)
    out = []
    for i, text in enumerate(texts):
        length = max(float(rows.mask[i].sum()), 1.0)
        record: dict[str, Any] = {
            "step": step,
            "prompt": setup.task.text(int(rows.index[i]), "train"),
            "completion": text,
            "reward": float(rows.reward[i]),
            "parts": {k: float(v[i]) for k, v in rows.parts.items()},
        }
        if rows.outcome is not None and rows.on_policy is not None and rows.on_policy[i]:
            record["outcome"] = types.Outcome(int(rows.outcome[i])).name.lower()
        if rows.advantage is not None:
            record["advantage"] = float(rows.advantage[i].sum()) / length
        if rows.finish is not None:
            record["finish"] = types.Finish(int(rows.finish[i])).name.lower()
        out.append(record)
    return out


def _check_directory(
    config: schema.ConfigDict, directory: workdirs.WorkDirectory | None, allow_config_change: bool
) -> bytes | None:
    """Check that a work directory is this config's; return the tokenizer it may hold, serialized.

    Raises:
      ValueError: it is another config's, the fields that differ are named; or nothing can be written there.
    """
    if directory is None:
        return None
    stored = directory.read("config.json")
    if stored is None and directory.remote:
        storage.check_writable(directory.path)
    if stored is not None:
        before = files.from_dict(json.loads(stored))
        lines = files.differences(before, config)
        if lines and not allow_config_change:
            raise ValueError(
                f"{directory.path} holds a run of another config. Choose another --workdir, or continue it under the "
                "changed config with --allow_config_change. Differences:\n  " + "\n  ".join(lines)
            )
    return directory.read("tokenizer.model")


def _check_same(config: schema.ConfigDict) -> None:
    """Raise ValueError, in every process, where they were started with different configs."""
    first, *others = (files.from_dict(json.loads(c)) for c in processes.gather(files.dumps(config)))
    for process, other in enumerate(others, start=1):
        if lines := files.differences(first, other):
            raise ValueError(f"process {process} has another config than process 0:\n  " + "\n  ".join(lines))


def _describe(program: programs.Program) -> str:
    """Write out what each phase runs, every default filled in."""
    return "\n\n".join(
        f"phase {s.phase.name}: steps {s.phase.first + 1} to {s.phase.last}, {s.settings.task}, "
        f"{s.prompts} prompts x {s.samples} samples\n"
        + "".join(f"note: {note}\n" for note in step.notes)
        + algorithms.describe(s.algorithm)
        for s, step in zip(program.setups, program.steps, strict=True)
    )


def _advance(run: _Run, step: steps.Step, state: types.TrainState, workers: Any):
    """Make one update: in one program, or through the workers of a host task."""
    if step.fused is not None:
        with run.clock.spent("dispatch"):
            return step.fused(state, run.program.key)
    chunks, waited = step.setup.settings.verifier.chunks, workers.waited
    with run.clock.spent("update"):
        jax.block_until_ready(state.step)  # which the rollout would wait for in a moment
    with run.clock.spent("rollout"):
        rows = host_rollouts.rollout(run.program, step, state, workers, run.journal, chunks)
    run.clock.move(workers.waited - waited, "rollout", "verify")
    with run.clock.spent("dispatch"):
        return step.update(state, rows, run.program.key)


def _check_compiled(step: steps.Step) -> None:
    """Raise Recompiled where a program of the step was compiled a second time: every step would pay for it."""
    for field in dataclasses.fields(step):
        compiled = getattr(getattr(step, field.name), "_cache_size", lambda: 0)()
        if compiled > 1:
            raise Recompiled(
                f"the program {field.name!r} was compiled {compiled} times: shape, dtype or sharding of what it is "
                "given changes from step to step."
            )


def _evaluation(run: _Run, number: int, params: types.Tree, step: int, name: str, workers: Any) -> dict[str, Any]:
    """Evaluate the policy as the settings of phase ``number`` say; a ``name`` is that of a phase's end."""
    fields = run.program.phases[number].settings.evaluation
    record = evaluate.evaluate(
        run.program,
        params,
        name=name or "training",
        step=step,
        prompts=fields.final_prompts if name else fields.prompts,
        samples=fields.final_samples if name else fields.samples,
        verifiers=workers,
        phase=number,
    )
    run.logger.evaluation(record)
    run.flushed = time.perf_counter()  # the steps' rate is not the evaluation's
    return record


def train(
    config: schema.ConfigDict,
    workdir: str | os.PathLike[str] | None = None,
    *,
    allow_config_change: bool = False,
    progress: bool = True,
    devices: Sequence[Any] | None = None,
) -> Result:
    """Run a config's phases from the start, or from the newest checkpoint of its work directory.

    Args:
      config: see ``config.default``.
      workdir: where everything is written; None keeps all in memory and cannot be resumed.
      allow_config_change: continue a work directory whose config differs.
      progress: show a live line.
      devices: what the mesh is laid over; None for all there are.

    Raises:
      ValueError: anything wrong with the config, before any device work.
      Interrupted: SIGTERM came; the state is saved.
      NonFinite: too many updates in a row were not finite.
      profile.OutOfMemory: a device's memory was exhausted.
    """
    config = resolve.complete(config)
    programs.start_devices(resolve.check(config).cpu_devices)
    _check_same(config)
    directory = None if workdir is None else workdirs.WorkDirectory(workdir)
    saved = processes.from_leader(lambda: _check_directory(config, directory, allow_config_change))
    if saved is None and processes.several():  # made once, so that all have the same
        settings, resolved = resolve.check(config), resolve.phases(config)
        saved = processes.from_leader(lambda: programs.make_tokenizer(settings, resolved).serialized)
    tokenizer = None if saved is None else tokenizers.load(saved)
    program = processes.together(lambda: programs.build(config, tokenizer, devices))
    with contextlib.ExitStack() as stack:
        workers = _workers(program, stack)
        stopping = stack.enter_context(processes.notice())
        run = stack.enter_context(_Run(program, directory, progress))
        stack.enter_context(
            profiles.explain_out_of_memory(directory and directory.path, lambda: f"step {run.step + 1}")
        )
        state = run.state
        for number, (phase, step) in enumerate(zip(program.phases, program.steps, strict=True)):
            if run.step >= phase.last:
                continue
            if run.step == phase.first:
                run.announce(step)
                state = step.begin(state, program.key, program.initial() if state is None else None)
            assert state is not None
            state = _phase(run, number, step, state, workers[number], stopping)
        assert state is not None
        result = Result(program, state, run.logger.history, run.logger.evaluations)
        if run.written is not None:
            plots.learning_curve(result.history, run.written.path / "learning_curve.png", _bounds(program))
            named = _named(program, result.evaluations)
            if named:
                plots.passk(named, run.written.path / "passk.png")
    return result


def _workers(program: programs.Program, stack: contextlib.ExitStack) -> list[Any]:
    """Start the workers of each phase; phases with equal task and settings share them."""
    shared: dict[Any, Any] = {}
    for setup in program.setups:
        key = setup.settings.task, setup.settings.verifier
        if key not in shared:
            shared[key] = stack.enter_context(host_rollouts.verifiers(setup))
    return [shared[s.settings.task, s.settings.verifier] for s in program.setups]


def _phase(
    run: _Run,
    number: int,
    step: steps.Step,
    state: types.TrainState,
    workers: Any,
    stopping: Callable[[int], bool],
) -> types.TrainState:
    """Make the updates of a phase that are still to make."""
    setup = run.program.setups[number]
    phase, every = setup.phase, setup.settings.evaluation.every
    run.flushed = time.perf_counter()
    for current in range(run.step + 1, phase.last + 1):
        state, values = run.tracer.step(current, _advance, run, step, state, workers)
        _check_compiled(step)
        with run.clock.spent("log"):
            run.push(setup, current, values)
        last, stop = current == phase.last, stopping(current)
        accuracy = None
        if (every and current % every == 0) or (last and phase.start.evaluate):
            run.flush(setup)
            name = phase.start.evaluate if last else ""
            with run.clock.spent("evaluation"):
                record = _evaluation(run, number, state.params["policy"], current, name, workers)
            accuracy = record["pass_at_k"]["1"][0]
        if accuracy is not None or last or current % setup.settings.checkpoint.every == 0 or stop:
            run.flush(setup)
            run.save(state, current, accuracy)
        run.step = current
        if stop and current < run.program.updates:
            saved = "saved" if run.saver is not None else "not saved (no work directory)"
            raise Interrupted(f"SIGTERM: stopped after step {current} of {run.program.updates}, {saved}.")
    return state
