"""The worker's side of a sandbox: start it, learn what the kernel refuses, start boxes; a job that runs."""

import atexit
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import rljax
from rljax.environments.verifiers.sandbox import kernel

_KEPT = ("LD_LIBRARY_PATH", "TMPDIR")  # of the environment: the interpreter may need the first
_START_LIMIT = 60.0  # seconds
ABSENT = (
    "programs can use the network, read and write what this user can, and see and signal this user's processes;"
    " limits of CPU time, memory, file size, processes and wall time are in force"
)
_BOOTSTRAP = """
import importlib, json, socket, sys
for name in ("bisect", "collections", "copy", "heapq", "itertools", "math", "random", "re", "string", "typing"):
    importlib.import_module(name)
sys.path.insert(0, sys.argv[3])
from rljax.environments.verifiers.sandbox import zygote
zygote.main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2] == "bare", *json.loads(sys.argv[4]))
"""


class Libraries(NamedTuple):
    """Installed packages that programs may use."""

    distributions: tuple[str, ...] = ()  # visible in boxes, with what they require
    modules: tuple[str, ...] = ()  # imported before a box starts

    def paths(self) -> dict[str, str]:
        """Return the files and folders of the distributions by their names; ValueError if one is not installed."""
        pending, seen, paths = [*self.distributions], set[str](), dict[str, str]()
        while pending:
            name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
            if name in seen:
                continue
            seen.add(name)
            try:
                package = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                if name in self.distributions:
                    raise ValueError(f"{name} is not installed") from None
                continue  # for another system or Python
            tops = {file.parts[0] for file in package.files or () if file.suffix != ".pth"} - {"..", "__pycache__"}
            paths |= {top: str(package.locate_file(top)) for top in tops}
            pending += [re.split(r"[^\w.-]", line)[0] for line in package.requires or () if "extra ==" not in line]
        return paths


NONE = Libraries()


class SandboxError(RuntimeError):
    """The process of the sandbox has ended."""


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


class Sandbox:
    """A zygote. ``refused`` is why the kernel gives it no namespaces, or ""."""

    def __init__(self, unsafe: bool = False, libraries: Libraries = NONE):
        """Start it.

        Args:
          unsafe: run without namespaces if the kernel refuses them.
          libraries: for programs; without them they have the standard library only.

        Raises:
          ValueError: the kernel refuses namespaces, and not ``unsafe``; it is not Linux; a library is not installed.
          SandboxError: the process ends while it starts.
        """
        if sys.platform != "linux":
            raise ValueError(f"the sandbox of programs needs Linux, this is {sys.platform}")
        self._libraries = json.dumps([libraries.paths(), libraries.modules])
        self.refused = self._start(bare=False) or self._trial()
        if self.refused and not unsafe:
            raise ValueError(
                f"unsafe=False: the kernel refuses the sandbox its namespaces ({self.refused}). Without them"
                f" {ABSENT}; unsafe=True runs programs nevertheless"
            )
        if self.refused:
            self.close()
            self._start(bare=True)
            if problem := self._trial():
                raise SandboxError(problem)

    def _start(self, bare: bool) -> str | None:
        self._socket, remote = socket.socketpair()
        self._socket.settimeout(_START_LIMIT)
        root = str(pathlib.Path(rljax.__file__).parents[1])
        arguments = [str(remote.fileno()), "bare" if bare else "", root, self._libraries]
        with remote:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-c", _BOOTSTRAP, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[remote.fileno()],
                env={
                    "PYTHONHASHSEED": "0",
                    "OPENBLAS_NUM_THREADS": "1",
                    **{k: v for k, v in os.environ.items() if k in _KEPT},
                },
                cwd="/",
                start_new_session=True,
            )
        reader = self._socket.makefile("rb")
        line = reader.readline()
        if line == b"map\n":
            self._socket.sendall(b"m" if self._map() else b"x")
            line = reader.readline()
        if not line:
            raise SandboxError(f"the sandbox ended while it started, with status {self._process.wait()}")
        return json.loads(line)

    def _map(self) -> bool:
        """Set the user of the zygote in its user namespace."""
        folder = pathlib.Path(f"/proc/{self._process.pid}")
        for files in kernel.identities(self._process.pid):
            with contextlib.suppress(OSError):
                for name, content in files.items():
                    (folder / name).write_text(content)
                return True
        return False

    def start(self, job: Mapping[str, Any], limits: Limits) -> Box:
        """Start a box.

        Args:
          job: as ``programs.run`` reads it.
          limits: of the box.

        Raises:
          SandboxError: the zygote has ended.
        """
        (channel, inner), (control, guard) = socket.socketpair(), socket.socketpair()
        with inner, guard:
            try:
                socket.send_fds(self._socket, [b"b"], [guard.fileno(), inner.fileno()])
            except OSError as error:
                raise SandboxError(f"the sandbox has ended ({error})") from error
        started = Box(channel, control)
        started.send(json.dumps({**job, **limits.job()}).encode(), time.monotonic() + _START_LIMIT)
        return started

    def _trial(self) -> str:
        """Run a program; return what is wrong with it, or ""."""
        with self.start({"kind": "run", "source": "print(input())", "input": "1"}, Limits()) as running:
            deadline = time.monotonic() + _START_LIMIT
            return "" if running.output(deadline, 9) == b"1\n" else f"status {running.status(deadline)} of a trial"

    def close(self) -> None:
        """End it, with all boxes whose ``Box`` is closed."""
        self._socket.close()
        self._process.wait()


def check(unsafe: bool) -> None:
    """Start a sandbox and end it; warn of what is absent, or raise ValueError if not ``unsafe``."""
    trial = Sandbox(unsafe)
    trial.close()
    if trial.refused:
        warnings.warn(f"unsafe=True, and the kernel refuses namespaces ({trial.refused}): {ABSENT}", stacklevel=3)


@functools.cache
def shared(unsafe: bool, libraries: Libraries) -> Sandbox:
    """Return the sandbox of this process."""
    sandbox = Sandbox(unsafe, libraries)
    atexit.register(sandbox.close)
    return sandbox


def begin(
    job: Mapping[str, Any],
    limits: Limits,
    unsafe: bool,
    libraries: Libraries = NONE,
) -> Box:
    """Start a box in the sandbox of this process, or in a new one if the kernel has ended that."""
    try:
        return shared(unsafe, libraries).start(job, limits)
    except SandboxError:
        shared.cache_clear()
        return shared(unsafe, libraries).start(job, limits)
