"""Boolean formulas: ``(a&!b)|(b^a):`` answered by columns of the truth table, ``0010 0110;0110``."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import constructors, rules
from rljax.language import settings
from rljax.language.settings import setting
from rljax.types import Range

_OPERATORS = "&|^"


@dataclasses.dataclass(frozen=True)
class Formulas:
    """Write the column of a formula's truth table, whose rows count upwards: of two variables 00, 01, 10, 11.

    A demonstration writes the columns of the innermost operators first. A slip is a negation that is ignored, and noise
    another column; the operators around it continue from what was written.
    """

    depth: Annotated[int, Range(1, 4)] = setting(2, "Operators inside each other; there are 2**depth - 1.")
    variables: Annotated[int, Range(1, 4)] = setting(4, "How many variables; a column has 2**variables digits.")

    name = "formulas"

    __post_init__ = settings.check

    @property
    def alphabet(self) -> str:
        """Letters, digits and signs."""
        return "01" + "abcd"[: self.variables] + "!&|^() :"

    @property
    def radices(self) -> tuple[int, ...]:
        """Variables and negations, from left to right, then operators, innermost first."""
        leaves = 2**self.depth
        return (2 * self.variables,) * leaves + (len(_OPERATORS),) * (leaves - 1)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a variable, which may be negated, or an operator, which has a column."""
        return len(self.radices), 2**self._rows

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the formula, with parentheses around all but the outermost operator."""
        variable, negated = value // 2, value % 2 * ord("!")
        terms = [characters.line(len(value), negated[:, i], variable[:, i] + ord("a")) for i in range(2**self.depth)]
        operators = iter(self._operators(value))
        while len(terms) > 1:
            pairs = zip(terms[::2], terms[1::2], strict=True)
            joined = [characters.line(len(value), a, next(operators), b) for a, b in pairs]
            terms = [characters.line(len(value), "(", text, ")") for text in joined] if len(joined) > 1 else joined
        return characters.line(len(value), terms[0], ":")

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write the columns of each level; a column is an integer whose highest bit is the first row."""
        rows, leaves, parts = self._rows, 2**self.depth, []
        masks = [sum(1 << rows - 1 - r for r in range(rows) if r >> bit & 1) for bit in range(self.variables)][::-1]
        column = jnp.asarray(masks, jnp.int32)[value[:, :leaves] // 2]
        negated = (value[:, :leaves] % 2 == 1) & ~slip[:, :leaves]
        columns = [*jnp.where(negated, column ^ (2**rows - 1), column).T]
        operators = iter(zip(self._operators(value), off[:, leaves:].T, strict=True))
        while True:
            level = []
            for left, right in zip(columns[::2], columns[1::2], strict=True):
                operator, wrong = next(operators)
                both = jnp.where(operator == ord("&"), left & right, left | right)
                level.append(jnp.where(operator == ord("^"), left ^ right, both) ^ wrong)
            columns = level
            if len(columns) == 1:
                return rules.Solution(characters.line(len(value), *parts), self._write(columns[0]))
            for column in columns:
                parts += [self._write(column), " " if column is not columns[-1] else ";"]

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the column, one digit for each row."""
        return rules.exact(rules.answer(self, value), written, "01")

    @property
    def _rows(self) -> int:
        return 2**self.variables

    def _operators(self, value: jax.Array) -> list[jax.Array]:
        return [*jnp.asarray(characters.codes(_OPERATORS), jnp.int32)[value[:, 2**self.depth :]].T]

    def _write(self, column: jax.Array) -> jax.Array:
        return jnp.stack([column >> row & 1 for row in reversed(range(self._rows))], axis=1) + ord("0")


formulas = constructors.of(Formulas)
