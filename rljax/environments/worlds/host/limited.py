"""Calls of a host world's class outside of episodes, in a worker process with the limits of episodes.

Attributes, prompts, corpus and demonstrations come from here. The process starts with the first call.
"""

import contextlib
import contextvars
import threading
import weakref
from typing import Any

from rljax.environments.config import VerifierConfig
from rljax.environments.workers import process
from rljax.environments.worlds.host import instances
from rljax.language import scopes

_LIMITS: contextvars.ContextVar[VerifierConfig | None] = contextvars.ContextVar("limits", default=None)


def within(limits: VerifierConfig) -> contextlib.AbstractContextManager[Any]:
    """Within the block, host worlds are made, and called, with these limits; else with those that they had before."""
    return scopes.during(_LIMITS, limits)


class Calls:
    """Methods of ``instances.Instances``, called one at a time, with a limit of time each."""

    def __init__(self, make: instances.Make):
        """Store the maker of instances. ``within`` sets the limits, else the defaults of ``VerifierConfig``."""
        self._here, self._limits = instances.Instances(make), _LIMITS.get() or VerifierConfig()
        self._process: process.Process | None = None
        self._lock = threading.Lock()

    def __call__(self, method: str, *arguments: Any) -> Any:
        """Return what the method returns. With 0 workers, it runs in this process.

        Raises:
          ValueError: it failed, gave no answer in time, its process ended, or the class cannot be imported in a
            process; the message names the method of the class.
        """
        with self._lock:
            if (limits := _LIMITS.get() or self._limits) != self._limits:
                self._limits = limits
                if self._process is not None:
                    _end(self._process)
                    self._process = None
            reply = self._reply(instances.call(method, *arguments))
        if reply.error:
            called = "" if method == "describe" else f"{instances.CALLED[method]}: "
            raise ValueError(f"{called}{reply.error.strip().splitlines()[-1]}")
        return reply.value

    def _reply(self, call: process.Call) -> process.Reply:
        if not self._limits.workers:
            return process.here(self._here, call)
        if self._process is None:
            payload = process.pickled(instances.Instances(self._here.code), "world")
            self._process = process.Process(payload, "world", self._limits.memory)
            weakref.finalize(self, _end, self._process)
        try:
            self._process.ensure()
            return self._process.answer(call, self._limits.timeout)
        except (TimeoutError, process.WorkerError) as error:
            raise ValueError(str(error)) from None


def _end(ended: process.Process) -> None:
    ended.close()
    ended.kill()
