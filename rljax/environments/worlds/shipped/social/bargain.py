"""Negotiation: two seats with private values divide items by offers, ``312:415``."""

import dataclasses
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import Share, setting

Array = types.Array
_VALUES = 9  # an item is worth 1 to 9


@dataclasses.dataclass(frozen=True)
class Bargain:
    """Rules: a turn is an offer, how many of each kind the writer keeps, or ``y``, which accepts the other's offer.

    A prompt has the number of items of each kind and what one of them is worth to the seat, ``312:415``; a seat does
    not read the other's values. Seats alternate and seat 0 begins. An offer such as ``210`` is read by the other seat,
    and stands for its next turn only. Another text, or ``y`` without an offer, offers nothing; both are told ``?``.

    The reward of a seat is what it has after a deal as a share of what all items are worth to it; without a deal within
    ``turns`` both get 0. A share of at least one half is correct. Parts: ``agreed``; ``joint``, the sum of both shares
    relative to that of the best division (Lewis et al., Deal or No Deal?, arXiv 1706.05125, has such a game).

    An expert demands everything at first and concedes a share that decreases evenly to ``floor`` in the last turn:
    of all divisions that give it its demand, it keeps the fewest items. It accepts what is worth as much as its next
    offer, and in the last turn everything. No numbers of items with both seats' values are in both splits.
    """

    kinds: Annotated[int, types.Range(2, 4)] = setting(3, "Kinds of items.")
    most: Annotated[int, types.Range(1, 4)] = setting(3, "The most items of a kind; there is at least one.")
    turns: Annotated[int, types.Range(2, 16)] = setting(6, "The most turns of both seats together.")
    floor: Share = setting(0.5, "Share that an expert demands in the last turn.")
    heldout: Annotated[float, types.Range(0.01, 0.5)] = setting(0.1, "Fraction of the problems that is held out.")

    name = "bargain"
    seats = 2
    alphabet = "0123456789:y?"
    parts = ("agreed", "joint")

    __post_init__ = settings.check

    @property
    def prompt_length(self) -> int:
        """Numbers and values."""
        return 2 * self.kinds + 1

    @property
    def turn_length(self) -> int:
        """A number of each kind."""
        return self.kinds

    reply_length = turn_length

    @property
    def max_turns(self) -> int:
        """The most turns of both seats."""
        return self.turns

    @property
    def turns_each(self) -> int:
        """Those of seat 0."""
        return -(-self.turns // 2)

    @property
    def _radices(self) -> list[int]:
        return [*[self.most] * self.kinds, *[_VALUES] * (2 * self.kinds)]

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return numbering.size(self._radices, self.heldout, split)

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the number of items [kinds] and their values [seats, kinds]."""
        values = numbering.values(self._radices, self.heldout, index[None], split)[0] + 1
        none = jnp.full(self.kinds, -1, jnp.int32)  # no offer stands
        count, worth = values[: self.kinds], values[self.kinds :].reshape(2, self.kinds)
        return {"count": count, "worth": worth, "offer": none, "turn": jnp.int32(0)}

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write the number of items and the values of a seat."""
        return rules.line(state["count"] + ord("0"), ":", state["worth"][seat] + ord("0"))

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Note an offer, or divide."""
        count, worth, writes = state["count"], state["worth"], jnp.arange(2) == seat
        kept, stands = text - ord("0"), state["offer"][0] >= 0
        offers = jnp.all((kept >= 0) & (kept <= count))
        accepts = stands & jnp.all(text == rules.line("y", jnp.zeros(self.kinds - 1, jnp.int32)))
        has = jnp.where(writes[:, None], (count - state["offer"])[None], state["offer"][None])  # [seats, kinds]
        total = worth @ count
        share = jnp.where(accepts, jnp.sum(worth * has, axis=1) / total, 0.0)
        best = jnp.sum(count * jnp.max(worth / total[:, None], axis=0))
        readable = offers | accepts
        strange = rules.line("?", jnp.zeros(self.kinds - 1, jnp.int32))
        reply = jnp.where(readable, jnp.where(writes[:, None], 0, text[None]), strange[None])
        missed = jnp.where(writes & ~readable, types.Outcome.UNPARSEABLE, types.Outcome.WRONG)
        answer = rules.Answer(
            reply,
            reward=share,
            done=accepts | (state["turn"] == self.turns - 1),
            outcome=jnp.where(accepts & (share >= 0.5), types.Outcome.CORRECT, missed),
            next_seat=1 - seat,
            parts={"agreed": accepts, "joint": jnp.sum(share) / best},
        )
        return {**state, "offer": jnp.where(offers, kept, -1), "turn": state["turn"] + 1}, answer

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Write the next offer, or accept."""
        count, worth = state["count"], state["worth"][seat]
        divisions = jnp.asarray(np.indices([self.most + 1] * self.kinds).reshape(self.kinds, -1).T, jnp.int32)
        value, total = divisions @ worth, worth @ count
        demand = 1 - (1 - self.floor) * state["turn"] / (self.turns - 1)
        enough = (value >= demand * total - 1e-3) & jnp.all(divisions <= count[None], axis=1)
        place = jnp.argmin(jnp.where(enough, jnp.sum(divisions, axis=1) * 1024 - value, 2**20))
        offered = worth @ (count - state["offer"])
        accepts = (state["offer"][0] >= 0) & ((offered >= value[place]) | (state["turn"] == self.turns - 1))
        return rules.either(accepts, rules.line("y"), divisions[place] + ord("0"))


bargain = text.of(Bargain)
