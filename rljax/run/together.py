"""The programs of a cohort, and the loop of a part of its members: what ``loop`` does for one run, for several."""

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.config import choices
from rljax.host import memory
from rljax.language import messages
from rljax.run import cohorts, evaluate, loop, programs, ranking, session
from rljax.run.progress import Progress
from rljax.training import members, phases, sharding


class Structural(Exception):
    """Fields whose numbers cannot be traced, and why."""

    def __init__(self, fields: Sequence[str], reason: BaseException):
        super().__init__(messages.shown(f"{type(reason).__name__}: {reason}".splitlines()[0])[1:-1])
        self.fields = tuple(fields)


class Programs:
    """The programs of a cohort: those of a run alone, applied to each member.

    Args:
      cohort: the runs.
      program: the program of the first run, on one device.
      devices: the devices over which members are split.
      width: members that a device computes at a time; 0: one on a CPU, all of them elsewhere.
    """

    def __init__(
        self,
        cohort: cohorts.Cohort,
        program: programs.Program,
        devices: Sequence[Any],
        width: int,
    ):
        self.cohort, self.program, self._width = cohort, program, width
        self.members = [program.member(run.config) for run in cohort.runs]
        self.devices = list(devices[: len(cohort.runs)])
        self.mesh = members.make_mesh(self.devices)
        self.functions = [self._functions(number) for number in range(len(program.phases))]
        self.steps: dict[tuple[int, int], Any] = {}  # compiled, by phase and members of a part
        self._applied: dict[Any, Any] = {}  # functions of members, by name and members of a part

    def _functions(self, number: int) -> members.Functions:
        setup, phase = self.program.setups[number], self.program.phases[number]

        def traced(values: members.Values) -> phases.Setup:
            if not values:
                return setup
            return dataclasses.replace(setup, phase=choices.traced(self.program.config, phase, values))

        return members.Functions(self.program.steps[number], traced)

    def each(self, function: Callable[..., Any], size: int, name: Any, donate: bool = False) -> Any:
        """Return a function applied to each of ``size`` members, see ``members.each``; one for each ``name``."""
        if (name, size) not in self._applied:
            self._applied[name, size] = members.each(function, self.mesh, self.width(size), donate)
        return self._applied[name, size]

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
        states, keys, values = self._shapes(number, size)
        advance = self.functions[number].advance
        try:
            lowered = self.each(advance, size, ("step", number), donate=True).lower(None, states, keys, values)
        except Exception as error:
            fields = [field for field in values if self._fails(number, size, field)]
            if not fields:
                raise
            raise Structural(fields, error) from error
        self.steps[number, size] = lowered.compile()
        return memory.needed(self.steps[number, size]) * len(self.devices)

    def _fails(self, number: int, size: int, field: str) -> bool:
        """Return whether the step cannot be traced with the numbers of one field."""
        states, keys, values = self._shapes(number, size)
        try:
            one = self.each(self.functions[number].advance, size, ("one", number))
            jax.eval_shape(one, None, states, keys, {field: values[field]})
        except Exception:
            return True
        return False

    def _shapes(self, number: int, size: int) -> tuple[Any, Any, Any]:
        """Return the abstract states at the start of a phase, keys and numbers of ``size`` members."""

        def of(x: Any) -> Any:
            return jax.ShapeDtypeStruct((size, *x.shape), x.dtype, sharding=members.sharding(self.mesh))

        values = {field: of(np.zeros((), np.float32)) for field in self.cohort.traced}
        return jax.tree.map(of, self.program.steps[number].shape), of(self.program.key), values


def run(
    compiled: Programs,
    sessions: Sequence[session.Session],
    numbers: Sequence[int],
    stopping: Callable[[int], bool],
    progress: bool,
) -> list[types.TrainState]:
    """Run members from the step of their sessions to the end.

    Args:
      compiled: the programs of the cohort; those of ``len(numbers)`` members are compiled.
      sessions: of each member; all are at the same step.
      numbers: the runs of the cohort that the members are; those beyond the sessions are computed and dropped.
      stopping: returns whether to stop after a step.
      progress: whether to show the progress line.

    Returns:
      The final state of each member, on the host.

    Raises:
      loop.Interrupted: SIGTERM or Ctrl-C; the members are saved.
    """
    running = _Running(compiled, sessions, numbers, stopping, progress)
    with running.bar:
        sessions[0].announce()
        if progress:
            sessions[0].greet()
        for number, phase in enumerate(compiled.program.phases):
            if running.step < phase.last and running.running:
                running.phase(number)
        states = running.fetched()
        return [_of(states, member) for member in range(len(sessions))]


class _Running:
    """A part of a cohort in progress."""

    def __init__(
        self,
        compiled: Programs,
        sessions: Sequence[session.Session],
        numbers: Sequence[int],
        stopping: Callable[[int], bool],
        progress: bool,
    ):
        self.compiled, self.sessions, self.stopping, self.size = compiled, sessions, stopping, len(numbers)
        self.step = sessions[0].step
        self.bar = Progress(total=compiled.program.updates, quiet=not progress)
        split = members.sharding(compiled.mesh)
        self.copies = [sessions[min(n, len(sessions) - 1)] for n in range(self.size)]
        self.keys = jax.device_put(jnp.stack([s.program.key for s in self.copies]), split)
        self.values = compiled.values(numbers)
        self.states: Any = self._stacked([s.state for s in self.copies])  # None before the first phase
        for s in sessions:
            s.state = None  # it is among the states now
        self.pending: list[tuple[int, dict[str, Any]]] = []
        self.flushed = time.perf_counter()

    @property
    def running(self) -> list[tuple[int, session.Session]]:
        """The members that have not failed, with their places."""
        return [(place, s) for place, s in enumerate(self.sessions) if s.failure is None]

    def _stacked(self, trees: Sequence[Any]) -> Any:
        """Return the trees of members as one, split over the devices."""
        stacked = jax.tree.map(lambda *x: np.stack(x), *jax.device_get(trees))
        return jax.device_put(stacked, members.sharding(self.compiled.mesh))

    def fetched(self) -> types.TrainState:
        """Return the states of all members, on the host."""
        return jax.device_get(self.states)

    def placed(self, states: types.TrainState, place: int) -> types.TrainState:
        """Return the state of a member on a device, as that of a run alone; ``states`` is from ``fetched``."""
        layout = self.compiled.program.steps[self.compiled.program.number(self.step - 1)].sharding
        return jax.device_put(_of(states, place), layout)

    def phase(self, number: int) -> None:
        """Run the remaining updates of a phase."""
        program, functions = self.compiled.program, self.compiled.functions[number]
        phase, every = program.phases[number], program.phases[number].settings.evaluation.every
        if self.step == phase.first:
            networks, forked = program.setups[number].networks, self.sessions[0].forked
            common = self.sessions[0].initial(number)
            # adapters beside weights from a folder are drawn from the member's seed
            separate = {m for m in common if m in forked or networks[m].architecture.adapted}
            initial = self._stacked([_only(s.initial(number), separate) if separate else {} for s in self.copies])
            common = _only(common, {*common} - separate)
            begin = self.compiled.each(functions.begin, self.size, ("begin", number))
            whole = sharding.replicated(self.compiled.mesh)
            self.states = begin(jax.device_put(common, whole), initial, self.states, self.keys, self.values)
        advance = self.compiled.steps[number, self.size]
        for current in range(self.step + 1, phase.last + 1):
            self.states, metrics = advance(None, self.states, self.keys, self.values)
            self.step = current
            self._push(number, metrics)
            last, stop = current == phase.last, self.stopping(current)
            accuracy = {}
            if (every and current % every == 0) or (last and phase.start.evaluate):
                self._flush(number)
                accuracy = self._evaluate(number, phase.start.evaluate if last else "")
            if accuracy or last or current % phase.settings.checkpoint.every == 0 or stop:
                self._flush(number)
                self._save(accuracy)
            if stop and current < program.updates:
                raise loop.interrupted(self.sessions[0], current)
            if not self.running:
                return

    def _push(self, number: int, metrics: dict[str, Any]) -> None:
        """Add the metrics of a step; they are fetched in batches."""
        setup = self.compiled.program.setups[number]
        if not session.logs_rows(setup, self.step):
            metrics.pop("rows", None)
        self.pending.append((self.step, metrics))
        late = time.perf_counter() - self.flushed > session.FLUSH_SECONDS
        if late or self.step % setup.settings.log.every == 0:
            self._flush(number)

    def _flush(self, number: int) -> None:
        """Write the pending metrics of all members."""
        if not self.pending:
            return
        fetched = jax.device_get(self.pending)
        now = time.perf_counter()
        seconds, self.pending, self.flushed = (now - self.flushed) / len(fetched), [], now
        for place, s in self.running:
            steps = [(step, _of(values, place)) for step, values in fetched]
            try:
                s.extend(s.program.setups[number], steps, seconds)
            except session.NonFinite as error:
                s.happened.failure = error
                print(f"{s.label}{error} The other runs go on.", flush=True)
        step, values = fetched[-1]
        places = [place for place, _ in self.running] or [0]
        means = {name: float(np.mean(x[places])) for name, x in values.items() if name != "rows"}
        rate = means["length"] * self.compiled.program.setups[number].rows * len(places) / seconds
        self.bar.update(step, self.compiled.program.phases[number].name, means, tokens_per_second=rate)

    def _save(self, accuracy: Mapping[int, float]) -> None:
        """Save a checkpoint of every member."""
        if self.sessions[0].saver is None:
            return
        states = self.fetched()
        for place, s in self.running:
            s.save(_of(states, place), self.step, accuracy.get(place))

    def _evaluate(self, number: int, name: str) -> dict[int, float]:
        """Evaluate every member; return pass@1 by place."""
        program = self.compiled.program
        compiled, fields = program.steps[number], program.phases[number].settings.evaluation
        prompts, samples = fields.size(final=bool(name))
        prompts = min(prompts, compiled.setup.task.size("heldout"))
        vectorised = not environments.is_world(compiled.setup.task)
        judged = self._judged(number, prompts, samples) if vectorised else {}
        ranks = bool(ranking.models(compiled) or ranking.of_steps(compiled))
        states = None if vectorised and not ranks else self.fetched()
        accuracy = {}
        for place, s in self.running:
            step = s.program.steps[number]
            state = None if states is None else self.placed(states, place)
            if state is None or vectorised:
                record = evaluate.record(step, *judged[place], name or "training", self.step)
            else:
                asked = {"name": name or "training", "step": self.step, "prompts": prompts, "samples": samples}
                record = evaluate.evaluate(s.program, state.params["policy"], **asked, phase=number)
            loop.log_evaluation(s, number, state if ranks else None, record)
            accuracy[place] = record["pass_at_k"]["1"][0]
        self.flushed = time.perf_counter()  # excludes the evaluation from the steps' speed
        return accuracy

    def _judged(self, number: int, prompts: int, samples: int) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
        """Return what ``evaluate.record`` reads of sampled and of greedy completions, by place."""
        kinds = (samples, evaluate.SAMPLED), (1, evaluate.GREEDY)
        sampled, greedy = (self._complete(number, prompts, each, changes) for each, changes in kinds)

        def of(s: session.Session, arrays: Sequence[np.ndarray], place: int) -> dict[str, Any]:
            return evaluate.judged(s.program, [x[place] for x in arrays])

        return {place: (of(s, sampled, place), of(s, greedy, place)) for place, s in self.running}

    def _complete(self, number: int, prompts: int, samples: int, changes: dict[str, Any]) -> list[np.ndarray]:
        """Return outcome, reward, token, mask and length of held-out completions, ``[M, B, ...]`` each."""
        setup, index, batches = self.compiled.program.setups[number], np.arange(prompts, dtype=np.int32), []
        function = functools.partial(self.compiled.functions[number].complete, samples=samples, changes=changes)
        complete = self.compiled.each(function, self.size, (number, samples, *changes))
        split, whole = members.sharding(self.compiled.mesh), sharding.replicated(self.compiled.mesh)
        for part in evaluate.parts_of(index, samples * self.compiled.width(self.size)):
            keys = jax.vmap(lambda key, part=part: evaluate.rows_of(part, samples, key)[1])(self.keys)
            rows = jnp.asarray(np.repeat(part, samples))
            common = jax.device_put((rows, setup.task.prompts(jnp.asarray(part), "heldout")), whole)
            given = self.states.params["policy"], jax.device_put(keys, split), self.values
            batches.append(jax.device_get(complete(common, *given)))
        return [np.concatenate(x, axis=1)[:, : prompts * samples] for x in zip(*batches, strict=True)]


def _only(trees: Mapping[str, types.Tree], names: Collection[str]) -> dict[str, types.Tree]:
    """Return the trees with these names."""
    return {name: tree for name, tree in trees.items() if name in names}


def _of(tree: Any, place: int) -> Any:
    """Return what a tree of arrays of members has of one of them."""
    return jax.tree.map(lambda x: x[place], tree)
