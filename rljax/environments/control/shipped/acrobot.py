"""Acrobot: swing the free end of two links above a line by a motor between the links."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, rules, task
from rljax.language import settings
from rljax.language.settings import setting

_SEED = 33  # decides the first states; part of the world, not of a run
_SECONDS, _GRAVITY = 0.2, 9.8
_SPEEDS = 4 * jnp.pi, 9 * jnp.pi  # the highest


@dataclasses.dataclass(frozen=True)
class Acrobot(drawn.Drawn):
    """Rules: Gymnasium's Acrobot-v1, two links of 1 m and 1 kg; actions are the torques -1, 0 and 1 N m, for 0.2 s.

    The equations of motion are those of Sutton and Barto's book, integrated by one Runge-Kutta step of order 4. A step
    costs 1 until the end of the second link is 1 m above the hinge of the first, which ends the episode. Observed are
    cosine and sine of both angles, from hanging down, and both speeds as fractions of the highest. First angles and
    speeds are uniform in [-0.1, 0.1]. An episode that ends with at least -100 is solved.
    """

    horizon: settings.Count = setting(500, "The most steps of an episode.")

    name, actions = "acrobot", rules.Discrete(3)

    def begin(self, index: types.Array, split: Split) -> Any:
        """Draw both angles and both speeds, ``[4]``."""
        return jax.random.uniform(drawn.key(_SEED, index, split), (4,), minval=-0.1, maxval=0.1)

    def observe(self, state: Any) -> types.Array:
        """Return cosine and sine of both angles, and both speeds."""
        one, two = state[:2]
        angles = jnp.stack([jnp.cos(one), jnp.sin(one), jnp.cos(two), jnp.sin(two)])
        return jnp.concatenate([angles, state[2:] / jnp.asarray(_SPEEDS, jnp.float32)])

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Swing."""
        torque = action.astype(jnp.float32) - 1.0
        first = _rates(state, torque)
        second = _rates(state + _SECONDS / 2 * first, torque)
        third = _rates(state + _SECONDS / 2 * second, torque)
        last = _rates(state + _SECONDS * third, torque)
        state = state + _SECONDS / 6 * (first + 2 * second + 2 * third + last)
        angles = state[:2] - 2 * jnp.pi * jnp.round(state[:2] / (2 * jnp.pi))
        speeds = jnp.asarray(_SPEEDS, jnp.float32)
        state = jnp.concatenate([angles, jnp.clip(state[2:], -speeds, speeds)])
        done = self._above(state)
        return state, rules.Moved(reward=jnp.where(done, 0.0, -1.0), done=done)

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether the end came above the line within 100 steps."""
        return self._above(state) & (total >= -100)

    def _above(self, state: Any) -> types.Array:
        return -jnp.cos(state[0]) - jnp.cos(state[0] + state[1]) > 1.0


def _rates(state: types.Array, torque: types.Array) -> types.Array:
    """Return the derivatives of angles and speeds, ``[4]``, for masses and lengths of 1 and moments of inertia of 1."""
    one, two, speed_one, speed_two = state
    sine, cosine = jnp.sin(two), jnp.cos(two)
    inertia, coupled = 3.5 + cosine, 1.25 + 0.5 * cosine
    pull_two = 0.5 * _GRAVITY * jnp.sin(one + two)
    pull_one = -(0.5 * speed_two + speed_one) * speed_two * sine + 1.5 * _GRAVITY * jnp.sin(one) + pull_two
    push = torque + coupled / inertia * pull_one - 0.5 * speed_one**2 * sine - pull_two
    faster_two = push / (1.25 - coupled**2 / inertia)
    faster_one = -(coupled * faster_two + pull_one) / inertia
    return jnp.stack([speed_one, speed_two, faster_one, faster_two])


acrobot = task.of(Acrobot)
