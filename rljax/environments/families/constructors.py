"""Constructors of families, whose signatures are the settings."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.families.frame import Family
from rljax.environments.families.rules import Common, Rules


def build(rules: Rules, common: Common) -> Family:
    """Build the task of rules, with the lengths that its problems need.

    Args:
      rules: of the family.
      common: settings that every family has.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: a requested length is too small.
    """
    prompt, answer = jax.eval_shape(Family(rules, common, 0, 0).codes, jax.ShapeDtypeStruct((1,), jnp.int32))
    return Family(
        rules,
        common,
        prompt_length=characters.resolve_length("prompt_length", common.prompt_length, prompt.shape[1]),
        completion_length=characters.resolve_length("completion_length", common.completion_length, answer.shape[1] + 1),
    )


def of(rules: Callable[..., Rules]) -> Callable[..., Family]:
    """Return the constructor of a family: its arguments are the settings of the rules, then those of ``Common``."""
    parameters = [*inspect.signature(rules).parameters.values(), *inspect.signature(Common).parameters.values()]
    own = set(inspect.signature(rules).parameters)

    def family(*args: Any, **kwargs: Any) -> Family:
        given = signature.bind(*args, **kwargs).arguments
        common = {name: given.pop(name) for name in list(given) if name not in own}
        return build(rules(**given), Common(**common))

    signature = inspect.Signature(parameters)
    setattr(family, "__signature__", signature)  # noqa: B010  an attribute that the type of a function lacks
    family.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    family.__doc__ = rules.__doc__
    return family
