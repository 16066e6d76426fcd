"""Expressions over a few numbers, drawn, evaluated, written and read inside a compiled program.

Values are exact: a fraction is a pair (numerator, denominator) of int32, not reduced. ``0 / 0`` is undefined
and stays so through every operation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax.environments import characters

OPERATORS = "+-*/"

_HUGE = 10**6  # a literal's value stops growing here: no task gives a number that large


class Fraction(NamedTuple):
    """Exact values; any shape."""

    top: jax.Array  # int32
    bottom: jax.Array  # int32


class Tree(NamedTuple):
    """A binary tree over N numbers: shuffle them, then join two neighbours, N - 1 times."""

    order: jax.Array  # [N] int32, which number stands at a place
    join: jax.Array  # [N - 1] int32, the place whose number joins its right neighbour
    operator: jax.Array  # [N - 1] int32, index in the task's operators


class Parsed(NamedTuple):
    """What ``parse`` makes of a batch of texts."""

    valid: jax.Array  # [B] bool, is the text an expression
    value: Fraction  # [B] each; means nothing where not valid
    number: jax.Array  # [B, T] int32, a literal's value at its last digit, -1 elsewhere


def bound(numbers: int, highest: int, operators: str) -> int:
    """Bound numerators and denominators of any expression that uses each number at most once.

    A product's are products; a sum's at most twice the product of its sides' (once where bottoms are 1 and
    every number counts as two or more).
    """
    return max(highest, 2) ** numbers * (2 ** (numbers - 1) if "/" in operators else 1)


def combine(symbol: jax.Array, left: Fraction, right: Fraction) -> Fraction:
    """Compute ``left symbol right``, ``symbol`` being the operator's code point."""
    plus, minus, times = (symbol == ord(c) for c in "+-*")
    cross = left.top * right.bottom
    other = right.top * left.bottom
    bottom = left.bottom * right.bottom
    divisible = right.top != 0
    top = jnp.where(
        plus,
        cross + other,
        jnp.where(minus, cross - other, jnp.where(times, left.top * right.top, jnp.where(divisible, cross, 0))),
    )
    return Fraction(top, jnp.where(plus | minus | times, bottom, other))


def equals(value: Fraction, target: jax.Array) -> jax.Array:
    """Tell whether fractions equal integers; an undefined value equals none."""
    bottom = jnp.where(value.bottom == 0, 1, value.bottom)
    return (value.bottom != 0) & (value.top % bottom == 0) & (value.top // bottom == target)


def integer(value: Fraction) -> jax.Array:
    """Read fractions as integers: -1 where undefined or not an integer."""
    bottom = jnp.where(value.bottom == 0, 1, value.bottom)
    return jnp.where((value.bottom != 0) & (value.top % bottom == 0), value.top // bottom, -1)


def bits(numbers: int) -> int:
    """Count the random words that ``draw`` takes for one tree."""
    return 3 * numbers - 2


def draw(word: jax.Array, operators: int) -> Tree:
    """Make one tree of random words [3 N - 2] uint32: any order, any neighbours, any operators."""
    numbers = (word.shape[0] + 2) // 3
    order, join, operator = word[:numbers], word[numbers : 2 * numbers - 1], word[2 * numbers - 1 :]
    left = jnp.arange(numbers - 1, 0, -1, dtype=jnp.uint32)  # neighbours still to choose from
    return Tree(
        order=jnp.argsort(order).astype(jnp.int32),
        join=(join % left).astype(jnp.int32),
        operator=(operator % jnp.uint32(operators)).astype(jnp.int32),
    )


def _symbols(operators: str) -> jax.Array:
    return jnp.asarray(characters.codes(operators), jnp.int32)


def _joined(leaf: jax.Array, place: jax.Array, joint: jax.Array) -> jax.Array:
    """Replace two neighbours of a list [M, ...] by one: [M - 1, ...]."""
    at = jnp.arange(leaf.shape[0] - 1).reshape((-1,) + (1,) * (leaf.ndim - 1))
    return jnp.where(at < place, leaf[:-1], jnp.where(at == place, joint[None], leaf[1:]))


def evaluate(tree: Tree, given: jax.Array, operators: str) -> Fraction:
    """Evaluate one tree over the numbers ``given`` [N]."""
    top = given[tree.order]
    items = Fraction(top, jnp.ones_like(top))
    for i in range(given.shape[0] - 1):
        place = tree.join[i]
        left = Fraction(items.top[place], items.bottom[place])
        right = Fraction(items.top[place + 1], items.bottom[place + 1])
        made = combine(_symbols(operators)[tree.operator[i]], left, right)
        items = Fraction(_joined(items.top, place, made.top), _joined(items.bottom, place, made.bottom))
    return Fraction(items.top[0], items.bottom[0])


def write(tree: Tree, given: jax.Array, operators: str, digits: int) -> jax.Array:
    """Write one tree over ``given`` [N] without needless parentheses: code [K], gaps left in."""
    count = given.shape[0]
    length = count * digits + (count - 1) + 2 * (count - 1)
    text = characters.pack(characters.decimal(given[tree.order], digits), length)
    rank = jnp.full((count,), 2)  # how tightly an item binds: 0 sum, 1 product, 2 number
    for i in range(count - 1):
        place, symbol = tree.join[i], _symbols(operators)[tree.operator[i]]
        own = ((symbol == ord("*")) | (symbol == ord("/"))).astype(rank.dtype)
        ordered = (symbol == ord("-")) | (symbol == ord("/"))  # a-(b+c) is not a-b+c
        left, right = rank[place] < own, (rank[place + 1] < own) | (ordered & (rank[place + 1] == own))
        sides = [_mark(left, "("), text[place], _mark(left, ")"), symbol[None]]
        sides += [_mark(right, "("), text[place + 1], _mark(right, ")")]
        made = characters.pack(jnp.concatenate(sides)[None], length)[0]
        text, rank = _joined(text, place, made), _joined(rank, place, own)
    return text[0]


def _mark(present: jax.Array, character: str) -> jax.Array:
    return jnp.where(present, ord(character), 0)[None]


def parse(code: jax.Array, operators: str) -> Parsed:
    """Read texts [B, T] of code points, 0 after the end, as infix expressions and evaluate them.

    Numbers are unsigned and without leading zeros; ``operators`` and parentheses are all else there may be.
    Products bind tighter than sums, both group from the left.
    """
    blank = jnp.zeros_like(code[:, :1])
    before = jnp.concatenate([blank + ord("("), code[:, :-1]], axis=1)  # the text as if in parentheses
    after = jnp.concatenate([code[:, 1:], blank], axis=1)
    digit, opening, closing = _is_digit(code), code == ord("("), code == ord(")")
    value_starts = _is_operator(before, operators) | (before == ord("("))
    value_ended = _is_digit(before) | (before == ord(")"))
    fits = jnp.zeros_like(digit)
    fits |= digit & (value_starts | (_is_digit(before) & ~_leading_zero(before)))
    fits |= opening & value_starts
    fits |= (closing | _is_operator(code, operators)) & value_ended
    fits |= (code == 0) & (value_ended | (before == 0))
    depth = jnp.cumsum(opening.astype(jnp.int32) - closing.astype(jnp.int32), axis=1)
    last = code[:, -1]
    ends = (last == 0) | _is_digit(last) | (last == ord(")"))
    valid = jnp.all(fits & (depth >= 0), axis=1) & (depth[:, -1] == 0) & ends
    literal = _literals(code, digit)
    number = jnp.where(digit & ~_is_digit(after), literal, -1)
    return Parsed(valid, _calculate(code, number), number)


def _is_digit(code: jax.Array) -> jax.Array:
    return (code >= ord("0")) & (code <= ord("9"))


def _is_operator(code: jax.Array, operators: str) -> jax.Array:
    found = jnp.zeros_like(code, dtype=bool)
    for symbol in operators:
        found |= code == ord(symbol)
    return found


def _leading_zero(code: jax.Array) -> jax.Array:
    """Tell which characters are a zero that no digit stands before."""
    before = jnp.concatenate([jnp.zeros_like(code[:, :1]), code[:, :-1]], axis=1)
    return (code == ord("0")) & ~_is_digit(before)


def _literals(code: jax.Array, digit: jax.Array) -> jax.Array:
    """Accumulate decimal literals: [B, T], the value so far at each digit."""

    def step(value: jax.Array, place: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        one, is_digit = place
        value = jnp.where(is_digit, jnp.minimum(value * 10 + one - ord("0"), _HUGE), 0)
        return value, value

    return jax.lax.scan(step, jnp.zeros_like(code[:, 0]), (code.T, digit.T))[1].T


class _Level(NamedTuple):
    """A calculator's registers for each depth of parentheses: ``total adding (product multiplying ...``."""

    total: Fraction  # [B, depth] each: the sum of the terms finished
    adding: jax.Array  # the operator before the current term
    product: Fraction  # the current term so far
    multiplying: jax.Array  # the operator before the next factor, 0 at the start of a term


def _calculate(code: jax.Array, number: jax.Array) -> Fraction:
    """Evaluate well-formed texts [B, T] with a stack of calculators, one character a step.

    Numbers and closing parentheses deliver a value to the calculator of their depth.
    """
    rows, length = code.shape
    deep = length // 2 + 1
    zero = jnp.zeros((rows, deep), code.dtype)
    clear = _Level(Fraction(zero, zero + 1), zero + ord("+"), Fraction(zero, zero + 1), zero)
    places = jnp.broadcast_to(jnp.arange(deep)[None, :], zero.shape)

    def put(level: _Level, here: jax.Array, value: _Level) -> _Level:
        return jax.tree.map(lambda old, new: jnp.where(here, new, old), level, value)

    def step(carry: tuple[_Level, jax.Array], place: jax.Array) -> tuple[tuple[_Level, jax.Array], None]:
        level, depth = carry
        one, literal = (jnp.broadcast_to(x[:, None], zero.shape) for x in place)
        here = places == depth[:, None]
        level = put(level, here & ((one == ord("+")) | (one == ord("-"))), _term(level, one, zero))
        level = put(level, here & ((one == ord("*")) | (one == ord("/"))), level._replace(multiplying=one))
        closed = Fraction(*(jnp.roll(x, -1, axis=1) for x in _sum(level)))  # what ")" delivers to the depth below
        depth = jnp.clip(depth + (place[0] == ord("(")) - (place[0] == ord(")")), 0, deep - 1)
        here = places == depth[:, None]
        level = put(level, here & (one == ord("(")), clear)
        value = Fraction(jnp.where(literal >= 0, literal, closed.top), jnp.where(literal >= 0, 1, closed.bottom))
        level = put(level, here & ((literal >= 0) | (one == ord(")"))), _factor(level, value))
        return (level, depth), None

    start = (clear, jnp.zeros_like(code[:, 0]))
    (level, _), _ = jax.lax.scan(step, start, jnp.stack([code.T, number.T], axis=1))
    return Fraction(*(x[:, 0] for x in _sum(level)))


def _sum(level: _Level) -> Fraction:
    return combine(level.adding, level.total, level.product)


def _term(level: _Level, symbol: jax.Array, zero: jax.Array) -> _Level:
    """Finish a term at a plus or minus sign."""
    return _Level(_sum(level), symbol, level.product, zero)


def _factor(level: _Level, value: Fraction) -> _Level:
    """Take a number, or the value of a parenthesis, into the current term."""
    joined = combine(level.multiplying, level.product, value)
    first = level.multiplying == 0
    product = Fraction(jnp.where(first, value.top, joined.top), jnp.where(first, value.bottom, joined.bottom))
    return level._replace(product=product)
