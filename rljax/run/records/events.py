"""What happened to a run, with times: ``events.jsonl``, one record for each start, warning, checkpoint and end.

    {"step": 0, "event": "start", "time": ..., "host": ..., "command": ..., "packages": {...}, "devices": [...], ...}
    {"step": 0, "event": "warning", "time": ..., "text": ...}
    {"step": 100, "event": "checkpoint", "time": ..., "host_bytes": ..., "device_bytes": ...}
    {"step": 420, "event": "end", "time": ..., "reason": "finished", ...}

A resumed run appends to it. Nothing is read back from it: it is for ``report``, which needs no other source.
"""

import contextlib
import datetime
import importlib.metadata
import logging
import os
import pathlib
import platform
import socket
import subprocess
import sys
import threading
import warnings
from typing import Any

import jax

from rljax.data import storage
from rljax.host import memory, workdirs
from rljax.run.records import steplog

_PACKAGES = ("rljax", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "flax", "optax", "orbax-checkpoint", "numpy")
_MOST = 100  # distinct warnings of a process


class Events(contextlib.AbstractContextManager):
    """Collects the warnings of a process from the beginning, writes events from ``open`` on, and a report at the end.

    A disk that accepts none of them does not end the run: they are for readers only.
    """

    def __init__(self):
        """Collect nothing before the context is entered."""
        self.step = 0
        self.failure: BaseException | None = None  # of one run among several, which ends without an exception
        self._directory: workdirs.WorkDirectory | None = None
        self._report = False
        self._log: steplog.StepLog | None = None
        self._records: list[dict[str, Any]] = []
        self._texts: set[str] = set()
        self._lock = threading.Lock()  # the thread that uploads logs warns too
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Events":
        """Record warnings of Python and of absl's log from here on, and show them as before."""
        show, handler = warnings.showwarning, logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warn(record.getMessage())

        def record(message: Any, category: Any, *place: Any, **more: Any) -> None:
            self.warn(f"{category.__name__}: {message}")
            show(message, category, *place, **more)

        warnings.showwarning = record
        self._stack.callback(setattr, warnings, "showwarning", show)
        logger = logging.getLogger("absl")
        logger.addHandler(handler)
        self._stack.callback(logger.removeHandler, handler)
        return self

    def warn(self, text: str) -> None:
        """Record a warning, each text once."""
        if text not in self._texts and len(self._texts) < _MOST:
            self._texts.add(text)
            self.add("warning", text=text[:2000])

    def open(self, directory: workdirs.WorkDirectory, step: int, report: bool) -> None:
        """Write to a work directory: the start, and what was collected before; at the end the report, if wanted."""
        self._directory, self._report, self.step = directory, report, step
        self._log, collected, self._records = steplog.StepLog(directory.logs / "events.jsonl"), self._records, []
        self.add("start", **_machine())
        for record in collected:
            self._write(record)

    def add(self, event: str, **values: Any) -> None:
        """Write an event at the current step, with the time."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._write({"step": self.step, "event": event, "time": now, **values})

    def _write(self, record: dict[str, Any]) -> None:
        if self._log is None:
            self._records.append(record)
            return
        with contextlib.suppress(OSError), self._lock:
            self._log.append(record)

    def memory(self, event: str, step: int, **values: Any) -> None:
        """Write an event with the largest memory so far of this process and of a device, bytes."""
        self.step = step
        if self._log is None:
            return
        device = memory.peak_of_devices(jax.local_devices())
        self.add(event, host_bytes=memory.peak(), **({"device_bytes": device} if device else {}), **values)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stack.close()
        error = error or self.failure
        if self._log is not None:
            reason = "finished" if error is None else f"{type(error).__name__}: {error}".strip()[:2000]
            with contextlib.suppress(RuntimeError):  # devices may be lost
                self.memory("end", self.step, reason=reason)
            self._log.close()
        # a store that is down was waited for already
        if self._directory is not None and self._report and not isinstance(error, storage.Unavailable):
            from rljax.run.reports import report  # with matplotlib, which the first step need not wait for

            report.save(self._directory)


def command() -> list[str]:
    """Return the command of this process, which resumes its run: without ``--fresh``."""
    words = [word for word in sys.argv[1:] if word.lstrip("-").partition("=")[0] != "fresh"]
    return ["python", "-m", "rljax", *words]


def _machine() -> dict[str, Any]:
    """Return where and with what this process runs."""
    packages = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    kinds = [device.device_kind for device in jax.devices()]
    home = pathlib.Path(__file__).parents[3]
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "command": command() if pathlib.Path(sys.argv[0]).as_posix().endswith("rljax/__main__.py") else [],
        "folder": os.getcwd(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": packages,
        "commit": _commit(home),
        "devices": [f"{kinds.count(kind)} x {kind}" for kind in sorted(set(kinds))],
        "platform": jax.default_backend(),
        "processes": jax.process_count(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _commit(folder: pathlib.Path) -> str:
    """Return the git commit of a folder, with "+" if tracked files differ; "" outside a repository."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return ""
