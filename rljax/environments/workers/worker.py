"""The program inside a worker process: load an object, call its methods, send each answer back at once.

It imports the standard library only, so that a worker starts in a tenth of a second, and jax only if the object does.
The pool sends pickles; workers answer with lines of JSON, so that no object of what they run reaches the pool.
"""

import dataclasses
import functools
import json
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Protocol

_LONGEST_ERROR = 4000  # characters; the end is kept, where a traceback has its exception


class Served(Protocol):
    """What a worker runs. Its methods are called by name; they return values of JSON, dataclasses or NamedTuples."""

    @property
    def code(self) -> Callable[..., Any]:
        """The code of the user that it calls."""
        ...

    def check(self) -> None:
        """Raise an exception if the code cannot run in this process."""
        ...


def shortened(error: str) -> str:
    """Return the end of an error; its control characters are replaced."""
    error = error if len(error) <= _LONGEST_ERROR else "... " + error[-_LONGEST_ERROR:]
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in error)


def answered(served: Served, method: str, arguments: Sequence[Any]) -> tuple[Any, str]:
    """Call a method; return what it returns and "", or None and its traceback. KeyboardInterrupt is raised."""
    try:
        return getattr(served, method)(*arguments), ""
    except KeyboardInterrupt:
        raise
    except BaseException:  # also exit(), which must not end the worker
        return None, shortened(traceback.format_exc())


def called(served: Served, method: str, arguments: bytes) -> tuple[Any, str]:
    """Call a method with pickled arguments; return its answer as JSON takes it and "", or None and a traceback.

    What is awaitable is returned as it is.
    """
    try:
        value, error = answered(served, method, pickle.loads(arguments))
        return plain(value), error
    except BaseException:  # the class of an argument cannot be imported, or the code raised KeyboardInterrupt
        return None, shortened(traceback.format_exc())


def plain(value: Any) -> Any:
    """Return a dataclass as a dictionary, and other values as they are."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def serve(pipe: socket.socket, requests: BinaryIO, payload: bytes, concurrency: int) -> None:
    """Load the object, then answer calls until the pipe closes.

    It sends ``null`` or the traceback of loading the object as a line of JSON; then, for each pickled list of calls
    ``(serial, method, pickled arguments)``, a line ``[serial, value, error]`` as soon as each is answered.

    Args:
      pipe: for the answers.
      requests: the other direction of ``pipe``.
      payload: the object, a pickled ``Served``.
      concurrency: the most lists that are answered at once, each in order.
    """
    served: Any = None
    trace = None
    try:
        served = pickle.loads(payload)
        served.check()
    except BaseException:  # importing a module may raise anything; the pool reports it
        trace = shortened(traceback.format_exc())

    def send(answer: Any) -> None:
        pipe.sendall(json.dumps(answer).encode() + b"\n")

    send(trace)
    with open(os.devnull, "wb") as nowhere:  # the errors are in the answers
        os.dup2(nowhere.fileno(), 2)
    if trace is None and concurrency > 1:
        from rljax.environments.workers import overlapping  # imports asyncio, which takes a while

        overlapping.serve(requests, functools.partial(called, served), send, concurrency)
    while trace is None:
        for serial, method, arguments in pickle.load(requests):
            send([serial, *called(served, method, arguments)])
