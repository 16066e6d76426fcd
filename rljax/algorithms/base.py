"""How a recipe is written: its decorator, and ``compose``.

A recipe is a function of plain numbers that returns a ``types.Algorithm``. ``@recipe`` is its one decorator; it does
five things and nothing else:

- it marks the function: the table finds it by its name if its module is in ``algorithms.recipes`` or
  ``rljax.methods.recipes``, and a config can name any other recipe by its dotted path;
- it documents every argument: its meaning, its range and its default (``arguments``);
- it writes every call, with all defaults filled in, to ``Algorithm.spec``, so that a log says exactly what ran;
- where ``algorithms.like`` has settings of public systems for it, it adds the argument ``like``;
- it keeps the name of a task on which the recipe trains, where it needs more than one turn has: ``recipe(task=...)``.

``compose`` fills in what a recipe does not name: rows sampled by the policy, no shaping of rewards, nothing after the
update. ``when`` leaves pieces out whose coefficient is 0. A recipe outside rljax uses the same three.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

from rljax import transforms, types
from rljax.algorithms import arguments
from rljax.algorithms import like as presets
from rljax.language import dotted
from rljax.transforms import source as sources
from rljax.transforms.frame import idle


def recipe(constructor: Callable[..., types.Algorithm] | None = None, *, task: str = "") -> Any:
    """Make a function a recipe: mark it, and record its calls with every default filled in.

    A recipe with presets (``algorithms.like``) also takes ``like``: the name of a system, whose default arguments are
    then used. Arguments that the caller passes take precedence over ``like``.

    Args:
      constructor: the function; None: the decorator is called with options.
      task: call of a task on which the recipe trains, if plain tasks of one turn lack what it reads. The page of the
        table names it, and tests train on it.

    Returns:
      The recipe, with the attribute ``task``; or the decorator.
    """
    if constructor is None:
        return functools.partial(recipe, task=task)
    signature = shown = inspect.signature(constructor)
    systems = presets.LIKE.get(constructor.__name__, {})

    @functools.wraps(constructor)
    def build(*args: Any, like: str | None = None, **kwargs: Any) -> types.Algorithm:
        if like is not None and like not in systems:
            valid = ", ".join(systems) or "none for this recipe"
            raise ValueError(f"{constructor.__name__}(like={like!r}): valid: {valid}")
        settings = {} if like is None else systems[like]
        bound = signature.bind(**{**settings, **signature.bind_partial(*args, **kwargs).arguments})
        bound.apply_defaults()
        built = constructor(*bound.args, **bound.kwargs)
        return dataclasses.replace(built, spec=transforms.call(constructor.__name__, bound.arguments))

    if systems:
        choice = inspect.Parameter(
            "like", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=typing.Literal[(None, *systems)]
        )
        shown = signature.replace(parameters=[*signature.parameters.values(), choice])
    build.__signature__ = shown  # type: ignore[attr-defined]
    build.task = task  # type: ignore[attr-defined]
    build.__doc__ = arguments.documentation(constructor, shown)
    return dotted.mark(build, "recipe")


def when(coefficient: types.Number, *pieces: Any) -> tuple[Any, ...]:
    """Return ``pieces``, or nothing where the coefficient is None or a plain 0.

    A coefficient that is traced or follows a schedule may become positive, so its pieces stay.
    """
    return () if coefficient is None or idle.equals(coefficient, 0) else pieces


def compose(
    *,
    advantage: Sequence[types.RolloutTransform] = (),
    loss: Sequence[types.LossTransform],
    reduce: types.PrepareTransform,
    reward: Sequence[types.RolloutTransform] = (),
    prepare: Sequence[types.PrepareTransform] = (),
    source: types.Source = sources.task(),
    after: Sequence[types.AfterTransform] = (),
    others: Sequence[types.Objective] = (),
) -> types.Algorithm:
    """Compose pieces to an algorithm with one objective on the policy, and further ones where given.

    Args:
      advantage: advantage pieces, in order, after the reward pieces.
      loss: ratio, surrogate, weight and penalty pieces, in this order.
      reduce: the reduction: the coefficient of every token in the loss.
      reward: reward pieces, in order.
      prepare: pieces that run on the whole minibatch before it is split.
      source: where the rows come from; by default the policy samples on the task's prompts.
      after: pieces that run after the update, such as a moving reference.
      others: objectives of other modules, such as a critic's.

    Returns:
      The algorithm; ``spec`` is written by ``recipe``.
    """
    policy = types.Objective(loss=tuple(loss), reduce=reduce, prepare=tuple(prepare))
    return types.Algorithm(
        objectives=(policy, *others), transforms=(*reward, *advantage), source=source, after=tuple(after)
    )
