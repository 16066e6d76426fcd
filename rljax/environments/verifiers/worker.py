"""The code inside a worker process: load a reward function, score items, send each answer back at once.

It imports the standard library only, so that a worker starts in a tenth of a second, and jax only if the reward does.
The pool sends pickles; workers answer with lines of JSON, so that no object of a reward function reaches the pool.
"""

import json
import math
import os
import pickle
import socket
import struct
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from rljax.language import messages

FAILURES = ("timed_out", "crashed")
# The outcomes that a reward may return: the names of types.Outcome, which is not imported because it imports jax.
OUTCOMES = ("wrong", "correct", "unparseable", *FAILURES)

_MOST_PARTS = 100
_LONGEST_NAME = 100  # characters of a part's name
_LONGEST_ERROR = 4000  # characters; the end is kept, where a traceback has its exception

Reward = Callable[[str, Any], Any]


class Answer(NamedTuple):
    """The score of one row."""

    reward: float
    outcome: str  # one of OUTCOMES
    parts: dict[str, float]
    error: str  # traceback or reason; "" unless the outcome is one of FAILURES


def failure(outcome: str, error: str) -> Answer:
    """Return the answer of a row without a score; the error is shortened, its control characters are replaced."""
    error = error if len(error) <= _LONGEST_ERROR else "... " + error[-_LONGEST_ERROR:]
    return Answer(0.0, outcome, {}, "".join(c if c.isprintable() or c == "\n" else "?" for c in error))


def score(reward: Reward, text: str, target: Any) -> Answer:
    """Score one completion; an exception or an invalid return value becomes a crashed row with its traceback.

    Args:
      reward: ``reward(completion, target)``. A number above 0 counts as correct, other numbers as wrong; likewise the
        reward of a mapping without an outcome.
      text: the completion.
      target: the expected answer.

    Returns:
      The answer.
    """
    try:
        return _read(reward(text, target))
    except KeyboardInterrupt:
        raise
    except BaseException:  # also exit(), which must not end the worker
        return failure("crashed", traceback.format_exc())


def _read(value: Any) -> Answer:
    if not isinstance(value, Mapping):
        number = _number("the reward", value)
        return Answer(number, "correct" if number > 0 else "wrong", {}, "")
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
    return Answer(number, outcome or ("correct" if number > 0 else "wrong"), parts, "")


def _number(what: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError("text is not a number")
        number = float(value)
        struct.pack("<f", number)  # raises OverflowError beyond the range of float32
    except OverflowError as error:
        raise ValueError(f"{what} is {messages.shown(value)}; a float32 is at most 3.4e38 in size") from error
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what} is {messages.shown(value)} of type {type(value).__name__}; a reward function returns a finite"
            " number, or a mapping with 'reward' and other named numbers"
        ) from error
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; a reward function returns finite numbers")
    return number


def decode(line: bytes, place: int) -> Answer:
    """Return the answer to item ``place`` of a list that ``serve`` wrote; any other line raises some ``Exception``."""
    written, reward, outcome, parts, error = json.loads(line)
    if written != place or outcome not in OUTCOMES:
        raise ValueError("not the expected answer")
    return failure(outcome, error) if error else _read({**parts, "reward": reward, "outcome": outcome})


def serve(pipe: socket.socket, requests: BinaryIO, payload: bytes) -> None:
    """Load the reward, then answer chunks of items until the pipe closes.

    It sends ``null`` or the traceback of loading the reward as a line of JSON; then, for each list of pickled ``(text,
    target)`` pairs, ``[place, *answer]`` as soon as an item is scored.

    Args:
      pipe: for the answers.
      requests: the other direction of ``pipe``: pickled lists.
      payload: the pickled reward function.
    """
    reward: Any = None
    trace = None
    try:
        reward = pickle.loads(payload)
    except BaseException:  # importing a module may raise anything; the pool reports it
        trace = failure("crashed", traceback.format_exc()).error
    pipe.sendall(json.dumps(trace).encode() + b"\n")
    with open(os.devnull, "wb") as nowhere:  # the errors are in the answers
        os.dup2(nowhere.fileno(), 2)
    while trace is None:
        for place, item in enumerate(pickle.load(requests)):
            try:
                answer = score(reward, *pickle.loads(item))
            except BaseException:  # the class of the target cannot be imported, or the reward raised KeyboardInterrupt
                answer = failure("crashed", traceback.format_exc())
            pipe.sendall(json.dumps([place, *answer]).encode() + b"\n")
