"""Pendulum: swing a pendulum up with a motor that is too weak to lift it, and hold it there."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, rules, task
from rljax.language import settings
from rljax.language.settings import setting

_SEED = 31  # decides the first states; part of the world, not of a run
_TORQUE, _SPEED, _SECONDS, _GRAVITY = 2.0, 8.0, 0.05, 10.0


@dataclasses.dataclass(frozen=True)
class Pendulum(drawn.Drawn):
    """Rules: Gymnasium's Pendulum-v1, a pole of 1 m and 1 kg on a motor of 2 N m, in steps of 0.05 s.

    With angle a from upright, speed w and torque u, w' = w + (15 sin a + 3 u) 0.05, at most 8, and a' = a + 0.05 w'.
    The reward is -(a^2 + 0.1 w^2 + 0.001 u^2). Observed are cos a, sin a and w / 8. The first angle is uniform, the
    first speed uniform in [-1, 1]. An episode with a mean reward of at least -1 is solved: a total of -200 in 200.
    """

    horizon: settings.Count = setting(200, "Steps of an episode.")

    name, actions = "pendulum", rules.Box(1)

    def begin(self, index: types.Array, split: Split) -> Any:
        """Draw angle and angular speed, ``[2]``."""
        high = jnp.asarray([jnp.pi, 1.0], jnp.float32)
        return high * jax.random.uniform(drawn.key(_SEED, index, split), (2,), minval=-1.0)

    def observe(self, state: Any) -> types.Array:
        """Return cosine and sine of the angle, and the speed."""
        return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1] / _SPEED])

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Turn."""
        angle, speed = state
        torque = _TORQUE * action[0]
        cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = speed + (1.5 * _GRAVITY * jnp.sin(angle) + 3.0 * torque) * _SECONDS
        speed = jnp.clip(speed, -_SPEED, _SPEED)
        angle = angle + speed * _SECONDS
        angle = jnp.mod(angle + jnp.pi, 2 * jnp.pi) - jnp.pi
        return jnp.stack([angle, speed]), rules.Moved(reward=-cost, done=jnp.bool_(False))

    def expert(self, state: Any) -> types.Array:
        """Pump energy E = w^2 / 2 + 15 cos a towards that of rest upright, and hold the pole there."""
        angle, speed = state
        rest = 1.5 * _GRAVITY
        pump = 0.5 * (rest - (0.5 * speed**2 + rest * jnp.cos(angle))) * jnp.sign(speed)
        hold = -(8.0 * angle + 1.5 * speed)
        near = (jnp.abs(angle) < 0.5) & (jnp.abs(speed) < 2.5)
        return jnp.clip(jnp.where(near, hold, pump) / _TORQUE, -1.0, 1.0)[None]

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether the mean reward is at least -1."""
        return total >= -self.horizon


pendulum = task.of(Pendulum)
