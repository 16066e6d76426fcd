"""Worlds around other worlds: a recorded trajectory to follow, the parts of a format, and several worlds in one run."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments import worlds as contract

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Around:
    """A world around ``inner``; what a subclass does not define is that of ``inner``."""

    inner: Any
    tokenizer: tokenizers.Tokenizer | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner world."""
        if name.startswith("__") or name == "limits" or "inner" not in vars(self):  # limits reads the inner state
            raise AttributeError(name)
        return getattr(self.inner, name)

    def bind(self, tokenizer: tokenizers.Tokenizer) -> Any:
        """Return a copy whose texts are in the tokens of ``tokenizer``."""
        return dataclasses.replace(self, inner=self.inner.bind(tokenizer), tokenizer=tokenizer)


def join(first: tuple[Array, Array], second: tuple[Array, Array], length: int) -> tuple[Array, Array]:
    """Return token and mask ``[..., length]`` of one text after another, right-padded; tokens beyond it are dropped."""
    token, mask = (jnp.concatenate([a, b], axis=-1) for a, b in zip(first, second, strict=True))
    order = jnp.argsort(mask <= 0, axis=-1, stable=True)[..., :length]
    mask = jnp.take_along_axis(mask, order, axis=-1)
    return jnp.where(mask > 0, jnp.take_along_axis(token, order, axis=-1), 0), mask


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
        """Return the state of the inner world; the recorded trajectory is that of ``key``."""
        state = self.inner.begin(index, split, key)
        return {"inner": state, "key": jax.random.key_data(key), "turn": jnp.int32(0), "missed": jnp.zeros((), bool)}

    def prompt(self, state: Any, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the inner world."""
        return self.inner.prompt(state["inner"], seat)

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Compare the turn with the expert's, and go on from the expert's."""
        del key
        keys = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["turn"])
        shown, written = self.inner.expert(state["inner"], seat, jax.random.fold_in(keys, 0))
        match = jnp.all((mask > 0) == (written > 0)) & jnp.all((token == shown) | (written <= 0))
        inner, reply = self.inner.step(state["inner"], seat, shown, written, jax.random.fold_in(keys, 1))
        missed = state["missed"] | ~match
        joined = join((shown[None], jnp.where(match, 0.0, written)[None]), (reply.token, reply.mask), self.reply_length)
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
        """Those of the inner world, and those of the format."""
        return (*self.inner.parts, "closing", "flow", "unclosed")

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of the inner world, and what has been written."""
        return {"inner": self.inner.begin(index, split, key), "turn": jnp.int32(0), "unclosed": jnp.zeros((), bool)}

    def prompt(self, state: Any, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the inner world."""
        return self.inner.prompt(state["inner"], seat)

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Read how the turn ends."""
        if self.tokenizer is None:
            raise ValueError(f"tokenizer: world {self.name!r} has none; call world.bind(tokenizer) first")
        inner, reply = self.inner.step(state["inner"], seat, token, mask, key)
        last = jnp.maximum(jnp.sum(mask > 0) - 1, 0)
        closed = jnp.any(mask > 0) & (token[last] == self.tokenizer.eos)
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
