"""Run device tasks in tests, compiled once for each task, with texts as inputs and outputs."""

import collections
import functools
from typing import Any

import jax
import numpy as np

from rljax import environments
from rljax.data import tokenizers

ROWS = 3000  # every batch is split or padded to this size, so that a task compiles once


@functools.cache
def make(name: str, **settings: Any) -> Any:
    """Build a task and bind it to a tokenizer with the characters of all tasks."""
    return environments.lookup(name)(**settings).bind(
        tokenizers.train(["0123456789+-*/=;() >:%!&|^abcdefgilmnoprstuvx"])
    )


def batched(function, index, *arrays):
    """Run a compiled function on blocks of ROWS rows; the last block repeats its first row."""
    outputs = []
    for start in range(0, len(index), ROWS):
        block = [np.asarray(x)[start : start + ROWS] for x in (np.asarray(index, np.int32), *arrays)]
        count = len(block[0])
        padded = [np.concatenate([x, np.repeat(x[:1], ROWS - count, axis=0)]) for x in block]
        outputs.append(jax.tree.map(lambda x, count=count: np.asarray(x)[:count], function(*padded)))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *outputs)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run(task, index, split, key):
    token, mask = task.demonstrations(index, split, key)
    return task.prompts(index, split), token, mask, task.verify(index, split, token, mask)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _prompts(task, index, split):
    return task.prompts(index, split).token


@functools.partial(jax.jit, static_argnums=(0, 2))
def _verify(task, index, split, token, mask):
    return task.verify(index, split, token, mask)


Run = collections.namedtuple("Run", "prompts texts token mask outcome verdict batch")


def prompts(task, index, split):
    """Return prompts as text."""
    return decode(task, batched(lambda i: _prompts(task, i, split), index))


def run(task, index, split="train", key=0):
    """Return prompts and demonstrations as text, and the verdicts of the demonstrations."""
    key = jax.random.key(key)
    batch, token, mask, verdict = batched(lambda i: _run(task, i, split, key), index)
    return Run(decode(task, batch.token), decode(task, token), token, mask, verdict.outcome, verdict, batch)


def verify(task, index, token, mask):
    return batched(lambda *block: _verify(task, block[0], "train", *block[1:]), index, token, mask)


def decode(task, token):
    """Return the texts of rows of tokens, decoded by the table of characters instead of the task."""
    table = [chr(c) if c else "" for c in task.tokenizer.characters().tolist()]
    return ["".join(map(table.__getitem__, row)) for row in np.asarray(token).tolist()]


def completions(task, texts):
    """Return token and mask of texts; end-of-sequence is appended unless the text ends with a tilde."""
    length, tokenizer = task.completion_length, task.tokenizer
    token, mask = np.zeros((len(texts), length), np.int32), np.zeros((len(texts), length), np.float32)
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text.rstrip("~")) + ([] if text.endswith("~") else [tokenizer.eos])
        assert len(ids) <= length
        token[row, : len(ids)], mask[row, : len(ids)] = ids, 1
    return token, mask
