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


def shown(record: Mapping[str, Any]) -> html.Html:
    """Return the pictures of a record's prompt, "" if it has none."""
    tags = [
        html.tag("img", src=source, alt=f"picture {number + 1} of the prompt", style=f"min-width: {_SCALED}px")
        for number, source in enumerate(record.get("pictures", ()))
        if re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]*", source)  # a record may be from elsewhere
    ]
    return html.tag("div", html.join(tags), class_="pictures") if tags else html.Html("")


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
