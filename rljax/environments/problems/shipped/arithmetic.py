"""Arithmetic: prompts such as ``37+48=``, answered by an integer, optionally after written-out working.

A problem is a polynomial in ten: ``columns`` are its coefficients, units first, and one pass from the units up carries
tens into the next column. The demonstrator runs the same pass with its mistakes, so that working, answer and mistakes
are consistent for every operator.
"""

import dataclasses

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import constructors, mixed, rules, task
from rljax.language import settings

OPERATORS = "+-*"
_COMMON = rules.Common()


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """Its rules; ``arithmetic`` builds the task."""

    operands: int
    digits: int
    operators: str
    name = "arithmetic"

    @property
    def alphabet(self) -> str:
        """Digits, operators and signs."""
        return "0123456789" + self.operators + "="

    @property
    def radices(self) -> list[int]:
        """Operators, then digits from the units up."""
        return [len(self.operators)] * (self.operands - 1) + [10] * (self.operands * self.digits)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a column, in which a carry may be forgotten and one of ten digits is written."""
        return _columns(self.operands, self.digits, self.operators), 10

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the sum, operands with all their digits."""
        digit, operator = self._split(value)
        parts: list[str | jax.Array] = []
        for i in range(self.operands):
            parts += [operator[:, i - 1] if i else "", digit[:, i, ::-1] + ord("0")]
        return characters.line(len(value), *parts, "=")

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write one sum for each column, units first, such as ``7+8=15;3+4+1=8;``, if there are only sums."""
        digit, operator = self._split(value)
        written, carried = _carry(self._columns(digit, operator), slip, off)
        width = _width(self.operands, self.digits, self.operators)
        number = _value(written)
        answer = characters.signed(number, width) if "-" in self.operators else characters.decimal(number, width)
        working = self._working(digit, written, carried) if self.operators == "+" else answer[:, :0]
        return rules.Solution(working, answer)

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the exact answer in decimal, without space, plus sign or leading zero: ``-?[0-9]+``."""
        answer = rules.answer(self, value)
        packed = characters.pack(written, answer.shape[1] + 1)
        minus = packed[:, 0] == ord("-")
        digits = jnp.sum(characters.among(written, "0123456789"), axis=1)
        parseable = (digits > 0) & (digits + minus == jnp.sum(written != 0, axis=1))
        return parseable, jnp.all(packed == characters.pack(answer, packed.shape[1]), axis=1)

    def _split(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return digit [P, operands, digits], units first, and operator [P, operands - 1], its code point."""
        operator = jnp.asarray(characters.codes(self.operators), jnp.int32)[value[:, : self.operands - 1]]
        digits = value[:, self.operands - 1 :].reshape(len(value), self.digits, self.operands)
        return digits.swapaxes(1, 2), operator

    def _columns(self, digit: jax.Array, operator: jax.Array) -> jax.Array:
        """Expand problems into coefficients of powers of ten, without carries: [P, columns]."""
        count = _columns(self.operands, self.digits, self.operators)
        total = jnp.zeros((digit.shape[0], count), jnp.int32)
        term = jnp.pad(digit[:, 0], ((0, 0), (0, count - self.digits)))
        for i in range(1, self.operands):
            factor, sign = digit[:, i], operator[:, i - 1 : i]
            summand = jnp.pad(jnp.where(sign == ord("-"), -factor, factor), ((0, 0), (0, count - self.digits)))
            times = sign == ord("*")
            total = jnp.where(times, total, total + term)
            term = jnp.where(times, _multiply(term, factor), summand) if "*" in self.operators else summand
        return total + term

    def _working(self, digit: jax.Array, written: jax.Array, carried: jax.Array) -> jax.Array:
        """Write one sum for each column, units first, such as ``7+8=15;3+4+1=8;``."""
        parts: list[str | jax.Array] = []
        for column in range(self.digits):
            for i in range(self.operands):
                parts += ["+" if i else "", digit[:, i, column] + ord("0")]
            if column:
                some = carried[:, column] > 0
                parts += [jnp.where(some, ord("+"), 0), jnp.where(some, carried[:, column] + ord("0"), 0)]
            parts += ["=", characters.decimal(written[:, column], 2), ";"]
        return characters.line(len(digit), *parts)


@settings.flat
def arithmetic(
    operands: int = 2,
    digits: int | tuple[int, ...] = 2,
    operators: str = "+",
    common: rules.Common = _COMMON,
) -> task.Problems | mixed.Mixed:
    """Build the arithmetic task: ``37+48=`` is answered by ``7+8=15;3+4+1=8;85``, or by ``85`` without working.

    Operands are written with exactly ``digits`` digits, so ``7`` is ``07`` when there are two; answers are plain.
    All problems are numbered, shuffled once and for all, and the last ``heldout`` of them are held out. Where they
    are more than 2^28, an even sample of at most that many is used. ``3+5`` and ``5+3`` are two problems.

    The demonstrator makes mistakes: it forgets a carry between two columns with probability ``slip``, and writes a
    wrong units digit of a column's sum (uniform among the others) with probability ``noise``; working and answer
    follow from the digits it wrote. Without working it makes the same mistakes; a borrow is a carry of -1. Working is
    for ``operators="+"`` only.

    Args:
      operands: how many numbers a problem has, 2 to 10.
      digits: decimal digits of each number; of several, such as (1, 2, 3), problems take turns, and each is a domain.
      operators: some of ``+-*``; each gap draws one of them, and ``*`` binds tighter.
      common: settings that all problems have.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: a setting is out of range, answers overflow int32, or a length is too small.
    """
    if isinstance(digits, tuple):
        if len(digits) < 2 or len(set(digits)) < len(digits):
            raise ValueError(f"digits: {digits} is not a number, or several different ones")
        names = tuple(f"{count} digit{'s' * (count > 1)}" for count in digits)
        return mixed.mix([_one(operands, count, operators, common) for count in digits], names)
    return _one(operands, digits, operators, common)


def _one(operands: int, digits: int, operators: str, common: rules.Common) -> task.Problems:
    """Build the task of one number of digits."""
    if not 2 <= operands <= 10:
        raise ValueError(f"operands: {operands} is not in [2, 10]")
    if not 1 <= digits <= 9:  # sums of longer numbers exceed int32
        raise ValueError(f"digits: {digits} is not in [1, 9]")
    if not operators or set(operators) - set(OPERATORS) or len(set(operators)) < len(operators):
        raise ValueError(f"operators: {operators!r} is not a choice, without repeats, from {OPERATORS!r}")
    if common.working and operators != "+":
        raise ValueError(f"working: True requires operators '+', not {operators!r}; set working to False")
    if _limit(operands, digits, operators) >= 2**31:
        raise ValueError(
            f"digits: {digits} with operands {operands} and operators {operators!r} gives answers beyond int32"
        )
    ordered = "".join(o for o in OPERATORS if o in operators)  # "-+" and "+-" are one task with one split
    return constructors.build(Arithmetic(operands, digits, ordered), common)


def _columns(operands: int, digits: int, operators: str) -> int:
    return operands * (digits - 1) + 1 if "*" in operators else digits


def _limit(operands: int, digits: int, operators: str) -> int:
    """Return the largest magnitude of an answer, mistakes included."""
    bound = 10 ** (operands * digits) if "*" in operators else operands * 10**digits
    return bound if "-" in operators else bound - 1


def _width(operands: int, digits: int, operators: str) -> int:
    return len(str(_limit(operands, digits, operators)))


def _multiply(term: jax.Array, factor: jax.Array) -> jax.Array:
    """Multiply polynomials in ten: [P, K] times [P, d], truncated to [P, K] (the rest is zero)."""
    count = term.shape[1]
    shifted = [jnp.pad(term, ((0, 0), (i, 0)))[:, :count] * factor[:, i : i + 1] for i in range(factor.shape[1])]
    return jnp.sum(jnp.stack(shifted), axis=0)


def _carry(columns: jax.Array, forget: jax.Array, off: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Carry tens from column to column: return the number written for each and the carry into it, [P, K] both.

    ``forget`` drops the carry out of a column; ``off`` adds that much to the units digit of its sum, modulo ten.
    """
    carry = jnp.zeros_like(columns[:, 0])
    written, carried = [], []
    for i in range(columns.shape[1]):
        carried.append(carry)
        total = columns[:, i] + carry
        total = total - total % 10 + (total + off[:, i]) % 10
        written.append(total)
        carry = jnp.where(forget[:, i], 0, total // 10)
    return jnp.stack(written, axis=1), jnp.stack(carried, axis=1)


def _value(written: jax.Array) -> jax.Array:
    """Return the answer of written columns: the units digit of each, and the whole of the last."""
    value = written[:, -1]
    for i in reversed(range(written.shape[1] - 1)):
        value = value * 10 + written[:, i] % 10
    return value
