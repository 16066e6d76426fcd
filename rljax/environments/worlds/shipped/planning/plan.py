"""What worlds of planning have in common."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from rljax import types
from rljax.data import shuffle
from rljax.environments import Split
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules
from rljax.language import settings
from rljax.language.settings import Share, setting

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Planned(abc.ABC):
    """Rules whose problems have several sizes, each a domain, and whose plans are paid relative to a known one.

    A problem is a row of small integers, by ``numbering``; those that every size reads come first, and decide whether
    it is held out, so that no problem is in both splits. Problems take turns in size.
    """

    spare: Annotated[int, types.Range(0, 16)] = setting(2, "Turns beyond the decisions, for unreadable ones.")
    heldout: Annotated[float, types.Range(0.01, 0.5)] = setting(0.1, "Fraction of the problems that is held out.")
    slip: Share = setting(0.0, "Probability that a turn of a demonstration is a random one of those allowed.")

    knob: ClassVar[str]  # the setting of sizes: a number, or (least, most)
    parts = ("malformed",)

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        if self.span[0] > self.span[1]:
            raise ValueError(f"{self.knob}: {self.span}: expected (least, most)")

    @property
    def span(self) -> tuple[int, int]:
        """The least and the greatest size."""
        value = getattr(self, self.knob)
        return value if isinstance(value, tuple) else (value, value)

    @property
    def domains(self) -> int:
        """The number of sizes."""
        return self.span[1] - self.span[0] + 1

    def domain(self, index: Array, split: Split) -> Array:
        """Return the domains of problems, from 0."""
        return index % self.domains

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The sizes."""
        return tuple(f"{n} {self.knob}" for n in range(self.span[0], self.span[1] + 1))

    @abc.abstractmethod
    def radices(self, size: int) -> Sequence[int]:
        """Return the number of values of each integer of a problem; a greater size has more of them at the end."""

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        least, most = map(self.radices, self.span)
        return shuffle.multiple(self.domains, numbering.size(most, self.heldout, split, len(least)))

    def problem(self, index: Array, split: Split) -> tuple[Array, Array]:
        """Return the integers of problem ``index``, of the greatest size, and its size."""
        least, most = map(self.radices, self.span)
        number = (index // self.domains)[None]
        return numbering.values(most, self.heldout, number, split, len(least))[0], self.span[0] + index % self.domains

    def paid(self, state: Any, text: Array, readable: Array, over: Array, cost: Array, best: Array) -> rules.Answer:
        """Answer a turn as the function does, with the domain of the problem."""
        answer = paid(self, state, text, readable, over, cost, best)
        return answer.replace(domain=state["size"] - self.span[0])


def paid(world: Any, state: Any, text: Array, readable: Array, over: Array, cost: Array, best: Array) -> rules.Answer:
    """Answer a turn; at the end best / cost is paid, at most 1, and a cost of at most ``best`` is correct."""
    hit = over & (cost <= best)
    share = jnp.where(hit, 1.0, jnp.where(over, best / jnp.maximum(cost, 1), 0.0))
    return rules.judged(world, state, text, hit, readable, over).replace(reward=share)


def slipped(key: types.Key, slip: float, best: Array, allowed: Array) -> Array:
    """Return a choice, or with a probability a random one of those allowed, ``[choices]`` bool."""
    some = rules.draw(key, allowed)
    return jnp.where(jax.random.bernoulli(jax.random.fold_in(key, 1), slip), some, best).astype(jnp.int32)
