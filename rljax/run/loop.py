"""The training loop: phases of steps, with logs, evaluations and checkpoints between them."""

import contextlib
import dataclasses
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from rljax import types
from rljax.config import resolve, schema, stored
from rljax.data import storage, tokenizers
from rljax.environments import worlds
from rljax.environments.verifiers import pool
from rljax.host import backends, processes, profiles, workdirs
from rljax.run import (
    evaluate,
    events,
    forks,
    host_rollouts,
    host_worlds,
    identity,
    programs,
    ranking,
    references,
    session,
    stored_rows,
)
from rljax.training import steps

RESUMABLE = os.EX_TEMPFAIL
"""Exit code 75 after SIGTERM: the run is unfinished and can be resumed."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: the run is unfinished and can be resumed."""


class Recompiled(RuntimeError):
    """A program of the step was compiled more than once."""


NonFinite = session.NonFinite
Interrupted = pool.Interrupted
"""The process received SIGTERM; the run can be resumed."""


class PictureWarning(UserWarning):
    """A picture of a finished run was not written."""


@dataclasses.dataclass
class Result:
    """The result of a run, in memory."""

    program: programs.Program
    state: types.TrainState
    history: list[dict[str, Any]]  # metrics of each step
    evaluations: list[dict[str, Any]]

    def __repr__(self) -> str:
        measured = [f"{e['name']} {100 * next(iter(e['pass_at_k'].values()))[0]:.1f} %" for e in self.final]
        return f"Result({self.program.config.name}, {len(self.history)} steps; pass@1: {', '.join(measured) or 'none'})"

    def _repr_html_(self) -> str:
        from rljax.run.reports import html, pictures

        return html.join(
            [html.tag("p", repr(self)), *([pictures.picture(self.learning_curve(), limit=0)] * bool(self.history))]
        )

    @property
    def params(self) -> types.Tree:
        """The trained policy's parameters."""
        return self.state.params["policy"]

    @property
    def final(self) -> list[dict[str, Any]]:
        """The evaluations at the ends of phases."""
        names = {p.start.evaluate for p in self.program.phases}
        return [e for e in self.evaluations if e["name"] in names]

    def learning_curve(self, path: storage.Path | None = None) -> Any:
        """Plot reward, entropy and length against steps, also to the PNG file ``path``."""
        from rljax.run import plots  # matplotlib takes half a second, which the first step need not wait for

        return plots.learning_curve(self.history, path, [(p.name, p.last) for p in self.program.phases])

    def passk(self, path: storage.Path | None = None) -> Any:
        """Plot pass@k of the evaluations at the ends of phases, also to the PNG file ``path``."""
        from rljax.run import plots

        return plots.passk(self.final, path)

    def draw(self, run: session.Session) -> None:
        """Draw the pictures of a finished run into its work directory, unless ``log.report`` is False."""
        if run.written is None or not self.program.settings.log.report:
            return
        for draw in (self.learning_curve, *([self.passk] if self.final else [])):
            picture = run.written.path / f"{draw.__name__}.png"
            try:
                draw(picture)
            except OSError as error:  # what a run computed is more than its pictures
                warnings.warn(f"{picture} was not written ({storage.brief(error)})", PictureWarning, stacklevel=2)
            else:
                run.logger.picture(pathlib.Path(picture), self.program.updates)


def _advance(run: session.Session, step: steps.Step, state: types.TrainState, workers: Any):
    """Run one update: one fused program, or a rollout with the workers of a host task or host world, and an update."""
    if step.fused is not None:
        with run.clock.spent("dispatch"):
            return step.fused(state, run.program.key)
    if step.setup.stored is not None:
        with run.clock.spent("rollout"):
            rows = stored_rows.rollout(run.program, step, state)
        with run.clock.spent("dispatch"):
            return step.update(state, rows, run.program.key)
    chunks, waited = step.setup.settings.verifier.chunks, workers.waited
    with run.clock.spent("update"):
        jax.block_until_ready(state.step)  # the rollout would wait for it and count the time
    with run.clock.spent("rollout"):
        if worlds.on_host(step.setup.task):
            rows = host_worlds.rollout(run.program, step, state, workers, run.answers)
        else:
            rows = host_rollouts.rollout(run.program, step, state, workers, run.journal, chunks)
    run.clock.move(workers.waited - waited, "rollout", "verify")
    with run.clock.spent("dispatch"):
        return step.update(state, rows, run.program.key)


def _check_compiled(step: steps.Step) -> None:
    """Raise Recompiled if a function of the step was compiled more than once, since every step might compile again."""
    for field in dataclasses.fields(step):
        compiled = getattr(getattr(step, field.name), "_cache_size", lambda: 0)()
        if compiled > 1:
            raise Recompiled(
                f"the program {field.name!r} was compiled {compiled} times: shape, dtype or sharding of its arguments "
                "changes between steps."
            )


def _evaluation(
    run: session.Session, number: int, state: types.TrainState, step: int, name: str, workers: Any
) -> dict[str, Any]:
    """Evaluate the policy with the settings of phase ``number``; ``name`` is "" except at the end of a phase."""
    prompts, samples = run.program.phases[number].settings.evaluation.size(final=bool(name))
    record = evaluate.evaluate(
        run.program,
        state.params["policy"],
        name=name or "training",
        step=step,
        prompts=prompts,
        samples=samples,
        verifiers=workers,
        phase=number,
    )
    log_evaluation(run, number, state, record)
    return record


def log_evaluation(run: session.Session, number: int, state: types.TrainState | None, record: dict[str, Any]) -> None:
    """Add how well modules rank completions to the record of an evaluation, and write it.

    Args:
      run: the run.
      number: of the phase.
      state: the train state; None: no module ranks any.
      record: from ``evaluate.evaluate``.
    """
    compiled, samples = run.program.steps[number], max(2, record["samples"])
    if state is not None:
        given = compiled, state, run.program.key, record["prompts"], samples
        if models := ranking.models(compiled):
            record["ranking"] = {name: ranking.report(*ranking.scored(*given, name)) for name in models}
        if models := ranking.of_steps(compiled):
            record["process"] = {name: ranking.steps_report(*ranking.labelled(*given, name)) for name in models}
    run.logger.evaluation(record)
    run.flushed = time.perf_counter()  # excludes the evaluation from the steps' speed


@contextlib.contextmanager
def signals() -> Iterator[Callable[[int], bool]]:
    """As ``processes.notice``; ``Interrupted`` becomes a KeyboardInterrupt after Ctrl-C, and names the signal."""
    with processes.notice() as stopping:
        try:
            yield stopping
        except Interrupted as stopped:
            keyboard = processes.received() == "Ctrl-C"
            message = f"{processes.received() or 'SIGTERM'}: {stopped}"
            raise (KeyboardInterrupt if keyboard else Interrupted)(message) from stopped.__cause__


def train(
    config: schema.ConfigDict,
    workdir: str | os.PathLike[str] | None = None,
    *,
    allow_config_change: bool = False,
    allow_log_gap: bool = False,
    fresh: bool = False,
    progress: bool = True,
    devices: Sequence[Any] | None = None,
) -> Result:
    """Run a config's phases from the start, or from the newest checkpoint of its work directory.

    Args:
      config: see ``config.default``.
      workdir: folder for checkpoints, logs and plots; None keeps everything in memory, and the run cannot be resumed.
      allow_config_change: whether a work directory may be continued with a different config, or with changed code of
        the modules outside rljax that the config reaches.
      allow_log_gap: whether a work directory may be continued if its logs lack records from before the checkpoint.
      fresh: whether to start anew; an earlier run in the work directory is renamed to NAME.old-1, and so on.
      progress: whether to show the progress line.
      devices: the devices of the mesh; None: all devices.

    Returns:
      The program, the final state, the metrics of each step and the evaluations.

    Raises:
      ValueError: an invalid config, before any device work; or a work directory that cannot be used, which the message
        explains.
      OSError: a file cannot be written, or was deleted during the run.
      Interrupted: the process received SIGTERM; the state is saved, except during an evaluation.
      KeyboardInterrupt: Ctrl-C, which saves like SIGTERM; the second one stops at once.
      VerifierError: the workers of a host task cannot be started, or every score of a step crashed.
      NonFinite: too many consecutive updates were not finite.
      Recompiled: a function of the step was compiled more than once.
      profiles.OutOfMemory: a device ran out of memory.
    """
    config = forks.complete(resolve.complete(config))
    backends.start(resolve.check(config).cpu_devices)
    code = resolve.code(config)
    identity.check_same(config, code)
    directory = None if workdir is None else workdirs.WorkDirectory(workdir)
    with contextlib.ExitStack() as stack:
        if directory is not None:
            stack.callback(directory.close)
        happened = stack.enter_context(events.Events())
        saved = directory and processes.from_leader(
            lambda: identity.claim(directory, config, code, allow_change=allow_config_change, fresh=fresh)
        )
        if saved is None and config.checkpoint.init:
            saved = processes.from_leader(lambda: forks.tokenizer(config))
        if saved is None and processes.several():  # created by one process, so that all have the same
            settings, resolved = resolve.check(config), resolve.phases(config)
            saved = processes.from_leader(lambda: programs.make_tokenizer(settings, resolved).serialized)
        tokenizer = None if saved is None else tokenizers.load(saved)
        program = processes.together(lambda: programs.build(config, tokenizer, devices))
        workers = _workers(program, stack)
        stopping = stack.enter_context(signals())
        run = stack.enter_context(session.Session(program, code, directory, happened, progress, allow_log_gap))
        stack.enter_context(
            profiles.explain_out_of_memory(directory and directory.path, lambda: f"step {run.step + 1}")
        )
        run.announce()
        state = run.state
        if run.step == 0 and processes.leader():
            for task, judges in {id(w): (s.task, w) for s, w in zip(program.setups, workers, strict=True)}.values():
                references.warn(task, judges)
        if progress and processes.leader():
            run.greet()
        for number, (phase, step) in enumerate(zip(program.phases, program.steps, strict=True)):
            if run.step >= phase.last:
                continue
            if run.step == phase.first:
                state = step.begin(state, program.key, run.initial(number))
            assert state is not None
            state = _phase(run, number, step, state, workers[number], stopping, directory)
        assert state is not None
        result = Result(program, state, run.logger.history, run.logger.evaluations)
        result.draw(run)
    return result


def _workers(program: programs.Program, stack: contextlib.ExitStack) -> list[Any]:
    """Start the workers of each phase; phases with equal task and settings share them."""
    shared: dict[Any, Any] = {}
    for setup in program.setups:
        key = setup.settings.task, setup.settings.verifier
        if key not in shared:
            shared[key] = stack.enter_context(host_worlds.workers(setup))
    return [shared[s.settings.task, s.settings.verifier] for s in program.setups]


def interrupted(run: session.Session, step: int) -> Interrupted:
    """Return the exception of a run that stops after a step because of a signal."""
    saved = "saved" if run.saver is not None else "not saved (no work directory)"
    return Interrupted(f"stopped after step {step} of {run.program.updates}, {saved}.")


def _phase(
    run: session.Session,
    number: int,
    step: steps.Step,
    state: types.TrainState,
    workers: Any,
    stopping: Callable[[int], bool],
    directory: workdirs.WorkDirectory | None,
) -> types.TrainState:
    """Run the remaining updates of a phase."""
    setup = run.program.setups[number]
    phase, every = setup.phase, setup.settings.evaluation.every
    if setup.stored is not None:
        stored_rows.complete(step, state, phase.first, directory, stored.digest(phase))
    run.flushed = time.perf_counter()
    for current in range(run.step + 1, phase.last + 1):
        try:
            state, values = run.tracer.step(current, _advance, run, step, state, workers)
        except Interrupted:
            if run.step > phase.first:  # the state is still that after ``run.step``
                run.flush(setup)
                run.save(state, run.step)
            raise
        _check_compiled(step)
        with run.clock.spent("log"):
            run.push(setup, current, values)
        last, stop = current == phase.last, stopping(current)
        accuracy = None
        if (every and current % every == 0) or (last and phase.start.evaluate):
            run.flush(setup)
            name = phase.start.evaluate if last else ""
            with run.clock.spent("evaluation"):
                record = _evaluation(run, number, state, current, name, workers)
            accuracy = record["pass_at_k"]["1"][0]
        if accuracy is not None or last or current % setup.settings.checkpoint.every == 0 or stop:
            run.flush(setup)
            run.save(state, current, accuracy)
        run.step = current
        if stop and current < run.program.updates:
            raise interrupted(run, current)
    return state
