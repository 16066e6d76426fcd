"""Calculator: arithmetic that is done by calling a tool, ``347*829+151=``."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split, characters
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import Share, setting

_SPACE = 2**31 - 2**20  # products below it are exact in int32 also where float32 rounds them


@dataclasses.dataclass(frozen=True)
class Calculator:
    """Rules: a turn is a call of the tool, ``347*829``, or the answer, ``=287814``, which ends the episode.

    A question is a product of two numbers, plus the other numbers. The tool computes one product or sum of two numbers
    and tells the result. What is neither a call nor an answer, and a call whose result has more digits than the longest
    answer, is malformed: it is told ``?``. The reward of the right answer is 1; zeros may lead a number.

    An expert calls the tool once for each operator and answers. A share of 1 - ``skill`` of the demonstrations answers
    at once by a random number, as a model does that has not learned to use the tool.

    Parts: ``calls``, the calls that the tool answered; ``malformed``, the malformed turns.
    """

    digits: Annotated[int, types.Range(1, 4)] = setting(3, "Digits of each number of a question; none begins with 0.")
    terms: Annotated[int, types.Range(2, 4)] = setting(3, "Numbers of a question.")
    turns: int | None = setting(None, "The most turns of an episode; None: as many as terms, the expert's.")
    skill: Share = setting(1.0, "Share of the demonstrations that use the tool.")
    heldout: Annotated[float, types.Range(0, 0.5, open_low=True)] = setting(0.1, "Fraction of the questions held out.")

    name = "calculator"
    alphabet = "0123456789*+=?"
    parts = ("calls", "malformed")

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        if self.turns is not None and not self.terms <= self.turns <= 64:
            raise ValueError(f"turns: {self.turns} is not in [{self.terms}, 64]; {self.terms} terms need {self.terms}")

    @property
    def width(self) -> int:
        """Digits of the longest answer."""
        largest = 10**self.digits - 1
        return len(str(largest**2 + (self.terms - 2) * largest))

    @property
    def prompt_length(self) -> int:
        """The numbers, an operator between two of them, and the sign of equality."""
        return self.terms * (self.digits + 1)

    @property
    def turn_length(self) -> int:
        """A call with the numbers of a question and, if there are several calls, an earlier result."""
        return 1 + self.digits + (self.digits if self.terms == 2 else self.width)

    @property
    def reply_length(self) -> int:
        """A result."""
        return self.width

    @property
    def max_turns(self) -> int:
        """The most turns."""
        return self.terms if self.turns is None else self.turns

    def size(self, split: Split) -> int:
        """Return the number of questions of a split."""
        return numbering.size(self._radices, self.heldout, split)

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return the numbers of question ``index``, and counters; ``known`` counts results on the way to the answer."""
        number = numbering.values(self._radices, self.heldout, index[None], split)[0] + 10 ** (self.digits - 1)
        return {"number": number, "known": jnp.int32(0), **rules.counters(self)}

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write the question."""
        parts: list[str | types.Array] = []
        for i in range(self.terms):
            parts += [("", "*", "+", "+")[i], rules.decimal(state["number"][i], self.digits)]
        return rules.line(*parts, "=")

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Compute a call, or judge an answer."""
        results = self._results(state)
        value, readable = rules.number(text[1:])
        answers = (text[0] == ord("=")) & readable
        result, called = self._call(text)
        bad = ~answers & ~called
        hit = answers & (value == results[-1])
        nearer = called & (result == results[jnp.minimum(state["known"] + 1, self.terms - 1)])
        state = rules.counted(state, calls=called, malformed=bad)
        state["known"] = jnp.minimum(state["known"] + nearer, self.terms - 1)
        return state, rules.judged(self, state, rules.decimal(result, self.width), hit, ~bad, answers)

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write the next call, or the answer when its value is known."""
        results, known = self._results(state), state["known"]
        chance, draw = jax.random.split(key)
        guesses = (state["turn"] == 0) & ~jax.random.bernoulli(chance, self.skill)
        random = jax.random.randint(draw, (), 10 ** (self.width - 2), 10**self.width)
        answers = guesses | (known == self.terms - 1)
        value = jnp.where(guesses, random, results[-1])
        answer = rules.line("=", rules.decimal(value, self.width))
        sign = jnp.where(known == 0, ord("*"), ord("+"))
        following = state["number"][jnp.minimum(known + 1, self.terms - 1)]
        call = rules.line(rules.decimal(results[known], self.width), sign, rules.decimal(following, self.digits))
        return rules.either(answers, answer, call)

    @property
    def _radices(self) -> tuple[int, ...]:
        return (9 * 10 ** (self.digits - 1),) * self.terms

    def _results(self, state: Any) -> types.Array:
        """Return the first number, its product with the second one, and the sums, [terms]; the last is the answer."""
        number = state["number"]
        return jnp.concatenate([number[:1], number[0] * number[1] + jnp.cumsum(number[1:]) - number[1]])

    def _call(self, text: types.Array) -> tuple[types.Array, types.Array]:
        """Return the result of a call, and whether the text is a call that has one."""
        sign = characters.among(text, "*+")
        before = jnp.cumsum(sign) == 0
        left, first = rules.number(jnp.where(before, text, 0))
        after = jnp.where(before | (sign & (jnp.cumsum(sign) == 1)), 0, text)
        right, second = rules.number(characters.pack(after[None], text.shape[0])[0])
        product = jnp.any(sign & (text == ord("*")))
        small = left.astype(jnp.float32) * right.astype(jnp.float32) < _SPACE
        result = jnp.where(product, left * right, left + right)
        fits = (small | ~product) & (result < 10**self.width)
        return result, first & second & fits & (jnp.sum(sign) == 1)


calculator = text.of_rows(Calculator)
