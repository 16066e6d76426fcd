"""Worlds of characters: what a world is when its tokens are left to ``text.TextWorld``.

Texts are rows of code points, ``[K]`` int32, 0 where there is no character, as in ``environments.characters``.
"""

from __future__ import annotations

from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split, characters

State = Any


class Answer(flax.struct.PyTreeNode):
    """What follows a turn, as characters. ``worlds.Reply`` explains the fields; all but the text have defaults."""

    text: types.Array  # [K] int32 for every seat, or [seats, K]
    reward: types.Array | float = 0.0  # scalar or [seats]
    done: types.Array | bool = False
    outcome: types.Array | int = types.Outcome.WRONG  # scalar or [seats]
    valid: types.Array | float = 1.0
    truncated: types.Array | bool = False
    next_seat: types.Array | int = 0
    parts: dict[str, types.Array] = flax.struct.field(default_factory=dict)
    extra: dict[str, types.Array] = flax.struct.field(default_factory=dict)
    domain: types.Array | int = 0


class Rules(Protocol):
    """The rules of a world; sizes are in characters, without the end of a turn. A frozen dataclass.

    Where an episode has a goal, rules of one seat may have ``aimed(start, reached) -> start, possible``: the start of
    the problem whose goal is what the state ``reached`` has, and whether there is one to train on. The problem is then
    a function of its index alone, and replies say nothing of the goal before it is reached.
    """

    @property
    def name(self) -> str:
        """Name of the world."""
        ...

    @property
    def alphabet(self) -> str:
        """The characters that the world and its experts write."""
        ...

    @property
    def prompt_length(self) -> int:
        """The most characters of a prompt."""
        ...

    @property
    def turn_length(self) -> int:
        """The most characters of a turn."""
        ...

    @property
    def reply_length(self) -> int:
        """The most characters of a reply; an episode with a longer one is invalid."""
        ...

    @property
    def max_turns(self) -> int:
        """The most turns of an episode."""
        ...

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        ...

    def begin(self, index: types.Array, split: Split, key: types.Key) -> State:
        """Return the state of problem ``index``, a scalar."""
        ...

    def prompt(self, state: State, seat: types.Array) -> types.Array:
        """Return the text ``[K]`` that a seat reads first."""
        ...

    def step(self, state: State, seat: types.Array, text: types.Array, key: types.Key) -> tuple[State, Answer]:
        """Answer a turn; ``text`` is ``[turn_length]``, without gaps, without the end of the turn."""
        ...

    def expert(self, state: State, seat: types.Array, key: types.Key) -> types.Array:
        """Return the text ``[K]`` that a demonstration writes in this state."""
        ...


# What rules may set besides the protocol, and what holds where they do not.
OPTIONAL: dict[str, Any] = {
    "seats": 1,
    "turn_end": (),  # texts that end a turn, besides end-of-sequence
    "rows": "conversation",
    "anew": False,
    "parts": (),
    "extra": (),
    "domains": 1,  # number of values of Answer.domain, from 0
    "domain": None,  # a function domain(index, split), [n] int32 both, by which sources draw
    "domain_names": (),  # a text for each of them
    "turns_each": None,  # the most turns of one seat; None: max_turns
    "pictures": None,  # traits.Pictures of a prompt; with a function ``picture(state, seat)``, [N, H, W, 3] uint8
}


# Members that a world of characters takes from its rules.
COMMON = frozenset({"name", "prompt_length", "reply_length", "max_turns", "size", *OPTIONAL})


def optional(rules: Rules, name: str) -> Any:
    """Return a member of rules, or of ``OPTIONAL`` where they do not have it."""
    return getattr(rules, name, OPTIONAL[name]) if name in OPTIONAL else getattr(rules, name)


def judged(
    rules: Any, state: Any, text: types.Array, hit: types.Array, readable: types.Array, over: types.Array | None = None
) -> Answer:
    """Answer a turn that may be a hit, which is paid 1, or unreadable, which is told ``?``.

    Args:
      rules: of the world.
      state: after the turn, a mapping with ``turn``, the turns so far, and the parts of the rules.
      text: ``[K]``, what a readable turn is told.
      hit: bool, whether the turn is right.
      readable: bool; another turn is UNPARSEABLE.
      over: bool, whether the turn ends the episode; None: a hit does. ``max_turns`` truncate it.

    Returns:
      The answer.
    """
    over = hit if over is None else over
    missed = jnp.where(readable, types.Outcome.WRONG, types.Outcome.UNPARSEABLE)
    return Answer(
        either(readable, text, line("?")),
        reward=hit * 1.0,
        done=over,
        truncated=~over & (state["turn"] >= rules.max_turns),
        outcome=jnp.where(hit, types.Outcome.CORRECT, missed),
        parts={name: state[name] for name in optional(rules, "parts")},
    )


def counters(rules: Any) -> State:
    """Return the turns and the parts of the rules, 0 each, as ``counted`` adds to them."""
    return dict.fromkeys(("turn", *rules.parts), jnp.int32(0))


def counted(state: State, **more: types.Array) -> State:
    """Return the state after a turn: one turn more, and so much more of what is named."""
    return {**state, "turn": state["turn"] + 1, **{name: state[name] + x for name, x in more.items()}}


def line(*parts: str | types.Array) -> types.Array:
    """Join texts, code points and rows of code points: ``[K]`` int32."""
    pieces = [jnp.asarray([ord(c) for c in p], jnp.int32) if isinstance(p, str) else jnp.atleast_1d(p) for p in parts]
    return jnp.concatenate([p.astype(jnp.int32) for p in pieces])


def either(which: types.Array, first: types.Array, second: types.Array) -> types.Array:
    """Return one of two texts, which may differ in length: ``[K]`` int32, K the greater length."""
    width = max(first.shape[0], second.shape[0])
    first, second = (jnp.pad(x, (0, width - x.shape[0])) for x in (first, second))
    return jnp.where(which, first, second)


def draw(key: types.Key, allowed: types.Array) -> types.Array:
    """Return a choice drawn uniformly from those that are allowed, ``[choices]`` bool, of which there is one."""
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf)).astype(jnp.int32)


def decimal(value: types.Array, width: int) -> types.Array:
    """Write an integer >= 0 in decimal, without leading zeros: ``[width]`` int32."""
    return characters.decimal(value[None], width)[0]


def number(text: types.Array) -> tuple[types.Array, types.Array]:
    """Read a text ``[K]`` without gaps as a decimal number of at most 9 digits: (int32 value, whether it is one)."""
    digit = (text >= ord("0")) & (text <= ord("9"))
    value = jnp.zeros((), jnp.int32)
    for i in range(min(text.shape[0], 9)):
        value = jnp.where(digit[i], value * 10 + text[i] - ord("0"), value)
    count = jnp.sum(digit)
    return value, (count > 0) & (count <= 9) & (count == jnp.sum(text != 0))
