"""Columns of a row: found by name or path, checked with the place of the row, and put into formats."""

import dataclasses
import functools
import math
import string
from collections.abc import Mapping
from typing import Any

from rljax.language import messages, parse


@dataclasses.dataclass(frozen=True)
class Template:
    """A column, whose value may be anything, or a text with columns in braces.

    A column may be a path: ``reward_model.ground_truth`` is a member of an object, ``prompt.0.content`` of a list.
    """

    argument: str  # the argument of the task, for messages
    text: str

    @functools.cached_property
    def column(self) -> str:
        """The column, if there is nothing else; else ""."""
        if "{" not in self.text and "}" not in self.text:
            return self.text
        return self.pieces[0][1] or "" if len(self.pieces) == 1 and not self.pieces[0][0] else ""

    @functools.cached_property
    def pieces(self) -> list[tuple[str, str | None]]:
        """Texts, each with the column after it. ``{{`` and ``}}`` are braces.

        Raises:
          ValueError: a brace is not closed, or there is more than a column in braces.
        """
        shown = f"{self.argument}={messages.shown(self.text)}"
        try:
            parsed = list(string.Formatter().parse(self.text))
        except ValueError as error:
            raise ValueError(f"{shown}: {error}; write {{{{ for a brace") from None
        for _, name, form, conversion in parsed:
            if name == "" or form or conversion:
                raise ValueError(f"{shown}: only the name of a column may be in braces; write {{{{ for a brace")
        return [(text, name) for text, name, _, _ in parsed]

    def value(self, row: Mapping[str, Any], where: str) -> Any:
        """Return the value of the column, or the text.

        Raises:
          ValueError: the row has no such column, or its value in a text is not a text or a number.
        """
        if self.column:
            return find(row, self.column, where, self.argument)
        written = []
        for text, name in self.pieces:
            written += [text, "" if name is None else as_text(find(row, name, where, self.argument), name, where)]
        return "".join(written)

    def read(self, row: Mapping[str, Any], where: str, number: bool = True) -> str:
        """Return the value as a text.

        Args:
          row: a row.
          where: its place.
          number: whether a column alone may hold a number.

        Raises:
          ValueError: as ``value``, or it is not a text or a number, or it is empty.
        """
        value, name = self.value(row, where), self.column or self.text
        if not (number or isinstance(value, str)):
            raise ValueError(f"{where}: {name!r} ({self.argument}) is {messages.shown(value)}, expected a text")
        text = as_text(value, name, where)
        if not text.strip():
            raise ValueError(f"{where}: {name!r} ({self.argument}) is {text!r}, expected a text that is not empty")
        return text


def find(row: Mapping[str, Any], path: str, where: str, argument: str) -> Any:
    """Return the value at a column's name or path; ValueError if there is none, or null."""
    value: Any = row.get(path)
    if path not in row and "." in path:
        value = row
        for name in path.split("."):
            if isinstance(value, Mapping):
                value = value.get(name)
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = None
    if value is None:
        what = "is null" if path in row else "is missing"
        raise ValueError(f"{where}: column {path!r} ({argument}) {what}.{parse.nearest(path, map(str, row))}")
    return value


def as_text(value: Any, name: str, where: str) -> str:
    """Return a text unchanged, and a number as text, 27.0 as "27"; ValueError for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}: {name!r} is {messages.shown(value)}, expected a text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {name!r} is {value}, expected a text or a finite number")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)
