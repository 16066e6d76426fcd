"""Mountain car: leave a valley by a motor that is too weak to climb out of it at once."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, rules, task
from rljax.language import settings
from rljax.language.settings import setting

_SPEED, _LEFT, _RIGHT, _GOAL, _BOTTOM = 0.07, -1.2, 0.6, 0.45, -jnp.pi / 6
_PLACES, _STRIDE = 2**21, 0x9E3779B1  # numbers times an odd stride, modulo a power of 2: each place once


@dataclasses.dataclass(frozen=True)
class MountainCar(drawn.Drawn):
    """Rules: Gymnasium's MountainCarContinuous-v0, in which rest is a local optimum.

    v' = v + 0.0015 a - 0.0025 cos 3x, at most 0.07, and x' = x + v' in [-1.2, 0.6]; the left wall stops the car. A step
    costs 0.1 a^2, and x >= 0.45 with v >= 0 pays 100 and ends the episode. Observed are (x + pi / 6) / 0.6, from the
    bottom of the valley, and v / 0.07. First positions are in [-0.6, -0.4], a place of a grid for each problem of both
    splits; the first speed is 0. An episode with at least 90 is solved.
    """

    horizon: settings.Count = setting(999, "The most steps of an episode.")

    name, actions = "mountain_car", rules.Box(1)

    def begin(self, index: types.Array, split: Split) -> Any:
        """Return position and speed, ``[2]``."""
        number = index.astype(jnp.uint32) + jnp.uint32(drawn.SIZES["train"] * (split == "heldout"))
        place = (number * jnp.uint32(_STRIDE) % _PLACES).astype(jnp.float32)
        return jnp.stack([-0.6 + 0.2 / _PLACES * place, jnp.float32(0.0)])

    def observe(self, state: Any) -> types.Array:
        """Return position and speed, scaled."""
        return jnp.stack([(state[0] - _BOTTOM) / 0.6, state[1] / _SPEED])

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Drive."""
        place, speed = state
        speed = jnp.clip(speed + 0.0015 * action[0] - 0.0025 * jnp.cos(3 * place), -_SPEED, _SPEED)
        place = jnp.clip(place + speed, _LEFT, _RIGHT)
        speed = jnp.where(place <= _LEFT, jnp.maximum(speed, 0.0), speed)
        done = (place >= _GOAL) & (speed >= 0)
        reward = jnp.where(done, 100.0, 0.0) - 0.1 * action[0] ** 2
        return jnp.stack([place, speed]), rules.Moved(reward=reward, done=done)

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether the total is at least 90."""
        return total >= 90


mountain_car = task.of(MountainCar)
