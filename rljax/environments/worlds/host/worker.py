"""The code inside a worker process of host worlds: load the class, play episodes, send each answer back at once.

It imports no jax, unless the class does. The pool sends pickles; workers answer with lines of JSON.
"""

import contextlib
import hashlib
import inspect
import json
import os
import pickle
import random
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from rljax.environments.verifiers import worker
from rljax.environments.worlds.host import records, signatures
from rljax.language import messages

Make = Callable[[], Any]
Seeds = tuple[int, int]  # of the problem, which the samples of a prompt share, and of the episode

CALLED: Mapping[str, str] = {
    "begin": "reset()",
    "step": "step()",
    "end": "close()",
    "expert": "expert()",
    "corpus": "corpus()",
    "describe": "the constructor",
}
"""What each method of ``Instances`` calls of the class, for errors."""


class Instances:
    """The episodes that a process plays, each with an instance of the class, and an event loop if it has coroutines."""

    def __init__(self, make: Make):
        """Take what makes an instance."""
        self._make = make
        self._worlds: dict[int, Any] = {}
        self._seeds: dict[int, str] = {}
        self._loops: dict[int, Any] = {}  # asyncio.Runner

    def __contains__(self, episode: int) -> bool:
        """Return whether an episode has an instance."""
        return episode in self._worlds

    def begin(self, episode: int, example: Any, seeds: Seeds) -> records.Begun:
        """Make an instance and reset it. The modules random and numpy.random are seeded, by example and problem."""
        self._forget(episode)
        try:
            self._seeds[episode] = f"{seeds[1]} {example!r}"
            with _seeded(f"reset {seeds[0]} {example!r}"):
                world = self._make()
                begun = records.opening(self._result(episode, world.reset(example)))
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
                return records.observation(self._result(episode, world.step(text)), getattr(world, "role", "user"))
        except KeyboardInterrupt:
            raise
        except BaseException:
            return records.failed("crashed", traceback.format_exc())

    def end(self, episode: int) -> None:
        """Forget an episode; an error of ``close`` is ignored, since its episode has been judged."""
        try:
            self._result(episode, getattr(self._worlds.get(episode), "close", lambda: None)())
        except KeyboardInterrupt:
            raise
        except BaseException:
            pass
        self._forget(episode)

    def expert(self, episode: int) -> records.Value:
        """Return the text of the next turn of a demonstration."""

        def read() -> str:
            text = self._result(episode, self._worlds[episode].expert())
            if not isinstance(text, str):
                raise TypeError(
                    f"expert returned {messages.shown(text)} of type {type(text).__name__}; expected a text"
                )
            return text

        return _value(read)

    def corpus(self) -> records.Value:
        """Return the texts that the class gives a tokenizer to train on."""
        return _value(lambda: [str(text) for text in self._result(-1, self._make().corpus())])

    def describe(self) -> records.Value:
        """Return the attributes that a class may have, and whether it has ``expert`` and ``corpus``."""

        def read() -> dict[str, Any]:
            world = self._make()
            lists: dict[str, list[Any]] = {
                name: list(getattr(world, name, ())) for name in ("tools", "parts", "turn_end")
            }
            lists["tools"] = [dict(tool) if isinstance(tool, Mapping) else _schema(tool) for tool in lists["tools"]]
            methods = {name: hasattr(world, name) for name in ("expert", "corpus")}
            role, cut = str(getattr(world, "role", "user")), bool(getattr(world, "cut", False))
            seconds = float(getattr(world, "seconds", 0.0))
            return json.loads(json.dumps({**lists, **methods, "role": role, "cut": cut, "seconds": seconds}))

        return _value(read)

    def _result(self, episode: int, value: Any) -> Any:
        """Return what a method returned; of a coroutine, its result in the event loop of the episode."""
        if not inspect.isawaitable(value):
            return value
        if episode not in self._loops:
            import asyncio  # for classes with coroutines only, as it takes a while

            self._loops[episode] = asyncio.Runner()

        async def awaited() -> Any:
            return await value

        return self._loops[episode].run(awaited())

    def _forget(self, episode: int) -> None:
        self._worlds.pop(episode, None)
        if (loop := self._loops.pop(episode, None)) is not None:
            with contextlib.suppress(Exception):  # of tasks that it cancels
                loop.close()


def _value(read: Callable[[], Any]) -> records.Value:
    try:
        return records.Value(read())
    except KeyboardInterrupt:
        raise
    except BaseException:  # also exit(), which must not end the worker
        return records.Value(error=worker.failure("crashed", traceback.format_exc()).error)


def _schema(tool: Any) -> Mapping[str, Any]:
    return {"type": "function", "function": signatures.describe(tool)}


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
            failures: Mapping[str, Callable[[str, str], Any]]
            failures = {"begin": records.begun, "step": records.failed, "end": lambda *_: None}
            other: Callable[[str, str], Any] = lambda _, error: records.Value(error=error)  # noqa: E731
            record = failures.get(method, other)("crashed", traceback.format_exc())
        pipe.sendall(json.dumps([serial, None if record is None else record.to_json()]).encode() + b"\n")
