"""The files of a work directory, read without JAX: what its reports are made of."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from rljax.data import documents, storage
from rljax.run import steplog

Record = dict[str, Any]
Path = str | os.PathLike[str]

LARGEST = 4 << 30  # bytes of a log
_LOGS = ("metrics", "timings", "evaluations", "rollouts", "events")


@dataclasses.dataclass(frozen=True)
class Directory:
    """What a run has written so far. What it has not written is empty."""

    place: str
    config: Record
    algorithm: str  # the text of algorithm.txt
    code: Record  # digests of the files outside rljax that the config reaches, by name
    metrics: list[Record]
    timings: list[Record]
    evaluations: list[Record]
    rollouts: list[Record]
    events: list[Record]

    @property
    def phases(self) -> list[tuple[str, int]]:
        """Name and last step of each phase."""
        ends, last = [], 0
        for name in self.config.get("phases", ()):
            last += int((self.config["phase"][name] or {}).get("steps") or 0)
            ends.append((name, last))
        return ends

    @property
    def steps(self) -> int:
        """Steps of the whole run; 0: the config does not say."""
        return self.phases[-1][1] if self.phases else 0

    @property
    def last(self) -> int:
        """The last step whose metrics are written."""
        return self.metrics[-1]["step"] if self.metrics else 0

    def of(self, event: str) -> list[Record]:
        """Return the events of a kind, such as "start"."""
        return [record for record in self.events if record.get("event") == event]

    def phase(self, step: int) -> str:
        """Return the name of the phase of a step, "" if it is not known."""
        return next((name for name, last in self.phases if step <= last), "")


def read(place: Path, logs: Path | None = None) -> Directory:
    """Read a work directory, local or gs://.

    Args:
      place: the work directory.
      logs: where its logs are, if they are not there: a run on gs:// appends to local ones.

    Returns:
      Its files.

    Raises:
      FileNotFoundError: there is no config.json.
      ValueError: a file is malformed; the message names it.
    """
    path = storage.path(place)
    if not storage.exists(path / "config.json"):
        raise FileNotFoundError(f"{path} is not the work directory of a run: it has no config.json")
    names = storage.names(path)
    code = documents.read(path / "code.json") if "code.json" in names else {}
    algorithm = documents.content(path / "algorithm.txt").decode(errors="replace") if "algorithm.txt" in names else ""
    found = {name: log(storage.path(logs or place) / f"{name}.jsonl") for name in _LOGS}
    return Directory(str(place), documents.read(path / "config.json"), algorithm, code, **found)


def log(path: storage.Path) -> list[Record]:
    """Return the records of a log, none if it does not exist.

    Raises:
      ValueError: a complete line is not a record with a step.
    """
    if not storage.exists(path):
        return []
    return steplog.records(os.fspath(path), documents.content(path, LARGEST))


def tail(records: Sequence[Record], name: str) -> float | None:
    """Return the mean of a metric over the last tenth of records that have it; None if none has."""
    values = [record[name] for record in records if name in record]
    return float(np.mean(values[-max(1, len(values) // 10) :])) if values else None
