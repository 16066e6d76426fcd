"""Propose and solve programs: deduction, abduction and induction, judged by running them, ``+3*2:4``."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import characters
from rljax.environments.worlds import rules, text
from rljax.environments.worlds.shipped.propose import Proposing
from rljax.language import settings
from rljax.language.settings import setting

Array = types.Array
_KINDS = {"d": "deduction", "a": "abduction", "i": "induction"}
_SIGNS = "+-*"


@dataclasses.dataclass(frozen=True)
class Programs(Proposing):
    """Rules: seat 0 reads a kind and a program with an input, ``d+3*2:4?``, and writes another pair for seat 1.

    A program is a chain of steps on one digit, a sign and a digit each, modulo 10: ``+3*2`` makes 4 of 4. The world
    runs what seat 0 wrote, and asks by kind:

    - ``d``, deduction: the output, ``+3*2:4=``;
    - ``a``, abduction: an input that has the output, ``+3*2=4?``;
    - ``i``, induction: a program, from ``pairs`` inputs with their outputs, ``4>4 1>8 7>0?``. It is right if it has the
      outputs of the proposed one on all ten digits, most of which are not shown.

    A right answer is paid 1, a wrong one -0.5, another text -1. An episode's domain is its kind. The tasks, the
    payments and the number of attempts are those of Absolute Zero (arXiv 2505.03335), whose programs are Python. The
    rest is in ``Proposing``.
    """

    attempts: Annotated[int, types.Range(1, 64)] = setting(8, "Attempts at each problem.")
    steps: Annotated[int, types.Range(1, 4)] = setting(2, "The most steps of a program.")
    kinds: str = setting("dai", "Some of dai, without repeats: deduction, abduction, induction.")
    pairs: Annotated[int, types.Range(1, 6)] = setting(3, "Inputs whose outputs an induction shows.")

    name = "programs"
    alphabet = "0123456789+-*=?:> dai"
    wrong = -0.5
    malformed = -1.0

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        if not self.kinds or set(self.kinds) - {*_KINDS} or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds: {self.kinds!r} is not a choice, without repeats, from 'dai'")

    @property
    def domains(self) -> int:
        """One for each kind."""
        return len(self.kinds)

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The kinds."""
        return tuple(_KINDS[kind] for kind in self.kinds) if len(self.kinds) > 1 else ()

    @property
    def turn_length(self) -> int:
        """A program, a colon and an input."""
        return 2 * self.steps + 2

    @property
    def prompt_length(self) -> int:
        """A kind and a proposal, or the pairs of an induction."""
        return max(self.turn_length + 2, 4 * self.pairs)

    def context(self, index: Array, key: types.Key) -> Any:
        """Return the place of the kind, and the inputs of an induction."""
        inputs = jax.random.permutation(key, 10)[: self.pairs].astype(jnp.int32)
        return {"domain": (index % self.domains).astype(jnp.int32), "inputs": inputs}

    def draw(self, context: Any, key: types.Key) -> Array:
        """Return a random program of a random number of steps, with an input."""
        keys = jax.random.split(key, 3)
        sign = jnp.asarray(characters.codes(_SIGNS))[jax.random.randint(keys[0], (self.steps,), 0, 3)]
        digit = jax.random.randint(keys[1], (self.steps + 1,), 0, 10)
        used = jnp.arange(self.steps) < jax.random.randint(keys[2], (), 1, self.steps + 1)
        program = self._written({"sign": jnp.where(used, sign, 0), "digit": digit[:-1]})
        return characters.pack(rules.line(program, ":", digit[-1] + ord("0"))[None], self.turn_length)[0]

    def read(self, context: Any, text: Array) -> tuple[dict[str, Array], Array]:
        """Return a program and its input, and whether the text is both."""
        program, count = self._program(text)
        colon, given = (jnp.take(text, 2 * count + n, mode="clip") for n in (0, 1))
        formed = (count > 0) & (jnp.sum(text != 0) == 2 * count + 2)
        formed &= (colon == ord(":")) & characters.among(given, "0123456789")
        given = jnp.where(formed, given - ord("0"), 0)
        return program | {"input": given, "domain": context["domain"]}, formed

    def shown(self, context: Any, text: Array) -> Array:
        """Write the kind and a proposal."""
        return rules.line(jnp.asarray(characters.codes(self.kinds))[context["domain"]], text, "?")

    def asked(self, context: Any, problem: dict[str, Array], text: Array) -> Array:
        """Write what a kind asks."""
        output, program = self._run(problem, problem["input"]) + ord("0"), self._written(problem)
        pairs: list[str | Array] = []
        for one in context["inputs"]:
            pairs += [one + ord("0"), ">", self._run(problem, one) + ord("0"), " "]
        prompts = {
            "d": rules.line(text, "="),
            "a": rules.line(program, "=", output, "?"),
            "i": rules.line(*pairs[:-1], "?"),
        }
        prompt = prompts[self.kinds[0]]
        for number, kind in enumerate(self.kinds[1:], 1):
            prompt = rules.either(context["domain"] == number, prompts[kind], prompt)
        return prompt

    def judged(self, problem: dict[str, Array], text: Array) -> tuple[Array, Array]:
        """Run the proposed program, and for an induction the one that was written."""
        induces = self._is("i", problem)
        program, count = self._program(text)
        single = characters.among(text[0], "0123456789") & (text[1] == 0)
        readable = jnp.where(induces, (count > 0) & (jnp.sum(text != 0) == 2 * count), single)
        value, output = jnp.clip(text[0] - ord("0"), 0, 9), self._run(problem, problem["input"])
        digits = jnp.arange(10)
        equal = jnp.all(self._run(program, digits) == self._run(problem, digits))
        right = jnp.where(self._is("a", problem), self._run(problem, value), value) == output
        return readable & jnp.where(induces, equal, right), readable

    def answer(self, problem: dict[str, Array]) -> Array:
        """Write the output, the proposed input or the proposed program."""
        value = jnp.where(self._is("a", problem), problem["input"], self._run(problem, problem["input"]))
        return rules.either(self._is("i", problem), self._written(problem), rules.line(value + ord("0")))

    def _is(self, kind: str, problem: dict[str, Array]) -> Array:
        return problem["domain"] == self.kinds.find(kind)

    def _program(self, text: Array) -> tuple[dict[str, Array], Array]:
        """Return the steps that a text begins with, and how many they are."""
        pairs = text[: 2 * self.steps].reshape(self.steps, 2)
        step = characters.among(pairs[:, 0], _SIGNS) & characters.among(pairs[:, 1], "0123456789")
        used = jnp.cumprod(step) > 0
        return {"sign": jnp.where(used, pairs[:, 0], 0), "digit": pairs[:, 1] - ord("0")}, jnp.sum(used)

    def _written(self, program: dict[str, Array]) -> Array:
        """Return a program as a text, [2 steps]."""
        pairs = jnp.stack([program["sign"], program["digit"] + ord("0")], axis=1)
        return jnp.where(program["sign"][:, None] > 0, pairs, 0).ravel()

    def _run(self, program: dict[str, Array], value: Array) -> Array:
        """Return the outputs of inputs."""
        for sign, digit in zip(program["sign"], program["digit"], strict=True):
            after = jnp.where(
                sign == ord("+"), value + digit, jnp.where(sign == ord("-"), value - digit, value * digit)
            )
            value = jnp.where(sign > 0, after % 10, value)
        return value


programs = text.of(Programs)
