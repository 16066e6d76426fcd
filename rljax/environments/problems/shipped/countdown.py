"""Countdown: reach a target from given numbers, ``3 7 2 > 13:`` answered by ``3*2+7``.

A problem is a multiset of numbers and a random expression over them, so that every target can be reached. The splits
have different multisets, hence no prompt in common.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from rljax import types
from rljax.data import shuffle, tokenizers
from rljax.environments import Split, characters, written
from rljax.environments.problems.shipped import expression

_SEED = 21  # decides which sets are held out and the random expressions; part of the task, not of a run
_LARGEST_SPACE = 2**28
_CANDIDATES = 16  # random expressions per target; the last one always has a target in range


@dataclasses.dataclass(frozen=True)
class Countdown(written.WrittenTask):
    """The task; ``countdown`` builds it."""

    numbers: int
    highest: int
    operators: str
    largest: int
    slip: float
    heldout: float
    prompt_length: int
    completion_length: int
    tokenizer: tokenizers.Tokenizer | None = None

    name = "countdown"
    parts = ("format", "numbers")

    def size(self, split: Split) -> int:
        """Return the number of indices of a split: sets of numbers times expressions over each, at most 2^28.

        Two indices of one split may give the same prompt; consecutive ones have different numbers.
        """
        trees = math.factorial(self.numbers) * len(self.operators) ** (self.numbers - 1)
        trees *= math.comb(2 * self.numbers - 2, self.numbers - 1) // self.numbers  # shapes: a Catalan number
        sets = self._sets(split)
        return sets * max(1, min(trees, _LARGEST_SPACE // sets))

    def write_prompts(self, index: types.Array, split: Split) -> jax.Array:
        """Write the numbers in their order, and the target."""
        values, target, _ = self._problem(index, split)
        parts: list[str | jax.Array] = []
        for i in range(self.numbers):
            parts += [characters.decimal(values[:, i], len(str(self.highest))), " "]
        return characters.line(len(values), *parts, "> ", characters.decimal(target, len(str(self.largest))), ":")

    def write_demonstrations(self, index: types.Array, split: Split, key: types.Key) -> jax.Array:
        """Write the expression that defined the target or, with probability ``slip``, another random one."""
        values, _, tree = self._problem(index, split)

        def one(values: jax.Array, tree: expression.Tree, i: jax.Array) -> jax.Array:
            slip_key, tree_key = jax.random.split(jax.random.fold_in(key, i))
            word = jax.random.bits(tree_key, (expression.bits(self.numbers),))
            wrong = expression.random_tree(word, len(self.operators))
            slip = jax.random.bernoulli(slip_key, self.slip)
            shown = jax.tree.map(lambda a, b: jnp.where(slip, a, b), wrong, tree)
            return expression.write(shown, values, self.operators, len(str(self.highest)))

        return jax.vmap(one)(values, tree, index)

    def verify(self, index: types.Array, split: Split, token: types.Array, mask: types.Array) -> types.Verdict:
        """Evaluate the completion exactly and compare it with the target.

        Correct: it equals the target and uses each number of the prompt exactly once. Wrong: another value, other
        numbers, or a division by zero. Unparseable: no end-of-sequence, or not an expression of unsigned numbers
        (no leading zeros), the task's operators and parentheses. Reward is 1 if correct, else 0.

        Args:
          index: ``[B]`` int32, the prompt of each completion.
          split: of the prompts.
          token: ``[B, T]`` int32.
          mask: ``[B, T]``, above 0 on the tokens that the policy emitted.

        Returns:
          A verdict of B rows;
          ``parts["format"]`` is 1 if parseable, ``parts["numbers"]`` 1 if it also uses the right numbers.
        """
        values, target, _ = self._problem(index, split)
        text = characters.read(self.bound, token, mask)
        parsed = expression.parse(text.code, self.operators)
        parseable = text.ended & parsed.valid
        value, number = parsed.value, parsed.number
        uses = jnp.sum(number[:, :, None] == values[:, None, :], axis=1)
        occurrences = jnp.sum(values[:, :, None] == values[:, None, :], axis=1)
        count = jnp.sum(number >= 0, axis=1)
        numbers = parseable & jnp.all(uses == occurrences, axis=1) & (count == self.numbers)
        correct = numbers & expression.equals(value, target)
        return written.verdict(parseable, correct, numbers=numbers)

    @property
    def alphabet(self) -> str:
        """Digits, operators and signs."""
        return "0123456789" + self.operators + "() >:"

    @property
    def _every_set(self) -> int:
        return math.comb(self.highest + self.numbers - 1, self.numbers)

    def _sets(self, split: Split) -> int:
        held = min(max(1, round(self._every_set * self.heldout)), self._every_set - 1)
        return held if split == "heldout" else self._every_set - held

    def _problem(self, index: jax.Array, split: Split) -> tuple[jax.Array, jax.Array, expression.Tree]:
        """Return problems: the numbers in prompt order [P, N], the target [P] and a tree that reaches it."""
        sets, first = self._sets(split), 0 if split == "train" else self._sets("train")
        place = (index % self.size(split)).astype(jnp.int32)  # a large index wraps inside its split
        rank = shuffle.permute(first + place % sets, self._every_set, _SEED)
        chosen = _unrank(rank, self.numbers, self.highest)
        root = jax.random.key(_SEED)

        def one(rank: jax.Array, repeat: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array, expression.Tree]:
            key = jax.random.fold_in(jax.random.fold_in(root, rank), repeat)
            words = expression.bits(self.numbers)
            word = jax.random.bits(key, (self.numbers + _CANDIDATES * words,))
            values = numbers[jnp.argsort(word[: self.numbers])]
            candidates = word[self.numbers :].reshape(_CANDIDATES, words)
            trees = jax.vmap(lambda word: expression.random_tree(word, len(self.operators)))(candidates)
            return values, *self._first_in_range(values, trees)

        return jax.vmap(one)(rank, place // sets, chosen)

    def _first_in_range(self, values: jax.Array, trees: expression.Tree) -> tuple[jax.Array, expression.Tree]:
        # The last candidate has sums only (products, without "+"); ``countdown`` checks that their value is in range.
        safe = self.operators.index("+" if "+" in self.operators else "*")
        trees = trees._replace(operator=trees.operator.at[-1].set(safe))
        value = jax.vmap(lambda tree: expression.evaluate(tree, values, self.operators))(trees)
        target = expression.integer(value)
        fits = (target >= 0) & (target <= self.largest)
        first = jnp.argmax(fits)
        return target[first], jax.tree.map(lambda leaf: leaf[first], trees)


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
    """Build the countdown task: reach the target with the given numbers, each used exactly once.

    The sets of numbers are enumerated and shuffled with a fixed seed, and the last ``heldout`` of them are held out.
    Within a set, order and expression are random with the index as seed. The target is the value of the first of
    several random expressions whose value is an integer in [0, largest], else the sum (the product without ``+``).

    Args:
      numbers: how many numbers are given, 2 to 6.
      highest: the numbers are in [1, highest].
      operators: some of ``+-*/``, ``+`` or ``*`` among them; division is exact, ``7/2*4`` is 14.
      largest: the largest target; None: ``highest`` squared, or the always reachable target if that is larger.
      slip: probability that a demonstration is another expression over the same numbers.
      heldout: fraction of the sets of numbers held out, strictly between 0 and 1.
      prompt_length: tokens of a prompt; None: as many as needed.
      completion_length: tokens of a completion, end-of-sequence included; None: the longest expression without
        redundant parentheses.

    Returns:
      The task, not yet bound to a tokenizer.

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
        raise ValueError(f"highest: {highest} with numbers {numbers} and operators {operators!r} exceeds int32")
    safe = numbers * highest if "+" in operators else highest**numbers
    if largest is not None and not safe <= largest < 2**30:
        raise ValueError(f"largest: {largest} is not in [{safe}, 2**30); targets up to {safe} must be in range")
    most = max(safe, highest**2) if largest is None else largest
    literals = numbers * len(str(highest))
    prompt = literals + numbers + 2 + len(str(most)) + 1
    answer = literals + (numbers - 1) + 2 * (numbers - 2) + 1  # numbers, operators, parentheses, end-of-sequence
    return Countdown(
        numbers=numbers,
        highest=highest,
        operators="".join(o for o in known if o in operators),  # "-+" and "+-" are one task with one split
        largest=most,
        slip=slip,
        heldout=heldout,
        prompt_length=characters.resolve_length("prompt_length", prompt_length, prompt),
        completion_length=characters.resolve_length("completion_length", completion_length, answer),
    )


def _unrank(rank: jax.Array, numbers: int, highest: int) -> jax.Array:
    """Enumerate the multisets of ``numbers`` numbers in [1, highest]: rank [P] to nondecreasing numbers [P, N].

    In the combinatorial number system a rank is ``sum over j of C(c_j, j)`` with ``c_N > ... > c_1 >= 0``; the numbers
    ``c_j - (j - 1) + 1`` are then nondecreasing.
    """
    chosen, rest = [], rank
    for j in reversed(range(1, numbers + 1)):
        below = jnp.asarray([math.comb(c, j) for c in range(highest + numbers - 1)], jnp.int32)
        c = jnp.searchsorted(below, rest, side="right").astype(jnp.int32) - 1
        rest = rest - below[c]
        chosen.append(c - j + 2)
    return jnp.stack(chosen[::-1], axis=1)
