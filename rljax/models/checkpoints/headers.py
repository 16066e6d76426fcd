"""The header of a safetensors file: which tensors the file has, and where.

A file is eight bytes with the length of a JSON header, the header, and the bytes of the tensors, which follow each
other without gap or overlap and fill the file (huggingface/safetensors, README, "Format").
"""

import itertools
import operator
from typing import Any

from etils import epath

from rljax.data import documents, storage
from rljax.language import messages

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


def read(path: epath.Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Return dtype, shape and first byte in the file of each tensor of a file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is truncated or not safetensors; the message names the file and the tensor.
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
        dtype, shape, start, stop = _entry(entry, f"{where}: {messages.shown(name)}")
        result[name] = dtype, shape, 8 + length + start
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
        raise ValueError(f"{where} has dtype {messages.shown(dtype)}, expected one of {', '.join(_BITS)}")
    if not isinstance(shape, list) or not all(type(n) is int for n in shape):
        raise ValueError(f"{where} has shape {messages.shown(shape)}, expected a list of numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise ValueError(f"{where} has data_offsets {messages.shown(offsets)}, expected two numbers")
    sizes = list(itertools.accumulate([*shape, _BITS[dtype]], operator.mul))
    if sizes[-1] != 8 * (offsets[1] - offsets[0]) or max(sizes) >= _LARGEST:
        raise ValueError(f"{where}, {messages.shown(shape)} {dtype}, has bytes {offsets[0]} to {offsets[1]}")
    return dtype, tuple(shape), *offsets


def _count(text: str) -> int:
    number = int(text) if len(text) < 20 and text.isdigit() else _LARGEST
    if number >= _LARGEST:
        raise ValueError(f"{text[:40]} is not a size")
    return number
