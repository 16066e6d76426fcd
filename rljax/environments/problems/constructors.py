"""Constructors of tasks of numbered problems, whose signatures are the settings."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems.rules import Common, Rules
from rljax.environments.problems.task import Problems
from rljax.language import settings


def build(rules: Rules, common: Common) -> Problems:
    """Build the task of rules, with the lengths that its problems need.

    Args:
      rules: of the problems.
      common: settings that all such tasks have.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: a requested length is too small.
    """
    prompt, answer = _widths(rules, common)
    return Problems(
        rules,
        common,
        prompt_length=characters.resolve_length("prompt_length", common.prompt_length, prompt),
        completion_length=characters.resolve_length("completion_length", common.completion_length, answer + 1),
    )


@functools.lru_cache(maxsize=256)  # tracing takes longer than the rest of resolving a config
def _widths(rules: Rules, common: Common) -> tuple[int, int]:
    """Return the characters of the longest prompt and of the longest demonstration."""
    task, index = Problems(rules, common, 0, 0), jax.ShapeDtypeStruct((1,), jnp.int32)
    prompt = jax.eval_shape(lambda index: task.write_prompts(index, "train"), index)
    answer = jax.eval_shape(lambda index: task.write_demonstrations(index, "train", jax.random.key(0)), index)
    return prompt.shape[1], answer.shape[1]


def of(rules: Callable[[], Rules]) -> Callable[..., Problems]:
    """Return the constructor of a task: its arguments are the settings of the rules and of ``Common``."""
    return settings.constructor(build, rules(), Common())
