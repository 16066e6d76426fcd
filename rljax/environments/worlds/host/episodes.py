"""Episodes of host worlds in worker processes, with a time limit for each turn.

An episode stays with the worker that began it, since its instance lives there. If that worker is killed, or has been
busy with another episode's turn for a while, the episode is built again in a free worker: by ``reset`` and its turns
so far, which must give the same answers. So a slow episode holds up no other, and a killed worker costs none.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import judging
from rljax.environments.workers import pool, process
from rljax.environments.worlds.host import instances, records

_LIMITS = VerifierConfig()
_POLL = 0.2  # seconds between calls of ``interrupted``


@dataclasses.dataclass
class Episode:
    """What is known of an episode."""

    number: int
    example: Any
    seeds: instances.Seeds
    begun: records.Begun | None = None
    turns: list[tuple[str, records.Answer]] = dataclasses.field(default_factory=list)  # texts, and their answers
    waiting: bool = False  # a turn has been submitted and not been answered
    place: pool.Place | None = None  # where its instance is

    def over(self) -> bool:
        """Return whether no turn may follow."""
        return self.begun is None or not self.begun.valid or bool(self.turns and self.turns[-1][1].over)

    def begin(self) -> process.Call:
        """Return the call that makes an instance."""
        return instances.call("begin", self.number, self.example, self.seeds)


class Episodes:
    """Play episodes of a host world; a context manager. Its methods are called by one thread.

    Every turn gets an answer. A turn whose ``step`` raises, returns no ``Observation`` of text and finite numbers, or
    ends its worker twice is a failure with outcome "crashed"; one that runs longer than ``timeout`` seconds is one with
    outcome "timed_out". After a failure the episode is over.
    """

    def __init__(
        self, make: instances.Make, limits: VerifierConfig = _LIMITS, interrupted: Callable[[], bool] = lambda: False
    ):
        """Take the class; ``with`` starts the workers.

        Args:
          make: returns an instance; worker processes import it: a class, or a ``functools.partial`` of one.
          limits: workers, their time for ``reset`` or a ``step`` and their memory, and the threshold, of the sum of
            rewards, of a correct episode; with 0 workers, turns are played in this process when submitted, with no
            limit, for debugging.
          interrupted: returns whether the process was asked to stop; then ``begin`` raises.

        Raises:
          ValueError: a worker cannot import the class.
        """
        played = instances.Instances(make, limits.workers > 0 and limits.concurrency > 1)
        self._pool = pool.Pool(played, "world", limits)
        self._interrupted, self._threshold = interrupted, limits.threshold
        self._changed = self._pool.changed  # its lock guards the episodes
        self._episodes: dict[int, Episode] = {}
        self._answers: dict[tuple[int, int], records.Answer] = {}

    def __enter__(self) -> Self:
        """Start the workers and wait until each has imported the class.

        Raises:
          ValueError: the class cannot be imported in a worker.
          pool.VerifierError: workers end while they start.
        """
        self._episodes, self._answers = {}, {}
        self._pool.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers at once."""
        self._pool.stop()

    def begin(
        self, examples: Mapping[int, Any], seeds: Mapping[int, instances.Seeds] | None = None
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
            self._episodes |= {episode.number: episode for episode in episodes}
            self._pool.put([_Begin(self, episode) for episode in episodes])
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
        turns: Sequence[tuple[str, records.Answer]],
        seeds: instances.Seeds = (0, 0),
    ) -> None:
        """Continue an episode of an earlier process from its record; it is built again when its next turn comes.

        Args:
          number: of the episode.
          example: as in ``begin``.
          begun: its opening.
          turns: each turn's text, and its answer.
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
            self._pool.put([_Step(self, state, text=text)])

    def ready(self, wait: float) -> dict[tuple[int, int], records.Answer]:
        """Return the answers that have arrived since the last call, by episode and turn.

        Args:
          wait: the most seconds to wait for the first; {} is returned if none arrives, or if no turn waits.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._answers or not self._unanswered() or not self._pool.open, wait)
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
                if episode.place is not None:
                    self._pool.put([_End(self, episode)])

    def _unanswered(self) -> int:
        return sum(episode.waiting for episode in self._episodes.values())

    def _new(self, number: int, example: Any, seeds: instances.Seeds) -> Episode:
        self._check_open()
        if number in self._episodes:
            raise ValueError(f"episode {number} has begun before")
        return Episode(number, example, seeds)

    def _check_open(self) -> None:
        if not self._pool.open:
            raise RuntimeError("play episodes inside `with Episodes(...) as episodes:`")

    def opened(self, episode: Episode, begun: records.Begun) -> None:
        """Note the opening of an episode, or its failure."""
        with self._changed:
            episode.begun = begun
            self._changed.notify_all()

    def answered(self, episode: Episode, text: str, answer: records.Answer) -> None:
        """Note the answer to a turn, or its failure."""
        with self._changed:
            if episode.waiting:
                episode.turns.append((text, answer))
                episode.waiting = False
                self._answers[episode.number, len(episode.turns) - 1] = answer
                self._changed.notify_all()

    def judged(
        self, episode: Episode, before: Sequence[tuple[str, records.Answer]], reply: process.Reply
    ) -> records.Answer:
        """Return the answer after turns, with the outcome that the world gave, or that follows from the rewards."""
        answer = records.Answer.failed(reply.outcome, reply.error) if reply.outcome else reply.value
        if not answer.valid:
            return answer
        if episode.begun is None or len(answer.others) != len(episode.begun.others):
            return records.Answer.failed(
                "crashed", f"step answered {len(answer.seats)} seats; reset had another number"
            )
        seats = []
        for seat, each in enumerate(answer.seats):
            total = sum(earlier.seats[seat].reward for _, earlier in before) + each.reward
            outcome = judging.judged(total, each.outcome, self._threshold)
            seats.append(dataclasses.replace(each, outcome=outcome.name.lower()))
        return dataclasses.replace(seats[0], others=tuple(seats[1:]))


@dataclasses.dataclass(eq=False)
class _Item(pool.Item):
    """What a worker is asked for an episode."""

    game: Episodes
    episode: Episode

    @property
    def home(self) -> pool.Worker | None:
        return None if self.episode.place is None else self.episode.place.worker


class _Begin(_Item):
    """The opening of an episode."""

    def calls(self, place: pool.Place) -> Sequence[process.Call]:
        self.episode.place = place
        return [self.episode.begin()]

    def put(self, replies: Sequence[process.Reply]) -> None:
        (reply,) = replies
        self.game.opened(
            self.episode, records.Begun.failed(reply.outcome, reply.error) if reply.outcome else reply.value
        )


@dataclasses.dataclass(eq=False)
class _Step(_Item):
    """A turn. In another process than before, the episode is built again first."""

    text: str = ""

    def calls(self, place: pool.Place) -> Sequence[process.Call]:
        episode, known = self.episode, self.episode.place == place
        episode.place = place
        texts = [*(() if known else (text for text, _ in episode.turns)), self.text]
        first = len(episode.turns) + 1 - len(texts)
        steps = [instances.call("step", episode.number, n, text) for n, text in enumerate(texts, first)]
        return steps if known else [episode.begin(), *steps]

    def put(self, replies: Sequence[process.Reply]) -> None:
        *again, reply = replies
        turns = self.episode.turns
        answer = (self._changed(again[0], again[1:]) if again else None) or self.game.judged(self.episode, turns, reply)
        self.game.answered(self.episode, self.text, answer)

    def _changed(self, begun: process.Reply, replies: Sequence[process.Reply]) -> records.Answer | None:
        """Return a failure if the episode was not built as it was before, else None."""
        reason, turns = "in another process the world gave another answer to the same turns", self.episode.turns
        if begun.error or begun.value != self.episode.begun:
            return records.Answer.failed("crashed", f"{begun.error or 'reset'}: {reason}")
        for number, ((_, before), reply) in enumerate(zip(turns, replies, strict=False)):  # fewer after a failure
            answer = self.game.judged(self.episode, turns[:number], reply)
            if answer != before:
                return records.Answer.failed("crashed", f"{answer.error or f'turn {number}'}: {reason}")
        return None

    def moved(self) -> pool.Item:
        return _End(self.game, dataclasses.replace(self.episode))  # of the instance that stays there


class _End(_Item):
    """The end of an episode's instance."""

    def calls(self, place: pool.Place) -> Sequence[process.Call]:
        return [instances.call("end", self.episode.number)] if self.episode.place == place else []

    def put(self, replies: Sequence[process.Reply]) -> None:
        pass
