"""Conversations with a host world: turns are decoded in the program, and answered by worker processes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import sampling, types
from rljax.environments import worlds
from rljax.environments.worlds.host import task as host
from rljax.sampling import turns
from rljax.training import phases, sharding
from rljax.training import rows as rows_lib
from rljax.training.producers import completions, play, world_checks
from rljax.transforms.frame import extras


@dataclasses.dataclass(frozen=True)
class Turns:
    """The parts of a rollout of a host world that are compiled."""

    setup: phases.Setup

    traced = False

    @property
    def world(self) -> host.HostWorld:
        """The world."""
        task = self.setup.task
        assert worlds.on_host(task)
        return task

    @property
    def slots(self) -> int:
        """Rows that are decoded at once, each in a slot that takes another row when it ends."""
        setup = self.setup
        return setup.settings.sampler.slots or setup.drawn * setup.samples

    @property
    def width(self) -> int:
        """The most tokens of a row, its prompt's included."""
        return self.world.prompt_length + self.world.completion_length

    def begin(self, config: sampling.SamplerConfig, slots: int) -> turns.Slots:
        """Return so many slots without rows."""
        model, length = self.setup.decoder, self.world.turn_length
        return turns.begin(model, slots, self.width, length, config, self.setup.ends)

    def turn(
        self, weights: types.Tree, slots: turns.Slots, asked: turns.Asked, config: sampling.SamplerConfig
    ) -> tuple[turns.Slots, sampling.Sample]:
        """Read what the slots are given and write the next tokens of their turns; see ``sampling.turns.turn``."""
        model, asked = self.setup.decoder, sharding.constrain(asked, self.setup.mesh)
        length, vocabulary = self.world.turn_length, model.architecture.vocabulary
        return turns.turn(
            model, weights, slots, asked, config, self.setup.ends, turn_length=length, vocabulary=vocabulary
        )

    def end(
        self,
        position: types.Array,
        index: types.Array,
        prompts: types.Prompts,
        sample: sampling.Sample,
        answers: dict[str, types.Array],
        version: types.Array,
        repeat: types.Array | None,
        player: types.Array | None,
    ) -> types.Rollout:
        """Return the rows after the last turn.

        Args:
          position: ``[B]`` int32 position of each row's problem in the run.
          index: ``[B]`` int32, its problem.
          prompts: of each row, ``[B, L]``.
          sample: what was written and told.
          answers: see ``play.of_host``.
          version: ``[B, T]`` int32, of the policy that wrote each token.
          repeat: ``[B]`` int32, of rows in flight, how often the step had drawn their problem before; None: of others.
          player: ``[B]`` int32, who plays each row, see ``play.learning``; None: the policy plays all.
        """
        rows = rows_lib.blank(self.setup, position, index, prompts.context)
        rows = play.of_host(rows_lib.filled(rows, sample, version), sample, answers, self.world.seats)
        rows = rows if player is None else play.learning(self.setup, rows, player)
        rows = rows if repeat is None else extras.put(rows, {"repeat": repeat})
        return sharding.constrain(rows, self.setup.mesh)

    def compiled(self) -> "Compiled":
        """Return the functions, each compiled on its first call."""

        @functools.cache
        def play(config: sampling.SamplerConfig, slots: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
            begin, layout = jax.jit(functools.partial(self.begin, config, slots)), sharding.replicated(self.setup.mesh)
            placed = jax.tree.map(lambda _: layout, jax.eval_shape(begin))
            if self.setup.mesh.size > 1:
                placed = begin.lower().compile().output_shardings
            turn = functools.partial(self.turn, config=config)
            return (
                jax.jit(begin, out_shardings=placed),
                jax.jit(turn, donate_argnums=1, out_shardings=(placed, layout)),
            )

        return Compiled(
            slots=self.slots,
            width=self.width,
            weights=jax.jit(self.setup.decoder.decode_params),
            play=play,
            end=jax.jit(self.end),
        )

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Raise: the turns are answered on the host."""
        raise TypeError(f"task {self.world.name!r} is a host world, whose turns worker processes answer")

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return nothing: the program judges no row."""
        return {}

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step."""
        rows = completions.unread(self.setup, state, key)
        parts = dict.fromkeys(self.world.parts, jnp.zeros_like(rows.reward))
        rows = rows.replace(parts=parts, token_reward=jnp.zeros_like(rows.mask), extra={})  # see play.of_host
        several = len(self.setup.players) > 1
        return play.learning(self.setup, rows, jnp.zeros_like(rows.group)) if several else rows

    def check(self, key: types.Key) -> types.Rollout:
        """Return the rows of a step from shapes."""
        return world_checks.rows(self.world, rows_lib.from_shapes(self.setup, completions.prompts(self.setup)))


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiled functions of a rollout of a host world. Evaluations compile some of them again, for other shapes."""

    slots: int
    width: int  # the most tokens of a row
    weights: Callable[[types.Tree], types.Tree]  # parameters in the form that decoding reads
    play: Callable[[sampling.SamplerConfig, int], tuple[Callable[..., Any], Callable[..., Any]]]  # ``begin``, ``turn``
    end: Callable[..., types.Rollout]
