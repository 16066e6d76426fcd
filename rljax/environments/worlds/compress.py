"""``compress``: the turns of a conversation as chapters, whose prompts replace old replies by a text."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import around, single, tokens

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Compress(around.Recalling):
    """The world that ``compress`` builds; ``inner`` is its ``task``."""

    kept: int
    text: str

    name = "compress"
    rows = "chapters"
    reply_length = 1  # nothing is told: the next prompt has the replies

    @property
    def recalled_length(self) -> int:
        """The most tokens of all turns but the last, and of their replies."""
        told, earlier = self.inner.reply_length, self.inner.max_turns - 1
        whole = min(self.kept, earlier)
        return earlier * self.turn_length + whole * told + (earlier - whole) * max(told, tokens.width(self.text))

    @property
    def conversation_length(self) -> int:
        """T of a row, which is one turn."""
        return self.turn_length

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return what stands for an old reply."""
        return (("text", self.text),) if self.text else ()

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the state of the inner world, twice: as it begins and as it is; and no turns."""
        inner, earlier = self.inner.begin(index, split, key), max(self.inner.max_turns - 1, 1)

        def none(length: int) -> tokens.Piece:
            return jnp.zeros((earlier, length), jnp.int32), jnp.zeros((earlier, length))

        turns, replies = none(self.turn_length), none(self.inner.reply_length)
        return {"start": inner, "inner": inner, "turn": jnp.int32(0), "turns": turns, "replies": replies}

    def prompt(self, state: Any, seat: Array) -> tokens.Piece:
        """Return the prompt of the inner world, and the turns so far with replies, of which old ones are short."""
        pieces = [self.inner.prompt(state["start"], seat)]
        short = self.piece("text", self.text) if self.text else None
        for k in range(self.inner.max_turns - 1):
            turn, reply = (jax.tree.map(lambda x, k=k: x[k], state[name]) for name in ("turns", "replies"))
            old = k < state["turn"] - self.kept
            pieces += [turn, tokens.masked(reply, ~old)]
            if short is not None:
                pieces.append(tokens.masked(short, old & jnp.any(reply[1] > 0)))
        return self.join(pieces, self.prompt_length, side="left")

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Play on in the inner world, and keep the turn and the reply for the prompts."""
        inner, reply = self.inner.step(state["inner"], seat, token, mask, key)

        def kept(earlier: tokens.Piece, piece: tokens.Piece) -> tokens.Piece:
            return jax.tree.map(lambda x, new: x.at[state["turn"]].set(new, mode="drop"), earlier, piece)

        after = {
            "start": state["start"],
            "inner": inner,
            "turn": state["turn"] + 1,
            "turns": kept(state["turns"], (token, mask)),
            "replies": kept(state["replies"], (reply.token[0], reply.mask[0])),
        }
        return after, reply.replace(token=reply.token[:, :1], mask=jnp.zeros_like(reply.mask[:, :1]))

    def expert(self, state: Any, seat: Array, key: types.Key) -> tokens.Piece:
        """Write the turn of the inner world's expert."""
        return self.inner.expert(state["inner"], seat, key)


@environments.task
def compress(task: environments.Task, kept: Annotated[int, types.Range(0, 1024)] = 1, text: str = "...") -> Compress:
    """Play a conversation in chapters, so that old replies can be left out: each turn is a row of its own.

    A row's prompt is that of the world, followed by the turns so far, each with its reply; of replies before the last
    ``kept`` ones only ``text`` stands there. So long observations do not fill the context, and every turn is trained
    under the prompt that it was sampled under. Source: the compression of observations in WebAgent-R1 (arXiv
    2505.16421), which keeps the newest page.

    Args:
      task: a world of one seat, whose rows are conversations.
      kept: replies that the prompts have in full, the newest ones; as many as the world has turns: all.
      text: stands for each older reply; "": nothing.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is no such world.
    """
    world = single.from_task(task)
    if world.seats > 1 or world.rows != "conversation" or world.max_turns == 1:
        has = f"{world.seats} seats" if world.seats > 1 else f"rows {world.rows!r} of {world.max_turns} turns"
        raise ValueError(f"compress: world {world.name!r} has {has}; give conversations of one seat, as guess()")
    return Compress(world, kept, text)
