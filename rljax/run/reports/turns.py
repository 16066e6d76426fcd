"""Conversations in the records of rollouts: which tokens a player wrote, in which turn, and what the turn was paid.

A record of a world's row has, beside what ``records`` writes for every row,

    episode, seat   ids of ``Rollout.episode`` and ``Rollout.agent``, where the rows have them
    total           the row's reward and all its token rewards
    valid           False where the world failed and the episode does not count
    turns           the messages in order, each with "by", "turn", "start" and "text", see ``described``

and under "tokens" also the lists "mask", "turn" and, where the world pays tokens, "token_reward". Other lists have None
where the policy did not write the token.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # what shows records does not import JAX
    from rljax import types

Record = dict[str, Any]


class Message(NamedTuple):
    """Adjacent tokens of one turn that were all written by a player, or all told by the world."""

    start: int  # position in the row
    stop: int
    own: bool  # whether the row's seat wrote them
    turn: int


def of_world(task: Any, rows: types.Rollout) -> bool:
    """Return whether rows are conversations or chapters, not answers to a task of one turn."""
    return getattr(task, "max_turns", 0) > 0 or (rows.turn is not None and bool(np.max(rows.turn) > 0))


def used(rows: types.Rollout) -> np.ndarray:
    """Return the positions in use of each row, replies included, ``[B]`` int."""
    assert rows.action is not None
    if rows.action.length is not None:
        return np.asarray(rows.action.length).astype(int)
    mask = np.asarray(rows.mask) > 0
    return np.where(mask.any(axis=1), mask.shape[1] - mask[:, ::-1].argmax(axis=1), 0)


def written(rows: types.Rollout) -> np.ndarray:
    """Return which tokens the seat of a row wrote, ``[B, T]`` bool.

    extra["written"] says so. Without it: the tokens with a mask. Of rows without a mask, because another player wrote
    them or because they do not count yet, the tokens that were sampled: ``behaviour_logp`` is not 0.
    """
    if "written" in rows.extra:
        return np.asarray(rows.extra["written"]) > 0
    mask = np.asarray(rows.mask) > 0
    if rows.behaviour_logp is None:
        return mask
    return np.where(mask.any(axis=1, keepdims=True), mask, np.asarray(rows.behaviour_logp) != 0)


def messages(by_seat: np.ndarray, turn: np.ndarray) -> Iterator[Message]:
    """Yield the messages of a row.

    Args:
      by_seat: ``[n]`` bool, whether the seat wrote the token; n positions in use.
      turn: ``[n]`` int, the turns that the seat had ended before the token.
    """
    change = (by_seat[1:] != by_seat[:-1]) | (turn[1:] != turn[:-1])
    ends = [0, *(np.flatnonzero(change) + 1).tolist(), by_seat.size] if by_seat.size else []
    for start, stop in itertools.pairwise(ends):
        yield Message(start, stop, bool(by_seat[start]), int(turn[start]))


def described(rows: types.Rollout, i: int, names: Sequence[str], decode: Callable[[list[int]], str]) -> Record:
    """Return what the record of a row has because the row is of a world; "tokens" holds all positions in use.

    A message has "by": "policy", "player" for a seat that the policy does not play, or "world"; "turn", as
    ``Rollout.turn``; "start", its first position; "text"; and if a seat wrote it "reward", the sum of its token
    rewards, "advantage", the mean over its tokens, and the numbers of ``names``.

    Args:
      rows: a ``Rollout`` of NumPy arrays.
      i: the row.
      names: fields of ``Rollout.extra``, ``[B, T]``, that the world writes on the tokens of a turn.
      decode: returns the text of tokens.
    """
    assert rows.action is not None
    n = int(used(rows)[i])
    token, mask = np.asarray(rows.action.token[i])[:n], np.asarray(rows.mask[i])[:n] > 0
    by_seat = written(rows)[i][:n]
    turn = np.zeros(n, int) if rows.turn is None else np.asarray(rows.turn[i])[:n].astype(int)
    paid = None if rows.token_reward is None else np.asarray(rows.token_reward[i], float)[:n] * by_seat
    said = []
    for message in messages(by_seat, turn):
        span = slice(message.start, message.stop)
        by = "world" if not message.own else "policy" if mask[span].any() else "player"
        one = {"by": by, "turn": message.turn, "start": message.start, "text": decode(token[span].tolist())}
        if paid is not None and message.own:
            one["reward"] = float(paid[span].sum())
        if rows.advantage is not None and by == "policy":
            one["advantage"] = float(np.mean(rows.advantage[i][span]))
        one |= {name: float(rows.extra[name][i][message.stop - 1]) for name in names if message.own}
        said.append(one)
    record: Record = {"turns": said, "tokens": {"mask": mask.astype(int).tolist(), "turn": turn.tolist()}}
    if paid is not None:
        record["tokens"]["token_reward"] = paid.tolist()
    for name, values in (("episode", rows.episode), ("seat", rows.agent)):
        if values is not None:
            record[name] = int(values[i])
    record["total"] = float(rows.reward[i]) + (0.0 if paid is None else float(paid.sum()))
    if rows.valid is not None and not rows.valid[_of_episode(rows, i)].any():
        record["valid"] = False
    return record


def _of_episode(rows: types.Rollout, i: int) -> np.ndarray:
    """Return the rows whose ``valid`` says whether the world of row i failed.

    Where others play too, their rows have ``valid`` 0: then all rows of the episode.
    """
    if "written" not in rows.extra or rows.episode is None:
        return np.array([i])
    return np.flatnonzero(np.asarray(rows.episode) == rows.episode[i])


# --- records that are read ----------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Where the tokens of a message are among those that a record describes."""

    start: int
    stop: int
    cut: int  # the place where tokens are omitted
    omitted: int  # their number


def spans(record: Mapping[str, Any]) -> list[Span]:
    """Return the place of each message of a record in the lists of "tokens"."""
    tokens = record.get("tokens", {})
    shown, omitted = len(tokens.get("text", ())), tokens.get("omitted", 0)
    half = shown // 2
    starts = [message["start"] for message in record["turns"]]
    out = []
    if not starts:  # a seat that has not read or written anything
        return out
    for start, stop in zip(starts, [*starts[1:], shown + omitted], strict=True):
        first, last = (at if at <= half else max(half, at - omitted) for at in (start, stop))
        out.append(Span(first, last, half, stop - start - (last - first)))
    return out


def episodes(rows: Sequence[Record]) -> list[list[Record]]:
    """Return the rows of each episode, in order; a row without an episode is one."""
    out: dict[Any, list[Record]] = {}
    for i, row in enumerate(rows):
        out.setdefault(row.get("episode", ("row", i)), []).append(row)
    return list(out.values())


def heading(row: Record, episode: Sequence[Record]) -> str:
    """Return which row of an episode a row is: its seat, its turn, or both; "" for the only one."""
    seats = [other.get("seat", 0) for other in episode]
    parts = [f"seat {row['seat']}"] if "seat" in row and (len(set(seats)) > 1 or row["seat"]) else []
    if len(seats) > len(set(seats)) and row.get("turns"):
        parts.append(f"turn {row['turns'][0]['turn']}")
    return ", ".join(parts)


def said(message: Mapping[str, Any]) -> list[str]:
    """Return the reward and other numbers of a message as short texts."""
    out = [f"{message['reward']:+g}" if message["reward"] else "0"] if "reward" in message else []
    known = ("by", "turn", "start", "text", "reward", "advantage")
    return out + [f"{name} {value:.3g}" for name, value in message.items() if name not in known]
