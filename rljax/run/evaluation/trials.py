"""The rows of episodes on the host: what an evaluation counts of them, and an episode as text."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from rljax import types
from rljax.host import processes
from rljax.run.evaluation import episodes
from rljax.run.reports import turns
from rljax.training import phases

_FIELDS = (
    *("mask", "reward", "group", "context", "turn", "token_reward", "outcome", "valid", "agent", "domain"),
    *("finish", "parts"),
)


@dataclasses.dataclass(frozen=True)
class Trials:
    """Episodes of a world, as rows of NumPy arrays: those of an episode adjacent, those of a problem too.

    Attributes:
      rows: the rows.
      each: rows of an episode.
      chapters: whether a row is one turn; else it is the conversation of a seat.
    """

    rows: types.Rollout
    each: int
    chapters: bool

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Return ``[B]``, whether the row has taken place: chapters have rows for turns that have not."""
        return np.logical_or(turns.written(self.rows).any(axis=1), not self.chapters)

    def valid(self) -> npt.NDArray[np.bool_]:
        """Return ``[E]``, whether the world has not failed."""
        return np.any((np.asarray(self.rows.valid) > 0).reshape(-1, self.each), axis=1)

    def outcome(self) -> npt.NDArray[np.int_]:
        """Return ``[E]`` the outcome of seat 0, who writes the first turn; that of a failed world is CRASHED."""
        first = np.asarray(self.rows.outcome)[:: self.each]
        return np.where(self.valid(), first, int(types.Outcome.CRASHED))

    def length(self) -> npt.NDArray[np.int_]:
        """Return ``[E]`` the tokens that the seats of an episode have written."""
        return np.sum(turns.written(self.rows).sum(axis=1).reshape(-1, self.each), axis=1)

    def reward(self) -> npt.NDArray[np.float64]:
        """Return ``[B]`` what each row is paid; those of a seat's rows add up to its total in the episode."""
        rows, mine = self.rows, turns.written(self.rows)
        seat = np.asarray(rows.agent)
        paid = (
            np.zeros(mine.shape[0]) if rows.token_reward is None else (np.asarray(rows.token_reward) * mine).sum(axis=1)
        )
        before = np.asarray(rows.reward, float)
        if self.chapters:  # all rows of a seat repeat what it was paid before it wrote
            number = np.arange(mine.shape[0]) // self.each
            key = np.where(self.present, number * (int(seat.max()) + 1) + seat, -1)
            _, first = np.unique(key, return_index=True)
            before = np.where(np.isin(np.arange(key.size), first) & self.present, before, 0.0)
        return paid + before

    def counted(self) -> episodes.Rows:
        """Return what ``episodes.statistics`` reads."""
        rows, number = self.rows, np.arange(self.rows.mask.shape[0]) // self.each
        mine, present = turns.written(rows), self.present
        last = present * 1 if self.chapters else np.where(mine, np.asarray(rows.turn), -1).max(axis=1) + 1
        by_episode = last.reshape(-1, self.each).sum(axis=1)  # turns of all seats
        columns = (
            *(number, np.asarray(rows.group), np.asarray(rows.agent), np.asarray(rows.outcome), self.reward()),
            *(by_episode[number], self.valid()[number], np.asarray(rows.finish) == types.Finish.LENGTH),
        )
        parts = {name: np.asarray(value)[present] for name, value in rows.parts.items()}
        domain = None if rows.domain is None else np.asarray(rows.domain)[present]
        return episodes.Rows(*(x[present] for x in columns), parts=parts, domain=domain)

    def described(self, episode: int, decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
        """Return the rows of an episode as text: "seat", "prompt", and "turns" with "by" and "text" each."""
        rows, out = self.rows, []
        assert rows.context is not None
        for i in range(episode * self.each, (episode + 1) * self.each):
            if not self.present[i]:
                continue
            prompt = np.asarray(rows.context.token[i])[np.asarray(rows.context.mask[i]) > 0].tolist()
            said = [{"by": m["by"], "text": m["text"]} for m in turns.described(rows, i, (), decode)["turns"]]
            out.append({"seat": int(rows.agent[i]), "prompt": decode(prompt), "turns": said})  # type: ignore[index]
        return out


def collect(setup: phases.Setup, batches: Sequence[types.Rollout], count: int) -> Trials:
    """Fetch rows of a world from the devices.

    Args:
      setup: the phase on devices.
      batches: the rows, one batch after another.
      count: number of episodes; later ones are padding.

    Returns:
      The episodes.
    """
    each, fetched = setup.rows_of_episode, []
    for batch in batches:
        assert batch.action is not None
        slim = types.Rollout(
            **{name: getattr(batch, name) for name in _FIELDS},
            action=types.Action(token=batch.action.token, length=batch.action.length),
            extra={name: batch.extra[name] for name in ("written",) if name in batch.extra},
        )
        fetched.append(processes.fetch(slim))
    rows = jax.tree.map(lambda *x: np.concatenate(x)[: count * each], *fetched)
    return Trials(rows, each, getattr(setup.task, "rows", "") == "chapters")
