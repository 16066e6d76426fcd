"""The pool's side of a worker process: start it, send items, receive answers, end it; no call waits without a limit."""

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rljax.environments.verifiers import worker

_START_LIMIT = 120.0  # seconds for a worker to start and import the reward; a loaded machine is slow
_SEND_LIMIT = 10.0  # seconds for a worker to read items
_END_LIMIT = 2.0  # seconds for a worker to end when asked to
_START_TRIES = 6  # workers in a row that may end while starting
_BACKOFF = 0.1  # seconds after the first of them; doubled after each
_LONGEST_LINE = 1 << 20  # bytes

# sys.path is sent, so that the worker can import what the parent can.
_BOOTSTRAP = """
import pickle, socket, sys
pipe = socket.socket(fileno=int(sys.argv[1]))
pipe.set_inheritable(False)
requests = pipe.makefile("rb")
sys.path[:], *arguments = pickle.load(requests)
from rljax.environments.verifiers import supervisor
supervisor.main(pipe, requests, *arguments)
"""


class WorkerError(RuntimeError):
    """A worker ended, or wrote something else than an answer; it has been killed."""


class Process:
    """A worker process and its replacements. Only ``close`` may be called from another thread."""

    def __init__(self, payload: bytes, memory: int):
        """Take the pickled reward, and the most bytes of address space of a worker (0: no limit)."""
        self._payload, self._memory = payload, memory
        self._lock = threading.Lock()  # no worker is started after close, and one thread at a time kills
        self._closed = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None
        self._received = b""
        self._failed = 0  # the newest starts, all without success

    def ensure(self) -> None:
        """Start a worker unless one is running. If it ends while it starts, try again.

        Raises:
          ValueError: it could not import the reward.
          WorkerError: too many in a row ended while starting, or ``close`` was called.
        """
        if self._pipe is not None and self._readable():
            self.kill()  # it has ended, or writes although nothing was asked
        while self._pipe is None:
            try:
                self._start()
            except (WorkerError, OSError) as error:
                self._failed += 1
                if self._failed >= _START_TRIES or self._closed.is_set():
                    raise WorkerError(
                        f"no worker process could be started: {self._failed} in a row failed, the last because {error}"
                    ) from error
                self._closed.wait(_BACKOFF * 2**self._failed)
        self._failed = 0

    def _start(self) -> None:
        with self._lock:
            if self._closed.is_set():
                raise WorkerError("the pool is closed")
            pipe, remote = socket.socketpair()
            with remote:  # closed here, so that the end of the worker closes the pipe
                try:
                    self._child = subprocess.Popen(
                        # -P: a types.py in the current folder must not shadow the standard library's
                        [sys.executable, "-P", "-c", _BOOTSTRAP, str(remote.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[remote.fileno()],
                        env={**os.environ, "JAX_PLATFORMS": "cpu"},  # a reward must not claim the accelerator
                        start_new_session=True,  # the parent handles Ctrl-C; a process group can be killed whole
                    )
                except BaseException:
                    pipe.close()
                    raise
            self._pipe, self._received = pipe, b""
        try:
            self.send((sys.path, self._payload, self._memory, os.getpid()))
            trace = self._receive(_START_LIMIT, json.loads)
        except TimeoutError:
            raise ValueError(f"the reward function was not imported in a worker within {_START_LIMIT:g} s") from None
        if trace is not None:
            self.kill()
            raise ValueError(
                f"the reward function cannot be imported in a worker process; set workers=0 to score here\n{trace}"
            )

    def send(self, request: object) -> None:
        """Send an object that can be pickled.

        Raises:
          WorkerError: the worker has ended, or does not read; it has been killed.
        """
        assert self._pipe is not None
        try:
            self._pipe.settimeout(_SEND_LIMIT)  # for the whole of it
            self._pipe.sendall(pickle.dumps(request))
        except OSError as error:
            raise self._lost(error) from error

    def answer(self, place: int, limit: float) -> worker.Answer:
        """Wait for the answer to an item.

        Args:
          place: the item's place in the list that was sent.
          limit: seconds.

        Returns:
          The answer.

        Raises:
          TimeoutError: there is none within the limit; the worker has been killed.
          WorkerError: the worker has ended, or wrote something else; it has been killed.
        """
        return self._receive(limit, lambda line: worker.decode(line, place))

    def _receive(self, limit: float, read: Callable[[bytes], Any]) -> Any:
        assert self._pipe is not None
        deadline = time.monotonic() + limit
        try:
            while b"\n" not in self._received:
                self._pipe.settimeout(max(deadline - time.monotonic(), 1e-3))
                data = self._pipe.recv(_LONGEST_LINE)
                if not data or len(self._received) > _LONGEST_LINE:
                    raise ConnectionError("the pipe was closed" if not data else "a line is too long")
                self._received += data
            line, _, self._received = self._received.partition(b"\n")
            return read(line)
        except TimeoutError:
            self.kill()
            raise
        except Exception as error:  # a reward function can write anything into the pipe
            raise self._lost(error) from error

    def _readable(self) -> bool:
        assert self._pipe is not None
        self._pipe.setblocking(False)
        try:
            self._pipe.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _lost(self, error: Exception) -> WorkerError:
        status = self.kill()
        ending = f"was ended by {signal.Signals(status - 128).name}" if status > 128 else f"exited with status {status}"
        return WorkerError(f"the worker {ending} ({type(error).__name__}: {error})")

    def close(self) -> None:
        """Tell the worker to end, and start no other; ``kill`` waits for its end."""
        with self._lock:
            self._closed.set()
            if self._pipe is not None:
                self._ask_to_end()
                with contextlib.suppress(OSError):
                    self._pipe.shutdown(socket.SHUT_RDWR)  # ends a call that waits

    def kill(self) -> int:
        """End the worker and the processes it started; returns its exit status, above 128 for a signal."""
        with self._lock:
            if self._child is None or self._pipe is None:
                return 0
            self._ask_to_end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_END_LIMIT)
            with contextlib.suppress(OSError):  # its number is not reused while a process of the group is left
                os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_END_LIMIT)
            self._pipe.close()
            self._pipe = None
            status = self._child.returncode or 0
            return status if status >= 0 else 128 - status

    def _ask_to_end(self) -> None:
        assert self._child is not None
        for number in (signal.SIGTERM, signal.SIGCONT):  # the second for a supervisor that was stopped
            self._child.send_signal(number)
