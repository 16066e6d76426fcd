"""Cart and pole: balance a pole on a cart, with physics that may differ from problem to problem."""

import dataclasses
import itertools
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, rules, task
from rljax.language import settings
from rljax.language.settings import setting

_SEED = 32  # decides the problems; part of the world, not of a run
_STANDARD = {"length": 0.5, "pole": 0.1, "cart": 1.0, "gravity": 9.8}
_ANGLE, _PLACE, _FORCE, _SECONDS = 12 * jnp.pi / 180, 2.4, 10.0, 0.02

Interval = tuple[Annotated[float, types.Range(1e-3, 1e3)], Annotated[float, types.Range(1e-3, 1e3)]]


@dataclasses.dataclass(frozen=True)
class Cartpole(drawn.Drawn):
    """Rules: Gymnasium's CartPole-v1; 0 pushes the cart to the left and 1 to the right, with 10 N for 0.02 s.

    A step pays 1, and an episode ends once the pole leans by more than 12 degrees or the cart is more than 2.4 m from
    the middle. Half the length of the pole, both masses and gravity are the context of a problem, uniform in intervals,
    by default of one number; ``heldout_`` intervals replace them in the held-out split and do not overlap them
    (contextual reinforcement learning, arXiv 2110.02102). Without any the splits differ in first states alone.

    The context's place in the intervals is the ``parameters`` of a problem.

    Observed are position / 2.4 m, speed / 2 m/s, angle / 12 degrees and angular speed / 2 rad/s; with ``shown`` also
    the context, as multiples of the standard physics. First states are uniform in [-0.05, 0.05], in m and radians. An
    episode of at least 95 % of the steps is solved: 475 of 500.
    """

    length: Interval = setting((0.5, 0.5), "Half the length of the pole, m: an interval.")
    pole: Interval = setting((0.1, 0.1), "Mass of the pole, kg: an interval.")
    cart: Interval = setting((1.0, 1.0), "Mass of the cart, kg: an interval.")
    gravity: Interval = setting((9.8, 9.8), "Gravity, m/s^2: an interval.")
    heldout_length: Interval | None = setting(None, "The interval of held-out problems; None: that of training.")
    heldout_pole: Interval | None = setting(None, "The interval of held-out problems; None: that of training.")
    heldout_cart: Interval | None = setting(None, "The interval of held-out problems; None: that of training.")
    heldout_gravity: Interval | None = setting(None, "The interval of held-out problems; None: that of training.")
    shown: bool = setting(False, "Whether the context is observed.")
    bands: Annotated[int, types.Range(1, 64)] = setting(1, "Equal bands of ``length``, of both splits; each a domain.")
    horizon: settings.Count = setting(500, "The most steps of an episode.")

    name, actions = "cartpole", rules.Discrete(2)

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, an interval is empty, or two overlap."""
        settings.check(self)
        for name in _STANDARD:
            trained, heldout = getattr(self, name), getattr(self, f"heldout_{name}")
            for field, interval in ((name, trained), (f"heldout_{name}", heldout)):
                if interval and interval[0] > interval[1]:
                    raise ValueError(f"{field}: {interval} is empty: expected (low, high) with low <= high")
            if heldout and heldout[0] <= trained[1] and trained[0] <= heldout[1]:
                raise ValueError(f"heldout_{name}: {heldout} overlaps {name}={trained}")

    @property
    def domains(self) -> int:
        """Bands of the length."""
        return self.bands

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The interval of each band."""
        return tuple(f"length {low:.3g}-{high:.3g}" for low, high in itertools.pairwise(self._edges()))

    def domain(self, index: types.Array, split: Split) -> types.Array:
        """Return the bands of problems ``[n]``."""
        length = jax.vmap(lambda one: self.begin(one, split)["context"][0])(index % self.size(split))
        return jnp.searchsorted(jnp.asarray(self._edges()[1:-1], jnp.float32), length).astype(jnp.int32)

    @property
    def parameters(self) -> Any:
        """Return the function of the context's place in its intervals, of those with a width; absent without any."""
        ends = np.array([self._interval(name, "train") for name in _STANDARD], np.float32)
        wide = ends[:, 0] < ends[:, 1]
        if not wide.any():
            raise AttributeError("parameters")

        def scaled(index: types.Array, split: Split) -> types.Array:
            context = jax.vmap(lambda one: self.begin(one, split)["context"])(index % self.size(split))
            low, high = ends[wide].T[:, None]
            return jnp.clip((context[:, wide] - low) / (high - low), 0.0, 1.0)

        return scaled

    def begin(self, index: types.Array, split: Split) -> Any:
        """Draw the context, ``[4]``, and position, speed, angle and angular speed, ``[4]``."""
        first, physics = jax.random.split(drawn.key(_SEED, index, split))
        low, high = jnp.asarray([self._interval(name, split) for name in _STANDARD], jnp.float32).T
        context = jnp.clip(low + (high - low) * jax.random.uniform(physics, (4,)), low, high)
        return {"context": context, "motion": jax.random.uniform(first, (4,), minval=-0.05, maxval=0.05)}

    def observe(self, state: Any) -> types.Array:
        """Return the motion and, with ``shown``, the context."""
        motion = state["motion"] / jnp.asarray([_PLACE, 2.0, _ANGLE, 2.0], jnp.float32)
        context = state["context"] / jnp.asarray([*_STANDARD.values()], jnp.float32)
        return jnp.concatenate([motion, context]) if self.shown else motion

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Push."""
        length, pole, cart, gravity = state["context"]
        _, speed, angle, turning = state["motion"]
        sine, cosine, mass = jnp.sin(angle), jnp.cos(angle), pole + cart
        push = (jnp.where(action == 1, _FORCE, -_FORCE) + pole * length * turning**2 * sine) / mass
        twist = (gravity * sine - cosine * push) / (length * (4 / 3 - pole * cosine**2 / mass))
        rates = jnp.stack([speed, push - pole * length * twist * cosine / mass, turning, twist])
        motion = state["motion"] + _SECONDS * rates
        done = (jnp.abs(motion[0]) > _PLACE) | (jnp.abs(motion[2]) > _ANGLE)
        return {**state, "motion": motion}, rules.Moved(reward=jnp.float32(1.0), done=done)

    def expert(self, state: Any) -> types.Array:
        """Push towards where the pole falls, and the cart away from the ends."""
        place, speed, angle, turning = state["motion"]
        return (angle + 0.5 * turning + 0.05 * place + 0.1 * speed > 0).astype(jnp.int32)

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether the pole was balanced for 95 % of the steps."""
        return total >= 0.95 * self.horizon

    def _interval(self, name: str, split: Split) -> tuple[float, float]:
        return (split == "heldout" and getattr(self, f"heldout_{name}")) or getattr(self, name)

    def _edges(self) -> np.ndarray:
        """Return the ends of the bands, ``[bands + 1]``."""
        ends = (*self.length, *(self.heldout_length or ()))
        return np.linspace(min(ends), max(ends), self.bands + 1)


cartpole = task.of(Cartpole)
