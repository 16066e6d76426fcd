"""The first process of a worker: it forks the process that answers, and ends all that this process started.

If the answering process ends, or the pool asks with SIGTERM, or the pool's process is gone, the supervisor kills the
answering process and all its descendants. On Linux it is their reaper, so these include processes that have left the
process group and whose parents have ended. It runs no code of the user.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import BinaryIO

from rljax.environments.workers import worker

_END_LIMIT = 2.0  # seconds for a supervisor to end what it started
_PARENT_CHECK = 0.5  # seconds between checks that the pool's process still runs
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM)
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


# Run by a new interpreter. sys.path is received, so that the worker can import what the pool's process can.
_BOOTSTRAP = """
import pickle, socket, sys
pipe = socket.socket(fileno=int(sys.argv[1]))
pipe.set_inheritable(False)
requests = pipe.makefile("rb")
sys.path[:], *arguments = pickle.load(requests)
from rljax.environments.workers import supervisor
supervisor.main(pipe, requests, *arguments)
"""


def start(pipe: socket.socket) -> subprocess.Popen[bytes]:
    """Start a supervisor in a new session; it reads ``sys.path`` and the other arguments of ``main`` from ``pipe``."""
    return subprocess.Popen(
        # -P: a types.py in the current folder must not shadow the standard library's
        [sys.executable, "-P", "-c", _BOOTSTRAP, str(pipe.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[pipe.fileno()],
        # code that uses jax must not claim the accelerator; the order of a set must not depend on the worker
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"},
        start_new_session=True,  # the pool's process handles Ctrl-C; a process group can be killed whole
    )


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """Ask a supervisor to end all that it started, without waiting."""
    for number in (signal.SIGTERM, signal.SIGCONT):  # the second in case the code has stopped it
        process.send_signal(number)


def end(process: subprocess.Popen[bytes]) -> int:
    """End a supervisor and all that it started; return the exit status of the answering process as shells do."""
    ask_to_end(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_LIMIT)
    with contextlib.suppress(OSError):  # the number is not reused while the group has members
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_LIMIT)
    code = process.returncode or 0
    return code if code >= 0 else 128 - code


def main(pipe: socket.socket, requests: BinaryIO, payload: bytes, memory: int, pool: int, concurrency: int) -> None:
    """Start the answering process, which runs ``worker.serve``, and wait for its end; does not return.

    Args:
      pipe: for the answers.
      requests: the other direction of ``pipe``.
      payload: as ``worker.serve`` takes it.
      memory: most bytes of address space of the answering process; 0: no limit.
      pool: process number of the pool.
      concurrency: as ``worker.serve`` takes it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # they wait for sigwait
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # the pool's process may ignore them, which is inherited
    _prctl(_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    child = os.fork()
    if not child:
        try:
            _restrict(memory)
            if os.getppid() == supervisor:  # else it died before _restrict
                os.register_at_fork(after_in_child=lambda: os.close(pipe.detach()))  # it may not answer
                worker.serve(pipe, requests, payload, concurrency)
        finally:
            os._exit(0)  # an ordinary exit would wait for threads of the code
    requests.close()
    pipe.close()
    ended: dict[int, int] = {}  # status by process number
    signal.setitimer(signal.ITIMER_REAL, _PARENT_CHECK, _PARENT_CHECK)
    while child not in ended and os.getppid() == pool and signal.sigwait(_SIGNALS) != signal.SIGTERM:
        _reap(ended)
    end_descendants(ended)
    code = os.waitstatus_to_exitcode(ended.get(child, 0))
    os._exit(code if code >= 0 else 128 - code)


def _restrict(memory: int) -> None:
    """Make the kernel end this process with its parent, and before any other process if memory is short."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    for kind, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, memory or resource.RLIM_INFINITY)):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY or 0 <= limit < hard else hard
        with contextlib.suppress(OSError, ValueError):  # macOS has no limit of address space
            resource.setrlimit(kind, (limit, limit))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _reap(ended: dict[int, int]) -> None:
    """Note the children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
            ended.setdefault(*reaped)


def end_descendants(ended: dict[int, int]) -> None:
    """Kill children until none is left; the children of each one killed become children of this process."""
    if sys.platform != "linux":
        os.killpg(0, signal.SIGKILL)  # this process too
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ended.setdefault(*os.waitpid(-1, 0))
            _reap(ended)


def _children() -> Iterator[int]:
    """Yield the process numbers of the children of this process."""
    try:
        names = os.listdir("/proc")
    except OSError:  # not mounted
        os.killpg(0, signal.SIGKILL)  # this process too
        raise
    for name in filter(str.isdecimal, names):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                yield int(name)
