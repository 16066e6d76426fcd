"""Stop strings inside the program: an automaton over bytes, read a token at a time.

The state of Aho and Corasick's automaton (Communications of the ACM 18(6), 1975) says how much of a string stands at
the end of a text. A token is a fixed run of bytes, so what it makes of each state is known beforehand: a table
[states, V], and one look-up a token, wherever within tokens a string begins and ends.
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
    """What a token makes of a row's state; make one with ``build``."""

    following: np.ndarray  # [states, V], smallest unsigned type; state 0: nothing of a string, the last: a whole one

    def start(self, rows: int) -> Array:
        """Return the state of rows without a token, [rows]."""
        return jnp.zeros((rows,), self.following.dtype)

    def after(self, state: Array, token: Array) -> Array:
        """Return the state [b] after a token [b]."""
        return jnp.asarray(self.following)[state.astype(jnp.int32), token]

    def found(self, state: Array) -> Array:
        """Tell which rows [b] hold a whole string."""
        return state == self.following.shape[0] - 1

    def read(self, token: Array, count: Array) -> Array:
        """Return the state of rows that hold the first ``count`` [b] of ``token`` [b, T]."""

        def step(t: Array, state: Array) -> Array:
            return jnp.where(t < count, self.after(state, token[:, t]), state)

        return jax.lax.fori_loop(0, jnp.max(count), step, self.start(token.shape[0]))


def build(strings: Sequence[str], pieces: Sequence[bytes | None], vocabulary: int) -> Table:
    """Make the table of stop strings.

    Args:
      strings: texts of which any one ends a completion.
      pieces: the bytes each id adds to a text; None, for a special token, parts what stands before from what
        comes after.
      vocabulary: V, columns of the logits; ids beyond ``pieces`` are as special tokens.

    Raises:
      ValueError: no string, an empty one, or fewer columns than pieces.
    """
    if not strings or not all(strings):
        raise ValueError(f"stop strings {tuple(strings)!r}: expected texts of some length")
    if vocabulary < len(pieces):
        raise ValueError(f"stop strings: {len(pieces)} pieces for {vocabulary} columns of logits")
    after_byte = _automaton([text.encode() for text in strings])
    states = np.arange(len(after_byte), dtype=after_byte.dtype)
    table = np.zeros((len(states), vocabulary), after_byte.dtype)
    table[-1] = states[-1]
    texts = sorted(((i, p) for i, p in enumerate(pieces) if p is not None), key=lambda entry: -len(entry[1]))
    ids = np.array([i for i, _ in texts], np.int64)
    table[:, ids] = states[:, None]  # before the first byte
    k = 0
    while texts := [(i, p) for i, p in texts if len(p) > k]:  # byte k of those that have one, which stand first
        columns = ids[: len(texts)]
        table[:, columns] = after_byte[table[:, columns], np.array([p[k] for _, p in texts])[None, :]]
        k += 1
    return Table(table)


def _automaton(patterns: Sequence[bytes]) -> np.ndarray:
    """Return the state after each byte, [states, 256], of the smallest unsigned type; the last state is for good."""
    # A pattern that holds another is never the first to be whole; without it, no prefix holds a whole pattern.
    needed = {p for p in patterns if not any(q in p for q in patterns if q != p)}
    prefixes = sorted({p[:n] for p in needed for n in range(len(p))}, key=len)
    state = {prefix: i for i, prefix in enumerate(prefixes)} | dict.fromkeys(needed, len(prefixes))
    after = np.full((len(prefixes) + 1, 256), len(prefixes), np.min_scalar_type(len(prefixes)))
    for i, prefix in enumerate(prefixes):
        # where it does not go on, what counts is its longest end that is a prefix as well
        shorter = next((prefix[n:] for n in range(1, len(prefix) + 1) if prefix[n:] in state), None)
        after[i] = 0 if shorter is None else after[state[shorter]]
        for longer in {p[: len(prefix) + 1] for p in needed if p.startswith(prefix)}:
            after[i, longer[-1]] = state[longer]
    return after
