"""A pool of worker processes: items that any worker may answer, and items that wait for one of them.

Each worker is a new interpreter (not a fork of a process that runs jax, and it does not rerun the main script), served
by one thread of this process over a pipe. A limit of time applies to each call. A worker that hangs or dies is
replaced, and what it has not answered is asked again.

A worker may be asked for several items at once. If it then dies, or no longer reacts, any of them may be the cause, so
each is asked again without others beside it.
"""

import abc
import collections
import dataclasses
import math
import queue
import socket
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rljax.environments.config import VerifierConfig
from rljax.environments.workers import process, worker

_DEATHS = 2  # workers that may die while answering one item
_POLL = 0.2  # seconds between looks at busy workers
_PATIENCE = 1.0  # the most seconds that an item waits for its worker while another one is free
_REACTION = 0.2  # seconds in which a worker answers a call that does nothing, unless another call blocks it
_NOTHING = process.Call("", (), lambda value: value)


class VerifierError(RuntimeError):
    """Workers cannot be started, or what they run crashed on every row."""


class Interrupted(Exception):
    """The process was asked to stop while the caller waited for workers."""


@dataclasses.dataclass(eq=False)
class Worker:
    """A worker process and what waits for it."""

    process: process.Process
    items: "collections.deque[Item]" = dataclasses.field(default_factory=collections.deque)
    since: float = math.inf  # when it was asked for the last of as many as it can answer at once; inf: it has room
    wait: float = math.inf  # seconds until its thread looks at items of other workers
    bell: tuple[socket.socket, socket.socket] = dataclasses.field(default_factory=socket.socketpair)
    listens: bool = False  # its thread waits, with room for more items

    def ring(self) -> None:
        """Wake its thread if that waits with room for more items."""
        if self.listens:
            self.listens = False
            self.bell[0].send(b"!")


class Place(NamedTuple):
    """A process that answers, equal as long as it lives."""

    worker: Worker | None  # None: this process
    starts: int  # of the worker's process


@dataclasses.dataclass(eq=False)
class Item(abc.ABC):
    """What one worker is asked. ``put`` is called at least once; what follows the first call is ignored."""

    deaths: int = dataclasses.field(default=0, init=False)  # workers that have died while answering it
    alone: bool = dataclasses.field(default=False, init=False)  # a worker is asked for nothing beside it

    @property
    def home(self) -> Worker | None:
        """The worker that it waits for; None: any."""
        return None

    @abc.abstractmethod
    def calls(self, place: Place) -> Sequence[process.Call]:
        """Return what a process is asked."""

    @abc.abstractmethod
    def put(self, replies: Sequence[process.Reply]) -> None:
        """Take the answers to the calls; the last one of fewer is the failure of its call."""

    def moved(self) -> "Item | None":
        """Return what ``home`` is still asked if another worker takes this item; None: no other may take it."""
        return None


@dataclasses.dataclass(eq=False)
class _Asked:
    """An item that a worker has been asked for."""

    item: Item
    calls: int
    replies: list[process.Reply] = dataclasses.field(default_factory=list)
    failure: process.Reply | None = None  # to the next call, when the worker is ended


class Pool:
    """Workers that call methods of one object. Items may be put by any thread, between ``start`` and ``stop``."""

    def __init__(self, served: worker.Served, what: str, limits: VerifierConfig, together: int = 1):
        """Take what workers run.

        Args:
          served: the object.
          what: how messages name the code: "reward" or "world".
          limits: number of workers, their time, memory and concurrency; with 0 workers, items are answered in this
            process when they are put, without limits.
          together: the most items of a request, which are answered in order, of those that wait for no worker.

        Raises:
          ValueError: a worker cannot import the code.
        """
        self._served, self._what, self._limits, self._together = served, what, limits, together
        self._payload = process.pickled(served, what) if limits.workers else b""
        self._patience = min(_PATIENCE, limits.timeout / 8)
        self._workers: list[Worker] = []
        self._threads: list[threading.Thread] = []
        self._shared: collections.deque[Item] = collections.deque()  # what any worker may do
        self._size = 1  # of these, as many as a worker is sent at once
        self.changed = threading.Condition()  # its lock guards the queues
        self.open = False

    def start(self) -> None:
        """Start the workers and wait until each has imported the code.

        Raises:
          ValueError: the code cannot be imported in a worker.
          VerifierError: workers end while they start.
        """
        self._workers, self._shared, self.open = [], collections.deque(), True
        limits = self._limits
        for _ in range(limits.workers):
            self._workers.append(Worker(process.Process(self._payload, self._what, limits.memory, limits.concurrency)))
        started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        try:
            for each in self._workers:
                thread = threading.Thread(target=self._serve, args=(each, started), name="rljax-worker", daemon=True)
                thread.start()
                self._threads.append(thread)
            for _ in self._threads:
                error = started.get()
                if isinstance(error, process.WorkerError):
                    raise VerifierError(f"no worker of the {self._what} could be started: {error}") from error
                if error is not None:
                    raise error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the workers at once; items without an answer get none."""
        with self.changed:
            self.open = False
            self.changed.notify_all()
            for each in self._workers:
                each.ring()
        for each in self._workers:
            each.process.close()
        for thread in self._threads:
            thread.join()
        for each in self._workers:
            each.process.kill()
            for end in each.bell:
                end.close()
        self._threads = []

    def put(self, items: Iterable[Item]) -> None:
        """Ask for answers to items; without workers they are there when this returns."""
        if not self._limits.workers:
            for item in items:
                calls = item.calls(Place(None, 0))
                item.put([process.here(self._served, call) for call in calls])
            return
        with self.changed:
            given, room = list(items), self._limits.workers * self._limits.concurrency
            self._size = min(self._together, max(1, len(given) // (4 * room)))  # balances the workers
            for item in given:
                self._queue(item).append(item)
            self._ring(given)

    def _ring(self, items: "Sequence[Item]") -> None:
        """Wake the threads that may have use for new items: of one item, its worker or one that has room."""
        workers = self._workers
        if len(items) == 1:
            first = items[0].home or max(workers, key=lambda each: (each.listens, -len(each.process.asked)))
            workers = [first] if first.listens else [each for each in workers if each.wait == math.inf]
        for each in workers:
            each.ring()

    def _queue(self, item: Item) -> "collections.deque[Item]":
        return self._shared if item.home is None else item.home.items

    def _serve(self, this: Worker, started: "queue.SimpleQueue[Exception | None]") -> None:
        """Feed one worker until the pool closes; each worker has a thread that runs this."""
        try:
            this.process.ensure()
            started.put(None)
        except Exception as error:
            started.put(error)
            return
        while (taken := self._take(this)) is not None:
            items, bell = taken
            try:
                if items:
                    self._ask(this, items)
                elif (answer := this.process.receive(this.wait if bell else math.inf, bell)) is not None:
                    self._answered(this, *answer)
                else:
                    self._watch(this)
            except process.WorkerError as error:
                self._died(this, str(error))
            except Exception:
                self._died(this, traceback.format_exc())

    def _take(self, this: Worker) -> tuple[list[Item], socket.socket | None] | None:
        """Return what a worker is to do next, and the bell if it has room for more.

        None: the pool is closed.
        """
        if len(this.process.asked) >= self._limits.concurrency:
            return [], None
        with self.changed:
            if not self.open:
                return None
            asked = _asked(this)
            if any(content[0].item.alone for content in asked):
                return [], None
            items = self._next(this, bool(asked))
            full = items and (items[0].alone or len(asked) + 1 >= self._limits.concurrency)
            this.since = time.monotonic() if full else math.inf
            behind = any(each.items for each in self._workers if each is not this)
            this.wait = min(_POLL, self._patience) if behind else math.inf
            this.listens = not items
            return items, this.bell[1]

    def _next(self, this: Worker, busy: bool) -> list[Item]:
        """Return the next items of a worker: one of its own, some of no worker, or one of a worker that is slow."""
        loads = [len(each.process.asked) for each in self._workers]
        fair = len(this.process.asked) * len(loads) < sum(loads) + len(self._shared)
        if queue := this.items or (self._shared if fair else None):
            if queue[0].alone:
                return [] if busy else [queue.popleft()]
            count = self._size if queue is self._shared else 1
            return [queue.popleft() for _ in range(min(count, len(queue))) if not queue[0].alone]
        now = time.monotonic()
        for each in self._workers:
            for item in each.items if now - each.since > self._patience else ():
                if not (busy and item.alone) and (left := item.moved()) is not None:
                    each.items.remove(item)
                    each.items.append(left)
                    return [item]
        return []

    def _ask(self, this: Worker, items: Sequence[Item]) -> None:
        """Ask a worker for items, which it answers in order."""
        try:
            this.process.ensure()
            place = Place(this, this.process.starts)
            calls = [item.calls(place) for item in items]
            content = collections.deque(_Asked(item, len(each)) for item, each in zip(items, calls, strict=True))
            request = this.process.ask([call for each in calls for call in each], self._limits.timeout, content)
        except Exception as error:  # with the next items, starting a worker is tried again
            if this.process.asked and isinstance(error, process.WorkerError):
                raise
            known = isinstance(error, (process.WorkerError, ValueError))
            reason = f"no worker could be started: {error}" if known else traceback.format_exc()
            for item in items if self.open else ():
                item.put([process.Reply(None, "crashed", reason)])
            return
        _put(request.content)

    def _answered(self, this: Worker, request: process.Request, reply: process.Reply) -> None:
        """Hand an answer to its item; that to ``_NOTHING`` shows that the calls hang whose time is over."""
        if request.content:
            request.content[0].replies.append(reply)
            request.content[0].failure = None
            _put(request.content)
        elif any(first.failure for first, *_ in _asked(this)):
            self._end(this)

    def _watch(self, this: Worker) -> None:
        """End a worker if the time of a call is over; if there are others, see first whether it reacts."""
        asked, reacts, over = _asked(this), True, False
        for request in list(this.process.asked.values()):
            if late := request.late():
                request.deadline, over = math.inf, True
                if request.content:
                    request.content[0].failure = process.Reply(None, "timed_out", late)
                else:
                    reacts = False
        for first, *_ in () if reacts else asked:
            first.failure, first.item.alone = None, True
        if over and (len(asked) == 1 or not reacts):
            self._end(this)
        elif over and len(asked) == len(this.process.asked):
            this.process.ask([_NOTHING], _REACTION)

    def _died(self, this: Worker, error: str) -> None:
        """Note which items a worker that has ended was asked for."""
        requests = [request for request in this.process.asked.values() if request.content]
        for request in requests:
            first = request.content[0]
            first.item.deaths, first.item.alone = first.item.deaths + 1, len(requests) > 1
            if self.open and first.item.deaths >= _DEATHS:
                reason = request.calls[0].failed(f"{error}, and so did the one before")
                first.failure = process.Reply(None, "crashed", reason)
        self._end(this)

    def _end(self, this: Worker) -> None:
        """End a worker; items that have not failed are asked again."""
        asked, again = _asked(this), list[Item]()
        this.process.kill()
        this.process.asked.clear()
        for content in asked:
            if (first := content[0]).failure is not None:
                content.popleft()
                first.item.put([*first.replies, first.failure])
            again += [each.item for each in content]
        with self.changed:
            for item in reversed(again):
                self._queue(item).appendleft(item)
            self._ring(again)


def _asked(this: Worker) -> "list[collections.deque[_Asked]]":
    """Return the items of each request that a worker has not answered."""
    return [request.content for request in this.process.asked.values() if request.content]


def _put(content: "collections.deque[_Asked]") -> None:
    """Hand the answers to the items that have all."""
    while content and len(content[0].replies) == content[0].calls:
        each = content.popleft()
        each.item.put(each.replies)
