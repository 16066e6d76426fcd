"""Runs grouped into arms, whose runs are averaged, and the checks that they may be.

A run that cannot be averaged with the others of its arm is left out and named in a note.
"""

import collections
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from rljax.language import messages
from rljax.run.reports import runs

# Fields that change nothing in what is trained.
NEUTRAL = (
    *("name", "log.", "checkpoint.", "profile", "verifier.workers", "verifier.concurrency", "cpu_devices", "mesh."),
    "evaluation.",
)


Notes = collections.defaultdict[str, list[str | runs.Run]]
"""What is to be said of some runs, or of arms by name."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """Runs with the same values of the fields by which runs are compared.

    Attributes:
      name: the values, for tables and figures.
      values: the values, by field.
      runs: the runs, by their value of the field over which they are averaged.
    """

    name: str
    values: dict[str, str]
    runs: dict[Any, runs.Run]


def usable(every: Sequence[runs.Run], notes: Notes) -> list[runs.Run]:
    """Return the finished runs; name the others, and those that were resumed, in notes.

    Raises:
      ValueError: no run is finished.
    """
    unfinished = [run for run in every if run.steps < run.planned]
    for run in unfinished:
        notes[f"left out, at step {run.steps} of {run.planned}"].append(short(run, every))
    finished = [run for run in every if run.steps >= run.planned > 0]
    if not finished:
        least = min((run.steps for run in every), default=0)
        hint = f" --step {least} compares the runs as they were after step {least}." if least else ""
        raise ValueError(f"none of {len(every)} runs is finished.{hint}")
    for run in finished:
        if run.resumed:
            text = f"resumed at step {', '.join(map(str, run.resumed))}, so that the time includes several compilations"
            notes[text].append(run)
    return finished


def short(run: runs.Run, every: Sequence[runs.Run]) -> str:
    """Return the path of a run without what the paths of all runs begin with."""
    folders = {os.path.dirname(other.path) for other in every}
    common = "" if any("://" in folder for folder in folders) else os.path.commonpath(folders)
    return os.path.relpath(run.path, common) if common else run.path


def differing(every: Sequence[runs.Run]) -> list[str]:
    """Return the fields whose values are not the same in all runs."""
    fields = dict.fromkeys(field for run in every for field in run.fields)
    return [field for field in fields if len({written(run.value(field)) for run in every}) > 1]


def written(value: Any) -> str:
    """Return the value of a field as text."""
    return value if isinstance(value, str) else "-" if value is None else json.dumps(value)


def inferred(every: Sequence[runs.Run], over: str) -> list[str]:
    """Return the fewest fields that separate what the config separates, apart from ``over`` and neutral fields."""
    by: list[str] = []
    for field in differing(every):
        if field not in (over, "task") and not field.startswith(NEUTRAL) and not over.startswith(f"{field}."):
            more = [*by, field]
            if len(_grouped(every, more)) > len(_grouped(every, by)):
                by = more
    return by


def _grouped(every: Iterable[runs.Run], by: Sequence[str]) -> dict[tuple[str, ...], list[runs.Run]]:
    groups = collections.defaultdict(list)
    for run in every:
        groups[tuple(written(run.value(field)) for field in by)].append(run)
    return dict(groups)


def group(every: Sequence[runs.Run], by: Sequence[str], over: str, notes: Notes) -> list[Arm]:
    """Group runs into arms, in the order of the runs, or of the values if these are numbers.

    Raises:
      ValueError: an unknown field, runs of several tasks, or two runs of an arm with the same value of ``over``.
    """
    for field in (*by, over):
        if not any(run.value(field) is not None for run in every):
            known = sorted({name for run in every for name in run.fields})
            hint = messages.hint(field, known)
            raise ValueError(f"{field}: no run has this field, nor a call with this argument.{hint}")
    if over in by:
        raise ValueError(f"{over}: is both in --by and --over.")
    _check_tasks(every, by)
    groups = list(_grouped(every, by).items())
    arms = [Arm(_name(by, values), dict(zip(by, values, strict=True)), {}) for values, _ in groups]
    for arm, (_, members) in zip(arms, groups, strict=True):
        for run in members:
            value = run.value(over)
            first = arm.runs.setdefault(tuple(value) if isinstance(value, list) else value, run)
            if first is not run:
                _refuse(first, run, arm, over)
        held = [field for field in differing(members) if not over.startswith(f"{field}.")]
        others = [field for field in held if field not in (over, "name", *by)]
        if others:
            notes[f"the runs differ in {', '.join(others)} as well as in {over}"].append(arm.name)
    with contextlib.suppress(ValueError):  # values that are not numbers
        arms.sort(key=lambda arm: [float(value) for value in arm.values.values()])
    return arms


def _name(by: Sequence[str], values: Sequence[str]) -> str:
    last = collections.Counter(field.rpartition(".")[2] for field in by)
    labels = [field.rpartition(".")[2] if last[field.rpartition(".")[2]] == 1 else field for field in by]
    parts = [value if "(" in value else f"{label}={value}" for label, value in zip(labels, values, strict=True)]
    return ", ".join(parts) or "all runs"


def _check_tasks(every: Sequence[runs.Run], by: Sequence[str]) -> None:
    tasks = _grouped(every, ["task"])
    if len(tasks) > 1 and not any(field.partition(".")[0] == "task" for field in by):
        examples = "; ".join(f"{values[0]} ({short(members[0], every)})" for values, members in tasks.items())
        raise ValueError(f"the runs have {len(tasks)} tasks: {examples}. Compare runs of one, or add --by task.")


def _refuse(first: runs.Run, second: runs.Run, arm: Arm, over: str) -> None:
    fields = differing([first, second])
    what = f"They differ in {', '.join(fields)}: add it to --by." if fields else "Their configs are equal: give one."
    value = written(first.value(over))
    raise ValueError(f"{first.path} and {second.path} are both {over}={value} of {arm.name!r}. {what}")
