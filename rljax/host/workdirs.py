"""A run's work directory: on this machine, or on gs:// with its logs written here first.

Objects cannot be appended to. The logs of a remote work directory are therefore appended to in a folder of this machine
and uploaded whole: now and then by a thread, whose failures only warn, and by ``upload``, which returns when
everything is there. A run uploads before it saves a checkpoint, so what was logged for step k is there before the
checkpoint of step k is.
"""

import hashlib
import os
import pathlib
import shutil
import threading
import time
import warnings

from rljax import data
from rljax.data import storage

LOGS = ("metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "rollouts.jsonl", "verdicts.jsonl")
_SECONDS = 60.0  # between uploads by the thread


class WorkDirectory:
    """The files of one run.

    Args:
        place: where a person finds them; made when first written to.
        seconds: between two uploads of the logs of a remote one; more where they take above a twentieth of it.
    """

    def __init__(self, place: str | os.PathLike[str], *, seconds: float = _SECONDS):
        self.path = storage.path(place)
        self.remote = storage.remote(self.path)
        self.logs = pathlib.Path(self.path)
        """Where the logs are appended to."""
        if self.remote:
            key = hashlib.sha256(str(self.path).encode()).hexdigest()[:16]
            self.logs = data.cache_folder() / "logs" / f"{self.path.name}-{key}"
        self._seconds = seconds
        self._uploaded: dict[str, tuple[int, int]] = {}  # size and time of change of each file when it was
        self._down = False  # whether an upload failed for good
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None where it is not there."""
        try:
            return storage.read(self.path / name)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes | str) -> None:
        """Write a small file whole or not at all."""
        storage.write(self.path / name, content)

    def open(self) -> None:
        """Make the folder of the logs, bring them here, and begin uploading.

        A log that was left here by a killed run counts where the remote one is the beginning of it: what came after
        the last upload is then not lost. Any other gives way to the remote one.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        if not self.remote:
            return
        for left in self.logs.iterdir():
            if left.is_dir():
                shutil.rmtree(left)  # events for TensorBoard, which are written anew
            elif left.name not in LOGS:
                left.unlink()
        for name in LOGS:
            here, there = self.logs / name, self.read(name)
            if there is None:
                here.unlink(missing_ok=True)
            elif not (here.exists() and here.read_bytes().startswith(there)):
                storage.write(here, there)
        self._thread = threading.Thread(target=self._keep_uploading, name="upload", daemon=True)
        self._thread.start()

    def upload(self) -> None:
        """Return when the logs are where a person finds them, as they are now.

        Raises:
            storage.Unavailable: the store did not take them.
        """
        if self.remote:
            try:
                self._upload(None)
            except storage.Unavailable:
                self._down = True
                raise

    def close(self) -> None:
        """Upload what is left, and stop; after an ``upload`` that failed, only try to."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            if self._down:
                self._try(f"they are in {self.logs}, where a resumed run on this machine finds them")
            else:
                self.upload()

    def _keep_uploading(self) -> None:
        pause = self._seconds
        while not self._stop.wait(pause):
            begun = time.monotonic()
            self._try("trying again later")  # training goes on; the next checkpoint will insist
            pause = max(self._seconds, 20 * (time.monotonic() - begun))

    def _try(self, otherwise: str) -> None:
        try:
            self._upload(patience=0.0)
        except Exception as error:
            said = f"{self.path}: the logs were not uploaded ({storage.brief(error)}); {otherwise}"
            warnings.warn(said, storage.StorageWarning, stacklevel=1)

    def _upload(self, patience: float | None) -> None:
        with self._lock:
            for file in sorted(self.logs.rglob("*")):
                if not file.is_file() or file.suffix == ".cut":  # a log that is being cut back
                    continue
                name, status = file.relative_to(self.logs).as_posix(), file.stat()
                state = status.st_size, status.st_mtime_ns
                if self._uploaded.get(name) != state:
                    storage.write(self.path / name, file.read_bytes(), patience)
                    self._uploaded[name] = state
