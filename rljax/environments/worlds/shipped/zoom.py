"""Zoom: name the cell of a plate in a blurred picture, then read its digit in the magnified cell."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split, characters, traits
from rljax.environments.problems import drawing, numbering
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import Share, setting

_SEED = 12  # decides the problems; part of the world, not of a run
_DIGITS = 10


@dataclasses.dataclass(frozen=True)
class Zoom:
    """Rules: a picture has colored plates, each with a digit that is too small to be read; which is on the red one?

    The whole picture is ``cells`` times as wide and high as what is seen of it, the means of its blocks of pixels. The
    first turn names a cell, ``b3``: a letter for the column, from the left, and a number for the row, from the top. The
    second turn sees the whole picture, and that cell in full size, and names the digit, which alone is paid 1. After an
    unreadable first turn the whole is seen twice. Where to look is learned from the answers (MGPO, arXiv 2507.05920).
    The twin in text is ``red b3,blue d1:red>``, then ``4:red?``, or ``-:red?`` where the cell has no plate.

    The splits share no pair of the asked plate's cell and digit, and other plates have pairs of the training split, so
    that in training no pair tells which plate is asked. Parts: ``grounded``, whether the cell named is that of
    the asked plate; ``malformed``, unreadable turns.
    """

    cells: Annotated[int, types.Range(2, 8)] = setting(4, "Rows and columns of cells, and the magnification.")
    plates: Annotated[int, types.Range(1, 6)] = setting(4, "How many cells have a plate, each of another color.")
    pixels: Annotated[int, types.Range(16, 128)] = setting(32, "Height and width of what is seen, in pixels.")
    tokens: Annotated[int, types.Range(1, 4096)] = setting(16, "Placeholders of each picture in a prompt.")
    twin: bool = setting(False, "Whether texts take the place of the pictures: the plates' cells, and the digit.")
    magnify: bool = setting(True, "Whether the cell named is shown; False: the whole is seen twice.")
    astray: Share = setting(0.0, "Probability that a demonstration names the cell of another place.")
    noise: Share = setting(0.0, "Probability that a demonstration names another digit.")
    heldout: Share = setting(0.1, "Fraction of the pairs of a cell and a digit that is held out.")

    name, parts, rows = "zoom", ("grounded", "malformed"), "chapters"
    turn_length, reply_length, max_turns = 2, 2, 2

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, or the plates have no place."""
        settings.check(self)
        if not 0 < self.heldout < 1:
            raise ValueError(f"heldout: {self.heldout} is not strictly between 0 and 1")
        if self.heldout > 0.5:
            raise ValueError(f"heldout: {self.heldout} is above 0.5, which leaves cells without a digit")
        if self.plates > self.cells**2:
            raise ValueError(f"plates: {self.plates} is above the {self.cells**2} cells")
        if self.pixels < 4 * self.cells:
            raise ValueError(f"pixels: {self.pixels}: expected at least {4 * self.cells} with cells={self.cells}")

    @property
    def pictures(self) -> traits.Pictures | None:
        """The whole, and the cell; a prompt of a first turn has the placeholders of the whole only."""
        return None if self.twin else traits.Pictures(2, self.pixels, self.pixels, self.tokens)

    @property
    def alphabet(self) -> str:
        """Cells, digits, and the letters of the colors."""
        letters = "".join(self._colours) + "abcdefgh"[: self.cells]
        return "".join(sorted(set(letters + "0123456789 ,:->?"))) + characters.PICTURE

    @property
    def prompt_length(self) -> int:
        """Two pictures, or the cells of all plates, a color and a sign."""
        names = [len(name) for name in self._colours]
        return (sum(names) + 4 * self.plates if self.twin else 2 * self.tokens) + max(names) + 1

    @property
    def _colours(self) -> list[str]:
        return [*drawing.COLOURS][: self.plates]

    @property
    def _radices(self) -> tuple[int, int, int, int]:
        """Values of the asked plate's cell, its digit and its color, and of what all else is drawn from."""
        return self.cells**2, _DIGITS, self.plates, 2**12

    @property
    def _trained(self) -> types.Array:
        """Whether the training split has a cell with a digit, ``[cells, digits]`` bool."""
        pairs = self._radices[:2]
        index = jnp.arange(numbering.size(pairs, self.heldout, "heldout"), dtype=jnp.int32)
        cell, digit = numbering.values(pairs, self.heldout, index, "heldout").T
        return jnp.ones(pairs, bool).at[cell, digit].set(False)

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return numbering.size(self._radices, self.heldout, split, leading=2)

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return problem ``index``: cells, digits and colors of the plates, the asked one first."""
        value = numbering.values(self._radices, self.heldout, jnp.reshape(index, (1,)), split, leading=2)[0]
        cell, digit, colour, number = value
        key = jax.random.key(_SEED)
        for part in value:
            key = jax.random.fold_in(key, part)
        place, figure, hue = jax.random.split(jax.random.fold_in(key, number), 3)
        others = jax.random.permutation(place, self.cells**2 - 1)[: self.plates - 1]
        places = jnp.concatenate([cell[None], others + (others >= cell)]).astype(jnp.int32)
        digits = jax.random.categorical(figure, jnp.where(self._trained[places], 0.0, -jnp.inf))
        hues = jax.random.permutation(hue, self.plates - 1)
        return {
            "cell": places,
            "digit": digits.at[0].set(digit).astype(jnp.int32),
            "colour": jnp.concatenate([colour[None], hues + (hues >= colour)]).astype(jnp.int32),
            "look": jnp.int32(-1),
            **rules.counters(self),
        }

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write ``red>`` after the first picture, ``red?`` after both."""
        colours, second = characters.words(self._colours)[state["colour"]], state["turn"] > 0
        shown = rules.line(characters.PICTURE * self.tokens)
        first, then = shown, rules.line(shown, shown)
        if self.twin:
            order = jnp.argsort(state["cell"])
            plates = [rules.line(",", colours[plate], " ", self._name(state["cell"][plate])) for plate in order]
            digit = jnp.where(state["cell"] == state["look"], state["digit"] + ord("0"), 0)
            digit = jnp.where(self.magnify & jnp.any(digit), digit.sum(), ord("-"))
            first, then = rules.line(jnp.concatenate(plates)[1:], ":"), rules.line(digit, ":")
        first, then = (jnp.where(here, text, 0) for here, text in ((~second, first), (second, then)))
        return rules.line(first, then, colours[0], jnp.where(second, ord("?"), ord(">")))

    def picture(self, state: Any, seat: types.Array) -> types.Array:
        """Draw the whole, reduced, and the cell that was named, in full size: [2, H, W, 3]."""
        full, side = self._full(state), self.pixels
        blocks = full.reshape(side, self.cells, side, self.cells, 3)
        whole = jnp.mean(blocks.astype(jnp.float32), axis=(1, 3)).astype(jnp.uint8)
        row, column = jnp.divmod(jnp.maximum(state["look"], 0), self.cells)
        cell = jax.lax.dynamic_slice(full, (row * side, column * side, jnp.int32(0)), (side, side, 3))
        shown = (state["look"] >= 0) & self.magnify
        return jnp.stack([whole, jnp.where(shown, cell, whole)])

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Look at the cell that the first turn names; judge the digit of the second."""
        first = state["turn"] == 0
        column, row = text[0] - ord("a"), text[1] - ord("1")
        cell = (column >= 0) & (column < self.cells) & (row >= 0) & (row < self.cells)
        digit, number = rules.number(text)
        readable = jnp.where(first, cell, number & (text[1] == 0))
        look = jnp.where(first & cell, row * self.cells + column, state["look"])
        grounded = (look == state["cell"][0]).astype(jnp.int32)
        state = rules.counted(state, malformed=~readable) | {"look": look, "grounded": grounded}
        hit = ~first & readable & (digit == state["digit"][0])
        view = jnp.where(first, text, 0)  # the next prompt shows what was named
        return state, rules.judged(self, state, view, hit, readable, over=~first)

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write the cell of the asked plate, then its digit; with ``astray`` and ``noise`` another one."""
        turn, place, figure = jax.random.split(key, 3)
        first, count = state["turn"] == 0, self.cells**2
        wrong = jax.random.bernoulli(turn, jnp.where(first, self.astray, self.noise))
        cell = (state["cell"][0] + wrong * jax.random.randint(place, (), 1, count)) % count
        digit = (state["digit"][0] + wrong * jax.random.randint(figure, (), 1, _DIGITS)) % _DIGITS
        return jnp.where(first, self._name(cell), jnp.stack([digit + ord("0"), 0]))

    def _name(self, cell: types.Array) -> types.Array:
        return jnp.stack([cell % self.cells + ord("a"), cell // self.cells + ord("1")])

    def _full(self, state: Any) -> types.Array:
        """Draw the whole in full size, ``cells`` times ``pixels`` high and wide: each plate with its digit."""
        side, scale = self.pixels, max(1, self.pixels // 32)  # in the whole, a digit is 3 / cells pixels wide
        size, picture = side * self.cells, drawing.blank(1, side * self.cells)
        for cell, digit, colour in zip(state["cell"], state["digit"], state["colour"], strict=True):
            left, top = cell % self.cells * side, cell // self.cells * side
            mask = drawing.rectangle(size, left + 2, top + 2, left + side - 3, top + side - 3)
            picture = drawing.paint(picture, mask[None], drawing.palette()[colour])
            corner = left + side // 4 + scale, top + side // 4 + scale
            mask = drawing.text(size, (digit + ord("0"))[None], *corner, scale)
            picture = drawing.paint(picture, mask[None], (0, 0, 0))
        return picture[0]


zoom = text.of(Zoom)
