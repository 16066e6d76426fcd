"""Rules of a control world: a system that is observed, acted on, and pays for every step."""

import dataclasses
from typing import Any, Protocol

import flax.struct

from rljax import types
from rljax.environments import Split

State = Any


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Actions 0 <= a < count, an int32 scalar."""

    count: int


@dataclasses.dataclass(frozen=True)
class Box:
    """Actions ``[size]`` float32, each in [-1, 1]; what is outside is clipped before ``Rules.step`` reads it."""

    size: int


Actions = Discrete | Box


class Moved(flax.struct.PyTreeNode):
    """What follows an action."""

    reward: types.Array  # float32 scalar
    done: types.Array  # bool scalar: the episode has ended, and its value from here on is 0
    parts: dict[str, types.Array] = dataclasses.field(default_factory=dict)  # ``Rules.parts``, of the step, summed


class Rules(Protocol):
    """A system. Its constructor is a frozen dataclass whose fields are settings (``language.settings``).

    It may have ``domains``, ``domain(index, split)``, ``domain_names`` and ``parameters(index, split)`` as a ``Task``
    has them; ``expert(state)``, the action of a demonstration; with ``Discrete`` actions ``legal(state)``, ``[count]``
    bool: what is allowed; and where an episode has a goal, ``relabel(observation, following, reached) -> observation,
    Moved``: what would have been observed, and paid for the step to ``following`` ``[O]``, if the goal were where
    ``reached`` ``[O]`` is; with ``trainable(index, reached)``, whether that is a training problem, no goal of a
    held-out one is trained on. One that is a map has ``plan(index, split, observation) -> (lines, path, goal)`` for
    reports: lines ``[n, 2, 2]`` from point to point, the way through ``observation`` ``[T, O]``, ``[T, 2]``, and a
    place ``[2]``, in a unit square whose y goes down.
    """

    name: str
    parts: tuple[str, ...]  # names of the numbers of a step that are reported, summed over the episode

    @property
    def observed(self) -> int:
        """O, how many numbers are observed, each of about the size of 1."""
        ...

    @property
    def actions(self) -> Actions:
        """What an action is."""
        ...

    @property
    def horizon(self) -> int:
        """The most steps of an episode; what it cuts has not ended, and a critic's value stands for the rest."""
        ...

    def size(self, split: Split) -> int:
        """Return the number of problems of a split. The splits have no problem in common."""
        ...

    def begin(self, index: types.Array, split: Split) -> State:
        """Return the state at the start of problem ``index``, an int32 scalar below ``size(split)``."""
        ...

    def observe(self, state: State) -> types.Array:
        """Return what is observed in a state, ``[O]`` float32."""
        ...

    def step(self, state: State, action: types.Array, key: types.Key) -> tuple[State, Moved]:
        """Return the state after an action, and what is paid.

        Args:
          state: before the action.
          action: as ``actions`` says.
          key: a typed key, of the row and the step; most systems are deterministic and ignore it.
        """
        ...

    def solved(self, state: State, total: types.Array) -> types.Array:
        """Return whether an episode that ended in ``state``, with ``total`` reward, solved its problem: a bool."""
        ...

    def text(self, index: int, split: Split) -> str:
        """Return problem ``index`` as a line of text."""
        ...
