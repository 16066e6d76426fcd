"""The algorithm that a config describes: a recipe of the table, edited by the fields of the seams."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from rljax import algorithms, transforms, types
from rljax.language import messages, parse
from rljax.transforms.source import chain


@functools.cache
def _registry(*seams: str) -> parse.Registry:
    """Return what may be written at the first of these seams: pieces of all of them, and ways to combine them."""
    combinators: dict[str, Callable[..., Any]] = {} if seams[0] in ("source", "reduce") else {"chain": transforms.chain}
    if seams[0] in transforms.LOSS_SEAMS:
        combinators["where"] = transforms.where
    return parse.Registry("piece", transforms.pieces(*seams, **combinators))


def algorithm(text: str, field: str) -> types.Algorithm:
    """Build the algorithm that a call describes: a recipe of the table, or one at a dotted path."""
    return parse.one(text, parse.Registry("recipe", algorithms.TABLE), field, _registry("reduce", "schedule"))


def plain(text: str) -> types.Algorithm:
    """Build the recipe of a valid call with its default arguments."""
    field = "config.algorithm"
    return algorithm(parse.without_options(text, parse.Registry("recipe", algorithms.TABLE), field), field)


def _edit(seam: str, text: str, current: tuple, prefix: str = "config.seam.") -> tuple:
    """Apply a seam's field to the pieces of a recipe at that seam."""
    text = text.strip()
    if not text:
        return current
    new = pieces(seam, text.removeprefix("+"), f"{prefix}{seam}")
    return (*current, *new) if text.startswith("+") else new


def pieces(seam: str, text: str, field: str) -> tuple:
    """Build the pieces of one seam.

    Args:
      seam: one of ``transforms.SEAMS``.
      text: calls such as ``"a(1.0) | b()"``; "none" is no piece.
      field: field of the config that errors name.

    Returns:
      The pieces, in order.

    Raises:
      ValueError: an unknown piece, or one of another seam.
    """
    within = transforms.LOSS_SEAMS if seam in transforms.LOSS_SEAMS else ()
    built = parse.many(text, _registry(seam), field, _registry(seam, *within, "reduce", "schedule"))
    for p in built:
        if not isinstance(p, types.Transform | types.Source) or p.seam != seam:
            home = getattr(p, "seam", None)
            problem = f"belongs to seam {home!r}." if home else "is not a piece."
            raise ValueError(
                f"{field}={messages.shown(text)}: {getattr(p, 'spec', None) or type(p).__name__} {problem}"
            )
    return tuple(built)


def _rebuilt(chain: tuple, order: tuple[str, ...], fields: Mapping[str, str], prefix: str) -> tuple:
    """Edit the pieces of several seams. A new seam is inserted before the seams after it in ``order``."""
    for i, seam in enumerate(order):
        current = tuple(p for p in chain if p.seam == seam)
        rest = [p for p in chain if p.seam != seam]
        later = (k for k, p in enumerate(rest) if p.seam in order[i + 1 :])
        at = chain.index(current[0]) if current else next(later, len(rest))
        new = _edit(seam, fields[seam], current, prefix)
        chain = chain if new == current else (*rest[:at], *new, *rest[at:])
    return chain


def edited(algorithm: types.Algorithm, fields: Mapping[str, str], prefix: str = "config.seam.") -> types.Algorithm:
    """Return the algorithm with each seam's field applied; the seams of a loss edit its first objective.

    Args:
      algorithm: the recipe to edit.
      fields: by seam, all of ``transforms.SEAMS``: "" keeps the recipe's pieces, ``a() | b()`` replaces them,
        ``+ a()`` appends, "none" removes.
      prefix: prefix of a seam's name in error messages.

    Returns:
      The edited algorithm; it keeps the ``spec`` of the recipe.

    Raises:
      ValueError: an unknown piece, one of another seam, other than one reduction, or sources that exclude each other.
    """
    policy, *others = algorithm.objectives
    if fields["ratio"].strip() and any(p.spec.startswith("where(") for p in policy.loss):
        raise ValueError(
            f"{prefix}ratio={fields['ratio']!r}: {algorithm.spec} has a ratio in each branch of its where(...); "
            f"replace the whole chain in {prefix}surrogate."
        )
    sources = _edit("source", fields["source"], (algorithm.source,), prefix)
    reductions = _edit("reduce", fields["reduce"], (policy.reduce,), prefix)
    if len(reductions) != 1:
        raise ValueError(f"{prefix}reduce={fields['reduce']!r}: exactly one piece, got {len(reductions)}.")
    if not sources:
        raise ValueError(f"{prefix}source={fields['source']!r}: at least one piece.")
    try:
        source = chain.chain(sources)
    except ValueError as error:
        raise ValueError(f"{prefix}source={fields['source']!r}: {error}") from None
    policy = dataclasses.replace(
        policy,
        loss=_rebuilt(policy.loss, transforms.LOSS_SEAMS, fields, prefix),
        prepare=_edit("prepare", fields["prepare"], policy.prepare, prefix),
        reduce=reductions[0],
    )
    return dataclasses.replace(
        algorithm,
        source=source,
        transforms=_rebuilt(algorithm.transforms, ("reward", "advantage"), fields, prefix),
        objectives=(policy, *others),
        after=_edit("after", fields["after"], algorithm.after, prefix),
    )
