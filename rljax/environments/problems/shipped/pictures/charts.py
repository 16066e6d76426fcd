"""Bar charts: a picture of coloured bars and ``max?``, ``red?`` or ``blue-red?``, answered by a height, ``7``."""

import dataclasses
import itertools
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn, rules
from rljax.language.settings import setting
from rljax.types import Range

Ask = Literal["max", "bar", "difference"]
_COLOURS = [*drawing.COLOURS]


@dataclasses.dataclass(frozen=True)
class Charts(drawn.Drawn):
    """Read a bar chart: the greatest height, the height of one bar, or of one bar less that of another.

    Bars have whole heights from 1, and a grey line marks each unit, a lighter one every fifth. The splits share no list
    of heights, from left to right; colours and questions are free. A slip takes the height of the leftmost bar for the
    greatest or for that of the first bar asked, and noise is another height in its place.
    """

    bars: Annotated[int, Range(2, 5)] = setting(3, "How many bars.")
    highest: Annotated[int, Range(2, 20)] = setting(9, "The greatest height.")
    ask: Ask | tuple[Ask, ...] = setting(
        ("max", "bar", "difference"), "What is asked; several questions take turns, each a domain."
    )

    knob = "ask"
    signs = "".join(_COLOURS) + "max0123456789 ,-"

    def check(self) -> None:
        """Raise ValueError if there is no room for the bars."""
        need = max(2 * self.highest + 1, 3 * self.bars + 1)
        if self.pixels < need:
            raise ValueError(f"pixels: {self.pixels} is too few for these bars, which need {need}")

    @property
    def leading(self) -> int:
        """The heights."""
        return self.bars

    @property
    def radices(self) -> list[int]:
        """Heights from 0, colours, the bar asked, and the other one."""
        return [self.highest] * self.bars + [len(self._arrangements), self.bars, self.bars - 1]

    @property
    def mistakes(self) -> tuple[int, int]:
        """The only step is the height."""
        return 1, self.highest

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the lines and the bars from the left."""
        unit, width = (self.pixels - 1) // self.highest, self.pixels // self.bars
        picture, palette, floor = drawing.blank(len(value), self.pixels), drawing.palette(), self.pixels - 1
        for height in range(self.highest + 1):
            level = floor - height * unit
            mask = drawing.rectangle(self.pixels, 0, level, floor, level)[None]
            picture = drawing.paint(picture, mask, drawing.GREY if height % 5 else drawing.LIGHT)
        for i in range(self.bars):
            left, top = i * width + 1, floor - (value[:, i] + 1) * unit
            mask = drawing.rectangle(self.pixels, left, top, left + width - 3, floor)
            picture = drawing.paint(picture, mask, palette[self._colours(value)[:, i]])
        return picture

    def describe(self, value: jax.Array) -> jax.Array:
        """Write the bars from the left: ``red 3,blue 7,green 5``."""
        names = characters.words(_COLOURS)[self._colours(value)]
        parts = [
            characters.line(len(value), names[:, i], " ", characters.decimal(value[:, i] + 1, 2))
            for i in range(self.bars)
        ]
        return drawn.listed(jnp.stack(parts, axis=1), jnp.ones((len(value), self.bars), bool))

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``max?``, ``red?`` or ``blue-red?``."""
        if self.ask == "max":
            return characters.line(len(value), "max?")
        asked, colours = self._asked(value), self._colours(value)
        first, second = (characters.words(_COLOURS)[colours[jnp.arange(len(value)), bar]] for bar in asked)
        return characters.line(len(value), first, *(["-", second] if self.ask == "difference" else []), "?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the height, or the difference, with its sign if negative."""
        heights = value[:, : self.bars] + 1
        first, second = (heights[jnp.arange(len(value)), bar] for bar in self._asked(value))
        read = jnp.where(slip[:, 0], heights[:, 0], heights.max(axis=1) if self.ask == "max" else first)
        read = (read - 1 + off[:, 0]) % self.highest + 1
        return characters.signed(read - second, 2) if self.ask == "difference" else characters.decimal(read, 2)

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the answer."""
        return rules.exact(rules.answer(self, value), written, "0123456789-")

    @property
    def _arrangements(self) -> list[tuple[int, ...]]:
        return [*itertools.permutations(range(self.bars + 1), self.bars)]  # one colour more than bars

    def _colours(self, value: jax.Array) -> jax.Array:
        """Return the colour of each bar, ``[P, bars]``."""
        return jnp.asarray(self._arrangements, jnp.int32)[value[:, self.bars]]

    def _asked(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the bar asked, and another one, ``[P]`` both."""
        first, other = value[:, self.bars + 1], value[:, self.bars + 2]
        return first, other + (other >= first)


charts = drawn.of(Charts)
