"""Several members in one program: the programs of a cohort, and what computes a part of it."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, sampling, types
from rljax.config import resolve
from rljax.environments import traits
from rljax.host import memory, profiles
from rljax.language import messages
from rljax.run import programs, session
from rljax.run.evaluation import evaluate, ranking
from rljax.run.members import cohorts
from rljax.training import members, phases, sharding, steps
from rljax.training import states as states_lib
from rljax.training.producers import play

Values = Mapping[str, types.Array]  # numbers in which members differ, by field


class Structural(Exception):
    """Fields whose numbers cannot be traced, and why."""

    def __init__(self, fields: Sequence[str], reason: BaseException):
        super().__init__(messages.shown(f"{type(reason).__name__}: {reason}".splitlines()[0])[1:-1])
        self.fields = tuple(fields)


class Programs:
    """The programs of a cohort: the functions of a run alone, compiled for several members.

    ``begin``, ``advance`` and ``complete`` are computed for one member in phase ``number``; ``each`` applies them to
    several. ``common`` is the same for all members, ``values`` are the numbers in which they differ.

    Args:
      cohort: the runs.
      program: the program of the first run, on one device.
      devices: the devices over which members are split.
      width: members that a device computes at a time; 0: one on a CPU, all of them elsewhere.
    """

    def __init__(self, cohort: cohorts.Cohort, program: programs.Program, devices: Sequence[Any], width: int):
        self.cohort, self.program, self._width = cohort, program, width
        self.members = [program.member(run.resolved, bool(cohort.traced)) for run in cohort.runs]
        self.devices = list(devices[: len(cohort.runs)])
        self.mesh = members.make_mesh(self.devices)
        self.steps: dict[tuple[int, int], Any] = {}  # compiled, by phase and members of a part
        self._applied: dict[Any, Any] = {}  # functions of members, by name and members of a part

    def begin(
        self,
        number: int,
        common: Mapping[str, types.Tree],
        initial: Mapping[str, types.Tree],
        previous: types.TrainState | None,
        key: types.Key,
        values: Values,
    ) -> types.TrainState:
        """Return the state at the start of a phase; see ``states.begin``.

        ``common`` are initial parameters of all members, ``initial`` the member's own, which replace them.
        """
        carried = self.program.steps[number].carried
        return states_lib.begin(self._setup(number, values), carried, previous, key, {**common, **initial})

    def advance(
        self, number: int, common: None, state: types.TrainState, key: types.Key, values: Values
    ) -> tuple[types.TrainState, dict[str, types.Array]]:
        """Return the state after one step, and its metrics."""
        return steps.advance(self._setup(number, values), state, key)

    def complete(
        self,
        number: int,
        samples: int,
        greedy: bool,
        common: tuple[types.Array, types.Prompts],
        params: types.Tree,
        keys: types.Key,
        values: Values,
    ) -> tuple[types.Array, ...]:
        """Return completions of held-out prompts and their verdicts.

        Args:
          number: of the phase.
          samples: completions of each prompt.
          greedy: whether the likeliest tokens are chosen.
          common: the rows' prompts by index ``[B]``, and the P prompts.
          params: the policy's.
          keys: ``[B]``, of the rows.
          values: numbers of the member.

        Returns:
          What ``evaluate.completions`` returns.
        """
        rows, prompts = common
        setup = self._setup(number, values)
        changes: dict[str, Any] = evaluate.GREEDY if greedy else evaluate.SAMPLED
        sampler = dataclasses.replace(setup.settings.sampler, **changes)
        length = setup.task.completion_length
        out = sampling.generate(
            setup.decoder, params, prompts, keys, sampler, setup.ends, samples=samples, length=length
        )
        verdict = setup.verify(rows, "heldout", out.token, out.mask)
        return evaluate.completions(out, verdict)

    def _setup(self, number: int, values: Values) -> phases.Setup:
        """Return a phase with the numbers of a member."""
        setup, phase = self.program.setups[number], self.program.phases[number]
        if not values:
            return setup
        return dataclasses.replace(setup, phase=resolve.traced(self.program.config, phase, values))

    def each(self, function: Callable[..., Any], size: int, *static: Any, donate: bool = False) -> Any:
        """Return ``function``, with its first arguments ``static``, applied to each of ``size`` members, compiled.

        See ``members.each``; equal arguments give the same function.
        """
        name = (function.__name__, size, *static)
        if name not in self._applied:
            applied = functools.partial(function, *static)
            self._applied[name] = members.each(applied, self.mesh, self.width(size), donate)
        return self._applied[name]

    def width(self, size: int) -> int:
        """Return how many of ``size`` members a device computes at a time."""
        here = size // len(self.devices)
        return min(self._width or (1 if self.devices[0].platform == "cpu" else here), here)

    def values(self, numbers: Sequence[int]) -> dict[str, types.Array]:
        """Return the traced numbers of members, by field."""
        each = {field: np.asarray([x[n] for n in numbers], np.float32) for field, x in self.cohort.traced.items()}
        return jax.device_put(each, members.sharding(self.mesh))

    def fitting(self, count: int, step: int, limit: int | None = None) -> tuple[int, str]:
        """Compile the steps of the phases to come.

        Args:
          count: number of members.
          step: updates that they have made.
          limit: the most bytes on all devices together; None: what is free.

        Returns:
          (members of a part, of as many as fit into memory; a line that says so, "" if there is no step to come).

        Raises:
          Structural: numbers of the cohort cannot be traced.
        """
        many = len(self.devices)
        size = -(-count // many) * many
        while True:
            to_come = [number for number, phase in enumerate(self.program.phases) if step < phase.last]
            needed = max((self._compile(number, size) for number in to_come), default=0)
            available = memory.available(self.devices) if limit is None else limit
            if needed <= available or size == many:
                break
            size = max(many, min(int(size * available / needed) // many * many, size - many))
        places = f"{many} device{'s' * (many > 1)}"
        line = f"{min(size, count)} runs at a time on {places}: {messages.size(needed)} of {messages.size(available)}"
        return size, line + " (may not fit)" * (needed > available) if needed else ""

    def _compile(self, number: int, size: int) -> int:
        """Compile the step of a phase for ``size`` members; return the bytes that it needs on all devices."""
        shapes, keys, values = self._shapes(number, size)
        advance = self.each(self.advance, size, number, donate=True)
        try:
            lowered = advance.lower(None, shapes, keys, values)
        except Exception as error:
            fields = [field for field in values if cohorts.fails(advance, None, shapes, keys, {field: values[field]})]
            if not fields:
                raise
            raise Structural(fields, error) from error
        self.steps[number, size] = lowered.compile()
        return memory.needed(self.steps[number, size]) * len(self.devices)

    def _shapes(self, number: int, size: int) -> tuple[Any, Any, Any]:
        """Return the abstract states at the start of a phase, keys and numbers of ``size`` members."""

        def of(x: Any) -> Any:
            return jax.ShapeDtypeStruct((size, *x.shape), x.dtype, sharding=members.sharding(self.mesh))

        values = {field: of(np.asarray(x[0], np.float32)) for field, x in self.cohort.traced.items()}
        return jax.tree.map(of, self.program.steps[number].shape), of(self.program.key), values


class Stacked:
    """A part of a cohort, computed by one program. Its state is one of arrays ``[M, ...]``, split over the devices.

    Args:
      compiled: the programs of the cohort; those of ``len(numbers)`` members are compiled.
      runs: the members; all are at the same step.
      numbers: the runs of the cohort that the members are; those beyond the members are computed and dropped.
    """

    def __init__(self, compiled: Programs, runs: Sequence[session.Session], numbers: Sequence[int]):
        self.runs, self.clock = runs, profiles.Clock()
        self._compiled, self._program, self._size = compiled, compiled.program, len(numbers)
        self._split = members.sharding(compiled.mesh)
        self._copies = [runs[min(n, len(runs) - 1)] for n in range(self._size)]
        self._keys = jax.device_put(jnp.stack([run.program.key for run in self._copies]), self._split)
        self._values = compiled.values(numbers)

    def start(self) -> Any:
        """Return the states from which the members go on; None: they begin."""
        states = self._stacked([run.state for run in self._copies])
        for run in self.runs:
            run.state = None  # it is among the states now
        return states

    def _stacked(self, trees: Sequence[Any]) -> Any:
        """Return the trees of members as one, split over the devices."""
        return jax.device_put(jax.tree.map(lambda *x: np.stack(x), *jax.device_get(trees)), self._split)

    def enter(self, number: int, states: Any) -> Any:
        """Return the states with which a phase goes on, at its first step new ones."""
        if self.runs[0].step != self._program.phases[number].first:
            return states
        networks, forked = self._program.setups[number].networks, self.runs[0].forked
        common = self.runs[0].initial(number)
        # adapters beside weights from a folder are drawn from the member's seed
        separate = {m for m in common if m in forked or networks[m].architecture.adapted}
        initial = self._stacked([_only(run.initial(number), separate) if separate else {} for run in self._copies])
        common = _only(common, {*common} - separate)
        begin = self._compiled.each(self._compiled.begin, self._size, number)
        whole = sharding.replicated(self._compiled.mesh)
        return begin(jax.device_put(common, whole), initial, states, self._keys, self._values)

    def advance(self, number: int, states: Any) -> tuple[Any, dict[str, Any]]:
        """Return the states after one update, and the metrics of all members."""
        with self.clock.spent("dispatch"):
            return self._compiled.steps[number, self._size](None, states, self._keys, self._values)

    def saved(self, states: Any) -> Any:
        """Return the states: no rows are sampled ahead."""
        return states

    def members(self, tree: Any) -> Sequence[Any]:
        """Return what each member has of the states, or of metrics, on the host."""
        fetched = jax.device_get(tree)
        return [jax.tree.map(lambda x, place=place: x[place], fetched) for place in range(len(self.runs))]

    def evaluate(
        self, number: int, states: Any, places: Collection[int], *, prompts: int, samples: int, **fields: Any
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the places of members and their records; ``fields`` are name and step."""
        step = self._program.steps[number]
        prompts = min(prompts, step.setup.task.size("heldout"))
        vectorised = traits.traits(step.setup.task).actions is None and not environments.is_world(step.setup.task)
        judged = self._judged(number, states, places, prompts, samples) if vectorised else {}
        ranks = bool(ranking.models(step) or ranking.of_steps(step))
        each = [] if vectorised and not ranks else self.members(states)
        for place in places:
            program = self.runs[place].program
            step = program.steps[number]
            state = jax.device_put(each[place], step.sharding) if each else None
            if vectorised or state is None:
                record = evaluate.record(step, *judged[place], **fields)
            else:
                params, asked = state.params["policy"], {"prompts": prompts, "samples": samples, **fields}
                others = play.fixed(step.setup, state, program.key)
                record = evaluate.evaluate(program, params, **asked, phase=number, others=others)
            yield place, record | (ranking.records(step, state, program.key, record) if ranks and state else {})

    def _judged(
        self, number: int, states: Any, places: Collection[int], prompts: int, samples: int
    ) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
        """Return what ``evaluate.record`` reads of sampled and of greedy completions, by place."""
        kinds = (samples, False), (1, True)
        sampled, greedy = (self._complete(number, states, prompts, *kind) for kind in kinds)

        def of(arrays: Sequence[np.ndarray], place: int) -> dict[str, Any]:
            return evaluate.judged(self.runs[place].program, [x[place] for x in arrays])

        return {place: (of(sampled, place), of(greedy, place)) for place in places}

    def _complete(self, number: int, states: Any, prompts: int, samples: int, greedy: bool) -> list[np.ndarray]:
        """Return what ``evaluate.completions`` returns of held-out prompts, ``[M, B, ...]`` each."""
        compiled, index, batches = self._compiled, np.arange(prompts, dtype=np.int32), []
        complete = compiled.each(compiled.complete, self._size, number, samples, greedy)
        task, whole = self._program.tasks[number], sharding.replicated(compiled.mesh)
        for part in evaluate.parts_of(index, samples * compiled.width(self._size)):
            keys = jax.vmap(lambda key, part=part: evaluate.rows_of(part, samples, key)[1])(self._keys)
            rows = jnp.asarray(np.repeat(part, samples))
            common = jax.device_put((rows, task.prompts(jnp.asarray(part), "heldout")), whole)
            given = states.params["policy"], jax.device_put(keys, self._split), self._values
            batches.append(jax.device_get(complete(common, *given)))
        return [np.concatenate(x, axis=1)[:, : prompts * samples] for x in zip(*batches, strict=True)]


def _only(trees: Mapping[str, types.Tree], names: Collection[str]) -> dict[str, types.Tree]:
    """Return the trees with these names."""
    return {name: tree for name, tree in trees.items() if name in names}
