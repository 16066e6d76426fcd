"""Runs that differ in their seed: ``python -m rljax --config CONFIG --seeds 0:4``.

The runs are processes, one after another, each with a work directory of its own. The same command resumes the run that
was interrupted and goes on with the next one.
"""

import dataclasses
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console

from rljax.config import schema
from rljax.data import storage
from rljax.language import messages
from rljax.run import sweep, terminal
from rljax.run.reports import intervals, runs, writing


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


def run(seeds: Sequence[int], config: schema.ConfigDict, workdir: str, words: Sequence[str], check: bool) -> None:
    """Run a config with each seed, print a table of the results and the command that compares the runs.

    Args:
      seeds: the seeds.
      config: the config.
      workdir: folder of the work directories.
      words: the command line of one run, without seed and work directory.
      check: whether the runs are only checked, so that there are no results.

    Raises:
      SystemExit: a run did not finish; with its exit code.
      ValueError: a run's config is invalid.
    """
    folders: dict[int, str] = {}
    for seed, one in zip(seeds, sweep.expand(sweep.grid({"seed": seeds}), config), strict=True):
        folders[seed] = f"{workdir.rstrip('/')}/{one.name}"
        arguments = ["--set", *one.settings, "--workdir", folders[seed], "--nonext"]
        print(f"seed {seed}, {len(folders)} of {len(seeds)}", flush=True)
        child = subprocess.Popen([sys.executable, "-m", "rljax", *words, *arguments])
        signal.signal(signal.SIGTERM, lambda *_, child=child: child.terminate())
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to the child too
        if code := child.wait():
            sys.exit(code if code > 0 else 128 - code)
    if not check:
        table({seed: evaluations(folder) for seed, folder in folders.items()})
        print(f"next: python -m rljax compare {shlex.quote(workdir)}")


def without(words: Sequence[str], *names: str) -> list[str]:
    """Return a command line without some flags and their values."""
    kept, skip = [], False
    for word in words:
        flag, equals, _ = word.lstrip("-").partition("=")
        named = word.startswith("-") and flag in names
        if not named and not skip:
            kept.append(word)
        skip = named and not equals
    return kept


def evaluations(workdir: str) -> dict[str, Mapping[str, Any]]:
    """Return the last evaluation of each name in a work directory."""
    path = storage.path(workdir) / "evaluations.jsonl"
    return {record["name"]: record for record in runs.log(path)}


def table(results: Mapping[int, Mapping[str, Any]], console: rich.console.Console | None = None) -> None:
    """Print pass@1 and greedy accuracy of each seed, and their means with the intervals of ``compare``.

    Args:
      results: evaluations by name, of each seed.
      console: where to print; standard output by default.
    """
    names = list(dict.fromkeys(name for records in results.values() for name in records if name != "training"))
    columns = {}
    for name in names:
        records = [records[name] for records in results.values() if name in records]
        columns[f"{name}\npass@1"] = [record["pass_at_k"]["1"][0] for record in records]
        columns[f"{name}\ngreedy"] = [record["greedy"][0] for record in records]
    rows = [
        [str(seed), *(f"{100 * x:.1f}" for x in row)] for seed, *row in zip(results, *columns.values(), strict=True)
    ]
    rows.append(["mean", *map(_mean, columns.values())])
    title = "held-out accuracy, %; mean [95 % interval over seeds]"
    terminal.show(console or terminal.console(), ["seed", *columns], rows, title=title)


def _mean(values: Sequence[float]) -> str:
    row = {"quantity": "accuracy", **dataclasses.asdict(intervals.mean(values, unit=True))}
    return f"{writing.mean(row)} {writing.interval(row)}".rstrip()
