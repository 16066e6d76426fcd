"""Several worlds in one run, each a domain of its own."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import demonstrations

Array = types.Array
_EQUAL = ("seats", "turn_length", "rows", "anew", "turn_end")


def _choose(which: Array, values: list[Any]) -> Any:
    """Return the value number ``which`` of equal trees."""
    return jax.tree.map(lambda *x: jnp.stack(x)[which], *values)


def _padded(x: Array, length: int, left: bool) -> Array:
    spare = length - x.shape[-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(spare, 0) if left else (0, spare)])


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The world that ``mixture`` builds."""

    worlds: tuple[Any, ...]

    name = "mixture"
    host = False

    def __getattr__(self, name: str) -> Any:
        """Return what the worlds have in common."""
        if name not in (*_EQUAL, "tokenizer"):
            raise AttributeError(name)
        return getattr(self.worlds[0], name)

    @property
    def domains(self) -> int:
        """Number of domains."""
        return len(self.worlds)

    def domain(self, index: Array, split: Split) -> Array:
        """Return the domain of problems ``index`` ``[n]``, ``[n]`` int32."""
        del split
        return index % self.domains

    @property
    def max_turns(self) -> int:
        """The most turns of an episode."""
        return max(world.max_turns for world in self.worlds)

    @property
    def completion_length(self) -> int:
        """T, tokens of the longest row."""
        return max(world.completion_length for world in self.worlds)

    @property
    def prompt_length(self) -> int:
        """L, tokens of the longest prompt."""
        return max(world.prompt_length for world in self.worlds)

    @property
    def reply_length(self) -> int:
        """Tokens of the longest reply."""
        return max(world.reply_length for world in self.worlds)

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of all worlds; 0 in the others."""
        return tuple(dict.fromkeys(name for world in self.worlds for name in world.parts))

    @property
    def extra(self) -> tuple[str, ...]:
        """Those of all worlds; 0 in the others."""
        return tuple(dict.fromkeys(name for world in self.worlds for name in world.extra))

    def corpus(self) -> Iterator[str]:
        """Yield the texts of all worlds."""
        for world in self.worlds:
            yield from world.corpus()

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Mixture":
        """Return a copy whose texts are in the tokens of ``tokenizer``."""
        return Mixture(tuple(world.bind(tokenizer) for world in self.worlds))

    def size(self, split: Split) -> int:
        """Return the number of problems: of each world as many as the smallest has."""
        return len(self.worlds) * min(world.size(split) for world in self.worlds)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` of seat 0 as text."""
        return self.worlds[index % self.domains].text(index // self.domains, split)

    def prompts(self, index: Array, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]`` of seat 0, of problems begun with key 0."""
        token, mask = jax.vmap(lambda i: self.prompt(self.begin(i, split, jax.random.key(0)), jnp.int32(0)))(index)
        return types.Prompts(token=token, mask=mask, index=index)

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the states of all worlds, and the number of the one that is played."""
        states = tuple(world.begin(index // self.domains, split, key) for world in self.worlds)
        return {"world": jnp.asarray(index % self.domains, jnp.int32), "states": states}

    def prompt(self, state: Any, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the world that is played."""
        prompts = [world.prompt(s, seat) for world, s in zip(self.worlds, state["states"], strict=True)]
        wide = [tuple(_padded(x, self.prompt_length, left=True) for x in prompt) for prompt in prompts]
        return _choose(state["world"], wide)

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Answer a turn in the world that is played; its number is the domain."""
        stepped = [world.step(s, seat, token, mask, key) for world, s in zip(self.worlds, state["states"], strict=True)]
        states = tuple(
            jax.tree.map(lambda new, old, number=number: jnp.where(state["world"] == number, new, old), after, before)
            for number, ((after, _), before) in enumerate(zip(stepped, state["states"], strict=True))
        )
        replies = []
        for number, (_, reply) in enumerate(stepped):
            none = jnp.zeros_like(reply.reward)
            wide = {name: _padded(getattr(reply, name), self.reply_length, left=False) for name in ("token", "mask")}
            parts = {name: reply.parts.get(name, none) for name in self.parts}
            extra = {name: reply.extra.get(name, jnp.float32(0)) for name in self.extra}
            replies.append(reply.replace(**wide, parts=parts, extra=extra, domain=jnp.int32(number)))
        return {"world": state["world"], "states": states}, _choose(state["world"], replies)

    def expert(self, state: Any, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Return the turn of the expert of the world that is played."""
        turns = [world.expert(s, seat, key) for world, s in zip(self.worlds, state["states"], strict=True)]
        return _choose(state["world"], turns)

    def demonstrations(self, index: Array, split: Split, key: types.Key) -> tuple[Array, Array]:
        """Return conversations with the expert in every seat, as seat 0 sees them: token and mask ``[P, T]``."""
        world: Any = self  # a protocol whose ``bind`` returns Self does not admit the type of self
        rows = demonstrations.conversations(world, index, split, key)
        return rows.token[:, 0], rows.mask[:, 0]


@environments.task
def mixture(first: environments.Task, second: environments.Task) -> Mixture:
    """Train on two worlds at once, whose problems take turns; the world's number is the row's domain.

    A mixture of mixtures has more worlds; its domains are those of the outer one.

    Args:
      first: a world, domain 0.
      second: a world with seats, rows and turns of the same size, domain 1.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: a task is no world, or the worlds differ.
    """
    for field, task in (("first", first), ("second", second)):
        if not contract.in_turns(task):
            raise ValueError(f"{field}: {task.name!r} has one turn; mixture is made of worlds such as guess()")
    for name in _EQUAL:
        one, two = getattr(first, name), getattr(second, name)
        if one != two:
            raise ValueError(
                f"second: {name} of {second.name!r} is {two!r}, of {first.name!r} {one!r}; they must agree"
            )
    return Mixture((first, second))
