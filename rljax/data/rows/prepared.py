"""Rows of a data set that tfds has prepared in array_record files; nothing is downloaded."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from rljax import data
from rljax.data import documents, rows, storage
from rljax.data.rows import files
from rljax.language import messages, parse


class Prepared(rows.Part):
    """The rows of a split."""

    def __init__(self, name: str, source: Any):
        self._name, self._source = name, source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: _plain(value) for name, value in self._source[index].items()}

    def columns(self) -> Mapping[str, int]:
        """Return for each column the number of rows: tfds has no null."""
        return dict.fromkeys(self._source[0] if len(self) else (), len(self))


def read(name: str) -> Prepared:
    """Return the rows of "tfds:NAME/SPLIT", or of a folder that tfds has prepared, or "FOLDER/SPLIT".

    Raises:
      ValueError: the data set is not prepared on this machine, has no such split, or is not in array_record.
    """
    if name.startswith(files.TFDS):
        named, _, split = name.removeprefix(files.TFDS).rpartition("/")
        if not named or ":" in named:  # a name with a colon would be downloaded
            raise ValueError(f"{name}: expected {files.TFDS}NAME/SPLIT")
        try:
            builder: Any = tfds.builder(named)
        except (tfds.core.DatasetNotFoundError, ValueError, TypeError) as error:
            home = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
            text = f"tfds has no data set of this name, and none is prepared in {home} ($TFDS_DATA_DIR)"
            raise ValueError(f"{name}: {text}") from error
    else:
        folder, split = (name, "") if storage.is_dir(storage.path(name)) else name.rsplit("/", 1)
        local = storage.stage(folder, data.cache_folder()) if storage.remote(folder) else storage.path(folder)
        _check(local)
        builder = tfds.builder_from_directory(str(local))
    splits = list(builder.info.splits)
    if not splits:
        raise ValueError(f"{name}: not prepared; run tfds build {builder.name} --file_format=array_record first")
    split = split or (splits[0] if len(splits) == 1 else "")
    if split not in splits:
        raise ValueError(f"{name}: no split {split!r}.{parse.nearest(split, splits)}")
    try:
        return Prepared(name, builder.as_data_source(split))
    except NotImplementedError as error:
        raise ValueError(f"{name}: not in array_record: {messages.shown(str(error))}") from error


def _check(folder: Any) -> None:
    """Raise ValueError if the settings of a data set name a class outside tfds: tfds would import its module."""
    waiting: list[Any] = [documents.read(folder / "features.json")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            names = (value.get(key) for key in ("type", "pythonClassName", "python_class_name"))
            for name in names:
                if isinstance(name, str) and not name.startswith("tensorflow_datasets."):
                    raise ValueError(f"{folder}: features.json names {messages.shown(name)}, code outside tfds")
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _plain(value: Any) -> Any:
    """Return bytes as text if they are UTF-8, arrays as lists, scalars as numbers."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value
