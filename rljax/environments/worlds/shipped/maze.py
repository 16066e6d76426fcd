"""Maze: find the way to a goal in a grid with walls, ``b3>d1 -.|#...``."""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split, characters, traits
from rljax.environments.problems import drawing
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import Share, setting

_SEED = 8  # decides the mazes; part of the world, not of a run
_HELD = 4  # one of so many goals makes a problem a held-out one
_MOVES = "NESW"
_COLOURS = ("red", "blue", "green", "white", "black", "pink", "grey", "gold")
_LONGEST = 5  # characters of a colour
_MAP = "#-|."  # what a cell shows: no way to the east or the south, a way east, a way south, both


@dataclasses.dataclass(frozen=True)
class Maze:
    """Rules: a turn is some letters of ``NESW``, the reply is the cell where they end, and reaching the goal pays 1.

    A prompt has start, goal and map: ``b3>d1 -.|#...``. Cells are a letter for the column, from the west, and a number
    for the row, from the north. The map has a character for each cell, row by row: ``#`` where there is no way to the
    east or the south, ``-`` a way to the east, ``|`` to the south, ``.`` to both. With ``objects`` the goal is a
    colour, and the prompt says where the colours are: ``b3>red;red d1;blue a2 -.|#...``. A move into a wall ends the
    turn where it is. An unreadable turn is told ``?`` and moves nothing.

    The ways are a random spanning tree of the grid (Prim's algorithm with random weights), so that there always is a
    path; with ``walls`` 1 it is the only one. A problem is a function of index and split, and is held out if and only
    if a hash of its map, start and goal is 0 modulo 4, so that no problem is in both splits.

    An expert takes a shortest path. Parts: ``moves``, cells walked; ``bumps``, moves into walls; ``malformed``,
    unreadable turns.
    """

    side: Annotated[int, types.Range(3, 8)] = setting(4, "Rows and columns of the grid.")
    moves: Annotated[int, types.Range(1, 8)] = setting(2, "The most moves of a turn.")
    turns: int | None = setting(None, "The most turns; None: as many as the longest path can need.")
    walls: Share = setting(1.0, "Probability of a wall where the spanning tree has no way.")
    objects: Annotated[int, types.Range(0, 8)] = setting(
        0, "Coloured cells, one of which is the goal; 0: it is a cell."
    )
    view: Literal["position", "ways"] = setting("position", "What a reply tells; ways: also the open directions.")
    pixels: Annotated[int, types.Range(0, 512)] = setting(
        0, "Side of a picture of the maze, the walker and the goal, which is drawn anew for each turn; 0: text."
    )
    tokens: Annotated[int, types.Range(1, 4096)] = setting(16, "Placeholders of the picture in a prompt.")

    name = "maze"
    parts = ("moves", "bumps", "malformed")

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        if self.turns is not None and not 1 <= self.turns <= 256:
            raise ValueError(f"turns: {self.turns} is not in [1, 256]")
        if self.pixels and (self.pixels < 4 * self.side or self.objects):
            raise ValueError(
                f"pixels: {self.pixels}: expected at least {4 * self.side} with side={self.side}, no objects"
            )

    @property
    def pictures(self) -> traits.Pictures | None:
        """The picture of a prompt, if it has one."""
        return traits.Pictures(1, self.pixels, self.pixels, self.tokens) if self.pixels else None

    @property
    def rows(self) -> traits.Rows:
        """With pictures, a row is one turn: it begins with what is seen then."""
        return "chapters" if self.pixels else "conversation"

    @property
    def alphabet(self) -> str:
        """Cells, moves, the map, and the letters of the colours."""
        if self.pixels:
            return "abcdefgh"[: self.side] + "12345678"[: self.side] + _MOVES + ">?" + characters.PICTURE
        text = "abcdefgh"[: self.side] + "12345678"[: self.side] + _MOVES + _MAP + "> ?"
        colours = "".join(_COLOURS[: self.objects]) + ";" * (self.objects > 0)
        return text + "".join(sorted(set(colours) - set(text)))

    @property
    def prompt_length(self) -> int:
        """Start, goal, colours and map; or the picture."""
        if self.pixels:
            return self.tokens + 1
        goal = _LONGEST + self.objects * (_LONGEST + 4) if self.objects else 2
        return 2 + 1 + goal + 1 + self.side**2

    @property
    def turn_length(self) -> int:
        """Moves."""
        return self.moves

    @property
    def reply_length(self) -> int:
        """A cell, and up to four directions."""
        return 2 if self.view == "position" else 6

    @property
    def max_turns(self) -> int:
        """The most turns."""
        return -(-(self.side**2 - 1) // self.moves) if self.turns is None else self.turns

    def size(self, split: Split) -> int:
        """Return the number of problems of a split; two of them may be the same maze."""
        return 2**24 if split == "train" else 2**16

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return problem ``index``: ways [cells, 4] bool, start, goal and colours."""
        number = jax.random.fold_in(jax.random.key(_SEED), index % self.size(split))
        draws = jax.random.split(jax.random.fold_in(number, split == "heldout"), 5)
        count = self.side**2
        cell = jnp.arange(count)
        ways = self.ways(draws[0])
        start = jax.random.randint(draws[1], (), 0, count)
        held = self._held(ways, start)
        allowed = (held if split == "heldout" else ~held) & (cell != start)
        goal = rules.draw(draws[2], allowed)
        free = (cell != start) & (cell != goal)
        order = jnp.argsort(jnp.where(free, jax.random.uniform(draws[3], (count,)), 2.0)).astype(jnp.int32)
        colour = jax.random.randint(draws[4], (), 0, max(self.objects, 1))
        return {
            "ways": ways,
            "start": start,
            "goal": goal,
            "colour": colour,
            "place": order[: self.objects].at[colour].set(goal) if self.objects else order[:0],
            "cell": start,
            **rules.counters(self),
        }

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write start, goal and map; or the placeholders of the picture."""
        if self.pixels:
            return rules.line(characters.PICTURE * self.tokens, ">")
        shown = jnp.asarray(characters.codes(_MAP))[state["ways"][:, 1] + 2 * state["ways"][:, 2]]
        goal = [self._name(state["goal"])]
        if self.objects:
            words = characters.words(_COLOURS[: self.objects])
            goal = [words[state["colour"]]]
            for word, place in zip(words, state["place"], strict=True):
                goal += [";", word, " ", self._name(place)]
        return rules.line(self._name(state["start"]), ">", *goal, " ", shown)

    def picture(self, state: Any, seat: types.Array) -> types.Array:
        """Draw cells and ways in white, the goal as a red circle and the walker as a green square: [1, H, W, 3]."""
        size = self.pixels // self.side
        place = jnp.arange(self.pixels)
        cell = jnp.minimum(place // size, self.side - 1)
        cell = cell[:, None] * self.side + cell[None, :]
        inner = (place % size < size - 1) & (place < size * self.side)
        down, across = inner[:, None], inner[None, :]
        floor = (down & across) | (down & state["ways"][cell, 1]) | (across & state["ways"][cell, 2])
        picture = drawing.paint(drawing.blank(1, self.pixels), floor[None], drawing.COLOURS["white"])
        for name, kind, colour in (("goal", "circle", "red"), ("cell", "square", "green")):
            x, y = (one * size + (size - 2) // 2 for one in (state[name] % self.side, state[name] // self.side))
            mask = drawing.shape(self.pixels, drawing.SHAPES.index(kind), x, y, max(1, size // 4))
            picture = drawing.paint(picture, mask[None], drawing.COLOURS[colour])
        return picture

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Walk, up to a wall or the goal."""
        known = characters.among(text, _MOVES)
        readable = known[0] & jnp.all(known | (text == 0))
        cell, walks = state["cell"], readable
        moves, bumps = jnp.int32(0), jnp.int32(0)
        for letter in text:
            direction = jnp.argmax(letter == jnp.asarray(characters.codes(_MOVES)))
            walks &= (letter != 0) & (cell != state["goal"])
            free = state["ways"][cell, direction]
            cell = jnp.where(walks & free, cell + self.offsets[direction], cell)
            moves, bumps = moves + (walks & free), bumps + (walks & ~free)
            walks &= free
        hit = cell == state["goal"]
        state = rules.counted(state, moves=moves, bumps=bumps, malformed=~readable) | {"cell": cell}
        around = jnp.where(state["ways"][cell], jnp.asarray(characters.codes(_MOVES)), 0)
        view = rules.line(self._name(cell), around if self.view == "ways" else "")
        return state, rules.judged(self, state, view, hit, readable)

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write the next moves of a shortest path; the first of ``NESW`` where there are several."""
        cell, distance, letters = state["cell"], self.distances(state), []
        for _ in range(self.moves):
            around = distance[(cell + self.offsets) % self.side**2]
            direction = jnp.argmin(jnp.where(state["ways"][cell], around, self.side**2))
            walks = cell != state["goal"]
            letters.append(jnp.where(walks, jnp.asarray(characters.codes(_MOVES))[direction], 0))
            cell = jnp.where(walks, cell + self.offsets[direction], cell)
        return jnp.stack(letters)

    @property
    def aimed(self) -> Any:
        """Return what makes a cell the goal, unless it is the start or makes a held-out problem; not with objects."""
        if self.objects or self.pixels:
            raise AttributeError("aimed")

        def aimed(start: Any, reached: Any) -> tuple[Any, types.Array]:
            cell = reached["cell"]
            return start | {"goal": cell}, (cell != start["start"]) & ~self._held(start["ways"], start["start"])[cell]

        return aimed

    def _held(self, ways: types.Array, start: types.Array) -> types.Array:
        """Return which goals make a problem a held-out one, ``[cells]`` bool."""
        place = jnp.arange(1, ways.size + 1).reshape(ways.shape)
        return (jnp.sum(jnp.where(ways, place, 0)) + start + jnp.arange(len(ways))) % _HELD == 0

    @property
    def offsets(self) -> types.Array:
        """What a step in each direction adds to a cell, in the order of ``NESW``."""
        return jnp.asarray([-self.side, 1, self.side, -1], jnp.int32)

    def _name(self, cell: types.Array) -> types.Array:
        return jnp.stack([cell % self.side + ord("a"), cell // self.side + ord("1")])

    def ways(self, key: types.Key) -> types.Array:
        """Draw the open directions of every cell, [cells, 4] bool, in the order of ``NESW``."""
        count = self.side**2
        cell = np.arange(count).reshape(self.side, self.side)
        first = jnp.asarray(np.concatenate([cell[:, :-1].ravel(), cell[:-1].ravel()]))  # to the east, to the south
        second = jnp.asarray(np.concatenate([cell[:, 1:].ravel(), cell[1:].ravel()]))
        weigh, open_ = jax.random.split(key)
        weight = jax.random.uniform(weigh, first.shape)

        def grow(_: Any, carry: Any) -> Any:
            inside, tree = carry
            border = inside[first] != inside[second]
            edge = jnp.argmin(jnp.where(border, weight, 2.0))
            return inside.at[first[edge]].set(True).at[second[edge]].set(True), tree.at[edge].set(True)

        inside = jnp.arange(count) == 0
        _, tree = jax.lax.fori_loop(0, count - 1, grow, (inside, jnp.zeros(first.shape, bool)))
        way = tree | (jax.random.uniform(open_, first.shape) >= self.walls)
        half = first.shape[0] // 2
        none = jnp.zeros((count,), bool)
        east, south = none.at[first[:half]].set(way[:half]), none.at[first[half:]].set(way[half:])
        return jnp.stack([jnp.roll(south, self.side), east, south, jnp.roll(east, 1)], axis=1)

    def distances(self, state: Any) -> types.Array:
        """Return the number of moves from each cell to the goal, [cells] int32."""
        count = self.side**2
        cell = jnp.arange(count)
        neighbour = (cell[:, None] + self.offsets[None, :]) % count  # those beyond the border have no way

        def relax(_: Any, distance: types.Array) -> types.Array:
            around = jnp.where(state["ways"], distance[neighbour], count)
            return jnp.minimum(distance, 1 + jnp.min(around, axis=1))

        start = jnp.where(cell == state["goal"], 0, count).astype(jnp.int32)
        return jax.lax.fori_loop(0, count, relax, start)


maze = text.of_rows(Maze)
