"""Rows that others write into a folder during the run: each step takes the next groups, and a record says which.

A step is a record of arrived.jsonl, {"step", "files": [{"file", "digest", "groups", "used", "late"}]}: for each file
that it has read, the SHA-256 of the content, the number of groups, those that it trains on and those that were too old.
"""

import dataclasses
import time
from typing import Any

import numpy as np

from rljax import types
from rljax.data import rows, storage, stored_groups
from rljax.environments.workers import pool
from rljax.host import processes, workdirs
from rljax.run import programs
from rljax.run.producers import from_files
from rljax.run.records import metrics
from rljax.training import steps
from rljax.training.producers import stored
from rljax.transforms.source import files

_POLL = 0.1  # seconds between two looks at the folder
_LOOK = 5.0  # seconds for which the other processes wait for the leader at once


class Arriving:
    """Rows of a folder. The leader reads them, and sends each step's groups to the other processes.

    Args:
      program: the run.
      step: the compiled functions of the phase.
      given: the producer of the phase, without rows.
      directory: the work directory, which records what each step has taken; None: the run cannot be resumed.
    """

    def __init__(
        self,
        program: programs.Program,
        step: steps.Step,
        given: stored.Stored,
        directory: workdirs.WorkDirectory | None,
    ):
        self.waited = 0.0
        self._program, self._step, self._given = program, step, given
        source: Any = step.setup.algorithm.source
        assert isinstance(source, files.Arriving)
        self._source = source
        self._log = None
        self._records: dict[int, list[dict[str, Any]]] = {}  # of each step
        if directory is not None and processes.leader():
            self._log = metrics.StepLog(directory.logs / "arrived.jsonl")
            self._records = {record["step"]: record["files"] for record in self._log.read()}
        self._known = {f["file"]: f for n in sorted(self._records) for f in self._records[n]}  # as last taken from
        self._open: dict[str, tuple[str, stored_groups.Groups]] = {}  # files that no step has used up
        self._news, self._seen = time.monotonic(), -1  # when there was last another number of groups

    def __call__(self, state: types.TrainState) -> types.Rollout:
        """Return the rows of the next step, sharded by row; waits for them.

        Raises:
          VerifierError: a file is damaged or changed, or no group has come for ``timeout`` seconds.
          Interrupted: the process received SIGTERM or Ctrl-C.
        """
        version, began = int(state.step), time.perf_counter()
        self._news, groups = time.monotonic(), None
        while groups is None:
            groups = processes.from_leader(lambda: self._look(version))
            if groups is None and processes.received():
                raise pool.Interrupted(f"stopped while step {version + 1} waited for rows in {self._source.file}")
        self.waited += time.perf_counter() - began
        if isinstance(groups, str):
            raise pool.VerifierError(f"step {version + 1}, {self._source.spec}: {groups}")
        drawn = processes.fetch(self._step.next_prompts(state, self._program.key))
        given = dataclasses.replace(self._given, groups=groups)
        return from_files.placed(self._program, given, drawn.position, np.arange(len(groups)))

    def _look(self, version: int) -> stored_groups.Groups | str | None:
        """Return the groups of the step after a version, or an error; None: too few have arrived."""
        until = time.monotonic() + _LOOK
        try:
            if version + 1 in self._records:
                records = self._records[version + 1]
                if (count := sum(len(record["used"]) for record in records)) != self._step.setup.drawn:
                    raise ValueError(f"arrived.jsonl has {count} groups of this step; start anew by --fresh")
                return self._taken(records, version)
            while (groups := self._take(version)) is None and time.monotonic() < until and not processes.received():
                if time.monotonic() - self._news > self._source.timeout:
                    need = self._step.setup.drawn
                    raise ValueError(
                        f"{self._source.file} has {self._seen} groups to take, and a step needs {need}; none has come "
                        f"for timeout={self._source.timeout:g} seconds"
                    )
                time.sleep(_POLL)
        except (ValueError, OSError) as error:
            return str(error)
        return groups

    def _take(self, version: int) -> stored_groups.Groups | None:
        """Return the next groups of the folder and record them; None if there are too few."""
        need, taken = self._step.setup.drawn, []
        for name in sorted(storage.names(storage.path(self._source.file))):
            path = f"{self._source.file.rstrip('/')}/{name}"
            known = self._known.get(path, {"used": [], "late": [], "groups": 0})
            first = max([-1, *known["used"], *known["late"]]) + 1
            if not name.endswith(".jsonl") or name.startswith(".") or 0 < known["groups"] == first:
                continue
            digest, groups = self._read(path, version)
            record = {"file": path, "digest": digest, "groups": len(groups), "used": [], "late": []}
            for number in range(first, len(groups)):
                late = 0 <= self._source.lag < version - int(groups.version[number].min())
                record["late" if late else "used"].append(number)
                need -= not late
                if not need:
                    break
            taken.append(record)
            if not need:
                return self._record(version + 1, taken)
        seen = sum(len(record["used"]) for record in taken)
        if seen != self._seen:
            self._seen, self._news = seen, time.monotonic()
        return None

    def _record(self, step: int, taken: list[dict[str, Any]]) -> stored_groups.Groups:
        """Record what a step takes, and return it."""
        if self._log is not None:
            self._log.append({"step": step, "files": taken})
            self._log.sync()
            self._log.close()
        self._known |= {record["file"]: record for record in taken}
        return self._taken(taken, step - 1)

    def _taken(self, records: list[dict[str, Any]], version: int) -> stored_groups.Groups:
        """Return the groups of a record; ValueError if a file is not there any more or has changed."""
        groups = [self._read(record["file"], version)[1].at(record["used"]) for record in records]
        for record in records:
            if max(record["used"] + record["late"]) + 1 == record["groups"]:
                self._open.pop(record["file"], None)
        return stored_groups.joined(groups, late=sum(len(record["late"]) for record in records))

    def _read(self, path: str, version: int) -> tuple[str, Any]:
        """Return the digest and the groups of a file."""
        if path not in self._open:
            digest, known, reader = rows.digest(path), self._known.get(path), self._given.groups.reader
            assert reader is not None
            if known is not None and known["digest"] != digest:
                raise ValueError(f"{path}: has changed since a step has taken rows of it; write others to a new file")
            self._open[path] = digest, dataclasses.replace(reader, newest=version).read(path)
        return self._open[path]
