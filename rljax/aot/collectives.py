"""What chips send each other in a program: collectives by kind, mesh axis, network and bytes.

Bytes are those each chip sends in the algorithm that sends least, for n chips in a group and an operand of b bytes:

    all-gather          b (n - 1)          each chip's part goes to all others
    reduce-scatter      b (n - 1) / n
    all-reduce          2 b (n - 1) / n    a reduce-scatter and an all-gather
    all-to-all          b (n - 1) / n
    collective-permute  b

times the turns of all loops around it. A compiler's rewriting is looked through: an all-reduce of which each chip
keeps its part is a reduce-scatter; one gather spread over several fusions is one gather; a gather rewritten as a chain
of permutes stays permutes, which send the same bytes. Between slices the compiler hands arrays to the host, which sends
them over the data centre's network ("dcn").
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
    """Where the devices of a program stand in a mesh; device i of a program is the i-th of the mesh, row by row."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    slices: tuple[int, ...]  # of each device

    @property
    def count(self) -> int:
        """Devices."""
        return math.prod(self.sizes)

    def along(self, groups: Iterable[Iterable[int]]) -> tuple[str, ...]:
        """Return the mesh axes along which the members of a group differ."""
        varying: set[int] = set()
        for group in groups:
            places = np.stack(np.unravel_index(np.asarray(list(group)), self.sizes))
            varying |= set(np.flatnonzero(np.ptp(places, axis=1)).tolist())
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
    """A collective and how often it runs. ``sent`` is bytes of one chip in all its runs."""

    kind: str
    axes: tuple[str, ...]
    network: str  # "ici" or "dcn"
    group: int  # chips
    operand: tuple[hlo.Shape, ...]
    times: float
    op: str
    source: str

    @property
    def sent(self) -> float:
        """Bytes that a chip sends."""
        return self.times * _KINDS[self.kind](sum(s.bytes for s in self.operand), self.group)


def groups(attributes: str, count: int) -> list[list[int]]:
    """Return the groups of devices a collective names, in any of the forms of the text.

    {{0,1},{2,3}}; [2,2]<=[4]; [4,4]<=[2,8]T(1,0); mesh['a'=2,'b'=4] {'b'}, its devices perhaps permuted; none: all.

    Raises:
      ValueError: another form.
    """
    start = attributes.find("replica_groups=")
    if start < 0:
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
        return _listed(pairs[1]) if pairs else [list(range(count))]
    text = attributes[start + len("replica_groups=") :]
    if found := re.match(r"\{((?:\{[\d,]*\},?)*)\}", text):
        return _listed(found[1]) or [list(range(count))]
    if found := re.match(r"\[([\d,]+)\](<=\[[\d,]+\](?:T\([\d,]+\))?)", text):
        rows, width = _ints(found[1])
        return _iota(found[2]).reshape(rows, width).tolist()
    named = re.match(
        r"mesh\[([^\]]*)\](?:, device_ids=\((?:(\[[\d,]+\](?:T\([\d,]+\))?)|\[?([\d,]+)\]?)\))? \{([^}]*)\}", text
    )
    if named is None:
        raise ValueError(f"groups of devices in a form that is not known: {text[:120]}")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
    devices = np.arange(math.prod(sizes.values()))
    if named[2]:
        devices = _iota("<=" + named[2]).reshape(-1)
    elif named[3]:
        devices = np.asarray(_ints(named[3]))
    return _meshed(devices, sizes, named[4])


def _meshed(devices: np.ndarray, sizes: dict[str, int], chosen: str) -> list[list[int]]:
    """Return the groups along the chosen axes; 'a':(2)4 is the part of size 4 of axis a behind a part of size 2."""
    shape, taken = [], []
    parts = {
        name: (int(before or 1), int(size or 0))
        for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)
    }
    for name, size in sizes.items():
        if name not in parts:
            shape.append(size)
            continue
        before, own = parts[name][0], parts[name][1] or size
        taken.append(len(shape) + 1)
        shape += [before, own, size // before // own]
    rest = [i for i in range(len(shape)) if i not in taken]
    grid = devices.reshape(shape).transpose(*rest, *taken)
    return grid.reshape(-1, math.prod(shape[i] for i in taken)).tolist()


def _ints(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def _listed(text: str) -> list[list[int]]:
    return [_ints(group) for group in re.findall(r"\{([\d,]*)\}", text)]


def _iota(text: str) -> np.ndarray:
    """Return what "<=[4,2]T(1,0)" stands for: numbers counted up in one shape, its dimensions then permuted."""
    found = re.match(r"<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert found is not None
    shape = _ints(found[1])
    grid = np.arange(math.prod(shape)).reshape(shape)
    return grid.transpose(_ints(found[2])) if found[2] else grid


def _kind(run: hlo.Run) -> str | None:
    """Return the kind of collective an instruction is, once for each; None if it is none."""
    instruction, computation = run.instruction, run.computation
    opcode = instruction.opcode.removesuffix("-start")
    if opcode not in _KINDS:
        return None
    if "async_collective_fusion_config" in instruction.attributes and "chain_id=" in instruction.attributes:
        # one collective in several fusions of its own computation: the one that starts it stands for all
        starts = any('"AsyncCollectiveStart"' in i.attributes for i in computation.instructions.values())
        if not starts:
            return None
    if opcode == "all-reduce" and run.fused and computation.name.startswith("all-reduce-scatter"):
        return "reduce-scatter"
    return opcode


def _operands(run: hlo.Run) -> tuple[hlo.Shape, ...]:
    """Return the arrays an instruction reads."""
    known = run.computation.instructions
    if run.instruction.operands and all(name in known for name in run.instruction.operands):
        return tuple(s for name in run.instruction.operands for s in known[name].shapes)
    return tuple(hlo.shapes(run.instruction.arguments))


def find(module: hlo.Module, layout: Layout, unbound: float = 1) -> list[Collective]:
    """Return the collectives of a program that send something, the most first; ``unbound`` as in ``hlo.runs``."""
    found = []
    for run in hlo.runs(module, unbound):
        instruction, kind = run.instruction, _kind(run)
        place = instruction.op, module.source(instruction)
        if kind is not None:
            among = groups(instruction.attributes, layout.count)
            size = 2 if kind == "collective-permute" else max(map(len, among))
            network = "dcn" if layout.crosses(among) else "ici"
            found.append(Collective(kind, layout.along(among), network, size, _operands(run), run.times, *place))
        elif instruction.opcode == "send":
            transfer = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
            kind = _TRANSFERS.get(transfer[1], "collective-permute") if transfer else "collective-permute"
            slices = len(set(layout.slices))
            sent = instruction.shapes[:1]
            found.append(Collective(kind, layout.between_slices, "dcn", slices, sent, run.times, *place))
    return sorted((c for c in found if c.sent), key=lambda c: -c.sent)


def totals(collectives: Iterable[Collective]) -> Mapping[tuple[str, tuple[str, ...], str], tuple[float, float]]:
    """Return (runs, bytes sent by a chip) by kind, axes and network, the most first."""
    found: dict[tuple[str, tuple[str, ...], str], tuple[float, float]] = {}
    for c in collectives:
        key = c.kind, c.axes, c.network
        runs, sent = found.get(key, (0, 0.0))
        found[key] = runs + c.times, sent + c.sent
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def sent(collectives: Iterable[Collective], network: str) -> float:
    """Return the bytes a chip sends over a network."""
    return sum(c.sent for c in collectives if c.network == network)
