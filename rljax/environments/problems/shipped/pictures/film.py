"""Films: a shape that moves over a board from frame to frame, and ``moves?`` or ``turns?``: ``NNE`` or ``1``."""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn, rules
from rljax.language.settings import setting
from rljax.types import Range

Ask = Literal["moves", "turns"]
_LETTERS = "NESW"


@dataclasses.dataclass(frozen=True)
class Film(drawn.Drawn):
    """Say how a shape moves in a film: the direction of each move, or how many moves differ from the one before.

    Each frame is a picture of a prompt. From one to the next the shape moves by a cell, north, east, south or west; one
    that leaves the board enters it on the other side. The splits share no list of moves; the first cell, shape and
    color are free. A slip omits a move, or counts one turn fewer; noise is another direction, or another number.
    """

    frames: Annotated[int, Range(2, 8)] = setting(4, "Pictures of a prompt.")
    grid: Annotated[int, Range(3, 6)] = setting(4, "Rows and columns of the board.")
    ask: Ask | tuple[Ask, ...] = setting("moves", "What is asked; several questions take turns, each a domain.")

    knob = "ask"
    signs = "movesturnsabcdef0123456789," + _LETTERS

    def check(self) -> None:
        """Raise ValueError if the cells are too small, or two frames are asked for turns."""
        if self.pixels < 4 * self.grid:
            raise ValueError(f"pixels: {self.pixels} is too few for grid={self.grid}, which needs {4 * self.grid}")
        if self.ask == "turns" and self.frames < 3:
            raise ValueError(f"frames: {self.frames} have one move, which has no turn; ask for moves")

    @property
    def shown(self) -> int:
        """The frames."""
        return self.frames

    @property
    def leading(self) -> int:
        """The moves."""
        return self.frames - 1

    @property
    def radices(self) -> list[int]:
        """Moves, the first cell, shape and color."""
        return [len(_LETTERS)] * self.leading + [self.grid, self.grid, len(drawing.SHAPES), len(drawing.COLOURS)]

    @property
    def mistakes(self) -> tuple[int, int]:
        """The steps are the moves; or the number of turns is the only one."""
        return (self.leading, len(_LETTERS)) if self.ask == "moves" else (1, self.leading)

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the shape in the middle of its cell, frame by frame: ``[P, frames, H, W, 3]``."""
        side = self.pixels // self.grid
        across, down = self._cells(value)
        kind, colour = value[:, -2], drawing.palette()[value[:, -1]]
        frames = []
        for i in range(self.frames):
            x, y = across[:, i] * side + side // 2, down[:, i] * side + side // 2
            mask = drawing.shape(self.pixels, kind, x, y, max(1, side // 2 - 1))
            frames.append(drawing.paint(drawing.blank(len(value), self.pixels), mask, colour))
        return jnp.stack(frames, axis=1)

    def describe(self, value: jax.Array) -> jax.Array:
        """Write the cells, a letter for the column and a number for the row: ``b3,b2,b1``."""
        across, down = self._cells(value)
        parts = jnp.stack([across + ord("a"), down + ord("1")], axis=2)
        return drawn.listed(parts, jnp.ones(across.shape, bool))

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``moves?`` or ``turns?``."""
        return characters.line(len(value), self.difficulty, "?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the moves, or how many differ from the one before."""
        moves = value[:, : self.leading]
        if self.ask == "moves":
            letters = jnp.asarray(characters.codes(_LETTERS))[(moves + off) % len(_LETTERS)]
            return jnp.where(slip, 0, letters)
        turns = jnp.sum(moves[:, 1:] != moves[:, :-1], axis=1)
        turns = jnp.where(slip[:, 0], jnp.maximum(turns - 1, 0), turns)
        return characters.decimal((turns + off[:, 0]) % self.leading, 1)

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the answer."""
        return rules.exact(rules.answer(self, value), written, _LETTERS if self.ask == "moves" else "0123456789")

    def _cells(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the column and the row of the shape in each frame, ``[P, frames]`` both."""
        moves = value[:, : self.leading]
        steps = [jnp.asarray(step, jnp.int32)[moves] for step in ((0, 1, 0, -1), (-1, 0, 1, 0))]
        column, row = self.leading, self.leading + 1
        return tuple(  # type: ignore[return-value]
            (value[:, place, None] + jnp.pad(jnp.cumsum(step, axis=1), ((0, 0), (1, 0)))) % self.grid
            for place, step in zip((column, row), steps, strict=True)
        )


film = drawn.of(Film)
