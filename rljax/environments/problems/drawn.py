"""Tasks whose prompts hold a picture that is drawn inside the compiled program: ``Drawn``, what their rules share.

A prompt is the placeholders of the picture and a question: ``red circle?``. With ``twin=True`` a text takes the place
of the picture, ``red circle,blue square:red circle?``, with ``twin='both'`` it is after it; everything else, the splits
and the tokenizer's characters included, is the same. The splits share no combination of the values that the answer
depends on: each class says which.
"""

import abc
import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax.environments import Split, characters, traits
from rljax.environments.problems import constructors, drawing, mixed, rules, task
from rljax.language import settings
from rljax.language.settings import setting
from rljax.types import Range

_BLOCK = 4096
Twin = bool | Literal["both"]


@dataclasses.dataclass(frozen=True)
class Drawn(abc.ABC):
    """The rules of a task with a picture, and their common settings."""

    pixels: Annotated[int, Range(16, 1024)] = setting(32, "Height and width of the picture, in pixels.")
    tokens: Annotated[int, Range(1, 4096)] = setting(16, "Placeholders of the picture in the prompt.")
    twin: Twin | tuple[Twin, ...] = setting(
        False, "Whether a text describes the picture in its place, 'both': after it; several take turns, each a domain."
    )

    knob: ClassVar[str]  # the setting whose several values take turns, each a domain
    leading: ClassVar[int]  # the integers of the combination
    signs: ClassVar[str]  # the characters that texts of the picture, questions and answers have

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, or is incompatible with another."""
        settings.check(self)
        if not isinstance(self.difficulty, tuple):
            self.check()

    @property
    def name(self) -> str:
        """Name of the task, that of its class."""
        return type(self).__name__.lower()

    @property
    def difficulty(self) -> Any:
        """The value of the setting ``knob``."""
        return getattr(self, self.knob)

    @property
    @abc.abstractmethod
    def radices(self) -> Sequence[int]:
        """The number of values of each integer of a problem, the combination's first."""

    @property
    @abc.abstractmethod
    def mistakes(self) -> tuple[int, int]:
        """M, the steps of a demonstration that may be wrong, and the number of values that a step may write."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raise ValueError if settings are incompatible with each other."""

    @property
    def shown(self) -> int:
        """N, the pictures of a prompt."""
        return 1

    @abc.abstractmethod
    def picture(self, value: jax.Array) -> jax.Array:
        """Draw problems ``[P, len(radices)]``: ``[P, H, W, 3]`` uint8, or several of each, ``[P, N, H, W, 3]``."""

    @abc.abstractmethod
    def describe(self, value: jax.Array) -> jax.Array:
        """Write what the picture shows: code points ``[P, K]``."""

    @abc.abstractmethod
    def question(self, value: jax.Array) -> jax.Array:
        """Write the question: code points ``[P, K]``."""

    @abc.abstractmethod
    def reply(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> jax.Array:
        """Write the answer with mistakes, see ``Rules.solve``: code points ``[P, A]``."""

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the answer."""
        return rules.exact(rules.answer(self, value), written, "0123456789")

    @property
    def pictures(self) -> traits.Pictures | None:
        """The pictures of a prompt, or None for the twin."""
        return None if self.twin is True else traits.Pictures(self.shown, self.pixels, self.pixels, self.tokens)

    @property
    def alphabet(self) -> str:
        """The characters of both twins, so that one tokenizer serves both."""
        return "".join(sorted(set(self.signs + ":?"))) + characters.PICTURE

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the placeholders, or the text of the twin, and the question."""
        shown = [characters.PICTURE * self.tokens * self.shown] if self.pictures else []
        shown += [self.describe(value), ":"] if self.twin else []
        return characters.line(len(value), *shown, self.question(value))

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write what the picture shows as the working, and the answer; mistakes are in the answer."""
        return rules.Solution(characters.line(len(value), self.describe(value), ";"), self.reply(value, slip, off))


def of(rules_of: Callable[[], Drawn]) -> Callable[..., task.Problems | mixed.Mixed]:
    """Return the constructor of a task; demonstrations are without working by default.

    Several values of the setting ``knob`` or of ``twin``, a tuple, take turns, and each is a domain.
    """
    return settings.constructor(_build, rules_of(), rules.Common(working=False))


def _build(drawn: Drawn, common: rules.Common) -> task.Problems | mixed.Mixed:
    several = [name for name in (drawn.knob, "twin") if isinstance(getattr(drawn, name), tuple)]
    if not several:
        return constructors.build(drawn, common)
    name, values = several[0], getattr(drawn, several[0])
    if len(several) > 1:
        raise ValueError(f"twin: {drawn.twin} takes turns, and so does {name}={values}; give one of them one value")
    if len(values) < 2 or len(set(values)) < len(values):
        raise ValueError(f"{name}: {values} is not one value, or several different ones")
    tasks = [constructors.build(dataclasses.replace(drawn, **{name: value}), common) for value in values]
    return mixed.mix(tasks, tuple(f"{name} {value}" for value in values))


def prior(problems: task.Problems | mixed.Mixed, split: Split, most: int = 2**16) -> dict[str, float]:
    """Return the distribution of answers of a split.

    Args:
      problems: a task; each domain counts equally.
      split: the split.
      most: problems of a domain up to which the distribution is exact, from all of them. Of a larger split it is that
        of the first ``most``, an even sample, because problems are shuffled.

    Returns:
      The share of each answer, the largest first.
    """
    share = collections.defaultdict[str, float](float)
    for one, index, weight in _blocks(problems, split, most):
        for answer in characters.strings(_answers(one, split, index))[: weight.size]:
            share[answer] += float(weight[0])
    return dict(sorted(share.items(), key=lambda item: -item[1]))


def blind(problems: task.Problems | mixed.Mixed, split: Split, most: int = 2**16, candidates: int = 64) -> float:
    """Return the best accuracy of a policy that reads the question but not the picture.

    Of each question the best of the ``candidates`` most frequent answers counts, as the task judges it; the other
    arguments are those of ``prior``.
    """
    answers = characters.words([*prior(problems, split, most)][:candidates])
    share = collections.defaultdict[str, Any](float)  # of problems with a question, those that each answer solves
    for one, index, weight in _blocks(problems, split, most):
        questions, correct = _judged(one, split, index, answers)
        rows = np.asarray(correct)[: weight.size] * weight[:, None]
        for question, row in zip(characters.strings(questions), rows, strict=False):
            share[question] += row
    return float(sum(row.max() for row in share.values()))


def _blocks(
    problems: task.Problems | mixed.Mixed, split: Split, most: int
) -> Iterator[tuple[task.Problems, jax.Array, np.ndarray]]:
    """Yield tasks, ``_BLOCK`` of their problems, and the weights of the first of these, which are to be counted."""
    tasks = problems.tasks if isinstance(problems, mixed.Mixed) else (problems,)
    for one in tasks:
        count = min(one.size(split), most)
        for first in range(0, count, _BLOCK):
            index = jnp.arange(_BLOCK, dtype=jnp.int32) + first
            yield one, index, np.full(min(_BLOCK, count - first), 1 / count / len(tasks))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _answers(problems: task.Problems, split: Split, index: jax.Array) -> jax.Array:
    return rules.answer(problems.rules, problems.values(index, split))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _judged(problems: task.Problems, split: Split, index: jax.Array, answers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the questions of problems, empty where the rules have none, and whether answers are correct ``[P, C]``."""
    value = problems.values(index, split)
    question = getattr(problems.rules, "question", lambda value: jnp.zeros((len(value), 0), jnp.int32))

    def judge(answer: jax.Array) -> jax.Array:
        return jnp.all(jnp.stack(problems.rules.judge(value, jnp.tile(answer[None], (len(value), 1)))), axis=0)

    return question(value), jax.lax.map(judge, answers).T


def listed(parts: jax.Array, present: jax.Array) -> jax.Array:
    """Write those of parts ``[P, N, K]`` that are present ``[P, N]``, with commas between them: ``[P, N (K + 1)]``."""
    comma = jnp.where(present & (jnp.cumsum(present, axis=1) > 1), ord(","), 0)
    text = jnp.concatenate([comma[:, :, None], jnp.where(present[:, :, None], parts, 0)], axis=2)
    return text.reshape(len(parts), -1)


def pairs(kind: jax.Array, colours: int, names: Sequence[str]) -> jax.Array:
    """Write a colour and a name, ``red circle``, for each of ``kind`` ``[...]``, colour times names: ``[..., K]``."""
    colour, name = characters.words([*drawing.COLOURS][:colours]), characters.words(names)
    space = jnp.full((*kind.shape, 1), ord(" "), jnp.int32)
    return jnp.concatenate([colour[kind // len(names)], space, name[kind % len(names)]], axis=-1)


def scatter(
    asked: jax.Array, priority: jax.Array, other: jax.Array, copies: jax.Array | int
) -> tuple[jax.Array, jax.Array]:
    """Return what is in each cell, and the cell's rank by its priority, ``[P, cells]`` both.

    Args:
      asked: the kind ``[P]`` that the cells of the first ranks have.
      priority: ``[P, cells]``.
      other: ``[P, cells]``, which of the other kinds a cell has that is not of the first.
      copies: how many cells are of the kind asked, one number or ``[P]``.
    """
    rank = jnp.argsort(jnp.argsort(priority, axis=1), axis=1)
    return jnp.where(rank < jnp.reshape(copies, (-1, 1)), asked[:, None], other + (other >= asked[:, None])), rank


def overlap(one: jax.Array, other: jax.Array) -> jax.Array:
    """Return the intersection over union ``[...]`` of boxes ``[..., 4]``, left, top, right, bottom; edges included."""

    def area(low: jax.Array, high: jax.Array) -> jax.Array:
        return jnp.prod(jnp.maximum(high - low + 1, 0), axis=-1).astype(jnp.float32)

    first, second = (area(box[..., :2], box[..., 2:]) for box in (one, other))
    common = area(jnp.maximum(one[..., :2], other[..., :2]), jnp.minimum(one[..., 2:], other[..., 2:]))
    common = jnp.where((first > 0) & (second > 0), common, 0.0)
    return common / jnp.maximum(first + second - common, 1.0)
