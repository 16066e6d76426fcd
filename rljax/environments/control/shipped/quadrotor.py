"""Quadrotor: fly a rigid body in three dimensions through a track of gates."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, rules, task
from rljax.language import settings
from rljax.language.settings import setting

_SEED = 36  # decides the tracks; part of the world, not of a run
_SECONDS, _LAG, _GRAVITY, _RATE = 0.04, 0.1, 9.81, 6.0  # s, s, m/s^2, rad/s
_NEAR, _FAR, _LOW, _HIGH, _BEGIN = 3.0, 5.0, 1.0, 3.0, 2.0  # m: distances of gates, their heights, the first height
_BINS, _HELD = 16, 4  # of turns; a track is held out if its bins add up to a multiple of so many


@dataclasses.dataclass(frozen=True)
class Quadrotor(drawn.Drawn):
    """Rules: an action is a thrust and three body rates, a step is 0.04 s, and the gates are passed in order.

    The thrust of action a_0 is g (1 + a_0), so that 0 hovers; body rates follow the commands, up to 6 rad/s, with a lag
    of 0.1 s (the control mode of arXiv 2202.10796). The acceleration is thrust along the body's z, less gravity and
    ``drag`` times the velocity. It is constant in a step, and the attitude turns by the exponential of the rates, so
    that both have no error of integration. A step is paid the metres it comes nearer to the next gate, as a fraction of
    4 m; a crash, into the ground or 10 m away from the gate, costs ``crash`` (arXiv 2103.08624).

    Each gate is 3 to 5 m behind the one before, after a turn of at most ``turn`` degrees, and 1 to 3 m high. A gate is
    passed where its plane is crossed forwards at most ``radius`` from its middle. Turns are in 16 bins; a track whose
    bins add up to a multiple of 4 is held out, so that the splits share no sequence of bins.

    Observed in the body's frame are velocity / 5 m/s, the vertical, rates, the next gate / 4 m and its direction, the
    gate behind it / 4 m, and the height / 2 m. Parts: ``passed``, gates, and ``crashed``.
    """

    gates: Annotated[int, types.Range(1, 32)] = setting(4, "Gates of a track.")
    turn: Annotated[float, types.Range(0, 90)] = setting(45.0, "The largest turn at a gate, degrees.")
    radius: Annotated[float, types.Range(0.05, 2)] = setting(0.75, "Radius of a gate, m.")
    drag: Annotated[float, types.Range(0, 5)] = setting(0.2, "Deceleration by the air, 1/s.")
    crash: settings.NonNegative = setting(2.0, "Cost of a crash.")
    horizon: settings.Count = setting(250, "The most steps of an episode.")

    name, parts, actions = "quadrotor", ("passed", "crashed"), rules.Box(4)

    def begin(self, index: types.Array, split: Split) -> Any:
        """Draw middles and directions of the gates, ``[gates, 3]``; the body hovers before the first."""
        draws = jax.random.split(drawn.key(_SEED, index, split), 6)
        count, held = (self.gates,), split == "heldout"
        bins = jax.random.randint(draws[0], count, 0, _BINS)
        rest = jnp.where(held, 0, jax.random.randint(draws[1], (), 1, _HELD))
        last = jax.random.randint(draws[2], (), 0, _BINS // _HELD) * _HELD + (rest - jnp.sum(bins[:-1])) % _HELD
        place = (bins.at[-1].set(last) + jax.random.uniform(draws[3], count)) / _BINS
        heading = jnp.cumsum(jnp.deg2rad(self.turn) * (2 * place - 1))
        direction = jnp.stack([jnp.cos(heading), jnp.sin(heading), jnp.zeros(count)], axis=1)
        ahead = jax.random.uniform(draws[4], (self.gates, 1), minval=_NEAR, maxval=_FAR)
        height = jax.random.uniform(draws[5], count, minval=_LOW, maxval=_HIGH)
        return {
            "gate": jnp.cumsum(direction * ahead, axis=0).at[:, 2].set(height),
            "direction": direction,
            "passed": jnp.int32(0),
            "position": jnp.asarray([0.0, 0.0, _BEGIN], jnp.float32),
            "velocity": jnp.zeros(3, jnp.float32),
            "attitude": jnp.asarray([1.0, 0.0, 0.0, 0.0], jnp.float32),
            "rates": jnp.zeros(3, jnp.float32),
        }

    def observe(self, state: Any) -> types.Array:
        """Return what the body's sensors and a map of the gates tell."""
        frame, position = _rotation(state["attitude"]), state["position"]
        last = self.gates - 1
        near, far = jnp.minimum(state["passed"], last), jnp.minimum(state["passed"] + 1, last)
        seen = jnp.stack(
            [
                state["velocity"] / 5,
                jnp.asarray([0.0, 0.0, 1.0], jnp.float32),
                (state["gate"][near] - position) / 4,
                state["direction"][near],
                (state["gate"][far] - position) / 4,
            ]
        )
        return jnp.concatenate([(seen @ frame).reshape(-1), state["rates"] / _RATE, position[2:] / 2])

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Fly, and pass the gate or crash."""
        rates = state["rates"] + _SECONDS / _LAG * (_RATE * action[1:] - state["rates"])
        attitude = _turned(state["attitude"], rates * _SECONDS)
        before, velocity = state["position"], state["velocity"]
        push = _rotation(attitude)[:, 2] * (1 + action[0]) - jnp.asarray([0.0, 0.0, 1.0], jnp.float32)
        push = _GRAVITY * push - self.drag * velocity
        position = before + _SECONDS * velocity + _SECONDS**2 / 2 * push
        number = jnp.minimum(state["passed"], self.gates - 1)
        gate, direction = state["gate"][number], state["direction"][number]
        behind, beyond = (before - gate) @ direction, (position - gate) @ direction
        share = -behind / jnp.maximum(beyond - behind, 1e-6)
        across = before + share * (position - before) - gate
        passed = (behind < 0) & (beyond >= 0) & (across @ across <= self.radius**2)
        distance = jnp.linalg.norm(position - gate)
        crashed = (position[2] < 0) | (distance > 10)
        count = state["passed"] + passed
        nearer = (jnp.linalg.norm(before - gate) - distance) / 4
        parts = {"passed": passed.astype(jnp.float32), "crashed": crashed.astype(jnp.float32)}
        moved = rules.Moved(nearer - self.crash * crashed, crashed | (count == self.gates), parts)
        new = {"position": position, "velocity": velocity + _SECONDS * push, "attitude": attitude, "rates": rates}
        return {**state, **new, "passed": count}, moved

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether all gates are passed."""
        return state["passed"] == self.gates


def _rotation(attitude: types.Array) -> types.Array:
    """Return the matrix of a unit quaternion, whose columns are the axes of the body, ``[3, 3]``."""
    w, x, y, z = attitude
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return jnp.stack([jnp.stack(row) for row in rows])


def _turned(attitude: types.Array, angle: types.Array) -> types.Array:
    """Return a quaternion after a turn by a vector in the body's frame, rad: q exp(angle / 2), of length 1."""
    half = jnp.sqrt(angle @ angle + 1e-12) / 2
    scalar, vector = jnp.cos(half), jnp.sinc(half / jnp.pi) / 2 * angle
    w, xyz = attitude[0], attitude[1:]
    first = jnp.reshape(w * scalar - xyz @ vector, (1,))
    turned = jnp.concatenate([first, w * vector + scalar * xyz + jnp.cross(xyz, vector)])
    return turned / jnp.linalg.norm(turned)


quadrotor = task.of(Quadrotor)
