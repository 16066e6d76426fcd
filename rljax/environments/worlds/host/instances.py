"""The episodes that a worker process plays. Imports no jax, unless the class does."""

import contextlib
import contextvars
import hashlib
import inspect
import json
import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from rljax.environments.workers import process, worker
from rljax.environments.worlds.host import records, signatures
from rljax.language import messages

Make = Callable[[], Any]
Seeds = tuple[int, int]  # of the problem, which the samples of a prompt share, and of the episode

_EPISODE: contextvars.ContextVar[int | None] = contextvars.ContextVar("episode", default=None)

CALLED: Mapping[str, str] = {
    "begin": "reset()",
    "step": "step()",
    "end": "close()",
    "expert": "expert()",
    "corpus": "corpus()",
    "describe": "the constructor",
}
"""What each method of ``Instances`` calls of the class, for errors."""

_RECORDS: Mapping[str, Callable[[Any], Any]] = {"begin": records.Begun.from_json, "step": records.Answer.from_json}


def call(method: str, *arguments: Any) -> process.Call:
    """Return a call of a method of ``Instances``."""
    return process.Call(method, arguments, _RECORDS.get(method, lambda value: value), CALLED[method])


class Instances:
    """The episodes that a process plays, each with an instance of the class, and an event loop if it has coroutines.

    With ``overlapping``, several threads call the methods, each for another episode; these return what is awaitable,
    for the one event loop of the process (``workers.overlapping``).
    """

    def __init__(self, code: Make, overlapping: bool = False):
        """Take what makes an instance, and whether methods are called at once."""
        self.code, self._overlapping = code, overlapping
        self._worlds: dict[int, Any] = {}
        self._seeds: dict[int, str] = {}
        self._loops: dict[int, Any] = {}  # asyncio.Runner
        self._tasks: dict[int | None, set[Any]] = {}  # asyncio.Task that coroutines of an episode started

    def check(self) -> None:
        """Do nothing: a class is first constructed when an episode begins."""

    def begin(self, episode: int, example: Any, seeds: Seeds) -> records.Begun:
        """Make an instance and reset it. The modules random and numpy.random are seeded, by example and problem."""
        self._forget(episode)
        self._seeds[episode] = f"{seeds[1]} {example!r}"

        def begun(value: Any) -> records.Begun:
            opening = records.opening(value, _seats(world))
            self._worlds[episode] = world
            return opening

        with self._seeded(f"reset {seeds[0]} {example!r}"):
            world = self.code()
            return self._result(episode, world.reset(example), begun)

    def step(self, episode: int, number: int, text: str) -> records.Answer:
        """Answer turn ``number``. The modules random and numpy.random are seeded, by example, episode and number."""
        world = self._worlds[episode]
        with self._seeded(f"step {number} {self._seeds[episode]}"):
            return self._result(
                episode,
                world.step(text),
                lambda value: records.observation(value, getattr(world, "role", "user"), _seats(world)),
            )

    def end(self, episode: int) -> Any:
        """Forget an episode; an error of ``close`` is ignored, since its episode has been judged."""
        closing, _ = worker.answered(self, "close", [episode])
        if inspect.isawaitable(closing):
            return self._closed(episode, closing)
        self._forget(episode)
        return None

    def close(self, episode: int) -> Any:
        """Call ``close`` of an episode's instance, if it has one."""
        return self._result(episode, getattr(self._worlds.get(episode), "close", lambda: None)(), lambda _: None)

    async def _closed(self, episode: int, closing: Awaitable[None]) -> None:
        try:
            await closing
        finally:
            self._forget(episode)

    def expert(self, episode: int) -> str:
        """Return the text of the next turn of a demonstration."""
        text = self._result(episode, self._worlds[episode].expert())
        if not isinstance(text, str):
            raise TypeError(f"expert returned {messages.shown(text)} of type {type(text).__name__}; expected a text")
        return text

    def corpus(self) -> list[str]:
        """Return the texts that the class gives a tokenizer to train on."""
        return [str(text) for text in self._result(-1, self.code().corpus())]

    def describe(self) -> dict[str, Any]:
        """Return the attributes that a class may have, and whether it has ``expert`` and ``corpus``."""
        world = self.code()
        lists: dict[str, list[Any]] = {name: list(getattr(world, name, ())) for name in ("tools", "parts", "turn_end")}
        lists["tools"] = [dict(tool) if isinstance(tool, Mapping) else _schema(tool) for tool in lists["tools"]]
        methods = {name: hasattr(world, name) for name in ("expert", "corpus")}
        role, cut = str(getattr(world, "role", "user")), bool(getattr(world, "cut", False))
        seconds = float(getattr(world, "seconds", 0.0))
        numbers = {"seats": _seats(world), "seconds": seconds}
        return json.loads(json.dumps({**lists, **methods, "role": role, "cut": cut, **numbers}))

    def _result(self, episode: int, value: Any, read: Callable[[Any], Any] = lambda value: value) -> Any:
        """Return ``read`` of what a method returned; of a coroutine, of its result in the event loop of the episode."""
        if not inspect.isawaitable(value):
            return read(value)
        if self._overlapping:
            return self._awaited(episode, value, read)
        import asyncio  # for classes with coroutines only, as it takes a while

        if episode not in self._loops:
            self._loops[episode] = asyncio.Runner()

        async def awaited() -> Any:
            return await value

        return read(self._loops[episode].run(awaited()))

    async def _awaited(self, episode: int, value: Awaitable[Any], read: Callable[[Any], Any]) -> Any:
        """Return ``read`` of what a method returned, in the event loop of the process."""
        import asyncio

        _EPISODE.set(episode)
        asyncio.get_running_loop().set_task_factory(self._task)
        return read(await value)

    def _task(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        """Make a task of the event loop, and note the episode that starts it."""
        import asyncio

        made = asyncio.Task(coroutine, loop=loop, **options)
        tasks = self._tasks.setdefault(_EPISODE.get(), set())
        tasks.add(made)
        made.add_done_callback(tasks.discard)
        return made

    def _forget(self, episode: int) -> None:
        """Forget an instance, and cancel the tasks that it has left."""
        self._worlds.pop(episode, None)
        self._seeds.pop(episode, None)
        if (loop := self._loops.pop(episode, None)) is not None:
            with contextlib.suppress(Exception):  # of tasks that it cancels
                loop.close()
        for task in list(self._tasks.pop(episode, ())):
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _seeded(self, text: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._overlapping else _seeded(text)


def _seats(world: Any) -> int:
    seats = getattr(world, "seats", 1)
    if isinstance(seats, bool) or not isinstance(seats, int) or seats < 1:
        raise ValueError(f"seats is {messages.shown(seats)}; expected a whole number of at least 1")
    return seats


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
