"""Guess a number, naming what each turn is for: rewards of rules on tagged steps."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from rljax import environments, types
from rljax.environments.worlds import rules
from rljax.environments.worlds.shipped import guess
from rljax.environments.worlds.text import TextWorld
from rljax.language.settings import setting

TAGS = "per"  # plan, explore, reflect: extra["tag"] is 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Tagged(guess.Guess):
    """The rules of ``guess``, with turns of a tag and a number, ``e32``; a step that does what its tag says is paid.

    ``p`` (plan) is right in the first turn; ``e`` (explore) with a number that may still be the secret; ``r``
    (reflect) with such a number after a turn that had none. extra["tag"] is 1, 2, 3, and 0 without a tag.
    """

    bonus: float = setting(0.1, "Reward of a step that does what its tag says.")

    name = "tagged"
    extra = ("tag",)
    alphabet = guess.Guess.alphabet + TAGS
    turn_length = guess.Guess.turn_length + 1

    def begin(self, index: types.Array, split: environments.Split, key: types.Key) -> Any:
        """Draw the secret; ``failed``: the turn before had no number that may be the secret."""
        return super().begin(index, split, key) | {"failed": jnp.zeros((), bool)}

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Judge the number as ``guess`` does, and the tag by its rule."""
        tag = jnp.sum((text[0] == rules.line(TAGS)) * jnp.arange(1, len(TAGS) + 1))
        rest = jnp.where(tag > 0, text[1:], rules.line("?", jnp.zeros(text.shape[0] - 2, jnp.int32)))
        number, readable = rules.number(rest)
        remains = readable & (number >= state["low"]) & (number <= state["high"])
        right = ((tag == 1) & (state["turn"] == 0)) | ((tag == 2) & remains) | ((tag == 3) & remains & state["failed"])
        after, answer = super().step(state, seat, rest, key)
        answer = answer.replace(reward=answer.reward + self.bonus * right, extra={"tag": tag.astype(jnp.float32)})
        return {**after, "failed": ~remains}, answer

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write the tag that fits, and the middle of the numbers that remain."""
        tag = jnp.where(state["turn"] == 0, 0, jnp.where(state["failed"], 2, 1))
        return rules.line(rules.line(TAGS)[tag], super().expert(state, seat, key))


@environments.task
def tagged(numbers: int = 64, turns: int = 6, bonus: float = 0.1) -> TextWorld:
    """Find a secret number, each guess tagged plan, explore or reflect. See ``Tagged``; after RLVMR (2507.22844)."""
    return TextWorld(Tagged(guess.Secret(numbers, turns), bonus))
