"""Geometry: a figure with numbers and ``angle?``, ``length?`` or ``side?``, answered by a number, ``80``."""

import dataclasses
import functools
import itertools
import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn
from rljax.language.settings import setting
from rljax.types import Range

Ask = Literal["angle", "length", "side"]
_LEAST = 20  # degrees of an angle
_MULTIPLES, _BAR = range(2, 8), range(4, 6)  # a line is that many scale bars; pixels of a bar
_ROW = 8  # pixels of a line of text, with gaps


@dataclasses.dataclass(frozen=True)
class Geometry(drawn.Drawn):
    """Compute the number that a figure does not have, which is marked with an X, from those that it has.

    - "angle": a triangle with two of its angles, in degrees, multiples of ``step``; the third.
    - "length": a white line, and a green scale bar with its length; the length of the line, a whole multiple.
    - "side": a rectangle with one side, and the perimeter below it; the other side.

    Figures are drawn to scale. The splits share no pair of numbers that decides the answer: the two angles in either
    order, the length of the bar and the multiple, the side and the perimeter. Which corner is asked, places and
    reflections are free. A slip omits the last operation: the sum of the two angles, the multiple, or both other sides.
    Noise is the answer of another problem.
    """

    pixels: Annotated[int, Range(16, 512)] = setting(48, "Height and width of the picture, in pixels.")
    ask: Ask | tuple[Ask, ...] = setting(
        ("angle", "length", "side"), "What is asked; several questions take turns, each a domain."
    )
    step: Annotated[int, Range(1, 30)] = setting(5, "Angles are multiples of it, in degrees.")
    highest: Annotated[int, Range(4, 40)] = setting(20, "The greatest side, and the greatest length of a bar.")

    knob = "ask"
    leading = 1
    signs = "anglengthside0123456789,x="

    def check(self) -> None:
        """Raise ValueError if a figure has no room."""
        need = {
            "angle": 46,  # the numbers at the shortest side are apart
            "length": max(_MULTIPLES) * max(_BAR) + _ROW + 2,
            "side": self.highest + 2 * _ROW + 4,
        }[self.difficulty]
        if self.pixels < need:
            raise ValueError(f"pixels: {self.pixels} is too few for ask={self.difficulty!r}, which needs {need}")

    @property
    def radices(self) -> list[int]:
        """The numbers; which corner has which angle; reflection; the length of the bar in pixels; two places."""
        return [len(self._numbers[0]), 6, 2, len(_BAR), 64, 64]

    @property
    def mistakes(self) -> tuple[int, int]:
        """The only step is the answer."""
        return 1, len(self._answers)

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the figure, and its numbers in yellow."""
        picture = drawing.blank(len(value), self.pixels)
        return {"angle": self._triangle, "length": self._measured, "side": self._rectangle}[self.difficulty](
            picture, value
        )

    def describe(self, value: jax.Array) -> jax.Array:
        """Write ``40,x,60``, angles from the left and the one between; ``7=5,20=x``, lengths and pixels; ``12,x,44``.

        The sides of a rectangle are across and down.
        """
        rows = len(value)
        if self.difficulty == "angle":
            labels = self._labels(value)
            return characters.line(rows, labels[0], ",", labels[1], ",", labels[2])
        first, second = (characters.decimal(x, 3) for x in self._table(value)[:2])
        if self.difficulty == "length":
            bar, line = (characters.decimal(x, 3) for x in self._pixels(value))
            return characters.line(rows, first, "=", bar, ",", line, "=x")
        labels = self._labels(value)
        return characters.line(rows, labels[0], ",", labels[1], ",", second)

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``angle?``, ``length?`` or ``side?``."""
        return characters.line(len(value), self.difficulty, "?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the number."""
        _, _, answer, omitted = self._table(value)
        answers = jnp.asarray(self._answers, jnp.int32)
        other = answers[(jnp.searchsorted(answers, answer) + off[:, 0]) % len(answers)]
        return characters.decimal(jnp.where(slip[:, 0], omitted, other), 3)

    @property
    def _numbers(self) -> np.ndarray:
        """The numbers written, the answer, and what a slip writes: ``[4, N]``."""
        return _numbers(self.difficulty, self.step, self.highest)

    @property
    def _answers(self) -> np.ndarray:
        return np.unique(self._numbers[2])

    def _table(self, value: jax.Array) -> jax.Array:
        return jnp.asarray(self._numbers, jnp.int32)[:, value[:, 0]]

    def _corners(self, value: jax.Array) -> jax.Array:
        """Return which of the first, the second and the angle asked are left, right and between, ``[P, 3]``."""
        return jnp.asarray([*itertools.permutations(range(3))], jnp.int32)[value[:, 1]]

    def _labels(self, value: jax.Array) -> list[jax.Array]:
        """Write the numbers of the corners or of the sides, ``x`` for the one asked: ``[P, 3]`` each."""
        first, second = (characters.decimal(x, 3) for x in self._table(value)[:2])
        asked = jnp.broadcast_to(jnp.asarray([0, 0, ord("x")]), first.shape)
        if self.difficulty == "side":
            order, texts = jnp.stack([value[:, 2], 1 - value[:, 2]], axis=1), jnp.stack([first, asked], axis=1)
        else:
            order, texts = self._corners(value), jnp.stack([first, second, asked], axis=1)
        return [texts[jnp.arange(len(value)), order[:, i]] for i in range(order.shape[1])]

    def _write(self, picture: jax.Array, code: jax.Array, x: jax.Array, y: jax.Array | int) -> jax.Array:
        """Write texts in yellow, in capitals, their middle at (x, y) or as near as the edges allow."""
        code = characters.pack(jnp.where(code == ord("x"), ord("X"), code), code.shape[1])
        width = 4 * jnp.sum(code > 0, axis=1) - 1
        left = jnp.clip(x - width // 2, 1, self.pixels - 1 - width)
        mask = drawing.text(self.pixels, code, left, jnp.clip(y - 2, 1, self.pixels - 6))
        return drawing.paint(picture, mask, drawing.COLOURS["yellow"])

    def _triangle(self, picture: jax.Array, value: jax.Array) -> jax.Array:
        """Draw a triangle with a horizontal side, below or, reflected, above, and each number at its corner."""
        corners = jnp.asarray(_triangles(self.step, self.pixels), jnp.int32)[value[:, 0], value[:, 1]]  # [P, 3, 2]
        x, down = corners[:, :, 0], value[:, 2:3] > 0
        y = jnp.where(down, self.pixels - 1 - corners[:, :, 1], corners[:, :, 1])
        for one, other in ((0, 1), (1, 2), (2, 0)):
            mask = drawing.line(self.pixels, x[:, one], y[:, one], x[:, other], y[:, other])
            picture = drawing.paint(picture, mask, drawing.COLOURS["white"])
        outward = jnp.where(down, -1, 1) * jnp.asarray([[5, 5, -5]])
        for i, label in enumerate(self._labels(value)):
            picture = self._write(picture, label, x[:, i], y[:, i] + outward[:, i])
        return picture

    def _pixels(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the pixels of the bar and of the line, ``[P]`` both."""
        first, _, answer, _ = self._table(value)
        bar = value[:, 3] + min(_BAR)
        return bar, bar * (answer // first)

    def _measured(self, picture: jax.Array, value: jax.Array) -> jax.Array:
        """Draw the line, across or, reflected, down, and the bar with its number at the bottom."""
        bar, line = self._pixels(value)
        bottom, upright = self.pixels - 2, value[:, 2] > 0
        room = jnp.where(upright, self.pixels - 2 - _ROW, self.pixels - 2)
        along, across = 1 + value[:, 4] * (room - line) // 64, 1 + value[:, 5] * (self.pixels - 2 - _ROW) // 64
        x, y = jnp.where(upright, across, along), jnp.where(upright, along, across)
        to_x, to_y = x + jnp.where(upright, 0, line - 1), y + jnp.where(upright, line - 1, 0)
        picture = drawing.paint(picture, drawing.rectangle(self.pixels, x, y, to_x, to_y), drawing.COLOURS["white"])
        mask = drawing.rectangle(self.pixels, 1, bottom - 1, bar, bottom - 1)
        picture = drawing.paint(picture, mask, drawing.COLOURS["green"])
        return self._write(picture, characters.decimal(self._table(value)[0], 3), bar + 8, self.pixels - 4)

    def _rectangle(self, picture: jax.Array, value: jax.Array) -> jax.Array:
        """Draw a rectangle with a number above, one at its right, and the perimeter at the bottom."""
        side, perimeter, answer, _ = self._table(value)
        down, unit = value[:, 2] > 0, (self.pixels - 2 * _ROW - 4) // self.highest
        width, height = (jnp.where(flip, answer, side) * unit for flip in (down, ~down))
        left = 2 + value[:, 4] * (self.pixels - _ROW - 4 - width) // 64
        top = _ROW + value[:, 5] * (self.pixels - 2 * _ROW - height) // 64
        right, bottom = left + width - 1, top + height - 1
        picture = drawing.paint(
            picture, drawing.rectangle(self.pixels, left, top, right, bottom), drawing.COLOURS["white"]
        )
        inner = drawing.rectangle(self.pixels, left + 1, top + 1, right - 1, bottom - 1)
        picture = drawing.paint(picture, inner, (0, 0, 0))
        above, beside = self._labels(value)
        picture = self._write(picture, above, (left + right) // 2, top - 4)
        picture = self._write(picture, beside, right + 5, (top + bottom) // 2)
        return self._write(
            picture, characters.decimal(perimeter, 3), jnp.full_like(left, self.pixels // 2), self.pixels
        )


@functools.lru_cache
def _numbers(ask: Ask, step: int, highest: int) -> np.ndarray:
    """Return the two numbers written, the answer, and the result without the last operation: ``[4, N]``."""
    if ask == "angle":
        angles = range(-(-_LEAST // step) * step, 180 - _LEAST + 1, step)
        pairs = itertools.combinations_with_replacement(angles, 2)
        rows = [(a, b, 180 - a - b, a + b) for a, b in pairs if 180 - a - b >= _LEAST]
    elif ask == "length":
        rows = [(bar, 0, bar * times, times) for bar in range(1, highest + 1) for times in _MULTIPLES]
    else:
        sides = range(3, highest + 1)
        rows = [(a, 2 * (a + b), b, 2 * b) for a in sides for b in sides]
    return np.asarray(rows).T


@functools.lru_cache
def _triangles(step: int, pixels: int) -> np.ndarray:
    """Return the corners of triangles, left, right and between, for each order of the angles: ``[N, 6, 3, 2]``."""
    numbers, out = _numbers("angle", step, 0), []
    for angles in numbers[:3].T:
        for order in itertools.permutations(angles.tolist()):
            left, right = (1 / math.tan(math.radians(angle)) for angle in order[:2])
            # a base from 0 to left + right and a height of 1
            x = np.asarray([0, left + right, left])
            scale = min((pixels - 10) / (x.max() - x.min()), pixels - 2 * _ROW - 2)
            x = (x - x.min()) * scale
            x += (pixels - 1 - x.max()) / 2
            top = (pixels - 1 - scale) / 2
            out.append(np.stack([x, [top + scale, top + scale, top]], axis=1))
    return np.rint(out).astype(int).reshape(-1, 6, 3, 2)


geometry = drawn.of(Geometry)
