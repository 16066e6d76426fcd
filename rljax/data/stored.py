"""Stored demonstrations and preference pairs: rows of files as token arrays with masks.

``rows.exchanges`` lists the shapes of rows that are accepted.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rljax.data import rows, tokenizers
from rljax.data.rows import exchanges

Overlong = Literal["error", "drop"]


class LengthWarning(UserWarning):
    """Rows are left out because they are too long."""


class Tokens(NamedTuple):
    """Prompts and completions of N rows."""

    row: np.ndarray  # [N] int64, row of the source
    prompt: np.ndarray  # [N, L] int32, left-padded
    prompt_mask: np.ndarray  # [N, L] float32
    token: np.ndarray  # [N, T] int32, right-padded, the last one a stop token
    mask: np.ndarray  # [N, T] float32, 1 on the completion


def demonstrations(
    source: rows.Rows,
    tokenizer: tokenizers.Tokenizer,
    prompt_length: int,
    completion_length: int,
    overlong: Overlong = "error",
) -> Tokens:
    """Return demonstrations as tokens.

    Args:
      source: rows of ``prompt`` and ``completion``, or of ``messages``.
      tokenizer: it needs a chat template if prompts are messages.
      prompt_length: L.
      completion_length: T, the stop token included.
      overlong: "error", or "drop" the rows that are longer, with a warning that counts them.

    Returns:
      The tokens; prompts that are texts are not written by the chat template.

    Raises:
      ValueError: a row has another shape, or is too long; names its file and line.
    """
    (tokens,) = _tokens(
        source, lambda row: (exchanges.demonstration(row),), tokenizer, prompt_length, completion_length, overlong
    )
    return tokens


def pairs(
    source: rows.Rows,
    tokenizer: tokenizers.Tokenizer,
    prompt_length: int,
    completion_length: int,
    overlong: Overlong = "error",
) -> tuple[Tokens, Tokens]:
    """Return (chosen, rejected) of preference pairs as tokens; row i of both has the same prompt.

    Arguments and errors as in ``demonstrations``; a row is left out if either completion is too long.
    """
    chosen, rejected = _tokens(source, exchanges.pair, tokenizer, prompt_length, completion_length, overlong)
    return chosen, rejected


def encoded(tokenizer: tokenizers.Tokenizer, exchange: exchanges.Exchange) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt and of its completion, which ends with a stop token."""
    prompt, completion = exchange
    if not isinstance(prompt, str):
        return tokenizers.exchange(tokenizer, prompt, completion)
    return tokenizer.prompt(prompt), [*tokenizers.continuation(tokenizer, prompt, completion), tokenizer.eos]


def _tokens(
    source: rows.Rows,
    read: Callable[[Mapping[str, Any]], Sequence[exchanges.Exchange]],
    tokenizer: tokenizers.Tokenizer,
    prompt_length: int,
    completion_length: int,
    overlong: Overlong,
) -> list[Tokens]:
    kept: list[tuple[int, list[tuple[list[int], list[int]]]]] = []
    long: list[int] = []
    for index, row in enumerate(source):
        try:
            ids = [encoded(tokenizer, exchange) for exchange in read(row)]
        except ValueError as error:
            raise ValueError(f"{source.where(index)}: {error}") from None
        if any(len(prompt) > prompt_length or len(completion) > completion_length for prompt, completion in ids):
            long.append(index)
        else:
            kept.append((index, ids))
    if long:
        lengths = f"prompt_length={prompt_length} or completion_length={completion_length}"
        text = f"{len(long):,} of {len(source):,} rows are longer than {lengths}, the first {source.where(long[0])}"
        if overlong == "error" or not kept:
            raise ValueError(f"{text}; set larger lengths" + ("" if not kept else ", or overlong='drop'"))
        warnings.warn(f"{text}; they are left out", LengthWarning, stacklevel=3)
    order = np.array([index for index, _ in kept], np.int64)
    return [
        Tokens(
            order,
            *tokenizers.padded([ids[n][0] for _, ids in kept], prompt_length, tokenizer.pad, left=True),
            *tokenizers.padded([ids[n][1] for _, ids in kept], completion_length, tokenizer.pad),
        )
        for n in range(len(kept[0][1]))
    ]
