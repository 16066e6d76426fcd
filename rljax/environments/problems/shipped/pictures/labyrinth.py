"""Labyrinths: a picture of a maze and ``steps?`` or ``first?``, answered by a length, ``5``, or a move, ``u``."""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn, rules
from rljax.language.settings import setting
from rljax.types import Range

_MOVES = "udlr"  # up, down, left, right: each next to its opposite
_COLUMNS = "abcdef"


@dataclasses.dataclass(frozen=True)
class Labyrinth(drawn.Drawn):
    """Find the path from the start, green, to the goal, red: how many steps it has, or its first step.

    A maze is a spanning tree of the cells of a grid, so that there is one path: each cell but the one in a corner leads
    up or to the left, or the mirror image of such a tree. Of the pairs of cells whose path has ``length`` steps one is
    drawn. The splits share no maze, nor the mirror image of one. A slip is a step that is not counted, or the opposite
    move, and noise another length, or another move.

    With one value of ``length`` the number of steps is always the same; ask for the first step.
    """

    cells: Annotated[int, Range(2, 6)] = setting(4, "Cells in each direction.")
    length: Annotated[int, Range(1, 10)] | tuple[Annotated[int, Range(1, 10)], ...] = setting(
        (1, 2, 3, 4, 5, 6), "Steps of the path, exactly; several numbers take turns, each a domain."
    )
    ask: Literal["steps", "first"] = setting("steps", "What is asked: the number of steps, or the first one.")

    knob = "length"
    signs = "stepsfirst" + _MOVES + _COLUMNS + "0123456789,>"

    def check(self) -> None:
        """Raise ValueError if no maze has such a path, or it cannot be drawn."""
        if self.difficulty > 2 * (self.cells - 1):
            raise ValueError(f"length: {self.difficulty} steps are not in every maze; {2 * (self.cells - 1)} are")
        if self.pixels < 4 * self.cells + 1:
            raise ValueError(
                f"pixels: {self.pixels} is too few for cells={self.cells}, which need {4 * self.cells + 1}"
            )

    @property
    def leading(self) -> int:
        """The maze."""
        return (self.cells - 1) ** 2

    @property
    def radices(self) -> list[int]:
        """Whether each cell outside the first row and column leads up; mirroring; which pair of cells."""
        return [2] * self.leading + [4, 4 * self.cells**2]

    @property
    def mistakes(self) -> tuple[int, int]:
        """The only step is the answer."""
        return 1, 2 * self.cells - 1 if self.ask == "steps" else 4

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the cells and the openings between them in white, then start and goal."""
        side, count = self.pixels // self.cells, self.cells
        up = (self._parents(value) == jnp.arange(count**2)[None] - count).reshape(-1, count, count)
        tops, lefts = up[:, 1:], ~up[:, :, 1:]  # the openings between cells
        for axis, mirrored in enumerate(self._mirrored(value), 1):
            tops, lefts = (jnp.where(mirrored[:, None, None], jnp.flip(x, axis), x) for x in (tops, lefts))
        tops, lefts = jnp.pad(tops, ((0, 0), (1, 1), (0, 0))), jnp.pad(lefts, ((0, 0), (0, 0), (1, 1)))
        place = jnp.arange(self.pixels)
        cell, edge = jnp.minimum(place // side, count - 1), jnp.minimum((place + 1) // side, count)
        inner = (place % side > 0) & (place % side < side - 1) & (place < side * count)
        down, across = inner[None, :, None], inner[None, None, :]
        floor = (down & (across | lefts[:, cell][:, :, edge])) | (across & tops[:, edge][:, :, cell])
        picture = drawing.paint(drawing.blank(len(value), self.pixels), floor, drawing.COLOURS["white"])
        start, goal, _ = self._path(value)
        for ends, kind, colour in ((start, "square", "green"), (goal, "circle", "red")):
            x, y = (one * side + (side - 1) // 2 for one in self._place(ends, value))
            mask = drawing.shape(self.pixels, drawing.SHAPES.index(kind), x, y, max(1, side // 4))
            picture = drawing.paint(picture, mask, drawing.COLOURS[colour])
        return picture

    def describe(self, value: jax.Array) -> jax.Array:
        """Write start and goal, and the pairs of cells without a wall between them: ``a1>b2,a1a2,a1b1,b1b2``."""
        start, goal, _ = self._path(value)
        parts: list[str | jax.Array] = [self._cell(start, value), ">", self._cell(goal, value)]
        for cell in range(1, self.cells**2):
            pair = self._parents(value)[:, cell], jnp.full(len(value), cell)
            parts += [",", *(self._cell(one, value) for one in pair)]
        return characters.line(len(value), *parts)

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``steps?`` or ``first?``."""
        return characters.line(len(value), self.ask, "?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the number of steps, or the letter of the first."""
        choices = self.mistakes[1]
        if self.ask == "steps":
            return characters.decimal((self.difficulty - slip[:, 0] + off[:, 0]) % choices, 2)
        start, _, first = self._path(value)
        steps = jnp.asarray([-self.cells, self.cells, -1, 1], jnp.int32)
        move = jnp.argmax((first - start)[:, None] == steps[None], axis=1)
        down, across = self._mirrored(value)
        move ^= slip[:, 0] ^ jnp.where(move < 2, down, across)
        return jnp.asarray(characters.codes(_MOVES), jnp.int32)[(move + off[:, 0]) % choices][:, None]

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the answer."""
        return rules.exact(rules.answer(self, value), written, "0123456789" if self.ask == "steps" else _MOVES)

    def _mirrored(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return whether up and down, and whether left and right are exchanged, ``[P]`` both."""
        return value[:, self.leading] % 2 > 0, value[:, self.leading] // 2 > 0

    def _place(self, cell: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the column and the row of cells ``[P]``."""
        down, across = self._mirrored(value)
        row, column = cell // self.cells, cell % self.cells
        last = self.cells - 1
        return jnp.where(across, last - column, column), jnp.where(down, last - row, row)

    def _cell(self, cell: jax.Array, value: jax.Array) -> jax.Array:
        """Write cells ``[P]`` as their column and row, ``a1``: ``[P, 2]``."""
        column, row = self._place(cell, value)
        return jnp.stack([column + ord("a"), row + ord("1")], axis=1)

    def _parents(self, value: jax.Array) -> jax.Array:
        """Return the cell above or to the left to which each cell is open, ``[P, cells**2]``; -1 for the first."""
        inner = value[:, : self.leading].reshape(-1, self.cells - 1, self.cells - 1)
        up = jnp.pad(jnp.pad(inner, ((0, 0), (0, 0), (1, 0)), constant_values=1), ((0, 0), (1, 0), (0, 0)))
        return jnp.arange(self.cells**2)[None] - jnp.where(up.reshape(len(value), -1) > 0, self.cells, 1)

    def _path(self, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return start, goal, and the cell after the start on the path between them, ``[P]`` each.

        A breadth-first search from all cells at once: ``edge[i, j]`` is whether the path from i to j has as many steps.
        """
        count = self.cells**2
        open_to = jax.nn.one_hot(self._parents(value), count)
        open_to += open_to.swapaxes(1, 2)
        edge = seen = jnp.broadcast_to(jnp.eye(count, dtype=bool), open_to.shape)
        nearer = edge
        for _ in range(self.difficulty):
            nearer, edge = edge, (edge @ open_to > 0) & ~seen
            seen |= edge
        row, counts = jnp.arange(len(value)), jnp.cumsum(jnp.sum(edge, axis=2), axis=1)  # of the goals of each start
        rank = value[:, -1] * counts[:, -1] // self.radices[-1]
        start = jnp.argmax(counts > rank[:, None], axis=1)
        goals = jnp.cumsum(edge[row, start], axis=1)
        rank -= counts[row, start] - goals[:, -1]
        goal = jnp.argmax(goals > rank[:, None], axis=1)
        return start, goal, jnp.argmax((open_to[row, start] > 0) & nearer[row, :, goal], axis=1)


labyrinth = drawn.of(Labyrinth)
