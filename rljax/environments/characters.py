"""Text inside a compiled program: rows of code points, 0 where there is no character.

Device tasks write prompts and demonstrations, and read completions, with these few pieces.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.data import tokenizers

_ASCII = 128
UNREADABLE = ord("?")  # stands for a token that is not one ordinary character


class Reading(NamedTuple):
    """A batch of completions as characters."""

    code: jax.Array  # [B, T] int32, 0 from end-of-sequence on, UNREADABLE for tokens that are no character
    ended: jax.Array  # [B] bool, was end-of-sequence emitted


def codes(text: str) -> list[int]:
    """List the code points of a text."""
    return [ord(character) for character in text]


def constant(character: str, rows: int) -> jax.Array:
    """Repeat one character down a column: [rows] int32."""
    return jnp.full((rows,), ord(character), jnp.int32)


def decimal(value: jax.Array, width: int) -> jax.Array:
    """Write integers [P] >= 0 in decimal: [P, width], 0 where a leading zero is left out."""
    columns = []
    for power in (10**i for i in reversed(range(width))):
        digit = value // power % 10 + ord("0")
        columns.append(digit if power == 1 else jnp.where(value >= power, digit, 0))
    return jnp.stack(columns, axis=1)


def signed(value: jax.Array, width: int) -> jax.Array:
    """Write integers [P] in decimal with a minus sign where negative: [P, 1 + width]."""
    sign = jnp.where(value < 0, ord("-"), 0)
    return jnp.concatenate([sign[:, None], decimal(jnp.abs(value), width)], axis=1)


def pack(code: jax.Array, length: int, *, pad: str = "right") -> jax.Array:
    """Close the gaps of ``code`` [P, K] and pad with 0 on the right or the left to [P, length].

    Characters beyond ``length`` are cut off on the padded side.
    """
    rows, width = code.shape
    blank = jnp.zeros((rows, max(0, length - width)), code.dtype)
    if pad == "left":
        order = jnp.argsort(code != 0, axis=1, stable=True)
        return jnp.concatenate([blank, jnp.take_along_axis(code, order, axis=1)], axis=1)[:, -length:]
    order = jnp.argsort(code == 0, axis=1, stable=True)
    return jnp.concatenate([jnp.take_along_axis(code, order, axis=1), blank], axis=1)[:, :length]


def table(tokenizer: tokenizers.Tokenizer, alphabet: str, task: str) -> np.ndarray:
    """Map code points to token ids: int32 [128], pad for every character outside ``alphabet``.

    Raises:
      ValueError: the tokenizer has no token for some characters of the alphabet.
    """
    code = tokenizer.characters()
    token = {int(c): i for i, c in reversed(list(enumerate(code))) if c}
    for character in alphabet:  # a lone byte and a piece may both be this character: take what the tokenizer takes
        own = tokenizer.encode(character)
        if len(own) == 1 and code[own[0]] == ord(character):
            token[ord(character)] = own[0]
    missing = "".join(sorted(c for c in alphabet if ord(c) not in token))
    if missing:
        raise ValueError(
            f"tokenizer: has no one-character tokens for {missing!r}, which task {task!r} needs "
            f"(its characters are {alphabet!r}); train it on the task's corpus"
        )
    ids = np.full(_ASCII, tokenizer.pad, np.int32)
    for character in alphabet:
        ids[ord(character)] = token[ord(character)]
    return ids


def read(tokenizer: tokenizers.Tokenizer, token: jax.Array, mask: jax.Array) -> Reading:
    """Read completions, ``token`` and ``mask`` [B, T], up to the first end-of-sequence the mask admits."""
    emitted = mask > 0
    stop = emitted & (token == tokenizer.eos)
    before = emitted & (jnp.cumsum(stop, axis=1) == 0)
    code = jnp.asarray(tokenizer.characters()).at[token].get(mode="fill", fill_value=0)  # the model may have more ids
    code = jnp.where(code > 0, code, UNREADABLE)
    return Reading(jnp.where(before, code, 0), jnp.any(stop, axis=1))


def demonstration(
    code: jax.Array, length: int, tokenizer: tokenizers.Tokenizer, ids: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """Turn texts ``code`` [P, K] into tokens [P, length] that end with end-of-sequence, and their mask."""
    packed = pack(code, length)
    count = jnp.sum(packed != 0, axis=1)[:, None]
    place = jnp.broadcast_to(jnp.arange(length)[None, :], packed.shape)
    token = jnp.where(place == count, tokenizer.eos, jnp.asarray(ids)[packed])
    return token, (place <= count).astype(jnp.float32)


def strings(code: jax.Array) -> list[str]:
    """Fetch rows of code points [P, K] to the host as text."""
    return ["".join(chr(c) for c in row if c) for row in np.asarray(code).tolist()]


def budget(name: str, given: int | None, needed: int) -> int:
    """Settle a length in tokens: what is needed, or what was given if that is enough.

    Raises:
      ValueError: less was given than is needed.
    """
    if given is not None and given < needed:
        raise ValueError(f"{name}: {given} tokens were given, these settings need {needed}")
    return needed if given is None else given
