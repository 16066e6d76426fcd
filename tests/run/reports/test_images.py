"""Pictures of prompts on the page and in the terminal; ``test_pictures`` has those in records."""

import base64
import io

import numpy as np
import PIL.Image

from rljax.run.reports.pages import images


def decoded(source):
    head, content = source.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(content))))


def test_large_pictures_are_reduced_and_proportions_stay():
    wide = np.random.default_rng(0).integers(0, 256, (1, 300, 600, 3)).astype(np.uint8)
    assert decoded(images.sources(wide)[0]).shape == (128, images.LARGEST, 3)


def test_a_page_shows_addresses_of_pictures_only():
    shown = images.shown({"pictures": images.sources(np.zeros((2, 4, 4, 3), np.uint8))})
    assert shown.count("<img") == 2 and shown.count("data:image/png;base64,") == 2
    for address in ("javascript:alert(1)", "https://example.org/a.png", 'data:image/png;base64,A" onload="x'):
        assert images.shown({"pictures": [address]}) == "" and images.shown({}) == ""


def test_a_terminal_shows_two_rows_of_pixels_in_a_line():
    picture = np.array([[[255, 0, 0]], [[0, 0, 255]], [[0, 255, 0]]], np.uint8)
    text = images.blocks(picture)
    assert text.plain == "\u2580\n\u2580\n"
    assert [str(span.style) for span in text.spans] == [
        "rgb(255,0,0) on rgb(0,0,255)",
        "rgb(0,255,0) on rgb(255,255,255)",
    ]
