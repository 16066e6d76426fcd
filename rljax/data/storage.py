"""Local files and objects on gs:// by the same functions; transient failures are retried.

An object appears whole or not at all, and cannot be renamed or appended to. A remote folder is only a common prefix,
so the folder of a checkpoint is complete once it contains ``COMMITTED``, which is written last (orbax's convention).

Transient failures (429, 5xx, a dropped connection, a time-out) are retried by the libraries first: gcsfs sends a
request up to six times within about half a minute; tensorstore, which transfers the arrays of checkpoints, up to 33
times within about a quarter of an hour. ``retry`` continues after gcsfs gives up. Permanent failures (404, 403) are
raised at once.
"""

import contextlib
import functools
import hashlib
import logging
import os
import pathlib
import random
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeVar

import fsspec.config
from etils import epath

COMMITTED = "commit_success.txt"
PATIENCE = 600.0
"""Seconds after the first failure within which another attempt may start."""

_LONGEST_PAUSE = 30.0
_TRASH = "trash"
_PART = 1 << 26  # bytes
# In messages of tensorstore, whose exceptions have no types; ABORTED: after its last attempt.
_TRANSIENT_CODES = re.compile(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED):")

# tensorstore and other hosts write too: a cached listing would not show their files.
for _protocol in ("gs", "gcs"):
    fsspec.config.conf.setdefault(_protocol, {}).setdefault("use_listings_cache", False)

Path = str | os.PathLike[str]
T = TypeVar("T")


class Unavailable(OSError):
    """An object store kept failing; the operation can be repeated later, and nothing is half-written."""


class StorageWarning(UserWarning):
    """A request to an object store failed and is sent again."""


def remote(path: Path) -> bool:
    """Return whether a path is in an object store, such as gs://bucket/run."""
    return "://" in os.fspath(path)


def path(name: Path) -> epath.Path:
    """Return a path that keeps the two slashes of gs://, which pathlib drops; a local path becomes absolute."""
    return epath.Path(name if remote(name) else os.path.abspath(os.path.expanduser(name)))


@functools.cache
def _store(scheme: str) -> Any:
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints tracebacks of errors that are raised here too
    return fsspec.filesystem(scheme)


def _of(path: Path) -> Any:
    return _store(os.fspath(path).partition("://")[0])


# --- retries -------------------------------------------------------------------------------------


def transient(error: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, is a transient failure of the store."""
    import gcsfs.retry
    import google.api_core.exceptions as google
    import google.auth.exceptions as auth

    kinds = (Unavailable, ConnectionError, TimeoutError, auth.TransportError)
    kinds += (google.ServerError, google.TooManyRequests, google.RetryError)
    while error is not None:
        if isinstance(error, kinds) or gcsfs.retry.is_retriable(error) or _TRANSIENT_CODES.search(str(error)):
            return True
        error = error.__cause__
    return False


def retry(call: Callable[[], T], what: Path, patience: float | None = None) -> T:
    """Return ``call()``, repeated after 1, 2, 4, ... 30 seconds (each times 0.5 to 1) while it fails transiently.

    Each failed attempt issues a StorageWarning.

    Args:
      call: the operation; it must be safe to repeat.
      what: the path, for messages.
      patience: seconds after the first failure within which another attempt may start; None: ``PATIENCE``.

    Returns:
      The result of ``call``.

    Raises:
      Unavailable: it still failed after ``patience`` seconds.
      PermissionError: the store denied access.
      FileNotFoundError: there is no such file, or no such bucket.
    """
    patience = PATIENCE if patience is None else patience
    start, attempt = time.monotonic(), 1
    while True:
        try:
            return call()
        except Exception as error:
            if not transient(error):
                named = _named(error, what)
                if named is error:
                    raise
                raise named from error
            message = f"{os.fspath(what)}: attempt {attempt} failed ({brief(error)})"
            pause = min(_LONGEST_PAUSE, 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
            if time.monotonic() + pause - start > patience:
                raise Unavailable(f"{message}; gave up after {time.monotonic() - start:.0f} s") from error
            warnings.warn(f"{message}; trying again in {pause:.1f} s", StorageWarning, stacklevel=2)
        time.sleep(pause)
        attempt += 1


def _named(error: Exception, what: Path) -> Exception:
    """Return gcsfs's exceptions for 404 and 403 with the name of the file; others unchanged."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{os.fspath(what)}: no such file or folder")
    if isinstance(error, OSError) and str(error).startswith("Forbidden"):
        return PermissionError(f"{os.fspath(what)}: {brief(error)}")
    return error


def brief(error: BaseException) -> str:
    """Return an exception in one line of at most 250 characters; messages of array stores are long."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= 250 else f"{text[:247]}..."


# --- files ---------------------------------------------------------------------------------------


def exists(path: Path) -> bool:
    """Return whether a file or folder exists; raises if the store does not answer."""
    return retry(lambda: _of(path).exists(os.fspath(path)), path) if remote(path) else os.path.exists(path)


def is_dir(path: Path) -> bool:
    """Return whether a folder exists; raises if the store does not answer."""
    if not remote(path):
        return os.path.isdir(path)
    try:
        return retry(lambda: _of(path).info(os.fspath(path)), path)["type"] == "directory"
    except FileNotFoundError:
        return False


def names(folder: Path) -> list[str]:
    """Return the names of files and folders in a folder, sorted; [] if there is no folder."""
    try:
        if not remote(folder):
            return sorted(os.listdir(folder))
        listed = retry(lambda: _of(folder).ls(os.fspath(folder), detail=False), folder)
    except FileNotFoundError:
        return []
    prefix = os.fspath(folder).partition("://")[2].strip("/")  # an empty object, if a folder was created by hand
    return sorted({name.strip("/").rpartition("/")[2] for name in listed if name.strip("/") != prefix})


def size(path: Path) -> int:
    """Return the size of a file, bytes."""
    return retry(lambda: _of(path).size(os.fspath(path)), path) if remote(path) else os.path.getsize(path)


def read(path: Path, start: int = 0, stop: int | None = None, patience: float | None = None) -> bytes:
    """Return the content of a file, or a part of it.

    Args:
      path: local or gs://.
      start: first byte.
      stop: the byte after the last one; None: the end of the file.
      patience: seconds, as in ``retry``.

    Returns:
      The bytes.

    Raises:
      FileNotFoundError: there is no such file.
    """
    if remote(path):
        end = {} if stop is None else {"end": stop}
        return retry(lambda: _of(path).cat_file(os.fspath(path), start=start or None, **end), path, patience)
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(-1 if stop is None else stop - start)


def parts(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in parts, for files that may not fit into memory; errors as ``read``."""
    for start in range(0, size(path), _PART):
        yield read(path, start, start + _PART)


def write(path: Path, content: bytes | str, patience: float | None = None) -> None:
    """Write a file, whole or not at all.

    Args:
      path: local or gs://; its folder exists.
      content: of the whole file; text is encoded as UTF-8.
      patience: seconds, as in ``retry``.
    """
    content = content.encode() if isinstance(content, str) else content
    if remote(path):
        retry(lambda: _of(path).pipe_file(os.fspath(path), content), path, patience)
        return
    temporary = f"{os.fspath(path)}.writing"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def is_at(file: IO[bytes], path: Path) -> bool:
    """Return whether an open local file is the one at ``path``, which may be deleted or replaced."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def create(path: Path, content: bytes) -> bool:
    """Create an object of a store unless it exists; return whether it was created.

    If the response of an attempt is lost, the next attempt finds the object and returns False.
    """
    try:
        retry(lambda: _of(path).pipe_file(os.fspath(path), content, mode="create"), path)
    except FileExistsError:
        return False
    return True


def generation(path: Path, patience: float | None = None) -> str:
    """Return the generation of an object of a store, which changes when the object is written."""
    return str(retry(lambda: _of(path).info(os.fspath(path)), path, patience)["generation"])


def delete(path: Path, generation: str, patience: float | None = None) -> None:
    """Delete an object of a store if it still has this generation."""
    bucket, _, name = os.fspath(path).partition("://")[2].partition("/")
    options = {"ifGenerationMatch": generation}
    with contextlib.suppress(FileNotFoundError, FileExistsError):  # deleted or written by another process
        retry(lambda: _of(path).call("DELETE", "b/{}/o/{}", bucket, name, **options), path, patience)


# --- folders -------------------------------------------------------------------------------------


def finished(folder: Path) -> list[str]:
    """List the complete folders in a folder: in an object store those with ``COMMITTED``, locally all."""
    end = COMMITTED if remote(folder) else ""
    test = exists if remote(folder) else is_dir
    return [name for name in names(folder) if test(os.path.join(os.fspath(folder), name, end))]


def move(source: Path, target: Path) -> None:
    """Rename a complete folder. If interrupted, the source, the target or both are complete.

    In an object store all files are copied, ``COMMITTED`` last, and then deleted, ``COMMITTED`` first.
    """
    if not remote(source):
        os.rename(source, target)
        return
    source, target = os.fspath(source), os.fspath(target)
    sizes = _sizes(source)
    parts = [name for name in sizes if name != COMMITTED]
    for group in (parts, [name for name in sizes if name == COMMITTED]):
        pairs = [f"{source}/{name}" for name in group], [f"{target}/{name}" for name in group]
        if group:
            retry(functools.partial(_of(source).copy, *pairs, on_error="raise"), target)
    if _sizes(target) != sizes:
        raise OSError(f"{target} is not a complete copy of {source}, which is kept")
    remove(source)


def remove(folder: Path) -> None:
    """Delete a complete folder; it becomes incomplete first, so that a part of it is never read as complete."""
    if not remote(folder):
        local = pathlib.Path(folder)
        empty_trash(local.parent)
        (local.parent / _TRASH).mkdir()
        local.rename(local.parent / _TRASH / local.name)
        empty_trash(local.parent)
        return
    folder = os.fspath(folder)
    inside = list(_sizes(folder))
    for group in ([name for name in inside if name == COMMITTED], [name for name in inside if name != COMMITTED]):
        _delete([f"{folder}/{name}" for name in group])


def empty_trash(folder: Path) -> None:
    """Delete what an interrupted ``remove`` left in a local folder."""
    if not remote(folder) and (pathlib.Path(folder) / _TRASH).exists():
        shutil.rmtree(pathlib.Path(folder) / _TRASH)


def _listed(folder: str) -> dict[str, dict[str, Any]]:
    """Return the store's entry of each object below a folder, by relative name; without empty "name/"."""
    objects = retry(lambda: _of(folder).find(folder, detail=True), folder)
    start = len(folder.partition("://")[2].rstrip("/")) + 1
    return {name[start:]: entry for name, entry in sorted(objects.items()) if not name.endswith("/")}


def _sizes(folder: str) -> dict[str, int]:
    return {name: entry["size"] for name, entry in _listed(folder).items()}


def _delete(paths: list[str]) -> None:
    if paths:
        with contextlib.suppress(FileNotFoundError):  # an earlier attempt, whose response was lost, deleted them
            retry(lambda: _of(paths[0]).rm(paths), paths[0])


def upload(folder: Path, target: Path, last: str) -> None:
    """Copy a local folder to a remote one.

    Args:
      folder: the local folder.
      target: the remote folder.
      last: relative name of the file that is copied after all others.
    """
    files = sorted(file for file in pathlib.Path(folder).rglob("*") if file.is_file())
    for file in sorted(files, key=lambda file: file == pathlib.Path(folder) / last):
        place = f"{os.fspath(target)}/{file.relative_to(folder).as_posix()}"
        retry(functools.partial(_of(target).put_file, str(file), place), place)


def stage(folder: Path, home: Path) -> pathlib.Path:
    """Return a complete local copy of a remote folder, below ``home``; one copy for each state of the folder.

    For readers of local files, such as array_record's, which blocks forever on gs://. Several processes may stage the
    same folder at once: each copies to a temporary folder and renames it; the first one is kept. A local folder is
    returned itself.

    Raises:
      FileNotFoundError: the folder is empty or does not exist.
    """
    if not remote(folder):
        return pathlib.Path(folder)
    folder = os.fspath(folder).rstrip("/")
    objects = _listed(folder)
    if not objects:
        raise FileNotFoundError(f"{folder}: empty, or no such folder")
    state = [(n, e["size"], e.get("generation"), e.get("md5Hash"), e.get("crc32c")) for n, e in objects.items()]
    digest = hashlib.sha256(repr((folder, state)).encode()).hexdigest()[:16]
    place = pathlib.Path(home) / f"{folder.rpartition('/')[2]}-{digest}"
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        for name, entry in objects.items():
            file = temporary / name
            file.parent.mkdir(parents=True, exist_ok=True)
            retry(functools.partial(_of(folder).get_file, f"{folder}/{name}", str(file)), f"{folder}/{name}")
            if file.stat().st_size != entry["size"]:
                raise OSError(f"{folder}/{name}: copied {file.stat().st_size} of {entry['size']} bytes")
        try:
            temporary.rename(place)
        except OSError:
            if not place.exists():  # else another process was first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return place
