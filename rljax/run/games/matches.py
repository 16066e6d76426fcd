"""Episodes of a world on the host: its functions are called once for each turn, and players are Python functions."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rljax import sampling, types
from rljax.data import tokenizers
from rljax.environments import Split, worlds
from rljax.training import phases

_BEGIN, _STEP, _DRAW = 0, 1, 2  # streams of an episode's key


@dataclasses.dataclass(frozen=True)
class Functions:
    """The compiled functions of a world."""

    world: worlds.World
    prompt: Callable[..., Any]
    step: Callable[..., Any]
    started: Callable[..., Any]

    def begin(self, index: int, split: Split, seed: int) -> worlds.State:
        """Return the first state of problem ``index``; its key folds in the seed and the index."""
        return self.started(np.int32(index), split, jax.random.fold_in(self.key(index, seed), _BEGIN))

    def key(self, index: int, seed: int) -> types.Key:
        """Return the key of the episode of problem ``index``."""
        return jax.random.fold_in(jax.random.key(seed), index)


@functools.lru_cache(maxsize=8)
def functions(world: worlds.World) -> Functions:
    """Compile the functions of a world, which is bound to a tokenizer."""
    return Functions(world, jax.jit(world.prompt), jax.jit(world.step), jax.jit(world.begin, static_argnums=1))


def sampler(setup: phases.Setup, temperature: float | None = None) -> sampling.SamplerConfig:
    """Return the sampler of a phase for games: of another temperature if one is given, and with all rows to the end."""
    given = {} if temperature is None else {"temperature": temperature}
    return dataclasses.replace(setup.settings.sampler, rescore="unfiltered", compact=0, **given)


def width(world: worlds.World) -> int:
    """Return the most tokens that a seat has before a turn."""
    return world.prompt_length + (world.completion_length if world.rows == "conversation" else 0)


@dataclasses.dataclass(frozen=True)
class Observations:
    """What followed a turn."""

    tokens: tuple[list[int], ...]  # for each seat, the tokens that it reads
    reward: tuple[float, ...]  # for each seat
    valid: bool


class Episode:
    """One episode, and what every seat has read and written.

    Attributes:
      seat: who writes the next turn.
      over: whether the episode has ended.
      turn: number of turns written.
      reward: for each seat, its sum so far.
      outcome: for each seat, the types.Outcome after the latest turn.
    """

    def __init__(self, functions: Functions, state: worlds.State, key: types.Key | None = None):
        """Begin at a state; the world and the players draw with the key."""
        self._functions, self._state = functions, state
        self._key = jax.random.key(0) if key is None else key
        world = functions.world
        self.seat, self.over, self.turn = 0, False, 0
        self.reward = [0.0] * world.seats
        self.outcome = [int(types.Outcome.WRONG)] * world.seats
        self._contexts = [self.prompt(seat) for seat in range(world.seats)]

    @property
    def world(self) -> worlds.World:
        """The world."""
        return self._functions.world

    def draw(self) -> types.Key:
        """Return the key with which a player draws the next turn."""
        return jax.random.fold_in(jax.random.fold_in(self._key, _DRAW), self.turn)

    def prompt(self, seat: int) -> list[int]:
        """Return the tokens of a seat's prompt in the present state."""
        token, mask = self._functions.prompt(self._state, np.int32(seat))
        return np.asarray(token)[np.asarray(mask) > 0].tolist()

    def context(self, seat: int) -> list[int]:
        """Return the tokens that a seat has before it writes: all so far, or in chapters the prompt of the turn."""
        return self.prompt(seat) if self.world.rows == "chapters" else list(self._contexts[seat])

    def step(self, turn: Sequence[int], written: Sequence[int] | None = None) -> Observations:
        """Take a turn of the seat whose turn it is.

        Args:
          turn: token ids, at most ``turn_length``; end-of-sequence replaces whatever else ended the turn.
          written: the token ids as the seat wrote them, for its context; None: the same.

        Returns:
          What followed.

        Raises:
          ValueError: the turn is empty or too long.
        """
        world = self.world
        if not 1 <= len(turn) <= world.turn_length:
            raise ValueError(f"turn: has {len(turn)} tokens; must have 1 to {world.turn_length}, its end included")
        token, mask = tokenizers.padded([turn], world.turn_length, 0)
        key = jax.random.fold_in(jax.random.fold_in(self._key, _STEP), self.turn)
        self._state, reply = self._functions.step(self._state, np.int32(self.seat), token[0], mask[0], key)
        reply = jax.device_get(reply)
        tokens = tuple(np.asarray(t)[np.asarray(m) > 0].tolist() for t, m in zip(reply.token, reply.mask, strict=True))
        self._contexts[self.seat] += turn if written is None else written
        for seat in range(world.seats):
            self._contexts[seat] += tokens[seat]
            self.reward[seat] += float(reply.reward[seat])
        self.turn += 1
        self.over = bool(reply.done | reply.truncated) or self.turn >= world.max_turns
        self.seat = int(reply.next_seat)
        self.outcome = reply.outcome.tolist()
        return Observations(tokens, tuple(reply.reward.tolist()), bool(reply.valid > 0))
