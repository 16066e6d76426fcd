"""What the rules of a world need to know about one game of pgx."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types

State = Any  # pgx.State


class Variant(Protocol):
    """One game. Texts are rows of code points, 0 where there is no character; players are 0 and 1, as in pgx."""

    @property
    def name(self) -> str:
        """Name, in pgx too."""
        ...

    @property
    def alphabet(self) -> str:
        """The characters of its texts, without the characters of the word ``legal``."""
        ...

    @property
    def max_turns(self) -> int:
        """The most moves of both players."""
        ...

    @property
    def turns_each(self) -> int:
        """The most moves of one player."""
        ...

    @property
    def replies(self) -> int:
        """The most moves of a player in a row."""
        ...

    @property
    def openings(self) -> int:
        """The most moves that may be drawn before the players begin, with which no game can end."""
        ...

    @property
    def stake(self) -> float:
        """The largest loss."""
        ...

    @property
    def separator(self) -> str:
        """What stands before a move in what a seat is told."""
        ...

    @property
    def move_length(self) -> int:
        """W, the most characters of a move."""
        ...

    @property
    def event_length(self) -> int:
        """E, the most characters of ``event``."""
        ...

    @property
    def view_length(self) -> int:
        """The most characters of a view, without the moves so far."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether a view ends with the moves so far."""
        ...

    def dealt(self, state: State, first: types.Array) -> State:
        """Return a first state in which player ``first`` moves."""
        ...

    def names(self, state: State) -> types.Array:
        """Return the text of every action, ``[A, W]``."""
        ...

    def event(self, before: State, after: State) -> types.Array:
        """Return what everyone sees after a move besides it, ``[E]``."""
        ...

    def view(self, state: State, player: types.Array) -> types.Array:
        """Return what a player sees, without the moves so far, ``[view_length]``."""
        ...

    def expert(self, state: State, key: types.Key) -> types.Array:
        """Return a good action of the player whose turn it is, a legal one."""
        ...


def table(*names: str) -> np.ndarray:
    """Return texts as code points, ``[len(names), longest]`` int32."""
    width = max(map(len, names))
    return np.array([[ord(c) for c in name] + [0] * (width - len(name)) for name in names], np.int32)


def draw(allowed: types.Array, key: types.Key) -> types.Array:
    """Return an action drawn uniformly from those that are allowed ``[A]``, of which there is one."""
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf)).astype(jnp.int32)


def best(preferences: tuple[types.Array, ...], key: types.Key) -> types.Array:
    """Return an action drawn uniformly from the first of several sets ``[A]`` that is not empty."""
    allowed = preferences[-1]
    for preferred in reversed(preferences[:-1]):
        allowed = jnp.where(jnp.any(preferred), preferred, allowed)
    return draw(allowed, key)
