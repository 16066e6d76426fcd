"""The code inside a worker process: load a reward function, score items, send each answer back at once.

It imports the standard library only, so that a worker starts in a tenth of a second, and jax only if the reward does.
The pool sends pickles; workers answer with lines of JSON, so that no object of a reward function reaches the pool.
"""

import inspect
import json
import math
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from rljax.language import limits, messages

FAILURES = ("timed_out", "crashed")
# The outcomes that a reward may return: the names of types.Outcome, which is not imported because it imports jax.
OUTCOMES = ("wrong", "correct", "unparseable", *FAILURES, "unjudged")

_MOST_PARTS = 100
_LONGEST_NAME = 100  # characters of a part's name
_LONGEST_ERROR = 4000  # characters; the end is kept, where a traceback has its exception

Reward = Callable[..., Any]


class Answer(NamedTuple):
    """The score of one row."""

    reward: float
    outcome: str  # one of OUTCOMES, or "" if the reward function returned none
    parts: dict[str, float]
    error: str  # traceback or reason; "" unless the outcome is one of FAILURES


def failure(outcome: str, error: str) -> Answer:
    """Return the answer of a row without a score; the error is shortened, its control characters are replaced."""
    error = error if len(error) <= _LONGEST_ERROR else "... " + error[-_LONGEST_ERROR:]
    return Answer(0.0, outcome, {}, "".join(c if c.isprintable() or c == "\n" else "?" for c in error))


def grouped(reward: Reward) -> bool:
    """Return whether a reward judges all completions of a prompt together: its first parameter is ``completions``.

    An attribute ``group`` decides instead if the reward has one.
    """
    try:
        return getattr(reward, "group", next(iter(inspect.signature(reward).parameters), "") == "completions")
    except (TypeError, ValueError):  # a builtin without a signature
        return False


def score(reward: Reward, texts: Sequence[str], target: Any, columns: Mapping[str, Any]) -> list[Answer]:
    """Score the completions of one item; an exception or an invalid value becomes a crash with its traceback.

    Args:
      reward: ``reward(completion, target, **columns)``, or if ``grouped`` the same of a list of completions. It returns
        (a list of) numbers, or mappings with "reward", optionally "outcome", and other named numbers.
      texts: the completions: one, or if ``grouped`` all of a prompt.
      target: the expected answer.
      columns: keyword arguments.

    Returns:
      An answer for each text; a crash concerns all of them.
    """
    try:
        if grouped(reward):
            return [read(value) for value in each(reward(list(texts), target, **columns), len(texts))]
        return [read(reward(text, target, **columns)) for text in texts]
    except KeyboardInterrupt:
        raise
    except BaseException:  # also exit(), which must not end the worker
        return [failure("crashed", traceback.format_exc())] * len(texts)


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


def decode(line: bytes, place: int, count: int) -> list[Answer]:
    """Return the ``count`` answers to item ``place`` of a list that ``serve`` wrote; other lines raise an error."""
    written, answers = json.loads(line)
    if written != place or len(answers) != count:
        raise ValueError("not the expected answer")
    return [_decode(*answer) for answer in answers]


def _decode(reward: Any, outcome: Any, parts: Any, error: Any) -> Answer:
    if outcome not in ("", *OUTCOMES):
        raise ValueError("not the expected answer")
    return (
        failure(outcome, error)
        if error
        else read({**parts, "reward": reward} | ({"outcome": outcome} if outcome else {}))
    )


def self_test(reward: Any) -> None:
    """Call ``self_test`` of each module that defines a function of the reward and has one; it raises if it fails."""
    for function in [part.function for part in getattr(reward, "parts", ())] or [reward]:
        name = getattr(getattr(function, "func", function), "__module__", "")  # of a functools.partial, its function's
        getattr(sys.modules.get(name), "self_test", lambda: None)()


def serve(pipe: socket.socket, requests: BinaryIO, payload: bytes) -> None:
    """Load the reward, then answer chunks of items until the pipe closes.

    It sends ``null`` or the traceback of loading the reward as a line of JSON; then, for each list of pairs of a count
    and pickled ``(texts, target, columns)``, ``[place, answers]`` as soon as an item is scored.

    Args:
      pipe: for the answers.
      requests: the other direction of ``pipe``: pickled lists.
      payload: the pickled reward function.
    """
    reward: Any = None
    trace = None
    try:
        reward = pickle.loads(payload)
        self_test(reward)
    except BaseException:  # importing a module may raise anything; the pool reports it
        trace = failure("crashed", traceback.format_exc()).error
    pipe.sendall(json.dumps(trace).encode() + b"\n")
    with open(os.devnull, "wb") as nowhere:  # the errors are in the answers
        os.dup2(nowhere.fileno(), 2)
    while trace is None:
        for place, (count, item) in enumerate(pickle.load(requests)):
            try:
                answers = score(reward, *pickle.loads(item))
            except BaseException:  # the class of the target cannot be imported, or the reward raised KeyboardInterrupt
                answers = [failure("crashed", traceback.format_exc())] * count
            pipe.sendall(json.dumps([place, answers]).encode() + b"\n")
