"""What is special about a kind of problems, ``Rules``, and the settings that all have, ``Common``."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.language import settings
from rljax.language.settings import NonNegative, Share, setting


class Solution(NamedTuple):
    """A demonstration, as code points with 0 where there is no character."""

    working: jax.Array  # [P, K] ended by ";"
    answer: jax.Array  # [P, A]


class Rules(Protocol):
    """What is special about a kind of problems: how they are numbered, written, solved and judged. It is hashable.

    Optional members: ``leading``, the number of integers, the first, that form the combination which the splits do not
    share; ``pictures``, the ``traits.Pictures`` of a prompt or None; ``picture``, which draws problems
    ``[P, len(radices)]`` as ``[P, H, W, 3]`` or ``[P, N, H, W, 3]`` uint8; ``domain_names``, the texts of domains, and
    ``domain``, which returns that of problems, ``[P]`` int32; those of ``Measured``, ``Marked`` and ``Stepwise``.
    """

    @property
    def name(self) -> str:
        """Name of the task."""
        ...

    @property
    def alphabet(self) -> str:
        """Every character of prompts and demonstrations but ``;``, which separates steps of the working."""
        ...

    @property
    def radices(self) -> Sequence[int]:
        """The number of values of each integer of a problem; different integers are different prompts.

        With ``leading``, of at most 2^28 values together, only those need to differ.
        """
        ...

    @property
    def mistakes(self) -> tuple[int, int]:
        """M, the steps of a demonstration that may be wrong, and the number of values that a step may write."""
        ...

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write problems ``[P, len(radices)]`` int32: code points ``[P, K]``."""
        ...

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> Solution:
        """Solve problems.

        Args:
          value: ``[P, len(radices)]`` int32.
          slip: ``[P, M]`` bool, whether a step is omitted.
          off: ``[P, M]`` int32 in [0, number of values), what is added to the value of a step.

        Returns:
          The solution; it is correct if there is no slip and every ``off`` is 0.
        """
        ...

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return whether answers ``[P, T]``, with gaps, are parseable, and whether those that are, are correct."""
        ...


@runtime_checkable
class Measured(Protocol):
    """Rules whose verdicts have more parts than the format, or rewards between 0 and 1."""

    parts: tuple[str, ...]

    def measure(
        self, value: jax.Array, written: jax.Array, parseable: jax.Array
    ) -> tuple[jax.Array | None, dict[str, jax.Array]]:
        """Return rewards ``[P]`` of answers ``[P, T]``, None for 1 if correct and else 0, and each of ``parts``."""
        ...


@runtime_checkable
class Marked(Protocol):
    """Rules of pictures whose answers are places: points, left and top, or boxes, with right and bottom; pixels."""

    def places(self, text: str) -> list[list[int]]:
        """Return the places that a completion writes, none if it is not in form."""
        ...

    def targets(self, value: jax.Array) -> jax.Array:
        """Return the boxes asked, ``[P, N, 4]``; a negative left edge where there is none."""
        ...


class Steps(NamedTuple):
    """The steps of completions; ``;`` ends a step."""

    ends: jax.Array  # [P, T] bool, whether a step ends there that is right or wrong
    right: jax.Array  # [P, T] bool, whether a right one ends there
    complete: jax.Array  # [P] bool, whether nothing is missing before the answer, if all steps are right
    parts: dict[str, jax.Array]  # [P] each


@runtime_checkable
class Stepwise(Protocol):
    """Rules that judge every step, in any order, where others compare a step with that of a solution."""

    parts: tuple[str, ...]

    def judge_steps(self, value: jax.Array, written: jax.Array) -> Steps:
        """Judge the steps of completions: code points ``[P, T]``, 0 from the end on. All ``parts`` are from here."""
        ...


def graded(ends: jax.Array, complete: jax.Array, tests: dict[str, jax.Array], unpaid: str = "") -> Steps:
    """Return the steps ``[P, T]`` that end somewhere, each of the kind of the first test that it fails, or right.

    Args:
      ends: ``[P, T]`` bool.
      complete: ``[P]`` bool, as in ``Steps``.
      tests: for each kind, ``[P, T]`` bool, whether the step that ends there fails; the parts are their numbers, and
        ``right``, the share of steps that fail none.
      unpaid: the kind that is neither right nor wrong.
    """
    kinds, rest = dict[str, jax.Array](), ends
    for name, failed in tests.items():
        kinds[name], rest = rest & failed, rest & ~failed
    counts = {name: jnp.sum(x, axis=1) for name, x in kinds.items()}
    share = jnp.sum(rest, axis=1) / jnp.maximum(jnp.sum(ends, axis=1), 1)
    return Steps(ends & ~kinds[unpaid] if unpaid else ends, rest, complete, {"right": share, **counts})


@dataclasses.dataclass(frozen=True)
class Common:
    """Settings that all such tasks have."""

    working: bool = setting(True, "Whether demonstrations write the working before the answer.")
    slip: Share = setting(0.0, "Probability that a demonstration omits a step, for each step.")
    noise: Share = setting(0.0, "Probability that a demonstration writes a wrong value, for each step.")
    heldout: Share = setting(0.1, "Fraction of the problems that is held out, strictly between 0 and 1.")
    prompt_length: int | None = setting(None, "Tokens of a prompt; None: as many as needed.")
    completion_length: int | None = setting(
        None, "Tokens of a completion, end-of-sequence included; None: as many as needed."
    )
    step_reward: NonNegative = setting(
        0.0, "Paid where a step of the working, or the row, ends right, and charged where it ends wrong; 0: no steps."
    )

    strict: bool = setting(False, "Whether an answer is correct only behind a whole working without a wrong step.")
    votes: bool = setting(False, "Whether the part `answer` numbers the answer, so that samples vote: maj@k, mm_upt.")

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        if not 0 < self.heldout < 1:
            raise ValueError(f"heldout: {self.heldout} is not strictly between 0 and 1")
        for name, what in (("step_reward", "pays"), ("strict", "judges")):
            if getattr(self, name) and not self.working:
                raise ValueError(f"{name}: {getattr(self, name)} {what} steps of the working; set working to True")


def solution(rules: Rules, value: jax.Array) -> Solution:
    """Return the solution without mistakes of problems ``[P, len(radices)]``."""
    steps = jnp.zeros((len(value), rules.mistakes[0]), jnp.int32)
    return rules.solve(value, steps > 0, steps)


def answer(rules: Rules, value: jax.Array) -> jax.Array:
    """Return the answer of a solution without mistakes: code points ``[P, A]``."""
    return solution(rules, value).answer


def steps(written: jax.Array, working: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compare the steps of completions, each with the step of the same number in a working; ``;`` ends a step.

    Args:
      written: code points ``[P, T]``, 0 where there is no character.
      working: code points ``[P, K]``, 0 where there is no character.

    Returns:
      ``[P, T]`` bool, whether a step ends there; ``[P, T]`` bool, whether one ends there that equals its step.
    """
    character, ends = written != 0, written == ord(";")
    one, other = places(written), places(working)
    same = (written[:, :, None] == working[:, None, :]) & character[:, :, None]
    for x, y in zip(one, other, strict=True):
        same &= x[:, :, None] == y[:, None, :]
    wrong = jnp.cumsum(character & ~jnp.any(same, axis=2), axis=1)
    return ends, ends & (wrong == at_last(wrong, ends))


def matched(steps: jax.Array, written: jax.Array, ends: jax.Array) -> jax.Array:
    """Return how many characters each step of completions shares with the beginning of right ones, where it ends.

    Args:
      steps: ``[P, Q, W]``, without gaps; a ``;`` at the end counts.
      written: ``[P, T]``, without gaps.
      ends: ``[P, T]`` bool, where steps end.

    Returns:
      ``[P, T, Q]`` int16.
    """
    place = jnp.minimum(places(written)[1] - 1, steps.shape[2])  # what is longer differs
    right = jnp.pad(jnp.swapaxes(steps, 1, 2), ((0, 0), (0, 1), (0, 0))).astype(jnp.int8)
    equal = jnp.take_along_axis(right, place[:, :, None], axis=1) == written[:, :, None]
    wrong, ends = jnp.cumsum(~equal, axis=1, dtype=jnp.int16), ends[:, :, None]
    count = jnp.cumsum(wrong == at_last(wrong, ends), axis=1, dtype=jnp.int16)
    return count - at_last(count, ends)


def places(code: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the number of each character's step, and that of the character in it, from 1, ``[P, K]`` each."""
    ends, count = code == ord(";"), jnp.cumsum(code != 0, axis=1)
    return jnp.cumsum(ends, axis=1) - ends, count - at_last(count, ends)


def at_last(total: jax.Array, ends: jax.Array) -> jax.Array:
    """Return what ``total``, which never falls, was at the last of ``ends`` before each place, 0 before the first."""
    last = jax.lax.cummax(jnp.where(ends, total, 0), axis=1)
    return jnp.concatenate([jnp.zeros_like(last[:, :1]), last[:, :-1]], axis=1)


def exact(answer: jax.Array, written: jax.Array, alphabet: str) -> tuple[jax.Array, jax.Array]:
    """Judge problems that have one answer, in one form.

    Args:
      answer: code points ``[P, A]``, 0 where there is no character.
      written: code points ``[P, T]``, 0 where there is no character.
      alphabet: the characters of answers.

    Returns:
      ``[P]`` bool, whether it has characters, and all are in the alphabet; ``[P]`` bool, whether it is the answer.
    """
    length = answer.shape[1] + 1  # an answer that is longer than every answer differs in the last place
    equal = characters.pack(written, length) == characters.pack(answer, length)
    return consists(written, alphabet), jnp.all(equal, axis=1)


def consists(written: jax.Array, alphabet: str) -> jax.Array:
    """Return whether texts ``[P, T]`` have characters, and all are in the alphabet: ``[P]`` bool."""
    present = written != 0
    return jnp.any(present, axis=1) & jnp.all(characters.among(written, alphabet) | ~present, axis=1)
