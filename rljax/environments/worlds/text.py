"""Worlds of tokens from rules of characters."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.data import tokenizers
from rljax.environments import Split, characters, written
from rljax.environments import worlds as contract
from rljax.environments.worlds import goals as goals_lib
from rljax.environments.worlds import reply as reply_lib
from rljax.environments.worlds import rules, tokens
from rljax.language import errors, settings
from rljax.language.settings import setting

_CORPUS_ROWS = 256


@dataclasses.dataclass(frozen=True)
class TextWorld(written.Written, tokens.Derived):
    """A world whose rules are about characters; each character is one token, and end-of-sequence ends a turn.

    Args:
      rules: the rules; see ``rules.Rules`` and ``rules.OPTIONAL``.
      length: T, tokens of a row; None: as many as the rules can need.
      tokenizer: set by ``bind``.
    """

    rules: rules.Rules
    length: int | None = None
    tokenizer: tokenizers.Tokenizer | None = None

    host = False

    def __post_init__(self) -> None:
        """Raise ValueError if the length is below the length of a turn."""
        if self.length is not None and self.length < self.turn_length:
            raise ValueError(f"{self.name}: length = {self.length}: a turn has up to {self.turn_length} tokens")

    def __getattr__(self, name: str) -> Any:
        """Return what the rules say, or the default, of a member that rules and worlds have in common."""
        if name not in rules.COMMON or "rules" not in vars(self):
            raise AttributeError(name)
        return rules.optional(self.rules, name)

    @property
    def turn_length(self) -> int:
        """The most tokens of a turn, end-of-sequence included."""
        return self.rules.turn_length + 1

    @property
    def completion_length(self) -> int:
        """T, tokens of a row."""
        each = rules.optional(self.rules, "turns_each") or self.max_turns
        needed = each * self.turn_length + (self.max_turns - 1) * self.reply_length
        return tokens.row_length(self, needed if self.length is None else self.length)

    def corpus(self) -> Iterator[str]:
        """Yield every character once, then prompts and conversations of demonstrations."""
        yield self.alphabet
        index = jnp.arange(min(_CORPUS_ROWS, self.size("train")), dtype=jnp.int32)
        for name in ("prompt", "expert"):
            yield from sorted(set(characters.strings(_written(self, index, name))))

    @property
    def alphabet(self) -> str:
        """The characters that the world and its experts write."""
        return self.rules.alphabet

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return the state of problem ``index``; numbers of Python and NumPy become arrays."""
        return jax.tree.map(_array, self.rules.begin(index, split, key))

    def prompt(self, state: Any, seat: types.Array) -> tuple[types.Array, types.Array]:
        """Return what a seat reads first: token and mask ``[L]``."""
        return self._tokens(_points("prompt", self.rules.prompt(state, seat)), self.prompt_length, pad="left")

    def picture(self, state: Any, seat: types.Array) -> types.Array:
        """Return the pictures that a seat sees, ``[N, H, W, 3]`` uint8."""
        return self.rules.picture(state, seat)  # pyright: ignore[reportAttributeAccessIssue]  of rules with pictures

    def step(
        self, state: Any, seat: types.Array, token: types.Array, mask: types.Array, key: types.Key
    ) -> tuple[Any, contract.Reply]:
        """Answer a turn.

        The episode becomes invalid by a reply of more than ``reply_length`` characters, by one with a character outside
        the alphabet, and in chapters by a prompt of more than ``prompt_length`` characters. A turn of a conversation
        that is cut before its end may not be what the seat meant: it is read as ``?``.
        """
        read = characters.read(self.bound, token[None], mask[None])
        text = read.code[0, : self.rules.turn_length]
        if self.rows == "conversation":
            unreadable = (jnp.arange(text.size) == 0) * characters.UNREADABLE
            text = jnp.where(read.ended[0], text, unreadable)
        # a prompt of a conversation is read at its beginning only
        fits = self.rows == "conversation" or _fits(self.rules.prompt(state, seat), self.prompt_length)
        state, answer = _answered(self.rules.step(state, seat, text, key))
        code = _points("Answer.text", answer.text)
        fits &= _fits(code, self.reply_length) & jnp.all((code == 0) | characters.among(code, self.alphabet))
        code = jnp.broadcast_to(jnp.atleast_2d(code), (self.seats, code.shape[-1]))
        reply, mask = jax.vmap(lambda c: self._tokens(c, self.reply_length, pad="right"))(code)
        return state, reply_lib.make(self.seats, reply, mask, vars(answer), "Answer", fits)

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> tuple[types.Array, types.Array]:
        """Return the turn of a demonstration: token and mask ``[turn_length]``, ended by end-of-sequence."""
        code = self.rules.expert(state, seat, key)[None]
        token, mask = characters.demonstration(code, self.turn_length, self.bound, self.ids)
        return token[0], mask[0]

    @property
    def goals(self) -> bool:
        """Whether rows can be given other goals."""
        return hasattr(self.rules, "aimed") and self.rows == "conversation" and self.seats == 1

    def relabelled(self, rollout: types.Rollout, drawn: types.Array) -> tuple[types.Rollout, types.Array]:
        """Return rows with other goals, see ``goals.relabelled``."""
        return goals_lib.relabelled(self, rollout, drawn)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` of seat 0 as text."""
        return characters.strings(_written(self, jnp.asarray([index], jnp.int32), "prompt", split))[0]

    def _tokens(self, code: types.Array, length: int, pad: str) -> tuple[types.Array, types.Array]:
        packed = characters.pack(code[None], length, pad=pad)[0]
        return jnp.asarray(self.ids)[packed], (packed != 0).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Row:
    """How long the rows of a world of characters are."""

    length: int | None = setting(None, "Tokens of a row of a conversation; None: as many as the turns can need.")


def of(rules: Callable[[], Any]) -> Callable[..., TextWorld]:
    """Return the constructor of a world, whose arguments are the settings of its rules."""
    return settings.constructor(TextWorld, rules())


def of_rows(rules: Callable[[], Any]) -> Callable[..., TextWorld]:
    """Return the constructor of a world, whose arguments are the settings of its rules, and those of ``Row``."""
    return settings.constructor(lambda made, row: TextWorld(made, row.length), rules(), Row())


def _written(world: TextWorld, index: jax.Array, what: str, split: Split = "train") -> jax.Array:
    """Return the prompts of problems, or the first turns of their experts, as code points [P, K].

    Raises:
      CodeError: an exception inside the rules.
      ValueError: a text is too long, or has characters outside the alphabet.
    """
    length = world.prompt_length if what == "prompt" else world.rules.turn_length

    def one(i: jax.Array) -> jax.Array:
        with errors.inside(f"task {world.name!r}: begin"):
            state = world.begin(i, split, jax.random.key(0))
        with errors.inside(f"task {world.name!r}: {what}"):
            if what == "prompt":
                return _points("prompt", world.rules.prompt(state, jnp.int32(0)))
            return _points("expert", world.rules.expert(state, jnp.int32(0), jax.random.key(0)))

    code = jax.vmap(one)(index)
    for text in set(characters.strings(code)):
        if len(text) > length:
            raise ValueError(f"task {world.name!r}: {what} writes {text!r}: expected at most {length} characters")
        if strange := [c for c in text if c not in world.alphabet]:
            raise ValueError(f"task {world.name!r}: {what} writes {strange[0]!r}, which is not in the alphabet")
    return code


def _array(x: Any) -> types.Array:
    return x if isinstance(x, jax.Array) else jnp.asarray(x, jnp.result_type(x))


def _points(name: str, code: Any) -> types.Array:
    """Return a text of rules; ValueError if it is none."""
    if not hasattr(code, "dtype") or not jnp.issubdtype(code.dtype, jnp.integer) or code.ndim not in (1, 2):
        given = f"{code.dtype}{[*code.shape]}" if hasattr(code, "dtype") else repr(code)
        raise ValueError(f"{name} is {given}: expected code points, int32 [K], as rules.line('12:') returns")
    return code


def _fits(code: types.Array, length: int) -> types.Array:
    """Return whether texts ``[..., K]`` have at most ``length`` characters: a bool scalar."""
    return jnp.ones((), bool) if code.shape[-1] <= length else jnp.all(jnp.sum(code != 0, axis=-1) <= length)


def _answered(returned: Any) -> tuple[Any, rules.Answer]:
    """Return what ``Rules.step`` returned; ValueError if it is not a state and an answer."""
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], rules.Answer)):
        raise ValueError(f"step returns {type(returned).__name__}: expected (state, rules.Answer)")
    return returned
