"""Episodes of a world inside the program."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import worlds
from rljax.sampling import conversation, dialogue
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.training.producers import completions, play, world_checks
from rljax.transforms.source import groups


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Episodes of a world, sampled from the players that the state has; a seat of another player has mask 0."""

    setup: phases.Setup

    traced = True

    @property
    def world(self) -> worlds.World:
        """The world."""
        assert self.setup.world is not None
        return self.setup.world

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return the rows of the next step; ``key`` is the run's root key."""
        return self._played(state, rows_lib.next_prompts(self.setup, state, key), key)

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return the rows on which the world failed."""
        return rows_lib.failed(rows)

    def _played(self, state: types.TrainState, drawn: rows_lib.Drawn, key: types.Key) -> types.Rollout:
        """Return P * samples rows; rows of a problem are adjacent.

        Rows of players that do not learn have mask 0 and ``valid`` 0.
        """
        players, world = play.players(self.setup, state, key), self.setup.settings.world
        rows, player = play.seated(self.setup, players, world.players, state.step, drawn, "train", key, swap=world.swap)
        return play.learning(self.setup, rows, player) if len(self.setup.players) > 1 else rows

    def begin(
        self, state: types.TrainState, drawn: rows_lib.Drawn, key: types.Key
    ) -> tuple[types.Prompts, dialogue.Talk]:
        """Return the prompts of rows in flight and of new ones, and their episodes; see ``Completions.begin``."""
        samples = self.setup.settings.batch.samples
        flying = self.setup.algorithm.source.in_flight(state.pool)
        pending, free = flying["rows"], flying["free"]
        problems = jax.random.fold_in(key, rows_lib.PROBLEMS)
        states = play.begin(self.world, drawn.index, "train", state.step, problems, samples, drawn.repeat)
        views = play.views(self.world, states, samples)
        talk = groups.put(free, dialogue.begin(self.world, states, self.setup.ends), pending.action.state)
        first = slice(None, None, free.size // drawn.index.size)
        old = free[first, None]
        token = jnp.where(old, views.token, pending.context.token[first])
        mask = jnp.where(old, views.mask, pending.context.mask[first])
        image = pending.context.image
        if image is not None:
            image = jnp.where(old[:, :, None, None, None], views.image, image[first])
        return types.Prompts(token=token, mask=mask, index=drawn.index, image=image), talk

    def resume(
        self,
        rows: types.Rollout,
        talk: types.Tree,
        version: types.Array,
        params: types.Tree,
        prompts: types.Prompts,
        *flying: Any,
        segment: int,
    ) -> types.Rollout:
        """Continue rows in flight by one segment; see ``Completions.resume``."""
        out, talk = conversation.resume(self.setup.decoder, params, self.world, talk, prompts, *flying, segment=segment)
        return play.conversed(self.setup, rows, out, talk, version)

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step."""
        index = jnp.zeros((self.setup.prompts * self.setup.algorithm.source.oversample,), jnp.int32)
        return self._played(state, rows_lib.Drawn(index, index, index), key)

    def check(self, key: types.Key) -> types.Rollout:
        """Return the rows of a step from shapes; the functions of the world are checked."""
        world_checks.check(self.world, jax.eval_shape(lambda: key))
        return world_checks.rows(self.world, rows_lib.from_shapes(self.setup, completions.prompts(self.setup)))
