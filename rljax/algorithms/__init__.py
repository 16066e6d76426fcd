"""THE TABLE: one function for each published method, which returns a composition of pieces.

``recipes`` has those that configs, notebooks and studies use; the collection ``rljax.methods`` has the others, which
enter the same table and are imported when one of them is asked for. A family is a module of the same name in both:

    policy_gradient   recipes that differ in their advantage: baselines, normalizers, weights by sign or difficulty
    clipped           recipes on the clipped ratio, and on what replaces it
    critic            recipes with a value module
    regression        recipes that fit a target: mirror descent, implicit policies, preference pairs
    reward_models     recipes that train a reward model
    offline           recipes of stored rows: pairs and ratings without a sampler, weights exp(A)
    stale             recipes for stale tokens, and for samplers that differ from the trainer
    guided            recipes with demonstrations, hints, probes or a target answer
    shaping           recipes that differ in their reward
    turns             recipes for conversations, agents, and episodes of several rows

A recipe's signature is its schema and the only place of its defaults; what it does not name has the defaults of
``compose``. README.md beside this file lists every recipe with its paper, what it reads and whether it trains in the
loop; ``python -m rljax algorithms`` prints the table, one recipe, or how two differ. DIFFERENCES.md says how public
systems set the same methods. ``battery`` checks a recipe, or one piece, without an oracle.
"""

import functools
import importlib
import inspect
from typing import Any

from rljax import transforms, types
from rljax.algorithms.base import compose, recipe, when
from rljax.algorithms.inputs import missing_parts, unsupplied
from rljax.language import tables

FAMILIES = (
    *("policy_gradient", "clipped", "critic", "regression", "reward_models", "offline", "stale", "guided", "shaping"),
    "turns",
)

TABLE = tables.Table(
    "recipe", [f"rljax.algorithms.recipes.{f}" for f in FAMILIES], [f"rljax.methods.recipes.{f}" for f in FAMILIES]
)

__all__ = [
    "FAMILIES",
    "TABLE",
    "by_seam",
    "compose",
    "describe",
    "example",
    "missing_parts",
    "recipe",
    "task_of",
    "unsupplied",
    "when",
]


_MODULES = ("arrays", "battery", "config", "interpreter", "recipes", "records", "seams")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rljax.algorithms.{name}")
    if name.startswith("_") or name not in TABLE:
        raise AttributeError(f"module 'rljax.algorithms' has no attribute {name!r}")
    return TABLE[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *TABLE, *_MODULES})


@functools.cache
def example(name: str) -> types.Algorithm:
    """Build a recipe with its defaults; arguments without a default get stand-ins, so that it can be shown."""
    stand_ins: dict[str, Any] = {"limit": 1000, "cache": 200, "prompts": 1000, "budget": 1000.0, "models": 2}
    stand_ins |= {"beta": 0.1, "weights": (("correct", 0.5), ("format", 0.5))}
    required = [p.name for p in inspect.signature(TABLE[name]).parameters.values() if p.default is p.empty]
    return TABLE[name](**{p: stand_ins[p] for p in required})


def task_of(name: str) -> str:
    """Return the call of a task on which a recipe trains that plain tasks of one turn do not suit; "" of others."""
    return getattr(TABLE.get(name), "task", "")


def by_seam(algorithm: types.Algorithm) -> dict[str, tuple[str, ...]]:
    """Return the calls at each seam, in order, with every default filled in.

    Seams of objectives after the first are named after their module: "value: surrogate".
    """
    first, *rest = algorithm.objectives
    pieces = [algorithm.source, *algorithm.transforms, *first.prepare, *first.loss, first.reduce, *algorithm.after]
    calls: dict[str, tuple[str, ...]] = {}
    for p in pieces:
        calls[p.seam] = (*calls.get(p.seam, ()), p.spec)
    for o in rest:
        for p in (*o.prepare, *o.loss, o.reduce):
            seam = f"{o.module}: {p.seam}"
            calls[seam] = (*calls.get(seam, ()), p.spec)
    order = {seam: place for place, seam in enumerate(transforms.SEAMS)}
    return dict(sorted(calls.items(), key=lambda item: order.get(item[0], len(order))))


def describe(algorithm: types.Algorithm) -> str:
    """Write an algorithm out seam by seam, with every default filled in."""
    lines = [algorithm.spec or "algorithm", f"  source     {algorithm.source.spec or 'task()'}"]
    lines += [f"  {p.seam:<10} {p.spec}" for p in algorithm.transforms]
    for o in algorithm.objectives:
        settings = {"epochs": o.epochs, "minibatches": o.minibatches, "optimizer": o.optimizer}
        named = [f"{k}={v!r}" for k, v in settings.items() if v is not None]
        lines.append(" ".join([f"  objective on the {o.module} module", *named]))
        lines += [f"    {p.seam:<9} {p.spec}" for p in (*o.prepare, *o.loss, o.reduce)]
    lines += [f"  {p.seam:<10} {p.spec}" for p in algorithm.after]
    return "\n".join(lines)
