"""Ownership of a work directory: one run at a time writes to it.

A local directory is locked by ``flock`` on its file ``.lock``; the kernel releases the lock when the process ends,
however it ends. An object store has no locks: there the owner is whoever created the object ``.owner``, by a request
that fails if the object exists, and rewrites it every few seconds. A record that is not rewritten any more belongs to a
killed process and is replaced. A process on the same machine need not wait: the local lock file, which is not deleted
by a kill, has the same content as the record, and can be locked.
"""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
import warnings
from typing import BinaryIO

from etils import epath

from rljax.data import storage

_BEAT = 15.0  # seconds between two writes of the record
_STALE = 60.0  # seconds without a write after which its process is considered dead
_TRIES = 10  # to lock a file that others delete


class Owner:
    """Owner of the work directory ``path``, from ``acquire`` to ``release``; ``lock`` is the local file to lock."""

    def __init__(self, path: epath.Path, lock: pathlib.Path):
        self._path, self._lock, self._record = path, lock, path / ".owner"
        self._file: BinaryIO | None = None
        self._content = b""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Become the owner; raise ValueError if another process is the owner, or the directory cannot be written to."""
        facts = {"host": socket.gethostname(), "pid": os.getpid(), "started": time.strftime("%Y-%m-%d %H:%M:%S %Z")}
        self._content = json.dumps({**facts, "id": os.urandom(16).hex()}).encode()
        try:
            previous = self._acquire_lock()
            if storage.remote(self._path):
                self._create_record(previous)
            assert self._file is not None
            self._file.truncate(0)
            self._file.write(self._content)
        except BaseException as error:
            self.release()
            if not isinstance(error, OSError) or storage.transient(error):
                raise
            why = "it is a file" if os.path.isfile(self._path) else error.strerror or storage.brief(error)
            why = "no such bucket" if storage.remote(self._path) and isinstance(error, FileNotFoundError) else why
            raise ValueError(f"{self._path}: cannot be written to ({why})") from error

    def check(self) -> None:
        """Raise OSError if a remote directory was deleted or another process has become its owner."""
        if self._thread is not None and (content := self._read()) != self._content:
            what = f"is now used by {_describe(content)}" if content else "was deleted during the run"
            raise OSError(f"{self._path} {what}; this run stops")

    def release(self) -> None:
        """Stop being the owner, if this is one."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            try:
                generation = storage.generation(self._record, patience=0.0)
                if self._read(patience=0.0) == self._content:
                    storage.delete(self._record, generation, patience=0.0)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._warn(f"{self._record} was not deleted ({storage.brief(error)})")
        if self._file is not None:
            with contextlib.suppress(OSError):  # the directory was deleted
                if storage.is_at(self._file, self._lock):
                    self._lock.unlink()
            self._file.close()
            self._file = None

    def _acquire_lock(self) -> bytes:
        """Lock the local file; return its content, which a killed owner left."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            file = self._lock.open("a+b", buffering=0)
            file.seek(0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._refusal(file.read()) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                    raise
                self._warn(f"{self._path} cannot be locked ({error.strerror}): let no other run use it")
                self._file = file
                return b""  # a live owner may have written it
            if storage.is_at(file, self._lock):
                self._file = file
                return file.read()
            file.close()  # the previous owner has just deleted it
        raise OSError(errno.ENOLCK, f"{self._lock} was replaced {_TRIES} times")

    def _create_record(self, previous: bytes) -> None:
        """Create the record and start to rewrite it; ``previous`` is the record of a killed owner."""
        while not storage.create(self._record, self._content):
            with contextlib.suppress(FileNotFoundError):  # its owner has deleted it
                generation, content = storage.generation(self._record), storage.read(self._record)
                if content == self._content:  # the response of an earlier attempt was lost
                    break
                deadline = time.monotonic() + _STALE
                while content != previous and time.monotonic() < deadline:
                    time.sleep(_STALE / 60)
                    if storage.generation(self._record) != generation:
                        raise self._refusal(content)
                storage.delete(self._record, generation)
        self._thread = threading.Thread(target=self._keep_writing, name="owner", daemon=True)
        self._thread.start()

    def _keep_writing(self) -> None:
        while not self._stop.wait(_BEAT):
            try:
                if self._read(patience=0.0) != self._content:
                    return  # ``check`` reports it
                storage.write(self._record, self._content, patience=0.0)
            except Exception as error:
                self._warn(f"{self._record} was not updated ({storage.brief(error)}); trying again")

    def _read(self, patience: float | None = None) -> bytes | None:
        try:
            return storage.read(self._record, patience=patience)
        except FileNotFoundError:
            return None

    def _refusal(self, content: bytes) -> ValueError:
        who = _describe(content)
        return ValueError(f"{self._path} is used by {who}. Wait until it ends, or choose another --workdir.")

    def _warn(self, message: str) -> None:
        warnings.warn(message, storage.StorageWarning, stacklevel=3)


def _describe(content: bytes) -> str:
    try:
        facts = json.loads(content)
        return f"process {facts['pid']} on {facts['host']}, started {facts['started']}"
    except (ValueError, KeyError, TypeError):  # not written yet
        return "another process"
