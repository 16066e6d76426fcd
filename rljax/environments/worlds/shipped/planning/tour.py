"""Travelling salesman: visit cities of a grid in an order that is short, ``a31 b08 c75``."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.environments.worlds import rules, text
from rljax.environments.worlds.shipped.planning import plan
from rljax.language.settings import setting

Array = types.Array
Cities = Annotated[int, types.Range(4, 8)]
_FAR = 2**20  # above every length


@dataclasses.dataclass(frozen=True)
class Tour(plan.Planned):
    """Rules: a turn is the letter of the next city; after the last city the tour returns to ``a``, where it began.

    A prompt has the letter and the coordinates of each city: ``a31 b08 c75 d20``. Distances are Manhattan distances.
    The reply is the length so far; that of the last city includes the way back. A city that has been visited, ``a``
    included, or another text is told ``?``.

    The least length is computed by dynamic programming (Held-Karp): V[set, city] is the least length from a city
    through a set of others back to ``a``. The reward is least / length, and the least length is correct. An expert goes
    on by the shortest way from wherever it is. Parts: ``length``, so far; ``malformed``, unreadable turns.
    """

    cities: Cities | tuple[Cities, Cities] = setting(5, "Cities; (least, most): each number is a domain.")
    side: Annotated[int, types.Range(3, 10)] = setting(10, "Columns and rows of the grid.")

    name = "tour"
    knob = "cities"
    parts = ("length", "malformed")
    turn_length = 1
    reply_length = 3

    @property
    def alphabet(self) -> str:
        """Digits, cities and marks."""
        return "0123456789" + "abcdefgh"[: self.span[1]] + " ?"

    @property
    def prompt_length(self) -> int:
        """A letter, two digits and a separator for each city."""
        return 4 * self.span[1]

    @property
    def max_turns(self) -> int:
        """Every city but ``a``, and the spare ones."""
        return self.span[1] - 1 + self.spare

    def radices(self, size: int) -> Sequence[int]:
        """The rank of each city's cell among those that are free."""
        return [self.side**2 - n for n in range(size)]

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return problem ``index``: coordinates [cities, 2], the table V, and the set of cities that are left."""
        ranks, size = self.problem(index, split)
        free, cells = jnp.ones(self.side**2, bool), []
        for rank in ranks:
            cells.append(jnp.argmax(jnp.cumsum(free) > rank).astype(jnp.int32))
            free = free.at[cells[-1]].set(False)
        cell = jnp.stack(cells)
        place = jnp.stack([cell % self.side, cell // self.side], axis=1)
        left = jnp.left_shift(1, size) - 2  # bit n is city n; a is visited
        state = {"place": place, "table": self._table(place), "left": left, "size": size}
        state["best"] = state["table"][left, 0]
        return {**state, "at": jnp.int32(0), **rules.counters(self)}

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write letters and coordinates."""
        parts = [rules.line(f" {chr(97 + c)}"[c == 0 :], at + ord("0")) for c, at in enumerate(state["place"])]
        return rules.line(*(jnp.where(c < state["size"], part, 0) for c, part in enumerate(parts)))

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Go to a city, and back from the last one."""
        city = jnp.clip(text[0] - ord("a"), 0, self.span[1] - 1)
        readable = (text[0] == city + ord("a")) & (state["left"] >> city & 1 > 0)
        left = jnp.where(readable, state["left"] & ~jnp.left_shift(1, city), state["left"])
        between = _distances(state["place"])
        way = between[state["at"], city] + jnp.where(left == 0, between[city, 0], 0)
        after = rules.counted(state, length=jnp.where(readable, way, 0), malformed=~readable)
        after |= {"left": left, "at": jnp.where(readable, city, state["at"])}
        reply = rules.decimal(after["length"], 3)
        return after, self.paid(after, reply, readable, left == 0, after["length"], after["best"])

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Write the next city of the shortest way; the first one where there are several."""
        way = _onward(state["place"], state["table"])[state["left"], state["at"]]
        allowed = state["left"] >> jnp.arange(self.span[1]) & 1 > 0
        return (plan.slipped(key, self.slip, jnp.argmin(way), allowed) + ord("a"))[None]

    def _table(self, place: Array) -> Array:
        """Return V, [sets, cities] int32: sets are bits of cities."""
        start = jnp.full((2 ** self.span[1], self.span[1]), _FAR, jnp.int32).at[0].set(_distances(place)[0])

        def grow(_: Any, table: Array) -> Array:  # after n rounds it is right for sets of up to n cities
            return table.at[1:].set(jnp.min(_onward(place, table), axis=2)[1:])

        return jax.lax.fori_loop(0, self.span[1] - 1, grow, start)


def _distances(place: Array) -> Array:
    """Return Manhattan distances, [cities, cities] int32."""
    return jnp.sum(jnp.abs(place[:, None] - place[None]), axis=2)


def _onward(place: Array, table: Array) -> Array:
    """Return the length from a city through a set, if it starts with a city of the set: [sets, cities, first]."""
    sets, city = np.arange(table.shape[0])[:, None], np.arange(place.shape[0])
    rest = table[sets & ~(1 << city), city]  # [sets, first]
    return jnp.where((sets >> city & 1 > 0)[:, None], _distances(place)[None] + rest[:, None], _FAR)


tour = text.of(Tour)
