"""What runs inside a worker process: load a reward function, score items, send each answer back at once.

Standard library only, so that a worker starts in a tenth of a second; jax is never imported unless the reward does.
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

# The outcomes a reward may report, by the names of types.Outcome (importing it would import jax).
OUTCOMES = ("wrong", "correct", "unparseable", "timed_out", "crashed")

Reward = Callable[[str, Any], Any]


class Answer(NamedTuple):
    """One row's score."""

    reward: float
    outcome: str  # one of OUTCOMES
    parts: dict[str, float]
    error: str  # traceback or reason; empty where the reward ran


def failure(outcome: str, error: str) -> Answer:
    """Give the answer of a row that got no score."""
    return Answer(0.0, outcome, {}, error)


def score(reward: Reward, text: str, reference: Any) -> Answer:
    """Score one completion; whatever the reward raises or returns amiss becomes a crashed row with its traceback.

    A bare number counts as correct when it is above 0; so does a mapping that names no outcome.
    """
    try:
        return _read(reward(text, reference))
    except KeyboardInterrupt:
        raise
    except BaseException:  # a reward that calls exit() has crashed too, and must not end the worker
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

    Receives the pickled reward and a limit in seconds, says ``None`` or the traceback of loading it; then, for
    each list of pickled ``(text, reference)`` pairs, sends one ``Answer`` an item as it is found.
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
                # The parent ends a hung worker. If the parent is gone, this does, even from inside C code.
                faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
                answer = _score_pickled(reward, item)
                faulthandler.cancel_dump_traceback_later()
                pipe.send(answer)


def _score_pickled(reward: Reward, item: bytes) -> Answer:
    try:
        text, reference = pickle.loads(item)
    except BaseException:  # the reference's class cannot be imported here
        return failure("crashed", traceback.format_exc())
    return score(reward, text, reference)
