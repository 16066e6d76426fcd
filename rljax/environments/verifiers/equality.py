r"""Whether an answer equals a reference, structure first: chains of equal sides, tuples, sets, words, then values.

Numbers are compared exactly. What is left, such as ``2\sqrt{3}``, is compared by math-verify, within limits of size.
"""

import re
from collections.abc import Iterable

from rljax.environments.verifiers import notation, symbolic
from rljax.environments.verifiers.symbolic import Outcome

_LONGEST = 300  # characters of an answer, unless the reference is longer
_NAME = r"(?:\\?[a-zA-Z]+|\\(?:angle|overline|vec|widehat)\s*\{?\s*[A-Z]+\}?)(?:_\{?\w+\}?)?"  # x, x_1, \angle ABC
_PHRASE = rf"(?!(?:[a-z]+ )*{notation.CHANGES}\b)[A-Za-z][a-z ]+"
_NAMES = rf"\\?text\{{[a-z ]+\}}|{_PHRASE}|\(?{_NAME}(?:\s*,\s*{_NAME})*\)?|{_NAME}\s*\(\s*\w+\s*\)"  # (x, y), f(2)
_LABEL = re.compile(rf"(?:{_NAMES})", re.IGNORECASE)
_SIGNS = r"n?[lg]eq?(?:slant)?|[lg]t|neq?|approx|sim|in|to|lor|land|pm|mp|l?dots|cases|infty|emptyset|[bp]?mod"
_RELATION = re.compile(rf"[<>?:]|\\(?:{_SIGNS})(?![a-z])|cases|!\s*!")
_WORD = re.compile(r"(?<!\\)(?<![a-zA-Z\\])[a-zA-Z]{2,}")
_IS_WORD = re.compile(r"\(?[A-Z]\)?|[a-zA-Z][a-zA-Z -]+")
_ADJACENT = re.compile(r"\d\s+[\d.]")  # two numbers
_AND = re.compile(r"\s*(?:[,;]?\s*(?:\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)|[,;])\s*")


def compare(written: str, reference: str) -> Outcome:
    r"""Return whether an answer equals a reference.

    * Only the presentation is ignored: see ``notation.clean``.
    * ``x = 5`` is 5. In ``4 + 1 = 5`` all sides must be equal, and a side that is no name must be equal too.
    * Tuples and intervals have the same brackets, and equal parts in order; lists and sets have them in any order.
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
    if len(written) > max(_LONGEST, 2 * len(reference)):
        return "correct" if _squeezed(written) == _squeezed(reference) else "unparseable"
    answer, expected = notation.clean(written), notation.clean(reference)
    if not expected:
        raise ValueError(f"reference {reference!r} is empty")
    if not answer:
        return "unparseable"
    if _squeezed(answer) == _squeezed(expected):
        return "correct"
    if _IS_WORD.fullmatch(expected):
        return _words(answer, expected)
    answer = re.sub(rf"^{_NAME}\s*\\in(?![a-z])\s*", "", answer)
    if set(_RELATION.findall(answer)) != set(_RELATION.findall(expected)) or _ADJACENT.search(answer):
        return "wrong"
    return _sides(answer, expected)


def _words(answer: str, expected: str) -> Outcome:
    """Compare words letter by letter, whatever the case; a choice with or without parentheses."""
    letters, wanted = (re.sub(r"[^\w=<>]", "", text).lower() for text in (answer, expected))
    return "correct" if letters == wanted else "wrong"


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _sides(answer: str, expected: str) -> Outcome:
    """Compare chains of equal sides; the first side may be a name."""
    sides, wanted = _chain(answer), _chain(expected)
    if len(values := _unnamed(wanted)) == 1:
        outcome = _all(_parts(side, values[0]) for side in _unnamed(sides))
        if outcome == "correct" or len(wanted) == 1:
            return outcome
    return symbolic.equation(sides, wanted) if len(sides) == len(wanted) == 2 else "wrong"


def _chain(text: str) -> list[str]:
    return [notation.clean(side) for side in re.split(r"(?<![<>!:])=", text)]


def _unnamed(sides: list[str]) -> list[str]:
    """Return the sides without a name at the beginning: ``x = 5``, ``f(x) = 5``, ``= 5``."""
    return sides[1:] if len(sides) > 1 and (not sides[0] or _LABEL.fullmatch(sides[0])) else sides


def _all(outcomes: Iterable[Outcome]) -> Outcome:
    for outcome in outcomes:
        if outcome != "correct":
            return outcome
    return "correct"


def _parts(answer: str, expected: str) -> Outcome:
    """Compare tuples, intervals, sets and lists part by part."""
    (kind, parts), (wanted_kind, wanted) = _split(answer), _split(expected)
    if len(wanted) == 1 and len(parts) == 1:
        return _part(parts[0], wanted[0])
    if len(parts) != len(wanted) or kind != wanted_kind:
        return "wrong"
    if kind != "{}":
        return _all(_part(*pair) for pair in zip(parts, wanted, strict=True))
    for part in parts:
        equal = [i for i, other in enumerate(wanted) if _part(part, other) == "correct"]
        if not equal:
            return "wrong"
        del wanted[equal[0]]
    return "correct"


def _split(text: str) -> tuple[str, list[str]]:
    r"""Return the brackets of a text, ``{}`` for a set or a list, and its parts."""
    text = re.sub(r"\\(?:\}|rbrace)", "\x02", re.sub(r"\\(?:\{|lbrace)", "\x01", text))
    kind = "{}"
    if text[:1] in {*"([\x01"} and text[-1] in ")]\x02" and _encloses(text):
        kind, text = (text[0] + text[-1]).replace("\x01\x02", "{}"), text[1:-1]
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
    if _IS_WORD.fullmatch(expected):
        return _words(answer, expected)
    if set(_WORD.findall(answer)) - set(_WORD.findall(expected)):
        return "wrong" if re.search(r"\d", answer) else "unparseable"
    return symbolic.compare(answer, expected)
