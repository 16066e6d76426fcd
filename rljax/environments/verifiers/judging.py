"""Completions scored by a Python reward function in worker processes, each within a limit of time."""

import contextlib
import copy
import dataclasses
import functools
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from rljax import types
from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import outcomes
from rljax.environments.workers import pool, process

_LIMITS = VerifierConfig()
_TOGETHER = 32  # the most items that a worker is sent at once
_POLL = 0.2  # seconds between calls of ``interrupted`` while the caller waits
_GRACE = 5.0  # seconds that the caller still waits once ``interrupted`` is true


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
      reward: the completion's.
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
        self._answers: list[outcomes.Answer | None] = [None] * count
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
            errors=[(row, a.error) for row, a in enumerate(answers) if a.outcome in outcomes.FAILURES],
        )

    def _put(self, rows: Sequence[int], answers: Sequence[outcomes.Answer]) -> None:
        with self._changed:
            for row, answer in zip(rows, answers, strict=True):
                if self._answers[row] is None:
                    self._answers[row] = answer
                    self._left -= 1
            if self._left == 0:
                self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclasses.dataclass(eq=False)
class _Item(pool.Item):
    """A row to be scored, or the rows of a group."""

    pending: Pending
    rows: Sequence[int]
    arguments: tuple[Any, ...] | bytes  # of ``Scorer.score``

    def calls(self, place: pool.Place) -> Sequence[process.Call]:
        return [process.Call("score", self.arguments, functools.partial(outcomes.decode, count=len(self.rows)))]

    def put(self, replies: Sequence[process.Reply]) -> None:
        (reply,) = replies
        failed = [outcomes.failure(reply.outcome, reply.error)] * len(self.rows)
        self.pending._put(self.rows, failed if reply.outcome else reply.value)


class Verifiers:
    """Score completions with a Python reward function in worker processes; a context manager.

    Every submitted completion gets an answer. One whose reward raises, returns something other than finite numbers,
    or ends its worker twice is ``CRASHED``; one that runs longer than ``timeout`` seconds is ``TIMED_OUT``. A worker
    ends with all processes it started. If a worker is killed from outside, it is replaced and its completion is scored
    once more, so a reward function should have no side effects. A reward that judges a group of completions
    (``outcomes.grouped``) is called once for each group: a crash, a time-out and the limit concern the whole group.
    """

    def __init__(
        self,
        reward: outcomes.Reward,
        limits: VerifierConfig = _LIMITS,
        parts: Sequence[str] = (),
        interrupted: Callable[[], bool] = lambda: False,
    ):
        """Take the reward; ``with`` starts the workers.

        Args:
          reward: ``reward(completion, target, **columns)`` returns a finite number, or a mapping with ``"reward"``,
            optionally ``"outcome"``, and other named numbers; see ``outcomes.Scorer``.
          limits: workers, their time for a completion and their memory, and the threshold of a correct one; with 0
            workers, completions are scored in this process when submitted, with no limit, for debugging.
          parts: names that the parts of every result include, even if no row returned them.
          interrupted: returns whether the process was asked to stop; then waiting ends with ``Interrupted``.

        Raises:
          ValueError: a worker cannot import the reward function.
        """
        self._pool = pool.Pool(outcomes.Scorer(reward), "reward", limits, _TOGETHER)
        self._limits, self._parts = limits, tuple(parts)
        self._interrupted, self._deadline = interrupted, math.inf
        self._outstanding: list[Pending] = []
        self.grouped, self.waited = outcomes.grouped(reward), 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Add the time inside this context to ``waited``, the seconds that the caller has spent waiting for scores."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - began

    def outcome(self, answer: outcomes.Answer) -> types.Outcome:
        """Return the outcome that the reward function returned, or else the one that follows from the reward."""
        return judged(answer.reward, answer.outcome, self._limits.threshold)

    def check(self) -> None:
        """Raise ``Interrupted`` if the process was asked to stop some seconds ago."""
        if self._interrupted():
            self._deadline = min(self._deadline, time.monotonic() + _GRACE)
            if time.monotonic() >= self._deadline:
                raise pool.Interrupted("stopped while waiting for the verifier.")

    def __enter__(self) -> Self:
        """Start the workers and wait until each has imported the reward function.

        Raises:
          ValueError: the reward function cannot be imported in a worker.
          VerifierError: workers end while they start.
        """
        self._pool.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers at once; results not yet scored raise in ``Pending.result``."""
        self._pool.stop()
        for pending in self._outstanding:
            pending._close()
        self._outstanding = []

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
        if not self._pool.open:
            raise RuntimeError("submit completions inside `with Verifiers(...) as verifiers:`")
        if len(texts) != len(targets):
            raise ValueError(f"got {len(texts)} texts and {len(targets)} targets: expected one target for each text")
        columns = [{}] * len(texts) if columns is None else columns
        together: dict[int, list[int]] = {}
        for row in range(len(texts)):
            together.setdefault(groups[row] if self.grouped and groups is not None else row, []).append(row)
        pending = Pending(len(texts), self._parts, self)
        asked = [([texts[i] for i in rows], targets[rows[0]], columns[rows[0]]) for rows in together.values()]
        if not self._limits.workers:
            with self.waiting():
                for rows, arguments in zip(together.values(), asked, strict=True):
                    self.check()
                    self._pool.put([_Item(pending, rows, copy.deepcopy(arguments))])  # the reward may change them
            return pending
        items = [_Item(pending, r, _pickled(r[0], given)) for r, given in zip(together.values(), asked, strict=True)]
        self._outstanding = [p for p in self._outstanding if not p.done()] + [pending]
        self._pool.put(items)
        return pending


def _pickled(row: int, arguments: tuple[Sequence[str], Any, Mapping[str, Any]]) -> bytes:
    try:
        return pickle.dumps(arguments)
    except Exception as error:  # the class of the target may raise anything
        kind = type(arguments[1]).__name__
        raise ValueError(f"targets[{row}] of type {kind} or its columns cannot be pickled: {error}") from error
