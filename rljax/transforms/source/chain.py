"""Several pieces as one source."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from rljax import types
from rljax.transforms.source import files


def _name(piece: types.Source) -> str:
    return piece.spec.partition("(")[0]


def _only(pieces: Sequence[types.Source], test: Callable[[types.Source], bool], what: str) -> types.Source | None:
    """Return the piece that satisfies ``test``; there is at most one."""
    fitting = [p for p in pieces if test(p)]
    if len(fitting) > 1:
        raise ValueError(f"{' | '.join(p.spec for p in fitting)}: {what}; at most one piece of a source may.")
    return fitting[0] if fitting else None


class _Roles(NamedTuple):
    """The pieces that do what only one of a chain can."""

    drawing: types.Source | None
    flying: types.Source | None
    passing: types.Source | None
    heading: types.Source | None
    guiding: types.Source | None
    other: types.Source | None  # says where the rows come from
    relabelling: types.Source | None


def _roles(pieces: Sequence[types.Source]) -> _Roles:
    """Return who does what.

    Raises:
      ValueError: two pieces of one name, or pieces that exclude each other.
    """
    spec, names = " | ".join(p.spec for p in pieces), [_name(p) for p in pieces]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{spec}: {name} is there twice; a source has each piece once.")
    roles = _Roles(
        drawing=_only(pieces, lambda p: p.choose is not None, "both choose the prompts"),
        flying=_only(pieces, lambda p: p.segment > 0, "both carry rows in flight"),
        passing=_only(pieces, lambda p: p.again is not None, "both have a second pass"),
        heading=_only(pieces, lambda p: p.head is not None, "both write the heads of completions"),
        guiding=_only(pieces, lambda p: p.demonstrated > 0, "both put demonstrations into the groups"),
        other=_only(pieces, lambda p: p.origin != "policy", "both say where the rows come from"),
        relabelling=_only(pieces, lambda p: p.relabel is not None, "both put other goals into rows"),
    )
    _only(pieces, lambda p: p.stores, "both store groups of earlier steps")
    drawing, flying, passing, heading, _, other, _ = roles
    whole = flying or other
    for piece, what in ((heading, "could begin"), (passing, "could pass again")):
        if whole is not None and piece is not None:
            raise ValueError(f"{spec}: {whole.spec} leaves no completion that {piece.spec} {what}.")
    if drawing is not None and drawing.uneven and any(p.oversample > 1 for p in pieces if p is not drawing):
        raise ValueError(f"{spec}: {drawing.spec} gives the prompts unequal samples, so no piece can oversample them.")
    _check_candidates(spec, pieces, roles)
    _check_flying(spec, pieces, roles)
    sampled = [p for p in roles[1:5] if p is not None] + [p for p in pieces if p.uneven]
    if isinstance(other, files.Stored) and sampled:
        raise ValueError(f"{spec}: {sampled[0].spec} samples the policy, and {other.spec} does not.")
    memories = [p for p in pieces if p.off_policy and p.by_prompt]
    written = sorted(passing.supplies - {"head"}) if passing is not None else []
    if memories and written:
        raise ValueError(f"{spec}: rows that {memories[0].spec} has stored have no {written[0]!r} of the second pass.")
    prompts = [p for p in pieces if p.choose is not None or p.by_prompt]
    if isinstance(other, files.Stored) and not other.fixed and prompts:
        raise ValueError(f"{spec}: {prompts[0].spec} knows prompts by number, and those of {other.spec} have none.")
    return roles


def _check_candidates(spec: str, pieces: Sequence[types.Source], roles: _Roles) -> None:
    """Refuse pieces that would leave out rows before a piece that draws by them, or acts on flat groups, reads them."""
    drawing, flying = roles.drawing, roles.flying
    if drawing is not None and drawing.select is types.Source.select:
        drawing = None
    if drawing is not None and flying is not None and drawing.oversample > 1:
        raise ValueError(f"{spec}: {flying.spec} carries rows over, and {drawing.spec} reads all that a step draws.")
    for reader in [p for p in pieces if p.flat or p is drawing]:
        for p in pieces[: pieces.index(reader)]:
            if p.select is not types.Source.select and p is not flying and (p is not drawing or p.oversample > 1):
                raise ValueError(
                    f"{spec}: {p.spec} would select among rows that {reader.spec} reads. Write {reader.spec} before it."
                )


def _check_flying(spec: str, pieces: Sequence[types.Source], roles: _Roles) -> None:
    """Refuse pieces that would select among rows that are not complete, or take their places."""
    flying, guiding = roles.flying, roles.guiding
    if flying is None:
        return
    if guiding is not None:
        raise ValueError(f"{spec}: {flying.spec} continues all samples, so {guiding.spec} can take the place of none.")
    others = [p for p in pieces if p is not flying and not p.uneven and p.select is not types.Source.select]
    if others and "used" in flying.supplies:
        raise ValueError(f"{spec}: {flying.spec} trains on rows that go on, among which {others[0].spec} would select.")
    for p in others:
        if pieces.index(p) < pieces.index(flying):
            raise ValueError(f"{spec}: {p.spec} would select among rows that go on. Write {flying.spec} before it.")


def chain(pieces: Sequence[types.Source]) -> types.Source:
    """Return the source that runs pieces in order; one piece is itself.

    The pool has an entry for each piece, by its name. Every piece selects among the rows that the one before it
    returned.

    Raises:
      ValueError: two pieces of one name, or two that do what only one can.
    """
    if len(pieces) == 1:
        return pieces[0]
    names, roles = [_name(p) for p in pieces], _roles(pieces)
    drawing, flying, passing, heading, guiding, other, relabelling = roles
    places = math.prod(p.oversample for p in pieces)

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        return {name: p.init(rollout, problems) for name, p in zip(names, pieces, strict=True)}

    def select(
        rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key
    ) -> tuple[types.Rollout, types.Tree]:
        new, rest = {}, 1 if drawing is not None and drawing.uneven else places
        for i, (name, p) in enumerate(zip(names, pieces, strict=True)):
            rest = max(1, rest // p.oversample)
            rollout, new[name] = p.select(rollout, pool[name], count * rest, jax.random.fold_in(key, i))
        return rollout, new

    def observe(pool: types.Tree, metrics: types.Metrics) -> types.Tree:
        return {name: p.observe(pool[name], metrics) for name, p in zip(names, pieces, strict=True)}

    again = None
    if passing is not None and passing.again is not None:
        again = dataclasses.replace(passing.again, edit=_within(passing, passing.again.edit))
    return dataclasses.replace(
        other if isinstance(other, files.Stored) else types.Source(),
        origin="policy" if other is None else other.origin,
        demonstrated=0 if guiding is None else guiding.demonstrated,
        off_policy=any(p.off_policy for p in pieces),
        supplies=frozenset().union(*(p.supplies for p in pieces)),
        oversample=places,
        segment=0 if flying is None else flying.segment,
        early=0 if flying is None else flying.early,
        uneven=any(p.uneven for p in pieces),
        by_prompt=any(p.by_prompt for p in pieces),
        stores=any(p.stores for p in pieces),
        grouped=all(p.grouped for p in pieces),
        solutions=any(p.solutions for p in pieces),
        init=init,
        choose=None if drawing is None else _within(drawing, drawing.choose),
        head=None if heading is None else _within(heading, heading.head),
        again=again,
        select=select,
        observe=observe,
        relabel=None if relabelling is None else relabelling.relabel,
        renew=lambda pool: {name: p.renew(pool[name]) for name, p in zip(names, pieces, strict=True)},
        in_flight=(lambda pool: pool) if flying is None else _within(flying, flying.in_flight),
        seam="source",
        spec=" | ".join(p.spec for p in pieces),
    )


def _within(piece: types.Source, function: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a function of a piece's pool as one of the chain's."""
    assert function is not None
    return lambda pool, *rest: function(pool[_name(piece)], *rest)
