"""Bytes that a program moves between a chip's memory and its units, from the optimised text.

Every instruction outside fusions reads its operands and writes its result, as often as it runs; what lies in vector
memory costs nothing. Of an array that is only cut into, the parts cut out count, and of one that is written in place
the parts written. It is an estimate: layouts pad, and a chip may skip what a condition spares it.
"""

from rljax.aot import hlo

_NOTHING = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"),
    *("partition-id", "replica-id", "iota", "domain", "opt-barrier", "send", "recv", "send-done", "recv-done"),
}
_CUTS = ("dynamic-slice", "slice", "gather", "slice-start")
_ALIASES = ("bitcast", "get-tuple-element", "reshape")


def moved(module: hlo.Module, unbound: float = 1) -> float:
    """Return bytes read and written by one chip; ``unbound`` as in ``hlo.runs``."""
    return sum(run.times * _bytes(module, run) for run in hlo.runs(module, unbound) if not run.fused)


def largest(module: hlo.Module, count: int = 8) -> list[tuple[hlo.Shape, str, str]]:
    """Return the largest arrays that a chip holds, one for each shape: (shape, op, source line)."""
    found: dict[str, tuple[hlo.Shape, str, str]] = {}
    for run in hlo.runs(module):
        if run.fused or run.instruction.opcode in ("tuple", "while", "conditional", "call"):
            continue
        for shape in run.instruction.shapes:
            if shape.space == hlo.HBM:
                known = found.get(str(shape))
                if known is None or not known[1]:
                    found[str(shape)] = shape, run.instruction.op, module.source(run.instruction)
    return sorted(found.values(), key=lambda f: -f[0].bytes)[:count]


def _hbm(shapes: tuple[hlo.Shape, ...]) -> int:
    return sum(s.bytes for s in shapes if s.space == hlo.HBM)


def _bytes(module: hlo.Module, run: hlo.Run) -> int:
    instruction, known = run.instruction, run.computation.instructions
    opcode = instruction.opcode
    if opcode in _NOTHING or opcode.endswith("-done") or opcode.endswith("-update"):
        return 0
    operands = [known[name].shapes if name in known else () for name in instruction.operands]
    if opcode == "fusion":
        return _fusion(module, instruction, operands)
    if opcode in ("copy-start", "slice-start"):  # (destination, source, context)
        return 2 * _hbm(instruction.shapes[:1]) if opcode == "copy-start" else 2 * _hbm(instruction.shapes[1:2])
    if opcode in _CUTS:
        return 2 * _hbm(instruction.shapes)
    if opcode == "dynamic-update-slice":
        return 2 * _hbm(operands[1])
    if opcode.endswith("-start"):
        return sum(map(_hbm, operands)) * 2
    return sum(map(_hbm, operands)) + _hbm(instruction.shapes)


def _fusion(module: hlo.Module, fusion: hlo.Instruction, operands: list[tuple[hlo.Shape, ...]]) -> int:
    """Return bytes of a fusion: whole operands and result, but parts of what it cuts or writes in place.

    What it hands on as it came costs nothing; a collective that is under way meanwhile counts where it starts.
    """
    inner = module.computations[fusion.called["calls"]]
    total, in_place = 0, 0
    for number, shapes in enumerate(operands):
        whole, name = _hbm(shapes), inner.parameter(number)
        if not whole or name is None:
            continue
        touched, written = _touched(module, inner, name)
        total += whole if touched is None else min(whole, touched)
        in_place += whole if written else 0
    return total + max(0, _result(inner, fusion) - in_place)


def _touched(module: hlo.Module, inner: hlo.Computation, name: str) -> tuple[int | None, bool]:
    """Return the bytes a computation touches of one of its arrays, None for all, and whether it writes into it."""
    total, written = 0, False
    for user in inner.instructions.values():
        if name not in user.operands:
            continue
        first = user.operands[0] == name
        part: int | None = None
        if user.opcode in _ALIASES:
            part, within = _touched(module, inner, user.name)
            written |= within
        elif user.opcode == "fusion":
            called = module.computations[user.called["calls"]]
            parameter = called.parameter(user.operands.index(name))
            part, within = _touched(module, called, parameter) if parameter else (None, False)
            written |= within
        elif user.opcode in _CUTS and first:
            part = sum(s.bytes for s in user.shapes)
        elif user.opcode == "dynamic-update-slice" and first:
            part, written = sum(s.bytes for s in inner.instructions[user.operands[1]].shapes), True
        elif user.opcode == "tuple" or _collective(user) or "AsyncCollective" in user.attributes:
            part = 0
        if part is None:
            return None, written
        total += part
    return total, written


def _result(inner: hlo.Computation, outer: hlo.Instruction) -> int:
    """Return the bytes of the results that a fusion makes itself."""
    root = inner.instructions[inner.root]
    if "AsyncCollectiveStart" in root.attributes:
        return sum(_hbm(inner.instructions[o].shapes) for o in root.operands if _collective(inner.instructions[o]))
    if "AsyncCollectiveDone" in root.attributes:
        return 0
    if root.opcode != "tuple":
        return _hbm(outer.shapes)
    made = [i for o in root.operands if (i := inner.instructions[o]).opcode != "parameter" and not _collective(i)]
    return sum(_hbm(i.shapes) for i in made)


def _collective(instruction: hlo.Instruction) -> bool:
    return "async_collective_fusion_config" in instruction.attributes
