"""String rewriting: ``ab>c cc>a abcab:`` answered by the text after each rule, ``ccc;ac``."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import constructors, rules
from rljax.language import settings
from rljax.language.settings import setting
from rljax.types import Range

_LETTERS = "abcdef"


@dataclasses.dataclass(frozen=True)
class Rewriting:
    """Apply rules to a text, one after the other; ``ab>c`` replaces every ``ab``, from left to right, by ``c``.

    A slip is an occurrence that is overlooked, and noise another letter in place of the new one; the rules after it
    continue from what was written.
    """

    steps: Annotated[int, Range(1, 6)] = setting(2, "How many rules.")
    length: Annotated[int, Range(2, 16)] = setting(6, "Letters of the text.")
    letters: Annotated[int, Range(2, 6)] = setting(3, "How many different letters there are.")

    name = "rewriting"

    __post_init__ = settings.check

    @property
    def alphabet(self) -> str:
        """Letters and signs."""
        return _LETTERS[: self.letters] + "> :"

    @property
    def radices(self) -> tuple[int, ...]:
        """The text, and two letters and the new one of each rule."""
        return (self.letters,) * (self.length + 3 * self.steps)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a place at which a rule may apply."""
        return self.steps * (self.length - 1), self.letters

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the rules and the text."""
        code, parts = value + ord("a"), []
        for i in range(self.length, len(self.radices), 3):
            parts += [code[:, i : i + 2], ">", code[:, i + 2], " "]
        return characters.line(len(value), *parts, code[:, : self.length], ":")

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write the text after each rule."""
        text, texts, step = value[:, : self.length] + ord("a"), [], 0
        for rule in range(self.steps):
            first, second, new = value[:, self.length + 3 * rule :][:, :3].T
            taken, columns = jnp.zeros(len(value), bool), []
            for place in range(self.length - 1):
                match = (text[:, place] == first + ord("a")) & (text[:, place + 1] == second + ord("a"))
                match &= ~taken & ~slip[:, step]
                kept = jnp.where(taken, 0, text[:, place])
                columns.append(jnp.where(match, (new + off[:, step]) % self.letters + ord("a"), kept))
                taken, step = match, step + 1
            columns.append(jnp.where(taken, 0, text[:, -1]))
            text = characters.pack(jnp.stack(columns, axis=1), self.length)
            texts.append(text)
        working = [part for text in texts[:-1] for part in (text, ";")]
        return rules.Solution(characters.line(len(value), *working), texts[-1])

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the text after the last rule."""
        return rules.exact(rules.answer(self, value), written, _LETTERS[: self.letters])


rewriting = constructors.of(Rewriting)
