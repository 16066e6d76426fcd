"""Modular chains: ``7 *3 +5 -4 %11:`` answered by the steps modulo 11 and the result, ``7*3=10;10+5=4;4-4=0;0``."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import constructors, rules
from rljax.language import settings
from rljax.language.settings import setting
from rljax.types import Range

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
