"""Counting: a picture of coloured shapes and ``red circle?``, answered by their number, ``2``."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn
from rljax.language.settings import setting
from rljax.types import Range

_PRIORITIES = 64  # of cells; shapes are in the cells of the highest


@dataclasses.dataclass(frozen=True)
class Counting(drawn.Drawn):
    """Count the shapes of a colour and a form among others, each somewhere in a cell of a grid.

    The answers 0 to ``most`` are equally frequent, and every picture has ``most + distractors`` shapes, so that their
    number says nothing about the answer. The splits share no pair of colour and form that is asked: a held-out pair is
    never asked in training, but occurs there as one of the others. Each of the others differs from the pair in colour,
    form or both. A slip is a shape that is overlooked, and noise another number up to ``most``.
    """

    grid: Annotated[int, Range(2, 6)] = setting(3, "Cells in each direction.")
    most: Annotated[int, Range(1, 9)] = setting(4, "The largest number of shapes that are counted.")
    distractors: Annotated[int, Range(0, 35)] | tuple[Annotated[int, Range(0, 35)], ...] = setting(
        4, "Shapes in the picture beyond most; several numbers, such as (0, 4), take turns, each a domain."
    )
    colours: Annotated[int, Range(2, 6)] = setting(4, "How many colours there are.")
    shapes: Annotated[int, Range(2, 5)] = setting(4, "How many forms there are.")

    knob = "distractors"
    leading = 2

    def check(self) -> None:
        """Raise ValueError if the cells are too few or too small."""
        if self.most + self.difficulty > self.grid**2:
            raise ValueError(
                f"distractors: {self.distractors} and most={self.most} counted shapes exceed the {self.grid**2} cells "
                f"of grid={self.grid}"
            )
        if self._side < 7:
            raise ValueError(
                f"pixels: {self.pixels} gives grid={self.grid} cells of {self._side} pixels; each needs 7, so that "
                f"pixels is at least {7 * self.grid}"
            )

    @property
    def signs(self) -> str:
        """Letters of colours and forms, and digits."""
        return "".join([*drawing.COLOURS, *drawing.SHAPES]) + "0123456789 ,"

    @property
    def radices(self) -> list[int]:
        """Colour and form; how many; of each cell its priority, other pair, and place from the left and the top."""
        cells, others = self.grid**2, self.colours * self.shapes - 1
        free = self._side - 2 * self._radius - 1
        return (
            [self.colours, self.shapes, self.most + 1] + cells * [_PRIORITIES] + cells * [others] + 2 * cells * [free]
        )

    @property
    def mistakes(self) -> tuple[int, int]:
        """The only step is the number."""
        return 1, self.most + 1

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the shape of each cell."""
        kind, present = self._cells(value)
        cells = self.grid**2
        across, down = value[:, -2 * cells : -cells], value[:, -cells:]
        picture, palette = drawing.blank(len(value), self.pixels), drawing.palette()
        for i in range(cells):
            x, y = (
                place + first * self._side + self._radius
                for place, first in ((across[:, i], i % self.grid), (down[:, i], i // self.grid))
            )
            mask = drawing.shape(self.pixels, kind[:, i] % self.shapes, x, y, self._radius)
            picture = drawing.paint(picture, mask & present[:, i, None, None], palette[kind[:, i] // self.shapes])
        return picture

    def describe(self, value: jax.Array) -> jax.Array:
        """Write the shapes row by row: ``red circle,blue square``."""
        kind, present = self._cells(value)
        return drawn.listed(drawn.pairs(kind, self.colours, self._shapes), present)

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``red circle?``."""
        return characters.line(len(value), drawn.pairs(self._asked(value), self.colours, self._shapes), "?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the number."""
        count = jnp.maximum(value[:, 2] - slip[:, 0], 0)
        return characters.decimal((count + off[:, 0]) % (self.most + 1), 1)

    @property
    def _shapes(self) -> tuple[str, ...]:
        return drawing.SHAPES[: self.shapes]

    @property
    def _side(self) -> int:
        return self.pixels // self.grid

    @property
    def _radius(self) -> int:
        return (self._side - 3) // 2  # leaves two or three places, and a gap to the next cell

    def _asked(self, value: jax.Array) -> jax.Array:
        return value[:, 0] * self.shapes + value[:, 1]

    def _cells(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the pair of colour and form of each cell, and whether the cell has a shape, ``[P, cells]`` both."""
        cells = self.grid**2
        priority, other = value[:, 3 : 3 + cells], value[:, 3 + cells : 3 + 2 * cells]
        kind, rank = drawn.scatter(self._asked(value), priority, other, value[:, 2])
        return kind, rank < self.most + self.difficulty


counting = drawn.of(Counting)
