"""Scenes: a picture of labelled boxes, answered by its graph: ``A 3 4 9 11,B 20 2 26 9/A<B``."""

import dataclasses
import itertools
import re
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from rljax.environments import characters
from rljax.environments.problems import drawing, drawn
from rljax.language.settings import setting
from rljax.types import Range

_WIDTH, _HEIGHT = 5, 7  # of the smallest object, which holds a letter
_THRESHOLDS = np.arange(10, 20, dtype=np.float32) / 20  # of average precision, 0.5 to 0.95
_ABSENT = 1e6  # the cost of an object that is not written


@dataclasses.dataclass(frozen=True)
class Scene(drawn.Drawn):
    """Write all objects of a picture with their boxes, and the relation of each pair.

    An object is a letter in a box: ``A 3 4 9 11`` is left, top, right and bottom in pixels, edges included. Objects are
    in the order of the picture, row by row. After ``/`` each pair has ``A<B``, A is left of B, or ``A^B``, A is above
    B: of middles in which the distance is larger, across if equal. An answer is correct if its relations are those of
    the picture, and its objects too, each with an intersection over union (IoU) of at least 0.5; their order is free.
    The splits share no set of letters in a set of cells. A slip is the other one of two letters, and noise another
    number of a box. Parts of the verdict:

    - ``map``: min(1, objects / objects written) times the mean average precision (mAP) over letters and the thresholds
      of IoU 0.5 to 0.95, where objects written earlier rank higher; VLM-R1 (arXiv 2504.07615);
    - ``node``, ``box``, ``edge``: each object is matched with one written, so that the sum of 1[other letter] +
      2 (1 - GIoU) + 5 L1 is least, L1 in sides of the picture. They are the shares of objects with an equal letter, the
      mean of (2 IoU + 5 exp(-L1)) / 7, and the share of relations that are written of the matched letters; R1-SGG
      (arXiv 2504.13617);
    - ``recall``: the share of relations with equal letters whose two objects have an IoU of at least 0.5.
    """

    grid: Annotated[int, Range(2, 4)] = setting(3, "Cells in each direction, each of which may hold an object.")
    objects: Annotated[int, Range(2, 4)] | tuple[Annotated[int, Range(2, 4)], ...] = setting(
        2, "Objects in the picture; several numbers, such as (2, 3), take turns, each a domain."
    )
    letters: Annotated[int, Range(4, 26)] = setting(8, "How many letters there are.")

    knob = "objects"
    leading = 2
    parts = ("map", "node", "box", "edge", "recall")

    def check(self) -> None:
        """Raise ValueError if there is no room for the objects."""
        if self._side <= _HEIGHT:
            raise ValueError(f"pixels: {self.pixels} is too few for grid={self.grid}; need {(_HEIGHT + 1) * self.grid}")
        if self.pixels > 1000:
            raise ValueError(f"pixels: {self.pixels} is too many; a place is written in three digits, up to 999")

    @property
    def signs(self) -> str:
        """Letters, digits, and the signs of a graph."""
        return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: self.letters] + "graph0123456789 ,/<^"

    @property
    def radices(self) -> list[int]:
        """Letters and cells, the order of letters, and of each object its colour, width, height and place."""
        count, colours = self.difficulty, len(drawing.COLOURS)
        sizes = (colours, self._side - _WIDTH, self._side - _HEIGHT, 64, 64)
        orders = len([*itertools.permutations(range(count))])
        return [len(self._sets(self.letters)), len(self._sets(self.grid**2)), orders, *np.repeat(sizes, count).tolist()]

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a number of a box; a slip of the first exchanges two letters."""
        return 4 * self.difficulty, self.pixels

    def picture(self, value: jax.Array) -> jax.Array:
        """Draw the objects on grey."""
        letter, boxes = self._objects(value)
        picture = drawing.paint(drawing.blank(len(value), self.pixels), jnp.ones((1, 1, 1), bool), drawing.GREY)
        for i in range(self.difficulty):
            picture = drawing.button(picture, boxes[:, i], drawing.palette()[value[:, 3 + i]], letter[:, i])
        return picture

    def describe(self, value: jax.Array) -> jax.Array:
        """Write the objects with their boxes."""
        return self._nodes(*self._objects(value))

    def question(self, value: jax.Array) -> jax.Array:
        """Write ``graph?``."""
        return characters.line(len(value), "graph?")

    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the graph."""
        letter, boxes = self._objects(value)
        numbers = (boxes + off.reshape(boxes.shape)) % self.pixels
        swapped = jnp.concatenate([letter[:, 1::-1], letter[:, 2:]], axis=1)
        nodes = self._nodes(jnp.where(slip[:, :1], swapped, letter), numbers)
        edges = [jnp.stack(edge, axis=1) for edge in self._edges(letter, boxes)]
        present = jnp.ones((len(value), len(edges)), bool)
        return characters.line(len(value), nodes, "/", drawn.listed(jnp.stack(edges, axis=1), present))

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Read the graph and compare it with the graph of the picture."""
        parseable, _, _, present, edges = self._read(written)
        parts = self._compared(value, written)
        counts = (jnp.sum(present, axis=1), jnp.sum(edges[:, :, 0] > 0, axis=1))
        exact = (counts[0] == self.difficulty) & (counts[1] == len(self._pairs))
        return parseable, exact & (parts["recall"] == 1)

    def measure(
        self, value: jax.Array, written: jax.Array, parseable: jax.Array
    ) -> tuple[jax.Array | None, dict[str, jax.Array]]:
        """Return no reward of its own, and the parts, see the class."""
        return None, {name: jnp.where(parseable, x, 0.0) for name, x in self._compared(value, written).items()}

    def places(self, text: str) -> list[list[int]]:
        """Return the boxes."""
        return [[*map(int, box)] for box in re.findall(r"\b[A-Z]" + r" (\d{1,3})" * 4 + r"\b", text.rsplit(";", 1)[-1])]

    def targets(self, value: jax.Array) -> jax.Array:
        """Return the boxes of all objects."""
        return self._objects(value)[1]

    @property
    def _side(self) -> int:
        return self.pixels // self.grid

    @property
    def _pairs(self) -> list[tuple[int, ...]]:
        return [*itertools.combinations(range(self.difficulty), 2)]

    def _sets(self, count: int) -> list[tuple[int, ...]]:
        return [*itertools.combinations(range(count), self.difficulty)]

    def _objects(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the letters ``[P, N]``, code points, and boxes ``[P, N, 4]``, row by row."""
        orders = jnp.asarray([*itertools.permutations(range(self.difficulty))], jnp.int32)[value[:, 2]]
        letter = jnp.take_along_axis(jnp.asarray(self._sets(self.letters), jnp.int32)[value[:, 0]], orders, axis=1)
        cell = jnp.asarray(self._sets(self.grid**2), jnp.int32)[value[:, 1]]
        _, width, height, across, down = jnp.split(value[:, 3:], 5, axis=1)
        width, height = width + _WIDTH, height + _HEIGHT
        left = cell % self.grid * self._side + across * (self._side - width) // 64
        top = cell // self.grid * self._side + down * (self._side - height) // 64
        return letter + ord("A"), jnp.stack([left, top, left + width - 1, top + height - 1], axis=2)

    def _nodes(self, letter: jax.Array, boxes: jax.Array) -> jax.Array:
        parts = []
        for i in range(self.difficulty):
            numbers = [part for number in boxes[:, i].T for part in (" ", characters.decimal(number, 3))]
            parts.append(characters.line(len(letter), letter[:, i], *numbers))
        return drawn.listed(jnp.stack(parts, axis=1), jnp.ones(letter.shape, bool))

    def _edges(self, letter: jax.Array, boxes: jax.Array) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
        """Return the subject, the relation and the object of each pair, code points ``[P]``."""
        middle, edges = boxes[:, :, :2] + boxes[:, :, 2:], []
        for one, other in self._pairs:
            x, y = (middle[:, other] - middle[:, one]).T
            level = jnp.abs(x) >= jnp.abs(y)
            first = jnp.where(level, x >= 0, y >= 0)
            relation = jnp.where(level, ord("<"), ord("^"))
            ends = (letter[:, one], letter[:, other])
            edges.append((jnp.where(first, *ends), relation, jnp.where(first, *ends[::-1])))
        return edges

    def _compared(self, value: jax.Array, written: jax.Array) -> dict[str, jax.Array]:
        """Return the parts of answers that are in form."""
        letter, boxes = self._objects(value)
        _, named, placed, present, edges = self._read(written)
        rows, count = jnp.arange(len(value))[:, None], self.difficulty
        iou = drawn.overlap(boxes[:, :, None], placed[:, None])  # [P, N, M] of objects, and those written
        distance = jnp.sum(jnp.abs(boxes[:, :, None] - placed[:, None]), axis=3) / self.pixels
        equal = (letter[:, :, None] == named[:, None]) & present[:, None]
        cost = jnp.where(equal, 0.0, 1.0) + 2 * (1 - _generalized(boxes[:, :, None], placed[:, None])) + 5 * distance
        cost = jnp.where(present[:, None], cost, _ABSENT)
        each = np.asarray([*itertools.permutations(range(named.shape[1]), count)])  # [A, N] which one is matched
        total = jnp.sum(cost[:, jnp.arange(count)[None], each], axis=2)
        match = jnp.asarray(each)[jnp.argmin(total, axis=1)]  # [P, N]
        at = (rows, jnp.arange(count)[None], match)
        near = (2 * iou[at] + 5 * jnp.exp(-distance[at])) / 7
        matched = present[rows, match]
        fits = equal & (iou >= 0.5)
        edge, recall = [], []
        for (one, other), (subject, relation, target) in zip(self._pairs, self._edges(letter, boxes), strict=True):
            first = subject == letter[:, one]
            names = [named[rows[:, 0], match[:, i]] for i in (one, other)]
            seen = matched[:, one] & matched[:, other]
            ends = jnp.where(first, names[0], names[1]), jnp.where(first, names[1], names[0])
            edge.append(seen & _written(edges, (ends[0], relation, ends[1])))
            both = jnp.any(fits[:, one], axis=1) & jnp.any(fits[:, other], axis=1)
            recall.append(both & _written(edges, (subject, relation, target)))
        parts = {"node": equal[at], "box": jnp.where(matched, near, 0.0), "edge": edge, "recall": recall}
        means = {
            name: jnp.mean(jnp.asarray(x, jnp.float32), axis=int(isinstance(x, jax.Array))) for name, x in parts.items()
        }
        return {"map": self._precision(equal, iou, present), **means}

    def _precision(self, equal: jax.Array, iou: jax.Array, present: jax.Array) -> jax.Array:
        """Return min(1, N / objects written) times mAP: of one object of a letter, 1 / rank of the first that fits."""
        fits = equal[..., None] & (iou[..., None] >= _THRESHOLDS[None, None, None])  # [P, N, M, thresholds]
        rank = jnp.cumsum(equal, axis=2)[..., None]
        precision = jnp.max(jnp.where(fits, 1 / jnp.maximum(rank, 1), 0.0), axis=2)
        written = jnp.maximum(jnp.sum(present, axis=1), 1)
        return jnp.mean(precision, axis=(1, 2)) * jnp.minimum(1.0, self.difficulty / written)

    def _read(self, code: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
        """Read graphs of up to one object and one relation more than there are.

        Returns:
          ``[P]`` whether they are in form; letters ``[P, M]``, boxes ``[P, M, 4]`` and presence ``[P, M]`` of objects;
          relations ``[P, E, 3]``, 0 where there is none.
        """
        bar, comma, space = (code == ord(c) for c in "/, ")
        after, filled = jnp.cumsum(bar, axis=1), (code != 0) & ~bar & ~comma
        item = jnp.cumsum(comma & (after == 0), axis=1)
        place = jnp.cumsum(comma & (after > 0), axis=1)
        spaces = jnp.cumsum(space, axis=1)
        letter = (code >= ord("A")) & (code < ord("A") + self.letters)
        digit = characters.among(code, "0123456789")
        most, relations = self.difficulty + 1, len(self._pairs) + 1
        parseable = jnp.sum(bar, axis=1) == 1
        parseable &= (jnp.max(item, axis=1) < most) & (jnp.max(place, axis=1) < relations)
        names, boxes, edges = [], [], []
        for i in range(most):
            here = filled & (after == 0) & (item == i)
            some = jnp.any(here, axis=1)
            field = spaces - jnp.min(jnp.where(here, spaces - space, code.shape[1]), axis=1)[:, None]
            numbers = []
            for f in range(5):
                inside = here & ~space & (field == f)
                length = jnp.sum(inside, axis=1)
                allowed = jnp.all(~inside | (digit if f else letter), axis=1)
                fits = allowed & (length >= 1) & (length <= (3 if f else 1))
                parseable &= fits | (~some if i else False)
                power = 10 ** jnp.clip(length[:, None] - jnp.cumsum(inside, axis=1), 0, 2)
                numbers.append(jnp.sum(jnp.where(inside, (code - ord("0")) * power if f else code, 0), axis=1))
            parseable &= (jnp.sum(here & space, axis=1) == 4) | (~some if i else False)
            parseable &= some | (jnp.max(item, axis=1) < i)
            names.append(numbers[0])
            boxes.append(jnp.stack(numbers[1:], axis=1))
        for i in range(relations):
            here = filled & (after > 0) & (place == i)
            number, length = jnp.cumsum(here, axis=1), jnp.sum(here, axis=1)
            three = [jnp.sum(jnp.where(here & (number == n), code, 0), axis=1) for n in (1, 2, 3)]
            ends = [(x >= ord("A")) & (x < ord("A") + self.letters) for x in three[::2]]
            form = (length == 3) & ends[0] & ends[1] & characters.among(three[1], "<^")
            parseable &= form | ((length == 0) & (jnp.max(place, axis=1) < max(i, 1)))
            edges.append(jnp.where(form[:, None], jnp.stack(three, axis=1), 0))
        letters = jnp.stack(names, axis=1)
        return parseable, letters, jnp.stack(boxes, axis=1), letters > 0, jnp.stack(edges, axis=1)


def _generalized(one: jax.Array, other: jax.Array) -> jax.Array:
    """Return the generalized IoU: IoU less the share of the box around both that neither covers."""
    low, high = jnp.minimum(one[..., :2], other[..., :2]), jnp.maximum(one[..., 2:], other[..., 2:])
    around = jnp.prod(jnp.maximum(high - low + 1, 1), axis=-1).astype(jnp.float32)
    first, second = (jnp.prod(jnp.maximum(x[..., 2:] - x[..., :2] + 1, 0), axis=-1) for x in (one, other))
    iou = drawn.overlap(one, other)
    union = (first + second) / (1 + iou)
    return iou - (around - union) / around


def _written(edges: jax.Array, edge: tuple[jax.Array, ...]) -> jax.Array:
    """Return whether a relation, code points ``[P]`` each, is among those ``[P, E, 3]``."""
    return jnp.any(jnp.all(edges == jnp.stack(edge, axis=1)[:, None], axis=2), axis=1)


scene = drawn.of(Scene)
