"""The algorithm a config describes: a recipe of the table, and what the seams' fields change in it."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from rljax import algorithms, transforms, types
from rljax.language import parse
from rljax.transforms import schedule


@functools.cache
def _numbers() -> dict[str, Callable[..., Any]]:
    return {n: f for n, f in vars(schedule).items() if getattr(f, "is_piece", False)}


@functools.cache
def _pieces(seam: str) -> dict[str, Callable[..., Any]]:
    combinators: dict[str, Callable[..., Any]] = {} if seam in ("source", "reduce") else {"chain": transforms.chain}
    if seam in transforms.LOSS_SEAMS:
        combinators["where"] = transforms.where
    return {**combinators, **transforms.pieces(seam)}


def algorithm(text: str, field: str) -> types.Algorithm:
    """Build the algorithm that a call describes: a recipe of the table, or any function that returns one."""
    built = parse.one(text, algorithms.TABLE, field, nested={**transforms.pieces("reduce"), **_numbers()})
    if not isinstance(built, types.Algorithm):
        raise ValueError(f"{field}={text!r}: not an algorithm. It must return types.Algorithm.")
    return built


def _edit(seam: str, fields: Mapping[str, str], current: tuple, where: str) -> tuple:
    """Apply a seam's field to the pieces a recipe has there."""
    field, text = f"{where}.{seam}", fields.get(seam, "").strip()
    if not text:
        return current
    append = text.startswith("+")
    valid = _pieces(seam)
    within = {
        n: f for s in transforms.LOSS_SEAMS for n, f in transforms.pieces(s).items() if seam in transforms.LOSS_SEAMS
    }
    nested = {**transforms.pieces("reduce"), **_numbers(), **within, **valid}
    new = parse.many(text[1:] if append else text, valid, field, nested=nested)
    for p in new:
        if not isinstance(p, types.Transform | types.Source) or p.seam != seam:
            home = getattr(p, "seam", None)
            raise ValueError(
                f"{field}={text!r}: {getattr(p, 'spec', None) or p} "
                + (f"belongs to seam {home!r}." if home else "is not a piece.")
            )
    return (*current, *new) if append else tuple(new)


def _rebuilt(pieces: tuple, order: tuple[str, ...], fields: Mapping[str, str], where: str) -> tuple:
    """Edit pieces of several seams in place. A seam that had none comes before those after it in ``order``."""
    for i, seam in enumerate(order):
        own = tuple(p for p in pieces if p.seam == seam)
        rest = [p for p in pieces if p.seam != seam]
        later = (k for k, p in enumerate(rest) if p.seam in order[i + 1 :])
        at = pieces.index(own[0]) if own else next(later, len(rest))
        new = _edit(seam, fields, own, where)
        pieces = pieces if new == own else (*rest[:at], *new, *rest[at:])
    return pieces


def on_one_trunk(algorithm: types.Algorithm, weight: float) -> types.Algorithm:
    """Return the algorithm with its critic's loss, times ``weight``, in the policy's objective: one trunk, one step.

    Raises:
      ValueError: there is no critic, or it trains in steps or on rows of its own.
    """
    policy, *others = algorithm.objectives
    critics = [o for o in others if o.module == "value"]
    if not critics:
        raise ValueError(f"config.learner.shared_critic={weight}: {algorithm.spec} trains no critic. 0.")
    for o in critics:
        if o.prepare or o.epochs or o.minibatches or o.optimizer or o.every != 1:
            raise ValueError(
                f"config.learner.shared_critic={weight}: {algorithm.spec} gives its critic epochs, an optimizer or "
                "rows of its own, which one trunk cannot have. 0."
            )
    policy = dataclasses.replace(policy, loss=(*policy.loss, *(_times(p, weight) for o in critics for p in o.loss)))
    rest = tuple(o for o in others if o.module != "value")
    return dataclasses.replace(algorithm, objectives=(policy, *rest))


def _times(piece: types.LossTransform, weight: float) -> types.LossTransform:
    """Weigh the terms that a piece adds."""

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores, state: types.State, key: types.Key):
        found = piece.apply(loss.replace(terms={}), rollout, scores, state, key)
        return found.replace(terms={**loss.terms, **{name: weight * term for name, term in found.terms.items()}})

    return dataclasses.replace(piece, apply=apply, spec=f"{weight} * {piece.spec}")


def edited(algorithm: types.Algorithm, fields: Mapping[str, str], where: str = "config.seam") -> types.Algorithm:
    """Return the algorithm with each seam's field applied; seams of a loss are those of its first objective.

    "" keeps the recipe's pieces, ``a() | b()`` replaces them, ``+ a()`` appends, "none" removes.

    Raises:
      ValueError: an unknown piece, one of another seam, or other than one source or reduction.
    """
    policy, *others = algorithm.objectives
    if fields.get("ratio", "").strip() and any(p.spec.startswith("where(") for p in policy.loss):
        raise ValueError(
            f"{where}.ratio={fields['ratio']!r}: {algorithm.spec} has a ratio in each branch of its where(...); "
            "replace the whole at the seam surrogate."
        )
    sources = _edit("source", fields, (algorithm.source,), where)
    reductions = _edit("reduce", fields, (policy.reduce,), where)
    for seam, found in (("source", sources), ("reduce", reductions)):
        if len(found) != 1:
            raise ValueError(f"{where}.{seam}={fields[seam]!r}: exactly one piece, got {len(found)}.")
    policy = dataclasses.replace(
        policy,
        loss=_rebuilt(policy.loss, transforms.LOSS_SEAMS, fields, where),
        prepare=_edit("prepare", fields, policy.prepare, where),
        reduce=reductions[0],
    )
    return dataclasses.replace(
        algorithm,
        source=sources[0],
        transforms=_rebuilt(algorithm.transforms, ("reward", "advantage"), fields, where),
        objectives=(policy, *others),
        after=_edit("after", fields, algorithm.after, where),
    )
