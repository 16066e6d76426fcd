"""Safetensors files: list the tensors of a folder, read one, write a folder.

A file is eight bytes with the length of a JSON header, the header, and the bytes of the tensors (safetensors, Hugging
Face). The library of that name reads whole local files, or needs a framework for bfloat16; this module reads single
tensors, from disk or from gs://. No other format is read, pickle in particular.
"""

import itertools
import json
import math
import operator
import reprlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors.numpy
from etils import epath

from rljax.data import documents, storage

_DTYPES: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
# bits of an element of each dtype that a file may have
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_LONGEST_HEADER = 100_000_000  # bytes, the format's limit
_LARGEST = 1 << 63  # sizes and counts of bits are below it
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
            part = _header(directory / name)
        except FileNotFoundError:
            raise ValueError(f"{directory / name}: a link to a file that does not exist") from None
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
            shown = reprlib.repr(name)
            raise ValueError(
                f"{directory / INDEX}: {tensor[:100]!r} is in {shown}, expected a safetensors file beside it"
            )
    return listed


def _header(path: epath.Path) -> dict[str, Tensor]:
    """Return the tensors of a file, whose bytes must follow each other without gap or overlap and fill the file.

    The rules are those of the format's description (huggingface/safetensors, README, "Format").
    """
    size = documents.size(path)
    length = int.from_bytes(storage.read(path, 0, 8), "little") if size >= 8 else 0
    if size < 8 or length > size - 8:
        raise ValueError(f"{path}: truncated, or not safetensors: {size} bytes, with a header of {length}")
    if length > _LONGEST_HEADER:
        raise ValueError(f"{path}: not safetensors: a header of {length:,} bytes, expected at most {_LONGEST_HEADER:,}")
    content = storage.read(path, 8, 8 + length)
    where = f"{path}: not safetensors: its header"
    header = documents.parse(content, where, integer=_count) if content.startswith(b"{") else None
    if not isinstance(header, dict):
        raise ValueError(f"{where} is not JSON: it must be an object")
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise ValueError(f"{where}: __metadata__ must map names to texts")
    result, spans = {}, []
    for name, entry in header.items():
        dtype, shape, start, stop = _entry(entry, f"{where}: {reprlib.repr(name)}")
        result[name] = Tensor(path, dtype, shape, 8 + length + start)
        spans.append((start, stop, name))
    end = 0
    for start, stop, name in sorted(spans):
        if start != end:
            raise ValueError(
                f"{where}: {name[:100]!r} starts at byte {start}, expected {end}, where the one before ends"
            )
        end = stop
    if 8 + length + end != size:
        problem = "truncated" if 8 + length + end > size else "not safetensors"
        raise ValueError(f"{path}: {problem}: its tensors end at byte {8 + length + end} of {size}")
    return result


def _entry(entry: Any, where: str) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape, and first and last byte of a header's entry."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{where} must have dtype, shape and data_offsets only")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"{where} has dtype {reprlib.repr(dtype)}, expected one of {', '.join(_BITS)}")
    if not isinstance(shape, list) or not all(type(n) is int for n in shape):
        raise ValueError(f"{where} has shape {reprlib.repr(shape)}, expected a list of numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise ValueError(f"{where} has data_offsets {reprlib.repr(offsets)}, expected two numbers")
    sizes = list(itertools.accumulate([*shape, _BITS[dtype]], operator.mul))
    if sizes[-1] != 8 * (offsets[1] - offsets[0]) or max(sizes) >= _LARGEST:
        raise ValueError(f"{where}, {reprlib.repr(shape)} {dtype}, has bytes {offsets[0]} to {offsets[1]}")
    return dtype, tuple(shape), *offsets


def _count(text: str) -> int:
    number = int(text) if len(text) < 20 and text.isdigit() else _LARGEST
    if number >= _LARGEST:
        raise ValueError(f"{text[:40]} is not a size")
    return number


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
