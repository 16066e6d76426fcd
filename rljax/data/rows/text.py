"""Rows in JSON: one object in each line or record, or a list of objects."""

import gzip
import io
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rljax import data
from rljax.data import documents, storage
from rljax.data import rows as rows_lib
from rljax.language import messages

LARGEST = 8 << 30  # bytes of a file, uncompressed; it is kept in memory
MOST_ROWS = 10_000_000  # of a file whose rows may be repeated by compression; a question takes about 1 kB

_BATCH = 1024  # records that are read at once


class Lines(rows_lib.Part):
    """Objects as JSON text, checked at once and parsed when they are read.

    Args:
      name: of the file, for messages.
      content: the text of all objects.
      spans: ``[N, 2]``, start and end of each object in ``content``.
      lines: ``[N]``, the line of each object, from 1; None: they are records without lines.
    """

    def __init__(self, name: str, content: bytes, spans: np.ndarray, lines: np.ndarray | None):
        self._name, self._content, self._spans, self._lines = name, content, spans, lines
        self._columns = _count(self)

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> dict[str, Any]:
        start, end = self._spans[index]
        return documents.parse_object(self._content[start:end], self.where(index))

    def where(self, index: int) -> str:
        """Return the file and the line of a row, or its number."""
        return super().where(index) if self._lines is None else f"{self._name}:{self._lines[index]}"

    def columns(self) -> Mapping[str, int]:
        """Return for each column how many rows have a value."""
        return self._columns


class Listed(rows_lib.Part):
    """Objects of a JSON list."""

    def __init__(self, name: str, rows: Any):
        self._name, self._rows = name, rows
        if not isinstance(rows, list):
            raise ValueError(f"{name}: {documents.kind(rows)}, expected a list of objects, or an object in each line")
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                raise ValueError(f"{self.where(index)}: {documents.kind(row)}, expected an object")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]

    def columns(self) -> Mapping[str, int]:
        """Return for each column how many rows have a value."""
        return _count(self._rows)


def _count(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        for column, value in row.items():
            counts[column] = counts.get(column, 0) + (value is not None)
    return counts


def read(file: str, format: str) -> Lines | Listed:
    """Return the rows of a file in JSON, which may be compressed by gzip, or of an array_record file."""
    if format == "array_record":
        return _records(file)
    content = documents.content(file, LARGEST)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(LARGEST + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{file}: a damaged gzip file: {error}") from error
        if len(content) > LARGEST:
            raise ValueError(f"{file}: more than {LARGEST:,} bytes uncompressed")
    if format == "json" and content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
        return Listed(file, documents.parse(content, file))
    ends = np.append(np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n")), len(content))
    spans = np.stack([np.append(0, ends[:-1] + 1), ends], axis=1)
    full = np.array([not content[start:end].isspace() and end > start for start, end in spans], bool)
    return Lines(file, content, spans[full], np.flatnonzero(full) + 1)


def _records(file: str) -> Lines:
    from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue] (compiled)

    local = storage.stage(file, data.cache_folder()) if storage.remote(file) else file
    records: list[bytes] = []
    try:
        reader: Any = array_record_module.ArrayRecordReader(str(local))
        count, size = reader.num_records(), documents.size(local)
        for start in range(0, count, _BATCH):
            records += reader.read(start, min(start + _BATCH, count))
            size += sum(map(len, records[start:]))
            if size > LARGEST:
                break
        reader.close()
    except (RuntimeError, ValueError, IndexError) as error:
        raise ValueError(f"{file}: not an array_record file: {messages.shown(str(error))}") from error
    if size > LARGEST:
        raise ValueError(f"{file}: more than {LARGEST:,} bytes uncompressed")
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    return Lines(file, b"".join(records), np.stack([ends - [len(r) for r in records], ends], axis=1), None)
