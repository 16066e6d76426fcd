"""Constructors of tasks of numbered problems, whose signatures are the settings."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems.rules import Common, Rules
from rljax.environments.problems.task import Problems


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
    prompt, answer = jax.eval_shape(Problems(rules, common, 0, 0).codes, jax.ShapeDtypeStruct((1,), jnp.int32))
    return prompt.shape[1], answer.shape[1]


def of(rules: Callable[..., Rules]) -> Callable[..., Problems]:
    """Return the constructor of a task: its arguments are the settings of the rules, then those of ``Common``."""
    parameters = [*inspect.signature(rules).parameters.values(), *inspect.signature(Common).parameters.values()]
    of_rules = set(inspect.signature(rules).parameters)

    def task(*args: Any, **kwargs: Any) -> Problems:
        given = signature.bind(*args, **kwargs).arguments
        common = {name: given.pop(name) for name in list(given) if name not in of_rules}
        return build(rules(**given), Common(**common))

    signature = inspect.Signature(parameters)
    setattr(task, "__signature__", signature)  # noqa: B010  an attribute that the type of a function lacks
    task.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    task.__doc__ = rules.__doc__
    return task
