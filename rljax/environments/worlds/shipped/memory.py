"""Memory: a document that is read in chunks, and a note that is rewritten after each chunk."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split, characters
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import setting

_SEED = 16  # decides what is asked about a document; part of the world, not of a run


@dataclasses.dataclass(frozen=True)
class Memory:
    """Rules: the document is a list of facts such as ``b4``, key and value; a later fact replaces an earlier one.

    A turn's prompt is question, note and chunk: ``bd|b4|a1b7``. The turn is the new note, so what it leaves out is
    lost. After the last chunk the prompt is ``bd|b7d2|=``, and the turn is the answer: the values of the asked keys,
    ``72``. The reward is 1 if all are right.

    A document asks about keys that it has, and about each with the same probability. Documents are numbered, and some
    of them are held out. An expert's note has the facts that the question needs.

    Parts: ``right``, the share of the asked values that are right.
    """

    chunks: Annotated[int, types.Range(1, 64)] = setting(3, "Chunks of a document; an episode has one turn more.")
    facts: Annotated[int, types.Range(1, 16)] = setting(4, "Facts of a chunk.")
    keys: Annotated[int, types.Range(2, 26)] = setting(6, "Number of different keys.")
    asked: Annotated[int, types.Range(1, 8)] = setting(2, "Keys that a question asks for; the same one may come twice.")
    note: Annotated[int, types.Range(2, 256)] = setting(8, "The most characters of a note.")
    heldout: Annotated[float, types.Range(0, 0.5, open_low=True)] = setting(0.1, "Fraction of the documents held out.")

    name = "memory"
    rows = "chapters"
    parts = ("right",)
    reply_length = 1  # nothing is told: the next prompt has the note

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        if self.note < 2 * self.asked:
            raise ValueError(f"note: {self.note} characters; asked = {self.asked} facts need {2 * self.asked}")

    @property
    def alphabet(self) -> str:
        """Keys, digits and signs; a character of a note that is not among them becomes a question mark."""
        return "abcdefghijklmnopqrstuvwxyz"[: self.keys] + "0123456789|=?"

    @property
    def prompt_length(self) -> int:
        """Question, note and chunk."""
        return self.asked + 1 + self.note + 1 + 2 * self.facts

    @property
    def turn_length(self) -> int:
        """A note."""
        return self.note

    @property
    def max_turns(self) -> int:
        """One for each chunk, and the answer."""
        return self.chunks + 1

    def size(self, split: Split) -> int:
        """Return the number of documents of a split."""
        return numbering.size(self._radices, self.heldout, split)

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return document ``index``: keys and values of all facts, what is asked, and an empty note."""
        column = numbering.values(self._radices, self.heldout, index[None], split)[0]
        name, value = column[0::2], column[1::2]
        draw = jax.random.fold_in(jax.random.key(_SEED), index % self.size(split))
        last = jnp.all((name[:, None] != name[None, :]) | jnp.tri(name.shape[0], dtype=bool), axis=1)
        likely = jnp.where(last, 0.0, -jnp.inf)  # the last fact of each key
        asked = name[jax.random.categorical(draw, likely, shape=(self.asked,))]
        note = jnp.zeros(self.note, jnp.int32)
        return {"key": name, "value": value, "asked": asked, "note": note, "turn": jnp.int32(0)}

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write question, note, and the chunk or the request for the answer."""
        facts = jnp.stack([state["key"] + ord("a"), state["value"] + ord("0")], axis=1).reshape(self.chunks, -1)
        chunk = facts[jnp.minimum(state["turn"], self.chunks - 1)]
        follows = rules.either(state["turn"] < self.chunks, chunk, rules.line("="))
        return rules.line(state["asked"] + ord("a"), "|", state["note"], "|", follows)

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Keep the note, or judge the answer."""
        done = state["turn"] >= self.chunks
        truth, _ = self._known(state, self.chunks)
        answer = text[: self.asked] - ord("0")
        digits = characters.among(text[: self.asked], "0123456789")
        readable = jnp.all(digits) & (jnp.sum(text != 0) == self.asked)
        right = jnp.where(done & readable, jnp.mean((answer == truth).astype(jnp.float32)), 0.0)
        hit = done & readable & jnp.all(answer == truth)
        known = characters.among(text, self.alphabet) | (text == 0)
        state = {**state, "note": jnp.where(known, text, characters.UNREADABLE), "turn": state["turn"] + 1}
        missed = jnp.where(done & ~readable, types.Outcome.UNPARSEABLE, types.Outcome.WRONG)
        return state, rules.Answer(
            jnp.zeros(self.reply_length, jnp.int32),
            reward=hit * 1.0,
            done=done,
            outcome=jnp.where(hit, types.Outcome.CORRECT, missed),
            parts={"right": right},
        )

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write the asked facts of the chunks so far, or the answer."""
        value, present = self._known(state, state["turn"] + 1)
        digit = value + ord("0")
        fact = jnp.where(present[:, None], jnp.stack([state["asked"] + ord("a"), digit], axis=1), 0).reshape(-1)
        return rules.either(state["turn"] < self.chunks, fact, digit)

    @property
    def _radices(self) -> tuple[int, ...]:
        return (self.keys, 10) * (self.chunks * self.facts)

    def _known(self, state: Any, chunks: types.Array | int) -> tuple[types.Array, types.Array]:
        """Return the values of the asked keys after some chunks, and whether they are among them: [asked] both."""
        place = jnp.arange(self.chunks * self.facts)
        read = (state["key"][None, :] == state["asked"][:, None]) & (place < chunks * self.facts)[None, :]
        last = jnp.max(jnp.where(read, place[None, :], -1), axis=1)
        return state["value"][jnp.maximum(last, 0)], last >= 0


memory = text.of(Memory)
