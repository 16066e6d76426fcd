"""Propose and solve: one seat writes problems of arithmetic, the other one solves them."""

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


@dataclasses.dataclass(frozen=True)
class Propose:
    """Rules: seat 0 reads ``37+48?`` and writes another problem; seat 1 reads it with ``=`` and writes its value.

    A problem is two numbers of at most ``digits`` digits, without leading zeros, with an operator between them; it
    differs from the one that was read. The prompt of each attempt is the same. A problem out of form ends the episode,
    and its outcome for seat 0 is UNPARSEABLE. Seat 1 is paid 1 for each right attempt; seat 0 is paid nothing by the
    world: the part ``solver_success`` is the share of right attempts, which ``reward.learnability`` reads. An episode's
    domain is the operator of the proposal.
    """

    digits: Annotated[int, types.Range(1, 4)] = setting(2, "The most decimal digits of a number.")
    operators: str = setting("+-*", "Some of +-*, without repeats.")
    attempts: Annotated[int, types.Range(1, 64)] = setting(2, "Attempts at each problem.")

    name = "propose"
    alphabet = "0123456789+-*=?"
    seats = 2
    rows = "chapters"
    parts = ("solver_success",)
    reply_length = 1

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        if not self.operators or set(self.operators) - set("+-*") or len(set(self.operators)) < len(self.operators):
            raise ValueError(f"operators: {self.operators!r} is not a choice, without repeats, from '+-*'")

    @property
    def domains(self) -> int:
        """One for each operator."""
        return len(self.operators)

    @property
    def turn_length(self) -> int:
        """The most characters of a problem; answers are not longer."""
        return 2 * self.digits + 1

    @property
    def prompt_length(self) -> int:
        """A problem and one character."""
        return self.turn_length + 1

    @property
    def max_turns(self) -> int:
        """One proposal, then the attempts."""
        return 1 + self.attempts

    def size(self, split: Split) -> int:
        """Return the number of problems; the one that is read first is drawn."""
        return 2**20 if split == "train" else 2**10

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Draw the problem that the proposer reads."""
        problem = self._draw(key)
        zero = jnp.int32(0)
        return {"given": problem, "problem": problem, "value": zero, "domain": zero, "turn": zero, "solved": zero}

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write the problem that was given, or the one that was proposed."""
        return jnp.where(seat == 0, rules.line(state["given"], "?"), rules.line(state["problem"], "="))

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Read a proposal, or judge an answer."""
        proposes = state["turn"] == 0
        value, domain, well_formed = self._read(text)
        domain = jnp.where(proposes, domain, state["domain"])
        fresh = well_formed & jnp.any(text != state["given"])
        right = ~proposes & jnp.all(text == self._written(state["value"]))
        solved = state["solved"] + right
        malformed = proposes & ~fresh
        success = solved / self.attempts
        outcome = jnp.where(solved > 0, types.Outcome.CORRECT, types.Outcome.WRONG)
        answer = rules.Answer(
            rules.line(""),
            reward=jnp.stack([jnp.zeros(()), right.astype(jnp.float32)]),
            done=malformed | (state["turn"] == self.attempts),
            outcome=jnp.stack([jnp.where(malformed, types.Outcome.UNPARSEABLE, outcome), outcome]),
            next_seat=1,
            parts={"solver_success": success},
            domain=domain,
        )
        after = {
            "given": state["given"],
            "problem": jnp.where(proposes, text, state["problem"]),
            "value": jnp.where(proposes, value, state["value"]),
            "domain": domain,
            "turn": state["turn"] + 1,
            "solved": solved,
        }
        return after, answer

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Write a random problem of numbers of random lengths, or the right answer."""
        first, second = self._draw(key), self._draw(jax.random.fold_in(key, 1))
        proposal = jnp.where(jnp.all(first == state["given"]), second, first)
        return jnp.where(state["turn"] == 0, proposal, self._written(state["value"]))

    def _draw(self, key: types.Key) -> Array:
        """Return a random problem ``[turn_length]``."""
        lengths, numbers, operator = jax.random.split(key, 3)
        above = 10 ** jax.random.randint(lengths, (2,), 1, self.digits + 1)
        a, b = jax.random.randint(numbers, (2,), 0, above)
        sign = jnp.asarray(characters.codes(self.operators))[jax.random.randint(operator, (), 0, len(self.operators))]
        return self._packed(rules.line(rules.decimal(a, self.digits), sign, rules.decimal(b, self.digits)))

    def _read(self, text: Array) -> tuple[Array, Array, Array]:
        """Return the value of a problem ``[turn_length]``, the place of its operator, and whether it is in form."""
        operator = characters.among(text, self.operators)
        place, at = jnp.argmax(operator), jnp.arange(text.shape[0])
        well_formed = jnp.sum(operator) == 1
        numbers = []
        for start, there in ((0, at < place), (place + 1, at > place)):
            number = jnp.where(there, text, 0)
            value, readable = rules.number(number)
            count = jnp.sum(number != 0)
            first = jnp.take(text, start, mode="clip")
            well_formed &= readable & (count <= self.digits) & ((first != ord("0")) | (count == 1))
            numbers.append(value)
        a, b = numbers
        sign = text[place]
        value = jnp.where(sign == ord("+"), a + b, jnp.where(sign == ord("-"), a - b, a * b))
        domain = jnp.argmax(jnp.asarray(characters.codes(self.operators)) == sign).astype(jnp.int32)
        return jnp.where(well_formed, value, 0), domain, well_formed

    def _written(self, value: Array) -> Array:
        """Return an integer in decimal: ``[turn_length]``."""
        return self._packed(characters.signed(value[None], 2 * self.digits)[0])

    def _packed(self, text: Array) -> Array:
        return characters.pack(text[None], self.turn_length)[0]


propose = text.of(Propose)
