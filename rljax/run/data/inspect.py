"""Inspect data: columns, lengths in tokens, duplicates, overlap of the training split with evaluation sets."""

from collections.abc import Mapping, Sequence

import numpy as np
import rich.console
from absl import flags

from rljax.data import overlap, rows
from rljax.language import messages, parse
from rljax.run.data import subjects

_QUANTILES = (0, 50, 95, 99, 100)
_PROMPTS = ("prompt", "question", "problem", "Question", "Problem")  # usual names of the column of the prompts


def main(subject: str) -> None:
    """Print the tables of a config, a task or a file."""
    f, console = flags.FLAGS, subjects.console()
    if subjects.is_task(subject) or f.config or subject.partition(":")[0].endswith(".py"):
        loaded = subjects.load(subject, f.set)
        sizes = {split: loaded.task.size(split) for split in ("train", "heldout")}
        console.print(f"{loaded.name}: " + ", ".join(f"{size:,} {split} prompts" for split, size in sizes.items()))
        _lengths(console, loaded, sizes)
        sets = {split: _texts(loaded, split) for split in sizes}
    else:
        source = rows.read(subject, f.format)
        _columns(console, subject, source)
        sets = {subject: _column(subject, source)}
    sets.update((other, _other(other)) for other in f.against)
    _duplicates(console, sets)
    first, *others = sets
    for other in others:
        _overlap(console, first, sets[first], other, sets[other])


def _texts(subject: subjects.Subject, split: str) -> list[str]:
    return [subject.task.text(index, split) for index in range(min(subject.task.size(split), flags.FLAGS.most))]


def _other(name: str) -> list[str]:
    """Return the prompts of an evaluation set: those of a file, or of the held-out split of a task."""
    if subjects.is_task(name):
        return _texts(subjects.load(name, []), "heldout")
    return _column(name, rows.read(name))


def _column(name: str, source: rows.Rows) -> list[str]:
    """Return the column of the prompts as texts."""
    columns = source.columns()
    column = flags.FLAGS.column or next((c for c in _PROMPTS if c in columns), "")
    if column not in columns:
        raise ValueError(f"{name}: --column={column!r} is not a column.{parse.nearest(column, columns)}")
    return [_text(row.get(column)) for row in source]


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
    table = subjects.table(console, f"{name}: {len(source):,} rows", "column", "rows with a value", "type", *_HEAD)
    for column, count in source.columns().items():
        quantiles = _quantiles(lengths.get(column, [0]))
        table.add_row(column, f"{count:,}", " ".join(sorted(kinds.get(column, ()))), *quantiles)
    console.print("lengths in characters", table, sep="\n")


_HEAD = ("shortest", "median", "95 %", "99 %", "longest")


def _quantiles(lengths: Sequence[int]) -> list[str]:
    return [f"{value:,.0f}" for value in np.percentile(lengths, _QUANTILES)]


def _lengths(console: rich.console.Console, subject: subjects.Subject, sizes: Mapping[str, int]) -> None:
    """Print the lengths of prompts and demonstrations in tokens, and how many do not fit."""
    task = subject.task
    table = subjects.table(console, "tokens", "", *_HEAD, "limit", "do not fit")
    for split in sizes:
        lengths = task.lengths(subject.tokenizer, split, flags.FLAGS.most)
        limits = (task.prompt_length, task.completion_length)
        for name, listed, limit in zip(("prompts", "demonstrations"), lengths, limits, strict=True):
            if len(listed):
                over = int(np.sum(np.asarray(listed) > limit))
                table.add_row(f"{split} {name}", *_quantiles(listed), f"{limit:,}", _part(over, len(listed)))
    console.print(table)


def _part(count: int, total: int) -> str:
    return f"{count:,} ({count / max(total, 1):.1%})"


def _duplicates(console: rich.console.Console, sets: Mapping[str, Sequence[str]]) -> None:
    for name, texts in sets.items():
        pairs = overlap.duplicates(texts)
        console.print(f"duplicates within {name}: {_part(len(pairs), len(texts))} prompts are equal to an earlier one")
        for first, later in pairs[: flags.FLAGS.count]:
            console.print(f"  {first} and {later}: {messages.shown(texts[first])}")


def _overlap(
    console: rich.console.Console, first: str, train: Sequence[str], other: str, evaluation: Sequence[str]
) -> None:
    n = flags.FLAGS.ngram
    result = overlap.overlap(train, evaluation, n)
    console.print(
        f"overlap of {other} with {first}: {_part(result.equal, len(evaluation))} prompts are equal,"
        f" {_part(len(result.matches), len(evaluation))} share {n} words in a row"
    )
    if result.common:
        console.print(f"  not counted: {result.common} n-grams that more than 1 % of the training prompts have")
    for match in result.matches[: flags.FLAGS.count]:
        console.print(
            f"  {match.share:.0%} of {other} {match.evaluation}: {messages.shown(evaluation[match.evaluation])}"
        )
        console.print(f"      in {first} {match.train}: {messages.shown(train[match.train])}")
