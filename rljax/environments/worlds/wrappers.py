"""Wrappers of any world: think longer before a turn is handed on, and try again with a hint."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import around, single, tokens

Array = types.Array


@dataclasses.dataclass(frozen=True)
class WithText(around.Recalling):
    """A world that tells a text besides what the inner one tells."""

    text_told: str

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return the text."""
        return (("text", self.text_told),)

    def told(self) -> tokens.Piece:
        """Return the text as tokens."""
        return self.piece("text", self.text_told)

    def padded(self, reply: contract.Reply) -> contract.Reply:
        """Return a reply of the inner world in the width of this one's."""
        spare = ((0, 0), (0, self.reply_length - self.inner.reply_length))
        return reply.replace(token=jnp.pad(reply.token, spare), mask=jnp.pad(reply.mask, spare))


@dataclasses.dataclass(frozen=True)
class ThinkLonger(WithText):
    """The world that ``think_longer`` builds; ``inner`` and ``text_told`` are its ``task`` and ``text``."""

    times: int

    name = "think_longer"

    @property
    def max_turns(self) -> int:
        """A turn of the inner world is ``times`` turns more."""
        return self.inner.max_turns * (self.times + 1)

    @property
    def reply_length(self) -> int:
        """The most tokens of a reply."""
        return max(self.inner.reply_length, tokens.width(self.text_told))

    @property
    def recalled_length(self) -> int:
        """The most tokens since the last turn that was handed on."""
        return self.times * (self.turn_length + tokens.width(self.text_told))

    @property
    def conversation_length(self) -> int:
        """T of a conversation."""
        return self.inner.completion_length + self.inner.max_turns * self.recalled_length

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of the inner world, and what was written of a turn."""
        inner = self.inner.begin(index, split, key)
        written = (jnp.zeros((self.recalled_length,), jnp.int32), jnp.zeros((self.recalled_length,)))
        return {"inner": inner, "times": jnp.int32(0), "written": written}

    def prompt(self, state: Any, seat: Array) -> tokens.Piece:
        """Return the prompt of the inner world; in chapters followed by what was written of the turn."""
        return self.recalling(self.inner.prompt(state["inner"], seat), state["written"])

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Tell the text, or hand the turn on where it was told ``times`` times."""
        inner, reply = self.inner.step(state["inner"], seat, token, mask, key)
        last, shown = state["times"] == self.times, self.told()
        here = self.join([shown], self.reply_length)
        reply = self.padded(reply)
        waits = jax.tree.map(jnp.zeros_like, reply).replace(
            token=jnp.broadcast_to(here[0], reply.token.shape),
            mask=here[1][None, :] * (jnp.arange(self.seats) == seat)[:, None],
            valid=jnp.ones_like(reply.valid),
            next_seat=jnp.asarray(seat, reply.next_seat.dtype),
        )
        pieces = [state["written"], (token, mask), shown]
        written = self.join(pieces, self.recalled_length)
        after = {
            "inner": _where(last, inner, state["inner"]),
            "times": jnp.where(last, 0, state["times"] + 1),
            "written": _where(last, jax.tree.map(jnp.zeros_like, written), written),
        }
        return after, _where(last, reply, waits)

    def expert(self, state: Any, seat: Array, key: types.Key) -> tokens.Piece:
        """Write the expert's turn, mistakes included, and last one without mistakes."""
        first = self.inner.expert(state["inner"], seat, key)
        return _where(
            state["times"] == self.times, single.faultless(self.inner).expert(state["inner"], seat, key), first
        )


@dataclasses.dataclass(frozen=True)
class Hint(WithText):
    """The world that ``hint`` builds; ``inner`` and ``text_told`` are its ``task`` and ``text``."""

    shown: int
    tries: int
    factor: float
    separator: str
    rows: contract.Rows  # "chapters" around a world of one turn: each attempt is a row
    plain: bool

    name = "hint"

    @property
    def max_turns(self) -> int:
        """Those of all attempts."""
        return self.inner.max_turns * self.tries

    @property
    def reply_length(self) -> int:
        """The most tokens of a reply."""
        return max(self.inner.reply_length, self.recalled_length)

    @property
    def recalled_length(self) -> int:
        """The most tokens of a hint."""
        return tokens.width(self.text_told) + self.shown * (self.tries - 1)

    @property
    def conversation_length(self) -> int:
        """T of a conversation."""
        return self.tries * self.inner.completion_length + (self.tries - 1) * self.reply_length

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of the inner world, ``first`` and ``hinted``."""
        return (*self.inner.parts, "first", "hinted")

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of the inner world, twice: as it begins and as it is."""
        inner = self.inner.begin(index, split, key)
        hint = (jnp.zeros((self.recalled_length,), jnp.int32), jnp.zeros((self.recalled_length,)))
        return {"start": inner, "inner": inner, "failures": jnp.int32(0), "first": jnp.float32(0), "hint": hint}

    def prompt(self, state: Any, seat: Array) -> tokens.Piece:
        """Return the prompt of the inner world; in chapters followed by the hint, once there is one."""
        return self.recalling(self.inner.prompt(state["inner"], seat), state["hint"])

    @property
    def training(self) -> Callable[[Any, Array], tokens.Piece] | None:
        """The prompt that a row is trained under, which has no hint, if the world is ``plain``."""

        def without(state: Any, seat: Array) -> tokens.Piece:
            return self.join([self.inner.prompt(state["inner"], seat)], self.prompt_length, side="left")

        return without if self.plain else None

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Play on in the inner world; after a failed attempt tell the hint and begin the same problem again."""
        inner, reply = self.inner.step(state["inner"], seat, token, mask, key)
        failures, ended = state["failures"], reply.done | reply.truncated
        success = jnp.ravel(reply.outcome)[0] == types.Outcome.CORRECT
        failed = ended & ~success & (reply.valid > 0)
        again = failed & (failures + 1 < self.tries)
        hint = self._hint(state["start"], failures + 1, key)
        first = jnp.where(failures == 0, success.astype(jnp.float32), state["first"])
        reply = self.padded(reply)
        shown, mask = self.join([hint], self.reply_length)
        seats = (self.seats,)
        reply = reply.replace(
            token=jnp.where(again, shown[None, :], reply.token),
            mask=jnp.where(again, mask[None, :], reply.mask),
            reward=reply.reward * jnp.where(failures > 0, self.factor, 1.0),
            done=reply.done & ~again,
            truncated=reply.truncated & ~again,
            next_seat=jnp.where(again, 0, reply.next_seat),
            parts={
                **reply.parts,
                "first": jnp.broadcast_to(first, seats),
                "hinted": jnp.broadcast_to((failures > 0).astype(jnp.float32), seats),
            },
        )
        after = {
            "start": state["start"],
            "inner": _where(again, state["start"], inner),
            "failures": failures + again,
            "first": first,
            "hint": _where(again, hint, state["hint"]),
        }
        return after, reply

    def expert(self, state: Any, seat: Array, key: types.Key) -> tokens.Piece:
        """Write the expert's turn, mistakes included, and without mistakes once a hint was told."""
        first = self.inner.expert(state["inner"], seat, key)
        return _where(state["failures"] > 0, single.faultless(self.inner).expert(state["inner"], seat, key), first)

    def _hint(self, start: Any, failures: Array, key: types.Key) -> tokens.Piece:
        """Return the text and the first tokens of the expert's answer, never all of it."""
        shown = self.told()
        if not self.shown:
            return shown
        token, mask = single.faultless(self.inner).expert(start, jnp.int32(0), key)
        there = (mask > 0) & (token != self.bound.eos)
        separator = tokenizers.continuation(self.bound, "\n", self.separator)
        if len(separator) == 1 and self.bound.decode(separator) == self.separator:
            later = jnp.cumsum((there & (token == separator[0]))[::-1])[::-1]  # separators at or after a position
            there = there & (later == 0)
        number = jnp.cumsum(there)
        visible = there & (number <= self.shown * failures) & (number < jnp.sum(there))
        return self.join([shown, (token, visible)], self.recalled_length)


def _where(condition: Array, yes: Any, no: Any) -> Any:
    """Return one of two trees of the same structure."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _world(task: environments.Task, wrapper: str) -> Any:
    world = single.from_task(task)
    if not hasattr(world, "expert"):
        raise ValueError(f"{wrapper}: world {task.name!r} has no expert, whose turns its demonstrations are made of")
    return world


@environments.task
def think_longer(
    task: environments.Task, text: str = "Wait", times: Annotated[int, types.Range(0, 64)] = 1
) -> contract.World:
    """Do not hand a turn on when the player ends it: append ``text``, and let the player go on, ``times`` times.

    The world reads what was written after the last ``text``. Nothing is paid before, and other seats are told nothing.
    Source: budget forcing in s1 (arXiv 2501.19393), which differs by leaving out the end-of-sequence token before
    ``text``; here it is part of the row.

    The expert's last text has no mistakes (``slip``, ``noise``), those before have them.

    Args:
      task: a world, or a device task.
      text: what is appended.
      times: how often for each turn; 0 returns the world itself.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is judged on the host, the world has no expert, or the text is empty.
    """
    if not text:
        raise ValueError("text: '' is empty; give what is appended, such as 'Wait'")
    world = _world(task, "think_longer")
    return ThinkLonger(world, text, times) if times else world


@environments.task
def hint(
    task: environments.Task,
    text: str = "hint:",
    shown: Annotated[int, types.Range(0, 1024)] = 1,
    tries: Annotated[int, types.Range(2, 64)] = 2,
    factor: types.Fraction = 1.0,
    separator: str = ";",
    rows: contract.Rows | None = None,
    plain: bool = False,
) -> contract.World:
    """Try the same problem again after a failed attempt, with a hint.

    After the k-th failure ``text`` is told, followed by the first ``shown`` * k tokens of the answer that the expert
    would give at the start, at least one less than the answer has. The outcome is the last attempt's. Parts:
    ``first``, 1 if the first attempt succeeded; ``hinted``, 1 if there was a hint before the last one.

    The expert makes its mistakes (``slip``, ``noise``) before the first hint only.

    Args:
      task: a world with one seat, or a device task.
      text: what the hint starts with.
      shown: tokens of the answer that each failure reveals; 0: the text alone.
      tries: the most attempts.
      factor: rewards after a hint are multiplied by it.
      separator: the answer is what follows the last separator of the expert's turn.
      rows: "chapters" for a task of one turn: each attempt is a row, with the hint in its prompt; None: as the world.
      plain: whether rows are trained under the prompt without the hint, as Agent-RLVR (arXiv 2506.11425) trains on
        guided attempts; of chapters only. A ratio with ``anchor="behaviour"`` weighs them.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is judged on the host, the world has no expert or several seats, an empty text, or rows that
        the world cannot have.
    """
    if not text:
        raise ValueError("text: '' is empty; give what a hint starts with, such as 'hint:'")
    world = _world(task, "hint")
    if world.seats > 1:
        raise ValueError(f"hint: world {world.name!r} has {world.seats} seats; a hint is for worlds of one seat")
    if rows not in (None, world.rows) and (world.max_turns > 1 or rows != "chapters"):
        raise ValueError(f"rows: {rows!r}; world {world.name!r} of {world.max_turns} turns has rows {world.rows!r}")
    if plain and (rows or world.rows) != "chapters":
        raise ValueError(
            "plain: True needs rows in chapters, whose prompts have the hint; around conversations: compress"
        )
    return Hint(world, text, shown, tries, factor, separator, rows or world.rows, plain)
