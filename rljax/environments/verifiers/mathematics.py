"""Verifiers of mathematical answers. Does not import jax: worker processes load this module."""

import decimal
import logging
import re
from collections.abc import Mapping

MARK = "####"  # precedes the final answer
BOX = "\\boxed"  # precedes the final answer in braces

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")

# A number as people write it: sign, dollar, thousands in commas, decimals, a full stop at the end.
_PLAIN = re.compile(r"([-+]?)\$?\s?((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)\.?", re.ASCII)


def numeric_answer(completion: str, target: str) -> Mapping[str, float | str]:
    """Compare the answer after the last ``####`` with the target: reward 1 if they are equal, else 0.

    The answer is the rest of that line. Two plain numbers (``$1,200``, ``-3.50``) are compared exactly; anything
    else is compared by math-verify, which parses expressions and units (``1/2`` equals ``0.5``, ``72 clips`` equals
    72, of several numbers the last one counts). This function has no time limit; ``pool.Verifiers`` sets one.

    Args:
      completion: text that the policy wrote.
      target: the expected final answer, without the mark.

    Returns:
      ``reward`` 1.0 or 0.0; ``format`` 1.0 if there is an answer that can be parsed, else 0.0; ``outcome``
      ``"correct"``, ``"wrong"`` or ``"unparseable"``.

    Raises:
      ValueError: the target cannot be parsed.
    """
    answer = final_answer(completion)
    if not answer:
        return _verdict("unparseable")
    numbers = _plain(answer), _plain(target.strip())
    if None not in numbers:
        return _verdict("correct" if numbers[0] == numbers[1] else "wrong")
    return _verdict(_symbolic(answer, target.strip()))


def final_answer(text: str) -> str:
    """Return the rest of the line after the last ``####``, stripped; "" if there is none."""
    _, mark, rest = text.rpartition(MARK)
    return rest.strip().partition("\n")[0].strip() if mark else ""


def boxed_answer(completion: str, target: str) -> Mapping[str, float | str]:
    r"""Compare the last ``\boxed{...}`` with the target, as LaTeX: reward 1 if they are equal, else 0.

    Equal texts and equal plain numbers are equal; anything else is compared by math-verify, without a time limit.

    Args:
      completion: text that the policy wrote.
      target: the expected final answer, in LaTeX, without the box.

    Returns:
      The mapping that ``numeric_answer`` returns.

    Raises:
      ValueError: the target cannot be parsed.
    """
    answer, target = boxed(completion), target.strip()
    if not answer:
        return _verdict("unparseable")
    numbers = _plain(answer), _plain(target)
    if answer == target or None not in numbers:
        return _verdict("correct" if answer == target or numbers[0] == numbers[1] else "wrong")
    return _verdict(_symbolic(f"{BOX}{{{answer}}}", f"{BOX}{{{target}}}"))


def boxed(text: str) -> str:
    r"""Return the content of the last ``\boxed{...}``, ``\fbox{...}`` or ``\boxed 2``, stripped; "" if none."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return ""
    rest = text[boxes[-1].end() :]
    if not rest.startswith("{"):
        return (re.match(r"[^\s$.]*", rest) or [""])[0]
    depth = 0
    for i, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:i].strip()
    return ""  # never closed


def _verdict(outcome: str) -> Mapping[str, float | str]:
    return {
        "reward": float(outcome == "correct"),
        "format": float(outcome != "unparseable"),
        "outcome": outcome,
    }


def _plain(text: str) -> decimal.Decimal | None:
    match = _PLAIN.fullmatch(text)
    return None if match is None else decimal.Decimal(match[1] + match[2].replace(",", ""))


def _symbolic(answer: str, target: str) -> str:
    import math_verify  # here: importing sympy takes a third of a second, and plain numbers do not need it

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limit is off

    # 0 turns off the library's time limit, which uses SIGALRM and works in the main thread only.
    expected = math_verify.parse(target, parsing_timeout=0)
    if not expected:
        raise ValueError(f"target {target!r} cannot be parsed as a number or an expression")
    parsed = math_verify.parse(answer, parsing_timeout=0)
    if not parsed:
        return "unparseable"
    return "correct" if math_verify.verify(expected, parsed, timeout_seconds=None) else "wrong"
