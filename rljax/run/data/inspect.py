"""Inspect data: columns, lengths in tokens, solutions that fail, duplicates, overlap with evaluation sets."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import rich.console

from rljax import environments
from rljax.data import overlap, rows
from rljax.language import messages, parse
from rljax.run.data import subjects
from rljax.run.producers import references, verified
from rljax.run.reports.pages import tables

_QUANTILES = {"shortest": 0, "median": 50, "95 %": 95, "99 %": 99, "longest": 100}
_PROMPTS = ("prompt", "question", "problem", "Question", "Problem")  # usual names of the column of the prompts


class Texts(NamedTuple):
    """Prompts with their places."""

    text: Sequence[str]
    where: Callable[[int], str]


def of_task(task: Any, split: str, most: int) -> Texts:
    """Return the first prompts of a split of a task."""
    texts = [task.text(index, split) for index in range(min(task.size(split), most))]
    questions = getattr(task, "sources", None)  # a task over rows knows where each is
    return Texts(texts, (lambda i: f"{split} {i}") if questions is None else (lambda i: questions[split][i].where))


def of_rows(name: str, source: rows.Rows, column: str) -> Texts:
    """Return the column of the prompts as texts."""
    columns = source.columns()
    column = column or next((c for c in _PROMPTS if c in columns), "")
    if column not in columns:
        raise ValueError(f"{name}: --column={column!r} is not a column.{parse.nearest(column, columns)}")
    return Texts([as_text(row.get(column)) for row in source], source.where)


def as_text(value: object) -> str:
    """Return a value as text; of messages, their contents."""
    if isinstance(value, list):
        return "\n".join(str(m.get("content", m)) if isinstance(m, dict) else str(m) for m in value)
    return "" if value is None else str(value)


def report(
    subject: str,
    console: rich.console.Console,
    *,
    changes: Sequence[str] = (),
    format: str = "",
    against: Sequence[str] = (),
    column: str = "",
    ngram: int = 13,
    most: int = 20_000,
    count: int = 3,
) -> None:
    """Print the tables of a config, a task or a file.

    Args:
      subject: the config, the task or the file.
      console: where to print.
      changes: "field=value" of the config.
      format: of a file, as in ``rows.read``.
      against: other evaluation sets, files or tasks.
      column: of the prompts in files; "": the first usual name.
      ngram: words of the n-grams that are compared.
      most: prompts of a split that are read.
      count: examples of duplicates and of overlap.
    """
    if subjects.names_config(subject):
        loaded = subjects.load(subject, changes)
        console.print(loaded.name)
        _lengths(console, loaded, most)
        _references(console, loaded)
        sets = {split: of_task(loaded.task, split, most) for split in subjects.splits(loaded.task)}
    else:
        source = rows.read(subject, format)
        _columns(console, subject, source)
        sets = {subject: of_rows(subject, source, column)}
    for other in against:
        if subjects.is_task(other):
            task = parse.one(other, parse.Registry("task", environments.TASKS), "--against")
            sets[other] = of_task(task, "heldout", most)
        else:
            sets[other] = of_rows(other, rows.read(other), column)
    for name, prompts in sets.items():
        _duplicates(console, name, prompts, count)
    first, *others = sets
    for other in others:
        _overlap(console, first, sets[first], other, sets[other], ngram, count)


def _columns(console: rich.console.Console, name: str, source: rows.Rows) -> None:
    kinds: dict[str, set[str]] = {}
    lengths: dict[str, list[int]] = {}
    for row in source:
        for column, value in row.items():
            if value is not None:
                kinds.setdefault(column, set()).add(type(value).__name__)
                lengths.setdefault(column, []).append(len(as_text(value)))
    console.print(f"{name}: {len(source):,} rows; lengths in characters")
    lines = [
        [column, " ".join(sorted(kinds.get(column, ()))), f"{count:,}", *_quantiles(lengths.get(column, [0]))]
        for column, count in source.columns().items()
    ]
    tables.Table(["column", "type", "rows with a value", *_QUANTILES], lines, left=2).show(console)


def _quantiles(lengths: Sequence[int]) -> list[str]:
    return [f"{value:,.0f}" for value in np.percentile(lengths, list(_QUANTILES.values()))]


def _lengths(console: rich.console.Console, subject: subjects.Subject, most: int) -> None:
    """Print the lengths of prompts and demonstrations in tokens, and how many do not fit."""
    task = subject.task
    lines = []
    for split in subjects.splits(task):
        prompts, demonstrations = subjects.lengths(subject, split, most)
        of = {"prompts": (prompts, task.prompt_length), "demonstrations": (demonstrations, task.completion_length)}
        for name, (counts, limit) in of.items():
            if counts:
                over = sum(count > limit for count in counts) if limit else 0
                shown = [f"{len(counts):,}", *_quantiles(counts), f"{limit:,}" if limit else "none"]
                lines.append([f"{split} {name}", *shown, _part(over, len(counts))])
    tables.Table(["tokens", "number", *_QUANTILES, "limit", "do not fit"], lines).show(console)


def _references(console: rich.console.Console, subject: subjects.Subject) -> None:
    """Print how many reference solutions the reward function finds correct, and which it does not."""
    if asked := references.solutions(subject.task):
        with verified.verifiers(subject.task, subject.verifier) as workers:
            console.print(str(references.tried(asked, workers)), markup=False)


def _part(count: int, total: int) -> str:
    return f"{count:,} ({count / max(total, 1):.1%})"


def _duplicates(console: rich.console.Console, name: str, prompts: Texts, count: int) -> None:
    pairs = overlap.duplicates(prompts.text)
    console.print(f"{name}: {_part(len(pairs), len(prompts.text))} prompts are equal to an earlier one")
    for first, later in pairs[:count]:
        console.print(f"  {prompts.where(first)} and {prompts.where(later)}: {messages.shown(prompts.text[first])}")


def _overlap(
    console: rich.console.Console,
    first: str,
    train: Texts,
    other: str,
    evaluation: Texts,
    n: int,
    count: int,
) -> None:
    total, result = len(evaluation.text), overlap.overlap(train.text, evaluation.text, n)
    console.print(
        f"{other} in {first}: {_part(result.equal, total)} prompts are equal to one in {first},"
        f" {_part(len(result.matches), total)} share {n} words in a row with one"
    )
    if result.common:
        console.print(f"  not counted: {result.common} sequences that more than 1 % of {first} have")
    for match in result.matches[:count]:
        text, place = evaluation.text[match.evaluation], evaluation.where(match.evaluation)
        console.print(f"  {match.share:.0%} of {place}: {messages.shown(text)}")
        console.print(f"    in {train.where(match.train)}: {messages.shown(train.text[match.train])}")
