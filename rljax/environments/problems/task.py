"""A device task whose problems are numbered: ``Problems``, made of ``Rules``."""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.data import tokenizers
from rljax.environments import Split, characters
from rljax.environments.problems import numbering
from rljax.environments.problems import rules as rules_lib
from rljax.environments.problems.rules import Common, Rules
from rljax.transforms import ops

_CORPUS_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Problems:
    """A task; ``build`` makes it."""

    rules: Rules
    common: Common
    prompt_length: int
    completion_length: int
    tokenizer: tokenizers.Tokenizer | None = None

    host: bool = dataclasses.field(default=False, init=False)
    parts: tuple[str, ...] = dataclasses.field(default=("format",), init=False)

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.rules.name

    @property
    def supplies(self) -> tuple[str, ...]:
        """What rows hold beyond the defaults."""
        return ("token_reward",) if self.common.step_reward else ()

    def corpus(self) -> Iterator[str]:
        """Yield every character once, then prompts with demonstrations."""
        yield self._alphabet
        index = jnp.arange(min(_CORPUS_ROWS, self.size("train")), dtype=jnp.int32)
        yield from characters.strings(_corpus(self, index))

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Problems":
        """Return a copy with the tokenizer; ValueError if it lacks a character."""
        characters.table(tokenizer, self._alphabet, self.name)
        return dataclasses.replace(self, tokenizer=tokenizer)

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return numbering.size(self.rules.radices, self.common.heldout, split)

    def prompts(self, index: types.Array, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]``: token and mask ``[P, L]``."""
        code = characters.pack(self.rules.prompt(self._problem(index, split)), self.prompt_length, pad="left")
        token = jnp.asarray(self._ids)[code]
        return types.Prompts(token=token, mask=(code != 0).astype(jnp.float32), index=index)

    def demonstrations(self, index: types.Array, split: Split, key: types.Key) -> tuple[jax.Array, jax.Array]:
        """Return demonstrations with the slips and noise of the settings; a row's depend on ``(key, index)`` only."""
        return characters.demonstration(
            self.codes(index, split, key)[1], self.completion_length, self._bound, self._ids
        )

    def solutions(self, index: types.Array, split: Split) -> tuple[jax.Array, jax.Array]:
        """Return demonstrations without mistakes."""
        solution = rules_lib.solution(self.rules, self._problem(index, split))
        return characters.demonstration(self._written(solution), self.completion_length, self._bound, self._ids)

    def verify(self, index: types.Array, split: Split, token: types.Array, mask: types.Array) -> types.Verdict:
        """Judge the text between the last ``;`` and end-of-sequence; reward 1 if it is correct, else 0.

        Unparseable: no end-of-sequence, or not an answer in form. ``parts["format"]`` is 1 if parseable, else 0. With
        ``step_reward`` tokens are paid too, see ``_paid``.
        """
        text, value = characters.read(self._bound, token, mask), self._problem(index, split)
        parseable, correct = self.rules.judge(value, characters.last(text.code, ";"))
        parseable, correct = parseable & text.ended, parseable & text.ended & correct
        outcome = jnp.where(correct, types.Outcome.CORRECT, types.Outcome.WRONG)
        return types.Verdict(
            reward=correct.astype(jnp.float32),
            outcome=jnp.where(parseable, outcome, types.Outcome.UNPARSEABLE).astype(jnp.int32),
            parts={"format": parseable.astype(jnp.float32)},
            token_reward=self._paid(value, text.code, mask, correct) if self.common.step_reward else None,
        )

    def _paid(self, value: jax.Array, code: jax.Array, mask: jax.Array, correct: jax.Array) -> jax.Array:
        """Return what is paid where a step ends, ``[B, T]``: ``step_reward`` if it is right, its negative if wrong.

        A step of the working ends at ``;`` and is right if it is the step of the same number in the solution; the last
        one ends with the row and is right if the answer is.
        """
        ends, right = rules_lib.steps(code, rules_lib.solution(self.rules, value).working)
        last = ops.last_token((mask > 0).astype(jnp.float32)) > 0
        right = jnp.where(last, correct[:, None], right)
        return jnp.where(ends | last, jnp.where(right, 1.0, -1.0), 0.0) * jnp.float32(self.common.step_reward)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text."""
        return characters.strings(_text(self, jnp.asarray([index], jnp.int32), split))[0]

    @property
    def _alphabet(self) -> str:
        return self.rules.alphabet + (";" if self.common.working else "")

    @property
    def _bound(self) -> tokenizers.Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"tokenizer: task {self.name!r} has none; call task.bind(tokenizer) first")
        return self.tokenizer

    @property
    def _ids(self) -> np.ndarray:
        return characters.table(self._bound, self._alphabet, self.name)

    def _problem(self, index: types.Array, split: Split) -> jax.Array:
        return numbering.values(self.rules.radices, self.common.heldout, index, split)

    def codes(
        self, index: types.Array, split: Split = "train", key: types.Key | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return prompts and demonstrations as code points ``[P, K]``, 0 where there is no character."""
        value = self._problem(index, split)
        count, choices = self.rules.mistakes
        key = jax.random.key(0) if key is None else key
        slip, off = numbering.mistakes(key, index, self.common.slip, self.common.noise, count, choices)
        return self.rules.prompt(value), self._written(self.rules.solve(value, slip, off))

    def _written(self, solution: rules_lib.Solution) -> jax.Array:
        return jnp.concatenate(solution, axis=1) if self.common.working else solution.answer


@functools.partial(jax.jit, static_argnums=(0, 2))
def _text(task: Problems, index: jax.Array, split: Split) -> jax.Array:
    return task.rules.prompt(task._problem(index, split))


@functools.partial(jax.jit, static_argnums=0)
def _corpus(task: Problems, index: jax.Array) -> jax.Array:
    return jnp.concatenate(task.codes(index), axis=1)
