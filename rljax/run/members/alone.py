"""One member: what computes a run by the compiled functions of its phases, and the workers of its tasks and worlds."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import jax

from rljax import types
from rljax.host import processes, profiles
from rljax.run import producers, programs, session
from rljax.run.evaluation import evaluate, ranking
from rljax.run.producers import ahead, references
from rljax.training import steps
from rljax.training.learning import overlapped
from rljax.training.producers import play


class Recompiled(RuntimeError):
    """A program of the step was compiled more than once."""


class Alone(contextlib.AbstractContextManager):
    """A cohort of one member. Its state is a ``TrainState`` on the devices.

    Args:
      run: the member.
      workers: of each phase, from ``start_workers``.
    """

    def __init__(self, run: session.Session, workers: list[Any]):
        self.runs, self.clock, self._run, self._workers = (run,), profiles.Clock(), run, workers
        self._producer: producers.Producer | None = None  # of the phase
        self._ahead: ahead.Ahead | None = None  # the same, of a phase whose rollouts run ahead
        self._separable = False  # whether rows that arrive in parts have been checked in this phase

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the rollouts that run ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def start(self) -> types.TrainState | None:
        """Return the state from which the member goes on; try the reference solutions of a new run."""
        run = self._run
        if run.step == 0 and processes.leader():
            pairs = zip(run.program.setups, self._workers, strict=True)
            for task, judges in {id(workers): (setup.task, workers) for setup, workers in pairs}.values():
                references.warn(task, judges)
        state, run.state = run.state, None
        return state

    def enter(self, number: int, state: types.TrainState | None) -> types.TrainState:
        """Return the state with which a phase goes on, at its first step a new one."""
        run, step = self._run, self._run.program.steps[number]
        if run.step == step.setup.phase.first:
            state = step.begin(state, run.program.key, run.initial(number))
        assert state is not None
        apart = step.setup.apart
        program, workers = run.program.sampler if apart else run.program, self._workers[number]
        self._producer = producers.make(program, program.steps[number], workers, run.journal, state, run.directory)
        self.close()
        self._separable = False
        self._ahead = ahead.Ahead(run.program, number, self._producer, state) if apart else None
        return state.replace(ahead=())

    def advance(self, number: int, state: types.TrainState) -> tuple[types.TrainState, types.Metrics]:
        """Return the state after one update, and its metrics.

        Raises:
          Interrupted: a signal arrived while rows were awaited from the host; the state may still be used.
          Recompiled: a function of the step was compiled more than once.
        """
        program = self._run.program
        out = self._advance(program.steps[number], state)
        for compiled in (program, program.sampler):
            check_compiled(compiled.steps[number])
        return out

    def _advance(self, step: steps.Step, state: types.TrainState) -> tuple[types.TrainState, types.Metrics]:
        """Run one update: one fused program, or the rows of the phase's producer and an update."""
        key, producer = self._run.program.key, self._producer
        if step.fused is not None:
            with self.clock.spent("dispatch"):
                return step.fused(state, key)
        if self._ahead is not None:
            consume = self._overlap if step.setup.overlapped else self._consume
            return consume(self._ahead, step, state)
        assert producer is not None
        waited = producer.waited
        with self.clock.spent("update"):
            jax.block_until_ready(state.step)  # the producer would wait for it and count the time
        with self.clock.spent("rollout"):
            rows = producer(state)
        self.clock.move(producer.waited - waited, "rollout", "verify")
        with self.clock.spent("dispatch"):
            return step.update(state, rows, key)

    def _consume(
        self, sampled: ahead.Ahead, step: steps.Step, state: types.TrainState
    ) -> tuple[types.TrainState, types.Metrics]:
        """Run one update on rows that were sampled ahead, after the rollouts that wait for this state have begun."""
        with self.clock.spent("dispatch"):
            sampled.dispatch(state)
        with self.clock.spent("update"):
            jax.block_until_ready(state.step)
        with self.clock.spent("rows"):
            rows = sampled(state)
        with self.clock.spent("dispatch"):
            return step.update(state, rows, self._run.program.key)

    def _overlap(
        self, sampled: ahead.Ahead, step: steps.Step, state: types.TrainState
    ) -> tuple[types.TrainState, types.Metrics]:
        """Run one update on rows that arrive in parts.

        Raises:
          ValueError: the rows of a part depend on rows that arrive later.
        """
        with self.clock.spent("rows"):
            arrived = sampled.arrived(state)
        if not self._separable:  # later steps are skipped where it does not hold
            overlapped.check(step.setup, arrived)
            self._separable = True
        with self.clock.spent("dispatch"):
            return step.overlapped.finish(state, arrived, self._run.program.key)

    def saved(self, state: types.TrainState) -> types.TrainState:
        """Return a state with the rows that were sampled ahead."""
        return state if self._ahead is None else self._ahead.saved(state)

    def evaluate(
        self, number: int, state: types.TrainState, places: Collection[int], **fields: Any
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the member's place, 0, and its record; ``fields`` are name, step, prompts and samples."""
        if self._ahead is not None:
            self._ahead.wait()  # an evaluation uses the same workers
        program, step, params = self._run.program, self._run.program.steps[number], state.params["policy"]
        fields |= {"verifiers": self._workers[number], "others": play.fixed(step.setup, state, program.key)}
        for place in places:
            record = evaluate.evaluate(program, params, **fields, phase=number)
            yield place, record | ranking.records(step, state, program.key, record)

    def members(self, tree: Any) -> list[Any]:
        """Return what each member has of a tree, here the whole of it."""
        return [tree]


def start_workers(program: programs.Program, stack: contextlib.ExitStack) -> list[Any]:
    """Start the workers of each phase; phases with equal task and settings share them.

    Raises:
      ValueError: rows come through the host, and run ahead of updates on the same devices, or in several processes.
    """
    shared: dict[Any, Any] = {}
    for setup in program.setups:
        if setup.apart and not setup.overlapped and setup.task.host:
            _check_order(program, setup)
        key = setup.settings.task, setup.settings.verifier
        if key not in shared:
            shared[key] = stack.enter_context(producers.workers(setup))
    return [shared[s.settings.task, s.settings.verifier] for s in program.setups]


def check_compiled(step: steps.Step) -> None:
    """Raise Recompiled if a function of the step was compiled more than once, since every step might compile again."""
    for field in dataclasses.fields(step):
        compiled = getattr(getattr(step, field.name), "_cache_size", lambda: 0)()
        if compiled > 1:
            raise Recompiled(
                f"the program {field.name!r} was compiled {compiled} times: shape, dtype or sharding of its arguments "
                "changes between steps."
            )


def _check_order(program: programs.Program, setup: programs.Setup) -> None:
    """Check that programs of rollouts and updates begin in one order everywhere, although two threads begin them."""
    lag, devices, task = setup.settings.run.lag, setup.settings.mesh.rollout, setup.task.name
    where = f"config.run.lag={lag}, config.mesh.rollout={devices} (phase {setup.phase.name!r})"
    if processes.several():
        raise ValueError(
            f"{where}: task {task!r} is scored or played on the host, and {jax.process_count()} processes would not "
            "begin its rollouts in one order. Set both to 0, or use one process."
        )
    if program.rollout is None and program.mesh.size > 1:
        raise ValueError(
            f"{where}: task {task!r} is scored or played on the host, so a thread begins its rollouts, and "
            f"{program.mesh.size} devices could begin rollout and update in different orders. Set config.mesh.rollout "
            "for devices of their own, or use one device."
        )
