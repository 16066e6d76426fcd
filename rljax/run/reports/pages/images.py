"""Pictures of prompts: in records, on pages and in terminals."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image
import rich.text

from rljax.data import tokenizers
from rljax.run.reports.pages import html

LARGEST = 256
"""The longest side of a picture in a record, pixels; larger ones are reduced."""

_SCALED = 128  # the least side on a page, pixels


def written(text: str) -> str:
    """Return a prompt with "[picture]" in place of the placeholders of one or more adjacent pictures."""
    return re.sub(f"{tokenizers.PICTURE}+", "[picture]", text)


def sources(images: np.ndarray) -> list[str]:
    """Return pictures ``[N, H, W, 3]`` uint8 as addresses that hold them, ``data:image/png``."""
    return [_source(PIL.Image.fromarray(np.asarray(image))) for image in images]


def _source(image: PIL.Image.Image) -> str:
    image.thumbnail((LARGEST, LARGEST))
    png = io.BytesIO()
    image.save(png, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"


def shown(records: Sequence[Mapping[str, Any]]) -> html.Html:
    """Return the pictures of a prompt, "" if it has none, with the places that its completions write over the first.

    Places asked are dashed; those of correct completions are green, others orange.
    """
    asked = records[0].get("targets", ()) if records else ()
    drawn = [_mark(mark, "under", "asked") for mark in asked]  # white dashes on black, or on what is written there
    for number, record in enumerate(records, 1):
        kind = "right" if record.get("outcome") == "correct" else "wrong"
        name = f"completion {number}: reward {record.get('reward', 0):g}"
        drawn += [_mark(mark, kind, name) for mark in record.get("marks", ())]
    drawn += [_mark(mark, "asked", "asked") for mark in asked]
    size = f"min-width: {2 * _SCALED if drawn else _SCALED}px"
    tags = [
        html.tag("img", src=source, alt=f"picture {number + 1} of the prompt", style=size)
        for number, source in enumerate(records[0].get("pictures", ()) if records else ())
        if re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]*", source)  # a record may be from elsewhere
    ]
    if tags and drawn:
        view = {"viewBox": "0 0 1 1", "preserveAspectRatio": "none", "class_": "marks"}
        tags[0] = html.tag("div", html.join([tags[0], html.tag("svg", html.join(drawn), **view)]), class_="marked")
        tags.append(html.tag("p", "Dashed: asked. Green: correct completions. Orange: others.", class_="quiet"))
    return html.tag("div", html.join(tags), class_="pictures") if tags else html.Html("")


def _mark(place: Sequence[float], kind: str, name: str) -> html.Html:
    """Return a point, a line without length whose ends are round, or a box."""
    left, top, *end = (f"{float(x):.4f}" for x in place)
    path = f"H{end[0]}V{end[1]}H{left}Z" if end else "h0"
    return html.tag("path", html.tag("title", name), d=f"M{left} {top}{path}", class_=kind if end else f"{kind} point")


def blocks(image: np.ndarray, columns: int = 48) -> rich.text.Text:
    """Return a picture ``[H, W, 3]`` uint8 as lines of characters, each the color of two pixels above each other."""
    picture = PIL.Image.fromarray(np.asarray(image))
    picture.thumbnail((columns, columns))
    pixels, text = np.asarray(picture), rich.text.Text()
    pixels = np.pad(pixels, ((0, len(pixels) % 2), (0, 0), (0, 0)), constant_values=255)
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for a, b in zip(upper, lower, strict=True):
            text.append("\u2580", f"{_color(a)} on {_color(b)}")
        text.append("\n")
    return text


def _color(pixel: Sequence[int]) -> str:
    return "rgb({},{},{})".format(*map(int, pixel))
