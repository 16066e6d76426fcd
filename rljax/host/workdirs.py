"""A run's work directory: local, or on gs:// with a local copy of the logs.

Objects of a store cannot be appended to. The logs of a remote work directory are therefore appended to in a local
folder and uploaded whole: periodically by a thread, whose failures only warn, and by ``upload``, which returns once
all of them are stored. A run calls ``upload`` before it saves a checkpoint, so the logs of step k are stored before
the checkpoint of step k.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import threading
import time
import warnings

from rljax import data
from rljax.data import storage
from rljax.host import owners

LOGS = tuple(
    f"{name}.jsonl"
    for name in ("metrics", "timings", "evaluations", "rollouts", "verdicts", "turns", "events", "arrived")
)
_KEPT = (*LOGS, "wandb.id")  # local files of a remote directory that a resumed run reads
_SECONDS = 60.0  # between two uploads of the thread


class WorkDirectory:
    """The files of one run.

    Args:
      place: the work directory, local or gs://; created by the first write.
      seconds: seconds between two uploads of the logs of a remote directory; longer if an upload takes more than a
        twentieth of that.
    """

    def __init__(self, place: str | os.PathLike[str], *, seconds: float = _SECONDS):
        self.path = storage.path(place)
        self.remote = storage.remote(self.path)
        self.logs = pathlib.Path(self.path)
        """The local folder in which the logs are appended to."""
        if self.remote:
            key = hashlib.sha256(str(self.path).encode()).hexdigest()[:16]
            self.logs = data.cache_folder() / "logs" / f"{self.path.name}-{key}"
        lock = self.logs.with_name(f"{self.logs.name}.lock") if self.remote else self.logs / ".lock"
        self.owner = owners.Owner(self.path, lock)
        self._seconds = seconds
        self._uploaded: dict[str, tuple[int, int]] = {}  # size and modification time of each file at its last upload
        self._down = False  # whether ``upload`` failed
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, or None if it does not exist."""
        try:
            return storage.read(self.path / name)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes | str) -> None:
        """Write a small file atomically."""
        storage.write(self.path / name, content)

    def open(self) -> None:
        """Create the local folder of the logs, download them, and start the upload thread.

        A local log left by a killed run is kept if the remote log is a prefix of it, so that records written after the
        last upload are not lost. Otherwise the remote log replaces it.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        if not self.remote:
            return
        for entry in self.logs.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)  # TensorBoard events, which are rewritten
            elif entry.name not in _KEPT:
                entry.unlink()
        for name in _KEPT:
            local, remote = self.logs / name, self.read(name)
            if remote is None:
                local.unlink(missing_ok=True)
            elif not (local.exists() and local.read_bytes().startswith(remote)):
                storage.write(local, remote)
        self._thread = threading.Thread(target=self._keep_uploading, name="upload", daemon=True)
        self._thread.start()

    def upload(self) -> None:
        """Upload the logs as they are now and return once they are stored.

        Raises:
          storage.Unavailable: the store did not accept them.
          OSError: another process has become the owner of the directory, or it was deleted.
        """
        if self.remote:
            try:
                self._upload(None)
            except storage.Unavailable:
                self._down = True
                raise

    def close(self) -> None:
        """Upload the remaining logs, stop the thread and give up ownership.

        After a failed ``upload``, another failure only warns.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self.owner.release)
            if self._thread is None:
                return
            self._stop.set()
            self._thread.join()
            self._thread = None
            if self._down:
                self._try(f"they remain in {self.logs}, from where a resumed run on this machine reads them")
            else:
                self.upload()

    def _keep_uploading(self) -> None:
        pause = self._seconds
        while not self._stop.wait(pause):
            start = time.monotonic()
            self._try("trying again later")  # training continues; the next checkpoint requires the upload
            pause = max(self._seconds, 20 * (time.monotonic() - start))

    def _try(self, consequence: str) -> None:
        try:
            self._upload(patience=0.0)
        except Exception as error:
            message = f"{self.path}: the logs were not uploaded ({storage.brief(error)}); {consequence}"
            warnings.warn(message, storage.StorageWarning, stacklevel=1)

    def _upload(self, patience: float | None) -> None:
        with self._lock:
            self.owner.check()
            for file in sorted(self.logs.rglob("*")):
                if not file.is_file() or file.suffix == ".writing":  # temporary
                    continue
                name, status = file.relative_to(self.logs).as_posix(), file.stat()
                state = status.st_size, status.st_mtime_ns
                if self._uploaded.get(name) != state:
                    storage.write(self.path / name, file.read_bytes(), patience)
                    self._uploaded[name] = state
