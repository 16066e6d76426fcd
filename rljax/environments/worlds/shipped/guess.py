"""Guess a number: the world compares it with the secret, or answers questions about it; or turns are tagged."""

import abc
import dataclasses
import math
from typing import Annotated, Any

import jax.numpy as jnp

from rljax import environments, types
from rljax.data import shuffle
from rljax.environments import Split
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules
from rljax.environments.worlds.text import TextWorld
from rljax.language import settings
from rljax.language.settings import Share, setting

_SEED = 6  # decides the secrets; part of the worlds, not of a run
_EVEN = 2**20  # problems of a split where both splits have all secrets


@dataclasses.dataclass(frozen=True)
class Secret:
    """What the secret is, and what finding it pays: 1 - ``efficiency`` * (wrong turns) / ``turns``.

    The secret is a function of the problem's number and of nothing else. Prompts do not tell it, so they are the same
    in both splits; with ``heldout`` above 0 the secrets are not.
    """

    numbers: Annotated[int, types.Range(2, 1000)] = setting(64, "The secret is below this number.")
    turns: Annotated[int, types.Range(2, 64)] = setting(6, "The most turns.")
    efficiency: Share = setting(0.0, "What is left unpaid if all turns are used, as a share.")
    heldout: Annotated[float, types.Range(0, 0.5)] = setting(
        0.0, "Fraction of the secrets that only held-out problems have; 0: all secrets are in both splits."
    )

    __post_init__ = settings.check

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return numbering.size([self.numbers], self.heldout, split) if self.heldout else _EVEN

    def draw(self, index: types.Array, split: Split) -> types.Array:
        """Return the secret of problem ``index``."""
        if self.heldout:
            return numbering.values([self.numbers], self.heldout, index[None], split)[0, 0]
        return shuffle.permute(index, _EVEN, _SEED + (split == "heldout")) % self.numbers

    def paid(self, hit: types.Array, turn: types.Array) -> types.Array:
        """Return the reward of turn ``turn``, counted from 1."""
        return jnp.where(hit, 1.0 - self.efficiency * (turn - 1) / self.turns, 0.0)


@dataclasses.dataclass(frozen=True)
class Guessing(abc.ABC):
    """What worlds with a secret number have in common; they differ in what may be asked."""

    secret: Secret = dataclasses.field(default_factory=Secret)

    parts = ("malformed",)
    prompt_length = 5
    reply_length = 1

    @property
    def max_turns(self) -> int:
        """The most turns, a right number included."""
        return self.secret.turns

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self.secret.size(split)

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write how many numbers there are."""
        return rules.line(f"{self.secret.numbers}?")

    @abc.abstractmethod
    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Answer a question or a guess."""

    def answered(
        self, state: Any, hit: types.Array, readable: types.Array, character: types.Array
    ) -> tuple[Any, rules.Answer]:
        """Count the turn, pay, and tell one character."""
        state = rules.counted(state, malformed=~readable)
        answer = rules.judged(self, state, character[None], hit, readable)
        return state, answer.replace(reward=self.secret.paid(hit, state["turn"]))


class Guess(Guessing):
    """Rules: a wrong guess is answered by ``+``, the secret is higher, or ``-``, it is lower; ``?`` if unreadable.

    An expert halves the numbers that remain. Parts: ``malformed``, unreadable turns.
    """

    name = "guess"
    alphabet = "0123456789?+-"
    turn_length = 3

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return the secret, and the numbers that remain."""
        secret, low, high = self.secret.draw(index, split), jnp.int32(0), jnp.int32(self.secret.numbers - 1)
        return {"secret": secret, "low": low, "high": high, **rules.counters(self)}

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Compare the guess with the secret."""
        guess, readable = rules.number(text)
        hit, above = readable & (guess == state["secret"]), guess > state["secret"]
        low = jnp.where(readable & ~above, jnp.maximum(state["low"], guess + 1), state["low"])
        high = jnp.where(readable & above, jnp.minimum(state["high"], guess - 1), state["high"])
        state = {**state, "low": low, "high": high}
        return self.answered(state, hit, readable, jnp.where(above, ord("-"), ord("+")))

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write the middle of the numbers that remain."""
        return rules.decimal((state["low"] + state["high"]) // 2, 3)


class TwentyQuestions(Guessing):
    """Rules: a turn is a question, answered by ``y`` or ``n``, or a number; the right one ends the episode.

    Questions are ``b3``, whether bit 3 of the secret is set (bit 0 is the lowest); ``/7``, whether 7 divides it; and
    ``d5``, whether its decimal notation has the digit 5. A wrong number is told ``n``, an unreadable turn ``?``; ``/0``
    is unreadable. An expert asks for all bits and names the number. Parts: ``malformed``, unreadable turns.
    """

    name = "twenty_questions"
    alphabet = "0123456789b/dyn?"

    @property
    def turn_length(self) -> int:
        """A letter and a number."""
        return 1 + len(str(self.secret.numbers - 1))

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return the secret, and how many bits, from the lowest, have been asked for."""
        return {"secret": self.secret.draw(index, split), "known": jnp.int32(0), **rules.counters(self)}

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Answer a question, or compare the number with the secret."""
        secret = state["secret"]
        guess, names = rules.number(text)
        value, readable = rules.number(text[1:])
        bit, divisor, digit = (readable & (text[0] == ord(sign)) for sign in "b/d")
        divisor, digit = divisor & (value > 0), digit & (value < 10)
        written = rules.decimal(secret, 3)
        yes = (bit & (value < 31) & ((secret >> jnp.minimum(value, 30)) & 1 > 0)) | (
            divisor & (secret % jnp.maximum(value, 1) == 0)
        )
        yes |= digit & jnp.any(written == value + ord("0"))
        hit = names & (guess == secret)
        state = {**state, "known": state["known"] + (bit & (value == state["known"]))}
        return self.answered(state, hit, names | bit | divisor | digit, jnp.where(yes, ord("y"), ord("n")))

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Ask for the next bit, or name the number."""
        question = rules.line("b", rules.decimal(state["known"], 2))
        asks = state["known"] < _bits(self.secret.numbers)
        return jnp.where(asks, question, rules.decimal(state["secret"], 3))


def _bits(numbers: int) -> int:
    return max(1, math.ceil(math.log2(numbers)))


guess = settings.constructor(lambda secret: TextWorld(Guess(secret)), Secret(), doc=Guess.__doc__)


@environments.task
def twenty_questions(
    numbers: int = 64, turns: int | None = None, efficiency: float = 0.0, heldout: float = 0.0
) -> TextWorld:
    """Find a secret number by questions about its bits, divisors and digits.

    Args:
      numbers: the secret is below this number.
      turns: the most questions and numbers; None: one for each bit, and one.
      efficiency: the reward is 1 - efficiency * (wrong turns) / turns.
      heldout: fraction of the secrets that only held-out problems have; 0: all secrets are in both splits.

    Returns:
      The world ``TwentyQuestions``, not yet bound to a tokenizer.
    """
    secret = Secret(numbers, 2 if turns is None else turns, efficiency, heldout)
    return TextWorld(TwentyQuestions(dataclasses.replace(secret, turns=turns or _bits(numbers) + 1)))


TAGS = "per"  # plan, explore, reflect: extra["tag"] is 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Tagged(Guess):
    """The rules of ``guess``, with turns of a tag and a number, ``e32``; a step that does what its tag says is paid.

    ``p`` (plan) is right in the first turn; ``e`` (explore) with a number that may still be the secret; ``r``
    (reflect) with such a number after a turn that had none. extra["tag"] is 1, 2, 3, and 0 without a tag.
    """

    bonus: float = setting(0.1, "Reward of a step that does what its tag says.")

    name = "tagged"
    extra = ("tag",)
    alphabet = Guess.alphabet + TAGS
    turn_length = Guess.turn_length + 1

    def begin(self, index: types.Array, split: environments.Split, key: types.Key) -> Any:
        """Draw the secret; ``failed``: the turn before had no number that may be the secret."""
        return super().begin(index, split, key) | {"failed": jnp.zeros((), bool)}

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Judge the number as ``guess`` does, and the tag by its rule."""
        tag = jnp.sum((text[0] == rules.line(TAGS)) * jnp.arange(1, len(TAGS) + 1))
        rest = rules.either(tag > 0, text[1:], rules.line("?"))
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
    return TextWorld(Tagged(Secret(numbers, turns), bonus))
