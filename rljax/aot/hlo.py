"""A parser of optimized HLO text: computations, instructions, calls, and how often each instruction runs.

XLA's cost analysis counts a loop's body once. Here an instruction runs as often as the product of the trip counts of
its enclosing loops; a trip count comes from the compiler's annotation or from the loop's condition.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# Memory spaces of a TPU layout: 0 (not written) is HBM, 1 vector memory, 5 host memory; others hold scalars and flags.
HBM = 0
_BITS = {"pred": 8, "token": 0, "opaque": 0, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "s1": 1, "u1": 1, "bf16": 16}
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_END = re.compile(r"\}(?:$|, execution_thread=| //)")  # a kernel's metadata may put other braces at the start of a line
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
        """Bytes of its elements, without the padding of the layout."""
        bits = _BITS.get(self.dtype) or (int(m[1]) if (m := re.search(r"[a-z](\d+)", self.dtype)) else 0)
        return -(-math.prod(self.dims) * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    opcode: str
    type: str
    arguments: str  # the text between the parentheses
    attributes: str  # the text after them

    @functools.cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of its result; a tuple is flattened."""
        return tuple(shapes(self.type))

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""
        return tuple(re.findall(r"%([\w.\-]+)", self.arguments))

    @functools.cached_property
    def called(self) -> dict[str, str]:
        """The computations it runs, by role; the branches of a conditional have the roles "0", "1", ..."""
        roles = dict(_CALLED.findall(self.attributes))
        if self.opcode == "conditional":
            listed = _BRANCHES.search(self.attributes)
            names = [n.strip().lstrip("%") for n in listed[1].split(",")] if listed else list(roles.values())
            return {str(i): name for i, name in enumerate(names)}
        if self.opcode in ("while", "fusion", "call", "call-start", "fusion-start", "async-start"):
            return roles
        return {}

    def attribute(self, name: str) -> str | None:
        """Return the number or word after ``name=``, or None."""
        match = re.search(rf"\b{name}=([\w.\-]+)", self.attributes)
        return match[1] if match else None

    @property
    def op(self) -> str:
        """The name of its operation in the traced program."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1].replace("\\'", "'") if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions, in the order of the text."""

    name: str
    instructions: dict[str, Instruction]
    root: str

    def parameter(self, number: int) -> str | None:
        """Return the name of the parameter of this index, or None."""
        parameters = (i for i in self.instructions.values() if i.opcode == "parameter" and i.arguments == str(number))
        return next((i.name for i in parameters), None)


@dataclasses.dataclass(frozen=True)
class Module:
    """A parsed program."""

    computations: dict[str, Computation]
    entry: str
    frames: dict[int, str] = dataclasses.field(default_factory=dict)  # stack frame -> "file:line"

    def source(self, instruction: Instruction) -> str:
        """Return the source line of an instruction, "file:line", or an empty string."""
        frame = instruction.attribute("stack_frame_id")
        if frame:
            return self.frames.get(int(frame), "")
        match = re.search(r'source_file="([^"]*)" source_line=(\d+)', instruction.attributes)
        return f"{match[1]}:{match[2]}" if match else ""


def shapes(text: str) -> Iterator[Shape]:
    """Yield the arrays of a type."""
    for dtype, dims, layout in _SHAPE.findall(text):
        space = re.search(r"S\((\d+)\)", layout)
        sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
        yield Shape(dtype, sizes, int(space[1]) if space else HBM)


def _closing(text: str, start: int) -> int:
    """Return the index after the parenthesis that closes the one at ``start``."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
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
    """Parse the text of ``compiled.as_text()``.

    Raises:
      ValueError: the text has no ENTRY computation.
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
        elif parsed := _instruction(line):
            instruction, is_root = parsed
            instructions[instruction.name] = instruction
            root = instruction.name if is_root else root
    if not entry:
        raise ValueError("not the text of a program: it has no ENTRY computation")
    return Module(computations, entry, _frames(text))


def _frames(text: str) -> dict[int, str]:
    """Parse the tables of stack frames; each frame is mapped to its innermost line of this package."""
    files = {int(n): path for n, path in re.findall(r'^(\d+) "(/[^"]*)"$', text, re.M)}
    locations = {
        int(n): (int(file), int(line))
        for n, file, line in re.findall(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", text, re.M)
    }
    stack = {
        int(n): (int(location), int(parent or 0))
        for n, location, parent in re.findall(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", text, re.M)
    }
    lines = {}
    for frame in stack:
        number = frame
        while number in stack:
            location, parent = stack[number]
            path = files.get(locations.get(location, (0, 0))[0], "")
            if "/rljax/" in path or parent == number:
                lines[frame] = f"{path[path.rfind('/rljax/') + 1 :]}:{locations[location][1]}"
                break
            number = parent
    return lines


@dataclasses.dataclass(frozen=True)
class Run:
    """An instruction and how often it runs."""

    instruction: Instruction
    computation: Computation
    times: float
    fused: bool  # inside a fusion, where operands and results are not in memory


class Assumed(NamedTuple):
    """Assumptions where the text does not determine how often an instruction runs.

    Attributes:
      trips: trip count of a loop without a bound.
      branch: how often, in an iteration of a loop, a conditional runs the branch that writes the most bytes; the other
        branches are not counted. Outside loops it always runs.
      cache: share of a cache that the kernel of decoding reads.
    """

    trips: float = 1
    branch: float = 1
    cache: float = 1


BOUND = Assumed()


def runs(module: Module, assumed: Assumed = BOUND) -> Iterator[Run]:
    """Yield every instruction of the program with how often it runs, an upper bound by default."""
    yield from _runs(module, module.computations[module.entry], 1, False, assumed)


def _runs(module: Module, computation: Computation, times: float, fused: bool, assumed: Assumed) -> Iterator[Run]:
    for instruction in computation.instructions.values():
        yield Run(instruction, computation, times, fused)
        for inner, count, inside in _inner(module, computation, instruction, assumed, times > 1):
            yield from _runs(module, inner, times * count, fused or inside, assumed)


def _inner(
    module: Module, outer: Computation, instruction: Instruction, assumed: Assumed, looped: bool
) -> list[tuple[Computation, float, bool]]:
    called = {role: module.computations[n] for role, n in instruction.called.items()}
    if instruction.opcode == "while":
        bound = trip_count(module, outer, instruction)
        count = assumed.trips if bound is None else bound
        return [(called["condition"], count + 1, False), (called["body"], count, False)]
    if instruction.opcode == "conditional":
        most = max(called.values(), key=lambda c: _written(module, c))
        return [(most, assumed.branch if looped else 1, False)]
    return [(c, 1, instruction.opcode == "fusion") for c in called.values()]


def unread(module: Module) -> list[str]:
    """Return the computations that no known call reaches; a program with any is not counted in full."""
    known, queue = set[str](), [module.entry]
    while queue:
        name = queue.pop()
        if name not in known and name in module.computations:
            known.add(name)
            for instruction in module.computations[name].instructions.values():
                queue += instruction.called.values() or [name for _, name in _CALLED.findall(instruction.attributes)]
    return [name for name in module.computations if name not in known]


def _written(module: Module, computation: Computation) -> float:
    return sum(r.times * s.bytes for r in _runs(module, computation, 1, False, BOUND) for s in r.instruction.shapes)


# --- trip counts --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Scalar:
    """An integer: a constant, plus element ``index`` of the loop's state if that is not None."""

    index: int | None
    constant: int


def trip_count(module: Module, outer: Computation, loop: Instruction) -> int | None:
    """Return an upper bound on the iterations of ``loop``, an instruction of ``outer``.

    Args:
      module: the parsed program.
      outer: the computation that holds the loop.
      loop: a while instruction.

    Returns:
      The compiler's annotation or the bound of the loop's condition; None where neither gives one.
    """
    annotation = re.search(r'known_trip_count":?\s*\{"?n"?:\s*"?(\d+)', loop.attributes)
    if annotation:
        return int(annotation[1])
    condition, body = (module.computations[loop.called[role]] for role in ("condition", "body"))
    bounds = []
    for compare in _compares(module, condition):
        left, right = (_scalar(module, *operand) for operand in compare[1:])
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


CallStack = tuple[tuple[Computation, Instruction | None], ...]  # computations from the outermost, with their callers


def _compares(module: Module, condition: Computation) -> list[tuple[str, tuple[CallStack, str], tuple[CallStack, str]]]:
    """Return the comparisons that must all hold for another iteration, including those inside fusions."""
    compares: list[tuple[str, tuple[CallStack, str], tuple[CallStack, str]]] = []
    pending: list[tuple[CallStack, str]] = [(((condition, None),), condition.root)]
    while pending:
        stack, name = pending.pop()
        instruction = stack[-1][0].instructions.get(name)
        if instruction is None:
            continue
        if instruction.opcode == "compare":
            left, right = ((stack, o) for o in instruction.operands)
            compares.append((instruction.attribute("direction") or "", left, right))
        elif instruction.opcode in ("and", "bitcast", "copy", "convert"):
            pending += [(stack, o) for o in instruction.operands]
        elif instruction.opcode == "fusion":
            inner = module.computations[instruction.called["calls"]]
            pending.append(((*stack, (inner, instruction)), inner.root))
        elif instruction.opcode == "parameter" and (caller := stack[-1][1]) is not None:
            pending.append((stack[:-1], caller.operands[int(instruction.arguments)]))
    return compares


def _scalar(module: Module, stack: CallStack, name: str) -> _Scalar | None:
    """Return a scalar of a condition or body as an element of the state plus a constant, or None if it is not one."""
    instruction = stack[-1][0].instructions.get(name)
    if instruction is None:
        return None
    if instruction.opcode == "constant":
        number = re.fullmatch(r"-?\d+", instruction.arguments.strip())
        return _Scalar(None, int(number[0])) if number else None
    if instruction.opcode == "get-tuple-element" and len(stack) == 1:
        source = stack[0][0].instructions.get(instruction.operands[0])
        index = instruction.attribute("index")
        return _Scalar(int(index), 0) if source and source.opcode == "parameter" and index else None
    if instruction.opcode in ("bitcast", "copy", "convert", "copy-done", "copy-start", "reshape"):
        return _scalar(module, stack, instruction.operands[0])
    if instruction.opcode in ("add", "subtract") and len(instruction.operands) == 2:
        left, right = (_scalar(module, stack, o) for o in instruction.operands)
        if left is None or right is None or (left.index is not None and right.index is not None):
            return None
        sign = 1 if instruction.opcode == "add" else -1
        if right.index is not None and sign < 0:
            return None
        return _Scalar(left.index if right.index is None else right.index, left.constant + sign * right.constant)
    if instruction.opcode == "fusion":
        inner = module.computations[instruction.called["calls"]]
        return _scalar(module, (*stack, (inner, instruction)), inner.root)
    if instruction.opcode == "parameter" and (caller := stack[-1][1]) is not None:
        return _scalar(module, stack[:-1], caller.operands[int(instruction.arguments)])
    return None


def _initial(module: Module, outer: Computation, loop: Instruction, index: int) -> int | None:
    """Return the initial value of an element of the loop's state, or None if it is not a constant."""
    state = outer.instructions.get(loop.operands[0])
    if state is None or state.opcode != "tuple":
        return None
    value = _scalar(module, ((outer, None),), state.operands[index])
    return value.constant if value and value.index is None else None


def _constant(module: Module, outer: Computation, loop: Instruction, value: _Scalar) -> int | None:
    """Return the value of a bound: a constant, or an element of the state that no iteration changes."""
    if value.index is None:
        return value.constant
    body = module.computations[loop.called["body"]]
    if _step(module, body, value.index, unknown=-1) != 0:
        return None
    start = _initial(module, outer, loop, value.index)
    return None if start is None else start + value.constant


def _step(module: Module, body: Computation, index: int, unknown: int = 1) -> int:
    """Return what an iteration adds to an element of the state; ``unknown`` if that is not a constant."""
    root = body.instructions[body.root]
    if root.opcode != "tuple":
        return unknown
    value = _scalar(module, ((body, None),), root.operands[index])
    return value.constant if value and value.index == index else unknown
