"""Rollouts ahead of updates, or on devices of their own: ``config.run.lag`` and ``config.mesh.rollout``.

A schedule, not a race: rollout k, which update k consumes, is computed from the state of version max(first, k - lag)
exactly, where ``first`` counts the updates before the phase. It reads a copy of what that state has for a rollout
(``states.sampled``: the policy, statistics of the source, counters), with its step and cursor moved on to rollout k. So
nothing depends on time, and a run that is killed resumes bit for bit: a checkpoint holds the rollouts of the next
steps.

The sampler is the same program on its own mesh, ``Program.sampler``. A copy moves there by one ``device_put``, and the
rows of a rollout move back by another. Programs are dispatched asynchronously, so a rollout that a program computes
needs no thread. Producers that pass through the host run in one thread, one rollout at a time, in order.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np

from rljax import types
from rljax.models import adapters
from rljax.run import programs
from rljax.training import sharding, states, steps, traces
from rljax.training.learning import overlapped


@dataclasses.dataclass
class _Flight:
    """A rollout that no update has consumed.

    Attributes:
      view: what it is sampled from, on the sampler's mesh; None once it is not needed.
      rows: on the sampler's mesh, or where a checkpoint put them.
    """

    view: types.TrainState | None
    rows: futures.Future[types.Rollout]

    def land(self, rows: futures.Future[types.Rollout]) -> None:
        """Drop the copy of the policy after the rows are there."""
        self.view = None if _sound(rows) else self.view


class Ahead:
    """The rows of the steps of a phase, sampled up to ``run.lag`` updates ahead.

    Args:
      program: the run.
      number: of the phase.
      producer: of the phase on the sampler's mesh, from ``producers.make``; None where the program computes its rows.
      state: the train state, with the rollouts of a checkpoint.
    """

    waited = 0.0

    def __init__(self, program: programs.Program, number: int, producer: Any, state: types.TrainState):
        self._step, self._sampler = program.steps[number], program.sampler.steps[number]
        self._setup, self._key, self._producer = self._step.setup, program.key, producer
        self._placed = states.sampled(self._setup, self._sampler.sharding)
        self._thread = None if producer is None else futures.ThreadPoolExecutor(1, "rljax-rollout")
        self._flights: collections.deque[_Flight] = collections.deque()
        self._frozen: types.Tree = None  # the policy's parameters that no update changes, on the sampler's mesh
        self._update = self._next = int(state.step)  # the next update, and the next rollout to begin
        for each in state.ahead:
            if isinstance(each, types.TrainState):
                self._begin(_copied(each, self._placed), int(each.step))
            else:
                self._add(None, _known(each))

    def dispatch(self, state: types.TrainState) -> None:
        """Begin the rollouts whose version a state is; it may be donated afterwards."""
        last = min(self._update + self._setup.settings.run.lag, self._setup.phase.last - 1)
        if self._next <= last:
            view = self._copy(states.sampled(self._setup, state))
            while self._next <= last:
                self._begin(view, self._update)

    def __call__(self, state: types.TrainState) -> types.Rollout:
        """Return the rows of the next step, on the trainer's mesh; waits for them.

        Raises:
          Exception: of the producer, with a note. The state may still be used.
        """
        try:
            rows = self._flights[0].rows.result()
        except Exception as error:
            error.add_note(f"This ended the rollout of step {self._update + 1}.")
            raise
        self._flights.popleft()
        self._update += 1
        return jax.block_until_ready(self._landed(rows))

    def arrived(self, state: types.TrainState) -> overlapped.Arrived:
        """Return the rows of the step after a state with their gradients, computed as they arrive in parts."""
        compiled = self._step.overlapped
        arrived = compiled.start()
        for number, rows in enumerate(self._parts(state)):
            rows = self._landed(rows) if self._sampler is not self._step else rows
            arrived = compiled.accumulate(state, arrived, rows, np.int32(number), self._key)
        return arrived

    def _parts(self, state: types.TrainState) -> Iterator[types.Rollout]:
        """Yield the rows of the step after a state, a micro-batch each, on the sampler's mesh."""
        view = states.sampled(self._setup, state)
        view = self._copy(view) if self._sampler is not self._step else view
        if self._producer is not None:
            yield from self._producer.parts(view)
            return
        drawn = self._sampler.next_prompts(view, self._key)
        for number in np.arange(self._setup.learner.microbatches, dtype=np.int32):
            yield self._sampler.part(view.params["policy"], view.pool, view.step, drawn, number, self._key)

    def saved(self, state: types.TrainState) -> types.TrainState:
        """Return a state with the rollouts of the next steps: rows, or what unfinished ones are sampled from."""
        ahead = []
        for flight in self._flights:
            view = flight.view  # before the question whether it is needed
            if _sound(flight.rows):
                ahead.append(self._landed(flight.rows.result()))
            else:
                ahead.append(_copied(view, states.sampled(self._setup, self._step.sharding)))
        return state.replace(ahead=tuple(ahead))

    def wait(self) -> None:
        """Wait until no rollout uses the workers, whatever became of it."""
        futures.wait([flight.rows for flight in self._flights])

    def close(self) -> None:
        """Begin no other rollout, and wait for the one in progress."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _begin(self, view: types.TrainState, version: int) -> None:
        """Begin the next rollout from what the state of a version has for it."""
        ahead = self._next - version
        drawn = np.int32(self._setup.drawn)  # of each step, as no source with a lag carries rows
        step, cursor = _later(view.step, view.cursor, np.int32(ahead), drawn, self._setup.cursor)
        given = view.replace(step=step, cursor=cursor), np.int32(ahead)
        if self._thread is None:
            self._add(None, _known(self._rows(*given)))
        else:
            self._add(view, self._thread.submit(self._rows, *given))

    def _add(self, view: types.TrainState | None, rows: futures.Future[types.Rollout]) -> None:
        """Add the next rollout."""
        flight = _Flight(view, rows)
        rows.add_done_callback(flight.land)
        self._flights.append(flight)
        self._next += 1

    def _rows(self, view: types.TrainState, ahead: np.int32) -> types.Rollout:
        """Return the rows of a rollout, with the version that wrote them."""
        rows = self._sampler.rollout(view, self._key) if self._producer is None else self._producer(view)
        return _written(rows, ahead)

    def _copy(self, view: types.TrainState) -> types.TrainState:
        """Copy what a rollout reads to the sampler's mesh; what no update changes is copied once."""
        policy, placed = view.params["policy"], self._placed
        trained = adapters.trained(policy)
        if self._frozen is not None:
            policy, places = trained, adapters.trained(placed.params["policy"])
            placed = placed.replace(params={**placed.params, "policy": places})
        view = _copied(view.replace(params={**view.params, "policy": policy}), placed)
        if self._frozen is not None:
            joined = adapters.joined(view.params["policy"], self._frozen)
            return view.replace(params={**view.params, "policy": joined})
        if trained is not policy:
            self._frozen = view.params["policy"]
        return view

    def _landed(self, rows: types.Rollout) -> types.Rollout:
        """Return rows on the trainer's mesh."""
        return _copied(rows, jax.tree.map(lambda x: x.sharding, traces.by_rows(self._step, rows)))


def shapes(step: steps.Step, finished: Sequence[bool]) -> tuple[Any, ...]:
    """Return the abstract ``TrainState.ahead`` of a checkpoint, by which of its rollouts were finished."""
    view = states.sampled(step.setup, step.shape)
    return tuple(traces.rows(step) if each else view for each in finished)


def finished(state: types.TrainState) -> list[bool]:
    """Return which rollouts of a checkpoint are finished."""
    return [isinstance(each, types.Rollout) for each in state.ahead]


def _sound(rows: futures.Future[types.Rollout]) -> bool:
    return rows.done() and not rows.cancelled() and rows.exception() is None


def _known(rows: types.Rollout) -> futures.Future[types.Rollout]:
    """Return rows as the result of a rollout."""
    future = futures.Future()
    future.set_result(rows)
    return future


@functools.partial(jax.jit, static_argnums=4)
def _later(step: types.Array, cursors: types.Array, ahead: types.Array, drawn: types.Array, cursor: int) -> Any:
    """Return step and cursors after so many steps."""
    return step + ahead, cursors.at[cursor].add(ahead * drawn)


@jax.jit
def _written(rows: types.Rollout, ahead: types.Array) -> types.Rollout:
    """Return rows whose version was the step of the rollout; their types are those of a checkpoint."""
    rows = rows if rows.version is None else rows.replace(version=rows.version - ahead)
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype) if x.weak_type else x, rows)


def _copied(tree: types.Tree, shardings: types.Tree) -> Any:
    """Return copies of arrays of one mesh with shardings of another, or of the same one; asynchronous.

    It is one ``device_put``. JAX 0.10 has none between the meshes of several processes: there every device gets the
    whole of an array, and each process copies parts of it to its devices.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings, may_alias=False)

    def copy(x: types.Array, target: jax.sharding.NamedSharding) -> types.Array:
        whole = _whole(x, x.sharding.mesh).addressable_data(0)  # pyright: ignore[reportAttributeAccessIssue]
        places = target.addressable_devices_indices_map(x.shape)
        parts = [jax.device_put(whole[index], device, may_alias=False) for device, index in places.items()]
        return jax.make_array_from_single_device_arrays(x.shape, target, parts)

    return jax.tree.map(copy, tree, shardings)


@functools.partial(jax.jit, static_argnames="mesh")
def _whole(x: types.Array, mesh: jax.sharding.Mesh) -> types.Array:
    return jax.lax.with_sharding_constraint(x, sharding.replicated(mesh))
