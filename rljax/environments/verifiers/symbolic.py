"""Comparing expressions by math-verify and SymPy, within limits of size."""

import logging
import re
from typing import Any, Literal

Outcome = Literal["correct", "wrong", "unparseable"]

# What takes a computer algebra system long: towers of powers, large powers of sums, factorials, sums, limits.
_HUGE = re.compile(
    r"\^\s*(?:\{[^{}]*[\^!]|\S\s*\^|\{?[^{}]*\d{4})|\*\*|\d{3,}\s*!|!\s*\)?\s*!|\\(?:sum|prod|int|lim|binom)"
    r"|[)\]}]\s*\^\s*\{?\s*(?:[2-9]\d|\d{3})|\^\s*\{?\w+\}?\s*\)\s*\^"
)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
# Runs of letters that are products; math-verify removes those after a digit as units.
_PRODUCT = re.compile(
    r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z .,-]*\})?|(?<![/a-zA-Z])(?!sin|cos|tan|log|ln|exp)[a-zA-Z]{2,4}(?![a-zA-Z])"
)
_SPACED = re.compile(r"(?:(?<=\d)|(?<=[^a-zA-Z\\][a-zA-Z])|(?<=^[a-zA-Z])) +(?=[a-zA-Z](?![a-zA-Z]))")


def compare(answer: str, expected: str) -> Outcome:
    """Return whether two expressions are equal; an answer with a variable that the reference lacks is wrong.

    Raises:
      ValueError: the reference cannot be read.
    """
    variables, known = (set(re.findall(r"[a-zA-Z]", _COMMAND.sub(" ", text))) for text in (answer, expected))
    if variables - known - set("ei"):
        return "wrong"
    if _HUGE.search(answer) and not _HUGE.search(expected):
        return "unparseable"
    import math_verify  # here: importing sympy takes a third of a second, and numbers do not need it

    wanted, parsed = _read(expected), _read(answer)
    if not wanted:
        raise ValueError(f"reference {expected!r} cannot be read as a number or an expression")
    if not parsed:
        return "unparseable"
    equal = math_verify.verify(wanted, parsed, timeout_seconds=None) or _close(wanted[0], parsed[0])
    return "correct" if equal else "wrong"


def equation(sides: list[str], wanted: list[str]) -> Outcome:
    """Compare two equations: the differences of their sides have a constant ratio other than 0."""
    import sympy

    if any(_HUGE.search(side) for side in sides) or not all(sides):
        return "unparseable"
    values = [read[0] for side in (*sides, *wanted) if (read := _read(side)) and isinstance(read[0], sympy.Expr)]
    if len(values) < 4:
        return "unparseable"
    ratio = sympy.simplify((values[0] - values[1]) / (values[2] - values[3]))
    return "correct" if ratio.is_number and ratio.is_finite and ratio != 0 else "wrong"


def _close(expected: Any, answer: Any) -> bool:
    """Return whether two complex numbers agree to 12 digits, such as 3 ** 0.5 and sqrt(3)."""
    import sympy

    if not isinstance(expected, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return False
    units = [(x, sympy.I) for each in (expected, answer) for x in each.free_symbols if str(x) == "i"]
    values = [sympy.N(each.subs(units), 20) for each in (expected, answer)]
    if not all(value.is_number and value.is_finite for value in values):
        return False
    return bool(abs(values[0] - values[1]) < 1e-12 * max(1, abs(values[0])))


def rounds(decimal: str, expected: str) -> bool:
    """Return whether a decimal number is the value of the reference, rounded to its last digit."""
    value = _read(expected)
    try:
        return bool(value) and abs(float(value[0]) - float(decimal)) <= 0.501 * 10.0 ** -len(decimal.partition(".")[2])
    except (TypeError, ValueError):  # not a real number
        return False


def _read(text: str) -> list[Any]:
    """Return what math-verify reads: expressions and texts."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limit is off
    # 0 turns off the library's time limit, which uses SIGALRM and works in the main thread only.
    text = _PRODUCT.sub(lambda m: m[0] if m[0][0] == "\\" else " \\cdot ".join(m[0]), text)
    if not re.search(r"frac\s+[a-zA-Z]|\\text|\\mbox|\\mathrm", text):
        text = _SPACED.sub(r" \\cdot ", text)
    return math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=0)
