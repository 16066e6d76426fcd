# ruff: noqa: E501  (a rule is a line)
r"""A grammar of right and wrong ways to write an answer, to measure the verifiers of mathematics.

    python -m tests.environments.verifiers.grammar --folder DATA [--count N] [--half shown|held|fresh] [--failures]

References come from GSM8K and AMC (``DATA/gsm8k/*.jsonl``, ``DATA/amc23/test.jsonl``), and from templates in the style
of SVAMP and of competitions. A rewriting has the value of its reference, a corruption does not. Each is written in
``\boxed{...}`` and after ``####``. The grammar was fixed before the verifiers were changed. A rule belongs to one of
two halves, by a hash of its name: verifiers were changed by what fails in the half "shown", and the half "held" is
reported apart.
"""

import argparse
import collections
import fractions
import hashlib
import json
import math
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rljax.environments.verifiers import mathematics
from tests.environments.verifiers import grammar_fresh

Fraction = fractions.Fraction


class Reference(NamedTuple):
    """A reference answer: its set, kind, text, and its value if it is a number."""

    set: str
    kind: str
    text: str
    value: complex | Fraction | None = None


CARRIERS = {"boxed": "so it is $\\boxed{{{}}}$.", "marked": "so it is done.\n#### {}"}

# --- rewritings of whatever reference: {a} is its text -------------------------------------------

WRAPPERS = [
    *("{a}", "${a}$", "$ {a} $", "$${a}$$", "\\({a}\\)", "\\[{a}\\]", "**{a}**", "*{a}*", "`{a}`", "**${a}$**"),
    *("{a}.", "{a} .", "{{{a}}}", "\\displaystyle {a}", "\\, {a}", "{a}\\;", "\\boxed{{{a}}}", "${a}$.", " {a}\\ "),
    *("\\mathbf{{{a}}}", "**{a}.**", "~{a}~", "\\textbf{{${a}$}}", "{{\\bf {a}}}", "$\\displaystyle{{{a}}}$"),
]
SCALARS = [
    *('"{a}"', "'{a}'", "\u201c{a}\u201d", "({a})", "\\left({a}\\right)", "x = {a}", "x={a}", "= {a}", "$x = {a}$"),
    *("\\text{{Answer: }} {a}", "f(2) = {a}", "{a} = {a}", "\\frac{{{a}}}{{1}}", "{a}\\text{{ units}}", "[{a}]"),
    *("x_1 = {a}", "n = {a}.", "\\therefore {a}", "{a} \\cdot 1", "1 \\times {a}", "{a} + 0", "\\angle ABC = {a}"),
]
NUMBERS = [
    *("+{a}", "{a}.0", "{a}.00", "{a}.", "\\${a}", "${a}", "\u20ac{a}", "{a} dollars", "{a} clips", "{a} km/h"),
    *("\\text{{{a}}}", "\\mathrm{{{a}}}", "\\textbf{{{a}}}", "\\textit{{{a}}}", "__{a}__", "{a}^\\circ", "{a}\u00b0"),
    *("{a}^{{\\circ}}", "{a}\\text{{ cm}}", "{a} \\text{{ cm}}^2", "{a}\\ \\mathrm{{m}}", "{a}/1"),
    *("{a} \\, \\text{{apples}}", "USD {a}", "\\$ {a}", "{a} \\mbox{{ hours}}", "{a} cm", "\\text{{Total: }} {a}"),
    *(
        "Total = {a}",
        "{a} (apples)",
        "\\$\\text{{{a}}}",
        "{a}\\,\\text{{kg}}",
        "{a} \\textrm{{ feet}}",
        "{a}~\\text{{g}}",
    ),
    *(
        "\\#{a}",
        "{a} square feet",
        "**{a}** clips",
        "\\underline{{{a}}}",
        "\\mathbf{{{a}}}\\text{{ g}}",
        "{a};",
        "{a},",
    ),
]
GROUPED = [
    "{a:,}",
    "{b}{{,}}{c}",
    "{b}\\,{c}",
    "{b}\\ {c}",
    "{b} {c}",
    "{b}\u202f{c}",
    "{b}\\;{c}",
    "\\${a:,}",
    "{b},\\!{c}",
]

# --- corruptions: {a} the text, {b} the text of another answer of the kind -----------------------

WRONG = [
    *("{b}", "{a}, {b}", "{b}, {a}", "{a} \\text{{ or }} {b}", "{a} or {b}", "{b} = {a}", "{a} = {b}", "\\neq {a}"),
    *(
        "{a} \\text{{ and }} {b}",
        "\\text{{not }} {a}",
        "not {a}",
        "\\infty",
        "\\text{{unknown}}",
        "?",
        "\\mathbb{{R}}",
        "x",
    ),
    *("{b} (not {a})", "{a} \\ldots {b}", "\\emptyset", "{a} \\to {b}", "\\text{{none}}", "{a}; {b}", "{a} {b}"),
    *(
        "\\{{{a}, {b}\\}}",
        "{a} \\neq {b}",
        "x \\neq {a}",
        "{a} \\lor {b}",
        "\\begin{{cases}} {a} \\\\ {b} \\end{{cases}}",
    ),
]
WRONG_SCALARS = [
    *(
        "{a}+1",
        "{a} - 1",
        "2 \\cdot {a} + 1",
        "\\frac{{{a}}}{{2}} + 7",
        "{a}x",
        "x + {a}",
        "{a}\\pi + 1",
        "\\pm ({a} + 1)",
    ),
    *(
        "x > {a}",
        "x < {a}",
        "x \\le {a}",
        "[{a}, {b}]",
        "({a}, {b})",
        "({b}, {a}]",
        "{a} + i",
        "{a} \\pm 1",
        "10^{{{a}}} + 1",
    ),
    *("\\sqrt{{{a}}} + 3", "{a} \\cdot 10^3 + 1", "[{a}, \\infty)", "({a}, {a})", "{a} = {a} + 1", "{a} + 1 = {a}"),
    *(
        "{a} \\approx {b}",
        "x^2 = {a}",
        "\\text{{between }} {a} \\text{{ and }} {b}",
        "{a} - {b} - 1",
        "y + 1 = {a}",
        "{a}!!?",
    ),
]
WRONG_NUMBERS = [
    *("{a} million", "{a} thousand", "{a}000", "0.{a}", "{a}5", "{a}/7", "1/{a}7", "{a}^3 + 1", "{a}e3", "0,00{a}"),
    *(
        "{a} dozen",
        "{a}.5",
        "{a} \\times 10^2",
        "{a} 000",
        "{a}{{,}}000",
        "\\sqrt{{{a}1}}",
        "\\frac{{{a}}}{{9}}",
        "{a}-{b}",
    ),
    *(
        "{a} to {b}",
        "{a}\u2013{b}",
        "{a}:{b}",
        "{a}/{b}7",
        "{a} \\text{{ million}}",
        "{a}7_{{8}}",
        "half of {a}",
        "{a} squared",
    ),
    *(
        "-{a}9",
        "{a}\\frac{{1}}{{2}}",
        "\\log {a}1",
        "{a} = 2 \\cdot {a} + 3",
        "{a}1 \\bmod 3",
        "{a}.{a}1",
        "{a}9 {b}",
        "{a} + 5 = {a}",
        "{a}\\%",
        "{a}%",
        "{a} percent",
        "{a}\\text{{ percent}}",
        "{a}\\text{{k}}",
        "{a}\\text{{ bn}}",
        "{a}9_{{7}}",
    ),
]

UNIVERSAL = [
    *("x", "x = x", "1 = 1", "0 = 0", "\\infty", "-\\infty", "\\mathbb{R}", "(-\\infty, \\infty)", "\\emptyset", "\\{\\}"),
    *("", " ", "?", "*", ".*", "_", "None", "nan", "NaN", "inf", "True", "true", "\\text{true}", "answer", "\\text{answer}"),
    *("\\frac{0}{0}", "\\frac{1}{0}", "0/0", "\\text{any number}", "all", "\\forall x", "x \\in \\mathbb{R}", "n", "\\boxed{}"),
    *("-\\infty < x < \\infty", "x \\ge x", "\\{x : x = x\\}", "1, 2, 3, 4, 5, 6, 7, 8, 9", "\\{1, 2, 3, 4, 5, 6, 7, 8, 9\\}"),
    *(", ".join(map(str, range(-50, 200))), "[0, 1000000]", "x = 1 \\lor x = 2", "1 = 2 = 3 = 4 = 5 = 6 = 7 = 8", "e", "i"),
    *(" \\text{ or } ".join(map(str, range(30))), " = ".join(map(str, range(30))), "\\pi", "\\text{see above}", "()", "\\,", "$$"),
    *("####", "\\boxed{\\boxed{}}", "\\ldots", "0 \\cdot x", "x - x", "\\text{(A) (B) (C) (D) (E)}", "\\text{yes or no}"),
]  # fmt: skip

HOSTILE = [
    *("9**9**9**9", "9^{9^{9^{9}}}", "2^{99999999999}", "10^{10^{10}}", "99999999!", "((9!)!)!", "\\frac{1}{0}", "0^{-1}"),
    *("(" * 400 + "1" + ")" * 400, "\\frac{" * 200 + "1" + "}{2}" * 200, "\\sqrt{" * 200 + "4" + "}" * 200, "9" * 5000),
    *("+".join(["1"] * 3000), "x" * 3000, "\\sum_{k=1}^{10^{12}} \\sin k", "\\int_0^1 \\sin(\\cos(\\tan(x^x))) dx", "1e999999999"),
    *("(x+1)^{500}", "(x+y+z+1)^{200}", "\\prod_{k=1}^{10^9} k", "\\binom{10^9}{10^8}", "{" * 1000, "$" * 3000, "\\" * 3000),
    *("\\lim_{x \\to 0} \\frac{\\sin(\\sin x)}{x^{x}}", "\\begin{pmatrix}" + "1 & " * 800 + "1 \\end{pmatrix}", "1," * 2500),
    *("__import__('os').system('true')", "\\input{/etc/passwd}", "\x00", "\u202e27", "\u0662\u0667", "1" + "0" * 4000 + "!"),
    *("\\sqrt[" + "9" * 40 + "]{2}", "1.5^{1.5^{1.5^{99999}}}", "\\log(\\log(\\log(10^{10^{10}})))", "7^{7^{7}}", "(((((2^9)^9)^9)^9)^9)^9"),
]  # fmt: skip


def half(name: str) -> str:
    """Return the half, or group, that a rule belongs to."""
    if name.startswith("fresh "):
        return "fresh"
    return "held" if hashlib.sha256(name.encode()).digest()[0] & 1 else "shown"


def whole(text: str) -> int | None:
    """Return the integer of a reference such as 1,200 or 27.0; None for any other."""
    try:
        value = Fraction(text.replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.denominator == 1 else None


def references(folder: pathlib.Path | None, count: int, seed: int = 0) -> list[Reference]:
    """Return ``count`` references of each set; those of the data sets only if ``folder`` has them."""
    rng, out = random.Random(seed), []
    if folder is not None:
        rows = [
            json.loads(s)["answer"] for f in sorted(folder.glob("gsm8k/*.jsonl")) for s in f.read_text().splitlines()
        ]
        texts = [row.rpartition("####")[2].strip() for row in rows]
        out += [
            Reference("gsm8k", "number", t, Fraction(t.replace(",", "")))
            for t in rng.sample(texts, min(count, len(texts)))
        ]
        for f in folder.glob("amc23/*.jsonl"):
            texts = [str(json.loads(s)["answer"]) for s in f.read_text().splitlines()]
            out += [Reference("amc", "number", t, Fraction(t)) for t in texts]
    for _ in range(count):
        t = rng.choice(
            [
                f"{rng.randint(1, 2000)}.0",
                f"{rng.randint(0, 99)}.{rng.randint(1, 9)}5",
                str(rng.randint(2, 9999)),
                f"-{rng.randint(2, 99)}",
            ]
        )
        out.append(Reference("svamp", "number", t, Fraction(t)))
    kinds = list(TEMPLATES)
    return out + [TEMPLATES[kinds[i % len(kinds)]](rng) for i in range(count)]


def _fraction(r: random.Random) -> Reference:
    a, b = r.choice([(1, 3), (3, 4), (5, 7), (-7, 12), (11, 6), (22, 9), (-1, 8), (13, 27)])
    return Reference("competition", "fraction", f"{'-' if a < 0 else ''}\\frac{{{abs(a)}}}{{{b}}}", Fraction(a, b))


def _radical(r: random.Random) -> Reference:
    k, n = r.randint(2, 12), r.choice([2, 3, 5, 6, 7, 11, 13])
    return Reference("competition", "radical", f"{k}\\sqrt{{{n}}}", complex(k * math.sqrt(n)))


def _pi(r: random.Random) -> Reference:
    k = r.randint(2, 90)
    return Reference("competition", "pi", f"{k}\\pi", complex(k * math.pi))


def _power(r: random.Random) -> Reference:
    b, e = r.choice([2, 3, 5, 7]), r.randint(2, 9)
    return Reference("competition", "power", f"{b}^{{{e}}}", Fraction(b**e))


def _complex(r: random.Random) -> Reference:
    a, b = r.randint(1, 9), r.randint(2, 9)
    return Reference("competition", "complex", f"{a}+{b}i", complex(a, b))


def _polynomial(r: random.Random) -> Reference:
    a, b = r.sample(range(1, 9), 2)
    return Reference("competition", "polynomial", f"x^2+{a + b}x+{a * b}")


def _point(r: random.Random) -> Reference:
    a, b = r.sample(range(1, 12), 2)
    return Reference("competition", "point", f"({a}, -{b})")


def _interval(r: random.Random) -> Reference:
    a = r.randint(1, 9)
    return Reference("competition", "interval", r.choice([f"({a}, {a + 3}]", f"[{a}, {a + 4}]", f"[{a}, \\infty)"]))


def _solutions(r: random.Random) -> Reference:
    a, b, c = sorted(r.sample(range(1, 30), 3))
    return Reference("competition", "solutions", f"{a}, {b}, {c}")


def _word(r: random.Random) -> Reference:
    return Reference(
        "competition", "word", "\\text{" + r.choice(["Evelyn", "even", "Friday", "ellipse", "neither"]) + "}"
    )


def _choice(r: random.Random) -> Reference:
    return Reference("competition", "choice", f"\\text{{({r.choice('ABCDE')})}}")


def _equation(r: random.Random) -> Reference:
    a, b = r.randint(2, 9), r.randint(1, 9)
    return Reference("competition", "equation", f"y = {a}x + {b}")


TEMPLATES: dict[str, Callable[[random.Random], Reference]] = {
    **{"fraction": _fraction, "radical": _radical, "pi": _pi, "power": _power, "complex": _complex},
    **{"polynomial": _polynomial, "point": _point, "interval": _interval, "solutions": _solutions},
    **{"word": _word, "choice": _choice, "equation": _equation},
}
SCALAR = ("number", "fraction", "radical", "pi", "power", "complex")


def _special(r: Reference) -> Iterator[tuple[str, str]]:
    """Yield rewritings of one kind: the rule's name and the text."""
    t = r.text
    if r.kind == "fraction":
        assert isinstance(r.value, Fraction)
        n, d = r.value.numerator, r.value.denominator
        yield from {
            "slash": f"{n}/{d}",
            "dfrac": t.replace("\\frac", "\\dfrac"),
            "tfrac": t.replace("\\frac", "\\tfrac"),
        }.items()
        yield from {"short": f"{'-' if n < 0 else ''}\\frac{abs(n)}{d}" if abs(n) < 10 and d < 10 else t}.items()
        yield from {
            "unreduced": f"\\frac{{{3 * n}}}{{{3 * d}}}",
            "minus inside": f"\\frac{{{n}}}{{{d}}}",
            "division": f"{n} \\div {d}",
        }.items()
        yield "ratio in sentence", f"{n}/{d} of the pie"
        if abs(n) > d:
            yield "mixed", f"{'-' if n < 0 else ''}{abs(n) // d}\\frac{{{abs(n) % d}}}{{{d}}}"
        if 10**6 % d == 0:
            yield "decimal", str(n / d)
    elif r.kind == "radical":
        k, n = t.removesuffix("}").split("\\sqrt{")
        yield from {
            "one root": f"\\sqrt{{{int(k) ** 2 * int(n)}}}",
            "dot": f"{k} \\cdot \\sqrt{{{n}}}",
            "bare": f"{k}\\sqrt {n}" if len(n) == 1 else t,
        }.items()
        yield from {
            "power half": f"{k} \\cdot {n}^{{1/2}}",
            "after": f"\\sqrt{{{n}}} \\cdot {k}",
            "unrationalised": f"\\frac{{{int(k) * int(n)}}}{{\\sqrt{{{n}}}}}",
        }.items()
    elif r.kind == "pi":
        k = t.removesuffix("\\pi")
        yield from {
            "dot": f"{k} \\cdot \\pi",
            "space": f"{k} \\pi",
            "after": f"\\pi \\cdot {k}",
            "unicode": f"{k}\u03c0",
            "word": f"{k}*pi",
        }.items()
        yield from {"unit": f"{k}\\pi \\text{{ cm}}^2", "square units": f"{k}\\pi \\text{{ square units}}"}.items()
    elif r.kind == "power":
        assert isinstance(r.value, Fraction)
        b, e = t.removesuffix("}").split("^{")
        yield from {
            "value": str(r.value),
            "grouped": f"{int(r.value):,}",
            "bare": f"{b}^{e}" if len(e) == 1 else t,
        }.items()
        yield from {
            "stars": f"{b}**{e}",
            "product": f"{b} \\cdot {b}^{{{int(e) - 1}}}",
            "chain": f"{t} = {r.value}",
        }.items()
    elif r.kind == "complex":
        a, b = t.removesuffix("i").split("+")
        yield from {
            "spaced": f"{a} + {b}i",
            "swapped": f"{b}i+{a}",
            "dot": f"{a} + {b} \\cdot i",
            "before": f"{a} + i{b}",
            "z": f"z = {a} + {b}i",
        }.items()
    elif r.kind == "polynomial":
        p, q = t.removeprefix("x^2+").split("x+")
        a = next(a for a in range(1, 9) if a * (int(p) - a) == int(q))
        yield from {
            "factored": f"(x+{a})(x+{int(p) - a})",
            "spaced": f"x^2 + {p}x + {q}",
            "reversed": f"{q} + {p}x + x^2",
        }.items()
        yield from {
            "braces": f"x^{{2}}+{p}x+{q}",
            "function": f"f(x) = {t}",
            "dots": f"x \\cdot x + {p} \\cdot x + {q}",
            "p": f"P(x) = {t}",
        }.items()
        yield from {"factored dot": f"(x+{a}) \\cdot (x+{int(p) - a})", "horner": f"x(x+{p})+{q}"}.items()
    elif r.kind == "point":
        a, b = t.strip("()").split(", ")
        yield from {
            "tight": f"({a},{b})",
            "left": f"\\left({a}, {b}\\right)",
            "decimal": f"({a}.0, {b}.0)",
            "named": f"(x, y) = ({a}, {b})",
        }.items()
        yield from {
            "big": f"\\big({a}, {b}\\big)",
            "spaces": f"( {a} , {b} )",
            "thin": f"({a},\\, {b})",
            "P": f"P = ({a}, {b})",
        }.items()
    elif r.kind == "interval":
        yield from {
            "tight": t.replace(" ", ""),
            "left": f"\\left{t[:-1]}\\right{t[-1]}",
            "in": f"x \\in {t}",
            "spaces": f"{t[0]} {t[1:-1]} {t[-1]}",
        }.items()
        a, b = t[1:-1].split(", ")
        yield from {
            "decimal": f"{t[0]}{a}.0, {b}{t[-1]}",
            "thin": f"{t[0]}{a},\\,{b}{t[-1]}",
            "plus": t.replace("\\infty", "+\\infty"),
        }.items()
    elif r.kind == "solutions":
        parts = t.split(", ")
        yield from {
            "tight": ",".join(parts),
            "reversed": ", ".join(parts[::-1]),
            "set": f"\\{{{t}\\}}",
            "and": f"{parts[0]}, {parts[1]}, and {parts[2]}",
        }.items()
        yield from {
            "text and": f"{parts[0]}, {parts[1]} \\text{{ and }} {parts[2]}",
            "x": f"x = {t}",
            "left set": f"\\left\\{{{t}\\right\\}}",
        }.items()
        yield from {
            "semicolons": "; ".join(parts),
            "x in": f"x \\in \\{{{t}\\}}",
            "decimals": ", ".join(f"{p}.0" for p in parts),
        }.items()
    elif r.kind in ("word", "choice"):
        word = t.removeprefix("\\text{").removesuffix("}")
        yield from {
            "bare": word,
            "mbox": f"\\mbox{{{word}}}",
            "rm": f"\\mathrm{{{word}}}",
            "bf": f"\\textbf{{{word}}}",
        }.items()
        yield from {
            "spaced": f"\\text{{ {word} }}",
            "stars": f"**{word}**",
            "quotes": f'"{word}"',
            "textrm": f"\\textrm{{{word}}}",
        }.items()
        if r.kind == "word":
            yield from {"lower": f"\\text{{{word.lower()}}}", "capital": f"\\text{{{word.capitalize()}}}"}.items()
        else:
            yield from {
                "letter": word.strip("()"),
                "text letter": f"\\text{{{word.strip('()')}}}",
                "paren": f"{word.strip('()')})",
            }.items()
    elif r.kind == "equation":
        right = t.removeprefix("y = ")
        a, b = right.split("x + ")
        yield from {
            "tight": t.replace(" ", ""),
            "right side": right,
            "moved": f"{a}x + {b} = y",
            "zero": f"y - {a}x - {b} = 0",
            "swapped": f"y = {b} + {a}x",
        }.items()
        yield from {
            "dot": f"y = {a} \\cdot x + {b}",
            "two": f"2y = {2 * int(a)}x + {2 * int(b)}",
            "f": f"f(x) = {right}",
        }.items()


def rewritings(r: Reference) -> Iterator[tuple[str, str]]:
    """Yield the name of each rule and a text with the value of the reference."""
    forms = WRAPPERS + (SCALARS if r.kind in SCALAR else [])
    n = whole(r.text) if r.kind == "number" else None
    for form in forms + (NUMBERS if n is not None else []):
        text = str(n) if form in NUMBERS and n is not None else r.text
        yield form, form.format(a=text)
    if n is not None and abs(n) >= 1000:
        head, tail = divmod(abs(n), 1000)
        for form in GROUPED:
            yield (
                form,
                form.format(
                    a=n,
                    b=f"{'-' if n < 0 else ''}{head:,}" if "{a" in form else f"{'-' if n < 0 else ''}{head}",
                    c=f"{tail:03}",
                ),
            )
    for name, text in _special(r):
        yield f"{r.kind}: {name}", text
    yield from grammar_fresh.rewritings(r.kind, r.text, r.value)


def corruptions(r: Reference, other: Reference) -> Iterator[tuple[str, str]]:
    """Yield the name of each rule and a text that has not the value of the reference."""
    n = whole(r.text) if r.kind == "number" else None
    for form in WRONG + (WRONG_SCALARS if r.kind in SCALAR else []) + (WRONG_NUMBERS if n is not None else []):
        if n in (0, 1) and form in ("{a}000", "{a} 000", "{a}{{,}}000", "{a}e3", "{a} \\times 10^2", "{a}x"):
            continue
        if (n == 0 and form in WRONG_NUMBERS) or (n == -1 and form == "2 \\cdot {a} + 1"):  # the same value
            continue
        text, second = (str(n), str(whole(other.text) or 77)) if form in WRONG_NUMBERS else (r.text, other.text)
        yield form, form.format(a=text, b=second)
    if r.kind == "number":
        digits = str(n) if n is not None else r.text
        for i, wrong in enumerate(
            {digits[:-1], digits[1:], digits[::-1], f"-{digits}", f"1{digits}", f"{digits}%{digits}"} - {digits}
        ):
            if wrong and not _equal(wrong, r.value):
                yield f"digits {i}", wrong
    if r.kind in ("point", "interval"):
        a, b = r.text[1:-1].split(", ")
        swapped = {"(": "[", "[": "("}[r.text[0]] + r.text[1:]
        yield from {
            "swapped": f"{r.text[0]}{b}, {a}{r.text[-1]}",
            "bracket": swapped,
            "one": a,
            "three": f"{r.text[0]}{a}, {b}, 1{r.text[-1]}",
        }.items()
    if r.kind == "solutions":
        parts = r.text.split(", ")
        yield from {
            "fewer": ", ".join(parts[:2]),
            "more": f"{r.text}, 31",
            "one": parts[0],
            "sum": "+".join(parts),
            "tuple more": f"({r.text}, 0)",
        }.items()
    yield from grammar_fresh.corruptions(r.kind, r.text, r.value)


def _equal(text: str, value) -> bool:
    try:
        return Fraction(text.replace(",", "")) == value
    except (ValueError, ZeroDivisionError):
        return False


def others(every: list[Reference]) -> list[Reference]:
    """Return, for each reference, another one of its set and kind with another value."""
    groups = collections.defaultdict(list)
    for r in every:
        groups[r.set, r.kind].append(r)
    out = []
    for r in every:
        different = [o for o in groups[r.set, r.kind] if o.text != r.text and (r.value is None or o.value != r.value)]
        out.append(different[hash_of(r.text) % len(different)] if different else r)
    return out


def hash_of(text: str) -> int:
    """Return a number that depends on the text only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def judge(carrier: str, written: str, reference: str) -> str:
    """Return the outcome of an answer in a carrier."""
    function = mathematics.boxed_answer if carrier == "boxed" else mathematics.numeric_answer
    if carrier == "marked":
        function = lambda c, t: mathematics.boxed_answer(c, t, formats=("marked",))  # noqa: E731
    return str(function(CARRIERS[carrier].format(written), reference)["outcome"])


def measure(every: list[Reference], carriers=tuple(CARRIERS)):
    """Yield (half, set, carrier, "right" or "wrong", rule, text, reference, outcome) of every answer of the grammar."""
    for r, other in zip(every, others(every), strict=True):
        for side, rules in (("right", rewritings(r)), ("wrong", corruptions(r, other) if other is not r else ())):
            for rule, text in rules:
                for carrier in carriers:
                    yield half(rule), r.set, carrier, side, rule, text, r.text, judge(carrier, text, r.text)


def universal(every: list[Reference]) -> list[tuple[str, list[str]]]:
    """Return the universal answers that pay for references of two values, and those references."""
    out = []
    for text in UNIVERSAL:
        paid = sorted({r.text for r in every for c in CARRIERS if judge(c, text, r.text) == "correct"})
        if len(paid) > 1:
            out.append((text, paid))
    return out


def main() -> None:
    """Print the fractions of right answers that are refused and of wrong ones that are paid, by set, carrier and half."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--half", default="")
    parser.add_argument("--failures", action="store_true")
    arguments = parser.parse_args()
    every = references(arguments.folder, arguments.count)
    total, failed, rules = collections.Counter(), collections.Counter(), collections.defaultdict(list)
    for half_, set_, carrier, side, rule, text, reference, outcome in measure(every):
        if arguments.half in ("", half_):
            key = half_, side, set_, carrier
            total[key] += 1
            if (outcome == "correct") != (side == "right"):
                failed[key] += 1
                rules[half_, side, carrier, rule].append((text, reference, outcome))
    for key in sorted(total):
        print(f"{' '.join(key):36} {failed[key]:6} of {total[key]:7}  {100 * failed[key] / total[key]:.3f} %")
    for side in ("right", "wrong"):
        for half_ in ("shown", "held", "fresh"):
            keys = [k for k in total if k[:2] == (half_, side)]
            if keys:
                print(half_, side, sum(failed[k] for k in keys), "of", sum(total[k] for k in keys))
    if arguments.failures:
        for key, cases in sorted(rules.items(), key=lambda item: -len(item[1])):
            print(len(cases), *key, *cases[:2])
    for text, paid in universal(every[:: max(len(every) // 200, 1)]):
        print("universal:", text[:60], paid[:6])


if __name__ == "__main__":
    main()
