"""What recipes ask of the step, and recipes that together ask for all of it."""

import dataclasses
import re
from collections.abc import Collection

import jax

from rljax import algorithms
from rljax.algorithms import inputs, interpreter

UNUSED = ("idle", "moves", "parts")  # needs that change nothing in the step


def refused(name: str) -> tuple[str, ...]:
    """Return what a recipe reads and the tiny task does not report; empty where it can train on it."""
    built = algorithms.example(name)
    return (*inputs.missing_parts(built, ("format",)), *inputs.unsupplied(built))


def uses(name: str) -> set[tuple[str, object]]:
    """Return what a recipe asks of the step.

    Sources by their names: each draws rows of its own. Of other pieces, which the step calls in one way at each seam:
    their seam, whether they have a state or a statistic of the minibatch, and what rows and scores must hold for them.
    """
    built = algorithms.example(name)
    needs = dataclasses.asdict(interpreter.needs(built))
    asked: set[tuple[str, object]] = {("modules", tuple(o.module for o in built.objectives))}
    for seam, specs in algorithms.by_seam(built).items():
        asked.add(("seam", seam))
        if seam == "source":
            asked |= {(seam, piece) for piece in re.findall(r"(\w+)\(", " ".join(specs))}
    for field, need in needs.items():
        if field not in UNUSED:
            asked |= {(field, x) for x in (need if isinstance(need, frozenset) else [need])}
    pieces = [*built.transforms, *(p for o in built.objectives for p in (*o.prepare, *o.loss))]
    asked |= {("state", p.seam) for p in pieces if jax.tree.leaves(p.init())}
    return asked | {("statistics", p.seam) for p in pieces if getattr(p, "statistics", ())}


def covering(names: Collection[str], chosen: Collection[str] = ()) -> list[str]:
    """Return names that ask of the step all that ``names`` do and ``chosen`` do not, the greediest first."""
    asked = {name: uses(name) for name in names}
    missing = set().union(*asked.values()) - set().union(*(uses(name) for name in chosen))
    cover = []
    while missing:
        cover.append(max(asked, key=lambda name: len(asked[name] & missing)))
        missing -= asked[cover[-1]]
    return cover
