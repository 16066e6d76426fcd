"""Reading final answers in what models write. Imports the standard library only, for worker processes."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from rljax.environments.verifiers import notation

MARK = "####"  # precedes the final answer
BOX = "\\boxed"  # precedes the final answer in braces

Format = Literal["marked", "boxed", "stated", "bold", "last"]
Formats = Format | tuple[Format, ...] | None

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")

# A number as people write it: sign, dollar, thousands in commas, decimals, a full stop at the end.
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_SIGN = r"(?:[-+]\\?[$£€]|\\?[$£€]?[-+]?)\s?"  # -$3 and $-3

# A number in a sentence. What changes its value must not follow: "3 million", "3/4", "3x", "3 \pi".
_NUMBER = rf"(?P<number>{_SIGN}(?:{_DIGITS})(?:\s?(?:\\?%|per ?cent\b))?)"
_NUMBER += r"(?!(?u:\w))(?!\s*(?:[-+/^=<>:\u00d7\u00f7\u03c0\u221a]|\*\s*[\w(]|\\(?![)\]%,;!\s]|text)"
_NUMBER += r"|(?:hundred|thousand|(?:m|b|tr)illion|dozen|squared|cubed)|(?:and|plus|minus|times|over|or|to|pi)\b))"
_FORMULA = r"\$(?P<dollars>[^$\n]{1,200})\$|\\\((?P<round>[^\n]{1,200}?)\\\)|\\\[(?P<square>[^\n]{1,200}?)\\\]"
_STATED = re.compile(rf"\banswer[*_]*(?:\s+is\b|\s*[:=])[\s:=*_]*(?:{_FORMULA}|{_NUMBER})", re.ASCII | re.IGNORECASE)
_QUANTITY = rf"(?:[a-z ]*[:=]\s*)?{_NUMBER}\s*(?:\\?%)?(?:\s+[a-z]+|\s*\\text\{{[a-z ]+\}})*[.!]?"  # with its unit
_BOLD = re.compile(rf"\*\*(?!\d+\.\s*\*\*)(?:{_FORMULA}|{_QUANTITY})\s*\*\*", re.ASCII | re.IGNORECASE)
_LAST = re.compile(rf"(?<![\w.)]){_SIGN}(?:{_DIGITS})|{_DIGITS}", re.ASCII)


class _Style(NamedTuple):
    """One way to write a final answer."""

    request: str  # the sentence that asks for it
    form: str  # with {} in place of the answer
    read: Callable[[str], str]  # the answer of a text; "" if there is none


def read(text: str, formats: Sequence[Format]) -> tuple[Format | None, str]:
    r"""Return the final answer of a text, and the format in which it is written.

    ==========  ==================================================================================
    "marked"    the rest of the line after the last ``####``, unless it is a heading, which begins with a word
    "boxed"     the content of the last ``\boxed{...}``
    "stated"    a number or formula after "the answer is" or "answer:", if no digit follows it
    "bold"      a number or formula in bold, with its unit (``**72 clips**``), if no digit follows it
    "last"      the last number of the text, whatever it is
    ==========  ==================================================================================

    Args:
      text: what the policy wrote.
      formats: in order of preference: the first one that the text has decides.

    Returns:
      (format, answer); (None, "") if the text has none of them.
    """
    text = _tidy(text)
    for style in formats:
        if written := STYLES[style].read(text):
            return style, written
    return None, ""


def formats(answer: Formats, first: Format, several: bool) -> tuple[Format, ...]:
    """Return the formats that a task reads.

    Args:
      answer: the task's argument: one or several; None: ``first``, and if ``several`` then all others except "last".
      first: the format of the task's own solutions.
      several: whether the policy is an instruct model, which answers in its own way.

    Returns:
      Formats in order of preference.

    Raises:
      ValueError: an unknown format, or none.
    """
    if answer is None:
        return (first, *(f for f in STYLES if several and f not in (first, "last")))
    chosen = (answer,) if isinstance(answer, str) else tuple(answer)
    if not chosen or set(chosen) - set(STYLES):
        raise ValueError(f"answer={answer!r}: must be one or several of {', '.join(map(repr, STYLES))}")
    return chosen


def final_answer(text: str) -> str:
    """Return the rest of the line after the last ``####``, stripped; "" if there is none."""
    _, mark, rest = text.rpartition(MARK)
    return rest.strip().partition("\n")[0].strip() if mark else ""


def boxed(text: str) -> str:
    r"""Return the content of the last ``\boxed{...}``, ``\fbox{...}`` or ``\boxed 2``, stripped; "" if none."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return ""
    rest = text[boxes[-1].end() :]
    if not rest.startswith("{"):
        return (re.match(r"[^\s$.]*", rest) or [""])[0]
    end = notation.closed_at(rest)
    return rest[1 : end - 1].strip() if end > 0 else ""


def _tidy(text: str) -> str:
    """Return a text with ASCII minus signs and single spaces and newlines; long runs would slow down the patterns."""
    return re.sub(r"\s+", lambda run: "\n" if "\n" in run[0] else " ", text.replace("\u2212", "-"))


def _marked(text: str) -> str:
    rests = [rest.strip() for rest in reversed(text.split(MARK)[1:])]
    lines = [rest.partition("\n")[0].strip() for rest in rests]
    values = (line for line in lines if not re.match(r"(?!USD|EUR|US\\?\$)[a-z]{2}(?![a-z ]*=)", line, re.IGNORECASE))
    sentence = lines[0] if lines and lines[0] == rests[0] else ""  # words that a text follows are a heading
    return next(values, "") or sentence


def _in_prose(pattern: re.Pattern[str], text: str) -> str:
    """Return the number or formula of the last match; "" if a digit follows, since that may be the answer."""
    matches = list(pattern.finditer(text))
    if not matches or re.search(r"\d", text[matches[-1].end() :]):
        return ""
    return next(filter(None, map(matches[-1].groupdict().get, ("number", "dollars", "round", "square"))), "").strip()


def _last(text: str) -> str:
    numbers = _LAST.findall(text)
    return numbers[-1].strip() if numbers else ""


STYLES: Mapping[Format, _Style] = {
    "marked": _Style(f'Write the final answer on the last line, after "{MARK}".', f"{MARK} {{}}", _marked),
    "boxed": _Style("Put the final answer in \\boxed{}.", "$\\boxed{{{}}}$", boxed),
    "stated": _Style(
        'End with "The answer is" and the answer.', "The answer is {}.", lambda text: _in_prose(_STATED, text)
    ),
    "bold": _Style("Write the final answer in bold: **answer**.", "**{}**", lambda text: _in_prose(_BOLD, text)),
    "last": _Style("End with the final answer.", "{}", _last),
}
