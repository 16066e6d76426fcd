r"""Names and relations in an answer, brought to one form: ``x = 6, y = 8`` is ``(6, 8)``, ``5 < x`` is ``(5, \infty)``.

Imports the standard library only, for worker processes.
"""

import re

from rljax.environments.verifiers import notation

_NAME = r"(?:\\?[a-zA-Z]+|\\(?:angle|overline|vec|widehat)\s*\{?\s*[A-Z]+\}?)(?:_\{?\w+\}?)?"  # x, x_1, \angle ABC
_PHRASE = rf"(?!(?:[a-z]+ )*{notation.CHANGES}\b)[A-Za-z][a-z ]+"
_NAMES = rf"\\?text\{{[a-z ]+\}}|{_PHRASE}|\(?{_NAME}(?:\s*,\s*{_NAME})*\)?|{_NAME}\s*\(\s*\w+\s*\)"  # (x, y), f(2)
_NAMES += r"|(?-i:(?:\\lvert|\|)\s*[A-Z][A-Z \\capu]*(?:\\rvert|\|)|\[[A-Z]{3,}\])"  # |AB|, |A \cup B|, the area [ABC]
_LABEL = re.compile(_NAMES, re.IGNORECASE)
_SUM = re.compile(r"[a-zA-Z](?:\s*\+\s*[a-zA-Z])+")
_VALUE = re.compile(r"(\\?[a-zA-Z]+)(?:_\{?\w+\}?)?\s*=\s*([^=<>]+)")
_LESS = r"<|>|\\[lg](?:t|eq?(?:slant)?)(?![a-z])"
_BUILDER = re.compile(r"\\\{\s*[a-zA-Z]\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:\\mid|:|\|)\s*(.+?)\s*\\\}")
AND = re.compile(r"\s*(?:[,;]?\s*(?:\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)|[,;])\s*")


def sides(text: str) -> list[str]:
    """Return the sides of a chain such as ``4 + 1 = 5``."""
    return [notation.clean(side) for side in re.split(r"(?<![<>!:])=", text)]


def unnamed(sides: list[str], bare: bool = False) -> list[str]:
    """Return the sides without a name.

    Args:
      sides: of ``x = 5``, ``f(x) = 5`` or ``= 5``.
      bare: whether the reference has no name: then ``m + n = 5`` and ``5 = x`` count too.

    Returns:
      The other sides.
    """
    if len(sides) > 1 and (not sides[0] or _LABEL.fullmatch(sides[0]) or (bare and _SUM.fullmatch(sides[0]))):
        return sides[1:]
    return sides[:-1] if bare and len(sides) == 2 and re.fullmatch(r"[a-zA-Z]", sides[1]) else sides


def plain(text: str) -> str:
    r"""Return the tuple, list or interval that an answer states with names; other texts as they are.

    ``A(1, 2)`` and ``x = 1, y = 2`` are ``(1, 2)``; ``x = 1 or x = 2`` is ``1, 2``; ``x \ge 1`` and
    ``\{x : 1 \le x\}`` are ``[1, \infty)``.
    """
    text = re.sub(rf"^{_NAME}\s*\\in(?![a-z])\s*|^[A-Z]\s*(?=\([^()]*,[^()]*\)$)", "", text)
    if (interval := _interval(text)) is not None:
        return interval
    values = [_VALUE.fullmatch(part) for part in AND.split(text)]
    named = [(value[1], value[2]) for value in values if value]
    if len(named) < max(len(values), 2):
        return text
    names, listed = [name for name, _ in named], ", ".join(value for _, value in named)
    if len(set(names)) == 1:
        return listed
    return f"({listed})" if names == sorted(set(names)) else text


def split(text: str) -> tuple[str, list[str]]:
    r"""Return the brackets of a text, ``{}`` for a set or a list, and its parts."""
    text = re.sub(r"\\(?:\}|rbrace)", "\x02", re.sub(r"\\(?:\{|lbrace)", "\x01", text))
    kind = "{}"
    if text[:1] in {*"([\x01"} and text[-1] in ")]\x02" and _encloses(text):
        kind, text = (text[0] + text[-1]).replace("\x01\x02", "{}"), text[1:-1]
    parts, depth, last = [], 0, 0
    for match in re.finditer(rf"[(\[{{\x01]|[)\]}}\x02]|{AND.pattern}", text):
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


def _interval(text: str) -> str | None:
    """Return the interval of an inequality in one variable, or of a set that an inequality describes."""
    built = _BUILDER.fullmatch(text)
    terms = [term.strip() for term in re.split(rf"({_LESS})", built[1] if built else text)]
    if len(terms) not in (3, 5):
        return None
    if all(sign[:2] in (">", "\\g") for sign in terms[1::2]):
        terms.reverse()
    elif any(sign[:2] in (">", "\\g") for sign in terms[1::2]):
        return None
    if len(terms) == 3:
        terms = ["-\\infty", "<", *terms] if re.fullmatch("[a-zA-Z]", terms[0]) else [*terms, "<", "\\infty"]
    if not re.fullmatch("[a-zA-Z]", terms[2]):
        return None
    return f"{'[' if 'e' in terms[1] else '('}{terms[0]}, {terms[4]}{']' if 'e' in terms[3] else ')'}"
