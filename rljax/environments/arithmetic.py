"""Arithmetic: prompts such as ``37+48=``, answered by an integer, optionally after written-out working.

A problem is a polynomial in ten: ``columns`` are its coefficients, units first, and one pass from the units up carries
tens into the next column. The demonstrator runs the same pass with its mistakes, so that working, answer and mistakes
are consistent for every operator.
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
from rljax.environments import Split, characters

OPERATORS = "+-*"

_LARGEST_SPACE = 2**28  # the most problems that one int32 index distinguishes
_SEED = 20  # decides which problems are held out; part of the task, not of a run
_CORPUS_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """The task; ``arithmetic`` builds it."""

    operands: int
    digits: int
    operators: str
    working: bool
    slip: float
    noise: float
    heldout: float
    prompt_length: int
    completion_length: int
    tokenizer: tokenizers.Tokenizer | None = None

    name: str = dataclasses.field(default="arithmetic", init=False)
    host: bool = dataclasses.field(default=False, init=False)
    parts: tuple[str, ...] = dataclasses.field(default=("format",), init=False)

    def corpus(self) -> Iterator[str]:
        """Yield every character once, then prompts with demonstrations."""
        yield self._alphabet
        index = jnp.arange(min(_CORPUS_ROWS, self.size("train")), dtype=jnp.int32)
        yield from characters.strings(_corpus(self, index))

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Arithmetic":
        """Return a copy with the tokenizer; ValueError if it lacks a character."""
        characters.table(tokenizer, self._alphabet, self.name)
        return dataclasses.replace(self, tokenizer=tokenizer)

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        held = _held_out(math.prod(self._slots), self.heldout)
        return held if split == "heldout" else math.prod(self._slots) - held

    def prompts(self, index: types.Array, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]``: token and mask ``[P, L]``."""
        ids = jnp.asarray(self._ids)
        code = characters.pack(self._prompt(*self._problem(index, split)), self.prompt_length, pad="left")
        return types.Prompts(token=ids[code], mask=(code != 0).astype(jnp.float32), index=index)

    def demonstrations(self, index: types.Array, split: Split, key: types.Key) -> tuple[jax.Array, jax.Array]:
        """Return demonstrations with the slips and noise of the settings; a row's depend on ``(key, index)`` only.

        Args:
          index: ``[P]`` int32.
          split: of the prompts.
          key: a typed key.

        Returns:
          token ``[P, T]`` int32 and mask ``[P, T]`` float32.
        """
        code = self._demonstrate(*self._problem(index, split), index, key)
        return characters.demonstration(code, self.completion_length, self._bound, self._ids)

    def verify(self, index: types.Array, split: Split, token: types.Array, mask: types.Array) -> types.Verdict:
        """Compare the text between the last ``;`` and end-of-sequence with the exact answer.

        Reward 1 if it is the decimal form of the answer, without space, plus sign or leading zero, else 0.
        Unparseable: no end-of-sequence, or not ``-?[0-9]+``.

        Args:
          index: ``[B]`` int32, the prompt of each completion.
          split: of the prompts.
          token: ``[B, T]`` int32.
          mask: ``[B, T]``, above 0 on the tokens that the policy emitted.

        Returns:
          A verdict of B rows; ``parts["format"]`` is 1 if parseable, else 0.
        """
        text = characters.read(self._bound, token, mask)
        later = jnp.cumsum((text.code == ord(";"))[:, ::-1], axis=1)[:, ::-1]  # semicolons at or after a position
        written = characters.pack(jnp.where(later == 0, text.code, 0), token.shape[1])
        value = _value(_carry(self._columns(*self._problem(index, split)))[0])
        answer = characters.pack(characters.signed(value, self._width), token.shape[1])

        digit = (written >= ord("0")) & (written <= ord("9"))
        minus = jnp.zeros_like(digit).at[:, 0].set(written[:, 0] == ord("-"))
        parseable = text.ended & jnp.any(digit, axis=1) & jnp.all(digit | minus | (written == 0), axis=1)
        correct = parseable & jnp.all(written == answer, axis=1)
        outcome = jnp.where(correct, types.Outcome.CORRECT, types.Outcome.WRONG)
        return types.Verdict(
            reward=correct.astype(jnp.float32),
            outcome=jnp.where(parseable, outcome, types.Outcome.UNPARSEABLE).astype(jnp.int32),
            parts={"format": parseable.astype(jnp.float32)},
        )

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text."""
        return characters.strings(_codes(self, jnp.asarray([index], jnp.int32), split))[0]

    @property
    def _alphabet(self) -> str:
        return "0123456789" + self.operators + "=" + (";" if self.working else "")

    @property
    def _bound(self) -> tokenizers.Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"tokenizer: task {self.name!r} has none; call task.bind(tokenizer) first")
        return self.tokenizer

    @property
    def _ids(self) -> np.ndarray:
        return characters.table(self._bound, self._alphabet, self.name)

    @property
    def _width(self) -> int:
        return _width(self.operands, self.digits, self.operators)

    @property
    def _slots(self) -> list[int]:
        return _slots(self.operands, self.digits, self.operators)

    def _problem(self, index: jax.Array, split: Split) -> tuple[jax.Array, jax.Array]:
        """Return problems: digit [P, operands, digits], units first, and operator [P, operands - 1]."""
        slots = self._slots
        first = 0 if split == "train" else self.size("train")
        place = first + index % self.size(split)  # a large index wraps inside its split
        number = shuffle.permute(place.astype(jnp.int32), math.prod(slots), _SEED)
        values, rest = [], number
        for radix in slots:
            values.append(rest % radix)
            rest = rest // radix
        rows, count = index.shape[0], self.operands * self.digits
        operator = jnp.stack(values[: self.operands - 1], axis=1)
        digits = jnp.stack(values[self.operands - 1 :], axis=1)
        if digits.shape[1] < count:  # beyond the index space the leading digits are drawn, with the number as the seed
            draw = jax.vmap(lambda n: jax.random.randint(jax.random.fold_in(jax.random.key(_SEED), n), (count,), 0, 10))
            digits = jnp.concatenate([digits, draw(number)[:, digits.shape[1] :]], axis=1)
        return digits.reshape(rows, self.digits, self.operands).swapaxes(1, 2), operator

    def _prompt(self, digit: jax.Array, operator: jax.Array) -> jax.Array:
        rows, parts = digit.shape[0], []
        symbol = jnp.asarray(characters.codes(self.operators), jnp.int32)[operator]
        for i in range(self.operands):
            parts += [symbol[:, i - 1 : i]] if i else []
            parts += [digit[:, i, ::-1] + ord("0")]
        return jnp.concatenate([*parts, characters.constant("=", rows)[:, None]], axis=1)

    def _columns(self, digit: jax.Array, operator: jax.Array) -> jax.Array:
        """Expand problems into coefficients of powers of ten, without carries: [P, columns]."""
        count = _columns(self.operands, self.digits, self.operators)
        symbol = jnp.asarray(characters.codes(self.operators), jnp.int32)[operator]
        total = jnp.zeros((digit.shape[0], count), jnp.int32)
        term = jnp.pad(digit[:, 0], ((0, 0), (0, count - self.digits)))
        for i in range(1, self.operands):
            factor, sign = digit[:, i], symbol[:, i - 1 : i]
            summand = jnp.pad(jnp.where(sign == ord("-"), -factor, factor), ((0, 0), (0, count - self.digits)))
            times = sign == ord("*")
            total = jnp.where(times, total, total + term)
            term = jnp.where(times, _multiply(term, factor), summand) if "*" in self.operators else summand
        return total + term

    def _demonstrate(self, digit: jax.Array, operator: jax.Array, index: jax.Array, key: jax.Array) -> jax.Array:
        """Write demonstrations with their mistakes: code [P, K]."""
        columns = self._columns(digit, operator)
        count = columns.shape[1]

        def draw(i: jax.Array) -> tuple[jax.Array, jax.Array]:
            forget, wrong, amount = jax.random.split(jax.random.fold_in(key, i), 3)
            off = jax.random.randint(amount, (count,), 1, 10)
            off = jnp.where(jax.random.bernoulli(wrong, self.noise, (count,)), off, 0)
            return jax.random.bernoulli(forget, self.slip, (count,)), off

        forget, off = jax.vmap(draw)(index)
        written, carried = _carry(columns, forget, off)
        answer = characters.signed(_value(written), self._width)
        if not self.working:
            return answer
        return jnp.concatenate([self._working(digit, written, carried), answer], axis=1)

    def _working(self, digit: jax.Array, written: jax.Array, carried: jax.Array) -> jax.Array:
        """Write one sum for each column, units first, such as ``7+8=15;3+4+1=8;``."""
        rows, parts = digit.shape[0], []
        for column in range(self.digits):
            for i in range(self.operands):
                parts += [characters.constant("+", rows)] if i else []
                parts += [digit[:, i, column] + ord("0")]
            if column:
                some = carried[:, column] > 0
                parts += [jnp.where(some, ord("+"), 0), jnp.where(some, carried[:, column] + ord("0"), 0)]
            parts += [characters.constant("=", rows), *characters.decimal(written[:, column], 2).T]
            parts += [characters.constant(";", rows)]
        return jnp.stack(parts, axis=1)


def arithmetic(
    operands: int = 2,
    digits: int = 2,
    operators: str = "+",
    working: bool = True,
    slip: float = 0.0,
    noise: float = 0.0,
    heldout: float = 0.1,
    prompt_length: int | None = None,
    completion_length: int | None = None,
) -> Arithmetic:
    """Build the arithmetic task: ``37+48=`` is answered by ``7+8=15;3+4+1=8;85``, or by ``85`` without working.

    Operands are written with exactly ``digits`` digits, so ``7`` is ``07`` when there are two; answers are plain.
    All problems are numbered, shuffled once and for all, and the last ``heldout`` of them are held out. Where they
    are more than 2^28, an even sample of at most that many is used. ``3+5`` and ``5+3`` are two problems.

    The demonstrator makes mistakes: it forgets a carry between two columns with probability ``slip``, and writes a
    wrong units digit of a column's sum (uniform among the others) with probability ``noise``; working and answer
    follow from the digits it wrote. Without working it makes the same mistakes; a borrow is a carry of -1.

    Args:
      operands: how many numbers a problem has, 2 to 10.
      digits: decimal digits of each number.
      operators: some of ``+-*``; each gap draws one of them, and ``*`` binds tighter.
      working: demonstrations add column by column; for ``operators="+"`` only.
      slip: probability of forgetting a carry, for each carry.
      noise: probability of a wrong sum, for each column.
      heldout: fraction of problems held out, strictly between 0 and 1.
      prompt_length: tokens of a prompt; None: as many as needed.
      completion_length: tokens of a completion, end-of-sequence included; None: as many as demonstrations need.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: a setting is out of range, answers overflow int32, or a length is too small.
    """
    if not 2 <= operands <= 10:
        raise ValueError(f"operands: {operands} is not in [2, 10]")
    if not 1 <= digits <= 9:  # sums of longer numbers exceed int32
        raise ValueError(f"digits: {digits} is not in [1, 9]")
    if not operators or set(operators) - set(OPERATORS) or len(set(operators)) < len(operators):
        raise ValueError(f"operators: {operators!r} is not a choice, without repeats, from {OPERATORS!r}")
    if working and operators != "+":
        raise ValueError(f"working: True requires operators '+', not {operators!r}; set working to False")
    for name, value in (("slip", slip), ("noise", noise)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: {value} is not in [0, 1]")
    if not 0 < heldout < 1:
        raise ValueError(f"heldout: {heldout} is not strictly between 0 and 1")
    if _limit(operands, digits, operators) >= 2**31:
        raise ValueError(
            f"digits: {digits} with operands {operands} and operators {operators!r} gives answers beyond int32"
        )
    ordered = "".join(o for o in OPERATORS if o in operators)  # "-+" and "+-" are one task with one split
    answer = _width(operands, digits, ordered) + ("-" in operators) + 1
    # each column: its digits, the signs between them, "=", two digits, ";"; and "+1" from the second on
    chain = (digits * (2 * operands - 1 + 4) + 2 * (digits - 1)) if working else 0
    return Arithmetic(
        operands=operands,
        digits=digits,
        operators=ordered,
        working=working,
        slip=slip,
        noise=noise,
        heldout=heldout,
        prompt_length=characters.resolve_length("prompt_length", prompt_length, operands * (digits + 1)),
        completion_length=characters.resolve_length("completion_length", completion_length, chain + answer),
    )


@functools.partial(jax.jit, static_argnums=(0, 2))
def _codes(task: Arithmetic, index: jax.Array, split: Split) -> jax.Array:
    return task._prompt(*task._problem(index, split))


@functools.partial(jax.jit, static_argnums=0)
def _corpus(task: Arithmetic, index: jax.Array) -> jax.Array:
    problem = task._problem(index, "train")
    return jnp.concatenate([task._prompt(*problem), task._demonstrate(*problem, index, jax.random.key(0))], axis=1)


def _held_out(space: int, heldout: float) -> int:
    return min(max(1, round(space * heldout)), space - 1)


def _slots(operands: int, digits: int, operators: str) -> list[int]:
    """List the radices of a problem's number: operators, then digits from the units up.

    The list stops before the product exceeds the largest space; the remaining digits are drawn with the number as seed.
    """
    slots = [len(operators)] * (operands - 1)
    for _ in range(operands * digits):
        if math.prod(slots) * 10 > _LARGEST_SPACE:
            break
        slots.append(10)
    return slots


def _columns(operands: int, digits: int, operators: str) -> int:
    return operands * (digits - 1) + 1 if "*" in operators else digits


def _limit(operands: int, digits: int, operators: str) -> int:
    """Return the largest magnitude of an answer, mistakes included."""
    bound = 10 ** (operands * digits) if "*" in operators else operands * 10**digits
    return bound if "-" in operators else bound - 1


def _width(operands: int, digits: int, operators: str) -> int:
    return len(str(_limit(operands, digits, operators)))


def _multiply(term: jax.Array, factor: jax.Array) -> jax.Array:
    """Multiply polynomials in ten: [P, K] times [P, d], truncated to [P, K] (the rest is zero)."""
    count = term.shape[1]
    shifted = [jnp.pad(term, ((0, 0), (i, 0)))[:, :count] * factor[:, i : i + 1] for i in range(factor.shape[1])]
    return jnp.sum(jnp.stack(shifted), axis=0)


def _carry(
    columns: jax.Array, forget: jax.Array | None = None, off: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Carry tens from column to column: return the number written for each and the carry into it, [P, K] both.

    ``forget`` drops the carry out of a column; ``off`` adds that much to the units digit of its sum, modulo ten.
    """
    carry = jnp.zeros_like(columns[:, 0])
    written, carried = [], []
    for i in range(columns.shape[1]):
        carried.append(carry)
        total = columns[:, i] + carry
        if off is not None:
            total = total - total % 10 + (total + off[:, i]) % 10
        written.append(total)
        carry = total // 10
        if forget is not None:
            carry = jnp.where(forget[:, i], 0, carry)
    return jnp.stack(written, axis=1), jnp.stack(carried, axis=1)


def _value(written: jax.Array) -> jax.Array:
    """Return the answer of written columns: the units digit of each, and the whole of the last."""
    value = written[:, -1]
    for i in reversed(range(written.shape[1] - 1)):
        value = value * 10 + written[:, i] % 10
    return value
