"""Tasks and worlds that are written in characters: what they share, so that each has only its own rules.

``WrittenTask`` is a task of one turn; ``worlds.text.TextWorld`` is a world of several. Both are frozen dataclasses
with a field ``tokenizer``.
"""

import abc
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.data import tokenizers
from rljax.environments import Split, characters

_CORPUS_ROWS = 1024


class Bound:
    """A task or world with a tokenizer, which ``bind`` sets."""

    name: Any
    tokenizer: tokenizers.Tokenizer | None

    @property
    def bound(self) -> tokenizers.Tokenizer:
        """The tokenizer; ValueError if there is none."""
        if self.tokenizer is None:
            raise ValueError(f"tokenizer: {self.name!r} has none; call task.bind(tokenizer) first")
        return self.tokenizer


class Written(Bound, abc.ABC):
    """A task or world that is written in characters, each of which is one token."""

    @property
    @abc.abstractmethod
    def alphabet(self) -> str:
        """Every character that it writes."""

    def bind(self, tokenizer: tokenizers.Tokenizer) -> Any:
        """Return a copy with the tokenizer; ValueError if it lacks a character."""
        characters.table(tokenizer, self.alphabet, self.name)
        return dataclasses.replace(self, tokenizer=tokenizer)

    @property
    def ids(self) -> np.ndarray:
        """The token of each code point, from ``table``."""
        return characters.table(self.bound, self.alphabet, self.name)


class WrittenTask(Written):
    """A task of one turn, from the characters of its prompts and demonstrations; ``verify`` is its own.

    A prompt with pictures has ``characters.PICTURE`` in place of each of their tokens, and ``images`` returns them.

    Methods are pure functions of ``index``, ``[P]`` int32, and the split, and may be traced.
    """

    prompt_length: int
    completion_length: int
    host = False

    @abc.abstractmethod
    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""

    @abc.abstractmethod
    def write_prompts(self, index: types.Array, split: Split) -> jax.Array:
        """Return prompts as code points ``[P, K]``, 0 where there is no character."""

    @abc.abstractmethod
    def write_demonstrations(self, index: types.Array, split: Split, key: types.Key) -> jax.Array:
        """Return demonstrations as code points ``[P, K]``, 0 where there is no character."""

    def images(self, index: types.Array, split: Split) -> jax.Array | None:
        """Return the pictures of prompts, ``[P, N, H, W, 3]`` uint8, or None."""
        return None

    def corpus(self) -> Iterator[str]:
        """Yield every character once, then prompts with demonstrations."""
        yield self.alphabet
        index = jnp.arange(min(_CORPUS_ROWS, self.size("train")), dtype=jnp.int32)
        yield from characters.strings(_examples(self, index))

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text."""
        return characters.strings(_prompts(self, jnp.asarray([index], jnp.int32), split))[0]

    def prompts(self, index: types.Array, split: Split) -> types.Prompts:
        """Return prompts: token and mask ``[P, L]``."""
        code = characters.pack(self.write_prompts(index, split), self.prompt_length, pad="left")
        token, mask = jnp.asarray(self.ids)[code], (code != 0).astype(jnp.float32)
        return types.Prompts(token=token, mask=mask, index=index, image=self.images(index, split))

    def demonstrations(self, index: types.Array, split: Split, key: types.Key) -> tuple[jax.Array, jax.Array]:
        """Return demonstrations, token and mask ``[P, T]``, with mistakes where the settings ask for them.

        Those of a row depend on ``(key, index)`` only.
        """
        return self.encode(self.write_demonstrations(index, split, key))

    def encode(self, code: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return texts ``[P, K]`` as demonstrations."""
        return characters.demonstration(code, self.completion_length, self.bound, self.ids)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _prompts(task: WrittenTask, index: jax.Array, split: Split) -> jax.Array:
    return task.write_prompts(index, split)


@functools.partial(jax.jit, static_argnums=0)
def _examples(task: WrittenTask, index: jax.Array) -> jax.Array:
    demonstration = task.write_demonstrations(index, "train", jax.random.key(0))
    return jnp.concatenate([task.write_prompts(index, "train"), demonstration], axis=1)


def verdict(parseable: jax.Array, correct: jax.Array, **parts: jax.Array) -> types.Verdict:
    """Return the verdict on answers ``[B]``: reward 1 and CORRECT, else 0, and UNPARSEABLE where it is not parseable.

    ``parts["format"]`` is 1 where it is parseable.
    """
    outcome = jnp.where(correct, types.Outcome.CORRECT, types.Outcome.WRONG)
    return types.Verdict(
        reward=correct.astype(jnp.float32),
        outcome=jnp.where(parseable, outcome, types.Outcome.UNPARSEABLE).astype(jnp.int32),
        parts={name: x.astype(jnp.float32) for name, x in {"format": parseable, **parts}.items()},
    )
