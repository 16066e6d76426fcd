"""Metrics: show the metrics of a run by phase.

python -m rljax metrics DIR [NAME ...]          a table; a NAME may be a pattern such as 'loss/*'
python -m rljax metrics DIR [NAME ...] --csv    every step, as comma-separated values
python -m rljax metrics --glossary              unit, meaning and bad values of every metric
"""

import csv
import fnmatch
import sys
from collections.abc import Sequence
from typing import TextIO

import rich.console
from absl import flags

from rljax.run.records import glossary
from rljax.run.reports import runs
from rljax.run.reports.pages import tables, terminal

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


def chosen(records: Sequence[runs.Record], patterns: Sequence[str]) -> list[str]:
    """Return the names of metrics that match any of the patterns, all without a pattern; sorted.

    Raises:
      ValueError: a pattern matches none.
    """
    present = runs.numbers(records)
    for pattern in patterns:
        if not fnmatch.filter(present, pattern):
            from rljax.language import parse  # imports JAX, which the table does without

            raise ValueError(f"no metric {pattern!r}.{parse.nearest(pattern, present)}")
    return [name for name in present if not patterns or any(fnmatch.fnmatchcase(name, p) for p in patterns)]


def table(records: Sequence[runs.Record], names: Sequence[str], console: rich.console.Console) -> None:
    """Print first and last values of metrics by phase; where there is room, also their range and a small curve."""
    columns = ["metric", "first", "last", "last tenth", "smallest", "largest", ""]
    for phase, rows in runs.by_phase(records).items():
        lines = [[name, *shown, spark(values).ljust(_WIDTH)] for name, values, shown in runs.courses(rows, names)]
        title = f"{phase}: steps {rows[0]['step']} to {rows[-1]['step']}"
        whole = tables.Table(columns, lines, title)
        narrow = tables.Table(columns[:4], [line[:4] for line in lines], title)
        (whole if whole.fits(console) else narrow).show(console)


def spark(values: Sequence[float]) -> str:
    """Return a curve of block characters, of the means of adjacent values."""
    return "".join(_BLOCKS[round(y)] for y in runs.heights(values, _WIDTH, len(_BLOCKS) - 1))


def values(records: Sequence[runs.Record], names: Sequence[str], file: TextIO) -> None:
    """Write the metrics of every step as comma-separated values."""
    writer = csv.DictWriter(file, ["step", "phase", *names], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_bool("glossary", False, "Explain every metric: unit, meaning, and what a bad value means.")
    flags.DEFINE_bool("csv", False, "Print every step as comma-separated values.")


def main(argv: Sequence[str]) -> None:
    """Show the metrics of a work directory."""
    if flags.FLAGS.glossary:
        glossary.show()
        return
    if len(argv) < 2:
        raise ValueError("expected a work directory, and optionally names of metrics")
    records = runs.records(argv[1], "metrics")
    names = chosen(records, argv[2:])
    if flags.FLAGS.csv:
        values(records, names, sys.stdout)
    else:
        table(records, names, terminal.console())
