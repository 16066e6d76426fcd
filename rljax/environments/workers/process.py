"""A worker process as the pool sees it: start it, ask it, end it; nothing waits without a limit."""

import contextlib
import dataclasses
import json
import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rljax.environments.workers import supervisor, worker

_START_LIMIT = 120.0  # seconds for a worker to start and import the code; a loaded machine is slow
_SEND_LIMIT = 10.0  # seconds for a worker to read a request
_START_TRIES = 6  # workers in a row that may end while starting
_BACKOFF = 0.1  # seconds to wait after the first of them; doubled after each
_LONGEST_LINE = 1 << 24  # bytes; a group of 256 completions, each with a long error, needs some millions


class WorkerError(RuntimeError):
    """A worker ended, or broke the protocol and was killed."""


class Call(NamedTuple):
    """A call of a method of what workers run."""

    method: str
    arguments: tuple[Any, ...] | bytes  # bytes: pickled already
    read: Callable[[Any], Any]  # returns the record of a value of JSON; raises an error if it is none of the method
    called: str = ""  # what it calls of the code, before errors; "": needs no name

    def failed(self, reason: str) -> str:
        """Return the reason of a failure after the name of what was called."""
        return f"{self.called}: {reason}" if self.called else reason


class Reply(NamedTuple):
    """The answer to a call."""

    value: Any  # None after a failure
    outcome: str = ""  # of a failure: "crashed" or "timed_out"
    error: str = ""  # its reason, or the traceback of the code


def here(served: worker.Served, call: Call) -> Reply:
    """Answer a call in this process; KeyboardInterrupt is raised."""
    assert not isinstance(call.arguments, bytes)
    return _reply(*worker.answered(served, call.method, call.arguments))


def _reply(value: Any, error: str) -> Reply:
    return Reply(None, "crashed", error) if error else Reply(value)


@dataclasses.dataclass(eq=False)
class Request:
    """Calls that a worker answers in order."""

    calls: deque[Call]  # without an answer
    limit: float  # seconds that each may take
    content: Any = None  # what the caller keeps with it
    deadline: float = math.inf  # of the first call

    def late(self) -> str:
        """Return why the first call has failed if its time is over, else ""."""
        if time.monotonic() < self.deadline:
            return ""
        return self.calls[0].failed(f"no answer after {self.limit:g} s (verifier.timeout); its worker was killed")


class Process:
    """A worker process and its replacements. Only ``close`` may be called from another thread."""

    def __init__(self, payload: bytes, what: str, memory: float, concurrency: int = 1):
        """Take what workers run; none is started yet.

        Args:
          payload: the object whose methods are called, ``pickled``.
          what: how messages name its code: "reward" or "world".
          memory: the most GiB of address space of a worker; 0: no limit.
          concurrency: the most requests that it answers at once.
        """
        self._payload, self._memory, self._what = payload, int(memory * 2**30), what
        self._concurrency = concurrency
        self.asked: dict[int, Request] = {}  # that wait for an answer, by its number
        self._serial = self.starts = 0  # calls, and workers that were started, so far
        self._lock = threading.Lock()  # no worker is started after close, and one thread at a time kills
        self._closed = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None  # None: there is no worker
        self._lines: deque[bytearray] = deque()  # received, and not yet read
        self._received = bytearray()  # of the next line
        self._failed = 0  # starts in a row without success

    def ensure(self) -> None:
        """Start a worker unless one is running. If it ends while it starts, try again.

        Raises:
          ValueError: it could not import the code.
          WorkerError: too many in a row ended while starting, or ``close`` was called.
        """
        if self._pipe is not None and not self.asked and _readable(self._pipe):
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
            self._child, self.asked = None, {}
            self._pipe, remote = socket.socketpair()
            with remote:  # closed here, so that the end of the worker closes the pipe
                self._child = supervisor.start(remote)
        self.starts += 1
        self._send(pickle.dumps((sys.path, self._payload, self._memory, os.getpid(), self._concurrency)))
        deadline = time.monotonic() + _START_LIMIT
        while not self._lines:
            self._read(deadline - time.monotonic())
            if time.monotonic() >= deadline:
                self.kill()
                raise ValueError(f"a worker did not import the {self._what} within {_START_LIMIT:g} s")
        try:
            trace = json.loads(self._lines.popleft())
        except ValueError as error:
            raise self._lost(error) from error
        if trace is not None:
            self.kill()
            raise ValueError(
                f"the {self._what} cannot be imported in a worker process; set workers=0 to run it here\n{trace}"
            )

    def ask(self, calls: Sequence[Call], limit: float, content: Any = None) -> Request:
        """Send calls, which are answered in order. Up to ``concurrency`` requests may be without all answers.

        Args:
          calls: what is asked.
          limit: seconds that each may take.
          content: what the caller keeps with the request.

        Raises:
          WorkerError: the worker has ended or does not read.
        """
        first, self._serial = self._serial, self._serial + len(calls)
        sent = pickle.dumps([(n, call.method, _arguments(call)) for n, call in enumerate(calls, first)])
        request = Request(deque(calls), limit, content)
        if calls:
            self.asked[first] = request
            self._send(sent)
            request.deadline = time.monotonic() + limit
        return request

    def receive(self, seconds: float = math.inf, bell: socket.socket | None = None) -> tuple[Request, Reply] | None:
        """Wait for an answer, but not beyond the deadline of a request.

        Args:
          seconds: the most to wait.
          bell: ends the wait when it can be read.

        Returns:
          A request and the answer to its first call, which it has no longer; None if there is none.

        Raises:
          WorkerError: the worker has ended, or wrote something else.
        """
        if not self._lines:
            deadline = min((request.deadline for request in self.asked.values()), default=math.inf)
            self._read(min(seconds, deadline - time.monotonic()), bell)
        if not self._lines:
            return None
        try:  # the code can write anything into the pipe
            serial, value, error = json.loads(self._lines.popleft())
            if (request := self.asked.get(serial)) is None or not isinstance(error, str):
                raise ValueError("not an answer to what was asked")
            reply = _reply(None if error else request.calls[0].read(value), worker.shortened(error))
        except Exception as error:
            raise self._lost(error) from error
        del self.asked[serial]
        request.calls.popleft()
        if request.calls:
            self.asked[serial + 1], request.deadline = request, time.monotonic() + request.limit
        return request, reply

    def answer(self, call: Call, limit: float) -> Reply:
        """Ask for a call, when nothing else is asked, and return its answer.

        Raises:
          TimeoutError: it took longer than ``limit`` seconds, and the worker was killed.
          WorkerError: the worker has ended.
        """
        try:
            request = self.ask([call], limit)
            while (answer := self.receive()) is None:
                if late := request.late():
                    self.kill()
                    raise TimeoutError(late)
        except WorkerError as error:
            raise WorkerError(call.failed(str(error))) from error
        return answer[1]

    def _send(self, request: bytes) -> None:
        """Send a pickle; raises WorkerError if the worker has ended or does not read."""
        assert self._pipe is not None
        try:
            self._pipe.settimeout(_SEND_LIMIT)  # for the whole of it
            self._pipe.sendall(request)
        except OSError as error:
            raise self._lost(error) from error

    def _read(self, seconds: float, bell: socket.socket | None = None) -> None:
        """Read what the worker writes within ``seconds``, or before ``bell`` can be read."""
        if bell is not None and not _readable(self._pipe, bell, seconds):
            return
        assert self._pipe is not None
        try:
            self._pipe.settimeout(None if seconds == math.inf else max(seconds, 1e-3))
            data = self._pipe.recv(1 << 20)
            if not data or len(self._received) > _LONGEST_LINE:
                raise EOFError("its line is too long" if data else "it closed its pipe")
        except TimeoutError:
            return
        except (OSError, EOFError) as error:
            raise self._lost(error) from error
        self._received += data
        if b"\n" in data:
            *lines, self._received = self._received.split(b"\n")
            self._lines += lines

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
            self._pipe, self._received = None, bytearray()
            self._lines.clear()
            return status


def pickled(served: worker.Served, what: str) -> bytes:
    """Pickle what workers run, its code by its name; ValueError if a new interpreter cannot import it."""
    name = getattr(served.code, "__qualname__", repr(served.code))
    advice = "move it to the top level of a module, or use workers=0 to run it in this process"
    try:
        payload = pickle.dumps(served)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"{what}: worker processes cannot import {name} ({error}); {advice}") from error
    if b"__main__" in payload:
        raise ValueError(
            f"{what}: worker processes cannot import {name}, which is defined in a notebook or in the script that"
            f" was started (__main__); {advice}"
        )
    return payload


def _arguments(call: Call) -> bytes:
    return call.arguments if isinstance(call.arguments, bytes) else pickle.dumps(call.arguments)


def _readable(pipe: socket.socket | None, bell: socket.socket | None = None, seconds: float = 0.0) -> bool:
    """Wait until a pipe or a bell can be read, and silence the bell; return whether the pipe can."""
    poll = select.poll()
    for each in filter(None, (pipe, bell)):
        poll.register(each, select.POLLIN)
    ready = [number for number, _ in poll.poll(None if seconds == math.inf else max(1e3 * seconds, 0.0))]
    if bell is not None and bell.fileno() in ready:
        bell.recv(64)
    return pipe is not None and pipe.fileno() in ready
