"""Shortest paths: ``ab3 ac1 bc2 bd1 cd4:`` answered by distances and a path, ``b3a;c1a;d4b;abd``."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import constructors, rules
from rljax.language import settings
from rljax.language.settings import setting
from rljax.types import Range

_LETTERS = "abcdefgh"
_NONE = 2**20  # the distance of an edge that is absent


@dataclasses.dataclass(frozen=True)
class Paths:
    """Find a shortest path from ``a`` to the last letter; ``ab3`` is an edge from ``a`` to ``b`` of length 3.

    Edges lead to later letters, and every letter has one to the next, so that there is a path. Each shortest path is a
    correct answer. A demonstration writes for each letter its distance from ``a`` and the letter before it. A slip is a
    letter that is reached from the preceding one without comparison, and noise a distance that is too long.
    """

    nodes: Annotated[int, Range(3, 8)] = setting(4, "How many letters.")
    longest: Annotated[int, Range(1, 9)] = setting(9, "The length of the longest edge.")

    name = "paths"

    __post_init__ = settings.check

    @property
    def alphabet(self) -> str:
        """Letters, digits and signs."""
        return _LETTERS[: self.nodes] + "0123456789 :"

    @property
    def radices(self) -> tuple[int, ...]:
        """The length of each edge, 0 if it is absent; to the next letter it is 1 more."""
        return tuple(self.longest + (j != i + 1) for i, j in self._pairs)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a letter after ``a``; a wrong distance is up to 9 too long."""
        return self.nodes - 1, 10

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the edges in alphabetical order."""
        parts = []
        for (i, j), length in self._lengths(value).items():
            edge = characters.line(len(value), " " if parts else "", _LETTERS[i] + _LETTERS[j], length + ord("0"))
            parts.append(jnp.where(length[:, None] > 0, edge, 0))
        return characters.line(len(value), *parts, ":")

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write distances and preceding letters, then the path, from its end."""
        distance, before = self._distances(value, slip, off)
        digits = len(str((self.nodes - 1) * (self.longest + 9)))
        parts: list[str | jax.Array] = []
        for j in range(1, self.nodes):
            parts += [_LETTERS[j], characters.decimal(distance[j], digits), before[j] + ord("a"), ";"]
        on = [jnp.zeros(len(value), bool)] * (self.nodes - 1) + [jnp.ones(len(value), bool)]
        for j in reversed(range(1, self.nodes)):
            on[:j] = [on[i] | (on[j] & (before[j] == i)) for i in range(j)]
        path = jnp.stack([jnp.where(on[i], ord(_LETTERS[i]), 0) for i in range(self.nodes)], axis=1)
        return rules.Solution(characters.line(len(value), *parts), path)

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Follow the path: correct if it starts and ends right, has edges that exist, and is as long as the best."""
        packed = characters.pack(written, self.nodes + 1)  # longer than every path
        node = jnp.where(packed == 0, -1, packed - ord("a"))
        total = jnp.zeros(len(value), jnp.int32)
        for (i, j), length in self._lengths(value).items():
            uses = jnp.sum((node[:, :-1] == i) & (node[:, 1:] == j), axis=1)
            total += uses * jnp.where(length > 0, length, _NONE)
        known = (node[:, :-1] < node[:, 1:]) | (node[:, 1:] < 0)  # every pair of later letters has been counted
        goes = (node[:, 0] == 0) & jnp.any(node == self.nodes - 1, axis=1) & jnp.all(known, axis=1)
        steps = jnp.zeros((len(value), self.nodes - 1), jnp.int32)
        best, _ = self._distances(value, steps > 0, steps)
        return rules.consists(written, _LETTERS[: self.nodes]), goes & (total == best[-1])

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.nodes) for j in range(i + 1, self.nodes)]

    def _lengths(self, value: jax.Array) -> dict[tuple[int, int], jax.Array]:
        return {(i, j): value[:, k] + (j == i + 1) for k, (i, j) in enumerate(self._pairs)}

    def _distances(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        """Return the distance of each letter from ``a``, and the letter before it on the path."""
        lengths = self._lengths(value)
        distance, before = [jnp.zeros(len(value), jnp.int32)], [jnp.zeros(len(value), jnp.int32)]
        for j in range(1, self.nodes):
            reach = [distance[i] + jnp.where(lengths[i, j] > 0, lengths[i, j], _NONE) for i in range(j)]
            best, choice = reach[-1], jnp.full(len(value), j - 1, jnp.int32)
            for i in reversed(range(j - 1)):
                nearer = (reach[i] <= best) & ~slip[:, j - 1]
                best, choice = jnp.where(nearer, reach[i], best), jnp.where(nearer, i, choice)
            distance.append(best + off[:, j - 1])
            before.append(choice)
        return distance, before


paths = constructors.of(Paths)
