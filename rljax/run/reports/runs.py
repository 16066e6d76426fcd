"""Runs read from their work directories, on this machine or gs://, also while they go."""

import ast
import dataclasses
import fnmatch
import functools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rljax.data import documents, storage
from rljax.run.records import steplog

Record = dict[str, Any]
Path = storage.Path

LOGS = ("metrics", "timings", "evaluations", "rollouts", "events")
_LARGEST = 4 << 30  # bytes of a log
_ROLLOUTS = 64 << 20  # bytes that are read of rollouts.jsonl: half of them from the end of a larger file
_CURVE = 2000  # steps of a curve, of which a figure shows fewer
_DEPTH = 4  # levels of folders in which runs are searched
_PATTERN = r"[*?\[]"


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run has written so far. What it has not written is empty.

    Attributes:
      path: the work directory.
      config: ``config.json``.
      algorithm: ``algorithm.txt``, the algorithm of each phase with every default filled in.
      code: digests of the files outside rljax that the config reaches, by name.
      metrics: the records of ``metrics.jsonl``; the next four are the records of the logs of their names.
      end: the step up to which the logs are given; None: all of them.
    """

    path: str
    config: Record
    algorithm: str = ""
    code: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metrics: Sequence[Record] = ()
    timings: Sequence[Record] = ()
    evaluations: Sequence[Record] = ()
    rollouts: Sequence[Record] = ()
    events: Sequence[Record] = ()
    end: int | None = None

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """The values of the config by dotted field; tuples are lists."""
        return dict(_flat(self.config))

    @property
    def phases(self) -> list[tuple[str, int]]:
        """Name and last step of each phase."""
        ends, last = [], 0
        for name in self.config.get("phases", ()):
            last += int(self.fields.get(f"phase.{name}.steps") or 0)
            ends.append((name, last))
        return ends

    @property
    def planned(self) -> int:
        """The number of steps of all phases, or ``end``; 0: the config does not say."""
        return self.end or (self.phases[-1][1] if self.phases else 0)

    @property
    def steps(self) -> int:
        """The last step with metrics."""
        return self.metrics[-1]["step"] if self.metrics else 0

    @functools.cached_property
    def history(self) -> list[Record]:
        """The metrics for curves: of more than ``_CURVE`` steps, means over 2, 4, 8, ... steps of a phase."""
        size = 1 << max(0, math.ceil(math.log2(max(len(self.metrics), 1) / _CURVE)))
        if size == 1:
            return list(self.metrics)
        parts = [rows[i : i + size] for rows in by_phase(self.metrics).values() for i in range(0, len(rows), size)]
        return [_mean(part) for part in parts]

    @property
    def resumed(self) -> list[int]:
        """The steps at which the run was resumed, each after steps of an earlier start."""
        first, *later = [record["step"] for record in self.of("start")] or [0]
        return sorted({step for step in later if first < step < self.planned})

    @property
    def seconds(self) -> float:
        """Wall time of steps, without work that was lost by a kill."""
        return sum(r.get("seconds", 0.0) for r in self.timings)

    @property
    def tokens(self) -> float:
        """Completion tokens of all steps."""
        return sum(r.get("seconds", 0.0) * r.get("tokens_per_second", 0.0) for r in self.timings)

    @property
    def final(self) -> Record | None:
        """The last evaluation."""
        return self.evaluations[-1] if self.evaluations else None

    def of(self, event: str) -> list[Record]:
        """Return the events of a kind, such as "start"."""
        return [record for record in self.events if record.get("event") == event]

    def phase(self, step: int) -> str:
        """Return the name of the phase of a step, "" if it is not known."""
        return next((name for name, last in self.phases if step <= last), "")

    def value(self, field: str) -> Any:
        """Return the value of a field, or of an argument of a call, such as ``algorithm.kl``; None if it is not set."""
        prefix, _, argument = field.rpartition(".")
        if field in self.fields or not isinstance(self.fields.get(prefix), str):
            return self.fields.get(field)
        try:
            call = ast.parse(self.fields[prefix], mode="eval").body
        except SyntaxError:
            return None
        arguments = call.keywords if isinstance(call, ast.Call) else []
        return next((ast.unparse(a.value) for a in arguments if a.arg == argument), None)

    def until(self, step: int) -> "Run":
        """Return the run as it was after a step."""
        logs = {name: [record for record in getattr(self, name) if record["step"] <= step] for name in LOGS}
        return dataclasses.replace(self, end=step, **logs)


def read(place: Path, logs: Path | None = None, names: Sequence[str] = LOGS) -> Run:
    """Read a run.

    Args:
      place: its work directory, local or gs://.
      logs: where its logs are, if they are elsewhere: a run on gs:// appends to local ones.
      names: the logs to read, of ``LOGS``.

    Returns:
      The run.

    Raises:
      FileNotFoundError: there is no config.json.
      ValueError: a file is malformed; the message names it.
    """
    path = storage.path(place)
    if not storage.exists(path / "config.json"):
        raise FileNotFoundError(f"{path} is not the work directory of a run: it has no config.json")
    present, folder = storage.names(path), storage.path(logs or place)
    limits = {name: _ROLLOUTS if name == "rollouts" else None for name in names}
    records: dict[str, Any] = {name: log(folder / f"{name}.jsonl", most) for name, most in limits.items()}
    return Run(
        path=os.fspath(path),
        config=documents.read(path / "config.json"),
        algorithm=storage.read(path / "algorithm.txt").decode(errors="replace") if "algorithm.txt" in present else "",
        code=documents.read(path / "code.json") if "code.json" in present else {},
        **records,
    )


def log(path: Path, most: int | None = None) -> list[Record]:
    """Return the records of a log, none if it does not exist.

    Args:
      path: the file.
      most: bytes that are read, half of them from its end; None: the whole file.

    Raises:
      ValueError: a complete line is not a record with a step.
    """
    if not storage.exists(path):
        return []
    size = documents.size(path)
    if most is None or size <= most:
        return steplog.records(os.fspath(path), documents.content(path, _LARGEST))
    first, last = storage.read(path, 0, most // 2), storage.read(path, size - most // 2, size)
    whole = first[: first.rfind(b"\n") + 1] + last.partition(b"\n")[2]
    return steplog.records(os.fspath(path), whole)


def records(place: Path, name: str) -> list[Record]:
    """Return the records of a log of a work directory, or of the file that ``place`` names.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is malformed.
    """
    path = storage.path(place)
    path = path / f"{name}.jsonl" if storage.is_dir(path) else path
    if not storage.exists(path):
        raise FileNotFoundError(f"no {name} in {path}")
    return log(path)


def by_phase(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the records of each phase, in order."""
    out: dict[str, list[Record]] = {}
    for record in records:
        out.setdefault(record.get("phase", ""), []).append(record)
    return out


def numbers(records: Iterable[Record]) -> list[str]:
    """Return the names of the numbers of records of metrics or timings, sorted."""
    return sorted({name for record in records for name in record} - {"step", "phase"})


def tail(records: Iterable[Record], name: str) -> Any:
    """Return the mean of a number over the last tenth of records that have it; None if none has."""
    values = [record[name] for record in records if name in record][::-1]
    last = values[: math.ceil(len(values) / 10)]
    return sum(last) / len(last) if last else None


def courses(records: Sequence[Record], names: Iterable[str]) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield each number that some records have: its name, its values, and what a table shows of them.

    Args:
      records: of a phase.
      names: of the numbers.

    Yields:
      The name, the values, and [first, last, mean of the last tenth, smallest, largest].
    """
    for name in names:
        if values := [float(record[name]) for record in records if name in record]:
            yield name, values, [values[0], values[-1], tail(records, name), min(values), max(values)]


def heights(values: Sequence[float], points: int, top: float) -> list[float]:
    """Return a small curve: means of adjacent finite values, at most ``points`` of them, scaled to 0 to ``top``."""
    finite = [value for value in values if math.isfinite(value)]
    parts = np.array_split(finite, min(points, len(finite))) if finite else []
    means = [float(np.mean(part)) for part in parts]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = top / (high - low) if high > low else 0.0
    return [scale * (y - low) for y in means]


def _mean(records: Sequence[Record]) -> Record:
    """Return the means of the finite numbers of records of a phase, at the step of the last one."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            if isinstance(value, int | float) and math.isfinite(value):
                values.setdefault(name, []).append(value)
    return {**records[-1], **{name: sum(v) / len(v) for name, v in values.items()}, "step": records[-1]["step"]}


def _flat(value: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def find(places: Iterable[Path]) -> list[str]:
    """Return the work directories among some folders and below them, in the order given.

    Args:
      places: work directories, folders of work directories, and patterns such as ``runs/*-seed=?``.

    Raises:
      ValueError: a place does not exist or has no run.
    """
    paths: dict[str, None] = {}
    for place in places:
        text = os.fspath(storage.path(place)).rstrip("/")
        matching = [text] if storage.exists(text) or not re.search(_PATTERN, text) else _expanded(text)
        runs = [run for folder in matching for run in _below(folder, _DEPTH)]
        if not runs:
            missing = not matching or not any(storage.exists(folder) for folder in matching)
            problem = "no such folder" if missing else "no run: no folder with a config.json here"
            raise ValueError(f"{os.fspath(place)}: {problem}.")
        paths.update(dict.fromkeys(runs))
    return list(paths)


def _expanded(pattern: str) -> list[str]:
    scheme, separator, rest = pattern.partition("://")
    parts = rest.split("/") if separator else pattern.split("/")
    folders = [f"{scheme}://{parts[0]}"] if separator else [parts[0] or "/"]
    for part in parts[1:]:
        fixed = not re.search(_PATTERN, part)
        folders = [
            f"{folder.rstrip('/')}/{name}"
            for folder in folders
            for name in ([part] if fixed else fnmatch.filter(storage.names(folder), part))
        ]
    return folders


def _below(folder: str, depth: int) -> list[str]:
    names = storage.names(folder) if storage.is_dir(folder) else []
    if "config.json" in names:
        return [folder]
    inner = [name for name in names if depth > 1 and not re.search(r"\.old-\d+$", name)]
    return [run for name in inner for run in _below(f"{folder}/{name}", depth - 1)]
