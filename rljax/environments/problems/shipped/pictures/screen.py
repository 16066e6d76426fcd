"""Screens: a picture of labelled buttons and ``red A?``, answered by a click, ``12,20``, or a box, ``8,16,15,24``."""

import dataclasses
import re
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn
from rljax.language.settings import Share, setting
from rljax.types import Range

_PRIORITIES = 64  # of cells; buttons are in the cells of the highest
_WIDTH, _HEIGHT = 5, 7  # of the smallest button, which holds a letter


@dataclasses.dataclass(frozen=True)
class Screen(drawn.Drawn):
    """Find a button by its colour and letter: a point in it, or its box; the others differ in one of them or both.

    Places are pixels from the left and from the top, and a box is left, top, right and bottom, edges included. A click
    is correct inside the button, a box if its intersection over union (IoU) with the button is at least ``threshold``.
    The splits share no pair of colour and letter that is asked; a held-out pair occurs in training as one of the
    others. A slip is the place of another button, and noise another number. Parts of the verdict:

    - ``inside``: of a click, or of the middle of a box; ``exact``: whether it is the middle, or the box;
    - ``iou``, and ``box``, the harmonic mean over the four edges of 1 - distance / ``pixels``; 0 for a click;
    - ``rate``: the inverse area of the button, 1 on average over the sizes of buttons.
    """

    grid: Annotated[int, Range(2, 6)] = setting(3, "Cells in each direction, each of which may hold a button.")
    buttons: Annotated[int, Range(2, 36)] | tuple[Annotated[int, Range(2, 36)], ...] = setting(
        4, "Buttons on the screen; several numbers, such as (2, 8), take turns, each a domain."
    )
    colours: Annotated[int, Range(2, 6)] = setting(4, "How many colours there are.")
    letters: Annotated[int, Range(2, 26)] = setting(6, "How many letters there are.")
    ask: Literal["click", "box"] = setting("click", "What is asked: a point in the button, or its box.")
    threshold: Share = setting(0.5, "The least IoU of a box that is correct.")
    partial: bool = setting(False, "Whether the reward of a box is its IoU; else 1 if it is correct.")

    knob = "buttons"
    leading = 2
    parts = ("inside", "exact", "iou", "box", "rate")

    def check(self) -> None:
        """Raise ValueError if there is no room for the buttons, or settings are incompatible."""
        if self.difficulty > self.grid**2:
            raise ValueError(f"buttons: {self.difficulty} exceed the {self.grid**2} cells of grid={self.grid}")
        if self._side <= _HEIGHT:
            raise ValueError(f"pixels: {self.pixels} is too few for grid={self.grid}; need {(_HEIGHT + 1) * self.grid}")
        if self.pixels > 1000:
            raise ValueError(f"pixels: {self.pixels} is too many; a place is written in three digits, up to 999")
        if self.partial and self.ask == "click":
            raise ValueError("partial: True needs boxes; set ask='box'")

    @property
    def signs(self) -> str:
        """Letters of colours and labels, and digits."""
        return "".join([*drawing.COLOURS]) + self._letters + "0123456789 ,"

    @property
    def radices(self) -> list[int]:
        """Colour and letter; of each cell its priority, its other pair, and width, height and place of its button."""
        each = [_PRIORITIES, self.colours * self.letters - 1, self._side - _WIDTH, self._side - _HEIGHT]
        return [self.colours, self.letters, *(radix for radix in [*each, 64, 64] for _ in range(self.grid**2))]

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a number."""
        return 4 if self.ask == "box" else 2, self.pixels

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the buttons on grey, and their letters in black."""
        kind, rank, boxes = self._cells(value)
        picture = drawing.paint(drawing.blank(len(value), self.pixels), jnp.ones((1, 1, 1), bool), drawing.GREY)
        for i in range(self.grid**2):
            colour, letter = drawing.palette()[kind[:, i] // self.letters], kind[:, i] % self.letters + ord("A")
            picture = drawing.button(picture, boxes[:, i], colour, letter, rank[:, i] < self.difficulty)
        return picture

    def describe(self, value: jax.Array) -> jax.Array:
        """Write the buttons row by row: ``red A 8 16 15 24,blue A 20 2 26 9``."""
        kind, rank, boxes = self._cells(value)
        words, parts = drawn.pairs(kind, self.colours, self._letters), []
        for i in range(self.grid**2):
            numbers = [part for number in boxes[:, i].T for part in (" ", characters.decimal(number, 3))]
            parts.append(characters.line(len(value), words[:, i], *numbers))
        return drawn.listed(jnp.stack(parts, axis=1), rank < self.difficulty)

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``red A?``."""
        return characters.line(len(value), drawn.pairs(self._asked(value), self.colours, self._letters), "?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the middle of the button, or its box."""
        numbers = jnp.where(slip[:, :1], self._place(value, 1), self._place(value, 0))
        columns = [characters.decimal(number, 3) for number in ((numbers + off) % self.pixels).T]
        return characters.line(len(value), columns[0], *(part for column in columns[1:] for part in (",", column)))

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Read the numbers, of at most three digits each, and compare them with the button."""
        parts = self.measure(value, written, jnp.ones(len(value), bool))[1]
        correct = parts["iou"] >= self.threshold if self.ask == "box" else parts["inside"] > 0
        return self._read(written)[0], correct

    def measure(
        self, value: jax.Array, written: jax.Array, parseable: jax.Array
    ) -> tuple[jax.Array | None, dict[str, jax.Array]]:
        """Return the reward, or None if it is that of a correct answer, and the parts, see the class."""
        numbers, box = self._read(written)[1], self._box(value, 0)
        low, high = numbers[:, :2], numbers[:, -2:]
        middle = (low + high) // 2
        inside = jnp.all((box[:, :2] <= middle) & (middle <= box[:, 2:]), axis=1)
        exact = jnp.all(numbers == self._place(value, 0), axis=1)
        inverse = [np.mean(1 / np.arange(least, self._side)) for least in (_WIDTH, _HEIGHT)]
        rate = 1 / (jnp.prod(box[:, 2:] - box[:, :2] + 1, axis=1) * np.float32(np.prod(inverse)))
        parts = {"inside": inside & parseable, "exact": exact & parseable}
        if self.ask == "click":
            none = jnp.zeros(len(value))
            return None, parts | {"iou": none, "box": none, "rate": rate}
        iou = drawn.overlap(numbers, box)
        near = jnp.maximum(1 - jnp.abs(numbers - box) / self.pixels, 1e-6)
        shaped = {"iou": iou, "box": 4 / jnp.sum(1 / near, axis=1)}
        parts |= {name: jnp.where(parseable, x, 0.0) for name, x in shaped.items()}
        return iou if self.partial else None, parts | {"rate": rate}

    def places(self, text: str) -> list[list[int]]:
        """Return the click or the box."""
        final = text.rsplit(";", 1)[-1]
        match = re.fullmatch(",".join([r"\d{1,3}"] * self.mistakes[0]), final)
        return [[*map(int, final.split(","))]] if match else []

    def targets(self, value: jax.Array) -> jax.Array:
        """Return the box of the button."""
        return self._box(value, 0)[:, None]

    @property
    def _letters(self) -> str:
        return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: self.letters]

    @property
    def _side(self) -> int:
        return self.pixels // self.grid

    def _asked(self, value: jax.Array) -> jax.Array:
        return value[:, 0] * self.letters + value[:, 1]

    def _cells(self, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return of each cell the pair, the rank, 0 of the button asked, and the box: ``[P, cells]``, the box by 4."""
        cells = self.grid**2
        priority, other, *extent, across, down = jnp.split(value[:, 2:], 6, axis=1)
        width, height = extent[0] + _WIDTH, extent[1] + _HEIGHT
        cell = jnp.arange(cells)[None]
        left = cell % self.grid * self._side + across * (self._side - width) // 64
        top = cell // self.grid * self._side + down * (self._side - height) // 64
        box = jnp.stack([left, top, left + width - 1, top + height - 1], axis=2)
        return *drawn.scatter(self._asked(value), priority, other, 1), box

    def _box(self, value: jax.Array, rank: int) -> jax.Array:
        """Return the box of the button of a rank, ``[P, 4]``."""
        _, ranks, boxes = self._cells(value)
        return jnp.sum(jnp.where((ranks == rank)[:, :, None], boxes, 0), axis=1)

    def _place(self, value: jax.Array, rank: int) -> jax.Array:
        """Return the answer for the button of a rank, ``[P, 2]`` or ``[P, 4]``."""
        box = self._box(value, rank)
        return box if self.ask == "box" else (box[:, :2] + box[:, 2:]) // 2

    def _read(self, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return whether answers are two or four numbers with commas between, and the numbers ``[P, 2 or 4]``."""
        count, comma, digit = self.mistakes[0], written == ord(","), characters.among(written, "0123456789")
        parseable = jnp.all(comma | digit | (written == 0), axis=1) & (jnp.sum(comma, axis=1) == count - 1)
        numbers = []
        for i in range(count):
            here = digit & (jnp.cumsum(comma, axis=1) == i)
            length, place = jnp.sum(here, axis=1), jnp.cumsum(here, axis=1)
            parseable &= (length > 0) & (length <= 3)
            power = 10 ** jnp.clip(length[:, None] - place, 0, 2)
            numbers.append(jnp.sum(jnp.where(here, (written - ord("0")) * power, 0), axis=1))
        return parseable, jnp.stack(numbers, axis=1)


screen = drawn.of(Screen)
