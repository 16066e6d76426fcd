"""The logs of a run: metrics, timings, evaluations, sampled rollouts.

Each log is an append-only file with one JSON record per line. Every record has a step, so that a resumed run can
truncate the log to its checkpoint. Only ``timings.jsonl`` and the TensorBoard events hold wall-clock values: equal runs
write equal bytes. Log the records of step k and call ``Logger.sync`` before saving the checkpoint of step k; otherwise
a kill between the two loses them. The checkpoint stores what ``sync`` returns, the length and checksum of each log, so
that a resumed run notices if a log was changed.
"""

import contextlib
import json
import operator
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
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
        line = _line(self._path.name, record).encode(errors="backslashreplace")
        file = self._file or self._open()
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            file.truncate(self._size)  # a part of the line may be written
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._size, self._crc = self._size + len(line), zlib.crc32(line, self._crc)

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
        content = b"".join(line + b"\n" for line, record in lines if record["step"] <= step)
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
    """Parse the complete lines of a log."""
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            records.append(json.loads(line))
            operator.index(records[-1]["step"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: line {number} is not a record with a step: {line[:80]!r}") from error
    return records


def _line(name: str, record: Mapping[str, Any]) -> str:
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


def _number(name: str, value: Any) -> int | float:
    array = np.asarray(value)
    number = array.item() if array.size == 1 else None
    if not isinstance(number, int | float):
        raise ValueError(f"{name}: got {value!r}, must be one number")
    return number


class _Events:
    """A file of TensorBoard events, written by the calling thread.

    The thread of tensorboardX's own writer dies of the first error, for example of a full disk; the writer's queue
    then fills up, and the run blocks.
    """

    def __init__(self, folder: pathlib.Path, step: int):
        # imported only if used, as the package imports torch if that is installed
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2

        proto: Any = event_pb2  # generated code
        self._event, self._summary = proto.Event, summary
        self._folder, self._flushed = folder, 0.0
        folder.mkdir(parents=True, exist_ok=True)
        # without the step, two files of the same second would have the same name
        self._file = event_file_writer.EventsWriter(str(folder / "events"), f".{step}")
        start = proto.SessionLog(status=proto.SessionLog.START)  # hides earlier events from this step on
        self._file.write_event(self._event(step=step, wall_time=time.time(), session_log=start))

    def add(self, name: str, value: float, step: int) -> None:
        """Write a scalar; the file is flushed at most every two seconds."""
        summary = self._summary.scalar(name, value)
        self._do(self._file.write_event, self._event(step=step, wall_time=time.time(), summary=summary))
        if time.monotonic() > self._flushed + 2:
            self.flush()

    def flush(self) -> None:
        """Store the events on the disk."""
        self._flushed = time.monotonic()
        self._do(self._file.flush)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # raised by ``flush`` before
            self._file.close()

    def _do(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder)) from error


class Logger:
    """The logs of a run, in memory (``history``, ``evaluations``) and, with a directory, in files.

    The files are ``metrics.jsonl`` with {"step", "phase", metrics by name}, ``timings.jsonl`` with wall-clock values in
    the same form, ``evaluations.jsonl``, ``rollouts.jsonl``, and TensorBoard events under ``tensorboard/``.

    Args:
      directory: the directory of the files; None writes none.
      tensorboard: whether to write TensorBoard events.
      resume_step: the step after which the run continues; later records are removed and earlier ones read. None starts
        a new run and removes all records.
      written: what ``sync`` returned before the checkpoint of ``resume_step`` was saved; None: nothing is checked.

    Raises:
      ValueError: a log was changed since then.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        tensorboard: bool = True,
        resume_step: int | None = None,
        written: Mapping[str, tuple[int, int]] | None = None,
    ):
        self.history: list[Record] = []
        self.evaluations: list[Record] = []
        self._logs: dict[str, StepLog] = {}
        self._board: Any = None
        if directory is None:
            return
        last = -1 if resume_step is None else resume_step
        for name in ("metrics", "timings", "evaluations", "rollouts"):
            self._logs[name] = StepLog(pathlib.Path(directory) / f"{name}.jsonl")
            if written is not None and name in written:
                self._logs[name].check(*written[name], last)
        for log in self._logs.values():  # after all checks: an error leaves the files as they are
            log.cut(last)
        self.sync()  # opens the files: from here on it notices if one is deleted
        self.history = self._logs["metrics"].read()
        self.evaluations = self._logs["evaluations"].read()
        if tensorboard:
            self._board = _Events(pathlib.Path(directory) / "tensorboard", last + 1)

    def sync(self) -> dict[str, tuple[int, int]]:
        """Store the logs on the disk; return the length and CRC-32 of each, by name.

        Raises:
          OSError: a log was deleted or replaced while it was open, or cannot be stored.
        """
        if self._board is not None:
            self._board.flush()
        return {name: log.sync() for name, log in self._logs.items()}

    def step(
        self, step: int, phase: str, values: Mapping[str, Any], timings: Mapping[str, float] | None = None
    ) -> None:
        """Write the metrics of a step, sorted by name, and its timings.

        Args:
          step: the step, from 1.
          phase: the name of its phase.
          values: metrics by name, each one number.
          timings: seconds or rates by name.

        Raises:
          ValueError: a metric that is not one number, or is named "step" or "phase".
        """
        self._scalars("metrics", step, phase, values, self.history)
        if timings:
            self._scalars("timings", step, phase, timings, [], prefix="time/")

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Write the record of an evaluation, as returned by ``evaluate.evaluate``."""
        self.evaluations.append(json.loads(_line("evaluations.jsonl", record)))
        self._append("evaluations", record)
        if self._board is not None:
            for k, row in record.get("pass_at_k", {}).items():
                self._board.add(f"evaluation/pass_at_{k}", row[0], record["step"])
            if "greedy" in record:
                self._board.add("evaluation/greedy", record["greedy"][0], record["step"])

    def rollouts(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write sampled rollouts, each with "step", "prompt", "completion" and "reward".

        ``reports.records`` writes more about each.
        """
        for record in records:
            self._append("rollouts", record)

    def close(self) -> None:
        """Close the files."""
        for file in (*self._logs.values(), *([self._board] if self._board is not None else [])):
            file.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if name in self._logs:
            self._logs[name].append(record)

    def _scalars(
        self, name: str, step: int, phase: str, values: Mapping[str, Any], memory: list[Record], prefix: str = ""
    ) -> None:
        if reserved := values.keys() & {"step", "phase"}:
            raise ValueError(f"{name}: {sorted(reserved)} is reserved; use another name")
        numbers = {key: _number(key, values[key]) for key in sorted(values)}
        record = {"step": int(step), "phase": phase, **numbers}
        memory.append(record)
        self._append(name, record)
        if self._board is not None:
            for key, value in numbers.items():
                self._board.add(prefix + key, value, step)
