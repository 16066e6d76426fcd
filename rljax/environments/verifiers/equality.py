r"""Whether an answer equals a reference, structure first: chains of equal sides, tuples, sets, words, then values.

Numbers are compared exactly. What is left, such as ``2\sqrt{3}``, is compared by math-verify, within limits of size.
"""

import logging
import re
from typing import Any, Literal

from rljax.environments.verifiers import notation

Outcome = Literal["correct", "wrong", "unparseable"]

_LONGEST = 200  # characters of an answer that is not a number, unless the reference is longer
_NAME = r"(?:\\?[a-zA-Z]+|\\(?:angle|overline|vec|widehat)\s*\{?\s*[A-Z]+\}?)(?:_\{?\w+\}?)?"
_LABEL = re.compile(rf"(?:\\?text\{{[a-z ]+\}}|(?!(?:[a-z]+ )*{notation.CHANGES}\b)[A-Za-z][a-z ]+|\(?{_NAME}(?:\s*,\s*{_NAME})*\)?|{_NAME}\s*\(\s*\w+\s*\))", re.IGNORECASE)
_RELATION = re.compile(r"[<>?]|\\(?:n?[lg]eq?(?:slant)?|[lg]t|neq?|approx|sim|in|to|lor|land|pm|mp|l?dots|cases|infty|emptyset|[bp]?mod)(?![a-z])|cases|!\s*!")
_WORD = re.compile(r"(?<!\\)(?<![a-zA-Z\\])[a-zA-Z]{2,}")
_HUGE = re.compile(r"\^\s*(?:\{[^{}]*[\^!]|\S\s*\^|\{?[^{}]*\d{4})|\*\*[^*]*\*\*|\*\*\s*\d{4}|\d{4,}\s*!|!\s*\)?\s*!|\\(?:sum|prod|int|lim|binom)")
_IS_WORD = re.compile(r"\(?[A-Z]\)?|[a-zA-Z][a-zA-Z -]+")
_ADJACENT = re.compile(r"\d\s+[\d.]")  # two numbers
_AND = re.compile(r"\s*(?:[,;]?\s*(?:\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)|[,;])\s*")


def compare(written: str, reference: str) -> Outcome:
    r"""Return whether an answer equals a reference.

    * Only the presentation is ignored: see ``notation.clean``.
    * ``x = 5`` is 5. In ``4 + 1 = 5`` all sides must be equal, and a side that is no name must be equal too.
    * Tuples and intervals have the same brackets, and equal parts in order. Lists and sets have equal parts in any order.
    * Words are equal letter by letter, whatever the case.
    * A relation such as ``<``, or a word, that the reference does not have makes an answer wrong.

    Args:
      written: the final answer, as a model wrote it.
      reference: the expected answer.

    Returns:
      The outcome; "unparseable" if the answer has no value that can be read.

    Raises:
      ValueError: the reference cannot be read.
    """
    answer, expected = notation.clean(written), notation.clean(reference)
    if not expected:
        raise ValueError(f"reference {reference!r} is empty")
    if not answer:
        return "unparseable"
    if _squeezed(answer) == _squeezed(expected):
        return "correct"
    if len(answer) > max(_LONGEST, 2 * len(expected)):
        return "unparseable"
    if _IS_WORD.fullmatch(expected):
        return _words(answer, expected)
    answer = re.sub(rf"^{_NAME}\s*\\in(?![a-z])\s*", "", answer)
    if set(_RELATION.findall(answer)) != set(_RELATION.findall(expected)) or _ADJACENT.search(answer):
        return "wrong"
    return _sides(answer, expected)


def _words(answer: str, expected: str) -> Outcome:
    """Compare words letter by letter, whatever the case; a choice with or without parentheses."""
    letters, wanted = (re.sub(r"[^\w=<>]", "", text).lower() for text in (answer, expected))
    return "correct" if letters == wanted else "wrong" if letters else "unparseable"


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _sides(answer: str, expected: str) -> Outcome:
    """Compare chains of equal sides; the first side may be a name."""
    sides, wanted = _chain(answer), _chain(expected)
    if len(values := _unnamed(wanted)) == 1:
        outcomes = [_parts(side, values[0]) for side in _unnamed(sides)]
        outcome: Outcome = _worst(outcomes)
        if outcome == "correct" or len(wanted) == 1:
            return outcome
    return _equation(sides, wanted) if len(sides) == len(wanted) == 2 else "wrong"


def _chain(text: str) -> list[str]:
    return [notation.clean(side) for side in re.split(r"(?<![<>!:])=", text)]


def _unnamed(sides: list[str]) -> list[str]:
    """Return the sides without a name at the beginning: ``x = 5``, ``f(x) = 5``, ``= 5``."""
    return sides[1:] if len(sides) > 1 and (not sides[0] or _LABEL.fullmatch(sides[0])) else sides


def _worst(outcomes: list[Outcome]) -> Outcome:
    return next((o for o in ("wrong", "unparseable") if o in outcomes), "correct")


def _parts(answer: str, expected: str) -> Outcome:
    """Compare tuples, intervals, sets and lists part by part."""
    (kind, parts), (wanted_kind, wanted) = _split(answer), _split(expected)
    if len(wanted) == 1 and len(parts) == 1:
        return _part(parts[0], wanted[0])
    if len(parts) != len(wanted) or kind != wanted_kind:
        return "wrong"
    if kind != "{}":
        return _worst([_part(*pair) for pair in zip(parts, wanted, strict=True)])
    for part in parts:
        equal = [i for i, other in enumerate(wanted) if _part(part, other) == "correct"]
        if not equal:
            return "wrong"
        del wanted[equal[0]]
    return "correct"


def _split(text: str) -> tuple[str, list[str]]:
    r"""Return the brackets of a text, ``{}`` for a set or a list, and its parts."""
    text = text.replace("\\{", "\x01").replace("\\}", "\x02").replace("\\lbrace", "\x01").replace("\\rbrace", "\x02")
    kind = "{}"
    if text[0] in "([\x01" and text[-1] in ")]\x02" and _encloses(text):
        kind, text = text[0] + text[-1], text[1:-1]
        kind = "{}" if kind == "\x01\x02" else kind
    parts, depth, last = [], 0, 0
    for match in re.finditer(rf"[(\[{{\x01]|[)\]}}\x02]|{_AND.pattern}", text):
        depth += (match[0] in "([{\x01") - (match[0] in ")]}\x02")
        if depth == 0 and match[0] not in ")]}\x02":
            parts, last = [*parts, text[last : match.start()]], match.end()
    parts = [notation.clean(p.replace("\x01", "\\{").replace("\x02", "\\}")) for p in [*parts, text[last:]]]
    return kind, parts


def _encloses(text: str) -> bool:
    """Return whether the first bracket is closed by the last character."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in "([\x01") - (character in ")]\x02")
        if depth == 0:
            return i == len(text) - 1
    return False


def _part(answer: str, expected: str) -> Outcome:
    numbers = notation.rational(answer), notation.rational(expected)
    if None not in numbers:
        return "correct" if numbers[0] == numbers[1] else "wrong"
    if not answer or not expected:
        return "unparseable"
    if _squeezed(answer) == _squeezed(expected):
        return "correct"
    return _value(answer, expected)


def _value(answer: str, expected: str) -> Outcome:
    if _IS_WORD.fullmatch(expected):
        return _words(answer, expected)
    if set(_WORD.findall(answer)) - set(_WORD.findall(expected)):
        return "wrong" if re.search(r"\d", answer) else "unparseable"
    if _HUGE.search(answer):
        return "unparseable"
    return _symbolic(answer, expected)


def _symbolic(answer: str, expected: str) -> Outcome:
    import math_verify  # here: importing sympy takes a third of a second, and numbers do not need it

    wanted, parsed = _read(expected), _read(answer)
    if not wanted:
        raise ValueError(f"reference {expected!r} cannot be read as a number or an expression")
    if not parsed:
        return "unparseable"
    return "correct" if math_verify.verify(wanted, parsed, timeout_seconds=None) else "wrong"


def _equation(sides: list[str], wanted: list[str]) -> Outcome:
    """Compare two equations: the differences of their sides have a constant ratio other than 0."""
    import sympy

    if any(_HUGE.search(side) for side in sides) or not all(sides):
        return "unparseable"
    values = [read[0] for side in (*sides, *wanted) if (read := _read(side)) and isinstance(read[0], sympy.Expr)]
    if len(values) < 4:
        return "unparseable"
    ratio = sympy.simplify((values[0] - values[1]) / (values[2] - values[3]))
    return "correct" if ratio.is_number and ratio.is_finite and ratio != 0 else "wrong"


def _read(text: str) -> list[Any]:
    """Return what math-verify reads: expressions and texts."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limit is off
    # 0 turns off the library's time limit, which uses SIGALRM and works in the main thread only.
    return math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=0)
