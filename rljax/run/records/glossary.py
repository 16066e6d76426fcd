"""The glossary: unit, meaning and bad values of everything that a run logs as a number.

    python -m rljax metrics --glossary

Metrics of a critic or a reward model have the name of the module before them: ``value/loss``. A piece of one's own
names its metrics ``own/...`` and explains them in its docstring; tests/run/records/test_watch.py refuses other names.

The entries are in glossary.txt: two lines for each metric, then for each timing, then for each number of an evaluation.
"""

import pathlib
import re
from collections.abc import Iterable
from typing import NamedTuple

import rich.console

from rljax.run.reports.pages import tables


class Entry(NamedTuple):
    """What a number means."""

    name: str  # a name that ends in * stands for all names that begin so
    unit: str
    meaning: str
    bad: str  # what a bad value means


def _entries(text: str) -> tuple[Entry, ...]:
    """Parse two lines for each entry: "name [unit] meaning", and what a bad value means."""
    lines = text.strip().splitlines()
    heads = (re.fullmatch(r"(\S+) \[(.+?)\] (.+)", head) for head in lines[::2])
    return tuple(
        Entry(head[1], head[2], head[3], bad.strip()) for head, bad in zip(heads, lines[1::2], strict=True) if head
    )


METRICS, TIMINGS, EVALUATIONS = map(
    _entries, pathlib.Path(__file__).with_name("glossary.txt").read_text().split("\n\n")
)


def lookup(name: str, entries: tuple[Entry, ...] = METRICS) -> Entry | None:
    """Return the entry of a name, or of the longest pattern that fits it; None if there is none."""
    module, slash, rest = name.partition("/")
    if slash and module in ("value", "value_2"):
        return lookup(rest, entries)
    fits = [e for e in entries if name == e.name or (e.name.endswith("*") and name.startswith(e.name[:-1]))]
    return max(fits, key=lambda e: len(e.name), default=None)


def missing(names: Iterable[str], entries: tuple[Entry, ...] = METRICS) -> list[str]:
    """Return the names without an entry, sorted."""
    return sorted(name for name in names if lookup(name, entries) is None)


def show(console: rich.console.Console | None = None) -> None:
    """Print the glossary."""
    titles = (("metrics.jsonl, every step", METRICS), ("timings.jsonl", TIMINGS), ("evaluations.jsonl", EVALUATIONS))
    for title, entries in titles:
        tables.Table(Entry._fields, entries, title, left=len(Entry._fields)).show(console)
