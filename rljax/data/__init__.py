"""Data: tokenizers, shuffles without a table, and readers of files on disk."""

import os
import pathlib


def cache_folder(folder: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Return ``folder``, else what RLJAX_CACHE says, else rljax under the user's cache directory."""
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = os.environ.get("RLJAX_CACHE") or os.path.join(home, "rljax")
    return pathlib.Path(folder).expanduser()
