"""The step: rollout, scores, advantages and update as pure functions of (state, key).

``key`` is always the run's root key. The random draws of a step are a function of the key and the state, so a step
can be replayed from a checkpoint.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp

from rljax import environments, sampling, types
from rljax.environments.worlds.host import task as host
from rljax.sampling import segments
from rljax.training import passes, phases, play, rollouts, sharding, sources, states, stored, updates
from rljax.training import rows as rows_lib
from rljax.transforms import ops


@functools.partial(jax.jit, static_argnames=("samples", "config", "model", "ends", "length"))
def _generate(params, prompts, keys, samples, config, *, model, ends, length):
    """Sample completions; phases of equal models and ends share the compiled programs."""
    return sampling.generate(model, params, prompts, keys, config, ends, samples=samples, length=length)


@dataclasses.dataclass(frozen=True)
class Step:
    """The compiled functions of a phase. ``fused`` and ``update`` donate their state argument."""

    setup: phases.Setup
    begin: Callable[..., types.TrainState]  # (previous phase's state or None, key, parameters by module or None)
    next_prompts: Callable[[types.TrainState, types.Key], rows_lib.Drawn]
    rollout: Callable[[types.TrainState, types.Key], types.Rollout]
    sample: Callable[..., types.Rollout]
    edit: Callable[..., tuple[types.Edit, types.Rollout]]  # a second pass; no verdicts of hosts
    merge: Callable[[types.Rollout, types.Rollout, types.Edit], types.Rollout]  # first and second pass
    update: Callable[[types.TrainState, types.Rollout, types.Key], tuple[types.TrainState, dict[str, types.Array]]]
    fused: Callable[[types.TrainState, types.Key], tuple[types.TrainState, dict[str, types.Array]]] | None
    sharding: types.TrainState  # of each leaf of the state
    shape: types.TrainState  # abstract state with shardings, into which checkpoints are restored
    carried: states.Carried = states.Carried()  # from the previous phase

    @property
    def notes(self) -> tuple[str, ...]:
        """Requests to carry state over that cannot be met, and a memory that no prompt reaches again."""
        return (*self.carried.notes, *sources.unreached(self.setup))

    @functools.cached_property
    def generate(self) -> Callable[..., sampling.Sample]:
        """Compiled ``(params, prompts, keys, samples, config) -> Sample``, for evaluations and prompts of users."""
        setup = self.setup
        fixed = {"model": setup.decoder, "ends": setup.ends, "length": setup.task.completion_length}
        return functools.partial(_generate, **fixed)

    @functools.cached_property
    def play(self) -> Callable[..., types.Rollout]:
        """Compiled ``(params, index, key, split, samples, config) -> Rollout``: the policy in every seat of a world."""
        setup = self.setup

        @functools.partial(jax.jit, static_argnames=("split", "samples", "config"))
        def run(params, index, key, split, samples, config):
            zero, drawn = jnp.zeros((), jnp.int32), rows_lib.each_once(index)
            players = {"policy": params}
            return play.seated(
                setup,
                players,
                ("policy",),
                zero,
                drawn,
                split,
                key,
                samples=samples,
                sampler=config,
            )[0]

        return run

    @functools.cached_property
    def turn(self) -> Callable[..., sampling.Sample]:
        """Compiled ``segments.turn`` of a host world; see ``turns`` for what it begins with."""
        setup = self.setup

        @functools.partial(jax.jit, static_argnames="config", donate_argnames="sample")
        def run(params, prompts, keys, sample, replies, size, ended, ready, config):
            prompts = sharding.constrain(prompts, setup.mesh)
            length = cast(host.HostWorld, setup.task).turn_length
            rows = prompts, keys, sample, replies, size, ended, ready
            out = segments.turn(setup.decoder, params, *rows, config, setup.ends, turn_length=length)
            return sharding.constrain(out, setup.mesh)

        return run

    @functools.cached_property
    def turns(self) -> tuple[Callable[..., sampling.Sample], Callable[..., types.Rollout]]:
        """Compiled functions for the conversations of a host world.

        ``(rows, config) -> Sample`` before the first turn; and ``(position, index, prompts, sample, replies, step) ->
        Rollout`` after the last, see ``play.of_host``.
        """
        setup = self.setup

        @functools.partial(jax.jit, static_argnames=("rows", "config"))
        def begin(rows, config):
            vocabulary = setup.decoder.architecture.vocabulary
            length = setup.task.completion_length
            return sharding.constrain(segments.blank(rows, length, vocabulary, config, setup.ends.pad), setup.mesh)

        @jax.jit
        def end(position, index, prompts, sample, replies, step):
            rows = rows_lib.blank(setup, position, index, prompts.token, prompts.mask)
            version = jnp.broadcast_to(step, sample.mask.shape).astype(jnp.int32)
            rows = play.of_host(rows_lib.filled(rows, sample, version), sample, replies)
            return sharding.constrain(rows, setup.mesh)

        return begin, end

    @functools.cached_property
    def score(self) -> Callable[..., types.Scores]:
        """Compiled ``(module, params, rows, needs) -> Scores`` of held-out rows of one turn, in any order."""
        score = functools.partial(phases.score, self.setup, split="heldout", samples=0)
        return jax.jit(lambda module, *given: score(module, *given), static_argnums=(0, 3))

    @functools.cached_property
    def verify(self) -> Callable[..., types.Verdict]:
        """Compiled device verifier of held-out rows: ``(index, token, mask) -> Verdict``."""
        setup = self.setup
        return jax.jit(lambda index, token, mask: setup.verify(index, "heldout", token, mask))


@dataclasses.dataclass(frozen=True)
class _Drive:
    """The rollout of a phase: its passes, and the verdicts of a task that is scored on devices."""

    setup: phases.Setup

    def sample(
        self,
        params: types.Tree,
        pool: types.Tree,
        step: types.Array,
        drawn: rows_lib.Drawn,
        prompts: types.Prompts,
        solutions: types.Action | None,
        key: types.Key,
    ) -> types.Rollout:
        source = self.setup.algorithm.source
        prompts = sharding.constrain(prompts, self.setup.mesh)
        if source.origin == "demonstrations":
            return rollouts.demonstrate(self.setup, step, drawn.position, prompts, key)
        each = None if solutions is None else rows_lib.one_of_each(solutions, drawn.index.size)
        rollout = rollouts.sample(self.setup, params, pool, step, drawn, prompts, each, key)
        if source.demonstrated and solutions is not None:
            rollout = rollouts.guided(self.setup, rollout, solutions)
        rollout = self.judge(rollout)
        return rollout if source.again is None else passes.first(self.setup, rollout)

    def judge(self, rollout: types.Rollout) -> types.Rollout:
        if rollout.action is None or rollout.index is None or not environments.scored_on_device(self.setup.task):
            return rollout
        verdict = self.setup.verify(rollout.index, "train", rollout.action.token, rows_lib.written(rollout))
        return rows_lib.judged(rollout, verdict)

    def edit(self, state: types.TrainState, rollout: types.Rollout, solutions: types.Action | None, key: types.Key):
        of = rollout.group - state.cursor[self.setup.cursor]  # the number of each row's prompt in the step
        each = jax.tree.map(lambda x: x[of], solutions)
        edit = passes.edited(self.setup, state.pool, state.step, rollout, each, key)
        second = passes.second(self.setup, state.params["policy"], state.step, rollout, edit, key)
        return edit, self.judge(sharding.constrain(second, self.setup.mesh))

    def merge(self, rollout: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        return passes.merged(self.setup, rollout, second, edit)

    @functools.cached_property
    def next_prompts(self) -> Callable[[types.TrainState, types.Key], rows_lib.Drawn]:
        return jax.jit(functools.partial(rollouts.next_prompts, self.setup))

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        source = self.setup.algorithm.source
        if self.setup.stored is not None:
            drawn = jax.device_get(self.next_prompts(state, key))
            return stored.rows(self.setup, drawn.position, drawn.index)
        if source.segment:
            return self.judge(rollouts.resumed(self.setup, state, key))
        drawn = rollouts.next_prompts(self.setup, state, key)
        if self.setup.world is not None and source.origin == "policy":
            return play.played(self.setup, state, drawn, key)
        prompts = self.setup.task.prompts(drawn.index, "train")
        asked = ops.repeat(drawn.index, self.setup.solutions) if self.setup.solutions else None
        solutions = None if asked is None else rollouts.solutions(self.setup, state.step, asked, key)
        rows = self.sample(state.params["policy"], state.pool, state.step, drawn, prompts, solutions, key)
        if source.again is None:
            return rows
        each = None if solutions is None else rows_lib.one_of_each(solutions, drawn.index.size)
        edited, second = self.edit(state, rows, each, key)
        return self.merge(rows, second, edited)


def advance(
    setup: phases.Setup, state: types.TrainState, key: types.Key
) -> tuple[types.TrainState, dict[str, types.Array]]:
    """Return the state after one step of a phase that needs no host, rollout and update, and the metrics."""
    return updates.update(setup, state, _Drive(setup).rollout(state, key), key)


def make_step(setup: phases.Setup, previous: Step | None = None) -> Step:
    """Return the functions of a phase, each compiled on its first call.

    Args:
      setup: the phase on devices.
      previous: the step of the previous phase; None for the first phase of a run.

    Returns:
      The step.

    Raises:
      ValueError: the rows or a parameter cannot be divided over the mesh.
    """
    sharding.check_rows(setup.mesh, setup.rows, "batch.prompts * config.batch.samples")
    last = None if previous is None else previous.shape
    carried = states.carried(setup, None if previous is None else previous.setup, last)
    start = functools.partial(states.begin, setup, carried)
    shape = jax.eval_shape(start, last, jax.random.key(0))
    layout = states.layout(setup, shape)
    device = not setup.task.host and setup.stored is None
    demonstrated = setup.algorithm.source.origin == "demonstrations"
    drive = _Drive(setup)

    def update(state: types.TrainState, rows: types.Rollout, key: types.Key):  # traces name programs by functions
        return updates.update(setup, state, rows, key)

    def fused(state: types.TrainState, key: types.Key):
        return advance(setup, state, key)

    out = (layout, sharding.replicated(setup.mesh))
    traced = device or not demonstrated  # a host task's demonstrations are read on the host
    return Step(
        setup=setup,
        begin=jax.jit(start, donate_argnames="initial", out_shardings=layout),
        next_prompts=drive.next_prompts,
        rollout=jax.jit(drive.rollout) if device else drive.rollout,
        sample=jax.jit(drive.sample) if traced else drive.sample,
        edit=jax.jit(drive.edit),
        merge=jax.jit(drive.merge),
        update=jax.jit(update, donate_argnums=0, out_shardings=out),
        fused=jax.jit(fused, donate_argnums=0, out_shardings=out) if device else None,
        sharding=layout,
        shape=jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shape, layout),
        carried=carried,
    )
