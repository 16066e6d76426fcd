"""What the rules of a world need to know about one game of pgx."""

import abc
from typing import Any

import jax.numpy as jnp

from rljax import types
from rljax.environments.worlds import rules

State = Any  # pgx.State


class Variant(abc.ABC):
    """One game. Texts are rows of code points, 0 where there is no character; players are 0 and 1, as in pgx."""

    name: str  # in pgx too
    alphabet: str  # of its texts, without the characters of the word ``legal``
    max_turns: int  # the most moves of both players
    turns_each: int  # the most moves of one player
    replies: int = 1  # the most moves of a player in a row
    openings: int  # the most moves that may be drawn before the players begin, with which no game can end
    stake: float  # the largest loss
    separator: str  # what stands before a move in what a seat is told
    move_length: int  # W, the most characters of a move
    event_length: int = 0  # E, the most characters of ``event``
    view_length: int  # the most characters of a view, without the moves so far
    remembers: bool  # whether a view ends with the moves so far

    def dealt(self, state: State, first: types.Array) -> State:
        """Return a first state in which player ``first`` moves."""
        return state.replace(current_player=jnp.asarray(first, jnp.int32))

    def event(self, before: State, after: State) -> types.Array:
        """Return what everyone sees after a move besides it, ``[E]``; by default nothing."""
        return jnp.zeros((0,), jnp.int32)

    @abc.abstractmethod
    def names(self, state: State) -> types.Array:
        """Return the text of every action, ``[A, W]``."""

    @abc.abstractmethod
    def view(self, state: State, player: types.Array) -> types.Array:
        """Return what a player sees, without the moves so far, ``[view_length]``."""

    @abc.abstractmethod
    def expert(self, state: State, key: types.Key) -> types.Array:
        """Return a good action of the player whose turn it is, a legal one."""


def best(preferences: tuple[types.Array, ...], key: types.Key) -> types.Array:
    """Return an action drawn uniformly from the first of several sets ``[A]`` that is not empty."""
    allowed = preferences[-1]
    for preferred in reversed(preferences[:-1]):
        allowed = jnp.where(jnp.any(preferred), preferred, allowed)
    return rules.draw(key, allowed)
