"""Reward functions for mathematical answers. Does not import jax: worker processes load this module."""

import zlib
from collections.abc import Mapping, Sequence

from rljax.environments.verifiers import answers, equality, notation, symbolic


def numeric_answer(
    completion: str, target: str, formats: Sequence[answers.Format] = ("marked",)
) -> Mapping[str, float | str]:
    r"""Compare the final answer with the target: reward 1 if ``equality.compare`` finds them equal, else 0.

    A percent sign is a unit, as in the questions of GSM8K, whose answers are written without units: 20% is 20.
    It has no time limit; ``judging.Verifiers`` sets one.

    Args:
      completion: text that the policy wrote.
      target: the expected final answer, without the mark: a number, or an expression or words in LaTeX.
      formats: how the answer may be written, in order of preference; see ``answers.read``.

    Returns:
      ``reward`` 1.0 or 0.0; ``format`` 1.0 if there is an answer that can be parsed, else 0.0; ``answer``, a number
      that equal answers share, so that samples vote; ``outcome`` ``"correct"``, ``"wrong"`` or ``"unparseable"``.

    Raises:
      ValueError: the target cannot be read.
    """
    return _verdict(answers.read(completion, formats)[1], target, percent=True)


def boxed_answer(
    completion: str, target: str, formats: Sequence[answers.Format] = ("boxed",)
) -> Mapping[str, float | str]:
    r"""Compare as ``numeric_answer``, the answer in the last ``\boxed{...}`` by default; 20% is 0.2 and not 20."""
    return _verdict(answers.read(completion, formats)[1], target, percent=False)


def self_test() -> None:
    """Check that math-verify judges expressions as it should; workers call this when they start.

    Raises:
      RuntimeError: it does not, which would make correct answers wrong or unparseable.
    """
    try:
        outcomes = [symbolic.compare(written, r"\sqrt{12}") for written in (r"2\sqrt{3}", r"3\sqrt{2}")]
    except Exception as error:
        raise RuntimeError(f"math-verify does not work here: {error!r}; install rljax with its requirements") from error
    if outcomes != ["correct", "wrong"]:
        raise RuntimeError(
            f"math-verify does not work here: of 2 sqrt(3) and 3 sqrt(2) as sqrt(12) it says {outcomes}, not correct"
            " and wrong; install rljax with its requirements"
        )


def _verdict(written: str, target: str, percent: bool) -> Mapping[str, float | str]:
    outcome = equality.compare(written, target, percent) if written else "unparseable"
    right, format_, answer = float(outcome == "correct"), float(outcome != "unparseable"), _number(written)
    return {"reward": right, "format": format_, "answer": answer, "outcome": outcome}


def _number(written: str) -> float:
    """Return a number below 2^24 that answers share which are one number, or one text but for presentation."""
    text = notation.clean(written)
    value = notation.rational(text)
    return float(zlib.crc32((text if value is None else str(value)).encode()) % 2**24)
