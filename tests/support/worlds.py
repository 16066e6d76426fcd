"""Worlds of three symbols, so small that every conversation can be enumerated, or replayed by hand.

Symbol 0 ends a turn; replies may hold it too. Unbound, the symbols are the tokens 0, 1, 2, and 3 is padding. Bound to a
tokenizer, 0 is end-of-sequence, and every other token counts as 1 or 2, so that any policy plays.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.environments import worlds
from rljax.environments.worlds import rules, text

STOP, PAD = 0, 3


def integer(x: Any) -> jax.Array:
    return jnp.asarray(x, jnp.int32)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """What the worlds share: the symbols."""

    rows: worlds.Rows = "conversation"
    anew: bool = False
    length: int | None = None  # T; None: as many as the turns can need
    ids: tuple[int, int, int] = (0, 1, 2)  # token of each symbol

    host = False
    turn_end = ()

    @property
    def completion_length(self):
        return self.turn_length if self.rows == "chapters" else self.length or self.needed

    def corpus(self):
        yield "012"

    def bind(self, tokenizer):
        one, two = (tokenizer.encode(text)[-1] for text in "12")
        return dataclasses.replace(self, ids=(tokenizer.eos, one, two))

    def size(self, split):
        return 64

    def text(self, index, split):
        return str(index)

    def prompts(self, index, split):
        token, mask = jax.vmap(lambda i: self.prompt(self.begin(i, split, jax.random.key(0)), integer(0)))(index)
        return types.Prompts(token=token, mask=mask, index=index)

    def demonstrations(self, index, split, key):
        raise NotImplementedError

    def write(self, *symbols):
        return jnp.asarray(self.ids, jnp.int32)[jnp.stack([integer(s) for s in symbols])]

    def read(self, token, mask):
        """Return the symbols of a turn, 3 where there is none."""
        symbol = jnp.where(token == self.ids[0], 0, jnp.where(token % 2 == self.ids[1] % 2, 1, 2))
        return jnp.where(mask > 0, symbol, 3)


class TwoTurns(Tokens):
    """Two turns of at most two tokens, of one seat. A coin of the key, and the turn, decide what is answered.

    luck, 1 or 2, is in the prompt. The first turn (0) ends the episode, (2, 2) truncates it. The reply is 2, then 0 if
    the coin is 1, then (first symbol + coin) mod 3. A turn is paid 1/4 for each 1 in it. The second is paid 1 more if
    it begins with (luck + coin) mod 3, and 1/2 less if it has no end.
    """

    name = "two_turns"
    seats, max_turns, turn_length, reply_length, prompt_length = 1, 2, 2, 3, 3
    needed = 7
    parts, extra = ("ones",), ("coin",)

    def begin(self, index, split, key):
        zero = integer(0)
        luck = jax.random.randint(key, (), 1, 3, jnp.int32)
        return {"problem": integer(index), "luck": luck, "turn": zero, "coin": zero, "first": zero, "ones": zero}

    def prompt(self, state, seat):
        later = (self.rows == "chapters") & (state["turn"] > 0)
        token = self.write(jnp.where(later, state["first"], 2), jnp.where(later, 1 + state["coin"], 1), state["luck"])
        return token, jnp.stack([later, later, jnp.ones((), bool)]).astype(jnp.float32)

    def step(self, state, seat, token, mask, key):
        symbol = self.read(token, mask)
        first, last = symbol[0], state["turn"] == 1
        coin = jax.random.bernoulli(key).astype(jnp.int32)
        stopped = jnp.any(symbol == 0)
        ones = jnp.sum(symbol == 1, dtype=jnp.int32)
        hit = last & (first == (state["luck"] + state["coin"]) % 3)
        truncated = ~last & jnp.all(symbol == 2)
        new = {"turn": state["turn"] + 1, "coin": coin, "first": first, "ones": state["ones"] + ones}
        return {**state, **new}, worlds.Reply(
            token=self.write(2, 0, (first + coin) % 3)[None],
            mask=jnp.stack([jnp.ones(()), coin.astype(jnp.float32), jnp.ones(())])[None],
            reward=(ones / 4 + hit - 0.5 * (last & ~stopped)).astype(jnp.float32)[None],
            outcome=jnp.where(hit, int(types.Outcome.CORRECT), int(types.Outcome.WRONG)).astype(jnp.int32)[None],
            valid=jnp.ones(()),
            done=(~last & (first == 0)) | (last & stopped),
            truncated=truncated,
            next_seat=integer(0),
            parts={"ones": new["ones"].astype(jnp.float32)[None]},
            extra={"coin": coin.astype(jnp.float32)},
            domain=state["problem"] % 2,
        )


@dataclasses.dataclass(frozen=True)
class Cards(Tokens):
    """A private card for each of two seats, at most five turns of at most three tokens.

    Both seats are told a die of the key after each turn, the writer only if the die is 2; from the third turn on, the
    other seat is also told the writer's card. After the second turn the key decides whether seat 1 writes again;
    otherwise the seats alternate. A turn that begins with 0 folds, but not in turns 1 and 2: so nothing that seat 0
    reads or writes before the third turn depends on the card of seat 1. A turn takes 1/4 from the other seat for each
    of its tokens; after a fold the writer pays 1; the higher card gets 1/2 after the last turn.
    """

    more: int = 0  # added to the card of seat 1

    name = "cards"
    seats, max_turns, turn_length, reply_length, prompt_length = 2, 5, 3, 2, 2
    needed = 23  # 5 turns of 3 tokens, 4 replies of 2
    parts, extra = ("written",), ("die",)

    def begin(self, index, split, key):
        card = jax.random.randint(key, (2,), 0, 3, jnp.int32)
        card = card.at[1].set((card[1] + self.more) % 3)
        return {"problem": integer(index), "card": card, "turn": integer(0), "die": integer(1), "written": card * 0}

    def prompt(self, state, seat):
        return self.write(state["die"], state["card"][seat]), jnp.ones((2,))

    def step(self, state, seat, token, mask, key):
        symbol, turn = self.read(token, mask), state["turn"]
        roll, again = jax.random.bits(key, (2,)) % 2
        die, count = integer(roll) + 1, jnp.sum(symbol < 3, dtype=jnp.int32)
        mine = jnp.arange(2) == seat
        fold = (symbol[0] == 0) & ((turn == 0) | (turn > 2))
        last = turn == self.max_turns - 1
        higher = jnp.sign(state["card"] - state["card"][::-1])
        paid = jnp.where(mine, count, -count) / 4 + jnp.where(mine, -1, 1) * fold + higher / 2 * (last & ~fold)
        following = jnp.where((turn == 1) & (again == 1), seat, 1 - seat)
        written = state["written"] + mine * count
        shown = jnp.where(mine, 0.0, turn > 1)
        read = jnp.where(mine, die == 2, True).astype(jnp.float32)
        won = jnp.where(fold, ~mine, higher > 0)
        return {**state, "turn": turn + 1, "die": die, "written": written}, worlds.Reply(
            token=jnp.broadcast_to(self.write(state["card"][seat], die), (2, 2)),
            mask=jnp.stack([shown, read], axis=1),
            reward=paid.astype(jnp.float32),
            outcome=jnp.where(won, int(types.Outcome.CORRECT), int(types.Outcome.WRONG)).astype(jnp.int32),
            valid=jnp.ones(()),
            done=fold,
            truncated=last & ~fold,
            next_seat=following.astype(jnp.int32),
            parts={"written": written.astype(jnp.float32)},
            extra={"die": die.astype(jnp.float32)},
            domain=state["problem"] % 2,
        )


@environments.task
def two_turns(rows: str = "conversation", anew: bool = False) -> TwoTurns:
    """Two turns; see ``TwoTurns``."""
    return TwoTurns(rows, anew)


@environments.task
def cards(rows: str = "conversation", length: int = 0) -> Cards:
    """Two seats; see ``Cards``."""
    return Cards(rows, length=length or None)


@dataclasses.dataclass(frozen=True)
class Broken(TwoTurns):
    """A world with one defect, by name."""

    defect: str = ""

    @property
    def turn_length(self):
        return 9 if self.defect == "turn" else 2

    @property
    def max_turns(self):
        return 0 if self.defect == "turns" else 2

    @property
    def completion_length(self):
        return 7

    def begin(self, index, split, key):
        if self.defect == "begin":
            raise KeyError("no problems")
        return super().begin(index, split, key)

    def prompt(self, state, seat):
        token, mask = super().prompt(state, seat)
        return (token[:-1] if self.defect == "prompt" else token), mask

    def step(self, state, seat, token, mask, key):
        if self.defect == "step":
            raise RuntimeError("out of cards")
        following, reply = super().step(state, seat, token, mask, key)
        if self.defect == "state":
            following = {**following, "new": following["turn"]}
        if self.defect == "drifts":
            following = {**following, "turn": following["turn"] / 2}
        changes: dict[str, Any] = {
            "long": {"token": jnp.zeros((1, 4), jnp.int32), "mask": jnp.ones((1, 4))},
            "float": {"token": reply.token * 1.0},
            "reward": {"reward": reply.reward[0]},
            "done": {"done": reply.done.astype(jnp.float32)},
            "parts": {"parts": {"twos": reply.reward}},
            "extra": {"extra": {}},
        }
        return following, reply.replace(**changes.get(self.defect, {}))


@environments.task
def broken(defect: str) -> Broken:
    """A defect; see ``Broken``."""
    return Broken(defect=defect)


@dataclasses.dataclass(frozen=True)
class Echo:
    """Characters: the reply repeats the turn ``times`` times, but has room for four."""

    times: int = 2

    name, alphabet, prompt_length, turn_length, reply_length, max_turns = "echo", "ab", 2, 3, 4, 2

    def size(self, split):
        return 64

    def begin(self, index, split, key):
        return {"turn": integer(0)}

    def prompt(self, state, seat):
        return rules.line("ab")

    def step(self, state, seat, text, key):
        answer = rules.Answer(rules.line(*[text] * self.times), reward=1.0, done=state["turn"] == 1, outcome=1)
        return {"turn": state["turn"] + 1}, answer

    def expert(self, state, seat, key):
        return rules.line("aab")


@environments.task
def echo(times: int = 2) -> text.TextWorld:
    """Long replies; see ``Echo``."""
    return text.TextWorld(Echo(times))
