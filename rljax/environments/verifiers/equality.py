r"""Whether an answer equals a reference, structure first: chains of equal sides, tuples, sets, words, then values.

Numbers are compared exactly. What is left, such as ``2\sqrt{3}``, is compared by math-verify, within limits of size.
"""

import re
from collections.abc import Iterable

from rljax.environments.verifiers import notation, relations, symbolic
from rljax.environments.verifiers.symbolic import Outcome

_LONGEST = 300  # characters of an answer, unless the reference is longer
_SIGNS = r"n?[lg]eq?(?:slant)?|[lg]t|neq?|approx|sim|in|to|lor|land|pm|mp|l?dots|cases|infty|emptyset|[bp]?mod"
_RELATION = re.compile(rf"[<>?:]|\\(?:{_SIGNS})(?![a-z])|cases|!\s*!")
_WORD = re.compile(r"(?<!\\)(?<![a-zA-Z\\])[a-zA-Z]{2,}")
_IS_WORD = re.compile(r"\(?[A-Z]\)?|[a-zA-Z][a-zA-Z -]+")
_DECIMAL = re.compile(r"-?\d+\.?\d*", re.ASCII)
_CHOICE = re.compile(r"(?:\\[a-z]+\s*\{\s*)?\(?([A-Z])\)\s*\}?(?!.*\b(?:and|or|not|[A-Z])\b)\s*[^\s,;].*")  # (B) 12
_OPTION = re.compile(r"^(?:\\[a-z]+\s*\{\s*)?\([A-E]\)\s*\}?[\s~]+(?=[\d\\-])")  # the letter of (B) 12
_PERCENT = re.compile(r"(?:%|(?<![a-z])per ?cent)[}$.*\s)]*$", re.IGNORECASE)
_SUBSCRIPT = re.compile(r"\d\s*_(?!\{?10\}?(?!\d))")  # other than base ten
_ADJACENT = re.compile(r"\d\s+[\d.]")  # two numbers


def compare(written: str, reference: str, percent: bool = False) -> Outcome:
    r"""Return whether an answer equals a reference.

    * Only the presentation is ignored: see ``notation.clean``.
    * ``x = 5`` is 5. In ``4 + 1 = 5`` all sides must be equal, and a side that is no name must be equal too.
    * Tuples and intervals have the same brackets, and equal parts in order; lists and sets have them in any order.
    * Words are equal letter by letter, whatever the case.
    * Letters such as ``p - q`` and ``2ab`` are variables.
    * ``5\%`` is 0.05, and 5 only if the reference is a percentage or ``percent`` is set.
    * A relation such as ``<``, or a word, that the reference does not have makes an answer wrong.

    Args:
      written: the final answer, as a model wrote it.
      reference: the expected answer.
      percent: whether references are numbers without their units, so that a percent sign may be one.

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
    if bool(_PERCENT.search(written)) != bool(_PERCENT.search(reference)):
        *_, value, wanted = map(notation.rational, (*relations.sides(answer), expected))
        if value is not None and wanted is not None:
            if not _PERCENT.search(written):  # a number without a sign may be meant as a percentage
                return "correct" if value in (wanted, wanted / 100) else "wrong"
            before = relations.unnamed(relations.sides(answer), bare=True)[:-1]
            right = value == 100 * wanted or (percent and value == wanted)
            return _all(_parts(side, expected) for side in before) if right else "wrong"
    if _squeezed(answer) == _squeezed(expected):
        return "correct"
    if _is_word(expected):
        return _words(answer, expected)
    answer = _OPTION.sub("", answer)
    if (digits := notation.BASED.fullmatch(expected)) and "_" not in answer:  # the question asks for the base
        return "correct" if answer == digits[1] else "wrong"
    if (
        _SUBSCRIPT.search(answer)
        and not _SUBSCRIPT.search(expected)
        and notation.rational(answer.lstrip("-+ ")) is None
    ):
        return "wrong"  # 27_7 has a digit that base 7 lacks
    answer, expected = relations.plain(answer), relations.plain(expected)
    exact, about, decimal = answer.partition("\\approx")
    if about and exact and _DECIMAL.fullmatch(decimal.strip()):
        return _sides(exact, expected) if symbolic.rounds(decimal.strip(), expected) else "wrong"
    if set(_RELATION.findall(answer)) != set(_RELATION.findall(expected)) or _ADJACENT.search(answer):
        return "wrong"
    return _sides(answer, expected)


def _is_word(text: str) -> bool:
    """Return whether a reference is a word or a choice; ``p - q`` and ``pq`` are expressions."""
    if not _IS_WORD.fullmatch(text):
        return False
    runs = re.findall("[a-zA-Z]+", text)
    if "-" in text:
        return max(map(len, runs)) > (3 if " - " in text else 2)
    return (
        len(text) == 1
        or not all(len(run) == 1 or re.fullmatch("[b-df-hj-np-tv-z]{2,3}", run) for run in runs)
        or (text != text.lower())
    )


def _words(answer: str, expected: str) -> Outcome:
    """Compare words letter by letter, whatever the case; a choice with or without parentheses and its value."""
    wanted = re.sub(r"\W", "", expected)
    if len(wanted) == 1 and (choice := _CHOICE.fullmatch(answer)):
        return "correct" if choice[1] == wanted else "wrong"
    answer = re.sub(notation.FONT, "", answer)
    ignored = r"[^\w=<>+*/^-]" if len(expected) <= 3 else r"[^\w=<>+*/^]"
    letters, wanted = (re.sub(ignored, "", text).lower() for text in (answer, expected))
    return "correct" if letters == wanted else "wrong"


def _squeezed(text: str) -> str:
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)  # 1 5 is not 15


def _sides(answer: str, expected: str) -> Outcome:
    """Compare chains of equal sides; the first side may be a name."""
    sides, wanted = relations.sides(answer), relations.sides(expected)
    if len(values := relations.unnamed(wanted)) == 1:
        outcome = _all(_parts(side, values[0]) for side in relations.unnamed(sides, bare=len(wanted) == 1))
        if outcome == "correct" or len(wanted) == 1:
            return outcome
    return symbolic.equation(sides, wanted) if len(sides) == len(wanted) == 2 else "wrong"


def _all(outcomes: Iterable[Outcome]) -> Outcome:
    for outcome in outcomes:
        if outcome != "correct":
            return outcome
    return "correct"


def _parts(answer: str, expected: str) -> Outcome:
    """Compare tuples, intervals, sets and lists part by part."""
    (kind, parts), (wanted_kind, wanted) = relations.split(answer), relations.split(expected)
    if len(wanted) == 1 and len(parts) == 1:
        return _part(parts[0], wanted[0])
    if len(wanted) == 1 and not re.search(r"[,;]|and", answer):  # one value in several forms: 3/2 or 1.5
        return _all(_part(part, wanted[0]) for part in parts)
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


def _part(answer: str, expected: str) -> Outcome:
    numbers = notation.rational(answer), notation.rational(expected)
    if None not in numbers:
        return "correct" if numbers[0] == numbers[1] else "wrong"
    if not answer or not expected:
        return "unparseable"
    if _squeezed(answer) == _squeezed(expected):
        return "correct"
    if _is_word(expected):
        return _words(answer, expected)
    letters = set(re.sub(r"\\[a-zA-Z]+", "", expected))  # letters of variables: ba is no word beside 2ab
    words = {word for word in _WORD.findall(answer) if len(word) > 4 or not set(word) <= letters}
    if words - set(_WORD.findall(expected)):
        return "wrong" if re.search(r"\d", answer) else "unparseable"
    return symbolic.compare(answer, expected)
