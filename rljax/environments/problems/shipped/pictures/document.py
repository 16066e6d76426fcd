"""Documents: a page of lines such as ``TAX 42`` and ``TAX?`` or ``TAX+NET?``, answered by a number, ``42``."""

import dataclasses
import itertools
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn
from rljax.language.settings import setting
from rljax.types import Range

Ask = Literal["value", "sum", "larger"]
_NAMES = ("TAX", "NET", "FEE", "QTY", "AGE", "DAY", "BOX", "KEY", "MAP", "JOB", "VAT", "WHO")
_PRIORITIES = 64
_WIDTH, _HEIGHT = 23, 7  # of a line, a name of three letters and two digits, with the gap to the next line


@dataclasses.dataclass(frozen=True)
class Document(drawn.Drawn):
    """Read a field of a page by its name: its value, the sum of two, or the larger of two.

    A page has ``lines`` lines, a name and a whole number from 1 to 99 each, in places, at distances from the margin and
    in an order that are drawn; names differ. The splits share no pair of a name and its value that is asked, or no two
    pairs that are asked together, in either order; the other lines are free. A slip reads another line in place of the
    first one asked, and noise is another number in place of the first one read.
    """

    lines: Annotated[int, Range(1, 12)] | tuple[Annotated[int, Range(1, 12)], ...] = setting(
        3, "Lines on the page; several numbers, such as (2, 4), take turns, each a domain."
    )
    names: Annotated[int, Range(2, 12)] = setting(8, "How many names there are.")
    highest: Annotated[int, Range(2, 99)] = setting(99, "The greatest value.")
    ask: Ask = setting("value", "What is asked: a value, the sum of two values, or the larger of them.")

    knob = "lines"
    signs = "".join(_NAMES) + "max0123456789 ,+"

    def check(self) -> None:
        """Raise ValueError if there are too few lines or names, or no room for them."""
        least = 2  # what is asked, and another line
        if not least <= self.difficulty <= self.names:
            raise ValueError(f"lines: {self.difficulty} must be from {least} to names={self.names}")
        need = max(_HEIGHT * self.difficulty, _WIDTH + 2)
        if self.pixels < need:
            raise ValueError(f"pixels: {self.pixels} is too few for {self.difficulty} lines, which need {need}")

    @property
    def leading(self) -> int:
        """The names asked, and their values."""
        return 1 + self._asked

    @property
    def radices(self) -> list[int]:
        """Names asked, values, the order of two; of names priority and value; of lines priority and margin."""
        free = [_PRIORITIES] * self.names + [self.highest] * self.names
        return [
            len(self._choices),
            *[self.highest] * self._asked,
            2,
            *free,
            *[_PRIORITIES] * self._slots,
            *[self.pixels - _WIDTH] * self._slots,
        ]

    @property
    def mistakes(self) -> tuple[int, int]:
        """The only step is the first value."""
        return 1, self.highest

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the lines in black on white."""
        name, number, place, margin = self._lines(value)
        picture = drawing.paint(drawing.blank(len(value), self.pixels), jnp.ones((1, 1, 1), bool), (255, 255, 255))
        for i in range(self.difficulty):
            top = place[:, i] * _HEIGHT + (self.pixels - self._slots * _HEIGHT) // 2 + 1
            line = self._line(name[:, i], number[:, i])
            picture = drawing.paint(picture, drawing.text(self.pixels, line, margin[:, i], top), (0, 0, 0))
        return picture

    def describe(self, value: jax.Array) -> jax.Array:
        """Write the lines from the top: ``TAX 42,NET 7``."""
        name, number, place, _ = self._lines(value)
        order = jnp.argsort(place, axis=1)
        name, number = (jnp.take_along_axis(x, order, axis=1) for x in (name, number))
        parts = [self._line(name[:, i], number[:, i]) for i in range(self.difficulty)]
        return drawn.listed(jnp.stack(parts, axis=1), jnp.ones((len(value), self.difficulty), bool))

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``TAX?``, ``TAX+NET?`` or ``max TAX NET?``."""
        name = self._lines(value)[0]
        first, second = (characters.words(_NAMES)[name[:, i]] for i in (0, 1))
        if self.ask == "value":
            return characters.line(len(value), first, "?")
        larger = self.ask == "larger"
        return characters.line(len(value), "max " * larger, first, " " if larger else "+", second, "?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the number."""
        number = self._lines(value)[1]
        other = number[:, min(self._asked, self.difficulty - 1)]  # of a line that is not asked, if there is one
        first = (jnp.where(slip[:, 0], other, number[:, 0]) - 1 + off[:, 0]) % self.highest + 1
        if self.ask == "value":
            return characters.decimal(first, 3)
        return characters.decimal(first + number[:, 1] if self.ask == "sum" else jnp.maximum(first, number[:, 1]), 3)

    @property
    def _asked(self) -> int:
        return 1 if self.ask == "value" else 2

    @property
    def _slots(self) -> int:
        return self.pixels // _HEIGHT

    @property
    def _choices(self) -> list[tuple[int, ...]]:
        return [*itertools.combinations(range(self.names), self._asked)]

    def _line(self, name: jax.Array, number: jax.Array) -> jax.Array:
        return characters.line(len(name), characters.words(_NAMES)[name], " ", characters.decimal(number, 2))

    def _lines(self, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Return names, numbers, places from the top and margins, those asked first: ``[P, lines]`` each."""
        asked, names, slots = self._asked, self.names, self._slots
        chosen, numbers, rest = value[:, 0], value[:, 1 : 1 + asked], value[:, 1 + asked :]
        swap, priority, other = rest[:, :1] > 0, rest[:, 1 : 1 + names], rest[:, 1 + names : 1 + 2 * names]
        first = jnp.asarray(self._choices, jnp.int32)[chosen]
        if asked == 2:
            first, numbers = (jnp.where(swap, x[:, ::-1], x) for x in (first, numbers))
        is_asked = jnp.any(first[:, :, None] == jnp.arange(names)[None, None], axis=1)
        name = jnp.argsort(jnp.where(is_asked, _PRIORITIES, priority), axis=1)[:, : self.difficulty - asked]
        number = jnp.concatenate([numbers, jnp.take_along_axis(other, name, axis=1)], axis=1) + 1
        place = jnp.argsort(rest[:, -2 * slots : -slots], axis=1)[:, : self.difficulty]
        return jnp.concatenate([first, name], axis=1), number, place, rest[:, -slots:][:, : self.difficulty]


document = drawn.of(Document)
