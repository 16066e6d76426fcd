"""Drawings: a picture of a few shapes, answered by what draws it again, ``rc345,bs720``."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn
from rljax.environments.verifiers import similarity
from rljax.language.settings import setting
from rljax.types import Range

_LENGTH = 5  # characters of a shape: colour, form, place from the left and from the top, size
_FORMS = {"circle": "c", "square": "s", "triangle": "t", "cross": "x", "diamond": "d"}
_SIZES, _MOST = 3, 3


@dataclasses.dataclass(frozen=True)
class Redraw(drawn.Drawn):
    """Write the shapes of a picture; what is written is drawn, and compared with the picture.

    A shape is written as the first letter of its colour, the letter of its form (``c`` circle, ``s`` square, ``t``
    triangle, ``x`` cross, ``d`` diamond), its place from the left and from the top, and its size; commas stand between
    shapes. Later ones cover earlier ones. An answer is correct if it draws the same picture, in any order. Answers are
    unparseable if they have another form, or more shapes than three. The splits share no list of colours and forms from
    the top to the bottom. A slip is a shape that is left out, and noise another place. Parts of the verdict, all in
    [0, 1], as for drawings on the host, see ``verifiers.similarity``:

    - ``pixels``: 1 - the mean difference of pixels; ``ssim``: structural similarity; both of the pictures;
    - ``structure``: of the best matching of the shapes, whether their forms are the same, how close their colours are,
      and the intersection over union of their boxes.
    """

    shapes: Annotated[int, Range(1, 3)] | tuple[Annotated[int, Range(1, 3)], ...] = setting(
        2, "Shapes in the picture; several numbers, such as (1, 2), take turns, each a domain."
    )
    places: Annotated[int, Range(2, 10)] = setting(6, "How many places there are in each direction.")
    colours: Annotated[int, Range(2, 6)] = setting(4, "How many colours there are.")
    forms: Annotated[int, Range(2, 5)] = setting(4, "How many forms there are.")
    partial: bool = setting(
        True, "Whether the reward is the mean of pixels, ssim and structure; else 1 for the same picture."
    )

    knob = "shapes"
    parts = ("pixels", "ssim", "structure")

    def check(self) -> None:
        """Raise ValueError if the picture is too small, so that shapes of two sizes look alike."""
        if self.pixels < 4 * self.places:
            raise ValueError(f"pixels: {self.pixels} is below 4 times places={self.places}")

    @property
    def leading(self) -> int:
        """The colours and forms."""
        return self.difficulty

    @property
    def signs(self) -> str:
        """Letters of colours and forms, and digits."""
        return "".join([*drawing.COLOURS, *_FORMS, *_FORMS.values()]) + "0123456789 ,"

    @property
    def radices(self) -> list[int]:
        """Colour and form of each shape, then the places, each among those that are left, and the sizes."""
        n = self.difficulty
        return [self.colours * self.forms] * n + [self.places**2 - i for i in range(n)] + [_SIZES] * n

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a shape, and its value the place."""
        return self.difficulty, self.places**2

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the shapes."""
        return self._paint(*self._shapes(value), jnp.full(len(value), self.difficulty))

    def describe(self, value: jax.Array) -> jax.Array:
        """Write the shapes: ``red circle 3 4 1,blue square 0 5 2``."""
        kind, place, size = self._shapes(value)
        words = drawn.pairs(kind, self.colours, [*_FORMS][: self.forms])
        numbers = [
            jnp.full_like(x, ord(" ")) if i % 2 == 0 else x + ord("0")
            for x in self._numbers(place, size)
            for i in (0, 1)
        ]
        parts = jnp.concatenate([words, jnp.stack(numbers, axis=2)], axis=2)
        return drawn.listed(parts, jnp.ones(kind.shape, bool))

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``?``."""
        return characters.line(len(value), "?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the shapes."""
        kind, place, size = self._shapes(value)
        numbers = self._numbers((place + off) % self.places**2, size)
        colour, form = characters.words([*drawing.COLOURS])[:, 0], characters.words([*_FORMS.values()])[:, 0]
        columns = [colour[kind // self.forms], form[kind % self.forms], *(x + ord("0") for x in numbers)]
        return drawn.listed(jnp.stack(columns, axis=2), ~slip)

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Read the shapes and compare what they draw with the picture."""
        parseable, count, shapes = self._read(written)
        return parseable, jnp.all(self._paint(*shapes, count) == self.picture(value), axis=(1, 2, 3))

    def measure(
        self, value: jax.Array, written: jax.Array, parseable: jax.Array
    ) -> tuple[jax.Array | None, dict[str, jax.Array]]:
        """Return the reward, or None if it is that of a correct answer, and the parts, see the class."""
        _, count, shapes = self._read(written)
        picture, other, target = self.picture(value), self._paint(*shapes, count), self._shapes(value)
        similar = similarity.pairs(*self._elements(*shapes), *self._elements(*target))
        parts = {
            "pixels": similarity.pixels(other, picture),
            "ssim": similarity.ssim(other, picture),
            "structure": similarity.structure(similar, count, jnp.full(len(value), self.difficulty)),
        }
        parts = {name: jnp.where(parseable, x, 0.0) for name, x in parts.items()}
        mean = jnp.mean(jnp.stack([*parts.values()]), axis=0)
        return mean if self.partial else None, parts

    def _shapes(self, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the kind, place and size of each shape, ``[P, n]`` each, by their places."""
        kind, rest, size = jnp.split(value, 3, axis=1)
        places: list[jax.Array] = []
        for i in range(self.difficulty):
            place = rest[:, i]
            for j in range(i):  # of the places before, the lowest first
                place = place + (place >= jnp.sort(jnp.stack(places, axis=1), axis=1)[:, j])
            places.append(place)
        return kind, jnp.sort(jnp.stack(places, axis=1), axis=1), size

    def _numbers(self, place: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return place % self.places, place // self.places, size

    def _middle(self, place: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the middle and the radius of shapes, in pixels."""
        x, y = ((2 * at + 1) * self.pixels // (2 * self.places) for at in (place % self.places, place // self.places))
        return x, y, (size + 2) * self.pixels // 32

    def _paint(self, kind: jax.Array, place: jax.Array, size: jax.Array, count: jax.Array) -> jax.Array:
        picture = drawing.blank(len(kind), self.pixels)
        x, y, radius = self._middle(place, size)
        for i in range(kind.shape[1]):
            mask = drawing.shape(self.pixels, kind[:, i] % self.forms, x[:, i], y[:, i], radius[:, i])
            present = (i < count)[:, None, None]
            picture = drawing.paint(picture, mask & present, drawing.palette()[kind[:, i] // self.forms])
        return picture

    def _elements(self, kind: jax.Array, place: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the form, the colour and the box of shapes, as ``similarity.pairs`` takes them."""
        x, y, radius = self._middle(place, size)
        box = jnp.stack([x - radius, y - radius, x + radius + 1, y + radius + 1], axis=2) / self.pixels
        return kind % self.forms, drawing.palette()[kind // self.forms].astype(jnp.float32), box

    def _read(self, written: jax.Array) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
        """Return whether answers are shapes, how many, and their kinds, places and sizes, ``[P, 3]`` each."""
        shape = characters.pack(written, _MOST * (_LENGTH + 1)).reshape(len(written), _MOST, _LENGTH + 1)
        length = jnp.sum(written != 0, axis=1)
        count = (length + 1) // (_LENGTH + 1)
        present = jnp.arange(_MOST)[None] < count[:, None]
        colour = _index(shape[:, :, 0], "".join(name[0] for name in drawing.COLOURS)[: self.colours])
        form = _index(shape[:, :, 1], "".join(_FORMS.values())[: self.forms])
        x, y = (_index(shape[:, :, i], "0123456789"[: self.places]) for i in (2, 3))
        size = _index(shape[:, :, 4], "0123456789"[:_SIZES])
        fields = jnp.stack([colour, form, x, y, size])
        commas = (shape[:, :, 5] == ord(",")) | (jnp.arange(_MOST)[None] >= count[:, None] - 1)
        right = jnp.all(fields >= 0, axis=0) & commas
        parseable = (count > 0) & (count <= _MOST) & (length == count * (_LENGTH + 1) - 1)
        parseable &= jnp.all(right | ~present, axis=1)
        colour, form, x, y, size = jnp.maximum(fields, 0)
        return parseable, jnp.minimum(count, _MOST), (colour * self.forms + form, y * self.places + x, size)


def _index(code: jax.Array, letters: str) -> jax.Array:
    """Return which of some letters a code point is, -1 for none."""
    equal = jnp.stack([code == letter for letter in characters.codes(letters)])
    return jnp.where(jnp.any(equal, axis=0), jnp.argmax(equal, axis=0), -1)


redraw = drawn.of(Redraw)
