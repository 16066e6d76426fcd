"""Rows of a user's files: read whole, checked strictly, then a sequence of plain Python dictionaries.

``read`` is the entry point. Every row knows its file and line, which messages name.

================  ====================================================================================
``files.py``      which files a path, a pattern or a folder means, and their format
``text.py``       jsonl, JSON lists, both also compressed by gzip; array_record files of JSON objects
``arrow.py``      parquet files, Arrow files, folders written by ``save_to_disk`` (Hugging Face)
``prepared.py``   data sets that tfds has prepared
``prepare.py``    rows of any source as one array_record file
``exchanges.py``  shapes of rows: demonstrations, preference pairs, conversations with a world
================  ====================================================================================
"""

import bisect
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rljax.data import storage
from rljax.data.rows import files
from rljax.data.rows.files import digest as digest
from rljax.language import messages, parse


class Part(Protocol):
    """The rows of one file or split."""

    _name: str  # of the file, for messages

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row."""
        ...

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield all rows."""
        return (self[index] for index in range(len(self)))

    def where(self, index: int) -> str:
        """Return the place of a row: "train.jsonl:17" (line 17), "train.parquet[16]" (row 16, from 0)."""
        return f"{self._name}[{index}]"

    def columns(self) -> Mapping[str, int]:
        """Return for each column how many rows have a value, null excluded."""
        ...


class Rows(Sequence[Mapping[str, Any]]):
    """The rows of all files in their order. Not every row needs to have every column."""

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._ends = list(itertools.accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._ends[-1]

    def __getitem__(self, index: Any) -> Any:
        """Return a row; a slice gives a list."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        part, rest = self._part(index)
        return part[rest]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield all rows, faster than by index."""
        return itertools.chain.from_iterable(self._parts)

    def where(self, index: int) -> str:
        """Return the place of a row: "train.jsonl:17" (line 17), "train.parquet[16]" (row 16, from 0)."""
        part, rest = self._part(index)
        return part.where(rest)

    def columns(self) -> dict[str, int]:
        """Return for each column how many rows have a value, null excluded."""
        counts: dict[str, int] = {}
        for part in self._parts:
            for name, count in part.columns().items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def require(self, names: Iterable[str]) -> None:
        """Check that every row has a value in each of these columns.

        Raises:
          ValueError: names the first row that lacks one, how many do, and the nearest column.
        """
        counts = self.columns()
        for name in names:
            if (count := counts.get(name, 0)) < len(self):
                first = next(i for i, row in enumerate(self) if row.get(name) is None)
                lacking = "no row has it" if not count else f"{len(self) - count:,} of {len(self):,} rows lack it"
                raise ValueError(
                    f"{self.where(first)}: no value in column {name!r} ({lacking}).{parse.nearest(name, counts)}"
                )

    def _part(self, index: int) -> tuple[Part, int]:
        index = index + len(self) if index < 0 else index
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._ends, index)
        return self._parts[number], index - (self._ends[number - 1] if number else 0)


def read(path: storage.Path | Sequence[storage.Path], format: str = "") -> Rows:
    """Read and check the rows of files.

    Args:
      path: a file, a pattern such as "data/train-*.parquet", a folder of files or of one data set, "tfds:NAME/SPLIT",
        or several of these; local or gs://.
      format: one of ``files.FORMATS``; "": by the name of the file, or by what is in the folder.

    Returns:
      The rows, in the order of the paths; the files of a pattern or folder in the order of their names.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a file is damaged or has no rows, a row is not an object; names the file and the line.
    """
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    parts = [part for file in files.expand(path, format) for part in _open(*file)]
    if not sum(map(len, parts)):
        raise ValueError(f"{path if isinstance(path, str) else messages.shown(path)}: no rows")
    return Rows(parts)


def _open(file: str, format: str) -> Sequence[Part]:
    if format in ("parquet", "arrow"):
        from rljax.data.rows import arrow  # here: pyarrow is an extra

        return arrow.read(file, format)
    if format == "npz":
        raise ValueError(f"{file}: a store of another kind of rows: .npz files are steps of control worlds")
    if format == "tfds":
        from rljax.data.rows import prepared  # here: tfds takes half a second

        return [prepared.read(file)]
    from rljax.data.rows import text

    return [text.read(file, format)]
