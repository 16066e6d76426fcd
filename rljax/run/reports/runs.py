"""Runs read from their work directories, on this machine or gs://."""

import ast
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rljax.data import documents, storage

Record = dict[str, Any]

_LARGEST = 4 << 30  # bytes of a log


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: its config, and its logs up to some step.

    Attributes:
      path: the work directory.
      fields: values of the config by dotted field; tuples are lists.
      planned: number of steps of all phases.
      history: the records of ``metrics.jsonl``.
      timings: the records of ``timings.jsonl``.
      evaluations: the records of ``evaluations.jsonl``.
      algorithm: the algorithm with every default filled in.
      starts: the steps at which the run was started; more than one if it was resumed.
    """

    path: str
    fields: Mapping[str, Any]
    planned: int
    history: Sequence[Record]
    timings: Sequence[Record]
    evaluations: Sequence[Record]
    algorithm: str
    starts: Sequence[int]

    @property
    def steps(self) -> int:
        """The last step with metrics."""
        return self.history[-1]["step"] if self.history else 0

    @property
    def seconds(self) -> float:
        """Wall time of steps and evaluations, without work that was lost by a kill."""
        return sum(r.get("seconds", 0.0) + r.get("evaluation", 0.0) for r in self.timings)

    @property
    def tokens(self) -> float:
        """Completion tokens of all steps."""
        return sum(r.get("seconds", 0.0) * r.get("tokens_per_second", 0.0) for r in self.timings)

    @property
    def final(self) -> Record | None:
        """The last evaluation."""
        return self.evaluations[-1] if self.evaluations else None

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
        logs = {
            name: [record for record in getattr(self, name) if record["step"] <= step]
            for name in ("history", "timings", "evaluations")
        }
        return dataclasses.replace(self, planned=step, **logs)


def load(path: str) -> Run:
    """Read a run.

    Raises:
      ValueError: a file is not what a run writes; the message names it.
    """
    names = storage.names(path)
    config = documents.read(f"{path}/config.json")
    text = functools.partial(_text, path, names)
    starts = [re.search(r"\.(\d+)$", name) for name in storage.names(f"{path}/tensorboard")]
    return Run(
        path=path,
        fields=dict(_flat(config)),
        planned=sum(config.get("phase", {}).get(name, {}).get("steps", 0) for name in config.get("phases", ())),
        **{
            key: _records(f"{path}/{name}.jsonl", text(f"{name}.jsonl"))
            for key, name in (("history", "metrics"), ("timings", "timings"), ("evaluations", "evaluations"))
        },
        algorithm=text("algorithm.txt"),
        starts=sorted({int(match[1]) for match in starts if match}),
    )


def _flat(value: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def _text(path: str, names: Sequence[str], name: str) -> str:
    return documents.content(f"{path}/{name}", _LARGEST).decode(errors="replace") if name in names else ""


def _records(path: str, text: str) -> list[Record]:
    """Return the records of the complete lines; a kill may leave an incomplete one."""
    records = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
            records.append({**record, "step": int(record["step"])})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: line {number} is not a record with a step: {line[:80]!r}") from error
    return records
