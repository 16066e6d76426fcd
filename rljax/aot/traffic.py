"""Bytes that a program moves between a chip's memory and its units, from optimized HLO.

Every instruction outside fusions reads its operands and writes its result, as often as it runs; arrays in vector
memory cost nothing. An array that is only sliced counts with the slices read, an array updated in place with the
slices written. This is an estimate: layouts add padding, and a chip may skip work under a condition.
"""

from rljax.aot import hlo
from rljax.models.network import reads

_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"),
    *("partition-id", "replica-id", "iota", "domain", "opt-barrier", "send", "recv", "send-done", "recv-done"),
}
_SLICES = ("dynamic-slice", "slice", "gather", "slice-start")
_ALIASES = ("bitcast", "get-tuple-element", "reshape")


def moved(module: hlo.Module, assumed: hlo.Assumed = hlo.BOUND) -> float:
    """Return the bytes read and written by one chip."""
    return sum(run.times * _bytes(module, run, assumed) for run in hlo.runs(module, assumed) if not run.fused)


def started(module: hlo.Module, assumed: hlo.Assumed = hlo.BOUND) -> float:
    """Return how many instructions a chip starts, each a kernel on a GPU; the roofline has no time for that."""
    kernels = (r for r in hlo.runs(module, assumed) if not r.fused and r.instruction.opcode not in _FREE)
    return sum(r.times for r in kernels if not r.instruction.opcode.endswith("-done"))


def largest(module: hlo.Module, count: int = 8) -> list[tuple[hlo.Shape, str, str]]:
    """Return the largest arrays in a chip's memory, one of each shape: (shape, op, source line)."""
    arrays: dict[str, tuple[hlo.Shape, str, str]] = {}
    for run in hlo.runs(module):
        if run.fused or run.instruction.opcode in ("tuple", "while", "conditional", "call"):
            continue
        for shape in run.instruction.shapes:
            if shape.space == hlo.HBM:
                known = arrays.get(str(shape))
                if known is None or not known[1]:
                    arrays[str(shape)] = shape, run.instruction.op, module.source(run.instruction)
    return sorted(arrays.values(), key=lambda array: -array[0].bytes)[:count]


def _hbm(shapes: tuple[hlo.Shape, ...]) -> int:
    return sum(s.bytes for s in shapes if s.space == hlo.HBM)


def _bytes(module: hlo.Module, run: hlo.Run, assumed: hlo.Assumed = hlo.BOUND) -> float:
    instruction, known = run.instruction, run.computation.instructions
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or opcode.endswith("-update"):
        return 0
    operands = [known[name].shapes if name in known else () for name in instruction.operands]
    if opcode == "fusion":
        return _fusion(module, instruction, operands)
    if opcode in ("copy-start", "slice-start"):  # (destination, source, context)
        return 2 * _hbm(instruction.shapes[:1]) if opcode == "copy-start" else 2 * _hbm(instruction.shapes[1:2])
    if opcode in _SLICES:
        return 2 * _hbm(instruction.shapes)
    if opcode == "dynamic-update-slice":
        return 2 * _hbm(operands[1])
    if opcode.endswith("-start"):
        return sum(map(_hbm, operands)) * 2
    read = assumed.cache if f"/{reads.DECODE}" in instruction.op else 1
    return read * sum(map(_hbm, operands)) + _hbm(instruction.shapes)


def _fusion(module: hlo.Module, fusion: hlo.Instruction, operands: list[tuple[hlo.Shape, ...]]) -> int:
    """Return the bytes of a fusion: its operands and result, but only the slices it reads or updates in place.

    Operands passed through unchanged cost nothing; an asynchronous collective counts where it starts.
    """
    inner = module.computations[fusion.called["calls"]]
    total, in_place = 0, 0
    for number, shapes in enumerate(operands):
        size, name = _hbm(shapes), inner.parameter(number)
        if not size or name is None:
            continue
        touched, written = _touched(module, inner, name)
        total += size if touched is None else min(size, touched)
        in_place += size if written else 0
    return total + max(0, _result(inner, fusion) - in_place)


def _touched(module: hlo.Module, inner: hlo.Computation, name: str) -> tuple[int | None, bool]:
    """Return the bytes of an array that a computation reads or writes, None for all, and whether it writes to it."""
    total, written = 0, False
    for user in inner.instructions.values():
        if name not in user.operands:
            continue
        first = user.operands[0] == name
        size: int | None = None
        if user.opcode in _ALIASES:
            size, inside = _touched(module, inner, user.name)
            written |= inside
        elif user.opcode == "fusion":
            called = module.computations[user.called["calls"]]
            parameter = called.parameter(user.operands.index(name))
            size, inside = _touched(module, called, parameter) if parameter else (None, False)
            written |= inside
        elif user.opcode in _SLICES and first:
            size = sum(s.bytes for s in user.shapes)
        elif user.opcode == "dynamic-update-slice" and first:
            size, written = sum(s.bytes for s in inner.instructions[user.operands[1]].shapes), True
        elif user.opcode == "tuple" or _collective(user) or "AsyncCollective" in user.attributes:
            size = 0
        if size is None:
            return None, written
        total += size
    return total, written


def _result(inner: hlo.Computation, outer: hlo.Instruction) -> int:
    """Return the bytes of the results that a fusion computes."""
    root = inner.instructions[inner.root]
    if "AsyncCollectiveStart" in root.attributes:
        return sum(_hbm(inner.instructions[o].shapes) for o in root.operands if _collective(inner.instructions[o]))
    if "AsyncCollectiveDone" in root.attributes:
        return 0
    if root.opcode != "tuple":
        return _hbm(outer.shapes)
    computed = [i for o in root.operands if (i := inner.instructions[o]).opcode != "parameter" and not _collective(i)]
    return sum(_hbm(i.shapes) for i in computed)


def _collective(instruction: hlo.Instruction) -> bool:
    return "async_collective_fusion_config" in instruction.attributes
