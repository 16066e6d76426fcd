"""Safetensors files: list the tensors of a folder, read one, write a folder.

A file is eight bytes with the length of a JSON header, the header, and the bytes of the tensors (safetensors, Hugging
Face). The library of that name reads whole local files, or needs a framework for bfloat16; this module reads single
tensors, from disk or from gs://. No other format is read, pickle in particular.
"""

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors.numpy
from etils import epath

from rljax.data import storage

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


def index(folder: str) -> dict[str, Tensor]:
    """Return every tensor of a folder, by name.

    Raises:
      ValueError: the folder has no safetensors, a file that the index lists is missing, or a file is truncated or has
        an invalid header.
    """
    directory = epath.Path(folder)
    if not storage.is_dir(directory):
        raise ValueError(f"weights {folder!r}: no such folder")
    present = storage.names(directory)
    if INDEX in present:
        listed = sorted(set(json.loads(storage.read(directory / INDEX))["weight_map"].values()))
    else:
        listed = [name for name in present if name.endswith(".safetensors")]
    if not listed:
        pickles = [name for name in present if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
        hint = f"; {pickles[0]} is pickle, which is never read: convert it to safetensors" if pickles else ""
        raise ValueError(f"weights {folder!r}: no *.safetensors{hint}")
    result: dict[str, Tensor] = {}
    for name in listed:
        if name not in present:
            raise ValueError(f"weights {folder!r}: {INDEX} lists {name}, which is missing")
        result |= _header(directory / name)
    return result


def _header(path: epath.Path) -> dict[str, Tensor]:
    size = storage.size(path)
    length = int.from_bytes(storage.read(path, 0, 8), "little") if size >= 8 else 0
    if size < 8 or length > size - 8:
        raise ValueError(f"{path}: truncated, or not safetensors: {size} bytes, with a header of {length}")
    try:
        header = json.loads(storage.read(path, 8, 8 + length))
    except ValueError:
        raise ValueError(f"{path}: not safetensors: its header is not JSON") from None
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        (start, stop), shape, dtype = entry["data_offsets"], tuple(entry["shape"]), entry["dtype"]
        if 8 + length + stop > size:
            raise ValueError(f"{path}: truncated: {name} ends at byte {8 + length + stop} of {size}")
        if dtype in _DTYPES:
            if stop - start != np.dtype(_DTYPES[dtype]).itemsize * math.prod(shape):
                raise ValueError(f"{path}: {name} {shape} {dtype} has {stop - start} bytes")
        result[name] = Tensor(path, dtype, shape, 8 + length + start)
    return result


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
