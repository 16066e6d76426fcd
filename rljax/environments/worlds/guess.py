"""Guess a number: the world says whether it is higher or lower."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.environments import Split
from rljax.environments.worlds import rules
from rljax.environments.worlds.text import TextWorld
from rljax.language import settings
from rljax.language.settings import setting


@dataclasses.dataclass(frozen=True)
class Guess:
    """Rules: a secret number below ``numbers``; each wrong guess is answered by ``higher`` (+) or ``lower`` (-)."""

    numbers: int = setting(64, "The secret is below this number.")
    turns: int = setting(6, "The most guesses.")

    name = "guess"
    alphabet = "0123456789?+-"
    prompt_length = 4
    turn_length = 3
    reply_length = 1

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        for field, value, high in (("numbers", self.numbers, 1000), ("turns", self.turns, 64)):
            if not 2 <= value <= high:
                raise ValueError(f"{field}: {value} is not in [2, {high}]")

    @property
    def max_turns(self) -> int:
        """The most guesses."""
        return self.turns

    def size(self, split: Split) -> int:
        """Return the number of problems; the secret is drawn."""
        return 2**20 if split == "train" else 2**10

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Draw the secret; the state has it, and the numbers that remain."""
        secret = jax.random.randint(key, (), 0, self.numbers)
        return {"secret": secret, "low": jnp.int32(0), "high": jnp.int32(self.numbers - 1), "turn": jnp.int32(0)}

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write how many numbers there are."""
        return rules.line(f"{self.numbers}?")

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Compare the guess with the secret; what is not a number is answered by a question mark."""
        guess, readable = rules.number(text)
        hit, above = readable & (guess == state["secret"]), guess > state["secret"]
        turn = state["turn"] + 1
        low = jnp.where(readable & ~above, jnp.maximum(state["low"], guess + 1), state["low"])
        high = jnp.where(readable & above, jnp.minimum(state["high"], guess - 1), state["high"])
        reply = jnp.where(readable, rules.choose(above, "-", "+"), rules.line("?"))
        outcome = jnp.where(hit, types.Outcome.CORRECT, types.Outcome.WRONG)
        answer = rules.Answer(reply, reward=hit * 1.0, done=hit, truncated=turn >= self.turns, outcome=outcome)
        return {**state, "low": low, "high": high, "turn": turn}, answer

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write the middle of the numbers that remain."""
        middle = (state["low"] + state["high"]) // 2
        return rules.decimal(middle, 3)


@environments.task
def guess(numbers: int = 64, turns: int = 6) -> TextWorld:
    """Find a secret number in few guesses; the world answers higher or lower. See ``Guess``."""
    return TextWorld(Guess(numbers, turns))
