"""The code inside a worker process of host worlds: load the class, play episodes, send each answer back at once.

It imports no jax, unless the class does. The pool sends pickles; workers answer with lines of JSON.
"""

import contextlib
import hashlib
import json
import os
import pickle
import random
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from rljax.environments.verifiers import worker
from rljax.environments.worlds.host import records

Make = Callable[[], Any]
Seeds = tuple[int, int]  # of the problem, which the samples of a prompt share, and of the episode


class Instances:
    """The episodes that a process plays, each with an instance of the class."""

    def __init__(self, make: Make):
        """Take what makes an instance."""
        self._make = make
        self._worlds: dict[int, Any] = {}
        self._seeds: dict[int, str] = {}

    def __contains__(self, episode: int) -> bool:
        """Return whether an episode has an instance."""
        return episode in self._worlds

    def world(self, episode: int) -> Any:
        """Return the instance of an episode."""
        return self._worlds[episode]

    def begin(self, episode: int, example: Any, seeds: Seeds) -> records.Begun:
        """Make an instance and reset it. The modules random and numpy.random are seeded, by example and problem."""
        self._worlds.pop(episode, None)
        try:
            self._seeds[episode] = f"{seeds[1]} {example!r}"
            with _seeded(f"reset {seeds[0]} {example!r}"):
                world = self._make()
                begun = records.opening(world.reset(example))
            self._worlds[episode] = world
            return begun
        except KeyboardInterrupt:
            raise
        except BaseException:  # also exit(), which must not end the worker
            return records.begun("crashed", traceback.format_exc())

    def step(self, episode: int, number: int, text: str) -> records.Told:
        """Answer turn ``number``. The modules random and numpy.random are seeded, by example, episode and number."""
        try:
            world = self._worlds[episode]
            with _seeded(f"step {number} {self._seeds[episode]}"):
                return records.observation(world.step(text), getattr(world, "role", "user"))
        except KeyboardInterrupt:
            raise
        except BaseException:
            return records.failed("crashed", traceback.format_exc())

    def end(self, episode: int) -> None:
        """Forget an episode; an error of ``close`` is ignored, since its episode has been judged."""
        world = self._worlds.pop(episode, None)
        try:
            getattr(world, "close", lambda: None)()
        except KeyboardInterrupt:
            raise
        except BaseException:
            pass


@contextlib.contextmanager
def _seeded(text: str) -> Iterator[None]:
    """Seed the generators of the modules random and numpy.random within the block."""
    numpy = sys.modules.get("numpy")  # not imported before the class needs it
    before = random.getstate(), numpy and numpy.random.get_state()
    random.seed(text)
    if numpy:
        numpy.random.seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]))
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy:
            numpy.random.set_state(before[1])


def serve(pipe: socket.socket, requests: BinaryIO, payload: bytes) -> None:
    """Load the class, then answer requests until the pipe closes.

    It sends ``null`` or the traceback of loading the class as a line of JSON; then, for each pickled
    ``(serial, method, arguments)`` of ``Instances``, ``[serial, record]``.

    Args:
      pipe: for the answers.
      requests: the other direction of ``pipe``.
      payload: what makes an instance, pickled.
    """
    make: Any = None
    trace = None
    try:
        make = pickle.loads(payload)
    except BaseException:  # importing a module may raise anything; the pool reports it
        trace = worker.failure("crashed", traceback.format_exc()).error
    pipe.sendall(json.dumps(trace).encode() + b"\n")
    with open(os.devnull, "wb") as nowhere:  # the errors are in the answers
        os.dup2(nowhere.fileno(), 2)
    instances = Instances(make)
    while trace is None:
        serial, method, arguments = pickle.load(requests)
        try:
            record = getattr(instances, method)(*arguments)
        except BaseException:  # the world raised KeyboardInterrupt
            record = {"begin": records.begun, "step": records.failed}.get(method, lambda *_: None)(
                "crashed", traceback.format_exc()
            )
        pipe.sendall(json.dumps([serial, None if record is None else record.to_json()]).encode() + b"\n")
