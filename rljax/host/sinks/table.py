"""Comma-separated values: ``metrics.csv``, ``timings.csv`` and ``evaluations.csv``, one row for each record."""

import csv as values_separated_by_commas
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.data import storage
from rljax.host import sinks


@sinks.sink
def csv() -> sinks.Opener:
    """Write tables into the work directory; a number that a row lacks, as between phases, is an empty cell."""
    return _Tables


class _Tables(sinks.Sink):
    def __init__(self, run: sinks.Run):
        evaluations = [sinks.flat(record) for record in run.past["evaluations"]]
        rows: dict[sinks.Log, list[Mapping[str, Any]]] = {
            "metrics": [*run.past["metrics"]],
            "timings": [*run.past["timings"]],
            "evaluations": [{"step": step, "phase": name, **values} for step, name, values in evaluations],
        }
        self._tables = {log: _Table(run.folder / f"{log}.csv", past) for log, past in rows.items()}

    def scalars(self, log: sinks.Log, step: int, phase: str, values: Mapping[str, float]) -> None:
        self._tables[log].append({"step": step, "phase": phase, **values})


class _Table:
    """A file of rows; its columns grow with the names of the rows, for which the file is rewritten."""

    def __init__(self, path: pathlib.Path, rows: Sequence[Mapping[str, Any]]):
        self._path = path
        self._columns = [*dict.fromkeys(name for row in rows for name in row)] or ["step", "phase"]
        self._rewrite(rows)

    def append(self, row: Mapping[str, Any]) -> None:
        try:
            self._append(row)
        except FileNotFoundError as error:
            raise OSError(f"{self._path} was deleted or replaced during the run; its rows are lost") from error

    def _append(self, row: Mapping[str, Any]) -> None:
        added = [name for name in row if name not in self._columns]
        if added:
            with self._path.open(encoding="utf-8", newline="") as file:
                rows = [*values_separated_by_commas.DictReader(file)]
            self._columns += added
            self._rewrite([*rows, row])
        else:
            with self._path.open("r+", encoding="utf-8", newline="") as file:
                file.seek(0, io.SEEK_END)
                file.write(self._text([row]))

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        header = {name: name for name in self._columns}
        storage.write(self._path, self._text([header, *rows]).encode())

    def _text(self, rows: Sequence[Mapping[str, Any]]) -> str:
        out = io.StringIO()
        values_separated_by_commas.DictWriter(out, self._columns, lineterminator="\n").writerows(rows)
        return out.getvalue()
