"""Several worlds and tasks in one run, each a domain of its own."""

import dataclasses
import fractions
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.data import shuffle, tokenizers
from rljax.environments import Split, traits
from rljax.environments import worlds as contract
from rljax.environments.worlds import single, tokens

Array = types.Array
_EQUAL = {"seats": "an episode has a row for each", "anew": "", "turn_end": "these texts end the turns of all"}
_FINEST = 1000  # a weight is a fraction with at most this denominator
_LONGEST = 10_000  # indices after which the order of the worlds repeats


def order(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the worlds of successive indices, the shortest list in which their shares equal the weights.

    The places of a world are spread evenly; equal weights give 0, 1, 2, ...

    Args:
      weights: of each world, 0 or more, with a positive sum.

    Raises:
      ValueError: the weights are not of this kind, or the list has more than 10,000 places.
    """
    if not all(math.isfinite(w) and w >= 0 for w in weights) or not sum(weights) > 0:
        raise ValueError(f"weights={tuple(weights)}: must be 0 or more, with a sum above 0")
    shares = [fractions.Fraction(w).limit_denominator(_FINEST) for w in weights]
    if lost := [w for w, share in zip(weights, shares, strict=True) if w and not share]:
        raise ValueError(f"weights={tuple(weights)}: {lost[0]} is too small; give whole numbers, or fractions of 1000")
    unit = math.lcm(*(share.denominator for share in shares))
    counts = [int(share * unit) for share in shares]
    counts = [count // math.gcd(*counts) for count in counts]
    if sum(counts) > _LONGEST:
        raise ValueError(f"weights={tuple(weights)}: their order has {sum(counts)} places, at most {_LONGEST} allowed")
    places = [((k + 0.5) / count, world) for world, count in enumerate(counts) for k in range(count)]
    return tuple(world for _, world in sorted(places))


def _choose(which: Array, values: list[Any]) -> Any:
    """Return the value number ``which`` of equal trees."""
    return jax.tree.map(lambda *x: jnp.stack(x)[which], *values)


def _padded(x: Array, length: int, left: bool = False) -> Array:
    spare = length - x.shape[-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(spare, 0) if left else (0, spare)])


def _limits(world: Any, state: Any) -> tuple[Any, Any]:
    """Return the most tokens of a turn and of a row, which a world with worlds of other lengths tells by its state."""
    return world.limits(state) if hasattr(world, "limits") else (world.turn_length, world.completion_length)


@dataclasses.dataclass(frozen=True)
class Mixture(tokens.TokenWorld):
    """The world that ``mixture`` builds; its state has the states of all worlds. Lengths are the longest world's."""

    worlds: tuple[Any, ...]
    order: tuple[int, ...]
    seats: int
    anew: bool
    turn_end: tuple[str, ...]
    tokenizer: tokenizers.Tokenizer | None = None

    name = "mixture"

    def _most(self, name: str) -> int:
        return max(getattr(world, name) for world in self.worlds)

    max_turns = property(lambda self: self._most("max_turns"))
    turn_length = property(lambda self: self._most("turn_length"))
    reply_length = property(lambda self: self._most("reply_length"))
    prompt_length = property(lambda self: self._most("prompt_length"))
    completion_length = property(lambda self: self._most("completion_length"))
    domains = property(lambda self: len(self.worlds))

    @property
    def rows(self) -> contract.Rows:
        """What a row holds: one turn if a world of several turns has chapters; a task of one turn fits both."""
        return next((world.rows for world in self.worlds if world.max_turns > 1), self.worlds[0].rows)

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of all worlds; 0 in the others."""
        return tuple(dict.fromkeys(name for world in self.worlds for name in world.parts))

    @property
    def extra(self) -> tuple[str, ...]:
        """Those of all worlds; 0 in the others."""
        return tuple(dict.fromkeys(name for world in self.worlds for name in world.extra))

    @property
    def domain_names(self) -> tuple[str, ...]:
        """Names of the worlds, numbered where several have the same."""
        names = [world.name for world in self.worlds]
        return tuple(f"{name}_{n}" if names.count(name) > 1 else name for n, name in enumerate(names))

    def _place(self, index: Array) -> tuple[Array, Array]:
        """Return the worlds of problems, and the number of the problem in its world."""
        order = np.asarray(self.order)
        counts = np.bincount(order, minlength=len(self.worlds))
        earlier = np.array([np.sum(order[:place] == world) for place, world in enumerate(order)])
        place, round_ = index % order.size, index // order.size
        world = jnp.asarray(order, jnp.int32)[place]
        return world, round_ * jnp.asarray(counts, jnp.int32)[world] + jnp.asarray(earlier, jnp.int32)[place]

    def domain(self, index: Array, split: Split) -> Array:
        """Return the domain of problems ``index`` ``[n]``, ``[n]`` int32."""
        return self._place(index)[0]

    def corpus(self) -> Iterator[str]:
        """Yield the texts of all worlds."""
        for world in self.worlds:
            yield from world.corpus()

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Mixture":
        """Return a copy whose texts are in the tokens of ``tokenizer``."""
        bound = tuple(world.bind(tokenizer) for world in self.worlds)
        return dataclasses.replace(self, worlds=bound, tokenizer=tokenizer)

    def size(self, split: Split) -> int:
        """Return the number of problems: as many as it takes to pose all of each world; others come again."""
        length, counts = len(self.order), [self.order.count(n) for n in range(len(self.worlds))]
        rounds = max(-(-w.size(split) // n) for w, n in zip(self.worlds, counts, strict=True) if n)
        return shuffle.multiple(length, rounds)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` of seat 0 as text."""
        world, number = (int(x) for x in self._place(jnp.int32(index)))
        return self.worlds[world].text(number, split)

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the states of all worlds, and the number of the one that is played."""
        world, number = self._place(jnp.asarray(index, jnp.int32))
        states = tuple(each.begin(number, split, key) for each in self.worlds)
        return {"world": world, "turn": jnp.int32(0), "states": states}

    def limits(self, state: Any) -> tuple[Array, Array]:
        """Return the most tokens of a turn, and of a row, of the world that is played."""
        pairs = [_limits(world, s) for world, s in zip(self.worlds, state["states"], strict=True)]
        return _choose(state["world"], [tuple(jnp.asarray(x, jnp.int32) for x in pair) for pair in pairs])

    def prompt(self, state: Any, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the world that is played."""
        prompts = [world.prompt(s, seat) for world, s in zip(self.worlds, state["states"], strict=True)]
        wide = [tuple(_padded(x, self.prompt_length, left=True) for x in prompt) for prompt in prompts]
        return _choose(state["world"], wide)

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, contract.Reply]:
        """Answer a turn in the world that is played, up to its most turns; its number is the domain."""
        turn, states, replies = state["turn"] + 1, [], []
        for number, (world, before) in enumerate(zip(self.worlds, state["states"], strict=True)):
            written = token[: world.turn_length], mask[: world.turn_length]
            after, reply = world.step(before, seat, *written, key)
            played = state["world"] == number
            states.append(jax.tree.map(lambda new, old, played=played: jnp.where(played, new, old), after, before))
            none = jnp.zeros_like(reply.reward)
            wide = {name: _padded(getattr(reply, name), self.reply_length) for name in ("token", "mask")}
            parts = {name: reply.parts.get(name, none) for name in self.parts}
            extra = {name: reply.extra.get(name, jnp.float32(0)) for name in self.extra}
            cut = reply.truncated | (~reply.done & (turn >= world.max_turns))
            if world.max_turns == 1:  # as of a task, whose completion is cut where it does not end
                cut |= (written[1][-1] > 0) & (written[0][-1] != self.bound.eos)
            replies.append(
                reply.replace(**wide, parts=parts, extra=extra, truncated=cut, domain=jnp.asarray(number, jnp.int32))
            )
        return {**state, "turn": turn, "states": tuple(states)}, _choose(state["world"], replies)

    def expert(self, state: Any, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Return the turn of the expert of the world that is played; ValueError if a world has none."""
        turns = []
        for world, before in zip(self.worlds, state["states"], strict=True):
            if not hasattr(world, "expert"):
                raise ValueError(f"task {world.name!r} has no expert, so no demonstrations")
            turns.append(tuple(_padded(x, self.turn_length) for x in world.expert(before, seat, key)))
        return _choose(state["world"], turns)


@environments.task
def mixture(*tasks: environments.Task, weights: tuple[types.NonNegative, ...] = ()) -> Mixture:
    """Train on several worlds and tasks at once; the number of the world is the row's domain.

    A task of one turn is a world of one turn. Turns, replies, prompts and rows are as long as the longest, and each
    episode keeps to the lengths and turns of its world. A mixture may be a world of another one; its domains are then
    one domain of the outer one. Shares that change from step to step are drawn by a source over the domains, such as
    ``config.seam.source="mixed((linear(1.0, 0.0, 100), 1.0), candidates=4096)"``.

    Args:
      *tasks: two or more, of equal seats and ends of turns.
      weights: share of the problems of each, up to a common factor; (): equal.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: fewer than two tasks, one that is judged or played on the host, tasks that differ, or wrong weights.
    """
    if len(tasks) < 2:
        raise ValueError(f"mixture: got {len(tasks)} tasks; give two or more, such as mixture(guess(), arithmetic())")
    if weights and len(weights) != len(tasks):
        raise ValueError(f"weights={weights}: {len(weights)} of them for {len(tasks)} tasks; give one of each")
    for task in tasks:
        if task.host:
            about = traits.traits(task)
            turns = "has one turn" if about.whole else f"has {about.max_turns} turns"
            raise ValueError(
                f"mixture: {task.name!r} {turns} and is judged by worker processes; a mixture runs inside the compiled "
                "program, as guess() and arithmetic() do. Train on both by phases, config.phase.NAME.task"
            )
    made = tuple(single.from_task(task) for task in tasks)
    for name, why in _EQUAL.items():
        _same(name, [(world.name, getattr(world, name)) for world in made], why)
    _same("rows", [(world.name, world.rows) for world in made if world.max_turns > 1], "")
    return Mixture(made, order(weights or (1,) * len(made)), *(getattr(made[0], name) for name in _EQUAL))


def _same(name: str, values: Sequence[tuple[str, Any]], why: str) -> None:
    """Raise ValueError unless the worlds have the same value."""
    for world, value in values[1:]:
        if value != values[0][1]:
            raise ValueError(
                f"mixture: {name} of {world!r} is {value!r}, of {values[0][0]!r} {values[0][1]!r}; they must agree"
                + (f", since {why}" if why else "")
            )
