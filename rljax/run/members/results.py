"""The table of the results of several runs."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console

from rljax.run.evaluation import intervals
from rljax.run.reports.comparison import quantities, writing
from rljax.run.reports.pages import tables


def table(
    results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], console: rich.console.Console | None = None
) -> None:
    """Print pass@1 and greedy accuracy of each run, and their means with the intervals of ``compare``.

    Runs that differ in more than their seed have a row for each combination of the other fields.

    Args:
      results: the fields of each run, and its evaluations by name.
      console: where to print; standard output by default.
    """
    groups: dict[str, list[int]] = collections.defaultdict(list)
    for number, (set_, _) in enumerate(results):
        groups[", ".join(f"{field}={value}" for field, value in set_.items() if field != "seed")].append(number)
    names = list(dict.fromkeys(name for _, records in results for name in records if name != "training"))
    columns: dict[str, list[intervals.Prompts | None]] = {}
    for name in names:
        records = [records.get(name) for _, records in results]
        for quantity in ("pass@1", "greedy"):
            columns[f"{name}\n{quantity}"] = [None if r is None else quantities.evaluated(r, quantity) for r in records]
    rows = [[label, *(_mean([x[n] for n in numbers]) for x in columns.values())] for label, numbers in groups.items()]
    if len(groups) == 1:
        seeds = [str(set_.get("seed", "")) for set_, _ in results]
        each = [[seed, *(_mean([x[n]]) for x in columns.values())] for n, seed in enumerate(seeds)]
        rows = [*each, ["mean", *rows[0][1:]]]
    title = "held-out accuracy, %; mean [95 % interval over seeds and prompts]"
    tables.Table(["seed" if len(groups) == 1 else "fields", *columns], rows, title).show(console)


def _mean(values: Sequence[intervals.Prompts | None]) -> str:
    known = [x for x in values if x is not None]
    if len(known) < 2:
        return "".join(f"{100 * x.mean:.1f}" for x in known)
    row = {"quantity": "accuracy", **dataclasses.asdict(quantities.mean(known, "seed", intervals.UNIT))}
    return f"{writing.mean(row)} {writing.interval(row)}".rstrip()
