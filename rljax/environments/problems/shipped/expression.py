"""Arithmetic expressions over a few numbers, generated, evaluated, written and parsed inside a compiled program.

Values are exact: a fraction is a pair (numerator, denominator) of int32, not reduced. ``0 / 0`` is undefined, and so is
every expression that contains it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax.environments import characters

OPERATORS = "+-*/"

_HUGE = 10**6  # literals saturate at this value; no task has numbers as large


class Fraction(NamedTuple):
    """Exact fractions, of any shape."""

    top: jax.Array  # int32
    bottom: jax.Array  # int32


class Tree(NamedTuple):
    """A binary tree over N numbers: permute them, then combine two neighbors, N - 1 times."""

    order: jax.Array  # [N] int32, the number at each place
    join: jax.Array  # [N - 1] int32, the place that is combined with its right neighbor
    operator: jax.Array  # [N - 1] int32, index into the task's operators


class Parsed(NamedTuple):
    """The result of parsing a batch of texts."""

    valid: jax.Array  # [B] bool, whether the text is an expression
    value: Fraction  # [B] each; arbitrary where not valid
    number: jax.Array  # [B, T] int32, the value of a literal at its last digit, -1 elsewhere


def bound(numbers: int, highest: int, operators: str) -> int:
    """Bound the numerators and denominators of all expressions that use each number at most once.

    Those of a product are products; those of a sum at most twice the product of those of its operands (at most the
    product if all denominators are 1 and every number counts as at least 2).

    Args:
      numbers: how many numbers there are.
      highest: the largest number.
      operators: those that may be used.

    Returns:
      The bound, a Python int.
    """
    return max(highest, 2) ** numbers * (2 ** (numbers - 1) if "/" in operators else 1)


def combine(symbol: jax.Array, left: Fraction, right: Fraction) -> Fraction:
    """Compute ``left symbol right``.

    Args:
      symbol: code point of the operator, int32, any shape.
      left: fractions of the same shape.
      right: fractions of the same shape.

    Returns:
      Fractions of the same shape.
    """
    plus, minus, times = (symbol == ord(c) for c in "+-*")
    cross = left.top * right.bottom
    cross_right = right.top * left.bottom
    bottom = left.bottom * right.bottom
    divisible = right.top != 0
    top = jnp.where(
        plus,
        cross + cross_right,
        jnp.where(minus, cross - cross_right, jnp.where(times, left.top * right.top, jnp.where(divisible, cross, 0))),
    )
    return Fraction(top, jnp.where(plus | minus | times, bottom, cross_right))


def equals(value: Fraction, target: jax.Array) -> jax.Array:
    """Return whether fractions equal integers; an undefined value equals none."""
    bottom = jnp.where(value.bottom == 0, 1, value.bottom)
    return (value.bottom != 0) & (value.top % bottom == 0) & (value.top // bottom == target)


def integer(value: Fraction) -> jax.Array:
    """Return fractions as integers, -1 where undefined or not an integer."""
    bottom = jnp.where(value.bottom == 0, 1, value.bottom)
    return jnp.where((value.bottom != 0) & (value.top % bottom == 0), value.top // bottom, -1)


def bits(numbers: int) -> int:
    """Return the number of random words that ``random_tree`` uses."""
    return 3 * numbers - 2


def random_tree(word: jax.Array, operators: int) -> Tree:
    """Return one tree from random words [3 N - 2] uint32, with random order, neighbors and operators."""
    numbers = (word.shape[0] + 2) // 3
    order, join, operator = word[:numbers], word[numbers : 2 * numbers - 1], word[2 * numbers - 1 :]
    left = jnp.arange(numbers - 1, 0, -1, dtype=jnp.uint32)  # pairs of neighbors to choose from
    return Tree(
        order=jnp.argsort(order).astype(jnp.int32),
        join=(join % left).astype(jnp.int32),
        operator=(operator % jnp.uint32(operators)).astype(jnp.int32),
    )


def _symbols(operators: str) -> jax.Array:
    return jnp.asarray(characters.codes(operators), jnp.int32)


def _joined(leaf: jax.Array, place: jax.Array, combined: jax.Array) -> jax.Array:
    """Replace two neighbors of a list [M, ...] by ``combined``: [M - 1, ...]."""
    index = jnp.arange(leaf.shape[0] - 1).reshape((-1,) + (1,) * (leaf.ndim - 1))
    return jnp.where(index < place, leaf[:-1], jnp.where(index == place, combined[None], leaf[1:]))


def evaluate(tree: Tree, values: jax.Array, operators: str) -> Fraction:
    """Evaluate one tree.

    Args:
      tree: over N numbers.
      values: the numbers, ``[N]`` int32.
      operators: those that ``tree.operator`` indexes.

    Returns:
      A scalar fraction.
    """
    top = values[tree.order]
    items = Fraction(top, jnp.ones_like(top))
    for i in range(values.shape[0] - 1):
        place = tree.join[i]
        left = Fraction(items.top[place], items.bottom[place])
        right = Fraction(items.top[place + 1], items.bottom[place + 1])
        value = combine(_symbols(operators)[tree.operator[i]], left, right)
        items = Fraction(_joined(items.top, place, value.top), _joined(items.bottom, place, value.bottom))
    return Fraction(items.top[0], items.bottom[0])


def write(tree: Tree, values: jax.Array, operators: str, digits: int) -> jax.Array:
    """Write one tree as text without redundant parentheses.

    Args:
      tree: over N numbers.
      values: the numbers, ``[N]`` int32.
      operators: those that ``tree.operator`` indexes.
      digits: decimal digits of the largest number.

    Returns:
      Code points ``[K]`` int32, 0 where there is no character.
    """
    count = values.shape[0]
    length = count * digits + (count - 1) + 2 * (count - 1)
    text = characters.pack(characters.decimal(values[tree.order], digits), length)
    rank = jnp.full((count,), 2)  # precedence of an item: 0 sum, 1 product, 2 number
    for i in range(count - 1):
        place, symbol = tree.join[i], _symbols(operators)[tree.operator[i]]
        precedence = ((symbol == ord("*")) | (symbol == ord("/"))).astype(rank.dtype)
        ordered = (symbol == ord("-")) | (symbol == ord("/"))  # a-(b+c) is not a-b+c
        left = rank[place] < precedence
        right = (rank[place + 1] < precedence) | (ordered & (rank[place + 1] == precedence))
        sides = [_mark(left, "("), text[place], _mark(left, ")"), symbol[None]]
        sides += [_mark(right, "("), text[place + 1], _mark(right, ")")]
        combined = characters.pack(jnp.concatenate(sides)[None], length)[0]
        text, rank = _joined(text, place, combined), _joined(rank, place, precedence)
    return text[0]


def _mark(present: jax.Array, character: str) -> jax.Array:
    return jnp.where(present, ord(character), 0)[None]


def parse(code: jax.Array, operators: str) -> Parsed:
    """Parse texts [B, T] of code points, 0 after the end, as infix expressions and evaluate them.

    An expression has unsigned numbers without leading zeros, ``operators`` and parentheses. Products have higher
    precedence than sums; both are left-associative.
    """
    blank = jnp.zeros_like(code[:, :1])
    previous = jnp.concatenate([blank + ord("("), code[:, :-1]], axis=1)  # the text as if in parentheses
    following = jnp.concatenate([code[:, 1:], blank], axis=1)
    digit, opening, closing = _is_digit(code), code == ord("("), code == ord(")")
    value_starts = characters.among(previous, operators + "(")
    value_ended = _is_digit(previous) | (previous == ord(")"))
    fits = jnp.zeros_like(digit)
    fits |= digit & (value_starts | (_is_digit(previous) & ~_leading_zero(previous)))
    fits |= opening & value_starts
    fits |= characters.among(code, operators + ")") & value_ended
    fits |= (code == 0) & (value_ended | (previous == 0))
    depth = jnp.cumsum(opening.astype(jnp.int32) - closing.astype(jnp.int32), axis=1)
    last = code[:, -1]
    ends = (last == 0) | _is_digit(last) | (last == ord(")"))
    valid = jnp.all(fits & (depth >= 0), axis=1) & (depth[:, -1] == 0) & ends
    literal = _literals(code, digit)
    number = jnp.where(digit & ~_is_digit(following), literal, -1)
    return Parsed(valid, _calculate(code, number), number)


def _is_digit(code: jax.Array) -> jax.Array:
    return (code >= ord("0")) & (code <= ord("9"))


def _leading_zero(code: jax.Array) -> jax.Array:
    """Return which characters are a zero without a digit before it."""
    previous = jnp.concatenate([jnp.zeros_like(code[:, :1]), code[:, :-1]], axis=1)
    return (code == ord("0")) & ~_is_digit(previous)


def _literals(code: jax.Array, digit: jax.Array) -> jax.Array:
    """Accumulate decimal literals: [B, T], at each digit the value up to it."""

    def step(value: jax.Array, place: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        one, is_digit = place
        value = jnp.where(is_digit, jnp.minimum(value * 10 + one - ord("0"), _HUGE), 0)
        return value, value

    return jax.lax.scan(step, jnp.zeros_like(code[:, 0]), (code.T, digit.T))[1].T


class _Level(NamedTuple):
    """Registers of a calculator for each depth of parentheses: ``total adding (product multiplying ...``."""

    total: Fraction  # [B, depth] each: the sum of the completed terms
    adding: jax.Array  # the operator before the current term
    product: Fraction  # the current term so far
    multiplying: jax.Array  # the operator before the next factor, 0 at the start of a term


def _calculate(code: jax.Array, number: jax.Array) -> Fraction:
    """Evaluate well-formed texts [B, T] with a stack of calculators, one character per step.

    A number or a closing parenthesis passes a value to the calculator of its depth.
    """
    rows, length = code.shape
    deep = length // 2 + 1
    zero = jnp.zeros((rows, deep), code.dtype)
    clear = _Level(Fraction(zero, zero + 1), zero + ord("+"), Fraction(zero, zero + 1), zero)
    places = jnp.broadcast_to(jnp.arange(deep)[None, :], zero.shape)

    def put(level: _Level, current: jax.Array, value: _Level) -> _Level:
        return jax.tree.map(lambda old, new: jnp.where(current, new, old), level, value)

    def step(carry: tuple[_Level, jax.Array], place: jax.Array) -> tuple[tuple[_Level, jax.Array], None]:
        level, depth = carry
        one, literal = (jnp.broadcast_to(x[:, None], zero.shape) for x in place)
        current = places == depth[:, None]
        completed = _Level(_sum(level), one, level.product, zero)
        level = put(level, current & characters.among(one, "+-"), completed)
        level = put(level, current & characters.among(one, "*/"), level._replace(multiplying=one))
        # the value that ")" passes to the depth below
        closed = Fraction(*(jnp.roll(x, -1, axis=1) for x in _sum(level)))
        depth = jnp.clip(depth + (place[0] == ord("(")) - (place[0] == ord(")")), 0, deep - 1)
        current = places == depth[:, None]
        level = put(level, current & (one == ord("(")), clear)
        value = Fraction(jnp.where(literal >= 0, literal, closed.top), jnp.where(literal >= 0, 1, closed.bottom))
        level = put(level, current & ((literal >= 0) | (one == ord(")"))), _factor(level, value))
        return (level, depth), None

    start = (clear, jnp.zeros_like(code[:, 0]))
    (level, _), _ = jax.lax.scan(step, start, jnp.stack([code.T, number.T], axis=1))
    return Fraction(*(x[:, 0] for x in _sum(level)))


def _sum(level: _Level) -> Fraction:
    return combine(level.adding, level.total, level.product)


def _factor(level: _Level, value: Fraction) -> _Level:
    """Multiply a number, or the value of a parenthesis, into the current term."""
    product = combine(level.multiplying, level.product, value)
    first = level.multiplying == 0
    product = Fraction(jnp.where(first, value.top, product.top), jnp.where(first, value.bottom, product.bottom))
    return level._replace(product=product)
