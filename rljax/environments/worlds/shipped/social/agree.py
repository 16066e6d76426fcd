"""Pure coordination: two seats that see the same items in different orders name one, ``c3 a7 f7``."""

import dataclasses
import itertools
import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split, characters
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import Share, setting

Array = types.Array
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_GAPS = 4  # letters between two items of the alphabet, and one


@dataclasses.dataclass(frozen=True)
class Agree:
    """Rules: each seat names an item without seeing the other's name; both are paid if it is the same item.

    A prompt lists letters with their worth, ``c3 a7 f7``, in an order of each seat's own. With ``messages`` each seat
    first writes a letter that the other one reads, seat 0 before seat 1; another text is shown as ``?``. Then seat 0
    and seat 1 name an item by its letter. The reward of both is the worth of the item that both named, divided by the
    greatest worth; a reward of 1 is correct.

    An expert follows a focal rule: the first letter of the alphabet among the items of the greatest worth. With
    probability 1 - ``focal`` it takes the first of them in its own prompt instead. It takes seat 0's message over
    both. Part: ``agreed``.
    """

    items: Annotated[int, types.Range(2, 6)] = setting(4, "Items.")
    worths: Annotated[int, types.Range(1, 9)] = setting(2, "An item is worth 1 up to this; 1: all are alike.")
    messages: bool = setting(False, "Whether each seat writes a letter to the other one before it names an item.")
    focal: Share = setting(1.0, "Probability that a demonstration follows the focal rule.")
    heldout: Annotated[float, types.Range(0.01, 0.5)] = setting(0.1, "Fraction of the sets of items that is held out.")

    name = "agree"
    seats = 2
    alphabet = _LETTERS + "123456789 ?"
    parts = ("agreed",)
    turn_length = 1
    reply_length = 1

    __post_init__ = settings.check

    @property
    def prompt_length(self) -> int:
        """A letter, a digit and a separator for each item."""
        return 3 * self.items

    @property
    def turns_each(self) -> int:
        """A message, and a name."""
        return 1 + self.messages

    @property
    def max_turns(self) -> int:
        """Those of both seats."""
        return 2 * self.turns_each

    @property
    def _radices(self) -> list[int]:
        return [*[_GAPS] * self.items, *[self.worths] * self.items, *[math.factorial(self.items)] * 2]

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return numbering.size(self._radices, self.heldout, split, 2 * self.items)

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the items of problem ``index`` in alphabetical order, and the order that each seat sees."""
        values = numbering.values(self._radices, self.heldout, index[None], split, 2 * self.items)[0]
        orders = np.array([*itertools.permutations(range(self.items))])
        return {
            "letter": ord("a") - 1 + jnp.cumsum(values[: self.items] + 1),
            "worth": values[self.items : -2] + 1,
            "order": jnp.asarray(orders, jnp.int32)[values[-2:]],  # [seats, items]
            "said": jnp.zeros((), jnp.int32),  # the message of seat 0
            "named": jnp.int32(-1),  # the item that seat 0 named
            "turn": jnp.int32(0),
        }

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write the items in the order of a seat."""
        order = state["order"][seat]
        letter, worth = state["letter"][order], state["worth"][order] + ord("0")
        return rules.line(jnp.stack([letter, worth, jnp.full_like(order, ord(" "))], axis=1).ravel()[:-1])

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Tell a message to the other seat, or note a name; after the second name, compare."""
        talks, over = state["turn"] < 2 * self.messages, state["turn"] == self.max_turns - 1
        is_item = state["letter"] == text[0]
        named = jnp.where(jnp.any(is_item), jnp.argmax(is_item).astype(jnp.int32), -1)
        shown = jnp.where(characters.among(text[0], _LETTERS), text[0], ord("?"))
        reply = jnp.where(talks & (jnp.arange(2) != seat), shown, 0)[:, None]
        agreed = over & (named == state["named"]) & (named >= 0)
        reward = jnp.where(agreed, state["worth"][named] / jnp.max(state["worth"]), 0.0)
        strange = jnp.stack([state["named"], named]) < 0
        missed = jnp.where(strange, types.Outcome.UNPARSEABLE, types.Outcome.WRONG)
        answer = rules.Answer(
            reply,
            reward=reward,
            done=over,
            outcome=jnp.where(reward == 1, types.Outcome.CORRECT, missed),
            next_seat=1 - seat,
            parts={"agreed": agreed},
        )
        first = seat == 0
        said = jnp.where(talks & first, shown, state["said"])
        named = jnp.where(~talks & first, named, state["named"])
        return {**state, "said": said, "named": named, "turn": state["turn"] + 1}, answer

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Write seat 0's message if it is an item, or the item of the focal rule."""
        best = state["worth"] == jnp.max(state["worth"])
        order = state["order"][seat]
        focal = jax.random.bernoulli(key, self.focal)
        wish = jnp.where(focal, jnp.argmax(best), order[jnp.argmax(best[order])])
        heard = jnp.any(state["letter"] == state["said"])
        return jnp.where(heard, state["said"], state["letter"][wish])[None]


agree = text.of(Agree)
