"""What recipes ask of the step, and recipes that together ask for all of it."""

import dataclasses
from collections.abc import Collection

import jax

from rljax import algorithms, types
from rljax.algorithms import inputs, interpreter

UNUSED = ("idle", "moves", "parts")  # needs that change nothing in the step
PLAIN = types.Source()
_TASKS = {name: algorithms.task_of(name) for name in algorithms.TABLE}
# the recipes that are declared with a world, and it
ON_WORLDS = {name: task for name, task in _TASKS.items() if task and not task.startswith("arithmetic(")}


def refused(name: str) -> tuple[str, ...]:
    """Return what a recipe reads and the tiny task does not report; empty where it can train on it."""
    built = algorithms.example(name)
    named = (f"the module {name!r}" for name in inputs.untrained(built))
    return (*inputs.missing_parts(built, ("format",)), *inputs.unsupplied(built), *named)


def of_source(source: types.Source) -> set[tuple[str, object]]:
    """Return the fields of a source that are not those of a plain one, and the kind of its second pass."""
    names = [f.name for f in dataclasses.fields(source) if f.name not in ("seam", "spec", "by_prompt")]  # a warning
    asked: set[tuple[str, object]] = {("source", n) for n in names if getattr(source, n) != getattr(PLAIN, n)}
    again = source.again
    return asked | {("by", again.by), ("plain", again.plain), ("samples", again.samples > 0)} if again else asked


def uses(built: types.Algorithm) -> set[tuple[str, object]]:
    """Return what an algorithm asks of the step.

    Of a source, the fields that are set: what each source draws is shown on arrays. Of other pieces, which the step
    calls in one way at each seam: their seam, whether they have a state or a statistic of the minibatch, and what rows
    and scores must hold for them.
    """
    needs = dataclasses.asdict(interpreter.needs(built))
    asked: set[tuple[str, object]] = {("modules", tuple(o.module for o in built.objectives))} | of_source(built.source)
    asked |= {("seam", seam) for seam in algorithms.by_seam(built)}
    for field, need in needs.items():
        if field not in UNUSED:
            asked |= {(field, x) for x in (need if isinstance(need, frozenset) else [need])}
    pieces = [*built.transforms, *(p for o in built.objectives for p in (*o.prepare, *o.loss))]
    asked |= {("state", p.seam) for p in pieces if jax.tree.leaves(p.init())}
    return asked | {("statistics", p.seam) for p in pieces if getattr(p, "statistics", ())}


def covering(names: Collection[str], chosen: Collection[types.Algorithm] = (), but: Collection[str] = ()) -> list[str]:
    """Return names that ask of the step all that ``names`` do and ``chosen`` do not, the greediest first.

    ``but`` names kinds of uses that do not count.
    """
    asked = {name: uses(algorithms.example(name)) for name in names}
    missing = set().union(*asked.values()) - set().union(*map(uses, chosen))
    missing = {(kind, use) for kind, use in missing if kind not in but}
    cover = []
    while missing:
        cover.append(max(asked, key=lambda name: len(asked[name] & missing)))
        missing -= asked[cover[-1]]
    return cover
