"""The prompts of a task or of a file, as texts with their places."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rljax.data import rows
from rljax.language import parse

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
