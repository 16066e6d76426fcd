"""Rows of a host world in the slots of the decoder: which row each slot plays, and what all have written so far."""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rljax import sampling, types
from rljax.environments.worlds.host import instances, records
from rljax.environments.worlds.host import task as host
from rljax.sampling import samples
from rljax.sampling import turns as sampling_turns
from rljax.training.producers import turns

_OF_TOKENS = ("token", "mask", "behaviour_logp", "raw_logp", "entropy", "square_prob")


@dataclasses.dataclass
class Episode:
    """An episode, as its world knows it."""

    number: int
    started: int  # updates before the step in which it began
    example: Any
    seeds: instances.Seeds
    digest: str  # of the problem and the turns so far
    begun: records.Begun = dataclasses.field(default_factory=records.Begun)
    turns: list[tuple[str, records.Answer]] = dataclasses.field(default_factory=list)
    seat: int = 0  # whose turn it is
    text: str = ""  # the turn that waits for an answer
    waits: bool = False
    over: bool = False
    known: bool = False  # whether the workers of this process know it
    error: str = ""  # why it does not count
    failure: types.Outcome = types.Outcome.CRASHED  # with an error

    @property
    def done(self) -> bool:
        """Whether the world ended it."""
        return not self.error and bool(self.turns) and self.turns[-1][1].done and not self.turns[-1][1].truncated


@dataclasses.dataclass
class Row:
    """The conversation of a seat: what it has read and written, and what its slot lacks."""

    episode: Episode
    seat: int
    unread: list[int] = dataclasses.field(default_factory=list)  # tokens that its slot lacks
    turn: list[int] = dataclasses.field(default_factory=list)  # the turn being written
    paid: list[float] = dataclasses.field(default_factory=list)  # for each turn that the seat has ended
    unearned: float = 0.0  # paid before the seat wrote
    used: int = 0  # completion positions
    opened: bool = True  # the seat may write behind its last token, which ends no turn
    stopped: bool = False  # whether that token ends a turn and is a stop token
    left: int = 0  # tokens that it may still add in this step
    cut: bool = False  # it goes on in the next step

    @property
    def over(self) -> bool:
        """Whether it neither writes nor waits in this step."""
        return self.cut or self.episode.over

    @property
    def writes(self) -> bool:
        """Whether it can write now."""
        return not (self.over or self.episode.waits) and self.episode.seat == self.seat

    @property
    def outcome(self) -> types.Outcome:
        """How the episode stands for the seat."""
        if self.episode.error:
            return self.episode.failure
        turns = self.episode.turns
        return types.Outcome[turns[-1][1].seats[self.seat].outcome.upper()] if turns else types.Outcome.WRONG

    def pay(self, reward: float, wrote: bool) -> None:
        """Note what a turn pays the seat, for its last turn, which may be this one."""
        if wrote:
            self.paid.append(reward)
        elif self.paid:
            self.paid[-1] += reward
        else:
            self.unearned += reward


class Table:
    """What a batch has written and read so far, on the host: the fields of ``sampling.Sample``."""

    def __init__(self, rows: int, length: int, pad: int):
        """Take B, T and the token id of padding."""
        blank = samples.empty(rows, length, None, pad, turns=True)
        self._arrays = {name: np.array(getattr(blank, name)) for name in (*_OF_TOKENS, "length", "turn", "finish")}

    def write(self, row: Row, i: int, out: sampling.Sample, slot: int) -> list[int]:
        """Add what a slot wrote to row ``i``; return its tokens."""
        count = int(out.length[slot])
        self._kept(out.kept)
        place = slice(row.used, row.used + count)
        for name in (*_OF_TOKENS, *(["kept"] if out.kept is not None else [])):
            self._arrays[name][i, place] = np.asarray(getattr(out, name))[slot, :count]
        self._advance(row, i, count)
        return np.asarray(out.token)[slot, :count].tolist()

    def restore(self, row: Row, i: int, pending: types.Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Put tokens of earlier steps into row ``i``; return them, which of them the policy wrote, and their turn."""
        given: Any = pending.action
        count = int(given.length[i])
        fields = {name: getattr(pending, name) for name in (*_OF_TOKENS[1:], "turn")} | {"token": given.token}
        self._kept(given.kept)
        for name, x in (fields | ({} if given.kept is None else {"kept": given.kept})).items():
            self._arrays[name][i, :count] = x[i, :count]
        row.used = self._arrays["length"][i] = count
        token, mask, turn = (self._arrays[name][i, :count] for name in ("token", "mask", "turn"))
        return token, mask > 0, turn

    def _kept(self, kept: Any) -> None:
        """Make room for the supports drawn from, if the sampler keeps them."""
        if kept is not None and "kept" not in self._arrays:
            shape = (*self._arrays["token"].shape, kept.shape[-1])
            self._arrays["kept"] = np.full(shape, sampling.EVERY_TOKEN, np.uint32)

    def read(self, row: Row, i: int, reply: Sequence[int]) -> None:
        """Add a reply to row ``i``, which has room for it."""
        self._arrays["token"][i, row.used : row.used + len(reply)] = reply
        self._advance(row, i, len(reply))

    def _advance(self, row: Row, i: int, count: int) -> None:
        self._arrays["turn"][i, row.used : row.used + count] = len(row.paid)
        row.used += count
        self._arrays["length"][i] = row.used

    @property
    def emitted(self) -> int:
        """Number of tokens that the policy wrote."""
        return int(self._arrays["mask"].sum())

    def sample(self) -> sampling.Sample:
        """Return the rows as NumPy arrays; ``finish`` says nothing."""
        record: Any = sampling.Sample  # its fields are annotated as jax arrays
        return record(**{"kept": None, **self._arrays}, steps=np.int32(0), slots=np.int32(0))


class Player:
    """The parameters of a player, and the slots in which they write."""

    def __init__(
        self, compiled: turns.Compiled, config: sampling.SamplerConfig, params: types.Tree, lanes: Sequence[int]
    ):
        """Begin without rows; ``lanes`` are the places of its slots among those of all players."""
        begin, self._turn = compiled.play(config, len(lanes))
        self.lanes, self._weights, self._slots = lanes, compiled.weights(params), begin()

    def write(self, asked: sampling_turns.Asked) -> sampling.Sample:
        """Read what the slots are given and write the next tokens of their turns."""
        self._slots, out = self._turn(self._weights, self._slots, asked)
        return out


class Lanes:
    """Which row each slot of the decoder plays. Slot s plays rows s, s + n, ... in order.

    The rows of an episode end together, and n is a multiple of its seats, so they are in slots at the same time.
    """

    def __init__(self, rows: Sequence[Row], compiled: turns.Compiled, task: host.HostWorld):
        """Take the rows, which have read nothing yet."""
        self._rows, self._task, self._width, count = rows, task, compiled.width, compiled.slots
        self._queues = [collections.deque(range(s, len(rows), count)) for s in range(count)]
        self._held: list[int | None] = [None] * count  # the row whose keys and values a slot has
        self._asked: dict[int, int] = {}  # rows that the last call was to write, by their place in it

    def of(self, rows: np.ndarray) -> list[int]:
        """Return the slots of rows ``[B]`` bool; which rows a player has repeats with the slots."""
        return np.flatnonzero(np.resize(rows, len(self._queues))).tolist()

    @property
    def ready(self) -> int:
        """Number of slots that can write."""
        return sum(self._rows[i].writes for i in self._playing().values())

    def _playing(self) -> dict[int, int]:
        """Return the row of each slot that has one which is not over."""
        for queue in self._queues:
            while queue and self._rows[queue[0]].over:
                queue.popleft()
        return {s: queue[0] for s, queue in enumerate(self._queues) if queue}

    def ask(self, keys: np.ndarray, slots: Sequence[int]) -> sampling_turns.Asked | None:
        """Return what slots of a player read and write in the next call; None if none can write.

        Args:
          keys: ``[B, 2]`` uint32, data of the rows' keys.
          slots: the n slots of the player.
        """
        playing = self._playing()
        rows = {n: playing[s] for n, s in enumerate(slots) if s in playing}
        self._asked = {n: i for n, i in rows.items() if self._rows[i].writes}
        if not self._asked:
            return None
        number = functools.partial(np.zeros, len(slots), np.int32)
        record: Any = sampling_turns.Asked
        token, key = np.zeros((len(slots), self._width), np.int32), np.zeros((len(slots), 2), np.uint32)
        size, fresh, turn, place, room = number(), number() > 0, number(), number(), number() + 1
        for s, i in self._asked.items():
            row, slot = self._rows[i], slots[s]
            size[s], place[s], key[s] = len(row.unread), row.used, keys[i]
            token[s, : size[s]] = row.unread
            fresh[s], turn[s], self._held[slot] = self._held[slot] != i, len(row.turn), i
            room[s] = min(self._task.turn_length - len(row.turn), self._task.completion_length - row.used, row.left)
        return record(token=token, size=size, fresh=fresh, turn=turn, place=place, room=room, key=key)

    def written(self, out: sampling.Sample, table: Table) -> Iterator[tuple[int, list[int]]]:
        """Note what the slots wrote; yield the rows whose turn has ended, and its tokens."""
        for s, i in self._asked.items():
            row = self._rows[i]
            ids = table.write(row, i, out, s)
            row.turn, row.unread, row.left = [*row.turn, *ids], ids[-1:], row.left - len(ids)
            full = len(row.turn) >= self._task.turn_length or row.used >= self._task.completion_length
            if out.finish[s] == types.Finish.STOP or full:
                turn, row.turn = row.turn, []
                yield i, turn
            else:
                row.cut = row.left < 1

    def read(self, replies: Mapping[int, list[int]], table: Table) -> None:
        """Give replies to the rows of an episode, which read at once; it is over when one of them is full."""
        room = {i: self._task.completion_length - self._rows[i].used for i in replies}
        most = min((room[i] for i, reply in replies.items() if len(reply) >= room[i]), default=None)
        for i, reply in replies.items():
            row, read = self._rows[i], reply[:most]
            table.read(row, i, read)
            row.unread, row.left = [*row.unread, *read], row.left - len(read)
            row.episode.over |= most is not None
            row.cut = row.left < 1 and most is None
