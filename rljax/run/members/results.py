"""The table of the results of several runs."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console

from rljax.run.evaluation import intervals
from rljax.run.reports.comparison import quantities, writing
from rljax.run.reports.pages import tables

_Columns = dict[tuple[str, str], list[intervals.Prompts | None]]  # by evaluation and quantity


def table(
    results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], console: rich.console.Console | None = None
) -> None:
    """Print pass@1 and greedy accuracy of each run, and their means with the intervals of ``compare``.

    Runs of control worlds have returns too. Runs that differ in more than their seed have a row for each combination
    of the other fields.

    Args:
      results: the fields of each run, and its evaluations by name.
      console: where to print; standard output by default.
    """
    groups: dict[str, list[int]] = collections.defaultdict(list)
    for number, (set_, _) in enumerate(results):
        groups[", ".join(f"{field}={value}" for field, value in set_.items() if field != "seed")].append(number)
    names = list(dict.fromkeys(name for _, records in results for name in records if name != "training"))
    columns: _Columns = {}
    for name in names:
        records = [records.get(name) for _, records in results]
        for quantity in (*quantities.RETURNS, "pass@1", "greedy"):
            values = [None if r is None else quantities.evaluated(r, quantity) for r in records]
            if quantity not in quantities.RETURNS or any(values):
                columns[name, quantity] = values
    rows = [[label, *_means(columns, numbers)] for label, numbers in groups.items()]
    if len(groups) == 1:
        seeds = [str(set_.get("seed", "")) for set_, _ in results]
        each = [[seed, *_means(columns, [n])] for n, seed in enumerate(seeds)]
        rows = [*each, ["mean", *rows[0][1:]]]
    title = "held-out accuracy, %; mean [95 % interval over seeds and prompts]"
    heads = ["seed" if len(groups) == 1 else "fields", *map("\n".join, columns)]
    tables.Table(heads, rows, title).show(console)


def _means(columns: _Columns, runs: Sequence[int]) -> list[str]:
    return [_mean(quantity, [x[n] for n in runs]) for (_, quantity), x in columns.items()]


def _mean(quantity: str, values: Sequence[intervals.Prompts | None]) -> str:
    known = [x for x in values if x is not None]
    if len(known) < 2:
        return "".join(writing.number(quantity, x.mean) for x in known)
    row = {"quantity": quantity, **dataclasses.asdict(quantities.mean(known, "seed", quantities.bounds(quantity)))}
    return f"{writing.mean(row)} {writing.interval(row)}".rstrip()
