"""Stop strings inside the compiled program: an automaton over bytes that advances one token at a time.

The state of the Aho-Corasick automaton (Communications of the ACM 18(6), 1975) is the longest prefix of a stop string
that ends the text. A token is a fixed sequence of bytes, so its transitions are computed in advance: a table
[states, V], and one look-up per token, even if a string begins and ends inside tokens.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types

Array = types.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Transitions of the automaton by token; ``build`` returns one."""

    transition: np.ndarray  # [states, V], smallest unsigned type; state 0: no prefix; the last: a complete string
    at_start: np.ndarray  # the same of a text that begins with a string; the last but one: it does not

    def start(self, rows: int) -> Array:
        """Return the state [rows] of rows without a token."""
        return jnp.zeros((rows,), self.transition.dtype)

    def advance(self, state: Array, token: Array) -> Array:
        """Return the state [b] after one more token [b]."""
        return jnp.asarray(self.transition)[state.astype(jnp.int32), token]

    def matched(self, state: Array) -> Array:
        """Return which rows [b] contain a stop string."""
        return state == self.transition.shape[0] - 1

    def read(self, token: Array, count: Array) -> Array:
        """Return the state [b] of rows that consist of the first ``count`` [b] of ``token`` [b, T].

        A string that they hold does not end what follows: it was given, as a head is.
        """

        def step(t: Array, state: Array) -> Array:
            after = self.advance(state, token[:, t])
            return jnp.where(t < count, jnp.where(self.matched(after), 0, after), state)

        return jax.lax.fori_loop(0, jnp.max(count), step, self.start(token.shape[0]))

    def place(self, token: Array, count: Array) -> Array:
        """Return the column [b] where the string that ends the first ``count`` [b] of ``token`` [b, T] begins.

        It is ``count`` if no string ends the row, or if text and string share a token.
        """
        width = self.at_start.shape[0] - 2  # no string has more bytes, and so tokens, than this
        column = count[:, None] - width + jnp.arange(width)[None, :]
        tail = jnp.take_along_axis(token, jnp.maximum(column, 0), axis=1)
        table = jnp.asarray(self.at_start, jnp.int32)

        def step(i: Array, states: tuple[Array, Array]) -> tuple[Array, Array]:  # one automaton for each first token
            _, state = states
            following = table[state, jnp.broadcast_to(tail[:, i, None], state.shape)]
            read = (jnp.arange(width)[None, :] <= i) & (column[:, i, None] >= 0)
            return state, jnp.where(read, following, state)

        before, after = (x == len(table) - 1 for x in jax.lax.fori_loop(0, width, step, (jnp.zeros_like(tail),) * 2))
        first = jnp.max(jnp.where(after & ~before & (column >= 0), column, -1), axis=1)
        return jnp.where(first >= 0, first, count)


@dataclasses.dataclass(frozen=True)
class Ends:
    """What ends a completion, and what is written after it."""

    stop: tuple[int, ...] = ()  # token ids that end a completion
    pad: int = 0  # token id of the positions after the end
    strings: Table | None = None  # texts that end a completion once it holds one of them

    def closed(self, token: Array, mask: Array) -> tuple[Array, Array]:
        """Return completions with end-of-sequence in place of any other stop token, and of the string that ends a row.

        Device verifiers read this form, so that they need not know how a completion may end.

        Args:
          token: ``[B, T]`` int32.
          mask: ``[B, T]``, above 0 on the tokens that the policy emitted, which come first.

        Returns:
          (token, mask) of the same shapes.
        """
        if len(self.stop) > 1:
            token = jnp.where(jnp.isin(token, jnp.asarray(self.stop[1:])), self.stop[0], token)
        if self.strings is None or not self.stop:
            return token, mask
        place = jnp.arange(token.shape[1])[None, :]
        count = jnp.sum(mask > 0, axis=1)
        first = self.strings.place(token, count)[:, None]
        token = jnp.where((place == first) & (first < count[:, None]), self.stop[0], token)
        return token, jnp.where(place > first, jnp.zeros_like(mask), mask)


def build(strings: Sequence[str], pieces: Sequence[bytes | None], vocabulary: int) -> Table:
    """Build the table of a set of stop strings.

    Args:
      strings: texts, each of which ends a completion.
      pieces: the bytes that each id adds to a text; None, for a special token, which no string can span.
      vocabulary: V, columns of the logits; ids beyond ``pieces`` count as special tokens.

    Returns:
      The table of transitions.

    Raises:
      ValueError: there is no string, one is empty, or there are fewer columns than pieces.
    """
    if not strings or not all(strings):
        raise ValueError(f"stop strings {tuple(strings)!r}: expected one or more texts, none of them empty")
    if vocabulary < len(pieces):
        raise ValueError(f"stop strings: {len(pieces)} pieces for {vocabulary} columns of logits")
    patterns = [text.encode() for text in strings]
    anywhere, at_start = _anywhere(patterns), _at_start(patterns)
    return Table(_by_token(anywhere, 0, pieces, vocabulary), _by_token(at_start, -2, pieces, vocabulary))


def _by_token(after_byte: np.ndarray, failed: int, pieces: Sequence[bytes | None], vocabulary: int) -> np.ndarray:
    """Return the state after each token, [states, V]; after a special token that of number ``failed``."""
    states = np.arange(len(after_byte), dtype=after_byte.dtype)
    table = np.full((len(states), vocabulary), states[failed])
    table[-1] = states[-1]
    texts = sorted(((i, p) for i, p in enumerate(pieces) if p is not None), key=lambda entry: -len(entry[1]))
    ids = np.array([i for i, _ in texts], np.int64)
    table[:, ids] = states[:, None]  # the states before the first byte
    k = 0
    while texts := [(i, p) for i, p in texts if len(p) > k]:  # byte k of the tokens that have one, which are first
        columns = ids[: len(texts)]
        table[:, columns] = after_byte[table[:, columns], np.array([p[k] for _, p in texts])[None, :]]
        k += 1
    return table


def _numbered(patterns: set[bytes]) -> dict[bytes, int]:
    """Return the states of proper prefixes of patterns, the empty one first, and that of a whole one, the last."""
    prefixes = sorted({p[:n] for p in patterns for n in range(len(p))}, key=len)
    return {prefix: i for i, prefix in enumerate(prefixes)} | dict.fromkeys(patterns, len(prefixes))


def _anywhere(patterns: Sequence[bytes]) -> np.ndarray:
    """Return the state after each byte, [states, 256], of the smallest unsigned type; the last state is absorbing."""
    # A pattern that contains another never matches first; without such patterns, no prefix contains a pattern.
    needed = {p for p in patterns if not any(q in p for q in patterns if q != p)}
    state = _numbered(needed)
    last = max(state.values())
    after = np.full((last + 1, 256), last, np.min_scalar_type(last))
    for prefix, i in state.items():
        if i < last:
            # the other bytes continue the longest proper suffix that is also a prefix
            shorter = next((prefix[n:] for n in range(1, len(prefix) + 1) if prefix[n:] in state), None)
            after[i] = 0 if shorter is None else after[state[shorter]]
            for longer in {p[: len(prefix) + 1] for p in needed if p.startswith(prefix)}:
                after[i, longer[-1]] = state[longer]
    return after


def _at_start(patterns: Sequence[bytes]) -> np.ndarray:
    """Return the same for texts that begin with a pattern; the last state but one is that of other texts."""
    needed = {p for p in patterns if not any(p.startswith(q) for q in patterns if q != p)}
    state = _numbered(needed)
    failed = max(state.values())
    after = np.full((failed + 2, 256), failed, np.min_scalar_type(failed + 1))
    after[-1] = failed + 1
    for pattern in needed:
        for n, byte in enumerate(pattern):
            after[state[pattern[:n]], byte] = state[pattern[: n + 1]] + (n + 1 == len(pattern))
    return after
