"""Reward functions for mathematical answers. Does not import jax: worker processes load this module."""

import logging
from collections.abc import Mapping, Sequence

from rljax.environments.verifiers import answers


def numeric_answer(
    completion: str, target: str, formats: Sequence[answers.Format] = ("marked",)
) -> Mapping[str, float | str]:
    """Compare the final answer with the target, a number: reward 1 if they are equal, else 0.

    Two plain numbers (``$1,200``, ``-3.50``) are compared exactly; anything else is compared by math-verify, which
    parses expressions and units (``1/2`` equals ``0.5``, ``72 clips`` equals 72, of several numbers after the mark the
    last one counts). This function has no time limit; ``pool.Verifiers`` sets one.

    Args:
      completion: text that the policy wrote.
      target: the expected final answer, without the mark.
      formats: how the answer may be written, in order of preference; see ``answers.read``.

    Returns:
      ``reward`` 1.0 or 0.0; ``format`` 1.0 if there is an answer that can be parsed, else 0.0; ``outcome``
      ``"correct"``, ``"wrong"`` or ``"unparseable"``.

    Raises:
      ValueError: the target cannot be parsed.
    """
    style, written = answers.read(completion, formats)
    if not written:
        return _verdict("unparseable")
    written = answers.without_unit(written)
    numbers = answers.plain(written), answers.plain(target.strip())
    if None not in numbers:
        return _verdict("correct" if numbers[0] == numbers[1] else "wrong")
    return _verdict(_symbolic(written if style == "marked" else f"{answers.BOX}{{{written}}}", target.strip()))


def boxed_answer(
    completion: str, target: str, formats: Sequence[answers.Format] = ("boxed",)
) -> Mapping[str, float | str]:
    """Compare the final answer with the target, as LaTeX: reward 1 if they are equal, else 0.

    Equal texts and equal plain numbers are equal; anything else is compared by math-verify, without a time limit.

    Args:
      completion: text that the policy wrote.
      target: the expected final answer, in LaTeX, without the box.
      formats: as in ``numeric_answer``.

    Returns:
      The mapping that ``numeric_answer`` returns.

    Raises:
      ValueError: the target cannot be parsed.
    """
    written, target = answers.read(completion, formats)[1], target.strip()
    if not written:
        return _verdict("unparseable")
    numbers = answers.plain(written), answers.plain(target)
    if written == target or None not in numbers:
        return _verdict("correct" if written == target or numbers[0] == numbers[1] else "wrong")
    return _verdict(_symbolic(f"{answers.BOX}{{{written}}}", f"{answers.BOX}{{{target}}}"))


def _verdict(outcome: str) -> Mapping[str, float | str]:
    return {
        "reward": float(outcome == "correct"),
        "format": float(outcome != "unparseable"),
        "outcome": outcome,
    }


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
