"""Cohorts: runs of a sweep that one program computes, since they differ in their seed and in traced numbers alone.

A number, or a tuple of them, can be traced if Python does not read it: a learning rate, a clip, a coefficient, a
temperature, the end of a schedule. Whatever else differs (text, whole numbers, a coefficient of 0 that leaves its piece
out) is structural: its values are programs of their own.
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import algorithms, types
from rljax.config import files, resolve
from rljax.run.members import sweep

_SETTINGS = ("sampler.temperature", "learner.clip_norm")  # of a run or a phase, beside arguments of calls
_CALLS = ("algorithm", "optimizer", "seam")  # fields whose calls are made anew from traced numbers
_NUMBER = re.compile(r"-?\b\d+(\.\d*)?(e-?\d+)?\b")

Number = float | tuple[float, ...]
"""Of an argument, or the numbers of one, such as the weights of ``mixed``."""


@dataclasses.dataclass(frozen=True)
class Cohort:
    """Runs that one program computes.

    Attributes:
      runs: the runs.
      traced: the fields of numbers in which they differ, and these of each run.
      structural: the other fields of the sweep, as "field=value".
    """

    runs: tuple[sweep.Run, ...]
    traced: dict[str, tuple[Number, ...]]
    structural: tuple[str, ...]

    def describe(self) -> str:
        """Return a line on the runs and in what they differ."""
        differ = [f"{field} ({len(set(values))} values)" for field, values in self.traced.items()]
        seeds = {run.config.seed for run in self.runs}
        differ += [f"seed ({len(seeds)} values)"] * (len(seeds) > 1)
        count = f"{len(self.runs)} run{'s' * (len(self.runs) > 1)}"
        return ", ".join([*self.structural, f"{count} that differ in {' and '.join(differ)}" if differ else count])


def plan(runs: Sequence[sweep.Run], structural: Sequence[str] = ()) -> list[Cohort]:
    """Return the cohorts of the runs of a sweep, in order of their first run.

    Args:
      runs: from ``sweep.expand``.
      structural: fields whose numbers are not traced.

    Returns:
      The cohorts.
    """
    fields = list(dict.fromkeys(field for run in runs for field in run.fields))
    candidates = [f for f in fields if f not in structural and all(_traceable(run, f) for run in runs)]
    candidates = [f for f in candidates if _builds(runs[0], f)]
    groups: dict[str, list[sweep.Run]] = collections.defaultdict(list)
    for run in runs:
        groups[_structure(run, candidates)].append(run)
    cohorts = []
    for group in groups.values():
        differ = {f: tuple(jax.tree.map(float, run.fields[f]) for run in group) for f in candidates}
        traced = {f: values for f, values in differ.items() if len(set(values)) > 1}
        others = [f for f in fields if f not in ("seed", "checkpoint.init", *traced) and f in group[0].fields]
        cohorts.append(Cohort(tuple(group), traced, tuple(f"{f}={group[0].fields[f]}" for f in others)))
    return cohorts


def _traceable(run: sweep.Run, field: str) -> bool:
    """Return whether the value that a run sets may be a traced number, as far as its type and its place say."""
    value = run.fields.get(field)
    called = files.call(run.config, field) != field and _place(field).startswith(_CALLS)
    numbers = value if isinstance(value, tuple) and value and called else (value,)
    all_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers)
    return all_numbers and (called or _place(field) in _SETTINGS)


def _builds(run: sweep.Run, field: str) -> bool:
    """Return whether algorithm and optimizers can be made with a traced number: not of an argument for whole ones."""

    def build(value: types.Array) -> types.Array:
        for phase in run.resolved.phases:
            resolve.traced(run.config, phase, {field: value})
        return value

    return not fails(build, jax.ShapeDtypeStruct(np.shape(run.fields[field]), jnp.float32))


def fails(function: Callable[..., Any], *shapes: Any) -> bool:
    """Return whether a function cannot be traced."""
    try:
        jax.eval_shape(function, *shapes)
    except Exception:
        return True
    return False


def _place(field: str) -> str:
    """Return a field without the phase that it is of."""
    return re.sub(r"^phase\.\w+\.", "", field)


def _structure(run: sweep.Run, candidates: Sequence[str]) -> str:
    """Return what is equal in two runs of one cohort: the config without candidates, and the pieces without numbers.

    Runs may differ in the checkpoint from which they begin, if all begin with one.
    """
    config = run.config.copy_and_resolve_references()
    config.seed, config.checkpoint.init = 0, "any" if config.checkpoint.init else ""
    pieces = ""
    for field in candidates:
        off = _place(field) in _SETTINGS and run.fields[field] == 0  # such as no clipping
        mark = jax.tree.map(lambda _, off=off: 0.0 if off else 1.0, run.fields[field])  # in place of the numbers
        files.override(config, field, mark)
    if candidates:
        described = "\n".join(algorithms.describe(phase.algorithm) for phase in run.resolved.phases)
        pieces = _NUMBER.sub("#", described)
    return files.dumps(config) + pieces
