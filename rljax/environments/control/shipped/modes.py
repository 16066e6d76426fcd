"""Modes: one action in the plane, drawn by a policy that has learned a ring of Gaussians."""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, rules, task
from rljax.language.settings import setting

_SEED = 38  # decides directions and examples; part of the world, not of a run
_RADIUS = 0.7  # of the ring


@dataclasses.dataclass(frozen=True)
class Modes(drawn.Drawn):
    """Rules: an episode is one action, a point x in [-1, 1]^2; a prompt asks for a direction u, |u| = 1.

    The expert draws x from a mixture of ``count`` Gaussians with deviation ``spread`` on a ring of radius 0.7, whatever
    is asked: cloned, it is the prior p of a generative model. A prompt is solved within 3 deviations of the mode that
    lies nearest to u. The reward is u'x / 0.7, which also pays points that p never draws, or with ``reward="mode"`` 1
    if the prompt is solved. Among all policies the best for E r - beta KL(q || p) is q = p exp(r / beta) / Z.
    """

    count: Annotated[int, types.Range(2, 64)] = setting(8, "Modes of the examples.")
    spread: Annotated[float, types.Range(0, 0.1, open_low=True)] = setting(0.07, "Standard deviation of a mode.")
    reward: Literal["along", "mode"] = setting("along", "What is paid: the way along the direction, or its mode.")
    prompts: Annotated[int, types.Range(1, drawn.SIZES["train"])] = setting(
        drawn.SIZES["train"], "Directions to train on."
    )

    name, actions, horizon = "modes", rules.Box(2), 1

    @property
    def centers(self) -> types.Array:
        """The modes, ``[count, 2]``."""
        angle = 2.0 * jnp.pi * jnp.arange(self.count) / self.count
        return _RADIUS * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)

    def size(self, split: Split) -> int:
        """Return the number of directions of a split."""
        return self.prompts if split == "train" else drawn.SIZES[split]

    def begin(self, index: types.Array, split: Split) -> Any:
        """Draw a direction and an example, ``[2]`` each; the point is at 0."""
        direction, mode, noise = jax.random.split(drawn.key(_SEED, index, split), 3)
        angle = jax.random.uniform(direction, maxval=2.0 * jnp.pi)
        center = self.centers[jax.random.randint(mode, (), 0, self.count)]
        example = center + self.spread * jax.random.normal(noise, (2,))
        return {
            "direction": jnp.stack([jnp.cos(angle), jnp.sin(angle)]),
            "example": jnp.clip(example, -1.0, 1.0),
            "point": jnp.zeros(2),
        }

    def observe(self, state: Any) -> types.Array:
        """Return the direction."""
        return state["direction"]

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Pay for the point."""
        state = {**state, "point": action}
        solved = self.solved(state, jnp.zeros(())) * 1.0
        reward = solved if self.reward == "mode" else state["direction"] @ action / _RADIUS
        return state, rules.Moved(reward=reward, done=jnp.bool_(True))

    def expert(self, state: Any) -> types.Array:
        """Return the example."""
        return state["example"]

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether the point lies within 3 deviations of the mode that is asked."""
        asked = self.centers[jnp.argmax(self.centers @ state["direction"])]
        return jnp.sum((state["point"] - asked) ** 2) <= (3.0 * self.spread) ** 2


modes = task.of(Modes)
