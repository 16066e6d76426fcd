r"""The notation of an answer: ``clean`` removes what does not change its value, ``rational`` reads numbers exactly.

Imports the standard library only, for worker processes.
"""

import fractions
import re

_SPACES = re.compile(r"(?<!\\)\\[,;:! ]|~|\\(?:q?quad|displaystyle|textstyle|left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\s+")
_UNICODE = str.maketrans(
    {"\u2212": "-", "\u03c0": "\\pi ", "\u00b0": "^\\circ", "\u00d7": "\\times ", "\u00b7": "\\cdot "}
    | {"\u221e": "\\infty ", "\u2208": "\\in ", "\u2264": "\\le ", "\u2265": "\\ge ", "\u2248": "\\approx "}
    | {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}  # full-width forms
    | {power: f"^{{{i}}}" for i, power in enumerate("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")}
)
_COLOR = re.compile(r"\\(?:text)?color\s*\{[a-z]+\}|</?(?:b|i|em|strong|u)>", re.IGNORECASE)
_GROUPED = r"(?<![\d.,])([1-9]\d{0,2})((?:\\text\{,\}|\{,\}|, ?\\!|,|\s)\d{3})+(?!\d|,\d|\s\d)"
_THOUSANDS = re.compile(_GROUPED, re.ASCII)
_IN_PARTS = re.compile(_GROUPED.replace("|,|", "|,(?=0)|"), re.ASCII)  # of (2,100), not of (1,000)
_SIGN = re.compile(r"\\(le|ge|ne)(?:q(?:slant)?)?(?![a-zA-Z])\s*")
FONT = r"\\(?:text(?:bf|it|rm|sf|tt|sc|normal)?|math(?:rm|bf|it|sf|tt|normal)|boldsymbol|bm"
FONT += r"|emph|mbox|operatorname|underline|boxed|fbox|bf|rm|it)"
_PAIRS = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("__", "__"), ("*", "*"), ("_", "_")]
_PAIRS += [("`", "`"), ('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019"), ("{\\bf ", "}"), ("{", "}")]

# Words that change a value, so that they are no unit.
CHANGES = (
    r"(?:hundred|thousand|[mb]illion|trillion|dozen|score|half|third|quarter|double|twice|squared|cubed|not|no|or|and"
)
CHANGES += r"|to|plus|minus|times|over|per ?cent of|mod|between|than|about|is|are|pi|sqrt|sin|cos|tan|log|ln|exp)"
# Words before a value that leave it as it is: the answer is 5, a total of 5, \text{The point } (1, 2).
_AVOID = rf"(?:{CHANGES.replace('is|are|', '')}|[a-z]*n[o']t|never|n?either|nor|any[a-z]*|all|except|but|least|most"
_AVOID += r"|square|root|cube|(?<!total )of|by|from|at|up|more|less|negative|opposite|reciprocal|inverse|maybe|perhaps"
_AVOID += r"|prob[a-z]*|poss[a-z]*|if|could|might|may|can|wrong|incorrect|false|under|below|above|around|roughly|nearly"
_AVOID += r"|no(?:ne|thing)|others?|who|almost|after|before|without)"
_COPULA = r"(?:is|are|was|were|has|have|had|equals|exactly|approximately|total of)"
_LEAD = rf"(?:(?!{_AVOID}\b)[a-z]+ )*?{_COPULA}"
_LEAD = rf"{_LEAD}\s+(?=\S)|{FONT}\s*\{{\s*(?:{_LEAD}|(?!(?:[a-z]+ )*{_AVOID}\b)the [a-z ]+|[a-z] =)\s*\}}\s*(?=\S)"
_LEAD += rf"|(?:{FONT}\s*\{{)?(?:option|choice)\s+\}}?\s*(?=\(?[a-z]\)?$)|\\approx(?![a-z])\s*"
_WORDS = rf"(?!(?:[a-z/]+ )*{CHANGES}s?\b)[a-z]{{2,}}(?:[ /-][a-z]+)*"
_LETTERS = rf"(?!(?:[a-z/]+ )*{CHANGES}s?\b)[a-z][a-z/. -]*"
_FONT_UNIT = rf"\\(?:text(?:rm|bf|it)?|mathrm|mbox)\s*\{{\s*{_LETTERS}(?:\^\{{?[23]\}}?)?\}}"
_UNIT = re.compile(
    r"(?:(?<=[\d})\]])\s*|(?<=\w)\s+|(?<=\w)(?=[\\^]))"
    r"(?:(?:\^\{?\\circ\}?|\\degree)(?:[CF]\b)?|\\?%|[$\u20ac\u00a3\u20b9\u00a5]"
    rf"|{_FONT_UNIT}|\({_WORDS}\)|/?{_WORDS}|/{_FONT_UNIT}|(?<=\s)[mghsL])(?:\^\{{?[23]\}}?)?[.,;]?$",
    re.IGNORECASE,
)
_SHORT_UNITS = frozenset(
    "cm mm km nm dm kg mg lb lbs oz ft in yd mi sq cu mph kph hr hrs min mins sec ms ml cl dl gal pt qt pts rad deg"
    " am pm hz kw kwh cal mol ppm bpm rpm usd eur gbp rs yr yrs hp db pa".split()
)
_MAGNITUDE = re.compile(r"[kKMBT]|(?i:bn|mn|mil|mln|tn)")  # 27\\text{k} is 27 thousand
_FIRST = re.compile(r"^(\*\*|`|\$)([^*`$]+)\1(?=\s)")  # **5** apples
_CURRENCY = re.compile(r"^([-+]?)\s*(?:(?:US)?\\?[$\u20ac\u00a3\u20b9\u00a5#]|USD|EUR)\s*(?=[-+]?[\d.\\])")
_REMARK = re.compile(r"\\[hv]?phantom\s*\{[^{}]*\}|\\(?:checkmark|blacksquare|qed)(?![a-zA-Z])|[\u2713\u2714\u2705]")
_SLANTED = re.compile(r"\\(?:nice|s|x|small)frac(?![a-zA-Z])")
_BECAUSE = re.compile(r"^.*(?:\\(?:implies|(?:Long)?[rR]ightarrow)(?![a-zA-Z])|\u21d2)\s*(?=\S)")
_ASIDE = re.compile(rf"(?<=[\w}})\]])\s*\\text\s*\{{\s*\({_WORDS}\)\s*\}}$", re.IGNORECASE)
_LABEL = re.compile(
    rf"^(?:\\(?:therefore|implies|Rightarrow)\s|{FONT}\{{[a-z ]+:\s*\}}\s*|[a-z][a-z ]*:\s*|{_LEAD})", re.IGNORECASE
)
_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(rf"[-+]?{_DECIMAL}", re.ASCII)
_SCIENTIFIC = re.compile(
    rf"([-+]?{_DECIMAL})(?:\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*|e)\{{?([-+]?\d{{1,3}})\}}?", re.ASCII
)
_FRACTION = re.compile(r"([-+]?)(\d*)\s*\\[dtc]?frac(?:\{([^{}]+)\}|\s*(\d))(?:\{([^{}]+)\}|\s*(\d))", re.ASCII)
_REPEATING = re.compile(r"(-?)(\d*)\.(\d*)\\overline\s*\{(\d+)\}", re.ASCII)
BASED = re.compile(r"([0-9A-Z]+)_\{?(\d{1,2})\}?", re.ASCII)
_QUOTIENT = re.compile(rf"([-+]?{_DECIMAL})\s*(?:/|\\div)\s*({_DECIMAL})", re.ASCII)


def closed_at(text: str, start: int = 0) -> int:
    """Return the position after the brace that closes the one at ``start``; -1 if none does."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i + 1
    return -1


def clean(text: str) -> str:
    r"""Return an answer without what does not change its value.

    That is: spacing, math and Markdown delimiters, quotation marks, fonts and boxes around the whole, a label that ends
    with a colon, a currency before it and a unit after it, separators of thousands, a full stop. Units contain letters
    only, and no word that changes a value, such as "million".
    """
    text = re.sub(r",\s*\\!\s*", "{,}", _COLOR.sub("", text)).translate(_UNICODE)
    text = _SLANTED.sub(r"\\frac", re.sub(r"(?<=\d)\{\.\}(?=\d)", ".", _BECAUSE.sub("", _REMARK.sub(" ", text))))
    text = re.sub(r"\\text\s*\{\s*(\\?\$)\s*([\d.,]*)\}", r"\1\2", re.sub(r"\bsq\. ?(?=[a-z])", "sq ", text))
    text = re.sub(
        r"\\(?:mathrm|text|mathbf)\s*\{\s*([ie])\s*\}", r"\1", _SPACES.sub(" ", text.replace("\\,", " "))
    ).strip()
    if re.search(r"\\(?:times|cdot)", text):  # else a unit
        text = re.sub(r"(\d)\s*\\?%", r"\1/100", text)
    while (shorter := _shorter(text)) != text:
        text = shorter.strip().removeprefix("+")
    text = re.sub(r"(\d)\s*\\(?:cdot|times) ?(?=i\b)", r"\1", text)
    text = re.sub(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])|\*pi\b", r"\\pi ", text)
    text = re.sub(r"\*\*\s*(-?\w+)", r"^{\1}", text)
    text = re.sub(r"(?<![a-zA-Z\\])sqrt\s*\(([^()]*)\)|\u221a\s*(\d+)", r"\\sqrt{\1\2}", text)
    text = re.sub(r"\\pi ?\(", r"\\pi \\cdot (", text)
    text = re.sub(r"^(-?\d+) (\d{1,3})/(\d{1,3})$", r"\1\\frac{\2}{\3}", text, flags=re.ASCII)
    text = re.sub(r"_(\d) ", r"_{\1} ", re.sub(r"\\frac\s*(\d)\s+(\d)", r"\\frac{\1}{\2}", text))
    return _ungrouped(_SIGN.sub(r"\\\1 ", text))


def _ungrouped(text: str) -> str:
    """Return a text without separators of thousands; in brackets a comma without a space may separate parts."""
    depth, out = 0, ""
    for part in re.split(r"(\\[{}]|[()\[\]])", text):
        depth += (part in ("(", "[", "\\{")) - (part in (")", "]", "\\}"))
        grouped = _THOUSANDS if depth <= 0 or re.search(r",\s", part) else _IN_PARTS
        out += grouped.sub(lambda m: re.sub(r"[^\d]", "", m[0]), part)
    return out


def _shorter(text: str) -> str:
    """Return an answer without the outermost piece of presentation; delimiters before currencies, which use "$" too."""
    if (inner := _unwrapped(text)) != text:
        return inner
    if (before := re.sub(r"(?<=[^.])\.$|[,;\\]+$", "", text)) != text:
        return before
    if (after := _CURRENCY.sub(r"\1", _LABEL.sub("", _FIRST.sub(r"\2", text)))) != text:
        return after
    number = _UNIT.sub(lambda unit: "" if _is_unit(unit[0]) else unit[0], _ASIDE.sub("", text))
    return number if re.search(r"\d|\\pi", number) else text


def _is_unit(text: str) -> bool:
    r"""Return whether letters after a value are a unit; in ``2ab`` they are variables, in ``27\text{k}`` a factor."""
    letters = re.sub(rf"{FONT}|\^\{{?[23]\}}?$|[^a-zA-Z]", "", re.sub(r"[.,;]$", "", text))
    if _MAGNITUDE.fullmatch(letters):
        return False
    if not re.fullmatch(r"\s*[a-zA-Z]{2,}(?:\^\{?[23]\}?)?[.,;]?", text) or letters.lower() in _SHORT_UNITS:
        return True
    if not re.search("[aeiouyAEIOUY]", letters):
        return False
    return len(letters) > 2 if text[0].isspace() else len(letters) > 3 and [*letters] != sorted(set(letters))


def _unwrapped(text: str) -> str:
    font = re.match(rf"{FONT}\s*(?=\{{)", text)
    if font and closed_at(text, font.end()) == len(text):
        return text[font.end() + 1 : -1]
    for left, right in _PAIRS:
        inner = text[len(left) : len(text) - len(right)]
        if len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right):
            whole = closed_at(text) == len(text) if left[0] == "{" else left not in inner and right not in inner
            if whole and not inner.endswith("\\"):
                return inner
    return text


def rational(text: str) -> fractions.Fraction | None:
    r"""Return the value of a number, None for other texts.

    The forms are ``-3.50``, ``3/4``, ``\frac{3}{4}``, ``1\frac12``, ``1.5 \times 10^6``,
    ``0.\overline{3}`` and ``30_8``.
    """
    text = text.strip().replace("- ", "-") if len(text) < 1000 else ""
    if _NUMBER.fullmatch(text):
        return fractions.Fraction(text)
    if match := _SCIENTIFIC.fullmatch(text):
        return fractions.Fraction(match[1]) * fractions.Fraction(10) ** int(match[2])
    if match := _QUOTIENT.fullmatch(text):
        return _divided(fractions.Fraction(match[1]), fractions.Fraction(match[2]))
    if match := _FRACTION.fullmatch(text):
        over, under = rational(match[3] or match[4]), rational(match[5] or match[6])
        value = None if over is None or under is None else _divided(over, under)
        if value is None or (match[2] and value < 0):
            return None
        return (-1 if match[1] == "-" else 1) * (int(match[2] or 0) + value)
    if match := _REPEATING.fullmatch(text):
        whole, period = int(match[2] + match[3] or 0), fractions.Fraction(int(match[4]), 10 ** len(match[4]) - 1)
        return (-1 if match[1] else 1) * (whole + period) / 10 ** len(match[3])
    if (match := BASED.fullmatch(text)) and 2 <= int(match[2]) <= 36:
        digits = [int(digit, 36) for digit in match[1]]
        return fractions.Fraction(int(match[1], int(match[2]))) if max(digits) < int(match[2]) else None
    return None


def _divided(over: fractions.Fraction, under: fractions.Fraction) -> fractions.Fraction | None:
    return over / under if under else None
