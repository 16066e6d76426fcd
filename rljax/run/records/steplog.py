"""An append-only file of JSON records, one per line, that a resumed run cuts back to its checkpoint."""

import json
import operator
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from rljax.data import storage

Record = dict[str, Any]
Path = str | os.PathLike[str]


class StepLog:
    """An append-only file of JSON records, one per line, each with an integer "step".

    A last line without a newline, left by a kill, is ignored by ``read`` and removed by the next ``append`` or ``cut``.
    Floats are written with enough digits to be read back exactly.
    """

    def __init__(self, path: Path):
        self._path = pathlib.Path(path)
        self._file: BinaryIO | None = None
        self._size = self._crc = 0  # of the complete lines, once the file is open

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record and pass it to the operating system.

        Raises:
          ValueError: no integer "step", or a value that is not JSON-able.
          OSError: the record was not written, for example because the disk is full; the file is as before.
        """
        # Lone surrogates are written as \\udcxx, the JSON escape.
        encoded = line(self._path.name, record).encode(errors="backslashreplace")
        file = self._file or self._open()
        rest = memoryview(encoded)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            file.truncate(self._size)  # a part of the line may be written
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._size, self._crc = self._size + len(encoded), zlib.crc32(encoded, self._crc)

    def _open(self) -> BinaryIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        complete = self._complete_lines()
        self._file = self._path.open("ab", buffering=0)
        self._file.truncate(len(complete))
        self._size, self._crc = len(complete), zlib.crc32(complete)
        return self._file

    def sync(self) -> tuple[int, int]:
        """Store the file on the disk; return its length in bytes and its CRC-32, (0, 0) if there is no file.

        Raises:
          OSError: the file was deleted or replaced while it was open, or cannot be stored.
        """
        if self._file is None and not self._path.exists():
            return 0, 0
        file = self._file or self._open()
        if not storage.is_at(file, self._path):
            raise OSError(f"{self._path} was deleted or replaced during the run; its last records are lost")
        os.fsync(file.fileno())
        return self._size, self._crc

    def check(self, size: int, crc: int, step: int) -> None:
        """Check that the file begins with what it contained when the checkpoint of ``step`` was saved.

        Args:
          size: length of the file then, bytes.
          crc: CRC-32 of the file then.
          step: the checkpoint's step, for the message.

        Raises:
          ValueError: the file is missing, shorter or changed.
        """
        content = self._complete_lines()
        if zlib.crc32(content[:size]) == crc and len(content) >= size:
            return
        difference = "it does not exist" if not self._path.exists() else f"{len(content):,} bytes, {size:,} then"
        raise ValueError(
            f"{self._path}: records from before the checkpoint of step {step} are missing or changed ({difference}). "
            "Restore the file from a copy, or continue without these records by --allow_log_gap."
        )

    def read(self) -> list[Record]:
        """Return all records in the order written; none if the file does not exist.

        Raises:
          ValueError: a complete line is not a record with an integer "step".
        """
        return records(self._path, self._complete_lines())

    def cut(self, step: int) -> None:
        """Atomically remove the records of steps after ``step``, and an incomplete last line."""
        self.close()
        complete = self._complete_lines()
        lines = zip(complete.split(b"\n"), records(self._path, complete), strict=False)
        content = b"".join(text + b"\n" for text, record in lines if record["step"] <= step)
        if self._path.exists() and len(content) < self._path.stat().st_size:
            storage.write(self._path, content)

    def close(self) -> None:
        """Close the file; a later append reopens it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _complete_lines(self) -> bytes:
        content = self._path.read_bytes() if self._path.exists() else b""
        return content[: content.rfind(b"\n") + 1]


def records(path: Path, content: bytes) -> list[Record]:
    """Parse the complete lines of a log.

    Args:
      path: the file, for error messages.
      content: its bytes.

    Returns:
      The records.

    Raises:
      ValueError: a line is not a record with an integer "step".
    """
    parsed: list[Record] = []
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            parsed.append(json.loads(text))
            operator.index(parsed[-1]["step"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: line {number} is not a record with a step: {text[:80]!r}") from error
    return parsed


def line(name: str, record: Mapping[str, Any]) -> str:
    """Return a record as a line of the log ``name``.

    Raises:
      ValueError: no integer "step", or a value that is not JSON-able.
    """
    try:
        operator.index(record["step"])
        return json.dumps(record, ensure_ascii=False, default=_plain) + "\n"
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: a record needs an integer 'step' and JSON-able values: {error!r}") from error


def _plain(value: Any) -> Any:
    """Convert an array to lists, or a NumPy or jax scalar to a number."""
    if hasattr(value, "dtype"):
        return np.asarray(value).tolist()
    raise TypeError(f"{value!r}")
