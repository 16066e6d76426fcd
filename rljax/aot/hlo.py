"""The text of an optimised program, read: computations, instructions, who calls whom and how often.

XLA's own counts take a loop's body once. Here every instruction knows how often it runs: the turns of all loops around
it, which the compiler notes or the loop's condition says.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

# Memory spaces of a TPU layout: none is HBM; 1 is the vector memory, 5 the host's, the others are scalars and flags.
HBM = 0
_BITS = {"pred": 8, "token": 0, "opaque": 0, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "s1": 1, "u1": 1, "bf16": 16}
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_END = re.compile(r"\}(?:$|, execution_thread=| //)")  # a kernel's metadata may break its line before other braces
_LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"\b(condition|body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array of a program, on one device."""

    dtype: str
    dims: tuple[int, ...]
    space: int = HBM

    @property
    def bytes(self) -> int:
        """Bytes of its numbers, without the layout's padding."""
        bits = _BITS.get(self.dtype) or (int(m[1]) if (m := re.search(r"[a-z](\d+)", self.dtype)) else 0)
        return -(-math.prod(self.dims) * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    type: str
    arguments: str  # between the parentheses
    attributes: str  # behind them

    @functools.cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of its result, those of a tuple one after the other."""
        return tuple(shapes(self.type))

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of what it reads."""
        return tuple(re.findall(r"%([\w.\-]+)", self.arguments))

    @functools.cached_property
    def called(self) -> dict[str, str]:
        """Computations it runs, by role; the branches of a conditional are "0", "1", ..."""
        found = dict(_CALLED.findall(self.attributes))
        if self.opcode == "conditional":
            listed = _BRANCHES.search(self.attributes)
            names = [n.strip().lstrip("%") for n in listed[1].split(",")] if listed else list(found.values())
            return {str(i): name for i, name in enumerate(names)}
        if self.opcode in ("while", "fusion", "call", "call-start", "fusion-start", "async-start"):
            return found
        return {}

    def attribute(self, name: str) -> str | None:
        """Return the number or word behind ``name=``."""
        found = re.search(rf"\b{name}=([\w.\-]+)", self.attributes)
        return found[1] if found else None

    @property
    def op(self) -> str:
        """What it was in the traced program."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they stand."""

    name: str
    instructions: dict[str, Instruction]
    root: str

    def parameter(self, number: int) -> str | None:
        """Return the name of a parameter."""
        found = (i for i in self.instructions.values() if i.opcode == "parameter" and i.arguments == str(number))
        return next((i.name for i in found), None)


@dataclasses.dataclass(frozen=True)
class Module:
    """A program."""

    computations: dict[str, Computation]
    entry: str
    frames: dict[int, str] = dataclasses.field(default_factory=dict)  # stack frame -> "file:line"

    def source(self, instruction: Instruction) -> str:
        """Return where an instruction comes from, "file:line", or nothing."""
        frame = instruction.attribute("stack_frame_id")
        if frame:
            return self.frames.get(int(frame), "")
        found = re.search(r'source_file="([^"]*)" source_line=(\d+)', instruction.attributes)
        return f"{found[1]}:{found[2]}" if found else ""


def shapes(text: str) -> Iterator[Shape]:
    """Yield the arrays of a type."""
    for dtype, dims, layout in _SHAPE.findall(text):
        space = re.search(r"S\((\d+)\)", layout)
        sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
        yield Shape(dtype, sizes, int(space[1]) if space else HBM)


def _closing(text: str, start: int) -> int:
    """Return the place behind the parenthesis that closes the one at ``start``."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, start):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.end()
    raise ValueError(f"no closing parenthesis: {text[start : start + 80]}")


def _instruction(line: str) -> tuple[Instruction, bool] | None:
    head = _LINE.match(line)
    if head is None:
        return None
    start = head.end()
    end = _closing(line, start) if line[start] == "(" else line.index(" ", start)
    opening = line.index("(", end)
    closing = _closing(line, opening)
    fields = line[start:end], line[opening + 1 : closing - 1], line[closing:]
    return Instruction(head[2], line[end:opening].strip(), *fields), head[1] is not None


def parse(text: str) -> Module:
    """Read the text of ``compiled.as_text()``.

    Raises:
      ValueError: it has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, name, instructions, root = "", "", {}, ""
    for line in text.split("\n"):
        if not name:
            head = re.match(r"(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$", line)
            if head and not line.startswith("HloModule"):
                name, instructions, root = head[2], {}, ""
                entry = name if head[1] else entry
        elif _END.match(line):
            computations[name] = Computation(name, instructions, root or next(reversed(instructions), ""))
            name = ""
        elif made := _instruction(line):
            instructions[made[0].name] = made[0]
            root = made[0].name if made[1] else root
    if not entry:
        raise ValueError("not the text of a program: it has no ENTRY computation")
    return Module(computations, entry, _frames(text))


def _frames(text: str) -> dict[int, str]:
    """Read the tables of source lines; the innermost line of this package stands for a frame."""
    files = {int(n): path for n, path in re.findall(r'^(\d+) "(/[^"]*)"$', text, re.M)}
    places = {
        int(n): (int(file), int(line))
        for n, file, line in re.findall(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", text, re.M)
    }
    stack = {
        int(n): (int(place), int(parent or 0))
        for n, place, parent in re.findall(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", text, re.M)
    }
    found = {}
    for frame in stack:
        number = frame
        while number in stack:
            place, parent = stack[number]
            path = files.get(places.get(place, (0, 0))[0], "")
            if "/rljax/" in path or parent == number:
                found[frame] = f"{path[path.rfind('/rljax/') + 1 :]}:{places[place][1]}"
                break
            number = parent
    return found


@dataclasses.dataclass(frozen=True)
class Run:
    """An instruction and how often it runs."""

    instruction: Instruction
    computation: Computation
    times: float
    fused: bool  # inside a fusion: its operands and result are no memory


def runs(module: Module, unbound: float = 1) -> Iterator[Run]:
    """Yield every instruction of the program with the number of times it runs, at most.

    Of a conditional the branch that writes most is taken; a loop whose turns the text does not bound makes ``unbound``.
    """
    yield from _runs(module, module.computations[module.entry], 1, False, unbound)


def _runs(module: Module, computation: Computation, times: float, fused: bool, unbound: float) -> Iterator[Run]:
    for instruction in computation.instructions.values():
        yield Run(instruction, computation, times, fused)
        for inner, count, inside in _inner(module, computation, instruction, unbound):
            yield from _runs(module, inner, times * count, fused or inside, unbound)


def _inner(
    module: Module, outer: Computation, instruction: Instruction, unbound: float
) -> list[tuple[Computation, float, bool]]:
    called = {role: module.computations[n] for role, n in instruction.called.items()}
    if instruction.opcode == "while":
        found = trip_count(module, outer, instruction)
        count = unbound if found is None else found
        return [(called["condition"], count + 1, False), (called["body"], count, False)]
    if instruction.opcode == "conditional":
        return [(max(called.values(), key=lambda c: _written(module, c)), 1, False)]
    return [(c, 1, instruction.opcode == "fusion") for c in called.values()]


def unread(module: Module) -> list[str]:
    """Return computations that are called in a way ``runs`` does not know; there should be none with a collective."""
    known = {r.computation.name for r in runs(module)}
    simple = {n for c in module.computations.values() for i in c.instructions.values() for n in _applied(i)}
    return [name for name in module.computations if name not in known and name not in simple]


def _applied(instruction: Instruction) -> list[str]:
    """Return what a reduction, a sort or a scatter combines with, and the branches of a conditional."""
    if instruction.opcode == "conditional":
        return list(instruction.called.values())
    return [] if instruction.called else [name for _, name in _CALLED.findall(instruction.attributes)]


def _written(module: Module, computation: Computation) -> float:
    return sum(r.times * s.bytes for r in _runs(module, computation, 1, False, 1) for s in r.instruction.shapes)


# --- the turns of a loop ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Scalar:
    """A whole number: an element of the loop's state, if ``index`` is one, plus a constant."""

    index: int | None
    constant: int


def trip_count(module: Module, outer: Computation, loop: Instruction) -> int | None:
    """Return how often a loop turns, at most; None where neither the compiler nor its condition says so."""
    noted = re.search(r'known_trip_count":?\s*\{"?n"?:\s*"?(\d+)', loop.attributes)
    if noted:
        return int(noted[1])
    condition, body = (module.computations[loop.called[role]] for role in ("condition", "body"))
    bounds = []
    for compare in _compares(module, condition):
        left, right = (_scalar(module, *where) for where in compare[1:])
        direction = compare[0]
        if left is None or right is None:
            continue
        if left.index is None or direction in ("GT", "GE"):
            left, right, direction = right, left, {"GT": "LT", "GE": "LE", "LT": "GT", "LE": "GE"}.get(direction, "")
        if left.index is None or direction not in ("LT", "LE", "NE"):
            continue
        end, start = _constant(module, outer, loop, right), _initial(module, outer, loop, left.index)
        step = _step(module, body, left.index)
        if end is not None and step > 0:
            distance = end - left.constant - (start or 0) + (direction == "LE")
            bounds.append(max(0, -(-distance // step)))
    return min(bounds, default=None)


Place = tuple[tuple[Computation, Instruction | None], ...]  # computations from the outermost in, and who called each


def _compares(module: Module, condition: Computation) -> list[tuple[str, tuple[Place, str], tuple[Place, str]]]:
    """Return the comparisons that all must hold for another turn, those inside fusions too."""
    found: list[tuple[str, tuple[Place, str], tuple[Place, str]]] = []
    todo: list[tuple[Place, str]] = [(((condition, None),), condition.root)]
    while todo:
        place, name = todo.pop()
        where = place[-1][0].instructions.get(name)
        if where is None:
            continue
        if where.opcode == "compare":
            left, right = ((place, o) for o in where.operands)
            found.append((where.attribute("direction") or "", left, right))
        elif where.opcode in ("and", "bitcast", "copy", "convert"):
            todo += [(place, o) for o in where.operands]
        elif where.opcode == "fusion":
            inner = module.computations[where.called["calls"]]
            todo.append(((*place, (inner, where)), inner.root))
        elif where.opcode == "parameter" and (caller := place[-1][1]) is not None:
            todo.append((place[:-1], caller.operands[int(where.arguments)]))
    return found


def _scalar(module: Module, place: Place, name: str) -> _Scalar | None:
    """Return what a scalar of a condition or body is made of, as far as it is an element of the state plus a number."""
    where = place[-1][0].instructions.get(name)
    if where is None:
        return None
    if where.opcode == "constant":
        number = re.fullmatch(r"-?\d+", where.arguments.strip())
        return _Scalar(None, int(number[0])) if number else None
    if where.opcode == "get-tuple-element" and len(place) == 1:
        source = place[0][0].instructions.get(where.operands[0])
        index = where.attribute("index")
        return _Scalar(int(index), 0) if source and source.opcode == "parameter" and index else None
    if where.opcode in ("bitcast", "copy", "convert", "copy-done", "copy-start", "reshape"):
        return _scalar(module, place, where.operands[0])
    if where.opcode in ("add", "subtract") and len(where.operands) == 2:
        left, right = (_scalar(module, place, o) for o in where.operands)
        if left is None or right is None or (left.index is not None and right.index is not None):
            return None
        sign = 1 if where.opcode == "add" else -1
        if right.index is not None and sign < 0:
            return None
        return _Scalar(left.index if right.index is None else right.index, left.constant + sign * right.constant)
    if where.opcode == "fusion":
        inner = module.computations[where.called["calls"]]
        return _scalar(module, (*place, (inner, where)), inner.root)
    if where.opcode == "parameter" and (caller := place[-1][1]) is not None:
        return _scalar(module, place[:-1], caller.operands[int(where.arguments)])
    return None


def _initial(module: Module, outer: Computation, loop: Instruction, index: int) -> int | None:
    """Return the number with which an element of the loop's state begins."""
    state = outer.instructions.get(loop.operands[0])
    if state is None or state.opcode != "tuple":
        return None
    value = _scalar(module, ((outer, None),), state.operands[index])
    return value.constant if value and value.index is None else None


def _constant(module: Module, outer: Computation, loop: Instruction, value: _Scalar) -> int | None:
    """Return a bound: a number, or an element of the state that begins as one and never changes."""
    if value.index is None:
        return value.constant
    body = module.computations[loop.called["body"]]
    if _step(module, body, value.index, unknown=-1) != 0:
        return None
    start = _initial(module, outer, loop, value.index)
    return None if start is None else start + value.constant


def _step(module: Module, body: Computation, index: int, unknown: int = 1) -> int:
    """Return what a turn adds to an element of the state; ``unknown`` where it cannot be read."""
    root = body.instructions[body.root]
    if root.opcode != "tuple":
        return unknown
    value = _scalar(module, ((body, None),), root.operands[index])
    return value.constant if value and value.index == index else unknown
