"""Calls of a host world's class outside of episodes, in a worker process with the limits of episodes.

Attributes, prompts, corpus and demonstrations come from here. The process starts with the first call.
"""

import contextlib
import contextvars
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import pool, process
from rljax.environments.worlds.host import instances, worker

_LIMITS: contextvars.ContextVar[VerifierConfig | None] = contextvars.ContextVar("limits", default=None)


@contextlib.contextmanager
def within(limits: VerifierConfig) -> Iterator[None]:
    """Within the block, host worlds are made, and called, with these limits; else with those that they had before."""
    token = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(token)


class Calls:
    """Methods of ``worker.Instances``, called one at a time, with a limit of time each."""

    def __init__(self, make: worker.Make):
        """Take what makes an instance. The limits are those of ``within``, else the defaults of ``VerifierConfig``."""
        self._make, self._limits = make, _LIMITS.get() or VerifierConfig()
        self._here = worker.Instances(make)
        self._worker: instances.Worker | None = None
        self._lock = threading.Lock()

    def __call__(self, method: str, *arguments: Any) -> Any:
        """Return the record that the method returns. With 0 workers, it runs in this process.

        Raises:
          ValueError: it gave no answer in time, its process ended, or the class cannot be imported in a process; the
            message names the method of the class.
        """
        with self._lock:
            if (limits := _LIMITS.get() or self._limits) != self._limits:
                self._limits, self._worker = limits, None  # the process of the earlier limits ends
            if not limits.workers:
                return getattr(self._here, method)(*arguments)
            called = self._worker = self._worker or self._started()
            try:
                called.process.ensure()
                return called.call(method, *arguments)
            except (TimeoutError, process.WorkerError) as error:
                raise ValueError(str(error)) from None

    def _started(self) -> instances.Worker:
        payload, memory = pool.pickled(self._make, "world"), int(self._limits.memory * 2**30)
        made = process.Process(payload, memory, worker.serve, "class of the world")
        started = instances.Worker(made, self._limits.timeout, lambda turns, reply: reply)
        weakref.finalize(started, _end, made)
        return started


def _end(ended: process.Process) -> None:
    ended.close()
    ended.kill()
