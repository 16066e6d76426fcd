"""Environments of Brax as control worlds: ``brax("inverted_pendulum")``; ``pip install rljax-lm[brax]``."""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, packaged, rules
from rljax.language import settings
from rljax.language.settings import setting

_SEED = 41  # decides the first states; part of the world, not of a run


@dataclasses.dataclass(frozen=True)
class Brax(packaged.Packaged):
    """Rules: bodies and joints of Brax; actions are torques in [-1, 1], as its environments read them.

    The splits have other keys of first states. The number of steps cuts an episode and does not end it; a body that
    falls does. A step is compiled in 5 to 15 s.
    """

    environment: str = setting("inverted_pendulum", "Name of the environment in Brax.")
    physics: Literal["spring", "positional", "generalized", "mjx"] = setting("spring", "How the bodies are simulated.")
    steps: settings.Count = setting(1000, "The most steps of an episode.")

    name = "brax"

    @property
    def horizon(self) -> int:
        """The most steps of an episode."""
        return self.steps

    @property
    def actions(self) -> rules.Actions:
        """Torques."""
        return rules.Box(int(self._made.action_size))

    def begin(self, index: types.Array, split: Split) -> Any:
        """Reset."""
        state = self._made.reset(drawn.key(_SEED, index, split))
        return jax.tree.map(jnp.array, {"state": state, "seen": packaged.row(state.obs)})

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Step; it draws nothing."""
        old = state["state"]
        given = jax.tree.map(lambda x: x, old)  # a copy, whose dictionaries the environment may write to
        new = packaged.like(old, self._made.step(given, action))
        moved = rules.Moved(jnp.reshape(new.reward, ()).astype(jnp.float32), jnp.reshape(new.done, ()) > 0)
        return {"state": new, "seen": packaged.row(new.obs)}, moved

    @functools.cached_property
    def _made(self) -> Any:
        library = packaged.load("brax.envs", "brax")
        packaged.known(self.environment, sorted(library._envs))
        with jax.ensure_compile_time_eval():  # kept, so that it may not hold values of the program being traced
            return library.get_environment(self.environment, backend=self.physics)


brax = packaged.of(Brax)
