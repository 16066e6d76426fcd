"""What a chip's memory holds at the peak of a program, by cause, from two texts that the compiler writes.

One says where each value is placed, in which allocation and at which offset; the other from which instruction to which
it is needed. Values at one place at one time are one buffer, and arguments are held throughout. A cause is read from
the names of a buffer's operations, their source lines and its shape.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from rljax.aot import hlo
from rljax.training import steps

_TEXTS = "buffer-assignment", "live-range"  # the two texts, as the compiler's files are called
_ALLOCATION = re.compile(r"allocation (\d+): size (\d+), (?:parameter (\d+))?(.*)")
_VALUE = re.compile(r" value: <\d+ ([\w.\-]+)(\{[\d,]*\})?[^>]*> \(size=(\d+),offset=(\d+)\): \w+\[([\d,]*)\]")
_RANGE = re.compile(r"^    (\S+\{[\d,]*\}):(\d+)-(\d+)$", re.M)

_ARGUMENTS = (  # paths of arguments -> cause
    (r"(?:state\.)?params", "parameters"),
    (r"arrived\.totals", "gradients"),  # of an update in parts
    (r"state\.opt_state", "moments of the optimizer"),
    (r"state\.(?:reference|frozen|snapshot)", "reference and frozen modules"),
    (r"", "rows and other arguments"),
)
_KEPT = "weights converted, copied or kept"
_TEMPORARIES = (  # operations and source lines -> cause; the first that is found
    (r"optax|training/learning/optimizers\.py", "the state after the update"),
    (r"models/scores/", "logits and head"),
    (r"models/network/(?:caches|reads)\.py|sampling/decode\.py", "cache of keys and values"),
    (r"jvp\(\)/while/body/\S*dynamic_update_slice", "activations kept for the backward pass"),
    (r"", "activations of a layer and others"),
)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A place in memory at the peak.

    Attributes:
      size: bytes.
      dims: the dimensions of its array.
      names: the instructions whose values are there, before and after the peak too.
      argument: the number of the argument whose memory it is, or None.
    """

    size: int
    dims: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    argument: int | None = None


@dataclasses.dataclass(frozen=True)
class _Value:
    name: str
    size: int
    dims: tuple[int, ...]
    start: int
    end: int


def at_peak(folder: pathlib.Path) -> tuple[Buffer, ...]:
    """Return the buffers at the peak of the largest program dumped to a folder; none without its texts."""
    texts = [sorted(folder.glob(f"*{kind}.txt"), key=lambda path: path.stat().st_size) for kind in _TEXTS]
    if not all(texts):
        return ()
    placed, lived = (paths[-1].read_text() for paths in texts)
    ranges = {name: (int(start), int(end)) for name, start, end in _RANGE.findall(lived)}
    buffers, places = _placed(placed, ranges)
    held = np.zeros(max((end for _, end in ranges.values()), default=0) + 1, np.int64)
    for values in places:
        most = np.zeros_like(held)
        for v in values:
            np.maximum(most[v.start : v.end + 1], v.size, out=most[v.start : v.end + 1])
        held += most
    peak = int(held.argmax())
    for values in places:
        live = [v for v in values if v.start <= peak <= v.end]
        if live:
            buffers.append(_joined(max(live, key=lambda v: v.size), values))
    return tuple(buffers)


def _joined(value: _Value, values: list[_Value]) -> Buffer:
    """Return the buffer of a value with those of its size that it follows or becomes at the same place."""
    count, same = 0, [value]
    while len(same) > count:
        count, start, end = len(same), min(v.start for v in same) - 1, max(v.end for v in same) + 1
        same = [v for v in values if v.size == value.size and v.end >= start and v.start <= end]
    return Buffer(value.size, value.dims, tuple(dict.fromkeys(v.name for v in same)))


def _placed(text: str, ranges: dict[str, tuple[int, int]]) -> tuple[list[Buffer], list[list[_Value]]]:
    """Return the buffers of arguments, and the other values in the chip's memory by place."""
    arguments: list[Buffer] = []
    places: dict[tuple[str, str], list[_Value]] = {}
    number = ""
    for line in text.splitlines():
        if head := _ALLOCATION.match(line):
            inside = "thread-local" not in head[4] and "color" not in head[4]  # a color is another memory
            number = "" if head[3] or not inside else head[1]
            if head[3] and inside:
                arguments.append(Buffer(int(head[2]), argument=int(head[3])))
        elif number and (value := _VALUE.match(line)) and (name := value[1] + (value[2] or "{}")) in ranges:
            dims = tuple(map(int, filter(None, value[5].split(","))))
            places.setdefault((number, value[4]), []).append(_Value(value[1], int(value[3]), dims, *ranges[name]))
    return arguments, list(places.values())


def causes(buffers: tuple[Buffer, ...], module: hlo.Module, step: steps.Step, peak: int) -> dict[str, int]:
    """Return the bytes at the peak by cause, which sum to ``peak``.

    Args:
      buffers: of ``at_peak``.
      module: the program.
      step: the step that it belongs to.
      peak: the bytes live at the peak, as the compiler reports them.

    Returns:
      Bytes by cause, the largest first; empty if there are no buffers.
    """
    known = {i.name: i for c in module.computations.values() for i in c.instructions.values()}
    entry = module.computations[module.entry]
    stored, gathered = (set(_sizes(step, each)) for each in (True, False))
    sums: dict[str, int] = {}
    for b in buffers:
        if b.argument is None:
            holders = [known[name] for name in b.names if name in known]
            text = " ".join(f"{i.opcode} {i.op} {module.source(i)}" for i in holders)
            cause = _cause(text, _dims(b.dims), stored, gathered)
        else:
            path = known[name].op if (name := entry.parameter(b.argument)) else ""
            cause = next(cause for pattern, cause in _ARGUMENTS if re.match(pattern, path))
        sums[cause] = sums.get(cause, 0) + b.size
    if buffers:
        sums["not in the account"] = peak - sum(sums.values())
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _cause(text: str, dims: tuple[int, ...], stored: set[Any], gathered: set[Any]) -> str:
    """Return why a buffer is held that is not an argument, from its operations and source lines and its dimensions."""
    if dims in gathered and (re.search("all-gather|training/sharding", text) or "(" not in text):  # or a plain copy
        return "gathered weights"
    first = next(cause for pattern, cause in _TEMPORARIES if re.search(pattern, text))
    if dims in stored and first != _TEMPORARIES[0][1]:
        return "gradients" if re.search(r"transpose\(|learning/gradients\.py", text) else _KEPT
    return first


def _dims(dims: Any) -> tuple[int, ...]:
    """Return the dimensions of an array in any order, without those of size 1."""
    return tuple(sorted(n for n in dims if n > 1))


def _sizes(step: steps.Step, shards: bool) -> Iterator[tuple[int, ...]]:
    """Yield the dimensions of matrices of parameters: of a chip's shards, or gathered, of a layer too."""
    mesh = step.setup.mesh.shape
    ways = {1, mesh["tensor"], mesh["tensor"] * mesh["fsdp_tensor"]}  # a gathered matrix may be split by these
    for leaf in (x for x in jax.tree.leaves(step.shape.params) if x.ndim > 1):
        if shards:
            yield _dims(leaf.sharding.shard_shape(leaf.shape))
            continue
        for dims, way in itertools.product((leaf.shape, leaf.shape[1:]), ways):
            yield from (_dims((*dims[:i], n // way, *dims[i + 1 :])) for i, n in enumerate(dims) if n % way == 0)
