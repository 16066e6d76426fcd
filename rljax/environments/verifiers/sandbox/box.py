"""A job that runs, seen from the worker: what it may use, what it is sent and what it sends."""

import contextlib
import dataclasses
import json
import socket
import time
from typing import Any


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a box may use; each limit but ``folder`` and ``processes`` holds for each of its processes."""

    cpu: int = 8  # seconds
    memory: int = 1 << 29  # bytes of address space
    file: int = 16 << 20  # bytes of a file
    folder: int = 32 << 20  # bytes of all files
    processes: int = 8  # threads included
    handles: int = 64  # open files and sockets

    def job(self) -> dict[str, Any]:
        """Return the part of a job that sets the limits."""
        limits = {"cpu": self.cpu, "as": self.memory, "fsize": self.file, "nproc": self.processes}
        return {"folder": self.folder, "limits": limits | {"nofile": self.handles, "core": 0, "msgqueue": 0}}


class Box:
    """A job that runs; a context manager that ends it."""

    def __init__(self, channel: socket.socket, control: socket.socket):
        """Take this side's ends of the two sockets."""
        self._channel, self._control, self._received = channel, control, b""

    def __enter__(self) -> "Box":
        """Return the box."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the box."""
        self.end()

    def end(self) -> None:
        """End every process of the box."""
        self._channel.close()
        self._control.close()

    def send(self, data: bytes, deadline: float) -> None:
        """Send a line; TimeoutError after the deadline (``time.monotonic``), OSError if the box has ended."""
        self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        self._channel.sendall(data + b"\n")

    def line(self, deadline: float, most: int) -> bytes:
        """Return the next line; TimeoutError, EOFError at the box's end or after more bytes than ``most``."""
        while b"\n" not in self._received:
            if not self._receive(deadline) or len(self._received) > most:
                raise EOFError
        line, _, self._received = self._received.partition(b"\n")
        return line

    def output(self, deadline: float, most: int) -> bytes:
        """Return all that the box writes until it ends; TimeoutError, EOFError as ``line``."""
        while self._receive(deadline):
            if len(self._received) > most:
                raise EOFError
        return self._received

    def _receive(self, deadline: float) -> bool:
        self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        with contextlib.suppress(ConnectionError):
            data = self._channel.recv(1 << 16)
            self._received += data
            return bool(data)
        return False

    def status(self, deadline: float) -> int | None:
        """Return the exit status of the box, negative for a signal; TimeoutError."""
        self._control.settimeout(max(deadline - time.monotonic(), 1e-3))
        return json.loads(self._control.recv(64) or b"null")
