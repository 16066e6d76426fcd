"""The runs that ``--seeds`` and ``--sweep`` ask for, and the table of their results."""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console

from rljax.language import messages, parse
from rljax.run import intervals, sweep, terminal
from rljax.run.reports import quantities, writing


def read(text: str) -> list[int]:
    """Return the seeds of a text such as "0:4", which is 0 to 3, or "0,3,5".

    Raises:
      ValueError: another form, no seed, or a seed twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"\d+(:\d+)?", part):
            raise ValueError(f"--seeds={messages.shown(text)}: must be like 0:4, which is 0 to 3, or like 0,3,5.")
        first, colon, end = part.partition(":")
        seeds += range(int(first), int(end)) if colon else [int(first)]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds={messages.shown(text)}: {'a seed is given twice' if seeds else 'no seed'}.")
    return seeds


def fields(seeds: str, values: Sequence[str]) -> list[sweep.Fields]:
    """Return the fields of each run: every combination of seeds and values.

    Args:
      seeds: what ``read`` reads; "": the config's.
      values: of a field each, such as "algorithm.positive=[0.1, 0.3]".

    Returns:
      The runs; the last field changes fastest, and seeds change slowest.

    Raises:
      ValueError: a text of another form, no value, or a field or seed twice.
    """
    of: dict[str, Sequence[Any]] = {"seed": read(seeds)} if seeds else {}
    for text in values:
        field, several = parse.setting(text if "=" in text else f"{text}=")
        if not isinstance(several, list | tuple) or not several:
            raise ValueError(f"--sweep={messages.shown(text)}: must be FIELD=[VALUE, ...], with at least one value.")
        if field in of:
            raise ValueError(f"--sweep={messages.shown(text)}: {field} is given twice.")
        of[field] = several
    return sweep.grid(of)


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
    terminal.show(
        console or terminal.console(), ["seed" if len(groups) == 1 else "fields", *columns], rows, title=title
    )


def _mean(values: Sequence[intervals.Prompts | None]) -> str:
    known = [x for x in values if x is not None]
    if len(known) < 2:
        return "".join(f"{100 * x.mean:.1f}" for x in known)
    row = {"quantity": "accuracy", **dataclasses.asdict(quantities.mean(known, "seed", intervals.UNIT))}
    return f"{writing.mean(row)} {writing.interval(row)}".rstrip()
