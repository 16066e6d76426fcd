"""Kuhn poker and Leduc hold'em: their texts and their experts. Cards are J, Q and K."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import characters
from rljax.environments.worlds.shipped.games import perfect, variants

State = Any
CARDS = "JQK"


def _letter(card: types.Array) -> types.Array:
    return jnp.asarray(characters.codes(CARDS), jnp.int32)[card]


class Cards(variants.Variant):
    """What the games with cards have in common."""

    separator = " "
    remembers = True
    view_length = 1
    openings = 0

    def view(self, state: State, player: types.Array) -> types.Array:
        """Return the player's own card."""
        return _letter(state._cards[player])[None]


class KuhnPoker(Cards):
    """Three cards, one each, one bet (Kuhn, A simplified two-person poker, 1950)."""

    name = "kuhn_poker"
    alphabet = "JQKabcdefhklot >"
    max_turns, turns_each = 3, 2
    move_length = 5
    stake = 2.0

    def names(self, state: State) -> types.Array:
        """Return the words for putting a chip into the pot, and for not doing so."""
        first, second = characters.words(("bet", "check")), characters.words(("call\0", "fold\0"))
        return jnp.where(state._last_action == 0, second, first)

    def expert(self, state: State, key: types.Key) -> types.Array:
        """Return a move of an equilibrium strategy."""
        faced = (state._last_action == 0).astype(jnp.int32)
        second = state._step_count % 2  # the third move is the first player's again
        row = 3 * (2 * second + faced) + state._cards[state.current_player]
        chance = jnp.asarray(perfect.kuhn_poker(1 / 6), jnp.float32)[row]
        return jnp.where(jax.random.uniform(key) < chance, 0, 1).astype(jnp.int32)


class LeducHoldem(Cards):
    """Six cards, one each and a public one, two rounds of at most two raises (Southey et al., Bayes' Bluff, 2005)."""

    name = "leduc_holdem"
    alphabet = "JQKacdefhiklors >"
    max_turns, turns_each, replies = 8, 4, 2
    move_length, event_length = 5, 2
    stake = 13.0  # 1 chip, two raises by 2, and two by 4

    def dealt(self, state: State, first: types.Array) -> State:
        """Return a first state in which player ``first`` moves."""
        first = jnp.asarray(first, jnp.int32)
        return state.replace(current_player=first, _first_player=first)

    def names(self, state: State) -> types.Array:
        """Return the words for matching the other's chips, for raising and for folding."""
        owed = state._chips[0] != state._chips[1]
        faced, free = characters.words(("call", "raise", "fold")), characters.words(("check", "raise", "fold"))
        return jnp.where(owed, faced, free)

    def event(self, before: State, after: State) -> types.Array:
        """Return the public card, once the first round is over and nobody has folded."""
        shown = (before._round == 0) & (after._round == 1) & ~after.terminated
        return jnp.where(shown, jnp.stack([jnp.asarray(ord(" ")), _letter(after._cards[2])]), 0)

    def expert(self, state: State, key: types.Key) -> types.Array:
        """Return a sensible move: raise with a pair or a king, fold a jack to a raise; it is no equilibrium."""
        card = state._cards[state.current_player]
        pair = (state._round == 1) & (card == state._cards[2])
        strong, weak = pair | (card == 2), (card == 0) & ~pair
        owed = state._chips[0] != state._chips[1]
        choice = jnp.where(strong, 1, jnp.where(weak & owed, 2, 0))
        legal = state.legal_action_mask
        action = jnp.arange(3)
        return variants.best((legal & (action == choice), legal & (action == 0)), key)
