"""Wrappers of any world: think longer before a turn is handed on, and try again with a hint."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import single, tokens

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Wrapper(tokens.TokenWorld, abc.ABC):
    """A world in which another one is played; what it does not change is that of ``inner``."""

    inner: Any
    text_told: str
    tokenizer: tokenizers.Tokenizer | None

    @property
    def seats(self) -> int:
        """Those of the inner world."""
        return self.inner.seats

    @property
    def turn_length(self) -> int:
        """The most tokens of a turn."""
        return self.inner.turn_length

    @property
    def turn_end(self) -> tuple[str, ...]:
        """Texts that end a turn."""
        return self.inner.turn_end

    @property
    def rows(self) -> contract.Rows:
        """What a row holds."""
        return self.inner.rows

    @property
    def anew(self) -> bool:
        """Whether every sample begins another problem."""
        return self.inner.anew

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the numbers that replies have besides rewards."""
        return self.inner.parts

    @property
    def extra(self) -> tuple[str, ...]:
        """Names of the numbers that replies write on the tokens of a turn."""
        return self.inner.extra

    @property
    def domains(self) -> int:
        """Number of domains of its episodes."""
        return getattr(self.inner, "domains", 1)

    def corpus(self) -> Iterator[str]:
        """Yield the texts of the inner world, and what this one tells."""
        yield from self.inner.corpus()
        yield self.text_told

    def bind(self, tokenizer: tokenizers.Tokenizer) -> Any:
        """Return a copy with the tokenizer; ValueError if it cannot write the text."""
        tokens.ids(tokenizer, self.text_told, "text")
        return dataclasses.replace(self, inner=self.inner.bind(tokenizer), tokenizer=tokenizer)

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self.inner.size(split)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` of seat 0 as text."""
        return self.inner.text(index, split)

    @property
    def _told(self) -> tokens.Piece:
        return tokens.piece(tokens.ids(self.tokenizer, self.text_told, "text"))

    @property
    def _pad(self) -> int:
        assert self.tokenizer is not None, "callers read the text first, which needs the tokenizer"
        return self.tokenizer.pad

    def _padded(self, reply: contract.Reply, reply_length: int) -> contract.Reply:
        """Return a reply of the inner world in the width of this one's."""
        spare = ((0, 0), (0, reply_length - self.inner.reply_length))
        return reply.replace(token=jnp.pad(reply.token, spare), mask=jnp.pad(reply.mask, spare))


@dataclasses.dataclass(frozen=True)
class ThinkLonger(Wrapper):
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
    def prompt_length(self) -> int:
        """L, in chapters with what was written since the last turn that was handed on."""
        return self.inner.prompt_length + (self._longer if self.rows == "chapters" else 0)

    @property
    def completion_length(self) -> int:
        """T of a row."""
        longer = 0 if self.rows == "chapters" else self.inner.max_turns * self._longer
        return self.inner.completion_length + longer

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of the inner world, and what was written of a turn."""
        inner = self.inner.begin(index, split, key)
        written = (jnp.zeros((self._longer,), jnp.int32), jnp.zeros((self._longer,)))
        return {"inner": inner, "times": jnp.int32(0), "written": written}

    def prompt(self, state: Any, seat: Array) -> tokens.Piece:
        """Return the prompt of the inner world; in chapters followed by what was written of the turn."""
        prompt = self.inner.prompt(state["inner"], seat)
        if self.rows == "conversation":
            return prompt
        return tokens.join([prompt, state["written"]], self.prompt_length, self._pad, side="left")

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Tell the text, or hand the turn on where it was told ``times`` times."""
        inner, reply = self.inner.step(state["inner"], seat, token, mask, key)
        last, shown = state["times"] == self.times, self._told
        here = tokens.join([shown], self.reply_length, self._pad)
        reply = self._padded(reply, self.reply_length)
        waits = jax.tree.map(jnp.zeros_like, reply).replace(
            token=jnp.broadcast_to(here[0], reply.token.shape),
            mask=here[1][None, :] * (jnp.arange(self.seats) == seat)[:, None],
            valid=jnp.ones_like(reply.valid),
            next_seat=jnp.asarray(seat, reply.next_seat.dtype),
        )
        pieces = [state["written"], (token, mask), shown]
        written = tokens.join(pieces, self._longer, self._pad)
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

    @property
    def _longer(self) -> int:
        return self.times * (self.turn_length + tokens.width(self.text_told))


@dataclasses.dataclass(frozen=True)
class Hint(Wrapper):
    """The world that ``hint`` builds; ``inner`` and ``text_told`` are its ``task`` and ``text``."""

    shown: int
    tries: int
    factor: float
    separator: str
    chapters: bool  # each attempt of a world of one turn is a row

    name = "hint"

    @property
    def rows(self) -> contract.Rows:
        """What a row holds."""
        return "chapters" if self.chapters else self.inner.rows

    @property
    def max_turns(self) -> int:
        """Those of all attempts."""
        return self.inner.max_turns * self.tries

    @property
    def reply_length(self) -> int:
        """The most tokens of a reply."""
        return max(self.inner.reply_length, self._hint_length)

    @property
    def prompt_length(self) -> int:
        """L, in chapters with the hint."""
        return self.inner.prompt_length + (self._hint_length if self.rows == "chapters" else 0)

    @property
    def completion_length(self) -> int:
        """T of a row."""
        if self.rows == "chapters":
            return self.turn_length
        return self.tries * self.inner.completion_length + (self.tries - 1) * self.reply_length

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of the inner world, ``first`` and ``hinted``."""
        return (*self.inner.parts, "first", "hinted")

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of the inner world, twice: as it begins and as it is."""
        inner = self.inner.begin(index, split, key)
        hint = (jnp.zeros((self._hint_length,), jnp.int32), jnp.zeros((self._hint_length,)))
        return {"start": inner, "inner": inner, "failures": jnp.int32(0), "first": jnp.float32(0), "hint": hint}

    def prompt(self, state: Any, seat: Array) -> tokens.Piece:
        """Return the prompt of the inner world; in chapters followed by the hint, once there is one."""
        prompt = self.inner.prompt(state["inner"], seat)
        if self.rows == "conversation":
            return prompt
        return tokens.join([prompt, state["hint"]], self.prompt_length, self._pad, side="left")

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Play on in the inner world; after a failed attempt tell the hint and begin the same problem again."""
        inner, reply = self.inner.step(state["inner"], seat, token, mask, key)
        failures, ended = state["failures"], reply.done | reply.truncated
        success = jnp.ravel(reply.outcome)[0] == types.Outcome.CORRECT
        failed = ended & ~success & (reply.valid > 0)
        again = failed & (failures + 1 < self.tries)
        hint = self._hint(state["start"], failures + 1, key)
        first = jnp.where(failures == 0, success.astype(jnp.float32), state["first"])
        reply = self._padded(reply, self.reply_length)
        shown, mask = tokens.join([hint], self.reply_length, self._pad)
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

    @property
    def _hint_length(self) -> int:
        return tokens.width(self.text_told) + self.shown * (self.tries - 1)

    def _hint(self, start: Any, failures: Array, key: types.Key) -> tokens.Piece:
        """Return the text and the first tokens of the expert's answer, never all of it."""
        shown = self._told
        if not self.shown:
            return shown
        assert self.tokenizer is not None
        token, mask = single.faultless(self.inner).expert(start, jnp.int32(0), key)
        there = (mask > 0) & (token != self.tokenizer.eos)
        separator = tokenizers.continuation(self.tokenizer, "\n", self.separator)
        if len(separator) == 1 and self.tokenizer.decode(separator) == self.separator:
            later = jnp.cumsum((there & (token == separator[0]))[::-1])[::-1]  # separators at or after a position
            there = there & (later == 0)
        number = jnp.cumsum(there)
        visible = there & (number <= self.shown * failures) & (number < jnp.sum(there))
        return tokens.join([shown, (token, visible)], self._hint_length, self._pad)


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
    return ThinkLonger(world, text, None, times) if times else world


@environments.task
def hint(
    task: environments.Task,
    text: str = "hint:",
    shown: Annotated[int, types.Range(0, 1024)] = 1,
    tries: Annotated[int, types.Range(2, 64)] = 2,
    factor: types.Fraction = 1.0,
    separator: str = ";",
    rows: contract.Rows | None = None,
) -> contract.World:
    """Try the same problem again after a failed attempt, with a hint.

    After the k-th failure ``text`` is told, followed by the first ``shown`` * k tokens of the answer that the expert
    would give at the start, at least one less than the answer has. The outcome is that of the last attempt. Parts:
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
    return Hint(world, text, None, shown, tries, factor, separator, rows == "chapters")
