"""The work directories among some folders and patterns, on this machine or gs://."""

import fnmatch
import os
import re
from collections.abc import Iterable

from rljax.data import storage

_DEPTH = 4  # levels of folders in which runs are searched
_PATTERN = r"[*?\[]"


def find(places: Iterable[storage.Path]) -> list[str]:
    """Return the work directories among some folders and below them, in the order given.

    Args:
      places: work directories, folders of work directories, and patterns such as ``runs/*-seed=?``.

    Raises:
      ValueError: a place does not exist or has no run.
    """
    found: dict[str, None] = {}
    for place in places:
        text = os.fspath(storage.path(place)).rstrip("/")
        matching = _expanded(text) if re.search(_PATTERN, text) else [text]
        runs = [run for folder in matching for run in _below(folder, _DEPTH)]
        if not runs:
            missing = not matching or not any(storage.exists(folder) for folder in matching)
            problem = "no such folder" if missing else "no run: no folder with a config.json here"
            raise ValueError(f"{os.fspath(place)}: {problem}.")
        found.update(dict.fromkeys(runs))
    return list(found)


def _expanded(pattern: str) -> list[str]:
    scheme, separator, rest = pattern.partition("://")
    parts = rest.split("/") if separator else pattern.split("/")
    folders = [f"{scheme}://{parts[0]}"] if separator else [parts[0] or "/"]
    for part in parts[1:]:
        fixed = not re.search(_PATTERN, part)
        folders = [
            f"{folder.rstrip('/')}/{name}"
            for folder in folders
            for name in ([part] if fixed else fnmatch.filter(storage.names(folder), part))
        ]
    return folders


def _below(folder: str, depth: int) -> list[str]:
    names = storage.names(folder) if storage.is_dir(folder) else []
    if "config.json" in names:
        return [folder]
    inner = names if depth > 1 else []
    return [run for name in inner for run in _below(f"{folder}/{name}", depth - 1)]
