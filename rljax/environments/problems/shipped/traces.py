"""Traces of programs: ``a=3,b=a+4,if b>5:a=a*2,a?`` answered by the lines in turn, ``a=3;b=a+4=7;a=a*2=6;6``."""

import dataclasses
import random as random_lib
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import constructors, rules
from rljax.environments.problems.shipped import reasoning, shapes
from rljax.language.settings import setting
from rljax.types import Range

Operations = Annotated[int, Range(3, 16)]
_LETTERS = "abcduvwxyz"
_END = 99  # beyond all lines
_PREFIXES = ("", "if Y>N:", "else:", "for K:(")


class _Lines(NamedTuple):
    """Lines in the order of execution ``[..., U]``, those of loops once for each iteration and once more."""

    kind: jax.Array  # 0: absent; 1: a number; 2: an operation of a variable and a digit; 3: of two variables
    target: jax.Array
    a: jax.Array
    b: jax.Array
    source: jax.Array  # the first iteration
    executed: jax.Array
    head: jax.Array  # 1 + the line whose slip inverts ``executed``; 0: a slip uses a stale value
    prefix: jax.Array  # of _PREFIXES
    guard: jax.Array  # the variable of a condition, the iterations of a loop
    closes: jax.Array  # whether a loop ends
    turn: jax.Array  # of those that are not executed: the line that is due where they would be
    after: jax.Array  # the line that would be due after them


class _Program(NamedTuple):
    """Programs."""

    lines: _Lines
    number: jax.Array  # [P, U] the number or the digit
    operator: jax.Array  # [P, U] 0 for a sum, 1 for a difference, 2 for a product
    name: jax.Array  # [P, N] of the variables
    asked: jax.Array  # [P, 1] the variable


@dataclasses.dataclass(frozen=True)
class Traces(shapes.Shaped):
    """Run a program of assignments, conditionals and loops modulo a prime, and find the value of a variable.

    ``for 3:(a=a+b,b=b*2)`` runs its lines three times, and ``else:`` belongs to the ``if`` before it. Conditions are
    true for one half of the programs. The splits share no program whose lines have the same kinds and variables,
    whatever the names, operators and numbers are; which are held out is the same for all settings. A demonstration
    writes each line that is executed, with the value. A slip takes the wrong branch, runs a loop once less or once
    more, or uses a stale value, what the first operand was before its last assignment; noise is another residue. The
    steps after it continue from what was written.

    Every step is compared with the line that is due. Parts are the share of steps that are ``right``, and the number
    of those that are not: ``branch``, of a branch that is not taken, also an iteration beyond the last; ``line``,
    another one; ``arithmetic``, a wrong value, also one copied from an earlier step. What a wrong step leaves out is
    not asked again: after a later line the one that follows it is due, and after a wrong branch the end of the ``if``.
    """

    operations: Operations | tuple[Operations, Operations] = setting(
        (4, 8), "Assignments that are executed; (least, most): each number is a domain."
    )
    variables: Annotated[int, Range(2, 4)] = setting(3, "The most variables.")
    loops: bool = setting(True, "Whether programs have loops.")
    modulus: Annotated[int, Range(11, 97)] = setting(23, "The prime modulo which everything is computed.")

    name = "traces"
    knob = "operations"
    unit = "operation"
    parts = ("right", "branch", "line", "arithmetic")
    alphabet = "".join(sorted({*_LETTERS, *"0123456789+-*=,<>:()? ", *"ifelsefor"}))

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        super().__post_init__()
        reasoning.check_prime(self.modulus)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a line."""
        return self._lines, self.modulus

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the lines, and the question."""
        program, x = self._program(value), self.split(value)
        lines, y = program.lines, _run(program, self.modulus)[1]
        taken, up = lines.executed > 0, x["compare"] == 0
        up = jnp.where(taken, ((y == self.modulus - 1) | up) & (y > 0), up)  # no residue is below 0 or above p - 1
        middle = y + 1 - up
        low, high = jnp.where(taken == up, 0, middle), jnp.where(taken == up, middle, self.modulus)
        fields = {
            "Y": _name(program, lines.guard)[:, :, None],
            ">": jnp.where(up, ord(">"), ord("<"))[:, :, None],
            "N": characters.decimal(low + x["limit"] % jnp.maximum(high - low, 1), 2),
            "K": lines.guard[:, :, None] + ord("0"),
        }
        none = jnp.zeros((*lines.kind.shape, 1), jnp.int32)
        prefix = jnp.tile(none, 8)
        for i, text in enumerate(_PREFIXES):
            columns = jnp.concatenate([*(fields.get(c, none + ord(c)) for c in text), *[none] * 8], axis=2)
            prefix = jnp.where((lines.prefix == i)[:, :, None], columns[:, :, :8], prefix)
        number = jnp.where((lines.kind == 1)[:, :, None], characters.decimal(program.number, 2), 0)
        closes = none + jnp.where(lines.closes > 0, ord(")"), 0)[:, :, None]
        text = jnp.concatenate([prefix, _definition(program), number, closes, none + ord(",")], axis=2)
        shown = (lines.kind > 0) & (lines.source == jnp.arange(self._lines)[None])
        text = jnp.where(shown[:, :, None], text, 0).reshape(len(value), -1)
        text = characters.line(len(value), text, _name(program, program.asked), "?")
        return characters.pack(text, self._widths[0])

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write the lines that are executed."""
        program = self._program(value)
        values, _, answer = _run(program, self.modulus, slip, off)
        text = jnp.where((values >= 0)[:, :, None], _steps(program, values), 0).reshape(len(value), -1)
        return rules.Solution(characters.pack(text, self._widths[1]), characters.decimal(answer, 2))

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the residue in decimal, without leading zeros."""
        answer = _run(self._program(value), self.modulus)[2]
        return rules.exact(characters.decimal(answer, 2), written, "0123456789")

    def judge_steps(self, value: jax.Array, written: jax.Array) -> rules.Steps:
        """Compare each step with the line that is due."""
        program, ends = self._program(value), written == ord(";")
        lines, steps = program.lines, _steps(program, _run(program, self.modulus)[0])
        steps = characters.pack(steps.reshape(-1, steps.shape[2]), steps.shape[2]).reshape(steps.shape)
        matched, short = rules.matched(steps, written, ends), rules.places(written)[1] <= len("X=NN;")
        constant, executed = (lines.kind == 1)[:, None], lines.executed > 0
        named = (matched >= jnp.where(constant, 2, 6)) & (~constant | short[:, :, None])
        full = matched == jnp.sum(steps != 0, axis=2)[:, None]
        place = jnp.arange(self._lines)[None]
        due = jnp.where(executed, place, self._lines)
        due = jnp.pad(jax.lax.cummin(due, axis=1, reverse=True), ((0, 0), (0, 2)), constant_values=self._lines)

        def walk(now: jax.Array, step: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
            end, named, full = step
            here, at = named & (place == now[:, None]) & executed, now[:, None]
            branch = named & ~executed & (jnp.minimum(lines.turn, self._lines) == at)
            later = named & executed & (place > at)
            kinds = [jnp.any(x, axis=1) for x in (here, branch, later)]
            first = [jnp.argmax(x, axis=1)[:, None] for x in (branch, later)]
            after = [at + 1, jnp.take_along_axis(lines.after, first[0], axis=1), first[1] + 1]
            new = jnp.select([x[:, None] for x in kinds], after, at)
            new = jnp.take_along_axis(due, new, axis=1)[:, 0]
            return jnp.where(end, new, now), (~kinds[0] & kinds[1], ~kinds[0], ~jnp.any(here & full, axis=1))

        steps = (ends.T, jnp.swapaxes(named, 0, 1), jnp.swapaxes(full, 0, 1))
        last, tests = jax.lax.scan(walk, due[:, 0], steps)
        return rules.graded(ends, last == self._lines, dict(zip(self.parts[1:], (x.T for x in tests), strict=True)))

    @property
    def _table(self) -> shapes.Table:
        """The variable that is asked, the widths of prompts and workings; the lines."""
        why = "operations: programs with lines"
        return shapes.table(_draw, self.range, why, self.variables, self.loops)

    @property
    def _lines(self) -> int:
        return self._table[0][1].shape[1] // len(_Lines._fields)

    @property
    def _widths(self) -> list[int]:
        return self._table[0][0].max(axis=0)[1:].tolist()

    @property
    def layout(self) -> dict[str, tuple[int, int]]:
        """The number of values of each kind of integer of a problem, and how many there are."""
        large, lines = 2**16, self._lines
        return {
            "class": (shapes.CLASSES, 1),
            "domain": (len(self.domain_names), 1),
            "shape": (large, 1),  # among the shapes of its class and domain
            "number": (self.modulus - 1, lines),
            "digit": (8, lines),
            "operator": (6, lines),
            "compare": (2, lines),
            "limit": (large, lines),
            "name": (large, len(_LETTERS)),
        }

    def _program(self, value: jax.Array) -> _Program:
        x = self.split(value)
        about, lines = shapes.pick(self._table, x)
        lines = lines.reshape(len(value), self._lines, -1)
        lines = _Lines(*jnp.moveaxis(lines, 2, 0))
        number = jnp.where(lines.kind == 1, x["number"] + 1, x["digit"] + 2)
        number, operator = (jnp.take_along_axis(each, lines.source, axis=1) for each in (number, x["operator"]))
        name = jnp.asarray(characters.codes(_LETTERS), jnp.int32)[jnp.argsort(x["name"], axis=1)]
        operator = operator % jnp.where(lines.kind == 2, 3, 2)
        return _Program(lines, number, operator, name, about[:, :1])


def _name(program: _Program, variable: jax.Array) -> jax.Array:
    return jnp.take_along_axis(program.name, variable, axis=1)


def _definition(program: _Program) -> jax.Array:
    """Write the assignments, without numbers that stand alone, ``[P, U, 5]``."""
    kind, target, a, b = program.lines[:4]
    x, a, b = (_name(program, variable) for variable in (target, a, b))
    b = jnp.where(kind == 2, program.number + ord("0"), b)
    sign = jnp.asarray(characters.codes("+-*"), jnp.int32)[program.operator]
    right = jnp.where((kind > 1)[:, :, None], jnp.stack([a, sign, b], axis=2), 0)
    return jnp.concatenate([x[:, :, None], jnp.full_like(x, ord("="))[:, :, None], right], axis=2)


def _steps(program: _Program, values: jax.Array) -> jax.Array:
    """Write the steps that give values ``[P, U]`` to lines, ``[P, U, 9]``, with gaps."""
    kind, ends = program.lines.kind, jnp.full_like(values, ord(";"))
    equals = jnp.where(kind > 1, ord("="), 0)
    parts = [_definition(program), equals[:, :, None], characters.decimal(jnp.maximum(values, 0), 2), ends[:, :, None]]
    return jnp.where((kind > 0)[:, :, None], jnp.concatenate(parts, axis=2), 0)


def _run(
    program: _Program, modulus: int, slip: jax.Array | bool = False, off: jax.Array | int = 0
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Run programs.

    Args:
      program: of the problems.
      modulus: of all values.
      slip: ``[P, U]`` bool, whether a line is taken wrongly, or uses a stale value.
      off: ``[P, U]``, what is added to values.

    Returns:
      ``[P, U]`` the value that a line writes, -1 if it is not executed; ``[P, U]`` that of its guard; the answer.
    """
    lines, rows = program.lines, jnp.arange(len(program.name))
    slip, off = (jnp.broadcast_to(jnp.asarray(x), lines.kind.shape) for x in (slip, off))
    inverted = jnp.take_along_axis(slip, jnp.maximum(lines.head - 1, 0), axis=1) & (lines.head > 0)
    executed = (lines.executed > 0) ^ inverted

    def one(
        state: tuple[jax.Array, jax.Array], line: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        (values, stale), (kind, target, a, b, guard, number, operator, executed, slip, off) = state, line
        x, y = jnp.where(slip, stale[rows, a], values[rows, a]), jnp.where(kind == 3, values[rows, b], number)
        result = jnp.select([kind == 1, operator == 0, operator == 1], [number, x + y, x - y], x * y)
        result, old = (result + off) % modulus, values[rows, target]
        before = jnp.where(executed, jnp.where(old < 0, result, old), stale[rows, target])
        new = values.at[rows, target].set(jnp.where(executed, result, old))
        return (new, stale.at[rows, target].set(before)), (jnp.where(executed, result, -1), values[rows, guard])

    columns = (*lines[:4], lines.guard, program.number, program.operator, executed, slip & (lines.head == 0), off)
    none = jnp.full((len(rows), 5), -1)
    (final, _), (written, guards) = jax.lax.scan(one, (none, none), tuple(x.T for x in columns))
    return written.T, guards.T, final[rows, program.asked[:, 0]]


def _draw(random: random_lib.Random, number: int, variables: int, loops: bool) -> tuple[str, shapes.Sections] | None:
    """Draw a program, whose variables are numbered in the order of their first assignment."""
    lines, text, defined, done, width = list[dict[str, int]](), "", 0, 0, 2

    def below(count: int) -> int:
        return int(random.random() * count)

    def assign(fresh: bool) -> dict[str, int]:
        nonlocal defined
        kind = 2 + (defined > 1 and below(2)) if defined and not (fresh and below(8) == 0) else 1
        fresh = fresh and defined < variables and (not defined or below(2) > 0)
        a, b = below(defined), below(defined - 1)
        line = {"kind": kind, "target": defined if fresh else below(defined)}
        defined += fresh
        return line | ({"a": a} if kind > 1 else {}) | ({"b": b + (b >= a)} if kind > 2 else {})

    def add(line: dict[str, int], executed: bool, source: int | None = None, **more: int) -> None:
        nonlocal text, width
        if source is None:
            kind, prefix = line["kind"], more.get("prefix", 0)
            width += len(_PREFIXES[prefix].replace("N", "NN")) + 5 - (kind == 1) + more.get("closes", 0) + 1
            guard, operands = more["guard"] if prefix == 1 else "", sorted([line.get("a", 0), line.get("b", 0)])
            text += f"{prefix}{guard}.{kind}{line['target']}{operands}{more.get('closes', 0)} "
        lines.append({**line, **more, "executed": executed, "source": len(lines) if source is None else source})

    while done < number:
        roll, room, first = below(4) if defined > 1 else 3, number - done, len(lines)
        if roll == 0:
            taken, other = below(2) > 0, below(2) > 0
            add(assign(False), taken, head=first + 1, prefix=1, guard=below(defined))
            if other:
                add(assign(False), not taken, head=first + 1, prefix=2)
            done += taken or other
        elif roll == 1 and loops and room > 1:
            size = 1 + below(min(2, room // 2))
            body, count = [assign(False) for _ in range(size)], 2 + below(min(3, room // size - 1))
            for i in range(count + 1):
                head = len(lines) + 1 if i >= count - 1 else 0
                for j, line in enumerate(body):
                    start = {"prefix": 3 * (j == 0), "guard": count, "closes": j == size - 1} if i == 0 else {}
                    add(line, i < count, None if i == 0 else first + j, head=head, **start)
            done += count * size
        else:
            add(assign(True), True)
            done += 1
    if len(lines) > number + 4:
        return None
    due = [_END] * (len(lines) + 1)
    for i in reversed(range(len(lines))):
        due[i] = i if lines[i]["executed"] else due[i + 1]
    for line in lines:  # those with one head are skipped or taken together
        if not line["executed"]:
            last = max(j for j, other in enumerate(lines) if other.get("head") == line["head"])
            line |= {"turn": due[line["head"] - 1], "after": last + 1}
    working = sum(9 - 4 * (line["kind"] == 1) for line in lines if line.get("prefix") != 2)
    return text, ([below(defined), width, working], [line.get(name, 0) for line in lines for name in _Lines._fields])


traces = constructors.of(Traces)
