"""Files on this machine and objects on gs:// by the same names; what fails for a moment is tried again.

An object appears whole or not at all and cannot be renamed or appended to. A folder is only a common prefix, so a
folder of a checkpoint counts once ``COMMITTED``, which is written last, lies in it (orbax's convention on gs://).

Transient failures (429, 5xx, a dropped connection, a time-out) are retried by the libraries: gcsfs sends a request up
to six times within about half a minute, tensorstore, which moves the arrays of checkpoints, up to 33 times within
about a quarter of an hour. ``retry`` goes on where gcsfs gives up. What will not change (404, 403) is raised at once.
"""

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
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import fsspec.config
from etils import epath

COMMITTED = "commit_success.txt"
PATIENCE = 600.0
"""Seconds after the first failure within which another attempt may begin."""

_LONGEST_PAUSE = 30.0
_TRASH = "trash"
# Of tensorstore, whose exceptions have no types; the last is what it says when its own attempts are used up.
_TRANSIENT_CODES = re.compile(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED):")

# Others write too: tensorstore from this process, other hosts. A remembered listing would hide what they wrote.
for _protocol in ("gs", "gcs"):
    fsspec.config.conf.setdefault(_protocol, {}).setdefault("use_listings_cache", False)

Path = str | os.PathLike[str]
T = TypeVar("T")


class Unavailable(OSError):
    """An object store kept failing; what was to be done may be tried again later, nothing is half-written."""


class StorageWarning(UserWarning):
    """A request to an object store failed and is sent again."""


def remote(path: Path) -> bool:
    """Tell whether a path names an object or a folder in an object store, such as gs://bucket/run."""
    return "://" in os.fspath(path)


def path(name: Path) -> epath.Path:
    """Return a path that keeps the two slashes of gs://, which pathlib drops; a local one is made absolute."""
    return epath.Path(name if remote(name) else os.path.abspath(os.path.expanduser(name)))


@functools.cache
def _store(scheme: str) -> Any:
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints tracebacks of what is raised here anyway
    return fsspec.filesystem(scheme)


def _of(path: Path) -> Any:
    return _store(os.fspath(path).partition("://")[0])


# --- what is tried again -------------------------------------------------------------------------


def transient(error: BaseException | None) -> bool:
    """Tell whether an exception, or what caused it, is a failure of the store that may pass."""
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
    """Return call(), called again after 1, 2, 4, ... 30 seconds (each times 0.5 to 1) while it fails transiently.

    A StorageWarning names each attempt that failed. ``patience`` None is ``PATIENCE``.

    Raises:
      Unavailable: it still failed after ``patience`` seconds.
      PermissionError: the store refused.
      FileNotFoundError: there is no such file, or no such bucket.
    """
    patience = PATIENCE if patience is None else patience
    begun, attempt = time.monotonic(), 1
    while True:
        try:
            return call()
        except Exception as error:
            if not transient(error):
                named = _named(error, what)
                if named is error:
                    raise
                raise named from error
            said = f"{os.fspath(what)}: attempt {attempt} failed ({brief(error)})"
            pause = min(_LONGEST_PAUSE, 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
            if time.monotonic() + pause - begun > patience:
                raise Unavailable(f"{said}; gave up after {time.monotonic() - begun:.0f} s") from error
            warnings.warn(f"{said}; trying again in {pause:.1f} s", StorageWarning, stacklevel=2)
        time.sleep(pause)
        attempt += 1


def _named(error: Exception, what: Path) -> Exception:
    """Return what gcsfs raised for 404 and 403 with the file's name in place of the request's; any other as it is."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{os.fspath(what)}: not there")
    if isinstance(error, OSError) and str(error).startswith("Forbidden"):
        return PermissionError(f"{os.fspath(what)}: {brief(error)}")
    return error


def brief(error: BaseException) -> str:
    """Return an exception in one line of at most 250 characters; array stores append their whole specification."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= 250 else f"{text[:247]}..."


# --- files ---------------------------------------------------------------------------------------


def exists(path: Path) -> bool:
    """Tell whether there is a file or a folder. A store that does not answer is an error, not a no."""
    return retry(lambda: _of(path).exists(os.fspath(path)), path) if remote(path) else os.path.exists(path)


def is_dir(path: Path) -> bool:
    """Tell whether there is a folder; as ``exists``."""
    if not remote(path):
        return os.path.isdir(path)
    try:
        return retry(lambda: _of(path).info(os.fspath(path)), path)["type"] == "directory"
    except FileNotFoundError:
        return False


def names(folder: Path) -> list[str]:
    """List what lies in a folder, in order of name; nothing where there is no folder."""
    try:
        if not remote(folder):
            return sorted(os.listdir(folder))
        found = retry(lambda: _of(folder).ls(os.fspath(folder), detail=False), folder)
    except FileNotFoundError:
        return []
    own = os.fspath(folder).partition("://")[2].strip("/")  # an empty object, where a folder was made by hand
    return sorted({name.strip("/").rpartition("/")[2] for name in found if name.strip("/") != own})


def size(path: Path) -> int:
    """Return the bytes of a file."""
    return retry(lambda: _of(path).size(os.fspath(path)), path) if remote(path) else os.path.getsize(path)


def read(path: Path, start: int = 0, stop: int | None = None) -> bytes:
    """Return the bytes of a file from ``start`` up to ``stop``.

    Raises:
      FileNotFoundError: there is no such file.
    """
    if remote(path):
        end = {} if stop is None else {"end": stop}
        return retry(lambda: _of(path).cat_file(os.fspath(path), start=start or None, **end), path)
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(-1 if stop is None else stop - start)


def write(path: Path, content: bytes | str, patience: float | None = None) -> None:
    """Write a file whole or not at all; ``patience`` as ``retry``."""
    content = content.encode() if isinstance(content, str) else content
    if remote(path):
        retry(lambda: _of(path).pipe_file(os.fspath(path), content), path, patience)
        return
    temporary = f"{os.fspath(path)}.writing"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def check_writable(folder: Path) -> None:
    """Raise ValueError where no object can be written below a remote folder: no such bucket, or no right to."""
    probe = f"{os.fspath(folder).rstrip('/')}/.probe"
    try:
        write(probe, b"")
        _delete([probe])
    except (OSError, ValueError) as error:
        if transient(error):
            raise
        why = "no such bucket" if isinstance(error, FileNotFoundError) else brief(error)
        raise ValueError(f"{os.fspath(folder)}: cannot be written to ({why})") from error


# --- folders -------------------------------------------------------------------------------------


def finished(folder: Path) -> list[str]:
    """List the whole folders in a folder: in an object store those with ``COMMITTED``, locally, after a rename, all."""
    end = COMMITTED if remote(folder) else ""
    test = exists if remote(folder) else is_dir
    return [name for name in names(folder) if test(os.path.join(os.fspath(folder), name, end))]


def move(source: Path, target: Path) -> None:
    """Rename a finished folder. Killed at any point, it leaves the whole source, the whole target, or both.

    In an object store everything is copied, ``COMMITTED`` last, and then deleted, ``COMMITTED`` first.
    """
    if not remote(source):
        os.rename(source, target)
        return
    source, target = os.fspath(source), os.fspath(target)
    sizes = _sizes(source)
    parts = [name for name in sizes if name != COMMITTED]
    for some in (parts, [name for name in sizes if name == COMMITTED]):
        pairs = [f"{source}/{name}" for name in some], [f"{target}/{name}" for name in some]
        if some:
            retry(functools.partial(_of(source).copy, *pairs, on_error="raise"), target)
    if _sizes(target) != sizes:
        raise OSError(f"{target} is no whole copy of {source}, which stays")
    remove(source)


def remove(folder: Path) -> None:
    """Delete a finished folder, which stops counting as one first, so that no half of it ever counts."""
    if not remote(folder):
        here = pathlib.Path(folder)
        empty_trash(here.parent)
        (here.parent / _TRASH).mkdir()
        here.rename(here.parent / _TRASH / here.name)
        empty_trash(here.parent)
        return
    folder = os.fspath(folder)
    inside = list(_sizes(folder))
    for some in ([name for name in inside if name == COMMITTED], [name for name in inside if name != COMMITTED]):
        _delete([f"{folder}/{name}" for name in some])


def empty_trash(folder: Path) -> None:
    """Delete what a killed ``remove`` left in a local folder."""
    if not remote(folder) and (pathlib.Path(folder) / _TRASH).exists():
        shutil.rmtree(pathlib.Path(folder) / _TRASH)


def _listed(folder: str) -> dict[str, dict[str, Any]]:
    """Return what the store says of each object below a folder, by its name from there; not of empty "name/"."""
    found = retry(lambda: _of(folder).find(folder, detail=True), folder)
    start = len(folder.partition("://")[2].rstrip("/")) + 1
    return {name[start:]: entry for name, entry in sorted(found.items()) if not name.endswith("/")}


def _sizes(folder: str) -> dict[str, int]:
    return {name: entry["size"] for name, entry in _listed(folder).items()}


def _delete(paths: Iterable[str]) -> None:
    paths = list(paths)
    if paths:
        try:
            retry(lambda: _of(paths[0]).rm(paths), paths[0])
        except FileNotFoundError:
            pass  # an attempt whose answer was lost had deleted them


def upload(folder: Path, target: Path, last: str) -> None:
    """Copy a local folder to a remote one, the file ``last`` after all others."""
    files = sorted(file for file in pathlib.Path(folder).rglob("*") if file.is_file())
    for file in sorted(files, key=lambda file: file == pathlib.Path(folder) / last):
        place = f"{os.fspath(target)}/{file.relative_to(folder).as_posix()}"
        retry(functools.partial(_of(target).put_file, str(file), place), place)


def stage(folder: Path, home: Path) -> pathlib.Path:
    """Return a local copy of a remote folder, under ``home``, complete; made once for each state of the folder.

    For readers that know local files only, as array_record's, which waits forever for gs://. Processes may stage the
    same folder at once: each copies aside and renames, the first one's stays. A local folder is returned itself.

    Raises:
      FileNotFoundError: there is nothing in the folder.
    """
    if not remote(folder):
        return pathlib.Path(folder)
    folder = os.fspath(folder).rstrip("/")
    found = _listed(folder)
    if not found:
        raise FileNotFoundError(f"{folder}: nothing is there to copy to this machine")
    state = [(n, e["size"], e.get("generation"), e.get("md5Hash"), e.get("crc32c")) for n, e in found.items()]
    digest = hashlib.sha256(repr((folder, state)).encode()).hexdigest()[:16]
    place = pathlib.Path(home) / f"{folder.rpartition('/')[2]}-{digest}"
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = pathlib.Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        for name, entry in found.items():
            file = aside / name
            file.parent.mkdir(parents=True, exist_ok=True)
            retry(functools.partial(_of(folder).get_file, f"{folder}/{name}", str(file)), f"{folder}/{name}")
            if file.stat().st_size != entry["size"]:
                raise OSError(f"{folder}/{name}: {file.stat().st_size} bytes came of {entry['size']}")
        try:
            aside.rename(place)
        except OSError:
            if not place.exists():  # else another process was first
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return place
