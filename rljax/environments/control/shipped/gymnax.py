"""Environments of gymnax as control worlds: ``gymnax("Catch-bsuite")``; ``pip install rljax-lm[gymnax]``."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, packaged, rules
from rljax.language.settings import setting

_SEED = 37  # decides the first states; part of the world, not of a run


@dataclasses.dataclass(frozen=True)
class Gymnax(packaged.Packaged):
    """Rules: an environment of gymnax with discrete or box actions; all numbers that it observes are one row.

    Box actions are scaled from [-1, 1] to the environment's bounds, and observations are as they are. Its time limit
    cuts an episode as every ``horizon`` does, and does not end it. The splits have other keys of first states; an
    environment with few first states has the same ones in both.
    """

    environment: str = setting("CartPole-v1", "Name of the environment in gymnax.")

    name = "gymnax"

    @property
    def horizon(self) -> int:
        """The most steps of an episode."""
        return self.steps or int(self._made[1].max_steps_in_episode)

    @property
    def actions(self) -> rules.Actions:
        """The environment's actions.

        Raises:
          ValueError: they are neither discrete nor in a bounded box.
        """
        space = self._space
        if hasattr(space, "n"):
            return rules.Discrete(int(space.n))
        if not hasattr(space, "low") or not np.all(np.isfinite([*self._bounds])):
            raise ValueError(f"environment: {self.environment!r} has the actions {space}: expected bounded or discrete")
        return rules.Box(math.prod(space.shape))

    def begin(self, index: types.Array, split: Split) -> Any:
        """Reset."""
        environment, params = self._made
        seen, state = environment.reset_env(drawn.key(_SEED, index, split), params)
        return jax.tree.map(jnp.array, {"state": state, "seen": packaged.row(seen)})  # numbers of Python become arrays

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Step, without the environment's own restart."""
        environment, params = self._made
        if isinstance(self.actions, rules.Box):
            low, high = self._bounds
            action = jnp.reshape(low + (action + 1) / 2 * (high - low), self._space.shape)
        seen, new, reward, done, _ = environment.step_env(key, state["state"], action, params)
        moved = rules.Moved(jnp.reshape(reward, ()).astype(jnp.float32), jnp.reshape(done, ()).astype(bool))
        return {"state": packaged.like(state["state"], new), "seen": packaged.row(seen)}, moved

    @functools.cached_property
    def _made(self) -> tuple[Any, Any]:
        """The environment and its parameters."""
        library = packaged.load("gymnax", "gymnax")
        packaged.known(self.environment, library.registered_envs)
        with jax.ensure_compile_time_eval():  # kept, so that it may not hold values of the program being traced
            return library.make(self.environment)

    @functools.cached_property
    def _space(self) -> Any:
        environment, params = self._made
        with jax.ensure_compile_time_eval():
            return environment.action_space(params)

    @functools.cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        ends = self._space.low, self._space.high
        low, high = (np.broadcast_to(np.asarray(end, np.float32), self._space.shape).reshape(-1) for end in ends)
        return low, high


gymnax = packaged.of(Gymnax)
