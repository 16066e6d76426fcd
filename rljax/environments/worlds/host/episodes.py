"""Episodes of host worlds in worker processes, with a time limit for each turn.

An episode stays with the worker that began it, since its instance lives there. If that worker is killed, or has been
busy with another episode's turn for a while, the episode is built again in a free worker: by ``reset`` and its turns
so far, which must give the same answers. So a slow episode holds up no other, and a killed worker costs none.
"""

import collections
import dataclasses
import functools
import math
import queue
import threading
import time
import traceback
import types as python_types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from rljax.environments.verifiers import pool, process
from rljax.environments.worlds.host import instances, records, worker

_POLL = 0.2  # seconds between calls of ``interrupted``, and between looks at busy workers
_PATIENCE = 1.0  # the most seconds that a turn waits for its worker while another one is free


class Episodes:
    """Play episodes of a host world; a context manager. Its methods are called by one thread.

    Every turn gets an answer. A turn whose ``step`` raises, returns no ``Observation`` of text and finite numbers, or
    ends its worker twice is a failure with outcome "crashed"; one that runs longer than ``timeout`` seconds is one with
    outcome "timed_out". After a failure the episode is over.
    """

    def __init__(
        self,
        make: worker.Make,
        workers: int = 2,
        timeout: float = 5.0,
        memory: float = 0.0,
        interrupted: Callable[[], bool] = lambda: False,
        threshold: float = 0.0,
    ):
        """Check the arguments; ``with`` starts the workers.

        Args:
          make: returns an instance; worker processes import it: a class, or a ``functools.partial`` of one.
          workers: processes; 0 plays in this process when a turn is submitted, with no time limit, for debugging.
          timeout: seconds that ``reset`` or a ``step`` may take.
          memory: most GiB of address space of a worker; 0: no limit.
          interrupted: returns whether the process was asked to stop; then ``begin`` raises.
          threshold: smallest sum of rewards of a correct episode, where the world gives no outcome; 0: a sum of
            exactly 1 is correct, one of 0 or less is wrong, any other is "unjudged".

        Raises:
          ValueError: an argument is out of range, or a worker cannot import the class.
        """
        if workers < 0:
            raise ValueError(f"workers={workers}: must be 0 (play in this process) or more")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout={timeout}: must be a finite number of seconds above 0")
        if not (math.isfinite(memory) and memory >= 0):
            raise ValueError(f"memory={memory}: must be a finite number of GiB, or 0 (no limit)")
        self._count, self._timeout, self._memory = workers, timeout, int(memory * 2**30)
        self._interrupted, self._threshold = interrupted, threshold
        self._payload = pool.pickled(make, "world") if workers else b""
        self._here = worker.Instances(make)
        self._patience = min(_PATIENCE, timeout / 8)
        self._episodes: dict[int, instances.Episode] = {}
        self._answers: dict[tuple[int, int], records.Told] = {}
        self._shared: collections.deque[instances.Item] = collections.deque()  # what any worker may do
        self._workers: list[instances.Worker] = []
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._open = False

    def __enter__(self) -> Self:
        """Start the workers and wait until each has imported the class.

        Raises:
          ValueError: the class cannot be imported in a worker.
          pool.VerifierError: workers end while they start.
        """
        started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        make = functools.partial(process.Process, self._payload, self._memory, worker.serve, "class of the world")
        self._workers = [instances.Worker(make(), self._timeout, self._judged) for _ in range(self._count)]
        self._episodes, self._answers, self._shared, self._open = {}, {}, collections.deque(), True
        try:
            for each in self._workers:
                thread = threading.Thread(target=self._serve, args=(each, started), name="rljax-world", daemon=True)
                thread.start()
                self._threads.append(thread)
            pool.await_start(started, len(self._workers), "world")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: python_types.TracebackType | None,
    ) -> None:
        """End the workers at once."""
        self._stop()

    def begin(
        self, examples: Mapping[int, Any], seeds: Mapping[int, worker.Seeds] | None = None
    ) -> dict[int, records.Begun]:
        """Begin episodes and wait until each has begun.

        Args:
          examples: the example by number of the episode; numbers of earlier episodes are not used again.
          seeds: for each, numbers that seed the modules random and numpy.random: of the problem, for ``reset``, and of
            the episode, for ``step``; None: 0 and 0.

        Returns:
          The opening of each, or its failure.

        Raises:
          ValueError: an episode has begun before.
          RuntimeError: outside the ``with`` block.
          pool.Interrupted: the process was asked to stop.
        """
        episodes = [
            self._new(number, example, (seeds or {}).get(number, (0, 0))) for number, example in examples.items()
        ]
        with self._changed:
            for episode in episodes:
                self._episodes[episode.number] = episode
                self._put(instances.Item("begin", episode))
            while any(episode.begun is None for episode in episodes):
                self._changed.wait(_POLL)
                if self._interrupted():
                    raise pool.Interrupted("stopped while waiting for worlds to begin.")
            return {episode.number: episode.begun or records.Begun() for episode in episodes}

    def resume(
        self,
        number: int,
        example: Any,
        begun: records.Begun,
        turns: Sequence[tuple[str, records.Told]],
        seeds: worker.Seeds = (0, 0),
    ) -> None:
        """Continue an episode of an earlier process from its record; it is built again when its next turn comes.

        Args:
          number: of the episode.
          example: as in ``begin``.
          begun: its opening.
          turns: each turn's text, and what was told.
          seeds: as in ``begin``.

        Raises:
          ValueError: the episode has begun before.
          RuntimeError: outside the ``with`` block.
        """
        episode = self._new(number, example, seeds)
        episode.begun, episode.turns = begun, list(turns)
        with self._changed:
            self._episodes[number] = episode

    def submit(self, episode: int, number: int, text: str) -> None:
        """Hand a turn to the world; ``ready`` returns what it says.

        Args:
          episode: its number.
          number: of the turn in the episode, from 0.
          text: the turn, without special tokens.

        Raises:
          ValueError: the episode has not begun or is over, or its next turn has another number.
          RuntimeError: outside the ``with`` block.
        """
        self._check_open()
        with self._changed:
            state = self._episodes.get(episode)
            if state is None or state.over():
                raise ValueError(f"episode {episode} {'has not begun' if state is None else 'is over'}")
            if state.waiting or number != len(state.turns):
                more = ", which waits for an answer" if state.waiting else ""
                raise ValueError(f"turn {number} of episode {episode}: the next one is {len(state.turns)}{more}")
            state.waiting = True
            self._put(instances.Item("step", state, text))

    def ready(self, wait: float) -> dict[tuple[int, int], records.Told]:
        """Return the answers that have arrived since the last call, by episode and turn.

        Args:
          wait: the most seconds to wait for the first; {} is returned if none arrives, or if no turn waits.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._answers or not self._unanswered() or not self._open, wait)
            answers, self._answers = self._answers, {}
        return answers

    @property
    def waiting(self) -> int:
        """Number of turns whose answer ``ready`` has not returned."""
        return self._unanswered() + len(self._answers)

    def end(self, episodes: Iterable[int]) -> None:
        """Forget episodes that no turn follows, and their instances. Unknown ones, and those that wait, are an error.

        Raises:
          ValueError: an episode has not begun, or waits for an answer.
        """
        with self._changed:
            for number in list(episodes):
                episode = self._episodes.get(number)
                if episode is None or episode.waiting:
                    raise ValueError(
                        f"episode {number} {'has not begun' if episode is None else 'waits for an answer'}"
                    )
                del self._episodes[number]
                if episode.home is not None or not self._count:
                    self._put(instances.Item("end", episode))

    def _unanswered(self) -> int:
        return sum(episode.waiting for episode in self._episodes.values())

    def _new(self, number: int, example: Any, seeds: worker.Seeds) -> instances.Episode:
        self._check_open()
        if number in self._episodes:
            raise ValueError(f"episode {number} has begun before")
        return instances.Episode(number, example, seeds)

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("play episodes inside `with Episodes(...) as episodes:`")

    def _put(self, item: instances.Item) -> None:
        """Hand an item to the worker of its episode, or to any; the lock is held."""
        if not self._count:
            self._store(item, self._answer_here(item))
            return
        home = item.episode.home
        (self._shared if home is None else home.items).append(item)
        self._changed.notify_all()

    def _answer_here(self, item: instances.Item) -> Any:
        episode = item.episode
        if item.kind == "begin":
            return self._here.begin(episode.number, episode.example, episode.seeds)
        if item.kind == "end":
            return self._here.end(episode.number)
        if episode.number not in self._here:
            call = lambda method, *arguments: getattr(self._here, method)(*arguments)  # noqa: E731
            if (failure := instances.rebuild(episode, call, self._judged)) is not None:
                return failure
        return self._here.step(episode.number, len(episode.turns), item.text)

    def _serve(self, this: instances.Worker, started: "queue.SimpleQueue[Exception | None]") -> None:
        """Feed one worker until the pool closes; each worker has a thread that runs this."""
        try:
            this.process.ensure()
            started.put(None)
        except Exception as error:
            started.put(error)
            return
        while (item := self._take(this)) is not None:
            try:
                answer = this.run(item)
            except Exception as error:  # with the next item, starting a worker is tried again
                known = isinstance(error, (process.WorkerError, ValueError))
                reason = f"no worker could be started: {error}" if known else traceback.format_exc()
                answer = instances.failure(item, "crashed", reason)
            with self._changed:
                this.since = math.inf
                self._store(item, answer)

    def _take(self, this: instances.Worker) -> instances.Item | None:
        """Wait for the next item of a worker, and make it the home of its episode; None: the pool is closed."""
        with self._changed:
            while self._open:
                item = self._next(this)
                if item is not None:
                    this.since = time.monotonic()
                    item.episode.home = this
                    return item
                behind = any(each.items for each in self._workers if each is not this)
                self._changed.wait(min(_POLL, self._patience) if behind else None)
            return None

    def _next(self, this: instances.Worker) -> instances.Item | None:
        """Return the next item of a worker: its own, one of no worker, or one that waits for a worker that is slow."""
        for items in (this.items, self._shared):
            if items:
                return items.popleft()
        now = time.monotonic()
        for each in self._workers:
            if now - each.since > self._patience:
                item = next((item for item in each.items if item.kind == "step"), None)
                if item is not None:
                    each.items.remove(item)
                    each.items.append(
                        instances.Item("end", dataclasses.replace(item.episode))
                    )  # the instance that stays there
                    return item
        return None

    def _store(self, item: instances.Item, answer: Any) -> None:
        """Note an answer, with the outcome of the episode so far; the lock is held."""
        episode = item.episode
        if item.kind == "begin":
            episode.begun = answer
        elif item.kind == "step":
            answer = self._judged(episode.turns, answer)
            episode.turns.append((item.text, answer))
            episode.waiting = False
            self._answers[episode.number, len(episode.turns) - 1] = answer
        self._changed.notify_all()

    def _judged(self, turns: Sequence[tuple[str, records.Told]], reply: records.Told) -> records.Told:
        """Return the reply after turns with the outcome that the world gave, or that follows from the rewards."""
        if not reply.valid:
            return reply
        total = sum(before.reward for _, before in turns) + reply.reward
        return dataclasses.replace(reply, outcome=pool.judged(total, reply.outcome, self._threshold).name.lower())

    def _stop(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()
        for each in self._workers:
            each.process.close()
        for thread in self._threads:
            thread.join()
        for each in self._workers:
            each.process.kill()
        self._workers, self._threads = [], []
