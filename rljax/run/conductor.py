"""The training loop: phases of steps of the members of a cohort, with logs, evaluations and checkpoints between them.

A run is a cohort of one member. What computes the members is an ``Engine``: ``alone`` computes one by the functions of
its phases, ``together`` several in one program.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import jax

from rljax import types
from rljax.environments.workers import pool
from rljax.host import processes, profiles
from rljax.run import programs, session
from rljax.run.records.progress import Progress

_FLUSH_SECONDS = 0.5  # after which metrics are written


class Engine(Protocol):
    """What computes the members of a cohort. The state of all members is one tree, which only the engine reads.

    Attributes:
      runs: the members, all at the same step.
      clock: the time of the host.
    """

    runs: Sequence[session.Session]
    clock: profiles.Clock

    def start(self) -> Any:
        """Return the state from which the members go on; None: they begin."""
        ...

    def enter(self, number: int, state: Any, /) -> Any:
        """Return the state with which a phase goes on, at its first step a new one."""
        ...

    def advance(self, number: int, state: Any, /) -> tuple[Any, Any]:
        """Return the state after one update of a phase, and the metrics of all members, on the devices."""
        ...

    def evaluate(
        self, number: int, state: Any, places: Collection[int], /, **fields: Any
    ) -> Iterable[tuple[int, dict[str, Any]]]:
        """Yield the places of members and their records; ``fields`` are name, step, prompts and samples."""
        ...

    def saved(self, state: Any, /) -> Any:
        """Return a state as checkpoints hold it, with the rows that were sampled ahead."""
        ...

    def members(self, tree: Any) -> Sequence[Any]:
        """Return what each member has of a state, or of metrics."""
        ...


def conduct(engine: Engine, stopping: Callable[[int], bool], progress: bool) -> Sequence[types.TrainState]:
    """Run the members of a cohort from the step of their sessions to the end.

    A member whose updates are not finite is left out from there on; its session has the failure.

    Args:
      engine: what computes the members.
      stopping: returns whether to stop after a step.
      progress: whether to show the progress line.

    Returns:
      The final state of each member.

    Raises:
      Interrupted: SIGTERM or Ctrl-C; the members are saved, except during an evaluation.
    """
    total = engine.runs[0].program.updates
    with Progress(total=total, quiet=not (progress and processes.leader())) as bar:
        return _Cohort(engine, stopping, bar).run(progress)


class _Cohort:
    """Members in progress: their steps, metrics, evaluations and checkpoints."""

    def __init__(self, engine: Engine, stopping: Callable[[int], bool], bar: Progress):
        self.engine, self.runs, self.clock, self.stopping, self.bar = engine, engine.runs, engine.clock, stopping, bar
        self.program, self.step = self.runs[0].program, self.runs[0].step
        self.running = dict(enumerate(self.runs))  # the members that have not failed, by place
        self.pending: list[tuple[int, Any]] = []  # steps whose metrics are on the devices
        self.flushed = time.perf_counter()

    def run(self, greet: bool) -> Sequence[types.TrainState]:
        """Run all phases to come; return the final state of each member."""
        self.warn(self.runs[0].notes())
        state = self.engine.start()
        if greet and processes.leader():
            for line in self.runs[0].greeting():
                print(line, flush=True)
        for number, phase in enumerate(self.program.phases):
            if self.step < phase.last and self.running:
                state = self.phase(number, self.engine.enter(number, state))
        return self.engine.members(state)

    def phase(self, number: int, state: Any) -> Any:
        """Run the remaining updates of a phase; return the state."""
        setup = self.program.setups[number]
        phase, every = setup.phase, setup.settings.evaluation.every
        self.flushed = time.perf_counter()
        named = {(e["name"], e["step"]) for e in self.runs[0].logger.evaluations}  # a run that resumes here may have it
        if phase.start.before and self.step == phase.first and (phase.start.before, self.step) not in named:
            self.evaluate(number, state, phase.start.before)
        for current in range(self.step + 1, phase.last + 1):
            try:
                state, values = self.runs[0].tracer.step(current, self.engine.advance, number, state)
            except (pool.Interrupted, pool.VerifierError):
                if self.step > phase.first:  # the state is still that after ``self.step``
                    self.flush(setup)
                    self.save(state, {})
                raise
            with self.clock.spent("log"):
                self.push(setup, current, values)
            last, stop = current == phase.last, self.stopping(current)
            name = phase.start.evaluate if last else ""
            measured = bool(name or (every and current % every == 0))
            saved = measured or last or current % setup.settings.checkpoint.every == 0 or stop
            if saved:
                self.flush(setup)
            if not self.running:
                break
            self.step = current
            if saved:
                self.save(state, self.evaluate(number, state, name) if measured else {})
            for run in self.runs:
                run.step = current
            if stop and current < self.program.updates:
                kept = "saved" if self.runs[0].saver is not None else "not saved (no work directory)"
                raise pool.Interrupted(f"stopped after step {current} of {self.program.updates}, {kept}.")
        return state

    def push(self, setup: programs.Setup, step: int, values: dict[str, Any]) -> None:
        """Add the metrics of a step. They are fetched in batches, so that devices do not wait for the host.

        Args:
          setup: the phase on devices.
          step: the step, from 1.
          values: of all members, on the devices, by name; "rows", if present, is the ``Rollout`` to log.
        """
        if not (session.logs_rows(setup, step) and any(run.written for run in self.running.values())):
            values.pop("rows", None)
        self.pending.append((step, values))
        if step % setup.settings.log.every == 0:
            self.flush(setup)
        elif "rows" in values or time.perf_counter() - self.flushed > _FLUSH_SECONDS:
            self.write(setup)

    def flush(self, setup: programs.Setup) -> None:
        """Write the pending metrics, and leave out members that failed.

        All processes flush at the same steps, independently of their clocks.
        """
        self.write(setup)
        for place, run in [*self.running.items()]:
            if run.failure is not None:
                del self.running[place]
                run.happened.failure = run.failure
                if run.label:
                    print(f"{run.label}{run.failure} The other runs go on.", flush=True)

    def write(self, setup: programs.Setup) -> None:
        """Write the pending metrics."""
        if not self.pending:
            return
        with self.clock.spent("wait"):
            fetched = jax.device_get(self.pending)
        now = time.perf_counter()
        seconds = (now - self.flushed) / len(fetched)
        self.pending, self.flushed = [], now
        spent = self.clock.take(len(fetched))
        for step, values in fetched:
            each = self.engine.members(values)
            logged = {place: run.log(setup, step, each[place], seconds, spent) for place, run in self.running.items()}
            if not logged:
                return
            means = {name: sum(x[name] for x in logged.values()) / len(logged) for name in next(iter(logged.values()))}
            rate = means["trained_tokens"] * len(logged) / seconds
            self.bar.update(step, setup.phase.name, means, tokens_per_second=rate)
            for place, run in self.running.items():
                self.warn(run.symptoms(setup, step, logged[place]))

    def warn(self, texts: Iterable[str]) -> None:
        """Print texts to standard error, below the progress line."""
        for text in texts if processes.leader() else ():
            self.bar.close()
            print(text, file=sys.stderr, flush=True)

    def evaluate(self, number: int, state: Any, name: str) -> dict[int, float]:
        """Evaluate the members; return pass@1 by place.

        Args:
          number: of the phase.
          state: of the members.
          name: of the evaluation at the start or the end of a phase, else "".
        """
        prompts, samples = self.program.phases[number].settings.evaluation.size(final=bool(name))
        asked = {"name": name or "training", "step": self.step, "prompts": prompts, "samples": samples}
        accuracy = {}
        with self.clock.spent("evaluation"):
            for place, record in self.engine.evaluate(number, state, self.running, **asked):
                self.runs[place].logger.evaluation(record)
                accuracy[place] = record["pass_at_k"]["1"][0]
        self.flushed = time.perf_counter()  # excludes the evaluation from the steps' speed
        return accuracy

    def save(self, state: Any, accuracy: Mapping[int, float]) -> None:
        """Save a checkpoint of the members; ``accuracy`` is pass@1 of an evaluation at this step, by place."""
        if self.runs[0].saver is None:
            return
        with self.clock.spent("checkpoint"):
            each = self.engine.members(self.engine.saved(state))
            for place, run in self.running.items():
                run.save(each[place], self.step, accuracy.get(place))
