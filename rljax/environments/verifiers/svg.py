"""SVG images that models write: what is refused, and the elements with their colours and boxes. Standard library only.

Read are shapes, paths, texts, groups and gradients, without references to anything outside the image. The renderer runs
in a sandbox; what is refused here is refused with a reason, and before it costs time.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.parsers import expat

from rljax.environments.verifiers.similarity import Element
from rljax.language import messages

SHAPES = ("rect", "circle", "ellipse", "line", "polyline", "polygon", "path", "text")
_OTHERS = "svg g defs title desc tspan clipPath linearGradient radialGradient stop".split()
_LONGEST, _MOST, _DEEPEST, _LARGEST = 1 << 16, 1000, 32, 1e5  # characters, elements, levels, size and view box
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_GAP, _EXACT = r"[\s,]*", f"((?>{_NUMBER}))"  # a number is read whole: no other split is tried
_ARC = re.compile(_GAP + _GAP.join([*[_EXACT] * 3, "([01])", "([01])", _EXACT, _EXACT]))
_STEPS = {"M": 2, "L": 2, "T": 2, "H": 1, "V": 1, "C": 6, "S": 4, "Q": 4, "A": 7, "Z": 0}
_INHERITED = ("fill", "stroke", "font-size")

Matrix = tuple[float, float, float, float, float, float]
Points = list[tuple[float, float]]


class Refused(ValueError):
    """An image that cannot be read or is not allowed; the message says why."""


def extract(text: str) -> str:
    """Return the image of a completion: the last one between <svg and </svg>, else all of it."""
    end = text.rfind("</svg>")
    start = text.rfind("<svg", 0, max(end, 0))
    return text[start : end + 6] if start >= 0 else text


def read(source: str) -> list[Element]:
    """Return the shapes of an image in their order; ``Refused`` if it is not SVG, or has what is not allowed."""
    if len(source) > _LONGEST:
        raise Refused(f"has {len(source):,} characters; must have at most {_LONGEST:,}")
    reader = _Reader()
    try:
        reader.parser.Parse(source.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise Refused(f"is not XML: {error}") from None
    except OverflowError:
        raise Refused("has a number out of range") from None
    return reader.elements


class _Reader:
    def __init__(self):
        self.elements: list[Element] = []
        self._stack: list[tuple[str, Mapping[str, str], Matrix]] = []
        self._count = 0
        self._writing: tuple[int, list[str]] | None = None  # a text: its depth, and what it says
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.StartElementHandler, self.parser.EndElementHandler = self._start, self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = lambda *_: self._refuse("a document type, where entities are defined")
        self.parser.ProcessingInstructionHandler = lambda *_: self._refuse("a processing instruction")

    def _refuse(self, what: str) -> None:
        raise Refused(f"has {what}; this is not allowed")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        space, _, name = tag.rpartition(" ")
        self._count += 1
        if space != "http://www.w3.org/2000/svg" or name not in (*SHAPES, *_OTHERS):
            shown = messages.shown(name)
            raise Refused(f"has the element {shown}; allowed: {', '.join((*SHAPES, *_OTHERS))}, in the SVG namespace")
        if (name == "svg") != (not self._stack):
            raise Refused("has an <svg> inside another element, or another root")
        if self._count > _MOST or len(self._stack) >= _DEEPEST:
            raise Refused(f"has more than {_MOST} elements or {_DEEPEST} levels")
        for key, value in attributes.items():
            far = re.sub(r"url\(\s*['\"]?#", "", value, flags=re.IGNORECASE)
            if "url(" in far.lower() or (key.rpartition(" ")[2] == "href" and not value.strip().startswith("#")):
                raise Refused(f"refers to something outside the image: {messages.shown(value)}")
        styled = (item.partition(":") for item in attributes.get("style", "").split(";"))
        declared = attributes | {k.strip(): v.strip() for k, _, v in styled}
        outer = self._stack[-1] if self._stack else ("", {}, (1.0, 0.0, 0.0, 1.0, 0.0, 0.0))
        style = {**outer[1], **{k: v for k, v in declared.items() if k in _INHERITED}}
        matrix = (
            _canvas(attributes) if name == "svg" else _joined(outer[2], _transform(attributes.get("transform", "")))
        )
        self._stack.append((name, style, matrix))
        hidden = any(each[0] in ("defs", "clipPath") for each in self._stack)
        if name in SHAPES and not hidden:
            points = _points(name, attributes, style)
            places = [(a * x + c * y + e, b * x + d * y + f) for a, b, c, d, e, f in [matrix] for x, y in points]
            xs, ys = zip(*places, strict=True) if places else ((0.0,), (0.0,))
            box = (min(xs), min(ys), max(xs), max(ys))
            if not all(map(math.isfinite, box)):
                raise OverflowError
            self.elements.append(Element(name, _colour(style), box))
        if name == "text" and not hidden:
            self._writing = len(self._stack), []

    def _characters(self, text: str) -> None:
        if self._writing:
            self._writing[1].append(text)

    def _end(self, tag: str) -> None:
        if self._writing and self._writing[0] == len(self._stack):
            text, self._writing = " ".join("".join(self._writing[1]).split()), None
            left, top, right, bottom = self.elements[-1].box
            width = 0.6 * len(text) * (bottom - top)
            self.elements[-1] = self.elements[-1]._replace(kind=f"text {text}", box=(left, top, right + width, bottom))
        self._stack.pop()


def _numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(_NUMBER, text)]


def _canvas(attributes: Mapping[str, str]) -> Matrix:
    """Return the matrix from the view box to the unit square, in the middle of which it is."""
    size = [next(iter(_numbers(attributes.get(name, ""))), 0.0) for name in ("width", "height")]
    box = _numbers(attributes.get("viewBox", "")) or [0.0, 0.0, *size]
    if len(box) != 4 or not all(0 < x <= _LARGEST for x in box[2:]) or max(map(abs, [*box, *size])) > _LARGEST:
        raise Refused(f"has no viewBox, or width and height, from above 0 up to {_LARGEST:,.0f}")
    scale = 1 / max(box[2:])
    left, top = ((1 - scale * x) / 2 - scale * low for x, low in zip(box[2:], box, strict=False))
    return scale, 0.0, 0.0, scale, left, top


def _joined(one: Matrix, two: Matrix) -> Matrix:
    """Return the matrix that applies ``two``, then ``one``."""
    a, b, c, d, e, f = one
    g, h, i, j, k, m = two
    return a * g + c * h, b * g + d * h, a * i + c * j, b * i + d * j, a * k + c * m + e, b * k + d * m + f


def _transform(text: str) -> Matrix:
    matrix: Matrix = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    for name, inside in re.findall(r"(\w+)\s*\(([^)]*)\)", text):
        x = [*_numbers(inside), *6 * [0.0]]
        count = len(x) - 6
        turn, cos, sin = math.radians(x[0]), math.cos(math.radians(x[0])), math.sin(math.radians(x[0]))
        around = (x[1] - cos * x[1] + sin * x[2], x[2] - sin * x[1] - cos * x[2])
        known: dict[str, Matrix] = {
            "translate": (1.0, 0.0, 0.0, 1.0, x[0], x[1]),
            "scale": (x[0], 0.0, 0.0, x[1] if count > 1 else x[0], 0.0, 0.0),
            "rotate": (cos, sin, -sin, cos, *around),
            "skewX": (1.0, 0.0, math.tan(turn), 1.0, 0.0, 0.0),
            "skewY": (1.0, math.tan(turn), 0.0, 1.0, 0.0, 0.0),
            "matrix": (x[0], x[1], x[2], x[3], x[4], x[5]),
        }
        matrix = _joined(matrix, known.get(name, (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)))
    return matrix


def _points(name: str, attributes: Mapping[str, str], style: Mapping[str, str]) -> Points:
    """Return points whose box is that of a shape, for curves about that."""

    def number(key: str) -> float:
        return next(iter(_numbers(attributes.get(key, ""))), 0.0)

    if name in ("polyline", "polygon"):
        x = _numbers(attributes.get("points", ""))
        return [*zip(x[::2], x[1::2], strict=False)]
    if name == "path":
        return _path(attributes.get("d", ""))
    if name == "line":
        return [(number("x1"), number("y1")), (number("x2"), number("y2"))]
    if name == "text":
        size = next(iter(_numbers(style.get("font-size", ""))), 16.0)
        return [(number("x"), number("y") - size), (number("x"), number("y"))]
    if name == "rect":
        xs, ys = ((number(at), number(at) + number(size)) for at, size in (("x", "width"), ("y", "height")))
        return [*itertools.product(xs, ys)]
    x, y = number("cx"), number("cy")
    rx, ry = (number("r"), number("r")) if name == "circle" else (number("rx"), number("ry"))
    return [(x + i * rx, y + j * ry) for i, j in ((-1, -1), (-1, 1), (1, -1), (1, 1))]


def _path(data: str) -> Points:
    """Return the ends and control points of the segments of a path."""
    points: Points = []
    x = y = 0.0
    start = (0.0, 0.0)
    for letter, text in re.findall(rf"([a-zA-Z])((?:[\s,]*{_NUMBER})*)", data):
        kind, count = letter.upper(), _STEPS.get(letter.upper())
        values: Sequence[float] = _numbers(text)
        if kind == "A":  # its two flags need no space behind them
            values, at = [], 0
            while arc := _ARC.match(text, at):
                values, at = [*values, *map(float, arc.groups())], arc.end()
        if count is None:
            break  # a renderer draws up to here
        if not count:
            x, y = start
        for i in range(0, len(values) - count + 1, count) if count else ():
            dx, dy = (x, y) if letter.islower() else (0.0, 0.0)
            part = values[i : i + count]
            if kind in "HV":
                x, y = (part[0] + dx, y) if kind == "H" else (x, part[0] + dy)
            else:
                part = part[5:] if kind == "A" else part
                points += [(a + dx, b + dy) for a, b in zip(part[:-2:2], part[1:-2:2], strict=True)]
                x, y = part[-2] + dx, part[-1] + dy
            points.append((x, y))
            start = (x, y) if kind == "M" and i == 0 else start
    return points


def _colour(style: Mapping[str, str]) -> Any:
    """Return the colour of the inside, or of the stroke of what has none; black if it cannot be told."""
    from PIL import ImageColor

    colour = style.get("fill", "black")
    colour = style.get("stroke", "black") if colour == "none" else colour
    try:
        return ImageColor.getrgb(colour)[:3]
    except ValueError:
        return (0, 0, 0)
