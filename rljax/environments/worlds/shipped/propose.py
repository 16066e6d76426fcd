"""Propose and solve: one seat writes problems, the other one solves them; here, problems of arithmetic."""

import abc
import dataclasses
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split, characters
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import setting

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Proposing(abc.ABC):
    """Rules of two seats: seat 0 reads a problem and writes another one, which seat 1 attempts to solve.

    The prompt of each attempt is the same. A problem out of form, or the one that was read, ends the episode, and its
    outcome for seat 0 is UNPARSEABLE. Seat 1 is paid 1 for each right attempt; seat 0 is paid nothing by the world: the
    part ``solver_success`` is the share of right attempts, which ``reward.learnability`` reads.
    """

    attempts: Annotated[int, types.Range(1, 64)] = setting(2, "Attempts at each problem.")

    seats = 2
    rows = "chapters"
    parts = ("solver_success",)
    reply_length = 1
    turn_length: ClassVar[int]
    wrong: ClassVar[float] = 0.0  # what seat 1 is paid for an answer that is not right
    malformed: ClassVar[float] = 0.0  # and for one that cannot be read

    @property
    def max_turns(self) -> int:
        """One proposal, then the attempts."""
        return 1 + self.attempts

    def size(self, split: Split) -> int:
        """Return the number of problems; the one that is read first is drawn."""
        return 2**20 if split == "train" else 2**10

    def context(self, index: Array, key: types.Key) -> Any:
        """Return what an episode is about, which proposals cannot change."""
        return ()

    @abc.abstractmethod
    def draw(self, context: Any, key: types.Key) -> Array:
        """Return a random problem in form, ``[turn_length]``."""

    @abc.abstractmethod
    def read(self, context: Any, text: Array) -> tuple[dict[str, Array], Array]:
        """Return a problem, of which "domain" is the domain of the episode, and whether its text is in form."""

    @abc.abstractmethod
    def asked(self, context: Any, problem: dict[str, Array], text: Array) -> Array:
        """Return the prompt of an attempt."""

    @abc.abstractmethod
    def judged(self, problem: dict[str, Array], text: Array) -> tuple[Array, Array]:
        """Return whether an answer is right, and whether it can be read."""

    @abc.abstractmethod
    def answer(self, problem: dict[str, Array]) -> Array:
        """Return a right answer, ``[turn_length]``."""

    @abc.abstractmethod
    def shown(self, context: Any, text: Array) -> Array:
        """Return the prompt of seat 0, which reads a problem."""

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Draw the problem that the proposer reads."""
        context, zero = self.context(index, jax.random.fold_in(key, 1)), jnp.int32(0)
        given = self.draw(context, key)
        problem, _ = self.read(context, given)
        return {"context": context, "given": given, "text": given, "problem": problem, "turn": zero, "solved": zero}

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write the problem that was given, or the one that was proposed."""
        given = self.shown(state["context"], state["given"])
        return rules.either(seat == 0, given, self.asked(state["context"], state["problem"], state["text"]))

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Read a proposal, or judge an answer."""
        proposes = state["turn"] == 0
        problem, formed = self.read(state["context"], text)
        refused = proposes & ~(formed & jnp.any(text != state["given"]))
        problem = jax.tree.map(lambda new, old: jnp.where(proposes, new, old), problem, state["problem"])
        right, readable = self.judged(state["problem"], text)
        right &= ~proposes
        solved = state["solved"] + right
        paid = jnp.where(right, 1.0, jnp.where(readable, self.wrong, self.malformed))
        outcome = jnp.where(solved > 0, types.Outcome.CORRECT, types.Outcome.WRONG)
        answer = rules.Answer(
            rules.line(""),
            reward=jnp.stack([jnp.zeros(()), jnp.where(proposes, 0.0, paid)]),
            done=refused | (state["turn"] == self.attempts),
            outcome=jnp.stack([jnp.where(refused, types.Outcome.UNPARSEABLE, outcome), outcome]),
            next_seat=1,
            parts={"solver_success": solved / self.attempts},
            domain=problem["domain"],
        )
        written = jnp.where(proposes, text, state["text"])
        return {**state, "text": written, "problem": problem, "turn": state["turn"] + 1, "solved": solved}, answer

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Write a random problem, or the right answer."""
        first, second = (self.draw(state["context"], k) for k in (key, jax.random.fold_in(key, 1)))
        proposal = jnp.where(jnp.all(first == state["given"]), second, first)
        return rules.either(state["turn"] == 0, proposal, self.answer(state["problem"]))


@dataclasses.dataclass(frozen=True)
class Propose(Proposing):
    """Rules: seat 0 reads ``37+48?`` and writes another problem; seat 1 reads it with ``=`` and writes its value.

    A problem is two numbers of at most ``digits`` digits, without leading zeros, with an operator between them. An
    episode's domain is the operator of the proposal. The rest is in ``Proposing``.
    """

    digits: Annotated[int, types.Range(1, 4)] = setting(2, "The most decimal digits of a number.")
    operators: str = setting("+-*", "Some of +-*, without repeats.")

    name = "propose"
    alphabet = "0123456789+-*=?"

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

    def shown(self, context: Any, text: Array) -> Array:
        """Write a problem with a question mark."""
        return rules.line(text, "?")

    def asked(self, context: Any, problem: dict[str, Array], text: Array) -> Array:
        """Write a problem with an equals sign."""
        return rules.line(text, "=")

    def judged(self, problem: dict[str, Array], text: Array) -> tuple[Array, Array]:
        """Compare an answer with the value; nothing depends on whether it can be read."""
        right = jnp.all(text == self.answer(problem))
        return right, right

    def answer(self, problem: dict[str, Array]) -> Array:
        """Write the value in decimal."""
        return self._packed(characters.signed(problem["value"][None], 2 * self.digits)[0])

    def draw(self, context: Any, key: types.Key) -> Array:
        """Return a random problem of numbers of random lengths."""
        lengths, numbers, operator = jax.random.split(key, 3)
        above = 10 ** jax.random.randint(lengths, (2,), 1, self.digits + 1)
        a, b = jax.random.randint(numbers, (2,), 0, above)
        sign = jnp.asarray(characters.codes(self.operators))[jax.random.randint(operator, (), 0, len(self.operators))]
        return self._packed(rules.line(rules.decimal(a, self.digits), sign, rules.decimal(b, self.digits)))

    def read(self, context: Any, text: Array) -> tuple[dict[str, Array], Array]:
        """Return the value of a problem and the place of its operator, and whether it is in form."""
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
        return {"value": jnp.where(well_formed, value, 0), "domain": domain}, well_formed

    def _packed(self, text: Array) -> Array:
        return characters.pack(text[None], self.turn_length)[0]


propose = text.of(Propose)
