"""Verifiers of mathematical answers. Imports no jax: worker processes load this module."""

import decimal
import logging
import re
from collections.abc import Mapping

MARK = "####"  # stands before the final answer
BOX = "\\boxed"  # stands before the final answer in braces

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")

# A number as people write it: sign, dollar, thousands in commas, decimals, a full stop at the end.
_PLAIN = re.compile(r"([-+]?)\$?\s?((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)\.?", re.ASCII)


def numeric_answer(completion: str, reference: str) -> Mapping[str, float | str]:
    """Compare the answer after the last ``####`` with the reference: reward 1 when they are equal, else 0.

    The answer is the rest of that line. Two plain numbers (``$1,200``, ``-3.50``) are compared exactly; anything
    else goes to math-verify, which reads expressions and units (``1/2`` equals ``0.5``, ``72 clips`` equals 72, of
    several numbers the last counts). Runs without a time limit of its own: ``rewards.pool`` sets one.

    Args:
      completion: what the policy wrote.
      reference: the final answer alone, without the mark.

    Returns:
      ``reward`` 1.0 or 0.0; ``format`` 1.0 if there was an answer that could be read; ``outcome`` ``"correct"``,
      ``"wrong"`` or ``"unparseable"``.

    Raises:
      ValueError: the reference cannot be read, so that nothing can be judged.
    """
    answer = final_answer(completion)
    if not answer:
        return _verdict("unparseable")
    given, wanted = _plain(answer), _plain(reference.strip())
    if given is not None and wanted is not None:
        return _verdict("correct" if given == wanted else "wrong")
    return _verdict(_symbolic(answer, reference.strip()))


def final_answer(text: str) -> str:
    """Give the rest of the line after the last ``####``, stripped; empty where there is none."""
    _, mark, rest = text.rpartition(MARK)
    return rest.strip().partition("\n")[0].strip() if mark else ""


def boxed_answer(completion: str, reference: str) -> Mapping[str, float | str]:
    r"""Compare the last ``\boxed{...}`` with the reference, as LaTeX: reward 1 when they are equal, else 0.

    Equal texts and equal plain numbers are equal; anything else goes to math-verify. Without a time limit of its own.

    Args:
      completion: what the policy wrote.
      reference: the final answer alone, in LaTeX.

    Returns:
      as ``numeric_answer``.

    Raises:
      ValueError: the reference cannot be read, so that nothing can be judged.
    """
    answer, wanted = boxed(completion), reference.strip()
    if not answer:
        return _verdict("unparseable")
    numbers = _plain(answer), _plain(wanted)
    if answer == wanted or None not in numbers:
        return _verdict("correct" if answer == wanted or numbers[0] == numbers[1] else "wrong")
    return _verdict(_symbolic(f"{BOX}{{{answer}}}", f"{BOX}{{{wanted}}}"))


def boxed(text: str) -> str:
    r"""Give what stands in the last ``\boxed{...}``, ``\fbox{...}`` or ``\boxed 2``, stripped; "" if there is none."""
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


def _symbolic(answer: str, reference: str) -> str:
    import math_verify  # here: sympy and its grammar take a third of a second, and plain numbers need neither

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off

    # A limit of 0 is none: theirs uses SIGALRM, which works in the main thread only.
    wanted = math_verify.parse(reference, parsing_timeout=0)
    if not wanted:
        raise ValueError(f"reference {reference!r} cannot be read as a number or an expression")
    given = math_verify.parse(answer, parsing_timeout=0)
    if not given:
        return "unparseable"
    return "correct" if math_verify.verify(wanted, given, timeout_seconds=None) else "wrong"
