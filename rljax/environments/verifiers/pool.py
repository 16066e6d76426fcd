"""Host rewards in parallel: worker processes with a time limit for each completion.

Each worker is a new interpreter (not a fork of a process that runs jax, and it does not rerun the main script), served
by one thread of this process over a pipe. A worker answers item by item, so the limit applies to each item, although
items are sent in chunks. A worker that hangs or dies is replaced, and its unanswered items return to the queue.
"""

import contextlib
import copy
import dataclasses
import functools
import math
import pickle
import queue
import threading
import time
import traceback
import types as python_types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from rljax import types
from rljax.environments.verifiers import process, worker

_CHUNK = 32  # the most items that are sent together
_DEATHS = 2  # workers that may die while scoring one item
_POLL = 0.2  # seconds between calls of ``interrupted`` while the caller waits
_GRACE = 5.0  # seconds that the caller still waits once ``interrupted`` is true


class VerifierError(RuntimeError):
    """Completions cannot be scored: workers cannot be started, or every score crashed."""


class Interrupted(Exception):
    """The process was asked to stop while the caller waited for scores."""


@dataclasses.dataclass(frozen=True)
class Scored:
    """The scores of the submitted rows, in their order. NumPy arrays."""

    reward: np.ndarray  # [B] float32; 0 in rows without a score
    outcome: np.ndarray  # [B] int32, a types.Outcome
    parts: dict[str, np.ndarray]  # [B] float32 each; 0 in rows without this part
    errors: list[tuple[int, str]]  # row and traceback, of rows that crashed or timed out

    def verdict(self) -> types.Verdict:
        """Return the record that rollouts carry."""
        record: Any = types.Verdict  # its fields are annotated as jax arrays
        return record(reward=self.reward, outcome=self.outcome, parts=dict(self.parts))


def judged(reward: float, outcome: str, threshold: float) -> types.Outcome:
    """Return the outcome that a reward function returned, or else ("") the one that follows from the reward.

    Args:
      reward: that of the completion.
      outcome: lower-case name, or "".
      threshold: smallest reward of a correct completion; 0: exactly 1.
    """
    if threshold and outcome in ("", "unjudged"):
        return types.Outcome.CORRECT if reward >= threshold else types.Outcome.WRONG
    if outcome:
        return types.Outcome[outcome.upper()]
    if reward == 1:
        return types.Outcome.CORRECT
    return types.Outcome.WRONG if reward <= 0 else types.Outcome.UNJUDGED


class Pending:
    """Scores being computed; ``Verifiers.submit`` returns one."""

    def __init__(self, count: int, parts: Sequence[str], pool: "Verifiers"):
        """Expect ``count`` answers."""
        self._pool = pool
        self._parts = tuple(parts)
        self._answers: list[worker.Answer | None] = [None] * count
        self._left = count
        self._closed = False
        self._changed = threading.Condition()

    def done(self) -> bool:
        """Return whether every row has been scored."""
        return self._left == 0

    def result(self) -> Scored:
        """Wait until every row has been scored.

        Raises:
          RuntimeError: the pool was closed first.
          Interrupted: the process was asked to stop.
        """
        with self._pool.waiting(), self._changed:
            while not self._changed.wait_for(lambda: self._left == 0 or self._closed, _POLL):
                self._pool.check()
            answers = [answer for answer in self._answers if answer is not None]
        if len(answers) < len(self._answers):
            raise RuntimeError(
                f"the verifiers were closed with {len(self._answers) - len(answers)} of {len(self._answers)}"
                " completions not yet scored"
            )
        names = dict.fromkeys([*self._parts, *(name for answer in answers for name in answer.parts)])
        return Scored(
            reward=np.array([answer.reward for answer in answers], np.float32),
            outcome=np.array([self._pool.outcome(answer) for answer in answers], np.int32),
            parts={n: np.array([answer.parts.get(n, 0.0) for answer in answers], np.float32) for n in names},
            errors=[(row, a.error) for row, a in enumerate(answers) if a.outcome in worker.FAILURES],
        )

    def _put(self, row: int, answer: worker.Answer) -> None:
        with self._changed:
            if self._answers[row] is None:
                self._answers[row] = answer
                self._left -= 1
            if self._left == 0:
                self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclasses.dataclass(frozen=True)
class _Item:
    """A row to be scored, or the rows of a group."""

    pending: Pending
    rows: Sequence[int]
    payload: bytes  # pickled (texts, target, columns)
    deaths: int = 0  # workers that died while scoring it

    def put(self, answers: Sequence[worker.Answer]) -> None:
        """Store the answer of each row."""
        for row, answer in zip(self.rows, answers, strict=True):
            self.pending._put(row, answer)

    def fail(self, outcome: str, reason: str) -> None:
        """Store the same failure for all rows."""
        self.put([worker.failure(outcome, reason)] * len(self.rows))


def await_start(started: "queue.SimpleQueue[Exception | None]", count: int, owner: str) -> None:
    """Wait until ``count`` workers of ``owner`` have put None into a queue.

    Raises:
      VerifierError: a worker could not be started.
      Exception: any other error that a worker has put there.
    """
    for _ in range(count):
        error = started.get()
        if isinstance(error, process.WorkerError):
            raise VerifierError(f"no worker of the {owner} could be started: {error}") from error
        if error is not None:
            raise error


class Verifiers:
    """Score completions with a Python reward function in worker processes; a context manager.

    Every submitted completion gets an answer. One whose reward raises, returns something other than finite numbers,
    or ends its worker twice is ``CRASHED``; one that runs longer than ``timeout`` seconds is ``TIMED_OUT``. A worker
    ends with all processes it started. If a worker is killed from outside, it is replaced and its completion is scored
    once more, so a reward function should have no side effects. A reward that judges a group of completions
    (``worker.grouped``) is called once for each group: a crash, a time-out and the limit concern the whole group.
    """

    def __init__(
        self,
        reward: worker.Reward,
        workers: int = 2,
        timeout: float = 5.0,
        parts: Sequence[str] = (),
        memory: float = 0.0,
        interrupted: Callable[[], bool] = lambda: False,
        threshold: float = 0.0,
    ):
        """Check the arguments; ``with`` starts the workers.

        Args:
          reward: ``reward(completion, target, **columns)`` returns a finite number, or a mapping with ``"reward"``,
            optionally ``"outcome"``, and other named numbers; see ``worker.score``.
          workers: processes; 0 scores in this process when submitted, with no time limit, for debugging.
          timeout: seconds one completion may take.
          parts: names that the parts of every result include, even if no row returned them.
          memory: most GiB of address space of a worker; 0: no limit.
          interrupted: returns whether the process was asked to stop; then waiting ends with ``Interrupted``.
          threshold: smallest reward of a correct completion, where the reward function returns no outcome; 0: a reward
            of exactly 1 is correct, one of 0 or less is wrong, and any other is ``UNJUDGED``.

        Raises:
          ValueError: an argument is out of range, or a worker cannot import the reward function.
        """
        if workers < 0:
            raise ValueError(f"workers={workers}: must be 0 (score in this process) or more")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout={timeout}: must be a finite number of seconds above 0")
        if not (math.isfinite(memory) and memory >= 0):
            raise ValueError(f"memory={memory}: must be a finite number of GiB, or 0 (no limit)")
        self._reward, self._workers, self._timeout, self._parts = reward, workers, timeout, tuple(parts)
        self._memory, self._interrupted, self._deadline = int(memory * 2**30), interrupted, math.inf
        self._threshold, self.grouped = threshold, worker.grouped(reward)
        self._payload = pickled(reward) if workers else b""
        self._queue: queue.SimpleQueue[list[_Item] | None] = queue.SimpleQueue()
        self._started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._processes: list[process.Process] = []
        self._threads: list[threading.Thread] = []
        self._outstanding: list[Pending] = []
        self._open = False
        self.waited = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Add the time inside this context to ``waited``, the seconds that the caller has spent waiting for scores."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - began

    def outcome(self, answer: worker.Answer) -> types.Outcome:
        """Return the outcome that the reward function returned, or else the one that follows from the reward."""
        return judged(answer.reward, answer.outcome, self._threshold)

    def check(self) -> None:
        """Raise ``Interrupted`` if the process was asked to stop some seconds ago."""
        if self._interrupted():
            self._deadline = min(self._deadline, time.monotonic() + _GRACE)
            if time.monotonic() >= self._deadline:
                raise Interrupted("stopped while waiting for the verifier.")

    def __enter__(self) -> Self:
        """Start the workers and wait until each has imported the reward function.

        Raises:
          ValueError: the reward function cannot be imported in a worker.
          VerifierError: workers end while they start.
        """
        self._queue, self._started = queue.SimpleQueue(), queue.SimpleQueue()  # not those of an earlier `with` block
        self._processes = [process.Process(self._payload, self._memory) for _ in range(self._workers)]
        self._open = True
        try:
            for each in self._processes:
                thread = threading.Thread(target=self._serve, args=(each,), name="rljax-verifier", daemon=True)
                thread.start()
                self._threads.append(thread)
            await_start(self._started, len(self._processes), "verifier")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: python_types.TracebackType | None,
    ) -> None:
        """End the workers at once; results not yet scored raise in ``Pending.result``."""
        self._stop()

    def submit(
        self,
        texts: Sequence[str],
        targets: Sequence[Any],
        columns: Sequence[Mapping[str, Any]] | None = None,
        groups: Sequence[int] | None = None,
    ) -> Pending:
        """Start scoring ``texts[i]`` against ``targets[i]``; returns at once (with workers).

        Args:
          texts: B completions.
          targets: B expected answers.
          columns: B mappings of keyword arguments; None: none.
          groups: B numbers, equal for completions that a grouped reward judges together, against the target and the
            columns of the first; None: each is a group.

        Returns:
          The pending scores.

        Raises:
          ValueError: the arguments differ in length, or a target or column cannot be pickled.
          RuntimeError: outside the ``with`` block.
          Interrupted: without workers, the process was asked to stop.
        """
        if not self._open:
            raise RuntimeError("submit completions inside `with Verifiers(...) as verifiers:`")
        if len(texts) != len(targets):
            raise ValueError(f"got {len(texts)} texts and {len(targets)} targets: expected one target for each text")
        columns = [{}] * len(texts) if columns is None else columns
        together: dict[int, list[int]] = {}
        for row in range(len(texts)):
            together.setdefault(groups[row] if self.grouped and groups is not None else row, []).append(row)
        pending = Pending(len(texts), self._parts, self)
        if not self._workers:
            with self.waiting():
                for first, rows in ((rows[0], rows) for rows in together.values()):
                    self.check()
                    judged = [texts[row] for row in rows]
                    target, named = copy.deepcopy((targets[first], columns[first]))  # the reward may change them
                    answers = worker.score(self._reward, judged, target, named)
                    _Item(pending, rows, b"").put(answers)
            return pending
        items = []
        for rows in together.values():
            arguments = [texts[row] for row in rows], targets[rows[0]], columns[rows[0]]
            items.append(_Item(pending, rows, _pickle_item(rows[0], *arguments)))
        self._outstanding = [p for p in self._outstanding if not p.done()] + [pending]
        size = min(_CHUNK, max(1, len(items) // (4 * self._workers)))  # small enough to balance the workers
        for start in range(0, len(items), size):
            self._queue.put(items[start : start + size])
        return pending

    def _serve(self, worker_process: process.Process) -> None:
        """Feed one worker until the pool closes; each worker has a thread that runs this."""
        try:
            worker_process.ensure()
            self._started.put(None)
        except Exception as error:
            self._started.put(error)
            return
        while (items := self._queue.get()) is not None and self._open:
            try:
                unanswered = self._score(worker_process, items)
            except Exception as error:  # with the next items, starting a worker is tried again
                if not self._open:
                    return
                known = isinstance(error, (process.WorkerError, ValueError))
                reason = f"no worker could be started: {error}" if known else traceback.format_exc()
                for item in items:
                    item.fail("crashed", reason)
                continue
            if unanswered:
                self._queue.put(unanswered)

    def _score(self, worker_process: process.Process, items: list[_Item]) -> list[_Item]:
        """Score ``items`` in order; return those that a worker still has to score."""
        worker_process.ensure()
        for place, item in enumerate(items):
            decode = functools.partial(worker.decode, place=place, count=len(item.rows))
            try:
                if place == 0:
                    worker_process.send([(len(each.rows), each.payload) for each in items])
                item.put(worker_process.receive(decode, self._timeout))
            except TimeoutError:
                item.fail("timed_out", f"no score after {self._timeout:g} s; its worker was killed")
                return items[place + 1 :]
            except process.WorkerError as error:
                item = dataclasses.replace(item, deaths=item.deaths + 1)
                if not self._open or item.deaths < _DEATHS:
                    return [item, *items[place + 1 :]]
                item.fail("crashed", f"{error}, and so did the one before")
                return items[place + 1 :]
        return []

    def _stop(self) -> None:
        self._open = False
        for each in self._processes:
            each.close()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        for pending in self._outstanding:
            pending._close()
        for each in self._processes:
            each.kill()
        self._processes, self._threads, self._outstanding = [], [], []


def pickled(reward: Callable[..., Any], what: str = "reward") -> bytes:
    """Pickle a reward, or what ``what`` says, by its name, and check that a new interpreter can import it."""
    name = getattr(reward, "__qualname__", repr(reward))
    advice = "move it to the top level of a module, or use workers=0 to run it in this process"
    try:
        payload = pickle.dumps(reward)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"{what}: worker processes cannot import {name} ({error}); {advice}") from error
    if b"__main__" in payload:
        raise ValueError(
            f"{what}: worker processes cannot import {name}, which is defined in a notebook or in the script that"
            f" was started (__main__); {advice}"
        )
    return payload


def _pickle_item(row: int, texts: Sequence[str], target: Any, columns: Mapping[str, Any]) -> bytes:
    try:
        return pickle.dumps((texts, target, columns))
    except Exception as error:  # the class of the target may raise anything
        kind = type(target).__name__
        raise ValueError(f"targets[{row}] of type {kind} or its columns cannot be pickled: {error}") from error
