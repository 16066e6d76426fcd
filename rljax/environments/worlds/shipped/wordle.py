"""Wordle: find a word; the world marks the letters of every guess."""

import dataclasses
import itertools
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split, characters
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import setting

_MOST = 4096  # words
_SEED = 0  # of the order of the expert's guesses


@dataclasses.dataclass(frozen=True)
class Wordle:
    """Rules: each letter of a guess is marked ``G``, at its place; ``Y``, at another place; or ``-``, not in the word.

    A letter of the word is marked once: first the letters at their places are, then the others from the left, while the
    word has unmarked ones of the same letter. A turn that is not a word of the list is told ``?``. The right word ends
    the episode and pays 1. A prompt has the length and the last letter, and does not tell the word, which is a function
    of the problem's number; some words are held out. Every word may be guessed.

    An expert guesses the first word of the list, in shuffled order, that agrees with all marks; where turns are few it
    can fail. Parts: ``malformed``, turns that are not words.
    """

    words: str = setting("", "The words, separated by spaces; empty: all texts of ``length`` letters.")
    letters: Annotated[int, types.Range(2, 26)] = setting(
        5, "Without words: how many letters of the alphabet there are."
    )
    length: Annotated[int, types.Range(2, 8)] = setting(3, "Without words: letters of a word.")
    turns: Annotated[int, types.Range(2, 64)] = setting(6, "The most guesses.")
    heldout: Annotated[float, types.Range(0, 0.5, open_low=True)] = setting(0.1, "Fraction of the words held out.")

    name = "wordle"
    parts = ("malformed",)
    prompt_length = 4

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, or the words are not a list of different ones."""
        settings.check(self)
        words = self.words.split()
        if not words and self.letters**self.length > _MOST:
            raise ValueError(f"length: {self.letters} letters make {self.letters**self.length} words; at most {_MOST}")
        if not words:
            return
        for word in words:
            if not (word.isascii() and word.isalpha() and word.islower() and 2 <= len(word) <= 8):
                raise ValueError(f"words: {word!r} is not 2 to 8 letters of a to z")
            if len(word) != len(words[0]):
                raise ValueError(f"words: {word!r} is not as long as {words[0]!r}")
        if not 2 <= len(set(words)) == len(words) <= _MOST:
            raise ValueError(f"words: {len(words)} words, {len(set(words))} of them different; give 2 to {_MOST}, once")

    @property
    def alphabet(self) -> str:
        """The letters of the words, marks, and digits for the length."""
        return "".join(sorted({chr(c) for c in self._list.ravel()})) + "GY-?" + "0123456789"

    @property
    def turn_length(self) -> int:
        """A word."""
        return self._list.shape[1]

    @property
    def reply_length(self) -> int:
        """A mark for each letter."""
        return self._list.shape[1]

    @property
    def max_turns(self) -> int:
        """The most guesses."""
        return self.turns

    def size(self, split: Split) -> int:
        """Return the number of words of a split."""
        return numbering.size([len(self._list)], self.heldout, split)

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return the word, and the words guessed so far, 0 where there is none: [turns, length]."""
        words = self._list
        number = numbering.values([len(words)], self.heldout, index[None], split)[0, 0]
        return {
            "word": jnp.asarray(words)[number],
            "guess": jnp.zeros((self.turns, words.shape[1]), jnp.int32),
            **rules.counters(self),
        }

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write how long the word is, and the last letter that words have."""
        return rules.line(f"{self.turn_length}{chr(self._list.max())}?")

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Mark a guess."""
        words = jnp.asarray(self._list)
        listed = jnp.any(jnp.all(words == text[None, :], axis=1))
        feedback = marks(text[None, :], state["word"][None, :])[0]
        hit = listed & jnp.all(text == state["word"])
        guess = state["guess"].at[state["turn"]].set(jnp.where(listed, text, 0), mode="drop")
        state = rules.counted(state, malformed=~listed) | {"guess": guess}
        return state, rules.judged(self, state, feedback, hit, listed)

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write the first word that agrees with the marks."""
        words = jnp.asarray(np.random.default_rng(_SEED).permutation(self._list))

        def agrees(left: types.Array, guess: types.Array) -> tuple[types.Array, None]:
            feedback = marks(guess[None, :], state["word"][None, :])
            every = marks(jnp.broadcast_to(guess[None, :], words.shape), words)
            return left & (jnp.all(every == feedback, axis=1) | (guess[0] == 0)), None

        left, _ = jax.lax.scan(agrees, jnp.ones(words.shape[0], bool), state["guess"])
        return words[jnp.argmax(left)]

    @property
    def _list(self) -> np.ndarray:
        """The words as code points, [words, length] int32."""
        alphabet = "abcdefghijklmnopqrstuvwxyz"[: self.letters]
        words = self.words.split() or ["".join(w) for w in itertools.product(alphabet, repeat=self.length)]
        return np.asarray([characters.codes(word) for word in words], np.int32)


def marks(guess: types.Array, word: types.Array) -> types.Array:
    """Mark guesses ``[W, n]`` against words ``[W, n]``: the code points of ``G``, ``Y`` and ``-``, ``[W, n]`` int32."""
    same = guess == word
    letter = guess[:, :, None] == word[:, None, :]  # [W, guess, word]
    unmarked = jnp.sum(letter & ~same[:, None, :], axis=2)  # of this letter, in the word, not at its place in the guess
    earlier = jnp.tri(guess.shape[1], k=-1, dtype=bool)[None] & (guess[:, :, None] == guess[:, None, :])
    before = jnp.sum(earlier & ~same[:, None, :], axis=2)  # of this letter, further left in the guess
    elsewhere = ~same & (before < unmarked)
    return jnp.where(same, ord("G"), jnp.where(elsewhere, ord("Y"), ord("-"))).astype(jnp.int32)


wordle = text.of(Wordle)
