"""The pool's side of a worker process of host worlds: which episodes it has instances of, and what it is asked."""

import collections
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from rljax.environments.verifiers import process
from rljax.environments.worlds.host import records, worker

_DEATHS = 2  # workers that may die while answering one turn

Turns = Sequence[tuple[str, records.Told]]
Judge = Callable[[Turns, records.Told], records.Told]


@dataclasses.dataclass
class Episode:
    """What is known of an episode."""

    number: int
    example: Any
    seeds: worker.Seeds
    begun: records.Begun | None = None
    turns: list[tuple[str, records.Told]] = dataclasses.field(default_factory=list)  # texts, and what was told
    waiting: bool = False  # a turn has been submitted and not been answered
    home: "Worker | None" = None  # where its instance is

    def over(self) -> bool:
        """Return whether no turn may follow."""
        return self.begun is None or not self.begun.valid or bool(self.turns and self.turns[-1][1].over)


@dataclasses.dataclass(frozen=True)
class Item:
    """Something to do for an episode."""

    kind: str  # "begin", "step" or "end"
    episode: Episode
    text: str = ""


@dataclasses.dataclass(eq=False)
class Worker:
    """A worker process and what waits for it. Only the thread that serves it calls its methods."""

    process: process.Process
    timeout: float
    judge: Judge
    items: collections.deque[Item] = dataclasses.field(default_factory=collections.deque)
    since: float = math.inf  # when it began what it does
    live: set[int] = dataclasses.field(default_factory=set)  # episodes that have an instance there
    starts: int = 0  # of the process, when ``live`` was last right
    serial: int = 0

    def run(self, item: Item) -> Any:
        """Return the record that answers an item; None for one of kind "end".

        Raises:
          ValueError: the process had to be started again, and cannot import the class.
        """
        reason = ""
        for _ in range(_DEATHS):
            try:
                self.process.ensure()
                return self._try(item)
            except TimeoutError as error:
                return failure(item, "timed_out", str(error))
            except process.WorkerError as error:
                reason = str(error)
        return failure(item, "crashed", f"{reason}, and so did the one before")

    def _try(self, item: Item) -> Any:
        episode = item.episode
        if self.starts != self.process.starts:
            self.starts, self.live = self.process.starts, set()
        known = episode.number in self.live
        if item.kind == "end":
            self.live.discard(episode.number)
            return self.call("end", episode.number) if known else None
        self.live.add(episode.number)
        if item.kind == "begin":
            return self.call("begin", episode.number, episode.example, episode.seeds)
        if not known and (wrong := rebuild(episode, self.call, self.judge)) is not None:
            return wrong
        return self.call("step", episode.number, len(episode.turns), item.text)

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the record that a method of ``worker.Instances`` returns.

        Raises:
          TimeoutError: it took longer than ``timeout`` seconds, and its process was killed.
          WorkerError: its process ended.
        """
        self.serial += 1
        called = worker.CALLED[method]
        try:
            self.process.send((self.serial, method, arguments))
            return self.process.receive(functools.partial(_decode, serial=self.serial, method=method), self.timeout)
        except TimeoutError:
            reason = f"{called}: no answer after {self.timeout:g} s (verifier.timeout); its worker was killed"
            raise TimeoutError(reason) from None
        except process.WorkerError as error:
            raise process.WorkerError(f"{called}: {error}") from error


def rebuild(episode: Episode, call: Callable[..., Any], judge: Judge) -> records.Told | None:
    """Bring a new instance to where an episode is.

    Args:
      episode: its turns so far must give the answers that they gave before.
      call: calls a method of ``worker.Instances``.
      judge: adds the outcome to an answer.

    Returns:
      None, or the failure of the next turn.
    """
    reason = "in another process the world gave another answer to the same turns"
    begun = call("begin", episode.number, episode.example, episode.seeds)
    if begun != episode.begun:
        return records.failed("crashed", f"{begun.error or 'reset'}: {reason}")
    for number, (text, reply) in enumerate(episode.turns):
        again = judge(episode.turns[:number], call("step", episode.number, number, text))
        if again != reply:
            return records.failed("crashed", f"{again.error or f'turn {number}'}: {reason}")
    return None


def failure(item: Item, outcome: str, reason: str) -> Any:
    """Return the record of an item that failed; None for one of kind "end"."""
    return {"begin": records.begun, "step": records.failed}.get(item.kind, lambda *_: None)(outcome, reason)


def _decode(line: bytes, serial: int, method: str) -> Any:
    """Return the record of a line that ``worker.serve`` wrote; other lines raise an error."""
    written, record = json.loads(line)
    if written != serial:
        raise ValueError("not the expected answer")
    kinds = {"begin": records.Begun, "step": records.Told, "end": None}
    kind = kinds.get(method, records.Value)
    return None if kind is None else kind.from_json(record)
