"""What every recipe is made with: the table, the decorator that enters it, and ``compose``."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

from rljax import transforms, types
from rljax.algorithms import like as presets
from rljax.transforms import source as sources

TABLE: dict[str, Callable[..., types.Algorithm]] = {}


def recipe(constructor: Callable[..., types.Algorithm]) -> Callable[..., types.Algorithm]:
    """Enter a recipe of this package in the table and record its calls with every default filled in.

    A recipe with presets (``algorithms.like``) also takes ``like="verl"`` and the like: the arguments with which
    that system runs it by default. Arguments given by name or place still win.
    """
    signature = inspect.signature(constructor)
    known = presets.LIKE.get(constructor.__name__, {})

    @functools.wraps(constructor)
    def build(*args: Any, like: str | None = None, **kwargs: Any) -> types.Algorithm:
        if like is not None and like not in known:
            valid = ", ".join(known) or "none for this recipe"
            raise ValueError(f"{constructor.__name__}(like={like!r}): valid: {valid}")
        settings = {} if like is None else known[like]
        bound = signature.bind(**{**settings, **signature.bind_partial(*args, **kwargs).arguments})
        bound.apply_defaults()
        built = constructor(*bound.args, **bound.kwargs)
        return dataclasses.replace(built, spec=transforms.call(constructor.__name__, bound.arguments))

    if known:
        choice = inspect.Parameter(
            "like", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=typing.Literal[(None, *known)]
        )
        build.__signature__ = signature.replace(parameters=[*signature.parameters.values(), choice])  # type: ignore[attr-defined]
    if constructor.__module__.startswith("rljax.algorithms."):
        TABLE[constructor.__name__] = build
    return build


def when(coefficient: types.Number, *pieces: Any) -> tuple[Any, ...]:
    """Return ``pieces``, or nothing for a coefficient that is None or a plain 0 (it may be traced, or a schedule)."""
    off = coefficient is None or (isinstance(coefficient, int | float) and coefficient == 0)
    return () if off else pieces


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
    """Return an algorithm of one policy objective, and ``others`` such as a critic's."""
    policy = types.Objective(loss=tuple(loss), reduce=reduce, prepare=tuple(prepare))
    return types.Algorithm(
        objectives=(policy, *others), transforms=(*reward, *advantage), source=source, after=tuple(after)
    )
