"""Countdown: reach a target from given numbers, ``3 7 2 > 13:`` answered by ``3*2+7``.

A problem starts from a set of numbers (repeats allowed) and an expression drawn over them, so that every
target can be reached. The splits hold different sets of numbers, hence no prompt of one stands in the other.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.data import shuffle, tokenizers
from rljax.environments import Split, characters, expression

_SEED = 21  # which sets are held out and which expressions are drawn; part of the task, not of a run
_LARGEST_SPACE = 2**28
_CANDIDATES = 16  # expressions tried for a target in range before falling back on one that is sure to be
_CORPUS_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Countdown:
    """The task; build it with ``countdown``."""

    numbers: int
    highest: int
    operators: str
    largest: int
    slip: float
    heldout: float
    prompt_length: int
    completion_length: int
    tokenizer: tokenizers.Tokenizer | None = None

    name: str = dataclasses.field(default="countdown", init=False)
    host: bool = dataclasses.field(default=False, init=False)
    parts: tuple[str, ...] = dataclasses.field(default=("format", "numbers"), init=False)

    def corpus(self) -> Iterator[str]:
        """Yield every character once, then prompts with demonstrations."""
        yield self._alphabet
        index = jnp.arange(min(_CORPUS_ROWS, self.size("train")), dtype=jnp.int32)
        yield from characters.strings(_corpus(self, index))

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Countdown":
        """Return a copy that knows its tokens; ValueError if the tokenizer lacks a character."""
        characters.table(tokenizer, self._alphabet, self.name)
        return dataclasses.replace(self, tokenizer=tokenizer)

    def size(self, split: Split) -> int:
        """Count the indices of a split: its sets of numbers times the expressions over each, at most 2^28.

        Two indices of one split may give the same prompt; consecutive ones have different numbers.
        """
        trees = math.factorial(self.numbers) * len(self.operators) ** (self.numbers - 1)
        trees *= math.comb(2 * self.numbers - 2, self.numbers - 1) // self.numbers  # shapes: a Catalan number
        sets = self._sets(split)
        return sets * max(1, min(trees, _LARGEST_SPACE // sets))

    def prompts(self, index: types.Array, split: Split) -> types.Prompts:
        """Build prompts: index [P] to token and mask [P, L]."""
        ids = jnp.asarray(self._ids)
        given, target, _ = self._problem(index, split)
        code = characters.pack(self._prompt(given, target), self.prompt_length, pad="left")
        return types.Prompts(token=ids[code], mask=(code != 0).astype(jnp.float32), index=index)

    def demonstrations(self, index: types.Array, split: Split, key: types.Key) -> tuple[jax.Array, jax.Array]:
        """Complete prompts ``index`` [P]: token and mask [P, T].

        The expression the target came from or, with probability ``slip``, another over the same numbers,
        which is right only by chance. The draws of a row depend on ``(key, index)`` alone.
        """
        given, _, tree = self._problem(index, split)
        code = self._demonstrate(given, tree, index, key)
        return characters.demonstration(code, self.completion_length, self._bound, self._ids)

    def verify(self, index: types.Array, split: Split, token: types.Array, mask: types.Array) -> types.Verdict:
        """Evaluate the completion exactly and compare it with the target.

        Correct: it equals the target and uses each given number once. Wrong: another value, other numbers, or a
        division by zero. Unparseable: no end-of-sequence, or not an expression of unsigned numbers (no leading
        zeros), the task's operators and parentheses. Reward is 1 when correct, else 0. ``parts``: "format" 1 if
        parseable, "numbers" 1 if it also uses the given numbers as it should.
        """
        given, target, _ = self._problem(index, split)
        text = characters.read(self._bound, token, mask)
        parsed = expression.parse(text.code, self.operators)
        parseable = text.ended & parsed.valid
        value, number = parsed.value, parsed.number
        uses = jnp.sum(number[:, :, None] == given[:, None, :], axis=1)
        there = jnp.sum(given[:, :, None] == given[:, None, :], axis=1)
        count = jnp.sum(number >= 0, axis=1)
        numbers = parseable & jnp.all(uses == there, axis=1) & (count == self.numbers)
        correct = numbers & expression.equals(value, target)
        outcome = jnp.where(correct, types.Outcome.CORRECT, types.Outcome.WRONG)
        return types.Verdict(
            reward=correct.astype(jnp.float32),
            outcome=jnp.where(parseable, outcome, types.Outcome.UNPARSEABLE).astype(jnp.int32),
            parts={"format": parseable.astype(jnp.float32), "numbers": numbers.astype(jnp.float32)},
        )

    def text(self, index: int, split: Split) -> str:
        """Write prompt ``index`` as text."""
        return characters.strings(_codes(self, jnp.asarray([index], jnp.int32), split))[0]

    @property
    def _alphabet(self) -> str:
        return "0123456789" + self.operators + "() >:"

    @property
    def _bound(self) -> tokenizers.Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"tokenizer: task {self.name!r} has none; call task.bind(tokenizer) first")
        return self.tokenizer

    @property
    def _ids(self) -> np.ndarray:
        return characters.table(self._bound, self._alphabet, self.name)

    @property
    def _every_set(self) -> int:
        return math.comb(self.highest + self.numbers - 1, self.numbers)

    def _sets(self, split: Split) -> int:
        held = min(max(1, round(self._every_set * self.heldout)), self._every_set - 1)
        return held if split == "heldout" else self._every_set - held

    def _problem(self, index: jax.Array, split: Split) -> tuple[jax.Array, jax.Array, expression.Tree]:
        """Look up problems: the numbers in the prompt's order [P, N], the target [P] and a tree that reaches it."""
        sets, first = self._sets(split), 0 if split == "train" else self._sets("train")
        place = (index % self.size(split)).astype(jnp.int32)  # a large index must wrap inside its own split
        rank = shuffle.permute(first + place % sets, self._every_set, _SEED)
        chosen = _unrank(rank, self.numbers, self.highest)
        root = jax.random.key(_SEED)

        def one(rank: jax.Array, turn: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array, expression.Tree]:
            key = jax.random.fold_in(jax.random.fold_in(root, rank), turn)
            words = expression.bits(self.numbers)
            word = jax.random.bits(key, (self.numbers + _CANDIDATES * words,))
            given = numbers[jnp.argsort(word[: self.numbers])]
            draws = word[self.numbers :].reshape(_CANDIDATES, words)
            trees = jax.vmap(lambda word: expression.draw(word, len(self.operators)))(draws)
            return given, *self._first_in_range(given, trees)

        return jax.vmap(one)(rank, place // sets, chosen)

    def _first_in_range(self, given: jax.Array, trees: expression.Tree) -> tuple[jax.Array, expression.Tree]:
        # The last candidate is made of sums alone (products, without "+"), which ``countdown`` made sure is in range.
        sure = self.operators.index("+" if "+" in self.operators else "*")
        trees = trees._replace(operator=trees.operator.at[-1].set(sure))
        value = jax.vmap(lambda tree: expression.evaluate(tree, given, self.operators))(trees)
        target = expression.integer(value)
        fits = (target >= 0) & (target <= self.largest)
        first = jnp.argmax(fits)
        return target[first], jax.tree.map(lambda leaf: leaf[first], trees)

    def _prompt(self, given: jax.Array, target: jax.Array) -> jax.Array:
        rows, parts = given.shape[0], []
        for i in range(self.numbers):
            parts += [characters.decimal(given[:, i], len(str(self.highest)))]
            parts += [characters.constant(" ", rows)[:, None]]
        parts += [characters.constant(c, rows)[:, None] for c in "> "]
        parts += [characters.decimal(target, len(str(self.largest))), characters.constant(":", rows)[:, None]]
        return jnp.concatenate(parts, axis=1)

    def _demonstrate(self, given: jax.Array, tree: expression.Tree, index: jax.Array, key: jax.Array) -> jax.Array:
        def one(given: jax.Array, tree: expression.Tree, i: jax.Array) -> jax.Array:
            slip, draw = jax.random.split(jax.random.fold_in(key, i))
            word = jax.random.bits(draw, (expression.bits(self.numbers),))
            other = expression.draw(word, len(self.operators))
            erring = jax.random.bernoulli(slip, self.slip)
            written = jax.tree.map(lambda a, b: jnp.where(erring, a, b), other, tree)
            return expression.write(written, given, self.operators, len(str(self.highest)))

        return jax.vmap(one)(given, tree, index)


def countdown(
    numbers: int = 3,
    highest: int = 10,
    operators: str = "+-*",
    largest: int | None = None,
    slip: float = 0.0,
    heldout: float = 0.1,
    prompt_length: int | None = None,
    completion_length: int | None = None,
) -> Countdown:
    """Build the countdown task: make the target out of the given numbers, each used exactly once.

    The sets of numbers are listed, shuffled once and for all, and the last ``heldout`` of them are held out. Within
    a set, order and expression are drawn from the index. The target is the expression's value: of a few drawn
    expressions the first whose value is an integer in [0, largest], or else the sum (the product without ``+``).

    Args:
      numbers: how many numbers are given, 2 to 6.
      highest: they lie in [1, highest].
      operators: some of ``+-*/``, ``+`` or ``*`` among them; division is exact, ``7/2*4`` is 14.
      largest: the largest target; None for the larger of ``highest`` squared and what is always reachable.
      slip: probability that a demonstration is another expression over the same numbers.
      heldout: fraction of the sets of numbers held out, strictly between 0 and 1.
      prompt_length: tokens of a prompt; None for what is needed.
      completion_length: tokens of a completion, end-of-sequence included; None for the longest expression
        without needless parentheses.

    Raises:
      ValueError: a setting is out of range, exact values overflow int32, or a length is too small.
    """
    if not 2 <= numbers <= 6:
        raise ValueError(f"numbers: {numbers} is not in [2, 6]")
    if highest < 2:
        raise ValueError(f"highest: {highest} is below 2")
    known = expression.OPERATORS
    if set(operators) - set(known) or len(set(operators)) < len(operators) or not set(operators) & set("+*"):
        raise ValueError(f"operators: {operators!r} is not a choice, without repeats, from {known!r} with '+' or '*'")
    for name, value, good in (("slip", slip, 0 <= slip <= 1), ("heldout", heldout, 0 < heldout < 1)):
        if not good:
            raise ValueError(f"{name}: {value} is not {'in [0, 1]' if name == 'slip' else 'strictly between 0 and 1'}")
    if expression.bound(numbers, highest, operators) >= 2**30:
        raise ValueError(f"highest: {highest} with numbers {numbers} and operators {operators!r} goes beyond int32")
    sure = numbers * highest if "+" in operators else highest**numbers
    if largest is not None and not sure <= largest < 2**30:
        raise ValueError(f"largest: {largest} is not in [{sure}, 2**30); {sure} must be reachable with these settings")
    most = max(sure, highest**2) if largest is None else largest
    literals = numbers * len(str(highest))
    prompt = literals + numbers + 2 + len(str(most)) + 1
    answer = literals + (numbers - 1) + 2 * (numbers - 2) + 1  # operators; parentheses inside the root; end
    return Countdown(
        numbers=numbers,
        highest=highest,
        operators="".join(o for o in known if o in operators),  # "-+" and "+-" are one task with one split
        largest=most,
        slip=slip,
        heldout=heldout,
        prompt_length=characters.budget("prompt_length", prompt_length, prompt),
        completion_length=characters.budget("completion_length", completion_length, answer),
    )


@functools.partial(jax.jit, static_argnums=(0, 2))
def _codes(task: Countdown, index: jax.Array, split: Split) -> jax.Array:
    given, target, _ = task._problem(index, split)
    return task._prompt(given, target)


@functools.partial(jax.jit, static_argnums=0)
def _corpus(task: Countdown, index: jax.Array) -> jax.Array:
    given, target, tree = task._problem(index, "train")
    demonstration = task._demonstrate(given, tree, index, jax.random.key(0))
    return jnp.concatenate([task._prompt(given, target), demonstration], axis=1)


def _unrank(rank: jax.Array, numbers: int, highest: int) -> jax.Array:
    """List the multisets of ``numbers`` numbers in [1, highest]: rank [P] to rising numbers [P, N].

    In the combinatorial number system a rank is ``sum over j of C(c_j, j)`` with ``c_N > ... > c_1 >= 0``;
    ``c_j - (j - 1) + 1`` are then rising numbers that may repeat.
    """
    chosen, rest = [], rank
    for j in reversed(range(1, numbers + 1)):
        below = jnp.asarray([math.comb(c, j) for c in range(highest + numbers - 1)], jnp.int32)
        c = jnp.searchsorted(below, rest, side="right").astype(jnp.int32) - 1
        rest = rest - below[c]
        chosen.append(c - j + 2)
    return jnp.stack(chosen[::-1], axis=1)
