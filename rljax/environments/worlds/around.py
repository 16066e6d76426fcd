"""``Around`` and ``Recalling``, bases of what stands around a world; ``recorded`` and ``format_parts``."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split, written
from rljax.environments import worlds as contract
from rljax.environments.worlds import tokens

Array = types.Array
# they read the state or the rows of the inner world, or are about its verdicts
_UNSHARED = ("goals", "limits", "picture", "pictures", "relabelled", "supplies", "training")


@dataclasses.dataclass(frozen=True)
class Around(written.Bound):
    """A world around ``inner``, a world or a task; what a subclass does not define is what ``inner`` has."""

    inner: Any
    tokenizer: tokenizers.Tokenizer | None = dataclasses.field(default=None, kw_only=True)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner world."""
        if name.startswith("__") or name in _UNSHARED or "inner" not in vars(self):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return what this world tells, each text with the name of the setting that holds it."""
        return ()

    def corpus(self) -> Iterator[str]:
        """Yield the texts of the inner world, and what this one tells."""
        yield from self.inner.corpus()
        yield from (text for _, text in self.texts())

    def bind(self, tokenizer: tokenizers.Tokenizer) -> Any:
        """Return a copy whose texts are in the tokens of ``tokenizer``; ValueError if it cannot write one."""
        for setting, text in self.texts():
            tokens.ids(tokenizer, text, setting)
        return dataclasses.replace(self, inner=self.inner.bind(tokenizer), tokenizer=tokenizer)

    def piece(self, setting: str, text: str) -> tokens.Piece:
        """Return a text, and which setting holds it, as tokens."""
        return tokens.piece(tokens.ids(self.bound, text, setting))

    def join(self, pieces: Sequence[tokens.Piece], length: int, *, side: str = "right") -> tokens.Piece:
        """Put pieces behind one another, see ``tokens.join``."""
        return tokens.join(pieces, length, self.bound.pad, side=side)


@dataclasses.dataclass(frozen=True)
class Recalling(tokens.Derived, Around):
    """A world of more turns than ``inner``: a conversation holds them all, a chapter recalls them in its prompt."""

    @property
    @abc.abstractmethod
    def recalled_length(self) -> int:
        """The most tokens that the prompt of a chapter recalls."""

    @property
    @abc.abstractmethod
    def conversation_length(self) -> int:
        """T of a conversation."""

    @property
    def prompt_length(self) -> int:
        """L of ``inner``, and in chapters of what they recall."""
        return self.inner.prompt_length + (self.recalled_length if self.rows == "chapters" else 0)

    @property
    def completion_length(self) -> int:
        """T of a row."""
        return tokens.row_length(self, self.conversation_length)

    def recalling(self, prompt: tokens.Piece, recalled: tokens.Piece) -> tokens.Piece:
        """Return a prompt of ``inner``, in chapters followed by what they recall."""
        if self.rows == "conversation":
            return prompt
        return self.join([prompt, recalled], self.prompt_length, side="left")


class Recorded(Around):
    """The world that ``recorded`` builds."""

    name = "recorded"
    extra = ("match",)

    @property
    def reply_length(self) -> int:
        """The expert's turn where the player's differs, and the reply to it."""
        return self.inner.turn_length + self.inner.reply_length

    @property
    def completion_length(self) -> int:
        """T of a row, which also has the turns of the expert."""
        return self.inner.completion_length + (self.max_turns - 1) * self.turn_length

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of the inner world; ``key`` draws the recorded trajectory."""
        state = self.inner.begin(index, split, key)
        return {"inner": state, "key": jax.random.key_data(key), "turn": jnp.int32(0), "missed": jnp.zeros((), bool)}

    def prompt(self, state: Any, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the inner world."""
        return self.inner.prompt(state["inner"], seat)

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Compare the turn with the expert's, and go on from the expert's."""
        keys = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["turn"])
        shown, written = self.inner.expert(state["inner"], seat, jax.random.fold_in(keys, 0))
        match = jnp.all((mask > 0) == (written > 0)) & jnp.all((token == shown) | (written <= 0))
        inner, reply = self.inner.step(state["inner"], seat, shown, written, jax.random.fold_in(keys, 1))
        missed = state["missed"] | ~match
        correction = tokens.masked((shown, written), ~match)
        joined = jax.vmap(lambda *piece: tokens.join([correction, piece], self.reply_length, 0))(
            reply.token, reply.mask
        )
        over = reply.done | reply.truncated
        reply = reply.replace(
            token=joined[0],
            mask=joined[1],
            reward=jnp.where(match, jnp.ones_like(reply.reward), 0.0),
            outcome=jnp.where(over & ~missed, types.Outcome.CORRECT, types.Outcome.WRONG)
            + jnp.zeros_like(reply.outcome),
            extra={"match": match.astype(jnp.float32)},
        )
        return {"inner": inner, "key": state["key"], "turn": state["turn"] + 1, "missed": missed}, reply

    def expert(self, state: Any, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Return the recorded turn."""
        keys = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["turn"])
        return self.inner.expert(state["inner"], seat, jax.random.fold_in(keys, 0))


class FormatParts(Around):
    """The world that ``format_parts`` builds."""

    name = "format_parts"

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the inner world, and the parts of the format."""
        return (*self.inner.parts, "closing", "flow", "unclosed")

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of the inner world, and what has been written."""
        return {"inner": self.inner.begin(index, split, key), "turn": jnp.int32(0), "unclosed": jnp.zeros((), bool)}

    def prompt(self, state: Any, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the inner world."""
        return self.inner.prompt(state["inner"], seat)

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Read how the turn ends."""
        inner, reply = self.inner.step(state["inner"], seat, token, mask, key)
        last = jnp.maximum(jnp.sum(mask > 0) - 1, 0)
        closed = jnp.any(mask > 0) & (token[last] == self.bound.eos)
        unclosed = state["unclosed"] | ~closed
        flow = reply.done & (state["turn"] > 0) & ~unclosed
        shape = {"closing": closed, "flow": flow, "unclosed": unclosed}
        extra = {name: x * jnp.ones_like(reply.reward) for name, x in shape.items()}
        after = {"inner": inner, "turn": state["turn"] + 1, "unclosed": unclosed}
        return after, reply.replace(parts={**reply.parts, **extra})

    def expert(self, state: Any, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Return the turn of the inner world's expert."""
        return self.inner.expert(state["inner"], seat, key)


def _inside(task: environments.Task, name: str) -> contract.World:
    """Return the task as a world of one seat; ValueError if it is none."""
    if not contract.in_turns(task):
        raise ValueError(f"task: {task.name!r} has one turn; {name} is around a world such as guess()")
    if task.seats != 1:
        raise ValueError(f"task: {task.name!r} has {task.seats} seats; {name} is around a world of one")
    return task


@environments.task
def recorded(task: environments.Task) -> Any:
    """Follow a recorded trajectory of the world's expert; a turn that is the expert's matches and is paid 1.

    The world goes on from the expert's turn in any case; where the player's differs, it is told the expert's turn
    before the reply. extra["match"] is 1 on the turns that match; an episode is correct if all do. Source: the
    semi-online rollouts of UI-S1 (arXiv 2509.11543).

    Args:
      task: a world of one seat that has an expert, with conversations as rows.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is not such a world.
    """
    world = _inside(task, "recorded")
    if not hasattr(world, "expert"):
        raise ValueError(f"task: {world.name!r} has no expert, so no trajectory")
    if world.rows != "conversation":
        raise ValueError(f"task: {world.name!r} has rows {world.rows!r}; recorded needs 'conversation'")
    return Recorded(world)


@environments.task
def format_parts(task: environments.Task) -> Any:
    """Report how the turns of a world end: the parts ``closing``, ``flow`` and ``unclosed``, each 0 or 1.

    ``closing``: the last turn has its end. ``flow``: the episode was ended by a later turn than the first, every turn
    having its end, as an answer after a call of a tool. ``unclosed``: some turn was cut at ``turn_length``. Source:
    ParaVT (2025).

    Args:
      task: a world of one seat.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is not such a world.
    """
    return FormatParts(_inside(task, "format_parts"))
