"""What worlds of tokens share: defaults of the contract, texts as tokens, and rows of tokens put together."""

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.data import tokenizers
from rljax.environments import Split, written
from rljax.environments import worlds as contract
from rljax.environments.worlds import demonstrations, reply

Array = types.Array
Piece = tuple[Array, Array]  # token [K] int32 and mask [K], above 0 where there is a token


class Derived(written.Bound, abc.ABC):
    """Methods of ``worlds.World`` that follow from ``begin``, ``prompt`` and ``expert``."""

    @abc.abstractmethod
    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of problem ``index``."""

    @abc.abstractmethod
    def prompt(self, state: Any, seat: Array) -> Piece:
        """Return what a seat reads first: token and mask ``[L]``."""

    @abc.abstractmethod
    def expert(self, state: Any, seat: Array, key: types.Key) -> Piece:
        """Return the turn of a demonstration: token and mask ``[turn_length]``."""

    def prompts(self, index: Array, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]`` of seat 0, of problems begun with key 0."""

        def one(i: Array) -> types.Prompts:
            return types.Prompts.of(self, self.begin(i, split, jax.random.key(0)), jnp.int32(0))

        return jax.vmap(one)(index).replace(index=index)

    def demonstrations(self, index: Array, split: Split, key: types.Key) -> Piece:
        """Return the first row of episodes with the expert in every seat: token and mask ``[P, T]``."""
        return demonstrations.first(self, index, split, key)  # pyright: ignore[reportArgumentType]  a subclass


class TokenWorld(Derived):
    """A world of tokens: ``Derived``, and defaults of ``worlds.World``."""

    host = False
    seats: int = 1
    turn_end: tuple[str, ...] = ()
    anew: bool = False
    extra: tuple[str, ...] = ()


def row_length(world: Any, conversation: int) -> int:
    """Return T of a world: the tokens of a turn in chapters, else of a conversation."""
    return world.turn_length if world.rows == "chapters" else conversation


def width(text: str) -> int:
    """Return the most tokens that a text has with any tokenizer that has a token for every byte or character."""
    return len(text.encode())


def ids(tokenizer: tokenizers.Tokenizer | None, text: str, field: str) -> np.ndarray:
    """Return the tokens of a text in the middle of a row.

    Args:
      tokenizer: of the world.
      text: what a world tells or an expert writes.
      field: the setting that holds the text, for the message.

    Returns:
      int32 ``[K]``, K at most ``width(text)``.

    Raises:
      ValueError: there is no tokenizer, or it cannot write the text.
    """
    if tokenizer is None:
        raise ValueError("tokenizer: the world has none; call world.bind(tokenizer) first")
    tokens = tokenizers.continuation(tokenizer, "\n", text)
    written = tokenizer.decode(tokens)
    if tokenizer.unk in tokens or written != text or len(tokens) > width(text):
        raise ValueError(f"{field}: {text!r} is {written!r} in the tokens of this tokenizer; train it on the corpus")
    return np.asarray(tokens, np.int32)


def piece(token: np.ndarray) -> Piece:
    """Return tokens that are all there."""
    return jnp.asarray(token, jnp.int32), jnp.ones((len(token),), jnp.float32)


def masked(part: Piece, condition: Array | bool) -> Piece:
    """Return a piece that is there only under a condition."""
    return part[0], part[1] * jnp.asarray(condition, jnp.float32)


def join(pieces: Sequence[Piece], length: int, pad: int, *, side: str = "right") -> Piece:
    """Put pieces behind one another, without the positions where there is no token.

    Args:
      pieces: any number of them.
      length: K of the result; with padding at the right the last tokens are dropped, at the left the first ones.
      pad: token id of the positions without a token.
      side: of the padding, "right" or "left".

    Returns:
      token ``[length]`` int32 and mask ``[length]`` float32.
    """
    token = jnp.concatenate([t.astype(jnp.int32) for t, _ in pieces])
    there = jnp.concatenate([m > 0 for _, m in pieces])
    order = jnp.argsort(there if side == "left" else ~there, stable=True)
    token, there = token[order], there[order]
    spare = (max(length - len(token), 0), 0) if side == "left" else (0, max(length - len(token), 0))
    token, there = jnp.pad(token, spare), jnp.pad(there, spare)
    kept = slice(len(token) - length, None) if side == "left" else slice(length)
    token, there = token[kept], there[kept]
    return jnp.where(there, token, pad), there.astype(jnp.float32)


def last_word(world: Any, turn: Piece, words: Sequence[str], field: str) -> Array:
    """Return the number of the word that a turn ends with, -1 if it ends with none, or has no end; int32.

    Args:
      world: bound to a tokenizer.
      turn: token and mask; the tokens are adjacent from the first position.
      words: texts of which at most one ends a turn.
      field: the setting that asks for them, for the message.
    """
    (token, mask), said = turn, jnp.int32(-1)
    for number, word in enumerate(words):
        end = [*ids(world.bound, word, field), world.bound.eos]
        start = jnp.sum(mask > 0) - len(end)
        last = jax.lax.dynamic_slice(jnp.pad(token, (0, len(end))), (jnp.maximum(start, 0),), (len(end),))
        said = jnp.where((start >= 0) & jnp.all(last == jnp.asarray(end)), number, said)
    return said


def check_room(field: str, length: int, word: str) -> None:
    """Raise ValueError if a turn of ``length`` tokens, the value of ``field``, has no room for a word and its end."""
    if length < (needed := width(word) + 1):
        raise ValueError(f"{field}: {length} tokens are too few; {word!r} and its end need {needed}")


def one_word(world: Any, number: Array, words: Sequence[str], field: str) -> Piece:
    """Return the turn that is one word and its end, as ``last_word`` reads it; ``[turn_length]``."""
    pieces = [masked(piece(ids(world.bound, word, field)), number == n) for n, word in enumerate(words)]
    return join([*pieces, piece(np.asarray([world.bound.eos]))], world.turn_length, world.bound.pad)


def told(world: Any, part: Piece | None, verdict: types.Verdict | None = None, **fields: Any) -> contract.Reply:
    """Return a reply.

    Args:
      world: whose sizes the reply has.
      part: what is told, token and mask ``[K]``, or ``[seats, K]`` where seats are told different things.
      verdict: of one row, for ``outcome``, ``valid`` and ``domain``.
      **fields: further fields of the reply; a field ``[seats]`` may be a scalar.

    Returns:
      The reply, every field in its shape and dtype.
    """
    values: dict[str, Any] = {"valid": 1.0, "done": False, "truncated": False, "next_seat": 0, "domain": 0}
    values |= {"reward": 0.0, "outcome": int(types.Outcome.WRONG), "parts": {}, "extra": {}}
    if verdict is not None:
        values |= {"outcome": verdict.outcome[0], "valid": valid(verdict)}
        values |= {} if verdict.domain is None else {"domain": verdict.domain[0]}
    values |= fields
    shape = (world.seats, world.reply_length)
    token, mask = jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)
    if part is not None:
        missing = world.reply_length - part[0].shape[-1]
        spare = [(0, 0)] * (part[0].ndim - 1) + [(0, missing)]
        token, mask = (jnp.broadcast_to(jnp.pad(jnp.atleast_1d(x), spare), shape) for x in part)

    return reply.make(world.seats, token, mask, values)


def valid(verdict: types.Verdict) -> Array:
    """Return 0 where the verifier of one row failed, else 1: a float32 scalar."""
    outcome = verdict.outcome[0]
    failed = (outcome == types.Outcome.CRASHED) | (outcome == types.Outcome.TIMED_OUT)
    return jnp.where(failed, 0.0, 1.0)
