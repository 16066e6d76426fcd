"""Text inside a compiled program: rows of code points, 0 where there is no character.

Device tasks write prompts and demonstrations, and read completions, with these functions.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.data import tokenizers

_ASCII = 128
_LARGEST_TABLE = 2**14  # of places and columns, for each row
PICTURE = tokenizers.PICTURE
UNREADABLE = ord("?")  # replaces a token that is not one character
_BASE, _PRIME = 251, 16_777_213  # of the numbers of texts; the product of both is below 2^32


class Reading(NamedTuple):
    """A batch of completions as characters."""

    code: jax.Array  # [B, T] int32, 0 from end-of-sequence on, UNREADABLE for tokens that are not one character
    ended: jax.Array  # [B] bool, whether end-of-sequence was emitted


def words(names: Sequence[str]) -> jax.Array:
    """Return a table of words ``[len(names), longest]`` int32, 0 after the end of a word."""
    longest = max(map(len, names))
    return jnp.asarray([codes(name) + [0] * (longest - len(name)) for name in names], jnp.int32)


def codes(text: str) -> list[int]:
    """List the code points of a text."""
    return [ord(character) for character in text]


def line(rows: int, *parts: str | jax.Array) -> jax.Array:
    """Join texts and code points ``[rows]`` or ``[rows, K]``: ``[rows, sum of K]`` int32."""
    columns = [jnp.zeros((rows, 0), jnp.int32)]
    for part in parts:
        if isinstance(part, str):
            part = jnp.broadcast_to(jnp.asarray(codes(part), jnp.int32), (rows, len(part)))
        columns.append(part[:, None] if part.ndim == 1 else part)
    return jnp.concatenate(columns, axis=1)


def decimal(value: jax.Array, width: int) -> jax.Array:
    """Write integers [...] >= 0 in decimal: [..., width], 0 in place of leading zeros."""
    columns = []
    for power in (10**i for i in reversed(range(width))):
        digit = value // power % 10 + ord("0")
        columns.append(digit if power == 1 else jnp.where(value >= power, digit, 0))
    return jnp.stack(columns, axis=-1)


def signed(value: jax.Array, width: int) -> jax.Array:
    """Write integers [P] in decimal, with a minus sign if negative: [P, 1 + width]."""
    sign = jnp.where(value < 0, ord("-"), 0)
    return jnp.concatenate([sign[:, None], decimal(jnp.abs(value), width)], axis=1)


def pack(code: jax.Array, length: int, *, pad: str = "right") -> jax.Array:
    """Remove the gaps between characters, and pad or truncate to a length.

    Args:
      code: code points ``[P, K]``, 0 where there is no character.
      length: columns of the result; characters beyond it are dropped on the padded side.
      pad: the side of the padding, "right" or "left".

    Returns:
      ``[P, length]``, in the dtype of ``code``.
    """
    character = code != 0
    if code.shape[1] * length > _LARGEST_TABLE:  # search for the character of each column
        count = jnp.cumsum(character, axis=1)
        wanted = jnp.broadcast_to(jnp.arange(1, length + 1), (len(code), length))
        wanted = wanted + jnp.where(pad == "left", count[:, -1:] - length, 0)
        place = jax.vmap(jnp.searchsorted)(count, wanted)
        kept = (wanted > 0) & (wanted <= count[:, -1:])
        return jnp.where(kept, jnp.take_along_axis(code, jnp.minimum(place, code.shape[1] - 1), axis=1), 0)
    if pad == "left":
        place = length - jnp.cumsum(character[:, ::-1], axis=1)[:, ::-1]
    else:
        place = jnp.cumsum(character, axis=1) - 1
    moves = (place[:, None, :] == jnp.arange(length)[None, :, None]) & character[:, None, :]
    return jnp.sum(jnp.where(moves, code[:, None, :], 0), axis=2, dtype=code.dtype)


def last(code: jax.Array, separator: str) -> jax.Array:
    """Return only the characters after the last separator ``[P, K]``, in place, or all if there is none."""
    later = jnp.cumsum((code == ord(separator))[:, ::-1], axis=1)[:, ::-1]  # separators at or after a position
    return jnp.where(later == 0, code, 0)


def number(digit: jax.Array, counts: jax.Array) -> jax.Array:
    """Return a number below 2^24 of each text, equal for equal ones, so that a float32 holds it.

    Args:
      digit: ``[..., T]``, code points or token ids.
      counts: ``[..., T]`` bool, which of them are of the text.

    Returns:
      ``[...]`` float32: a polynomial hash modulo 2^24 - 3, 0 of an empty text.
    """

    def add(total: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        digit, counts = one
        return jnp.where(counts, (total * _BASE + digit + 1) % _PRIME, total), None

    columns = jnp.moveaxis(digit.astype(jnp.uint32), -1, 0), jnp.moveaxis(counts, -1, 0)
    return jax.lax.scan(add, jnp.zeros(digit.shape[:-1], jnp.uint32), columns)[0].astype(jnp.float32)


def among(code: jax.Array, alphabet: str) -> jax.Array:
    """Return which code points are in an alphabet, bool in the shape of ``code``."""
    return functools.reduce(jnp.logical_or, [code == c for c in codes(alphabet)])


def table(tokenizer: tokenizers.Tokenizer, alphabet: str, task: str) -> np.ndarray:
    """Return the table from code points to token ids.

    Args:
      tokenizer: of the task.
      alphabet: the characters that the task writes.
      task: name of the task, for the message.

    Returns:
      int32 ``[128]``, or up to the largest character, the id of padding for every one outside the alphabet.

    Raises:
      ValueError: the tokenizer lacks a token for some characters of the alphabet.
    """
    code = tokenizer.characters()
    token = {int(c): i for i, c in reversed(list(enumerate(code))) if c}
    for character in alphabet:  # a byte token and a piece may both be this character: use the id in a text
        encoded = tokenizers.continuation(tokenizer, "\n", character)
        if len(encoded) == 1 and code[encoded[0]] == ord(character):
            token[ord(character)] = encoded[0]
    missing = "".join(sorted(c for c in alphabet if ord(c) not in token))
    if missing:
        raise ValueError(
            f"tokenizer: has no one-character tokens for {missing!r}, which task {task!r} needs "
            f"(its characters are {alphabet!r}); train it on the task's corpus"
        )
    ids = np.full(max(_ASCII, *(ord(c) + 1 for c in alphabet)), tokenizer.pad, np.int32)
    for character in alphabet:
        ids[ord(character)] = token[ord(character)]
    return ids


def read(tokenizer: tokenizers.Tokenizer, token: jax.Array, mask: jax.Array) -> Reading:
    """Read completions as characters, up to the first end-of-sequence that the policy emitted.

    Args:
      tokenizer: of the task.
      token: ``[B, T]`` int32.
      mask: ``[B, T]``, above 0 on the tokens that the policy emitted.

    Returns:
      The characters, and whether each completion ended.
    """
    emitted = mask > 0
    stop = emitted & (token == tokenizer.eos)
    text = emitted & (jnp.cumsum(stop, axis=1) == 0)
    # a model may have ids beyond the tokenizer
    code = jnp.asarray(tokenizer.characters()).at[token].get(mode="fill", fill_value=0)
    code = jnp.where(code > 0, code, UNREADABLE)
    return Reading(jnp.where(text, code, 0), jnp.any(stop, axis=1))


def demonstration(
    code: jax.Array, length: int, tokenizer: tokenizers.Tokenizer, ids: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """Convert texts to demonstrations.

    Args:
      code: code points ``[P, K]``, 0 where there is no character.
      length: T.
      tokenizer: of the task.
      ids: from ``table``.

    Returns:
      token ``[P, T]`` int32, ended by end-of-sequence, and mask ``[P, T]`` float32.
    """
    packed = pack(code, length)
    count = jnp.sum(packed != 0, axis=1)[:, None]
    place = jnp.broadcast_to(jnp.arange(length)[None, :], packed.shape)
    token = jnp.where(place == count, tokenizer.eos, jnp.asarray(ids)[packed])
    return token, (place <= count).astype(jnp.float32)


def strings(code: jax.Array) -> list[str]:
    """Return rows of code points [P, K] as Python strings."""
    return ["".join(chr(c) for c in row if c) for row in np.asarray(code).tolist()]


def resolve_length(name: str, requested: int | None, needed: int) -> int:
    """Return a length in tokens: the requested one, or the needed one if none is requested.

    Args:
      name: of the setting, for the message.
      requested: tokens; None: as many as needed.
      needed: tokens.

    Returns:
      The length, tokens.

    Raises:
      ValueError: the requested length is below the needed one, or above 2**20.
    """
    if requested is not None and not needed <= requested <= 2**20:
        problem = f"too few; these settings need {needed}" if requested < needed else f"more than {2**20}"
        raise ValueError(f"{name}: {requested} tokens are {problem}")
    return needed if requested is None else requested
