"""Statistics of episodes of a world, from arrays of rows: success by episode, by seat and by number of turns.

NumPy, float64. Every episode counts once, whatever the number of its rows, seats and turns. An episode is a success
if its judged seat ended with a correct outcome. An invalid episode, whose world failed, is no success; it counts in
``success`` and ``pass_at_k``, as a completion does whose verifier crashed, and in no other number.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rljax import types
from rljax.run.evaluation import passk

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Rows:
    """What an evaluation knows about its rows, ``[B]`` each; the rows of an episode in the order of their turns.

    Rows of turns that did not take place are left out.
    """

    episode: npt.NDArray[Any]  # int, rows of an episode share it
    problem: npt.NDArray[Any]  # int, episodes of a problem share it
    seat: npt.NDArray[Any]  # int
    outcome: npt.NDArray[Any]  # int, a types.Outcome; the last row of a seat has the outcome of the seat
    reward: npt.NDArray[Any]  # the row's total; the totals of a seat's rows are added
    turns: npt.NDArray[Any]  # int, turns of the episode, of all seats together
    valid: npt.NDArray[Any]  # 0 where the world failed
    truncated: npt.NDArray[Any]  # whether a budget ended the episode
    parts: Mapping[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)  # of a seat's last row
    domain: npt.NDArray[Any] | None = None  # int, of the episode

    def __post_init__(self) -> None:
        """Raise ValueError if there is no row, or the fields differ in length."""
        for name, value in [*vars(self).items(), *self.parts.items()]:
            if name != "parts" and value is not None and np.shape(value) != (np.size(self.episode),):
                raise ValueError(f"{name}: got shape {np.shape(value)}, must be {np.shape(self.episode)}, one a row")
        if not np.size(self.episode):
            raise ValueError("episode: no rows, must be at least one")


def statistics(rows: Rows, ks: Sequence[int], seat: int | None = None, domains: Sequence[str] = ()) -> Record:
    """Return the record of an evaluation's episodes; it can be written as JSON.

    Args:
      rows: of all episodes.
      ks: the k of pass@k; those above the smallest number of episodes of a problem are left out.
      seat: the judged seat, whose outcome is the episode's; None: the lowest that has rows.
      domains: names of the domains; none: ``rows.domain`` is not read.

    Returns:
      ``episodes``, their number; ``invalid``, the share of them; ``seat``; ``success`` [mean, low, high] and
      ``pass_at_k`` {k: [mean, low, high]} with 95 % bootstrap intervals over problems. Over valid episodes:
      ``truncated``, a share; ``turns``, the mean; ``by_seat`` and, of the judged seat, ``by_domain``, see ``by``;
      ``by_turns``, see ``by_turns``; and of the judged seat ``reward`` and ``parts``, means. Means over no episode are
      None.

    Raises:
      ValueError: an episode without a row of the judged seat, or of two problems.
    """
    _, first, number = np.unique(rows.episode, return_index=True, return_inverse=True)
    number = number.reshape(-1)
    judged = int(np.min(rows.seat)) if seat is None else seat
    last = _last(number, np.asarray(rows.seat) == judged, first.size)
    if (last < 0).any():
        name = np.asarray(rows.episode)[first[last < 0][0]]
        raise ValueError(f"seat: episode {name} has no row of seat {judged}")
    if (np.asarray(rows.problem) != np.asarray(rows.problem)[first][number]).any():
        raise ValueError("problem: the rows of an episode differ, must be those of one problem")
    valid = _all(number, np.asarray(rows.valid) > 0, first.size)
    success = valid & (np.asarray(rows.outcome)[last] == types.Outcome.CORRECT)
    turns = np.zeros(first.size, int)
    np.maximum.at(turns, number, np.asarray(rows.turns, int))
    cut = ~_all(number, ~np.asarray(rows.truncated, bool), first.size)
    problems, of = np.unique(np.asarray(rows.problem)[first], return_inverse=True)
    count = np.bincount(of.reshape(-1), minlength=problems.size)
    right = np.bincount(of.reshape(-1), weights=success, minlength=problems.size).astype(int)
    reward = np.bincount(number, np.asarray(rows.reward, float) * (np.asarray(rows.seat) == judged), first.size)
    parts = {name: np.asarray(value, float)[last] for name, value in rows.parts.items()}
    tries = [k for k in sorted(set(ks)) if k <= count.min()]
    return {
        "episodes": int(first.size),
        "invalid": float(np.mean(~valid)),
        "seat": judged,
        "success": passk.means(right / count)[0],
        "pass_at_k": {str(k): passk.means(passk.pass_at_k(right, count, [k]))[0] for k in tries},
        "truncated": _mean(cut[valid]),
        "turns": _mean(turns[valid]),
        "reward": _mean(reward[valid]),
        "parts": {name: _mean(value[valid]) for name, value in parts.items()},
        "by_seat": {str(k): part for k, part in by(rows, np.asarray(rows.seat), valid[number]).items()},
        "by_domain": _by_domain(rows, domains, valid[number] & (np.asarray(rows.seat) == judged)),
        "by_turns": by_turns(turns[valid], success[valid]),
    }


def by(rows: Rows, of: npt.NDArray[Any], counted: npt.NDArray[np.bool_]) -> dict[int, Record]:
    """Return a record for each value of ``of``.

    Args:
      rows: of all episodes.
      of: ``[B]`` int, by which the rows are split.
      counted: ``[B]``, whether the row counts, as one of a valid episode.

    Returns:
      By value: ``episodes``; ``success`` [mean, low, high] with a 95 % Wilson interval; means ``reward``, ``parts``.
    """
    out = {}
    for value in np.unique(of).tolist():
        chosen = (of == value) & counted
        names, number = np.unique(np.asarray(rows.episode)[chosen], return_inverse=True)
        last = _last(number.reshape(-1), np.ones(int(chosen.sum()), bool), names.size)
        outcome = np.asarray(rows.outcome)[chosen][last] == types.Outcome.CORRECT
        total = np.bincount(number.reshape(-1), np.asarray(rows.reward, float)[chosen], names.size)
        out[value] = {
            "episodes": int(names.size),
            "success": _share(int(outcome.sum()), names.size),
            "reward": _mean(total),
            "parts": {name: _mean(np.asarray(value, float)[chosen][last]) for name, value in rows.parts.items()},
        }
    return out


def _by_domain(rows: Rows, names: Sequence[str], counted: npt.NDArray[np.bool_]) -> dict[str, Record]:
    """Return a record for each domain that has a name and rows."""
    if rows.domain is None or len(names) < 2:
        return {}
    parts = by(rows, np.asarray(rows.domain), counted)
    return {name: parts[number] for number, name in enumerate(names) if number in parts}


def by_turns(turns: npt.NDArray[np.int_], success: npt.NDArray[np.bool_]) -> dict[str, Record]:
    """Return by number of turns k, for each k that occurs.

    Args:
      turns: ``[E]``, turns of each episode.
      success: ``[E]`` bool.

    Returns:
      ``episodes`` that ended in k turns; ``share``, of all; ``success`` among them, [mean, low, high] with a 95 %
      Wilson interval; ``ended`` and ``solved``, the shares of all episodes that ended, and that ended with success, in
      at most k turns.
    """
    out = {}
    for k in np.unique(turns).tolist():
        now, until = turns == k, turns <= k
        out[str(k)] = {
            "episodes": int(now.sum()),
            "share": float(np.mean(now)),
            "success": _share(int(success[now].sum()), int(now.sum())),
            "ended": float(np.mean(until)),
            "solved": float(np.mean(until & success)),
        }
    return out


def _last(number: npt.NDArray[Any], counts: npt.NDArray[np.bool_], episodes: int) -> npt.NDArray[Any]:
    """Return the last row of each episode among those that count, -1 where there is none."""
    out = np.full(episodes, -1)
    np.maximum.at(out, number[counts], np.flatnonzero(counts))
    return out


def _all(number: npt.NDArray[Any], holds: npt.NDArray[np.bool_], episodes: int) -> npt.NDArray[np.bool_]:
    return np.bincount(number, ~holds, episodes) == 0


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(np.mean(values)) if values.size else None


def _share(successes: int, total: int) -> list[float] | None:
    return passk.share(successes, total) if total else None
