"""Tasks that are solved one step after the other; the answer is what stands there after each step.

List functions: ``3141 rev inc sum:`` answered by the list after each function, ``1413;2524;2713``.
Sorting: ``7 3 9 1:`` answered by passes over the list and the sorted list, ``3 7 1 9;3 1 7 9;1 3 7 9``.
Modular chains: ``7 *3 +5 -4 %11:`` answered by the steps modulo 11 and the result, ``7*3=10;10+5=4;4-4=0;0``.
String rewriting: ``ab>c cc>a abcab:`` answered by the text after each rule, ``ccc;ac``.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import constructors, rules
from rljax.language import settings
from rljax.language.settings import setting
from rljax.types import Range

_FUNCTIONS = {
    "rev": lambda x: x[:, ::-1],
    "rot": lambda x: jnp.roll(x, -1, axis=1),
    "srt": lambda x: jnp.sort(x, axis=1),
    "inc": lambda x: (x + 1) % 10,
    "dbl": lambda x: 2 * x % 10,
    "neg": lambda x: 9 - x,
    "sum": lambda x: jnp.cumsum(x, axis=1) % 10,
    "max": lambda x: jax.lax.cummax(x, axis=1),
}


@dataclasses.dataclass(frozen=True)
class Lists:
    """Apply functions to a list of digits, from left to right.

    ``rev`` reverses, ``rot`` moves the first digit to the end, ``srt`` sorts, ``inc`` adds 1 and ``dbl`` doubles each
    modulo 10, ``neg`` subtracts each from 9, ``sum`` and ``max`` are of all digits so far, the sum modulo 10. A slip is
    a function that is omitted, and noise a wrong digit; the functions after it continue from what was written.
    """

    functions: Annotated[int, Range(1, 8)] = setting(2, "How many functions.")
    length: Annotated[int, Range(2, 12)] = setting(4, "Digits of the list.")

    name = "lists"
    alphabet = "0123456789 :" + "".join(sorted(set("".join(_FUNCTIONS))))

    __post_init__ = settings.check

    @property
    def radices(self) -> tuple[int, ...]:
        """The functions and the digits."""
        return (len(_FUNCTIONS),) * self.functions + (10,) * self.length

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a digit of the list after a function; the slip of the first digit is the function's."""
        return self.functions * self.length, 10

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the list and the names of the functions."""
        names = jnp.asarray([characters.codes(name) for name in _FUNCTIONS], jnp.int32)
        called = [part for i in range(self.functions) for part in (" ", names[value[:, i]])]
        return characters.line(len(value), value[:, self.functions :] + ord("0"), *called, ":")

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write the list after each function."""
        digits, lists = value[:, self.functions :], []
        for i in range(self.functions):
            steps = slice(i * self.length, (i + 1) * self.length)
            results = [function(digits) for function in _FUNCTIONS.values()]
            chosen = sum(jnp.where(value[:, i : i + 1] == j, result, 0) for j, result in enumerate(results))
            digits = (jnp.where(slip[:, steps][:, :1], digits, chosen) + off[:, steps]) % 10
            lists.append(digits + ord("0"))
        working = [part for written in lists[:-1] for part in (written, ";")]
        return rules.Solution(characters.line(len(value), *working), lists[-1])

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the list after the last function."""
        return rules.exact(rules.answer(self, value), written, "0123456789")


lists = constructors.of(Lists)


@dataclasses.dataclass(frozen=True)
class Sorting:
    """Sort numbers in ascending order.

    A demonstration is a bubble sort: each pass exchanges neighbours that are out of order. A slip is an exchange that
    is omitted, and noise a wrong units digit of the larger neighbour; what follows continues from what was written.
    """

    numbers: Annotated[int, Range(2, 12)] = setting(4, "How many numbers.")
    digits: Annotated[int, Range(1, 4)] = setting(1, "Decimal digits of the largest number.")

    name = "sorting"
    alphabet = "0123456789 :"

    __post_init__ = settings.check

    @property
    def radices(self) -> tuple[int, ...]:
        """The numbers."""
        return (10**self.digits,) * self.numbers

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is one comparison; a wrong units digit is one of ten."""
        return self.numbers * (self.numbers - 1) // 2, 10

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the numbers."""
        return characters.line(len(value), self._write(value), ":")

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write the list after each pass; a step compares two neighbours."""
        column, step, lists = [*value.T], 0, []
        for end in range(self.numbers - 1, 0, -1):
            for i in range(end):
                exchange = (column[i] > column[i + 1]) & ~slip[:, step]
                low, high = (jnp.where(exchange, column[j], column[k]) for j, k in ((i + 1, i), (i, i + 1)))
                column[i : i + 2] = low, high - high % 10 + (high + off[:, step]) % 10
                step += 1
            lists.append(self._write(jnp.stack(column, axis=1)))
        working = [part for written in lists[:-1] for part in (written, ";")]
        return rules.Solution(characters.line(len(value), *working), lists[-1])

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the sorted list, one space between numbers."""
        return rules.exact(self._write(jnp.sort(value, axis=1)), written, "0123456789 ")

    def _write(self, value: jax.Array) -> jax.Array:
        first, *others = (characters.decimal(column, self.digits) for column in value.T)
        return characters.line(len(value), first, *(part for number in others for part in (" ", number)))


sorting = constructors.of(Sorting)


_OPERATORS = "+-*"


@dataclasses.dataclass(frozen=True)
class Chain:
    """Apply operations to a number from left to right, each modulo the number after ``%``.

    A slip is an operation that is omitted, so that the number stays as it was; noise is another residue. The operations
    after it continue from what was written.
    """

    steps: Annotated[int, Range(1, 12)] = setting(3, "How many operations.")
    modulus: Annotated[int, Range(2, 999)] = setting(199, "The largest modulus; the smallest is 2.")

    name = "chain"
    alphabet = "0123456789 +-*%=:"

    __post_init__ = settings.check

    @property
    def radices(self) -> tuple[int, ...]:
        """The first number, operator and operand of each operation, the modulus."""
        return (10, *(len(_OPERATORS), 10) * self.steps, self.modulus - 1)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is one operation; wrong residues are made of a number that is large beside every modulus."""
        return self.steps, 2**20

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the first number, the operations and the modulus."""
        parts: list[str | jax.Array] = [value[:, 0] + ord("0")]
        for i in range(self.steps):
            parts += [" ", self._operator(value, i), value[:, 2 + 2 * i] + ord("0")]
        modulus = characters.decimal(value[:, -1] + 2, len(str(self.modulus)))
        return characters.line(len(value), *parts, " %", modulus, ":")

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write each operation with its result."""
        number, modulus, parts = value[:, 0], value[:, -1] + 2, []
        for i in range(self.steps):
            operator, operand = self._operator(value, i), value[:, 2 + 2 * i]
            parts += [self._write(number), operator, operand + ord("0"), "="]
            changed = jnp.where(operator == ord("-"), number - operand, number + operand)
            changed = jnp.where(operator == ord("*"), number * operand, changed) % modulus
            number = jnp.where(slip[:, i], number, changed)
            other = (number + 1 + (off[:, i] - 1) % jnp.maximum(modulus - 1, 1)) % modulus
            number = jnp.where(off[:, i] > 0, other, number)
            parts += [self._write(number), ";"]
        return rules.Solution(characters.line(len(value), *parts), self._write(number))

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the result in decimal, without leading zeros."""
        return rules.exact(rules.answer(self, value), written, "0123456789")

    def _operator(self, value: jax.Array, step: int) -> jax.Array:
        return jnp.asarray(characters.codes(_OPERATORS), jnp.int32)[value[:, 1 + 2 * step]]

    def _write(self, number: jax.Array) -> jax.Array:
        return characters.decimal(number, len(str(max(9, self.modulus - 1))))


chain = constructors.of(Chain)


_LETTERS = "abcdef"


@dataclasses.dataclass(frozen=True)
class Rewriting:
    """Apply rules to a text, one after the other; ``ab>c`` replaces every ``ab``, from left to right, by ``c``.

    A slip is an occurrence that is overlooked, and noise another letter in place of the new one; the rules after it
    continue from what was written.
    """

    steps: Annotated[int, Range(1, 6)] = setting(2, "How many rules.")
    length: Annotated[int, Range(2, 16)] = setting(6, "Letters of the text.")
    letters: Annotated[int, Range(2, 6)] = setting(3, "How many different letters there are.")

    name = "rewriting"

    __post_init__ = settings.check

    @property
    def alphabet(self) -> str:
        """Letters and signs."""
        return _LETTERS[: self.letters] + "> :"

    @property
    def radices(self) -> tuple[int, ...]:
        """The text, and two letters and the new one of each rule."""
        return (self.letters,) * (self.length + 3 * self.steps)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a place at which a rule may apply."""
        return self.steps * (self.length - 1), self.letters

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the rules and the text."""
        code, parts = value + ord("a"), []
        for i in range(self.length, len(self.radices), 3):
            parts += [code[:, i : i + 2], ">", code[:, i + 2], " "]
        return characters.line(len(value), *parts, code[:, : self.length], ":")

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write the text after each rule."""
        text, texts, step = value[:, : self.length] + ord("a"), [], 0
        for rule in range(self.steps):
            first, second, new = value[:, self.length + 3 * rule :][:, :3].T
            taken, columns = jnp.zeros(len(value), bool), []
            for place in range(self.length - 1):
                match = (text[:, place] == first + ord("a")) & (text[:, place + 1] == second + ord("a"))
                match &= ~taken & ~slip[:, step]
                kept = jnp.where(taken, 0, text[:, place])
                columns.append(jnp.where(match, (new + off[:, step]) % self.letters + ord("a"), kept))
                taken, step = match, step + 1
            columns.append(jnp.where(taken, 0, text[:, -1]))
            text = characters.pack(jnp.stack(columns, axis=1), self.length)
            texts.append(text)
        working = [part for text in texts[:-1] for part in (text, ";")]
        return rules.Solution(characters.line(len(value), *working), texts[-1])

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the text after the last rule."""
        return rules.exact(rules.answer(self, value), written, _LETTERS[: self.letters])


rewriting = constructors.of(Rewriting)
