"""The pool's side of a worker: start it, send to it, receive from it, end it; no call waits without a limit."""

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rljax.environments.verifiers import supervisor, worker

_START_LIMIT = 120.0  # seconds for a worker to start and import the reward; a loaded machine is slow
_SEND_LIMIT = 10.0  # seconds for a worker to read a request
_START_TRIES = 6  # workers in a row that may end while starting
_BACKOFF = 0.1  # seconds to wait after the first of them; doubled after each
_LONGEST_LINE = 1 << 24  # bytes; a group of 256 completions, each with a long error, needs some millions


class WorkerError(RuntimeError):
    """A worker ended, or broke the protocol and was killed."""


class Process:
    """A worker process and its replacements. Only ``close`` may be called from another thread."""

    def __init__(
        self,
        payload: bytes,
        memory: int,
        serve: supervisor.Serve = worker.serve,
        what: str = "reward function",
    ):
        """Take the description of workers; none is started yet.

        Args:
          payload: what is to run, pickled: the reward.
          memory: the most bytes of address space of a worker; 0: no limit.
          serve: what a worker runs, a function at the top level of a module of rljax.
          what: how messages name what the payload holds.
        """
        self._payload, self._memory, self._serve, self._what = payload, memory, serve, what
        self.starts = 0  # workers started so far
        self._lock = threading.Lock()  # no worker is started after close, and one thread at a time kills
        self._closed = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None  # None: there is no worker
        self._received = b""
        self._failed = 0  # starts in a row without success

    def ensure(self) -> None:
        """Start a worker unless one is running. If it ends while it starts, try again.

        Raises:
          ValueError: it could not import the reward.
          WorkerError: too many in a row ended while starting, or ``close`` was called.
        """
        if self._pipe is not None and _readable(self._pipe):
            self.kill()  # it has ended, or writes although nothing was asked
        while self._pipe is None:
            try:
                self._start()
            except (WorkerError, OSError) as error:
                self.kill()
                self._failed += 1
                if self._failed >= _START_TRIES or self._closed.is_set():
                    raise WorkerError(f"{self._failed} in a row ended while starting; the last: {error}") from error
                self._closed.wait(_BACKOFF * 2**self._failed)
        self._failed = 0

    def _start(self) -> None:
        with self._lock:
            if self._closed.is_set():
                raise WorkerError("the pool is closed")
            self._child, self._received = None, b""
            self._pipe, remote = socket.socketpair()
            with remote:  # closed here, so that the end of the worker closes the pipe
                self._child = supervisor.start(remote)
        self.starts += 1
        self.send((sys.path, self._payload, self._memory, os.getpid(), self._serve))
        try:
            trace = self.receive(json.loads, _START_LIMIT)
        except TimeoutError:
            raise ValueError(f"a worker did not import the {self._what} within {_START_LIMIT:g} s") from None
        if trace is not None:
            self.kill()
            raise ValueError(
                f"the {self._what} cannot be imported in a worker process; set workers=0 to run it here\n{trace}"
            )

    def send(self, request: Any) -> None:
        """Send an object; raises WorkerError if the worker has ended or does not read."""
        assert self._pipe is not None
        try:
            self._pipe.settimeout(_SEND_LIMIT)  # for the whole of it
            self._pipe.sendall(pickle.dumps(request))
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, read: Callable[[bytes], Any], limit: float) -> Any:
        """Return ``read(line)`` of the next line; raises TimeoutError after ``limit`` s, or WorkerError."""
        assert self._pipe is not None
        deadline = time.monotonic() + limit
        try:
            while b"\n" not in self._received:
                self._pipe.settimeout(max(deadline - time.monotonic(), 1e-3))
                data = self._pipe.recv(1 << 20)
                if not data or len(self._received) > _LONGEST_LINE:
                    raise EOFError("its line is too long" if data else "it closed its pipe")
                self._received += data
            line, _, self._received = self._received.partition(b"\n")
            return read(line)
        except TimeoutError:
            self.kill()
            raise
        except Exception as error:  # a reward function can write anything into the pipe
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> WorkerError:
        status = self.kill()
        ending = {128 + number: f"was ended by {number.name}" for number in signal.Signals}
        how = ending.get(status, f"exited with status {status}")
        return WorkerError(f"a worker {how} ({type(error).__name__}: {error})")

    def close(self) -> None:
        """Ask the worker to end, and start no other; ``kill`` waits for its end."""
        with self._lock:
            self._closed.set()
            if self._pipe is not None and self._child is not None:
                supervisor.ask_to_end(self._child)
                with contextlib.suppress(OSError):
                    self._pipe.shutdown(socket.SHUT_RDWR)  # ends a call that waits

    def kill(self) -> int:
        """End the worker and the processes it started; returns its exit status, above 128 for a signal."""
        with self._lock:
            if self._pipe is None:
                return 0
            status = 0 if self._child is None else supervisor.end(self._child)
            self._pipe.close()
            self._pipe = None
            return status


def _readable(pipe: socket.socket) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))
