"""The code inside a worker process: load a reward function, score items, send each answer back at once.

It imports the standard library only, so that a worker starts in a tenth of a second, and jax only if the reward does.
"""

import contextlib
import faulthandler
import math
import os
import pickle
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import connection
from typing import Any, NamedTuple

# The outcomes that a reward may return: the names of types.Outcome, which is not imported because it imports jax.
OUTCOMES = ("wrong", "correct", "unparseable", "timed_out", "crashed")

Reward = Callable[[str, Any], Any]


class Answer(NamedTuple):
    """The score of one row."""

    reward: float
    outcome: str  # one of OUTCOMES
    parts: dict[str, float]
    error: str  # traceback or reason; "" if the reward returned


def failure(outcome: str, error: str) -> Answer:
    """Return the answer of a row without a score."""
    return Answer(0.0, outcome, {}, error)


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
        number = _finite("the reward", value)
        return Answer(number, "correct" if number > 0 else "wrong", {}, "")
    if "reward" not in value:
        raise ValueError(f"the reward function returned a mapping without 'reward': {dict(value)!r}")
    number = _finite("'reward'", value["reward"])
    outcome = value.get("outcome", "correct" if number > 0 else "wrong")
    if outcome not in OUTCOMES:
        raise ValueError(f"the reward function returned outcome {outcome!r}; allowed: {', '.join(OUTCOMES)}")
    parts = {str(k): _finite(f"part {k!r}", v) for k, v in value.items() if k not in ("reward", "outcome")}
    return Answer(number, outcome, parts, "")


def _finite(what: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError("text is not a number")
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what} is {value!r} of type {type(value).__name__}; a reward function returns a finite number, or a"
            " mapping with 'reward' and other named numbers"
        ) from error
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; a reward function returns finite numbers")
    return number


def serve(pipe: connection.Connection) -> None:
    """Load the reward, then answer chunks of items until the pipe closes.

    It receives the pickled reward and a limit in seconds, and sends ``None`` or the traceback of loading it; then, for
    each list of pickled ``(text, target)`` pairs, it sends an ``Answer`` as soon as an item is scored.
    """
    payload, limit = pipe.recv()
    try:
        reward = pickle.loads(payload)
    except BaseException:  # importing a module may raise anything; the parent reports it
        pipe.send(traceback.format_exc())
        return
    pipe.send(None)
    with open(os.devnull, "w") as nowhere, contextlib.suppress(EOFError, ConnectionError):  # the parent is gone
        while True:
            for item in pipe.recv():
                # The parent ends a hung worker. If the parent is gone, this timer does, even inside C code.
                faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
                answer = _score_pickled(reward, item)
                faulthandler.cancel_dump_traceback_later()
                pipe.send(answer)


def _score_pickled(reward: Reward, item: bytes) -> Answer:
    try:
        text, target = pickle.loads(item)
    except BaseException:  # the class of the target cannot be imported
        return failure("crashed", traceback.format_exc())
    return score(reward, text, target)
