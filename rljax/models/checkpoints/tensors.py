"""Safetensors files: what is in a folder of them, reading a tensor, writing a folder.

The format is eight bytes with the length of a JSON header, the header, and the tensors' bytes (safetensors, Hugging
Face). The library of that name reads whole local files or needs a framework for bfloat16; here a tensor is read by
itself, from disk or from gs://. Nothing else is ever read: no pickle.
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
    """Where a tensor stands."""

    path: epath.Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # byte of the file

    def read(self) -> np.ndarray:
        """Return the tensor; a file on this machine is mapped, not copied."""
        kind = np.dtype(_DTYPES[self.dtype])
        if not storage.remote(self.path):
            return np.memmap(self.path, kind, mode="r", offset=self.start, shape=self.shape)
        content = storage.read(self.path, self.start, self.start + kind.itemsize * math.prod(self.shape))
        return np.frombuffer(content, kind).reshape(self.shape)


def index(folder: str) -> dict[str, Tensor]:
    """Return every tensor of a folder, by name.

    Raises:
      ValueError: no safetensors there, one that the index names is missing, a file cut short, or no such header.
    """
    here = epath.Path(folder)
    if not storage.is_dir(here):
        raise ValueError(f"weights {folder!r}: no such folder")
    present = storage.names(here)
    if INDEX in present:
        listed = sorted(set(json.loads(storage.read(here / INDEX))["weight_map"].values()))
    else:
        listed = [name for name in present if name.endswith(".safetensors")]
    if not listed:
        other = [name for name in present if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
        hint = f"; {other[0]} is pickle, which is never read: convert it to safetensors" if other else ""
        raise ValueError(f"weights {folder!r}: no *.safetensors{hint}")
    found: dict[str, Tensor] = {}
    for name in listed:
        if name not in present:
            raise ValueError(f"weights {folder!r}: {INDEX} names {name}, which is not there")
        found |= _header(here / name)
    return found


def _header(path: epath.Path) -> dict[str, Tensor]:
    size = storage.size(path)
    length = int.from_bytes(storage.read(path, 0, 8), "little") if size >= 8 else 0
    if size < 8 or length > size - 8:
        raise ValueError(f"{path}: cut short, or no safetensors: {size} bytes, and a header of {length}")
    try:
        header = json.loads(storage.read(path, 8, 8 + length))
    except ValueError:
        raise ValueError(f"{path}: no safetensors: its header is not JSON") from None
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        (start, stop), shape, dtype = entry["data_offsets"], tuple(entry["shape"]), entry["dtype"]
        if 8 + length + stop > size:
            raise ValueError(f"{path}: cut short: {name} ends at byte {8 + length + stop} of {size}")
        if dtype in _DTYPES:
            if stop - start != np.dtype(_DTYPES[dtype]).itemsize * math.prod(shape):
                raise ValueError(f"{path}: {name} {shape} {dtype} has {stop - start} bytes")
        found[name] = Tensor(path, dtype, shape, 8 + length + start)
    return found


def floating(tensor: Tensor) -> bool:
    """Tell whether a tensor is of a kind that weights are read from."""
    return tensor.dtype in _DTYPES


def write(folder: epath.Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int) -> None:
    """Write tensors to files of about ``shard_bytes``, with an index where there are several; holds one of them."""
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
