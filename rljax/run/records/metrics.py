"""The logs of a run: metrics, timings, evaluations, sampled rollouts, warnings.

Each log is a ``steplog.StepLog``: one JSON record per line, each with a step, so that a resumed run can truncate the
log to its checkpoint. Only ``timings.jsonl`` and what sinks write hold wall-clock values: equal runs write equal bytes.
Log the records of step k and call ``Logger.sync`` before saving the checkpoint of step k; otherwise a kill between the
two loses them. The checkpoint stores what ``sync`` returns, the length and checksum of each log, so that a resumed run
notices if a log was changed.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rljax.host import sinks
from rljax.run.records.steplog import Path, Record, StepLog, line


def _number(name: str, value: Any) -> int | float:
    array = np.asarray(value)
    number = array.item() if array.size == 1 else None
    if not isinstance(number, int | float):
        raise ValueError(f"{name}: got {value!r}, must be one number")
    return number


class Logger:
    """The logs of a run, in memory (``history``, ``evaluations``) and, with a directory, in files.

    The files are ``metrics.jsonl`` with {"step", "phase", metrics by name}, ``timings.jsonl`` with wall-clock values in
    the same form, ``evaluations.jsonl`` and ``rollouts.jsonl``; sinks receive the same records.

    Args:
      directory: the directory of the files; None writes none and opens no sink.
      openers: of the sinks, see ``sinks.build``.
      name: the run's name, for sinks.
      settings: the run's settings by dotted name, for sinks.
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
        openers: Sequence[sinks.Opener] = (),
        name: str = "",
        settings: Mapping[str, Any] | None = None,
        resume_step: int | None = None,
        written: Mapping[str, tuple[int, int]] | None = None,
    ):
        self.history: list[Record] = []
        self.evaluations: list[Record] = []
        self._logs: dict[str, StepLog] = {}
        self._sinks: list[sinks.Sink] = []
        if directory is None:
            return
        last = -1 if resume_step is None else resume_step
        for log in ("metrics", "timings", "evaluations", "rollouts"):
            self._logs[log] = StepLog(pathlib.Path(directory) / f"{log}.jsonl")
            if written is not None and log in written:
                self._logs[log].check(*written[log], last)
        for log in self._logs.values():  # after all checks: an error leaves the files as they are
            log.cut(last)
        self.sync()  # opens the files: from here on it notices if one is deleted
        self.history = self._logs["metrics"].read()
        self.evaluations = self._logs["evaluations"].read()
        pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
        past: dict[sinks.Log, list[Record]] = {
            "metrics": self.history,
            "timings": self._logs["timings"].read(),
            "evaluations": self.evaluations,
        }
        run = sinks.Run(pathlib.Path(directory), name or pathlib.Path(directory).name, last + 1, settings or {}, past)
        self._sinks = [opener(run) for opener in openers]

    def sync(self) -> dict[str, tuple[int, int]]:
        """Store the logs on the disk; return the length and CRC-32 of each, by name.

        Raises:
          OSError: a log was deleted or replaced while it was open, or cannot be stored.
        """
        for sink in self._sinks:
            sink.flush()
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
            self._scalars("timings", step, phase, timings, [])

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Write the record of an evaluation, as returned by ``evaluate.evaluate``."""
        self.evaluations.append(json.loads(line("evaluations.jsonl", record)))
        self._append("evaluations", record)
        for sink in self._sinks:
            sink.scalars("evaluations", *sinks.flat(self.evaluations[-1]))

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write sampled rollouts, each with "step", "prompt", "completion" and "reward".

        ``reports.records`` writes more about each.
        """
        for record in rows:
            self._append("rollouts", record)
        for sink in self._sinks if rows else ():
            sink.rollouts(rows)

    def picture(self, path: pathlib.Path, step: int) -> None:
        """Give a PNG file, named after what it shows, to the sinks."""
        for sink in self._sinks:
            sink.picture(path, step)

    def close(self) -> None:
        """Close the files."""
        for file in (*self._logs.values(), *self._sinks):
            file.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if name in self._logs:
            self._logs[name].append(record)

    def _scalars(self, name: sinks.Log, step: int, phase: str, values: Mapping[str, Any], memory: list[Record]) -> None:
        if reserved := values.keys() & {"step", "phase"}:
            raise ValueError(f"{name}: {sorted(reserved)} is reserved; use another name")
        numbers = {key: _number(key, values[key]) for key in sorted(values)}
        record = {"step": int(step), "phase": phase, **numbers}
        memory.append(record)
        self._append(name, record)
        for sink in self._sinks:
            sink.scalars(name, step, phase, numbers)
