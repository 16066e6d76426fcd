"""The step: rollout, scores, advantages and update as pure functions of (state, key).

``key`` is always the run's root key. The random draws of a step are a function of the key and the state, so a step
can be replayed from a checkpoint.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rljax import sampling, types
from rljax.training import phases, producers, sharding, sources, states
from rljax.training import rows as rows_lib
from rljax.training.learning import overlapped, updates
from rljax.training.producers import acting, completions, play
from rljax.training.producers import turns as turns_lib


@functools.partial(jax.jit, static_argnames=("samples", "config", "model", "ends", "length"))
def _generate(params, prompts, keys, samples, config, *, model, ends, length):
    """Sample completions; phases of equal models and ends share the compiled programs."""
    return sampling.generate(model, params, prompts, keys, config, ends, samples=samples, length=length)


@dataclasses.dataclass(frozen=True)
class Step:
    """The compiled functions of a phase. ``fused`` and ``update`` donate their state argument."""

    setup: phases.Setup
    producer: producers.Producer
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
        """The stored rows, requests to carry state over that cannot be met, a memory that no prompt reaches again."""
        stored = self.setup.stored
        rows = () if stored is None else (f"stored rows: {stored.describe()}",)
        return (*rows, *self.carried.notes, *sources.unreached(self.setup))

    @functools.cached_property
    def generate(self) -> Callable[..., sampling.Sample]:
        """Compiled ``(params, prompts, keys, samples, config) -> Sample``, for evaluations and prompts of users."""
        setup = self.setup
        fixed = {"model": setup.decoder, "ends": setup.ends, "length": setup.task.completion_length}
        return functools.partial(_generate, **fixed)

    @functools.cached_property
    def turns(self) -> turns_lib.Compiled:
        """Compiled functions of the conversations of a host world."""
        return turns_lib.Turns(self.setup).compiled()

    @functools.cached_property
    def overlapped(self) -> overlapped.Compiled:
        """Compiled functions of an update whose rows arrive in parts."""
        rows = jax.eval_shape(self.producer.example, self.shape, jax.random.key(0))
        return overlapped.compiled(self.setup, self.shape, self.sharding, rows)

    @functools.cached_property
    def part(self) -> Callable[..., types.Rollout]:
        """Compiled ``(params, pool, step, drawn, number, key) -> Rollout``: rows of a task, of one micro-batch."""
        setup, whole = self.setup, completions.Completions(self.setup)

        def part(params, pool, step, drawn, number, key):
            count = drawn.index.size // setup.learner.microbatches
            drawn = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, number * count, count), drawn)
            return whole.sample(params, pool, step, drawn, setup.task.prompts(drawn.index, "train"), None, key)

        return jax.jit(part)

    @functools.cached_property
    def play(self) -> Callable[..., types.Rollout]:
        """Compiled ``(params, index, key, split, samples, config, others) -> Rollout``: episodes of a world.

        The policy has every seat, or with ``others``, parameters by name, those that ``config.world`` gives it.
        """
        setup, world = self.setup, self.setup.settings.world

        @functools.partial(jax.jit, static_argnames=("split", "samples", "config"))
        def run(params, index, key, split, samples, config, others=None):
            zero, drawn = jnp.zeros((), jnp.int32), rows_lib.each_once(index)
            players = {"policy": params} | (others or {})
            order, given = world.players if others else ("policy",), {"samples": samples, "sampler": config}
            return play.seated(setup, players, order, zero, drawn, split, key, swap=world.swap, **given)[0]

        return run

    @functools.cached_property
    def act(self) -> Callable[..., acting.Episodes]:
        """Compiled ``(params, index, keys, split, temperature) -> Episodes``: whole episodes of a control world."""
        setup = self.setup
        return jax.jit(lambda *given: acting.play(setup, *given), static_argnums=(3, 4))

    @functools.cached_property
    def score(self) -> Callable[..., types.Scores]:
        """Compiled ``(module, params, rows, needs) -> Scores`` of held-out rows of one turn, in any order."""
        score = functools.partial(phases.score, self.setup, split="heldout", samples=0)
        return jax.jit(lambda module, *given: score(module, *given), static_argnums=(0, 3))

    @functools.cached_property
    def verify(self) -> Callable[..., types.Verdict]:
        """Compiled device verifier: ``(index, split, token, mask) -> Verdict``."""
        setup = self.setup
        return jax.jit(lambda *rows: setup.verify(*rows), static_argnums=1)


def advance(
    setup: phases.Setup, state: types.TrainState, key: types.Key
) -> tuple[types.TrainState, dict[str, types.Array]]:
    """Return the state after one step of a phase whose rows the program computes, and the metrics."""
    return updates.update(setup, state, producers.make(setup).rollout(state, key), key)


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
    producer, completed = producers.make(setup), completions.Completions(setup)
    second = completions.Twice(completed)
    first = producer if isinstance(producer, completions.Twice) else completed

    def rollout(state: types.TrainState, key: types.Key):  # traces name programs by functions
        return producer.rollout(state, key)

    def update(state: types.TrainState, rows: types.Rollout, key: types.Key):
        return updates.update(setup, state, rows, key)

    def fused(state: types.TrainState, key: types.Key):
        return advance(setup, state, key)

    out = (layout, sharding.replicated(setup.mesh))
    return Step(
        setup=setup,
        producer=producer,
        begin=jax.jit(start, donate_argnames="initial", out_shardings=layout),
        next_prompts=jax.jit(functools.partial(rows_lib.next_prompts, setup)),
        rollout=jax.jit(rollout) if producer.traced else rollout,
        sample=jax.jit(first.sample),
        edit=jax.jit(second.edit),
        merge=jax.jit(second.merge),
        update=jax.jit(update, donate_argnums=0, out_shardings=out),
        fused=jax.jit(fused, donate_argnums=0, out_shardings=out) if producer.traced and not setup.apart else None,
        sharding=layout,
        shape=jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shape, layout),
        carried=carried,
    )
