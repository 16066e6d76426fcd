"""The conversations of a batch with a host world: begun, played in the slots of the decoder, and judged."""

import hashlib
import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from rljax import environments, sampling, types
from rljax.data import tokenizers
from rljax.environments import worlds
from rljax.environments.workers import pool
from rljax.environments.worlds.host import episodes, records
from rljax.environments.worlds.host import task as host
from rljax.host import processes
from rljax.run import programs
from rljax.run.producers import lanes as lanes_lib
from rljax.run.producers import verified
from rljax.run.records import journals
from rljax.training import steps

_POLL = 0.2  # seconds between looks at a signal to stop
_PATIENCE = 1.0  # the most seconds that rows wait for others
_OPENING = -1  # in the journal, the number of what comes before turn 0


class Worlds(episodes.Episodes):
    """The worker processes of a host world; the rollouts of a run share them."""

    def __init__(self, setup: programs.Setup):
        """Take the world and ``config.verifier``; ``with`` starts the workers."""
        task: Any = setup.task
        super().__init__(task.make, setup.settings.verifier, interrupted=lambda: bool(processes.received()))
        self.waited = 0.0  # seconds of waiting for answers while the devices were idle
        self.slots = self.written = 0  # positions that were decoded, and how many of them are tokens of turns
        self.numbers = itertools.count()  # of episodes
        self.flying: dict[tuple[int, int], lanes_lib.Episode] = {}  # those that go on, by first step and place


class Conversations:
    """The conversations of a batch in progress. One thread plays them."""

    def __init__(
        self, compiled: steps.Step, tokenizer: tokenizers.Tokenizer, pool_of: Worlds, journal: journals.Journal
    ):
        """Store the functions, workers and journal that play the episodes.

        Args:
          compiled: the functions of the phase.
          tokenizer: the run's tokenizer.
          pool_of: the workers.
          journal: answers of earlier attempts.
        """
        task = compiled.setup.task
        assert worlds.on_host(task)
        self._task: host.HostWorld = task
        self._compiled, self._tokenizer, self._worlds, self._journal = compiled, tokenizer, pool_of, journal
        self._episodes: list[lanes_lib.Episode] = []
        self._rows: list[lanes_lib.Row] = []  # of each seat
        self._processes = jax.process_index(), jax.process_count()

    def begin(
        self,
        index: np.ndarray,
        split: environments.Split,
        seed: str,
        samples: int,
        started: np.ndarray,
        free: np.ndarray | None = None,
    ) -> types.Prompts:
        """Begin the episodes of problems, or go on with episodes of earlier steps.

        Args:
          index: ``[P]`` the problems; their rows are adjacent.
          split: of the problems.
          seed: of the run.
          samples: E / P, episodes of each problem.
          started: ``[E]``, the step in which each episode was started.
          free: ``[E]`` bool, the episodes that begin; the others go on. None: all begin.

        Returns:
          A prompt for each row. Episodes of a problem have the same ones; one whose world began otherwise, or not at
          all, does not count.
        """
        flying = {} if free is None else self._worlds.flying
        self._goes_on = np.zeros(len(started), bool) if free is None else ~free
        for i, problem in enumerate(np.repeat(index, samples).tolist()):
            episode = flying.pop((int(started[i]), i), None) if self._goes_on[i] else None
            if episode is None:
                example, whose = self._task.example(problem, split), f"{seed}/{started[i]}/{split}/{problem}"
                seeds = _number(whose), _number(f"{whose}/{i % samples}")
                digest = _digest(f"{split}/{problem}/{seeds}/{example!r}")
                number = next(self._worlds.numbers)
                episode = lanes_lib.Episode(number, int(started[i]), example, seeds, digest)
            self._episodes.append(episode)
        self._end(flying.values())  # of a step that was left
        flying.clear()
        self._rows = [lanes_lib.Row(e, seat) for e in self._episodes for seat in range(self._task.seats)]
        fresh: dict[int, int] = {}
        for i, episode in enumerate(self._episodes):
            if episode.begun.messages or episode.begun.error:
                continue
            opening = self._journal.replay(journals.TURNS, self._place(i, _OPENING), episode.digest)
            if opening is not None:
                episode.begun = records.Begun.from_json(opening)
            else:
                fresh[episode.number] = i
        ours = {number: self._episodes[i] for number, i in fresh.items() if self._plays(i)}
        begun = self._worlds.begin(
            {number: e.example for number, e in ours.items()}, {number: e.seeds for number, e in ours.items()}
        )
        for number, opening in (pair for part in processes.gather(dict(begun)) for pair in part.items()):
            episode = self._episodes[fresh[number]]
            episode.begun, episode.known = opening, number in ours
            self._journal.record(journals.TURNS, self._place(fresh[number], _OPENING), episode.digest, opening)
        return self._prompts(index, samples)

    def _place(self, i: int, turn: int) -> tuple[int, int, int]:
        """Return the place in the journal of what follows a turn of an episode."""
        return self._episodes[i].started + 1, i, turn

    def _plays(self, i: int) -> bool:
        """Return whether the workers of this process play episode ``i``."""
        process, count = self._processes
        return i % count == process

    def _prompts(self, index: np.ndarray, samples: int) -> types.Prompts:
        """Write the openings as prompts ``[B, L]``."""
        ids = []
        for first in range(0, len(self._episodes), samples):
            group, seats = self._episodes[first : first + samples], self._task.seats
            opening = next((e.begun for e in group if self._opening(e.begun)), None)
            for episode in group:
                if not episode.begun.valid:
                    self._fail(episode, episode.begun.error, episode.begun.outcome)
                elif len(episode.begun.seats) != seats:
                    self._fail(episode, f"reset begins with {len(episode.begun.seats)} seats; expected {seats}")
                elif opening is None:
                    self._fail(episode, f"the opening has more than prompt_length={self._task.prompt_length} tokens")
                elif episode.begun != opening:
                    self._fail(episode, "another sample of the problem has another opening: reset is not deterministic")
            shown = [[self._tokenizer.eos]] * seats if opening is None else self._opening(opening)
            ids += shown * samples
        for row, prompt in zip(self._rows, ids, strict=True):
            row.unread = [*prompt]
        token, mask = tokenizers.padded(ids, self._task.prompt_length, self._tokenizer.pad, left=True)
        record: Any = types.Prompts  # its fields are annotated as jax arrays
        return record(token=token, mask=mask.astype(np.float32), index=np.repeat(index, samples * self._task.seats))

    def _opening(self, begun: records.Begun) -> list[list[int]]:
        """Return the prompt of each seat; [] if one has none."""
        ids = [self._task.opening(each) or [] for each in begun.seats]
        return ids if all(ids) and len(ids) == self._task.seats else []

    def play(
        self,
        params: Sequence[types.Tree],
        player: np.ndarray,
        keys: np.ndarray,
        config: sampling.SamplerConfig,
        pending: types.Rollout | None = None,
        most: int = 0,
    ) -> sampling.Sample:
        """Play all episodes to their end, or for so many tokens of each; return what was written and answered.

        Args:
          params: of each player.
          player: ``[B]`` int, who plays each row.
          keys: ``[B, 2]`` uint32, data of the rows' keys.
          config: how tokens are drawn.
          pending: the rows so far, as NumPy arrays, of which some go on; None: all begin.
          most: after so many more tokens a row goes on in the next step; a reply is read whole. 0: it does not.
        """
        table = lanes_lib.Table(len(self._rows), self._task.completion_length, self._tokenizer.pad)
        for i, row in enumerate(self._rows):
            row.left = most or self._task.completion_length
            if pending is not None and self._goes_on[i]:
                self._go_on(i, table, pending)
        compiled, patience = self._compiled.turns, _PATIENCE
        lanes = lanes_lib.Lanes(self._rows, compiled, self._task)
        slots = [lanes.of(player == n) for n in range(len(params))]
        players = [lanes_lib.Player(compiled, config, *each) for each in zip(params, slots, strict=True) if each[1]]
        before = table.emitted
        while not all(row.over for row in self._rows):
            answered = []
            for each in players:
                if (asked := lanes.ask(keys, each.lanes)) is None:
                    continue
                start = time.perf_counter()
                out = processes.fetch(each.write(asked))
                patience = min(patience, time.perf_counter() - start)
                self._worlds.slots += int(out.slots)
                ended = [self._ended(row, ids) for row, ids in lanes.written(out, table)]
                answered += [(i, answer) for i, answer in ended if answer is not None]
            waiting, ready = sum(e.waits for e in self._episodes) - len(answered), lanes.ready + len(answered)
            share = waiting / max(ready + waiting, 1)  # few rows are not worth waiting for
            for i, answer in itertools.chain(answered, self._answers(ready > 0, patience * share)):
                lanes.read(self._answered(i, answer), table)
        self._worlds.written += table.emitted - before
        self._end(row.episode for row in self._rows if not row.cut)
        if most:
            self._worlds.flying = {(e.started, i): e for i, e in enumerate(self._episodes)}
        return table.sample()

    def _end(self, episodes: Iterable[lanes_lib.Episode]) -> None:
        """Let the workers forget episodes."""
        for episode in episodes:
            if episode.known:
                self._worlds.end([episode.number])
                episode.known = False

    def _go_on(self, i: int, table: lanes_lib.Table, pending: types.Rollout) -> None:
        """Put a row of earlier steps into the table; the journal has what its world said, if its episode does not."""
        row, episode = self._rows[i], self._episodes[i]  # of one seat
        ids, mine, turn = table.restore(row, i, pending)
        goes_on = pending.finish[i] == types.Finish.UNFINISHED
        for number in range(len(episode.turns), int(turn[-1]) + 1 if len(turn) else 0):
            written = ids[mine & (turn == number)].tolist()
            if not written or (goes_on and number == turn[-1] and not self._complete(written)):
                row.turn = written  # nothing after a reply, or a part of a turn
                break
            text = self._tokenizer.decode(written)
            episode.digest = _digest(episode.digest + text)
            said = self._journal.replay(journals.TURNS, self._place(i, number), episode.digest)
            if said is None:
                self._fail(episode, "what its world said in earlier steps is not in the journal")
                break
            episode.turns.append((text, records.Answer.from_json(said)))
        row.paid = [answer.reward for _, answer in episode.turns]
        row.unread += ids.tolist()
        episode.over |= not goes_on  # and another row of its group has not ended
        if not (goes_on or pending.valid[i]):
            outcome = types.Outcome(int(pending.outcome[i])).name.lower()
            self._fail(episode, episode.error or "in an earlier step", outcome)

    def _complete(self, turn: list[int]) -> bool:
        """Return whether the tokens of a turn end it."""
        ends = self._compiled.setup.ends
        if turn[-1] in ends.stop or len(turn) >= self._task.turn_length:
            return True
        if ends.strings is None:
            return False
        return bool(ends.strings.matched(ends.strings.read(np.array([turn], np.int32), np.array([len(turn)]))))

    def _ended(self, row: int, ids: list[int]) -> tuple[int, records.Answer | None]:
        """Hand the turn of a row to the world; return its episode, and the answer if it is in the journal."""
        i, writer = row // self._task.seats, self._rows[row]
        episode, turn = writer.episode, len(writer.episode.turns)
        writer.opened, writer.stopped = False, ids[-1] in self._tokenizer.stop
        episode.text, episode.waits = self._tokenizer.decode(ids), True
        episode.digest = _digest(episode.digest + episode.text)
        said = self._journal.replay(journals.TURNS, self._place(i, turn), episode.digest)
        if said is not None:
            return i, records.Answer.from_json(said)
        if self._plays(i):
            if not episode.known:
                self._worlds.resume(episode.number, episode.example, episode.begun, episode.turns, episode.seeds)
                episode.known = True
            self._worlds.submit(episode.number, turn, episode.text)
        return i, None

    def _answers(self, others: bool, patience: float) -> Iterable[tuple[int, records.Answer]]:
        """Yield episodes and answers that arrive within ``patience`` seconds, at least one if none else can go on.

        Args:
          others: whether other rows can go on.
          patience: seconds.

        Raises:
          pool.Interrupted: a process was asked to stop.
        """
        start = time.perf_counter()
        while any(episode.waits for episode in self._episodes):
            arrived, stopped = self._arrived(others, patience)
            every = processes.gather((arrived, stopped))
            if any(stopped for _, stopped in every):
                raise pool.Interrupted("stopped while waiting for the world.")
            for i, answer in sorted((pair for part, _ in every for pair in part), key=lambda pair: pair[0]):
                episode = self._episodes[i]
                self._journal.record(journals.TURNS, self._place(i, len(episode.turns)), episode.digest, answer)
                yield i, answer
                others = True
            if others:
                break
        self._worlds.waited += time.perf_counter() - start

    def _arrived(self, others: bool, patience: float) -> tuple[list[tuple[int, records.Answer]], bool]:
        """Return the answers to episodes of this process that arrive, and whether it was asked to stop.

        Without ``others`` it waits for one, but not longer than ``_POLL``, since other processes may have some.
        """
        of = {e.number: i for i, e in enumerate(self._episodes) if e.waits and self._plays(i)}
        arrived: list[tuple[int, records.Answer]] = []
        limit = time.perf_counter() + (patience if others else _POLL)
        while of and time.perf_counter() < limit and not processes.received():
            wait = max(min(_POLL, limit - time.perf_counter()), 0.0)
            for (number, _), answer in self._worlds.ready(wait).items():
                if number in of:  # not of a rollout that was interrupted
                    arrived.append((of.pop(number), answer))
                    if not others:
                        limit, others = time.perf_counter() + patience, True
        return arrived, bool(processes.received())

    def _answered(self, i: int, answer: records.Answer) -> dict[int, list[int]]:
        """Note an answer; return the ids that each row of the episode reads, {} if it is over."""
        episode, seats = self._episodes[i], self._task.seats
        rows = {row: self._rows[row] for row in range(i * seats, (i + 1) * seats)}
        episode.waits = False
        episode.turns.append((episode.text, answer))
        if not answer.valid:
            self._fail(episode, answer.error, answer.outcome)
            return {}
        if unknown := set(answer.parts) - set(self._task.parts):
            known = ", ".join(self._task.parts) or "nothing"
            raise ValueError(f"world {self._task.name!r} reports part {unknown.pop()!r}; its `parts` names {known}")
        for row in rows.values():
            row.pay(answer.seats[row.seat].reward, row.seat == episode.seat)
        if answer.over or len(episode.turns) >= self._task.max_turns:
            episode.over = True
            return {}
        episode.seat = (episode.seat + 1) % seats if answer.next_seat is None else answer.next_seat
        given = {i: self._reply(row, answer.seats[row.seat]) for i, row in rows.items()}
        replies = {i: reply for i, reply in given.items() if reply is not None}
        if len(replies) < seats:
            self._fail(episode, f"the answer to turn {len(episode.turns) - 1} has more than reply_length tokens")
            return {}
        return replies

    def _reply(self, row: lanes_lib.Row, answer: records.Answer) -> list[int] | None:
        """Return the ids that a row reads; none if its seat reads nothing, unless they open its next turn."""
        if not answer.messages and (row.opened or row.seat != row.episode.seat):
            return []
        stopped, row.opened, row.stopped = row.stopped, True, False
        return self._task.reply(answer, stopped)

    def _fail(self, episode: lanes_lib.Episode, error: str, outcome: str = "crashed") -> None:
        episode.error, episode.failure, episode.over = error or outcome, types.Outcome[outcome.upper()], True

    def judged(self) -> dict[str, Any]:
        """Return what the world said of the rows, as NumPy arrays; see ``play.of_host``."""
        count = len(self._rows)
        paid, unearned = np.zeros((count, self._task.max_turns), np.float32), np.zeros(count, np.float32)
        parts = {name: np.zeros(count, np.float32) for name in self._task.parts}
        for i, row in enumerate(self._rows):
            if not row.episode.error and row.episode.turns:
                paid[i, : len(row.paid)], unearned[i] = row.paid, row.unearned
                for name, value in row.episode.turns[-1][1].seats[row.seat].parts.items():
                    parts[name][i] = value
        ends = [
            types.Finish.UNFINISHED if row.cut else types.Finish.STOP if row.episode.done else types.Finish.LENGTH
            for row in self._rows
        ]
        outcome = [types.Outcome.UNJUDGED if row.cut else row.outcome for row in self._rows]
        return {
            "paid": paid,
            "unearned": unearned,
            "parts": parts,
            "outcome": np.array(outcome, np.int32),
            "valid": np.array([not row.episode.error for row in self._rows], np.float32),
            "finish": np.array(ends, np.int32),
        }

    def warn(self, where: str) -> None:
        """Warn of rows that do not count; VerifierError if the world crashed on all of them."""
        outcome = np.array([row.outcome for row in self._rows])
        crashed = (row.episode.error for row in self._rows if row.outcome == types.Outcome.CRASHED)
        verified.warn(outcome, crashed, where, "world")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])
