"""The linear quadratic regulator: a world whose best policy, and the return of each linear one, are known exactly."""

import dataclasses
import functools
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, rules, task
from rljax.language import settings
from rljax.language.settings import setting

_SEED = 30  # decides the first states; part of the world, not of a run
_GOOD = 0.9  # of a solved problem: the least quotient of the best cost and its cost

Few = Annotated[int, types.Range(1, 16)]


@dataclasses.dataclass(frozen=True)
class System:
    """x' = A x + B u + noise w with w ~ N(0, I), and the cost x'Qx + u'Ru of each of ``horizon`` steps; float64."""

    A: np.ndarray  # [S, S]
    B: np.ndarray  # [S, C]
    Q: np.ndarray  # [S, S]
    R: np.ndarray  # [C, C]
    noise: float
    horizon: int


def riccati(system: System) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the best policy u_t = K_t x_t, and its expected cost to go x'P_t x + c_t.

        K_t = -(R + B'P_{t+1}B)^-1 B'P_{t+1}A,   P_t = Q + A'P_{t+1}(A + B K_t),   c_t = c_{t+1} + noise^2 tr P_{t+1}

    Args:
      system: of S states and C controls, for H steps.

    Returns:
      K ``[H, C, S]``; P ``[H + 1, S, S]``, of which the last is 0; c ``[H + 1]``.
    """
    A, B = system.A, system.B
    gains, costs, rests = list[np.ndarray](), [np.zeros_like(A)], [0.0]
    for _ in range(system.horizon):
        after = costs[-1]
        gains.append(-np.linalg.solve(system.R + B.T @ after @ B, B.T @ after @ A))
        costs.append(system.Q + A.T @ after @ (A + B @ gains[-1]))
        rests.append(rests[-1] + system.noise**2 * np.trace(after))
    return np.stack(gains[::-1]), np.stack(costs[::-1]), np.asarray(rests[::-1])


@dataclasses.dataclass(frozen=True)
class Lqr(drawn.Drawn):
    """Rules: steer a linear system to 0 cheaply; x' = A x + B u + noise w, and a step is paid -(x'Qx + u'Ru).

    A has Gaussian entries, scaled to a spectral radius of ``radius``; the columns of B have length 1; Q is the identity
    and R is ``price`` times it. A problem is its first state, Gaussian with variance 1. Observed is the state, and the
    control is ``scale`` times the action, so that the best one hardly ever reaches 1. ``riccati`` is the best policy.
    A problem is solved with at most 1 / 0.9 of the least expected cost.
    """

    states: Few = setting(2, "Numbers of a state.")
    controls: Few = setting(1, "Numbers of an action.")
    radius: Annotated[float, types.Range(0, 2)] = setting(1.0, "Spectral radius of A; above 1 the system is unstable.")
    noise: settings.NonNegative = setting(0.0, "Standard deviation of what is added to each number of the state.")
    price: settings.Positive = setting(1.0, "Cost of a control of 1.")
    bound: settings.Positive = setting(
        4.0, "The control that an action of 1 means, in standard deviations of the best first one."
    )
    seed: settings.Size = setting(0, "Decides A and B.")
    horizon: Annotated[int, types.Range(1, 1000)] = setting(20, "Steps of an episode.")

    name = "lqr"

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, or states may become very large."""
        settings.check(self)
        if self.radius**self.horizon > 1e6:
            raise ValueError(f"radius: {self.radius} to the power of horizon={self.horizon} is above 1e6")

    @property
    def actions(self) -> rules.Box:
        """Controls, as fractions of the bound."""
        return rules.Box(self.controls)

    @functools.cached_property
    def system(self) -> System:
        """The system."""
        draws = np.random.default_rng(self.seed)
        A, B = draws.normal(size=(self.states, self.states)), draws.normal(size=(self.states, self.controls))
        A *= self.radius / np.max(np.abs(np.linalg.eigvals(A)))
        B /= np.linalg.norm(B, axis=0)
        return System(A, B, np.eye(self.states), self.price * np.eye(self.controls), self.noise, self.horizon)

    @property
    def scale(self) -> float:
        """The control that an action of 1 means."""
        gains, *_ = self._best
        return self.bound * float(np.max(np.linalg.norm(gains[0], axis=1)))

    def begin(self, index: types.Array, split: Split) -> Any:
        """Draw the first state, ``[S]``, and compute its best expected return."""
        state = jax.random.normal(drawn.key(_SEED, index, split), (self.states,))
        _, cost, rest = self._best
        return {"state": state, "best": -(state @ jnp.asarray(cost[0], jnp.float32) @ state + rest[0])}

    def observe(self, state: Any) -> types.Array:
        """Return the state."""
        return state["state"]

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Move by the linear map."""
        A, B, Q, R = (jnp.asarray(part, jnp.float32) for part in dataclasses.astuple(self.system)[:4])
        x, u = state["state"], self.scale * action
        reward = -(x @ Q @ x + u @ R @ u)
        x = A @ x + B @ u + self.noise * jax.random.normal(key, x.shape)
        return {**state, "state": x}, rules.Moved(reward=reward, done=jnp.bool_(False))

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether the cost is at most 1 / 0.9 of the least expected one."""
        return _GOOD * total >= state["best"]

    @functools.cached_property
    def _best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return riccati(self.system)


lqr = task.of(Lqr)
