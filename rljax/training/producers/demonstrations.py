"""Demonstrations of a task or of a world as off-policy rows, which no verifier scores."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import worlds
from rljax.language import errors
from rljax.training import phases, sharding
from rljax.training import rows as rows_lib
from rljax.training.producers import completions, play, world_checks


@dataclasses.dataclass(frozen=True)
class Demonstrations:
    """Demonstrations of the prompts of a step, with reward 1; a host task's are read outside of the program."""

    setup: phases.Setup

    @property
    def traced(self) -> bool:
        """Whether the program computes the demonstrations."""
        return not self.setup.task.host

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return the rows of the next step; ``key`` is the run's root key."""
        drawn = rows_lib.next_prompts(self.setup, state, key)
        prompts = sharding.constrain(self.setup.task.prompts(drawn.index, "train"), self.setup.mesh)
        return self.show(state.step, drawn.position, prompts, key)

    def show(self, step: types.Array, position: types.Array, prompts: types.Prompts, key: types.Key) -> types.Rollout:
        """Return the demonstrations of prompts.

        Args:
          step: updates before this rollout, int32 scalar.
          position: ``[P]`` int32 position of each prompt in the run, which becomes the row's group.
          prompts: P prompts of L tokens.
          key: the run's root key.

        Returns:
          P rows with reward 1; of a world, P times the rows of an episode.
        """
        setup, blank = self.setup, functools.partial(rows_lib.blank, self.setup)
        key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.DEMONSTRATIONS), step)
        if setup.world is not None:
            return play.shown(setup.world, blank, position, prompts.index, key)
        token, mask = setup.task.demonstrations(prompts.index, "train", key)
        token, mask = jnp.asarray(token, jnp.int32), jnp.asarray(mask, jnp.float32)
        rows = blank(position, prompts.index, jax.tree.map(jnp.asarray, prompts.context))
        return self._shown(rows, token, mask)

    def _shown(self, rows: types.Rollout, token: types.Array, mask: types.Array) -> types.Rollout:
        """Write demonstrations ``[B, T]`` into blank rows."""
        if worlds.on_host(self.setup.task):
            rows = play.host_turns(rows, token, mask, self.setup.task.stop)
        action = types.Action(token=token, length=rows.action and rows.action.length)
        reward = jnp.ones_like(rows.reward)  # demonstrations are assumed to be correct
        return rows.replace(mask=mask, action=action, reward=reward, on_policy=jnp.zeros_like(rows.reward))

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return nothing: the program judges no row."""
        return {}

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step."""
        return self._rows(rows_lib.placeholders(self.setup), key)

    def check(self, key: types.Key) -> types.Rollout:
        """Return the rows of a step from shapes; the demonstrations of a task inside the program are checked."""
        if self.setup.world is not None:
            world_checks.check(self.setup.world, jax.eval_shape(lambda: key))
        prompts = completions.prompts(self.setup)
        with errors.inside(f"task {self.setup.task.name!r}: demonstrations"):
            return self._rows(prompts, key)

    def _rows(self, prompts: types.Prompts, key: types.Key) -> types.Rollout:
        """Return the rows of prompts by their shapes; a host task is not asked."""
        if self.traced:
            return self.show(jnp.zeros((), jnp.int32), prompts.index, prompts, key)
        rows = rows_lib.blank(self.setup, prompts.index, prompts.index, prompts.context)
        return self._shown(rows, jnp.zeros(rows.mask.shape, jnp.int32), rows.mask)
