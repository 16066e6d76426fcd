"""Reward functions as workers call them, and what they return, checked. Imports no jax, for worker processes."""

import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rljax.environments.workers import worker
from rljax.language import limits, messages

FAILURES = ("timed_out", "crashed")
# The outcomes that a reward may return: the names of types.Outcome, which is not imported because it imports jax.
OUTCOMES = ("wrong", "correct", "unparseable", *FAILURES, "unjudged")

_MOST_PARTS = 100
_LONGEST_NAME = 100  # characters of a part's name

Reward = Callable[..., Any]


class Answer(NamedTuple):
    """The score of one row."""

    reward: float
    outcome: str  # one of OUTCOMES, or "" if the reward function returned none
    parts: dict[str, float]
    error: str  # traceback or reason; "" unless the outcome is one of FAILURES


def failure(outcome: str, error: str) -> Answer:
    """Return the answer of a row without a score."""
    return Answer(0.0, outcome, {}, worker.shortened(error))


def grouped(reward: Reward) -> bool:
    """Return whether a reward judges all completions of a prompt together: its first parameter is ``completions``.

    An attribute ``group`` decides instead if the reward has one.
    """
    try:
        return getattr(reward, "group", next(iter(inspect.signature(reward).parameters), "") == "completions")
    except (TypeError, ValueError):  # a builtin without a signature
        return False


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A reward function as workers call it."""

    code: Reward

    def check(self) -> None:
        """Call ``self_test`` of each function of the reward, or of the module that defines it, where there is one."""
        for function in [part.function for part in getattr(self.code, "parts", ())] or [self.code]:
            name = getattr(getattr(function, "func", function), "__module__", "")  # of a partial, its function's
            getattr(function, "self_test", getattr(sys.modules.get(name), "self_test", lambda: None))()

    def score(self, texts: Sequence[str], target: Any, columns: Mapping[str, Any]) -> list[Answer]:
        """Score the completions of one item; an exception concerns all of them.

        Args:
          texts: the completions: one, or if ``grouped`` all of a prompt.
          target: the expected answer.
          columns: keyword arguments.

        Returns:
          An answer for each text: the reward returns (a list of) numbers, or mappings with "reward", optionally
          "outcome", and other named numbers.

        Raises:
          ValueError: it returned something else.
          TypeError: likewise.
        """
        if grouped(self.code):
            return [read(value) for value in each(self.code(list(texts), target, **columns), len(texts))]
        return [read(self.code(text, target, **columns)) for text in texts]


def each(values: Any, count: int) -> list[Any]:
    """Return what a reward function of ``count`` completions returned as a list of so many values."""
    if isinstance(values, (str, bytes, Mapping)) or len(listed := list(values)) != count:
        raise ValueError(
            f"the reward function returned {messages.shown(values)}; for {count} completions it must return a list of"
            f" {count} numbers or mappings"
        )
    return listed


def read(value: Any) -> Answer:
    """Return what a reward function returned for one completion as an answer; ValueError or TypeError if invalid."""
    if not isinstance(value, Mapping):
        number = _number("the reward", value)
        return Answer(number, "", {}, "")
    outcome = value.get("outcome", "")
    if "outcome" in value and not (isinstance(outcome, str) and outcome in OUTCOMES):
        raise ValueError(
            f"the reward function returned outcome {messages.shown(outcome)}; allowed: {', '.join(OUTCOMES)}"
        )
    outcome = str.__str__(outcome)  # plain, also of a str subclass such as an enum
    if outcome in FAILURES:
        return failure(outcome, f"the reward function returned outcome {outcome!r}")
    if "reward" not in value:
        raise ValueError(f"the reward function returned a mapping without 'reward': {messages.shown(dict(value))}")
    number = _number("'reward'", value["reward"])
    names = [name for name in value if name not in ("reward", "outcome")]
    if len(names) > _MOST_PARTS:
        raise ValueError(f"the reward function returned {len(names)} parts; allowed: {_MOST_PARTS}")
    for name in names:
        if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME):
            raise ValueError(
                f"the reward function returned a part named {messages.shown(name)}; a name is a string of 1 to"
                f" {_LONGEST_NAME} printable characters"
            )
    parts = {str.__str__(name): _number(f"part {name!r}", value[name]) for name in names}
    return Answer(number, outcome, parts, "")


def _number(what: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError("text is not a number")
        number = float(value)
    except OverflowError:  # an int beyond float64
        number = 10 * limits.LARGEST
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what} is {messages.shown(value)} of type {type(value).__name__}; a reward function returns a finite"
            " number, or a mapping with 'reward' and other named numbers"
        ) from error
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; a reward function returns finite numbers")
    if abs(number) > limits.LARGEST:
        raise ValueError(f"{what} is {messages.shown(value)}; it is at most {limits.LARGEST:g} in size")
    return number


def finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def decode(answers: Any, count: int) -> list[Answer]:
    """Return the ``count`` answers that ``Scorer.score`` returned, from JSON; an error if these are none."""
    if len(answers) != count:
        raise ValueError("not the expected answer")
    return [_decode(*answer) for answer in answers]


def _decode(reward: Any, outcome: Any, parts: Any, error: Any) -> Answer:
    if outcome not in ("", *OUTCOMES):
        raise ValueError("not the expected answer")
    if error:
        return failure(outcome, error)
    return read({**parts, "reward": reward} | ({"outcome": outcome} if outcome else {}))
