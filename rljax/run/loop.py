"""Training: ``train`` runs a config, and ``Series`` several that share a program."""

import contextlib
import dataclasses
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rljax import types
from rljax.config import resolve, schema
from rljax.data import storage, tokenizers
from rljax.environments.workers import pool
from rljax.host import backends, processes, profiles
from rljax.run import conductor, programs, session
from rljax.run.members import alone
from rljax.run.records import forks

RESUMABLE = os.EX_TEMPFAIL
"""Exit code 75 after SIGTERM: the run is unfinished and can be resumed."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: the run is unfinished and can be resumed."""


Recompiled = alone.Recompiled
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
        from rljax.run.reports.pages import figures, html

        return html.join(
            [html.tag("p", repr(self)), *([figures.inline(self.learning_curve(), limit=0)] * bool(self.history))]
        )

    @property
    def params(self) -> types.Tree:
        """The trained policy's parameters."""
        return self.state.params["policy"]

    @property
    def final(self) -> list[dict[str, Any]]:
        """The evaluations at the starts and ends of phases."""
        names = {name for p in self.program.phases for name in (p.start.before, p.start.evaluate)}
        return [e for e in self.evaluations if e["name"] in names]

    def learning_curve(self, path: storage.Path | None = None) -> Any:
        """Plot reward, entropy and length against steps, also to the PNG file ``path``."""
        from rljax.run.reports.pages import plots  # matplotlib takes half a second, which no first step waits for

        return plots.learning_curve(self.history, path, [(p.name, p.last) for p in self.program.phases])

    def passk(self, path: storage.Path | None = None) -> Any:
        """Plot pass@k of the evaluations at the starts and ends of phases, also to the PNG file ``path``."""
        from rljax.run.reports.pages import plots

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


def finished(run: session.Session, state: types.TrainState) -> Result:
    """Return the result of a run that has ended, after drawing its pictures."""
    result = Result(run.program, state, run.logger.history, run.logger.evaluations)
    result.draw(run)
    return result


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
    config: schema.ConfigDict | resolve.Resolved,
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
      config: see ``config.default``; or a config that is resolved, with a step in ``checkpoint.init``.
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
    if not isinstance(config, resolve.Resolved):
        config = forks.complete(config)
        # before modules of the user, which may start JAX
        backends.start(resolve.check(config).cpu_devices, resolve.parallel(config))
        config = resolve.run(config)
    with Series(devices, Options(allow_config_change, allow_log_gap, progress)) as series:
        return series.train(config, workdir, fresh)


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of ``train`` that hold for each of several runs."""

    allow_config_change: bool
    allow_log_gap: bool
    progress: bool


class Series(contextlib.AbstractContextManager):
    """Runs one after another that may differ in their seed: they share a program, what it compiled, and its workers.

    Args:
      devices: the devices of the mesh; None: all devices.
      options: of each run.
      program: of the runs; None: the first run builds it.
    """

    def __init__(self, devices: Sequence[Any] | None, options: Options, program: programs.Program | None = None):
        self._devices, self._options, self._program = devices, options, program
        self._workers: list[Any] = []  # of each phase
        self._stack = contextlib.ExitStack()

    def __exit__(self, *error: Any) -> None:
        """End the workers."""
        self._stack.close()

    def train(self, config: resolve.Resolved, workdir: str | os.PathLike[str] | None, fresh: bool = False) -> Result:
        """Run a resolved config as ``train`` does."""
        with contextlib.ExitStack() as stack:
            allow_change = self._options.allow_config_change
            place = session.claim(stack, config, workdir, allow_change=allow_change, fresh=fresh)
            program = self._member(config, place.tokenizer)
            if not self._workers:
                self._workers = alone.start_workers(program, self._stack)
            stopping = stack.enter_context(signals())
            run = stack.enter_context(session.Session(program, place, self._options.allow_log_gap))
            path = place.directory and place.directory.path
            stack.enter_context(profiles.explain_out_of_memory(path, lambda: f"step {run.step + 1}"))
            engine = stack.enter_context(alone.Alone(run, self._workers))
            (state,) = conductor.conduct(engine, stopping, self._options.progress)
            if run.failure is not None:
                raise run.failure
            return finished(run, state)

    def _member(self, config: resolve.Resolved, saved: bytes | None) -> programs.Program:
        """Return the program of a run whose tokenizer is ``saved``, or new; it is built unless a run before did so."""
        if self._program is not None and saved in (None, self._program.tokenizer.serialized):
            return self._program.member(config)
        if saved is None and processes.several():  # created by one process, so that all have the same
            saved = processes.from_leader(lambda: programs.make_tokenizer(config).serialized)
        tokenizer = None if saved is None else tokenizers.load(saved)
        self._stack.close()  # the workers of another program
        self._workers = []
        self._program = processes.together(lambda: programs.build(config, tokenizer, self._devices))
        return self._program
