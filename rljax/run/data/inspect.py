"""Inspect data: columns, lengths in tokens, duplicates, overlap of the training split with evaluation sets."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import rich.console
from absl import flags

from rljax import environments
from rljax.data import overlap, rows
from rljax.language import messages, parse
from rljax.run.data import subjects

_QUANTILES = {"shortest": 0, "median": 50, "95 %": 95, "99 %": 99, "longest": 100}
_PROMPTS = ("prompt", "question", "problem", "Question", "Problem")  # usual names of the column of the prompts


class Texts(NamedTuple):
    """Prompts with their places."""

    text: Sequence[str]
    where: Callable[[int], str]


def main(subject: str) -> None:
    """Print the tables of a config, a task or a file."""
    f, console = flags.FLAGS, subjects.console()
    if f.config or subjects.names_config(subject):
        loaded = subjects.load(subject, f.set)
        console.print(loaded.name)
        _lengths(console, loaded)
        sets = {split: _prompts(loaded.task, split) for split in subjects.splits(loaded.task)}
    else:
        source = rows.read(subject, f.format)
        _columns(console, subject, source)
        sets = {subject: _column(subject, source)}
    sets.update((other, _other(other)) for other in f.against)
    for name, texts in sets.items():
        _duplicates(console, name, texts)
    first, *others = sets
    for other in others:
        _overlap(console, first, sets[first], other, sets[other])


def _prompts(task: Any, split: str) -> Texts:
    """Return the first prompts of a split of a task."""
    texts = [task.text(index, split) for index in range(min(task.size(split), flags.FLAGS.most))]
    questions = getattr(task, "sources", None)  # a task over rows knows where each is
    return Texts(texts, (lambda i: f"{split} {i}") if questions is None else (lambda i: questions[split][i].where))


def _other(name: str) -> Texts:
    """Return the prompts of an evaluation set: those of a file, or of the held-out split of a task."""
    if subjects.is_task(name):
        task = parse.one(name, parse.Registry("task", environments.TASKS), "--against")
        return _prompts(task, "heldout")
    return _column(name, rows.read(name))


def _column(name: str, source: rows.Rows) -> Texts:
    """Return the column of the prompts as texts."""
    columns = source.columns()
    column = flags.FLAGS.column or next((c for c in _PROMPTS if c in columns), "")
    if column not in columns:
        raise ValueError(f"{name}: --column={column!r} is not a column.{parse.nearest(column, columns)}")
    return Texts([_text(row.get(column)) for row in source], source.where)


def _text(value: object) -> str:
    """Return a value as text; of messages, their contents."""
    if isinstance(value, list):
        return "\n".join(str(m.get("content", m)) if isinstance(m, dict) else str(m) for m in value)
    return "" if value is None else str(value)


def _columns(console: rich.console.Console, name: str, source: rows.Rows) -> None:
    kinds: dict[str, set[str]] = {}
    lengths: dict[str, list[int]] = {}
    for row in source:
        for column, value in row.items():
            if value is not None:
                kinds.setdefault(column, set()).add(type(value).__name__)
                lengths.setdefault(column, []).append(len(_text(value)))
    console.print(f"{name}: {len(source):,} rows; lengths in characters")
    table = subjects.table(console, "column", "rows with a value", "type", *_QUANTILES)
    for column, count in source.columns().items():
        quantiles = _quantiles(lengths.get(column, [0]))
        table.add_row(column, f"{count:,}", " ".join(sorted(kinds.get(column, ()))), *quantiles)
    console.print(table)


def _quantiles(lengths: Sequence[int]) -> list[str]:
    return [f"{value:,.0f}" for value in np.percentile(lengths, list(_QUANTILES.values()))]


def _lengths(console: rich.console.Console, subject: subjects.Subject) -> None:
    """Print the lengths of prompts and demonstrations in tokens, and how many do not fit."""
    task = subject.task
    table = subjects.table(console, "tokens", "number", *_QUANTILES, "limit", "do not fit")
    for split in subjects.splits(task):
        limits = (task.prompt_length, task.completion_length)
        for name, counts, limit in zip(
            ("prompts", "demonstrations"), subjects.lengths(subject, split, flags.FLAGS.most), limits, strict=True
        ):
            if counts:
                over = sum(count > limit for count in counts) if limit else 0
                shown = [f"{len(counts):,}", *_quantiles(counts), f"{limit:,}" if limit else "none"]
                table.add_row(f"{split} {name}", *shown, _part(over, len(counts)))
    console.print(table)


def _part(count: int, total: int) -> str:
    return f"{count:,} ({count / max(total, 1):.1%})"


def _duplicates(console: rich.console.Console, name: str, texts: Texts) -> None:
    pairs = overlap.duplicates(texts.text)
    console.print(f"{name}: {_part(len(pairs), len(texts.text))} prompts are equal to an earlier one")
    for first, later in pairs[: flags.FLAGS.count]:
        console.print(f"  {texts.where(first)} and {texts.where(later)}: {messages.shown(texts.text[first])}")


def _overlap(console: rich.console.Console, first: str, train: Texts, other: str, evaluation: Texts) -> None:
    n, count = flags.FLAGS.ngram, len(evaluation.text)
    result = overlap.overlap(train.text, evaluation.text, n)
    console.print(
        f"{other} in {first}: {_part(result.equal, count)} prompts are equal to one in {first},"
        f" {_part(len(result.matches), count)} share {n} words in a row with one"
    )
    if result.common:
        console.print(f"  not counted: {result.common} sequences that more than 1 % of {first} have")
    for match in result.matches[: flags.FLAGS.count]:
        text, place = evaluation.text[match.evaluation], evaluation.where(match.evaluation)
        console.print(f"  {match.share:.0%} of {place}: {messages.shown(text)}")
        console.print(f"    in {train.where(match.train)}: {messages.shown(train.text[match.train])}")
