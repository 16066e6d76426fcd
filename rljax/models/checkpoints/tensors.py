"""Safetensors files: list the tensors of a folder, read one, write a folder.

The library of that name reads whole local files, or needs a framework for bfloat16; this module reads single tensors,
from disk or from gs://. No other format is read, pickle in particular.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors.numpy
from etils import epath

from rljax.data import documents, storage
from rljax.language import messages
from rljax.models.checkpoints import headers

_DTYPES: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
INDEX = "model.safetensors.index.json"


class Tensor(NamedTuple):
    """The place of a tensor in a file."""

    path: epath.Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # offset in the file, bytes

    def read(self) -> np.ndarray:
        """Return the tensor; a local file is memory-mapped, not copied."""
        dtype = np.dtype(_DTYPES[self.dtype])
        if not storage.remote(self.path):
            return np.memmap(self.path, dtype, mode="r", offset=self.start, shape=self.shape)
        content = storage.read(self.path, self.start, self.start + dtype.itemsize * math.prod(self.shape))
        return np.frombuffer(content, dtype).reshape(self.shape)

    def parts(self, count: int) -> list["Tensor"]:
        """Return the tensor cut along its first dimension into equal parts."""
        shape = (self.shape[0] // count, *self.shape[1:])
        size = np.dtype(_DTYPES[self.dtype]).itemsize * math.prod(shape)
        return [Tensor(self.path, self.dtype, shape, self.start + i * size) for i in range(count)]


def digest(folder: str) -> str:
    """Return the SHA-256 of the safetensors of a folder, one file after the other by name, as ``sha256sum`` prints it.

    Raises:
      ValueError: as ``index``.
    """
    whole = hashlib.sha256()
    for path in sorted({tensor.path for tensor in index(folder).values()}):
        for content in storage.parts(path):
            whole.update(content)
    return whole.hexdigest()


def index(folder: str) -> dict[str, Tensor]:
    """Return every tensor of a folder, by name.

    Raises:
      ValueError: the folder has no safetensors; a file is missing, truncated or not what the format allows; or the
        index disagrees with the files. The message names the file.
    """
    directory = epath.Path(folder)
    if not storage.is_dir(directory):
        raise ValueError(f"weights {folder!r}: no such folder")
    present = storage.names(directory)
    listed = _listed(directory) if INDEX in present else {}
    files = sorted(set(listed.values())) or [name for name in present if name.endswith(".safetensors")]
    if not files:
        pickles = [name for name in present if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
        hint = f"; {pickles[0]} is pickle, which is never read: convert it to safetensors" if pickles else ""
        raise ValueError(f"weights {folder!r}: no *.safetensors{hint}")
    result: dict[str, Tensor] = {}
    for name in files:
        if name not in present:
            raise ValueError(f"weights {folder!r}: {INDEX} lists {name}, which is missing")
        try:
            entries = headers.read(directory / name)
        except FileNotFoundError:
            raise ValueError(f"{directory / name}: a link to a file that does not exist") from None
        part = {tensor: Tensor(directory / name, *entry) for tensor, entry in entries.items()}
        if twice := result.keys() & part.keys():
            raise ValueError(f"{directory / name}: {min(twice)} is also in {result[min(twice)].path.name}")
        result |= part
    for tensor, name in listed.items():
        if tensor not in result or result[tensor].path.name != name:
            raise ValueError(f"{directory / INDEX}: lists {tensor[:100]!r} in {name}, which does not have it")
    return result


def _listed(directory: epath.Path) -> dict[str, str]:
    """Return the file of each tensor by the folder's index, which may name files of this folder only."""
    listed = documents.read(directory / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{directory / INDEX}: weight_map is {documents.kind(listed)}, expected a file of each tensor")
    for tensor, name in listed.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name or "\\" in name:
            shown = messages.shown(name)
            raise ValueError(
                f"{directory / INDEX}: {tensor[:100]!r} is in {shown}, expected a safetensors file beside it"
            )
    return listed


def floating(tensor: Tensor) -> bool:
    """Return whether a tensor has a dtype that parameters are read from."""
    return tensor.dtype in _DTYPES


def write(folder: epath.Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int) -> None:
    """Write tensors to one or several files, with an index if there are several.

    One file is in memory at a time.

    Args:
      folder: an existing folder, local or gs://.
      tensors: names and tensors.
      shard_bytes: about the most bytes of a file; a larger tensor has a file of its own.
    """
    held: dict[str, np.ndarray] = {}
    where: dict[str, str] = {}
    total = size = count = 0

    def flush(name: str) -> None:
        storage.write(folder / name, safetensors.numpy.save(held, {"format": "pt"}))
        where.update(dict.fromkeys(held, name))
        held.clear()

    for name, x in tensors:
        if held and size + x.nbytes > shard_bytes:
            count, size = count + 1, 0
            flush(f"model-{count:05d}.safetensors")
        held[name], size, total = x, size + x.nbytes, total + x.nbytes
    flush(f"model-{count + 1:05d}.safetensors" if count else "model.safetensors")
    if count:
        listing = {"metadata": {"total_size": total}, "weight_map": where}
        storage.write(folder / INDEX, json.dumps(listing, indent=1))
