"""Who is the spy: a voting game in which one player has another card than the rest."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split, characters
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import setting

Array = types.Array
_POSITIONS = "abcdefgh"


@dataclasses.dataclass(frozen=True)
class Spy:
    """Rules: all civilians hold the same card, some digits; one digit of the spy's card is another one.

    First every player writes a clue, without seeing the others' clues: a position and its digit, such as ``b4``; what
    is not in this form is shown as ``--``. Then every civilian reads all clues and writes the number of the player whom
    it takes for the spy; what names no other player is no vote. Players have numbers in random order, and the spy's
    prompt starts with ``s``, a civilian's with ``c``, a vote's with ``v``.

    Seat 0 is the spy, seat 1 plays every civilian in turn. The part ``votes`` is the number of votes against the spy,
    and for seat 1 the mean of those against a civilian. The spy is caught if it has more votes than every civilian; the
    outcome says who won. The world pays no reward: ``vision_zero`` makes one from the votes.
    """

    civilians: Annotated[int, types.Range(2, 8)] = setting(3, "Civilians.")
    digits: Annotated[int, types.Range(1, 8)] = setting(3, "Digits of a card.")

    name = "spy"
    seats = 2
    rows = "chapters"
    parts = ("votes",)
    turn_length = 2
    reply_length = 1

    __post_init__ = settings.check

    @property
    def alphabet(self) -> str:
        """Digits, positions and marks."""
        return "0123456789" + _POSITIONS + "sv -?"

    @property
    def players(self) -> int:
        """The spy and the civilians."""
        return self.civilians + 1

    @property
    def prompt_length(self) -> int:
        """The role, the number and the card of a player, and the clues with the numbers of their players."""
        return 3 + self.digits + 4 * self.players + 1

    @property
    def max_turns(self) -> int:
        """The clues of all players, then the votes of the civilians."""
        return self.players + self.civilians

    def size(self, split: Split) -> int:
        """Return the number of problems; cards are drawn."""
        return 2**20 if split == "train" else 2**10

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Draw cards and numbers of players; player 0 of the state is the spy, who writes first."""
        cards, place, change, order = jax.random.split(key, 4)
        card = jax.random.randint(cards, (self.digits,), 0, 10)
        changed = jax.random.randint(place, (), 0, self.digits) == jnp.arange(self.digits)
        other = jnp.where(changed, (card + jax.random.randint(change, (), 1, 10)) % 10, card)
        return {
            "cards": jnp.stack([other, card]),  # of the spy, of civilians
            "number": jax.random.permutation(order, self.players),  # of each player, from 0
            "clues": jnp.zeros((self.players, 2), jnp.int32),  # of each number, as characters
            "votes": jnp.zeros((self.players,), jnp.int32),  # against each number
            "turn": jnp.int32(0),
        }

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write the role, the number and the card of a player, and before a vote the clues."""
        votes, number = state["turn"] >= self.players, self._number(state)
        role = jnp.where(votes, ord("v"), jnp.where(seat == 0, ord("s"), ord("c")))
        parts: list[str | Array] = [role, number + ord("1"), " ", state["cards"][jnp.minimum(seat, 1)] + ord("0")]
        for i in range(self.players):
            parts.append(jnp.where(votes, rules.line(f" {i + 1}", state["clues"][i]), 0))
        return rules.line(*parts, "?")

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Note a clue or a vote; after the last vote, count them."""
        turn, number = state["turn"], self._number(state)
        voting, oneself = turn >= self.players, jnp.arange(self.players) == number
        letters = characters.among(text[0], _POSITIONS[: self.digits])
        clue = jnp.where(letters & characters.among(text[1], "0123456789"), text, rules.line("--"))
        named = (jnp.arange(self.players) + ord("1") == text[0]) & (text[1] == 0) & ~oneself
        clues = jnp.where(~voting & oneself[:, None], clue[None, :], state["clues"])
        votes = state["votes"] + (voting & named)
        spy = jnp.arange(self.players) == state["number"][0]
        against = jnp.sum(jnp.where(spy, votes, 0))
        caught = against > jnp.max(jnp.where(spy, 0, votes))
        won = jnp.stack([~caught, caught])
        answer = rules.Answer(
            rules.line(""),
            done=turn == self.max_turns - 1,
            outcome=jnp.where(won, types.Outcome.CORRECT, types.Outcome.WRONG),
            next_seat=1,
            parts={"votes": jnp.stack([against, (jnp.sum(votes) - against) / self.civilians])},
        )
        return {**state, "clues": clues, "votes": votes, "turn": turn + 1}, answer

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Write a random digit of the card, or vote against a player whose clue contradicts the card."""
        card = state["cards"][jnp.minimum(seat, 1)]
        place = jax.random.randint(key, (), 0, self.digits)
        clue = jnp.stack([ord("a") + place, card[place] + ord("0")])
        said = state["clues"]
        right = card[jnp.clip(said[:, 0] - ord("a"), 0, self.digits - 1)] + ord("0") == said[:, 1]
        chance = jax.random.uniform(key, (self.players,)) + ~right
        chance = jnp.where(jnp.arange(self.players) == self._number(state), -1.0, chance)
        vote = jnp.stack([jnp.argmax(chance) + ord("1"), 0])
        return jnp.where(state["turn"] >= self.players, vote, clue).astype(jnp.int32)

    def _number(self, state: Any) -> Array:
        """Return the number, from 0, of the player who writes; the civilians vote in the order of their clues."""
        turn = state["turn"]
        player = jnp.where(turn >= self.players, turn - self.civilians, turn)
        return state["number"][jnp.minimum(player, self.civilians)]


spy = text.of(Spy)
