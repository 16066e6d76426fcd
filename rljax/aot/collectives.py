"""Communication of a compiled program: collectives by kind, mesh axis, network and bytes.

Bytes are those each chip sends with the algorithm that sends least, for n chips in a group and an operand of b bytes:

    all-gather          b (n - 1)          each chip's shard goes to all others
    reduce-scatter      b (n - 1) / n
    all-reduce          2 b (n - 1) / n    a reduce-scatter and an all-gather
    all-to-all          b (n - 1) / n
    collective-permute  b

times the trip counts of all enclosing loops. Rewrites by the compiler are undone: an all-reduce of which each chip
keeps its shard counts as a reduce-scatter; one gather spread over several fusions counts once. A gather rewritten as a
chain of permutes stays permutes, which send the same bytes. Between slices, the compiler passes arrays to the host,
which sends them over the data-center network ("dcn").
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from rljax.aot import hlo

_KINDS = {
    "all-gather": lambda b, n: b * (n - 1),
    "reduce-scatter": lambda b, n: b * (n - 1) / n,
    "all-reduce": lambda b, n: 2 * b * (n - 1) / n,
    "all-to-all": lambda b, n: b * (n - 1) / n,
    "ragged-all-to-all": lambda b, n: b * (n - 1) / n,
    "collective-broadcast": lambda b, n: b,
    "collective-permute": lambda b, n: b,
}
_TRANSFERS = {"ALL_REDUCE": "all-reduce", "ALL_GATHER": "all-gather", "REDUCE_SCATTER": "reduce-scatter"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """The mesh positions of a program's devices: device i is the i-th device of the mesh in row-major order.

    Attributes:
      axes: names of the mesh axes.
      sizes: devices along each axis.
      slices: the slice index of each device.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    slices: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes)

    def along(self, groups: Iterable[Iterable[int]]) -> tuple[str, ...]:
        """Return the mesh axes along which the devices of some group differ."""
        varying: set[int] = set()
        for group in groups:
            positions = np.stack(np.unravel_index(np.asarray(list(group)), self.sizes))
            varying |= set(np.flatnonzero(np.ptp(positions, axis=1)).tolist())
        return tuple(self.axes[i] for i in sorted(varying))

    def crosses(self, groups: Iterable[Iterable[int]]) -> bool:
        """Return whether some group spans slices."""
        return any(len({self.slices[i] for i in group}) > 1 for group in groups)

    @property
    def between_slices(self) -> tuple[str, ...]:
        """The mesh axes along which the slice changes."""
        grid = np.asarray(self.slices).reshape(self.sizes)
        return tuple(a for i, a in enumerate(self.axes) if np.ptp(grid, axis=i).any())


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective and how often it runs.

    Attributes:
      kind: the kind of collective, such as "all-gather".
      axes: mesh axes along which it communicates.
      network: "ici" within a slice, "dcn" between slices.
      group: chips in a group.
      operand: the arrays it reads, on one chip.
      times: number of runs.
      op: its name in the traced program.
      source: "file:line", or empty.
    """

    kind: str
    axes: tuple[str, ...]
    network: str
    group: int
    operand: tuple[hlo.Shape, ...]
    times: float
    op: str
    source: str

    @property
    def sent(self) -> float:
        """Bytes that one chip sends in all runs."""
        return self.times * _KINDS[self.kind](sum(s.bytes for s in self.operand), self.group)


def groups(attributes: str, count: int) -> list[list[int]]:
    """Return the device groups of a collective.

    Args:
      attributes: the attributes of the instruction, with groups in one of the forms {{0,1},{2,3}}; [2,2]<=[4];
        [4,4]<=[2,8]T(1,0); mesh['a'=2,'b'=4] {'b'}, possibly with permuted devices.
      count: number of devices, all in one group if the attributes name none.

    Returns:
      For each group, the indices of its devices.

    Raises:
      ValueError: the groups have another form.
    """
    start = attributes.find("replica_groups=")
    if start < 0:
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
        return _listed(pairs[1]) if pairs else [list(range(count))]
    text = attributes[start + len("replica_groups=") :]
    if match := re.match(r"\{((?:\{[\d,]*\},?)*)\}", text):
        return _listed(match[1]) or [list(range(count))]
    if match := re.match(r"\[([\d,]+)\](<=\[[\d,]+\](?:T\([\d,]+\))?)", text):
        rows, width = _ints(match[1])
        return _iota(match[2]).reshape(rows, width).tolist()
    named = re.match(
        r"mesh\[([^\]]*)\](?:, device_ids=\((?:(\[[\d,]+\](?:T\([\d,]+\))?)|\[?([\d,]+)\]?)\))? \{([^}]*)\}", text
    )
    if named is None:
        raise ValueError(f"device groups in an unknown form: {text[:120]}")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
    devices = np.arange(math.prod(sizes.values()))
    if named[2]:
        devices = _iota("<=" + named[2]).reshape(-1)
    elif named[3]:
        devices = np.asarray(_ints(named[3]))
    return _along_axes(devices, sizes, named[4])


def _along_axes(devices: np.ndarray, sizes: dict[str, int], chosen: str) -> list[list[int]]:
    """Return the groups along the chosen axes; 'a':(2)4 is the factor of size 4 of axis a after a factor of size 2."""
    shape, grouped = [], []
    factors = {
        name: (int(major or 1), int(size or 0))
        for name, major, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)
    }
    for name, size in sizes.items():
        if name not in factors:
            shape.append(size)
            continue
        major, width = factors[name][0], factors[name][1] or size
        grouped.append(len(shape) + 1)
        shape += [major, width, size // major // width]
    rest = [i for i in range(len(shape)) if i not in grouped]
    grid = devices.reshape(shape).transpose(*rest, *grouped)
    return grid.reshape(-1, math.prod(shape[i] for i in grouped)).tolist()


def _ints(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def _listed(text: str) -> list[list[int]]:
    return [_ints(group) for group in re.findall(r"\{([\d,]*)\}", text)]


def _iota(text: str) -> np.ndarray:
    """Return the array denoted by "<=[4,2]T(1,0)": consecutive numbers in one shape, then transposed."""
    match = re.match(r"<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert match is not None
    shape = _ints(match[1])
    grid = np.arange(math.prod(shape)).reshape(shape)
    return grid.transpose(_ints(match[2])) if match[2] else grid


def _kind(run: hlo.Run) -> str | None:
    """Return the kind of collective of an instruction; None if it is not one, or is counted elsewhere."""
    instruction, computation = run.instruction, run.computation
    opcode = instruction.opcode.removesuffix("-start")
    if opcode not in _KINDS:
        return None
    if "async_collective_fusion_config" in instruction.attributes and "chain_id=" in instruction.attributes:
        # A collective spread over several fusions is counted once, in the fusion that starts it.
        starts = any('"AsyncCollectiveStart"' in i.attributes for i in computation.instructions.values())
        if not starts:
            return None
    if opcode == "all-reduce" and run.fused and computation.name.startswith("all-reduce-scatter"):
        return "reduce-scatter"
    return opcode


def _operands(run: hlo.Run) -> tuple[hlo.Shape, ...]:
    """Return the arrays that an instruction reads."""
    instructions = run.computation.instructions
    if run.instruction.operands and all(name in instructions for name in run.instruction.operands):
        return tuple(s for name in run.instruction.operands for s in instructions[name].shapes)
    return tuple(hlo.shapes(run.instruction.arguments))


def find(module: hlo.Module, layout: Layout, assumed: hlo.Assumed = hlo.BOUND) -> list[Collective]:
    """Return the collectives of a program that send bytes, in descending order of bytes.

    Args:
      module: the parsed program.
      layout: the mesh positions of its devices.
      assumed: as in ``hlo.runs``.

    Returns:
      One record for each collective instruction.
    """
    records = []
    for run in hlo.runs(module, assumed):
        instruction, kind = run.instruction, _kind(run)
        origin = instruction.op, module.source(instruction)
        if kind is not None:
            members = groups(instruction.attributes, layout.count)
            size = 2 if kind == "collective-permute" else max(map(len, members))
            network = "dcn" if layout.crosses(members) else "ici"
            records.append(Collective(kind, layout.along(members), network, size, _operands(run), run.times, *origin))
        elif instruction.opcode == "send":
            transfer = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
            kind = _TRANSFERS.get(transfer[1], "collective-permute") if transfer else "collective-permute"
            slices = len(set(layout.slices))
            operand = instruction.shapes[:1]
            records.append(Collective(kind, layout.between_slices, "dcn", slices, operand, run.times, *origin))
    return sorted((c for c in records if c.sent), key=lambda c: -c.sent)


def totals(collectives: Iterable[Collective]) -> Mapping[tuple[str, tuple[str, ...], str], tuple[float, float]]:
    """Return (runs, bytes sent by one chip) by (kind, axes, network), in descending order of bytes."""
    sums: dict[tuple[str, tuple[str, ...], str], tuple[float, float]] = {}
    for c in collectives:
        key = c.kind, c.axes, c.network
        runs, sent = sums.get(key, (0, 0.0))
        sums[key] = runs + c.times, sent + c.sent
    return dict(sorted(sums.items(), key=lambda item: -item[1][1]))


def sent(collectives: Iterable[Collective], network: str) -> float:
    """Return the bytes that one chip sends over ``network``, "ici" or "dcn"."""
    return sum(c.sent for c in collectives if c.network == network)
