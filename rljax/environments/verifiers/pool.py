"""Host rewards in parallel: worker processes with a time limit for each completion.

Each worker is a new interpreter (not a fork of a process that runs jax, and it does not rerun the main script), served
by one thread of this process over a pipe. A worker answers item by item, so the limit applies to each item, although
items are sent in chunks. A worker that hangs or dies is replaced, and its unanswered items return to the queue.
"""

import contextlib
import dataclasses
import math
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import types as python_types
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import Any, Self

import numpy as np

from rljax import types
from rljax.environments.verifiers import worker

_START_LIMIT = 120.0  # seconds for a worker to start and import the reward; a loaded machine is slow
_ORPHAN_GRACE = 10.0  # seconds after which a hung worker whose parent is gone ends itself
_CHUNK = 32  # the most items that are sent together

# sys.path is sent over the pipe, so that the worker can import what the parent can.
_BOOTSTRAP = """
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from rljax.environments.verifiers import worker
worker.serve(pipe)
"""


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
        """
        with self._pool.waiting(), self._changed:
            self._changed.wait_for(lambda: self._left == 0 or self._closed)
            answers = [answer for answer in self._answers if answer is not None]
        if len(answers) < len(self._answers):
            raise RuntimeError(
                f"the verifiers were closed with {len(self._answers) - len(answers)} of {len(self._answers)}"
                " completions not yet scored"
            )
        names = dict.fromkeys([*self._parts, *(name for answer in answers for name in answer.parts)])
        return Scored(
            reward=np.array([answer.reward for answer in answers], np.float32),
            outcome=np.array([types.Outcome[answer.outcome.upper()] for answer in answers], np.int32),
            parts={n: np.array([answer.parts.get(n, 0.0) for answer in answers], np.float32) for n in names},
            errors=[(row, answer.error) for row, answer in enumerate(answers) if answer.error],
        )

    def _put(self, row: int, answer: worker.Answer) -> None:
        with self._changed:
            self._left -= self._answers[row] is None
            self._answers[row] = answer
            if self._left == 0:
                self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclasses.dataclass(frozen=True)
class _Item:
    """One row to be scored."""

    pending: Pending
    row: int
    payload: bytes  # pickled (text, target)
    deaths: int = 0  # workers that died while scoring it


class Verifiers:
    """Score completions with a Python reward function in worker processes; a context manager.

    Every submitted completion gets an answer. One whose reward raises, returns something other than finite numbers,
    or ends its worker twice is ``CRASHED``; one that runs longer than ``timeout`` seconds is ``TIMED_OUT``, and its
    worker is killed with the processes it started. If a worker is killed from outside, it is replaced and its
    completion is scored once more, so a reward function should have no side effects.
    """

    def __init__(self, reward: worker.Reward, workers: int = 2, timeout: float = 5.0, parts: Sequence[str] = ()):
        """Check the arguments; ``with`` starts the workers.

        Args:
          reward: ``reward(completion, target)`` returns a finite number, or a mapping with ``"reward"``, optionally
            ``"outcome"``, and other named numbers; see ``worker.score``.
          workers: processes; 0 scores in this process when submitted, with no time limit, for debugging.
          timeout: seconds one completion may take.
          parts: names that the parts of every result include, even if no row returned them.

        Raises:
          ValueError: an argument is out of range, or a worker could not import the reward function.
        """
        if workers < 0:
            raise ValueError(f"workers={workers}: must be 0 (score in this process) or more")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout={timeout}: must be a finite number of seconds above 0")
        self._reward, self._workers, self._timeout, self._parts = reward, workers, timeout, tuple(parts)
        self._payload = _pickle_reward(reward) if workers else b""
        self._queue: queue.SimpleQueue[list[_Item] | None] = queue.SimpleQueue()
        self._processes: list[_Process] = []
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

    def __enter__(self) -> Self:
        """Start the workers and wait until each has imported the reward function.

        Raises:
          ValueError: the reward function cannot be imported in a worker.
        """
        self._queue = queue.SimpleQueue()  # without the items of an earlier `with` block
        self._processes = [_Process(self._payload, self._timeout) for _ in range(self._workers)]
        try:
            for process in self._processes:
                process.start()
            for process in self._processes:  # they import in parallel
                process.ready()
        except BaseException:
            self._stop()
            raise
        self._open = True
        for process in self._processes:
            thread = threading.Thread(target=self._serve, args=(process,), name="rljax-verifier", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: python_types.TracebackType | None,
    ) -> None:
        """End the workers at once; results not yet scored raise in ``Pending.result``."""
        self._stop()

    def submit(self, texts: Sequence[str], targets: Sequence[Any]) -> Pending:
        """Start scoring ``texts[i]`` against ``targets[i]``; returns at once (with workers).

        Raises:
          ValueError: the two differ in length, or a target cannot be pickled.
          RuntimeError: outside the ``with`` block.
        """
        if not self._open:
            raise RuntimeError("submit completions inside `with Verifiers(...) as verifiers:`")
        if len(texts) != len(targets):
            raise ValueError(f"got {len(texts)} texts and {len(targets)} targets: expected one target for each text")
        pending = Pending(len(texts), self._parts, self)
        if not self._workers:
            with self.waiting():
                for row, (text, target) in enumerate(zip(texts, targets, strict=True)):
                    pending._put(row, worker.score(self._reward, text, target))
            return pending
        payloads = [_pickle_item(row, text, targets[row]) for row, text in enumerate(texts)]
        items = [_Item(pending, row, payload) for row, payload in enumerate(payloads)]
        self._outstanding = [p for p in self._outstanding if not p.done()] + [pending]
        size = min(_CHUNK, max(1, len(items) // (4 * self._workers)))  # small enough to balance the workers
        for start in range(0, len(items), size):
            self._queue.put(items[start : start + size])
        return pending

    def _serve(self, process: "_Process") -> None:
        """Feed one worker until the pool closes; each worker has a thread that runs this."""
        while (items := self._queue.get()) is not None:
            try:
                process.ensure()
            except (OSError, RuntimeError, ValueError) as error:
                if not self._open:
                    return
                for item in items:  # with the next chunk, starting a worker is tried again
                    item.pending._put(item.row, worker.failure("crashed", f"no worker could be started: {error}"))
                continue
            if unanswered := process.score(items):
                self._queue.put(unanswered)
            if not self._open:
                return

    def _stop(self) -> None:
        self._open = False
        for process in self._processes:
            process.close()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        for pending in self._outstanding:
            pending._close()
        for process in self._processes:
            process.release()
        self._processes, self._threads, self._outstanding = [], [], []


class _Process:
    """A worker process and its replacements. Only ``close`` may be called from another thread."""

    def __init__(self, payload: bytes, timeout: float):
        self._payload, self._timeout = payload, timeout
        self._lock = threading.Lock()  # no worker is started after close
        self._closed = False
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: connection.Connection | None = None

    def start(self) -> None:
        """Start a worker; ``ready`` waits for it."""
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            if self._pipe is not None:
                self._pipe.close()
            self._pipe, remote = multiprocessing.Pipe()
            with remote:  # closed here, so that the end of the worker closes the pipe
                self._child = subprocess.Popen(
                    # -P: a types.py in the current folder must not shadow the standard library's
                    [sys.executable, "-P", "-c", _BOOTSTRAP, str(remote.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[remote.fileno()],
                    env={**os.environ, "JAX_PLATFORMS": "cpu"},  # a reward that uses jax must not claim the accelerator
                    start_new_session=True,  # the parent handles Ctrl-C; a process group can be killed whole
                )

    def ready(self) -> None:
        """Wait until the worker has imported the reward.

        Raises:
          ValueError: it could not import the reward.
          RuntimeError: it did not start.
        """
        assert self._pipe is not None
        try:
            self._pipe.send(sys.path)
            self._pipe.send((self._payload, self._timeout + _ORPHAN_GRACE))
            if not self._pipe.poll(_START_LIMIT):
                self._kill()
                raise RuntimeError(f"a verifier's worker did not start within {_START_LIMIT:g} s")
            trace = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"a verifier's worker ended while starting (status {self._kill()})") from error
        if trace is not None:
            self._kill()
            raise ValueError(
                f"the reward function cannot be imported in a worker process; set workers=0 to score here\n{trace}"
            )

    def ensure(self) -> None:
        """Replace the worker if it has ended; raises what ``start`` and ``ready`` raise."""
        if self._child is None or self._child.poll() is not None:
            self.start()
            self.ready()

    def score(self, items: list[_Item]) -> list[_Item]:
        """Score ``items`` in order; return those that a worker still has to score."""
        assert self._pipe is not None
        for position, item in enumerate(items):
            killed = True
            try:
                if position == 0:
                    self._pipe.send([each.payload for each in items])
                if self._pipe.poll(self._timeout):
                    answer, killed = self._pipe.recv(), False
                else:
                    self._kill()
                    answer = worker.failure("timed_out", f"no score after {self._timeout:g} s; its worker was killed")
            except (EOFError, OSError, pickle.UnpicklingError):
                status = self._kill()
                if self._closed:
                    return items[position:]
                if not item.deaths:
                    return [dataclasses.replace(item, deaths=1), *items[position + 1 :]]
                answer = worker.failure("crashed", f"its worker ended (status {status}), and so did the one before")
            item.pending._put(item.row, answer)
            if killed:
                return items[position + 1 :]
        return []

    def close(self) -> None:
        """End the worker; no other is started."""
        with self._lock:
            self._closed = True
        self._kill()

    def release(self) -> None:
        """Close the pipe; call it when no thread reads from it."""
        if self._pipe is not None:
            self._pipe.close()

    def _kill(self) -> int | None:
        """End the worker and the processes it started; returns its exit status, below 0 for a signal."""
        if self._child is None:
            return None
        with self._lock:  # so that no other thread reaps the child, whose number could then be reused
            if self._child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)
            return self._child.wait()


def _pickle_reward(reward: worker.Reward) -> bytes:
    """Pickle the reward by its name, and check that a new interpreter can import it."""
    name = getattr(reward, "__qualname__", repr(reward))
    advice = "move it to the top level of a module, or use workers=0 to score in this process"
    try:
        payload = pickle.dumps(reward)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"reward: worker processes cannot import {name} ({error}); {advice}") from error
    if b"__main__" in payload:
        raise ValueError(
            f"reward: worker processes cannot import {name}, which is defined in a notebook or in the script that"
            f" was started (__main__); {advice}"
        )
    return payload


def _pickle_item(row: int, text: str, target: Any) -> bytes:
    try:
        return pickle.dumps((text, target))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"targets[{row}] of type {type(target).__name__} cannot be pickled: {error}") from error
