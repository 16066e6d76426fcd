"""Rows of any source as one array_record file of JSON objects: written once, whole or not at all."""

import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue] (compiled)

from rljax.data import documents, rows, storage
from rljax.language import messages

FILE = "rows.array_record"
MANIFEST = "manifest.json"


class Prepared(NamedTuple):
    """The result of ``prepare``."""

    folder: str
    read: int  # rows of the source
    written: int
    existed: bool  # the folder had these rows already; nothing was written


def prepare(
    source: storage.Path | Sequence[storage.Path],
    target: storage.Path,
    *,
    format: str = "",
    unique: Sequence[str] = (),
    shuffle: int | None = None,
) -> Prepared:
    """Write the rows of a source to a folder that ``rows.read`` accepts.

    Args:
      source: as in ``rows.read``.
      target: the folder, local or gs://. If it exists with the same rows, nothing is written.
      format: of the source, as in ``rows.read``.
      unique: columns; of several rows with equal values in them, the first one is kept. (): all rows are kept.
      shuffle: seed of a random order; None: the order of the source.

    Returns:
      Counts of rows.

    Raises:
      ValueError: the source is damaged, a value is not JSON, or the folder has something else.
    """
    source_rows = rows.read(source, format)
    source_rows.require(unique)
    lines = [_line(source_rows, index, row) for index, row in enumerate(source_rows)]
    order = _first(source_rows, unique) if unique else np.arange(len(lines))
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(order)
    digest = hashlib.sha256()
    for index in order:
        digest.update(lines[index] + b"\n")
    place = storage.path(target)
    manifest = {"rows": len(order), "sha256": digest.hexdigest()}
    if existed := bool(storage.names(place)):
        if MANIFEST not in storage.names(place) or documents.read(place / MANIFEST) != manifest:
            raise ValueError(f"{target}: exists with other content; delete it or choose another folder")
    else:
        _write(place, [lines[index] for index in order], manifest)
    return Prepared(str(target), len(lines), len(order), existed)


def _line(source_rows: rows.Rows, index: int, row: Any) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{source_rows.where(index)}: cannot be written as JSON: {messages.shown(str(error))}"
        ) from error


def _first(source_rows: rows.Rows, columns: Sequence[str]) -> np.ndarray:
    """Return the index of the first row of each combination of values in some columns, in order."""
    keys: dict[str, int] = {}
    for index, row in enumerate(source_rows):
        keys.setdefault(json.dumps([row[column] for column in columns], sort_keys=True), index)
    return np.array(list(keys.values()))


def _write(place: Any, lines: Sequence[bytes], manifest: dict[str, Any]) -> None:
    """Write the files to a temporary folder, then rename or upload it, the manifest last."""
    remote = storage.remote(place)
    if not remote:
        pathlib.Path(place).parent.mkdir(parents=True, exist_ok=True)
    parent = None if remote else pathlib.Path(place).parent
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=parent))
    try:
        writer = array_record_module.ArrayRecordWriter(str(temporary / FILE), "group_size:1")
        for line in lines:
            writer.write(line)
        writer.close()
        (temporary / MANIFEST).write_text(json.dumps(manifest))
        if remote:
            storage.upload(temporary, place, last=MANIFEST)
        else:
            temporary.chmod(0o777 & ~_umask())
            os.rename(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
