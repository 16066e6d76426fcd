"""Demonstrations of a world: its expert writes every turn of every seat."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments import worlds as contract

Array = types.Array


class Shown(contract.World, Protocol):
    """A world that has an expert."""

    def expert(self, state: Any, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Return a turn as token ``[turn_length]`` int32 and mask ``[turn_length]`` float32, with its end."""
        ...


class Rows(NamedTuple):
    """Demonstrations as n rows of an episode: what each seat reads and writes, or each turn."""

    token: Array  # [P, n, T] int32, right-padded
    mask: Array  # [P, n, T] float32, 1 on the tokens that the seat wrote; 0 in absent turns
    turn: Array  # [P, n, T] int32, the turns before the token: of the seat, in chapters of all seats
    length: Array  # [P, n] int32, tokens, replies included
    prompt: types.Prompts  # [P, n, L]
    seat: Array  # [P, n] int32, who wrote the row


def of(world: Shown, index: Array, split: Split, key: types.Key) -> Rows:
    """Return demonstrations of problems as the rows of the world; see ``conversations``."""
    return (chapters if world.rows == "chapters" else conversations)(world, index, split, key)


def first(world: Shown, index: Array, split: Split, key: types.Key) -> tuple[Array, Array]:
    """Return the first row of episodes with the expert in every seat: token and mask ``[P, T]``."""
    rows = of(world, index, split, key)
    return rows.token[:, 0], rows.mask[:, 0]


def conversations(world: Shown, index: Array, split: Split, key: types.Key) -> Rows:
    """Return demonstrations of problems as conversations.

    Args:
      world: bound to a tokenizer.
      index: ``[P]`` int32.
      split: of the problems.
      key: a typed key; a row depends on (key, index) only.

    Returns:
      P episodes, cut at ``completion_length``.
    """
    seats, length = world.seats, world.completion_length
    spare = max(world.turn_length, world.reply_length)  # a slice is written whole, with its padding

    def append(row: Any, token: Array, mask: Array, wrote: Array) -> Any:
        """Write tokens behind each seat's row; ``wrote`` [seats]: whether the seat wrote them."""

        def one(row: Any, token: Array, mask: Array, wrote: Array) -> Any:
            tokens, masks, turns, turn, place = row
            at = jnp.minimum(place, length)
            tokens = jax.lax.dynamic_update_slice(tokens, jnp.where(mask > 0, token, 0), (at,))
            masks = jax.lax.dynamic_update_slice(masks, mask * wrote, (at,))
            turns = jax.lax.dynamic_update_slice(turns, jnp.full_like(token, turn), (at,))
            return tokens, masks, turns, turn, place + jnp.sum(mask).astype(jnp.int32)

        return jax.vmap(one)(row, token, mask, wrote)

    def episode(i: Array) -> Rows:
        keys = jax.random.fold_in(key, i)
        zero = jnp.zeros((seats, length + spare), jnp.int32)
        none = jnp.zeros((seats,), jnp.int32)

        def turn(carry: Any, number: Array) -> Any:
            state, seat, over, row = carry
            first, second = jax.random.split(jax.random.fold_in(keys, number))
            token, mask = world.expert(state, seat, first)
            writes = (jnp.arange(seats) == seat) & ~over
            every = jnp.broadcast_to(token, (seats, *token.shape))
            row = append(row, every, mask[None, :] * writes[:, None], writes.astype(jnp.float32))
            following, reply = world.step(state, seat, token, mask, second)
            ended = over | reply.done | reply.truncated
            row = (*row[:3], row[3] + writes, row[4])
            row = append(row, reply.token, reply.mask * ~ended, jnp.zeros((seats,)))
            return (following, jnp.where(ended, seat, reply.next_seat), ended, row), None

        state = world.begin(i, split, keys)
        start = (state, jnp.int32(0), jnp.zeros((), bool), (zero, zero * 0.0, zero, none, none))
        (_, _, _, (tokens, masks, turns, _, place)), _ = jax.lax.scan(turn, start, jnp.arange(world.max_turns))
        inside = jnp.arange(length)[None, :] < place[:, None]
        cut = [jnp.where(inside, x[:, :length], jnp.zeros((), x.dtype)) for x in (tokens, masks, turns)]
        seat = jnp.arange(seats, dtype=jnp.int32)
        prompt = jax.vmap(lambda seat: types.Prompts.of(world, state, seat))(seat)
        return Rows(*cut, length=jnp.minimum(place, length), prompt=prompt, seat=seat)

    return jax.vmap(episode)(index)


def chapters(world: Shown, index: Array, split: Split, key: types.Key) -> Rows:
    """Return demonstrations of problems as one row for each turn.

    Args:
      world: bound to a tokenizer.
      index: ``[P]`` int32.
      split: of the problems.
      key: a typed key; a row depends on (key, index) only.

    Returns:
      P episodes.
    """

    def episode(i: Array) -> Rows:
        keys = jax.random.fold_in(key, i)

        def turn(carry: Any, number: Array) -> Any:
            state, seat, over = carry
            first, second = jax.random.split(jax.random.fold_in(keys, number))
            prompt = types.Prompts.of(world, state, seat)
            token, mask = world.expert(state, seat, first)
            following, reply = world.step(state, seat, token, mask, second)
            written, mask = jnp.where(mask > 0, token, 0), mask * ~over
            length = jnp.sum(mask, dtype=jnp.int32)
            row = Rows(written, mask, jnp.full_like(written, number), length, prompt, seat)
            return (following, reply.next_seat, over | reply.done | reply.truncated), row

        start = (world.begin(i, split, keys), jnp.int32(0), jnp.zeros((), bool))
        return jax.lax.scan(turn, start, jnp.arange(world.max_turns))[1]

    return jax.vmap(episode)(index)
