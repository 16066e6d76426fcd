"""What the host answered in a step, stored so that it can be replayed: scores of completions, answers of worlds."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from rljax import types
from rljax.host import processes
from rljax.run import programs
from rljax.run.records import metrics
from rljax.training.producers import segments


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of answer, and how its log writes it. Its place is the step, from 1, and the numbers of ``place``.

    Attributes:
      file: the log.
      place: names of the numbers after the step; a record that lacks one has 0.
      asked: name of the digest of what was asked.
      write: returns the other fields of the record of an answer.
      read: returns the answer that a record holds.
    """

    file: str
    place: tuple[str, ...]
    asked: str
    write: Callable[[Any], Mapping[str, Any]]
    read: Callable[[Mapping[str, Any]], Any]


def _scores(verdict: types.Verdict) -> dict[str, Any]:
    return {"reward": verdict.reward, "outcome": verdict.outcome, "parts": verdict.parts}


def _verdict(record: Mapping[str, Any]) -> types.Verdict:
    return types.Verdict(
        reward=jnp.asarray(record["reward"], jnp.float32),
        outcome=jnp.asarray(record["outcome"], jnp.int32),
        parts={k: jnp.asarray(v, jnp.float32) for k, v in record["parts"].items()},
    )


# A ``types.Verdict`` for each pass of a step, from 0. The digest is ``producers.verified.digest`` of its completions.
VERDICTS = Kind("verdicts.jsonl", ("pass",), "completions", _scores, _verdict)

# What a world said after each turn of an episode, from 0; -1 for the opening. "row" is the episode's number among those
# of the step, which with one seat is its row. The digest is of problem and turns so far; ``record`` takes a record of
# ``worlds.host.records`` and ``replay`` returns it as an object of JSON.
TURNS = Kind("turns.jsonl", ("row", "turn"), "text", lambda said: {"told": said.to_json()}, lambda r: r["told"])

KINDS = (VERDICTS, TURNS)


class Journal:
    """Stores and replays answers. Without a folder, nothing is stored.

    An answer is replayed only to what it answered, and for the same judge. Of several records of a place the last one
    counts. The leader writes the answers of all processes and broadcasts them when it reads them, so a run may be
    resumed with another number of processes.
    """

    def __init__(self, folder: metrics.Path | None = None, first: int = 0, judge: str = ""):
        """Read the records of steps after ``first``, which a resumed run repeats.

        Args:
          folder: of the logs; None on processes that do not lead, and where nothing is stored.
          first: the step of the checkpoint.
          judge: digest of what answers depend on, from ``judge``.
        """
        self._judge = judge
        self._logs = {} if folder is None else {kind.file: metrics.StepLog(f"{folder}/{kind.file}") for kind in KINDS}
        self._records: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = processes.from_leader(
            lambda: {
                (kind.file, (r["step"], *(r.get(name, 0) for name in kind.place))): r
                for kind in KINDS
                for r in (self._logs[kind.file].read() if self._logs else ())
                if r["step"] > first and r.get("judge") == judge
            }
        )

    def has(self, kind: Kind, place: tuple[int, ...]) -> bool:
        """Return whether there is an answer at a place, to whatever was asked."""
        return (kind.file, place) in self._records

    def replay(self, kind: Kind, place: tuple[int, ...], asked: str) -> Any:
        """Return the answer at a place; None if there is none, or one to something else.

        Args:
          kind: of the answer.
          place: the step, and the numbers of ``kind.place``.
          asked: digest of what was asked.
        """
        record = self._records.get((kind.file, place))
        return None if record is None or record[kind.asked] != asked else kind.read(record)

    def record(self, kind: Kind, place: tuple[int, ...], asked: str, answer: Any) -> None:
        """Store an answer; it is written and flushed when this returns.

        Args:
          kind: of the answer.
          place: the step, and the numbers of ``kind.place``.
          asked: digest of what was asked.
          answer: what ``kind.write`` takes.
        """
        if self._logs:
            numbers = dict(zip(("step", *kind.place), place, strict=True))
            self._logs[kind.file].append({**numbers, kind.asked: asked, "judge": self._judge, **kind.write(answer)})

    def sync(self) -> None:
        """Store the logs on the disk."""
        for log in self._logs.values():
            log.sync()

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()


def judge(program: programs.Program, code: Mapping[str, str]) -> str:
    """Return a digest of what answers depend on; answers of another digest are not replayed.

    Args:
      program: the run.
      code: digests of the modules outside rljax that the config reaches.
    """
    judges = [(p.settings.task, p.settings.verifier.threshold, p.settings.verifier.timeout) for p in program.phases]
    return hashlib.sha256(json.dumps([judges, code]).encode()).hexdigest()[:32]


def oldest(program: programs.Program, state: types.TrainState, step: int) -> int:
    """Return the number of updates before the oldest row in flight of a state began; ``step`` if there is none.

    Args:
      program: the run.
      state: after ``step`` updates.
      step: number of updates.
    """
    current = next((x for x in program.steps if x.setup.phase.first < step <= x.setup.phase.last), None)
    if current is None or not isinstance(current.producer, segments.Segments):
        return step
    flying = current.setup.algorithm.source.in_flight(state.pool)
    free, version = processes.fetch((flying["free"], flying["rows"].version))
    return min([step, *version[~free, 0].tolist()])
