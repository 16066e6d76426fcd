"""A program for a box: a drawing becomes pixels. Its source is sent to the box; what it executes may change anything.

Standard input is JSON, {"kind": "svg" or "plot", "source", "side"}. On standard output it writes a line of JSON, the
elements of a plot, see ``similarity.Element``, and the pixels, side x side x 3 bytes.
"""

import importlib.util
import io
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

MARGIN = (127, 127, 127)  # beside pictures that are not square, as those of rows have
_LONGEST_SIDE = 1024  # pixels of a plot before it is resized
_MOST = 400  # elements


def svg(source: str, side: int) -> Any:
    """Return the picture of an SVG image on white, of which one side has ``side`` pixels."""
    import PIL.Image
    import resvg_py  # pyright: ignore[reportMissingImports]  an extra

    spec: Any = importlib.util.find_spec("matplotlib")  # has fonts, and is not imported for them
    font = str(pathlib.Path(spec.origin).parent / "mpl-data/fonts/ttf/DejaVuSans.ttf")
    options: Any = {
        "font_files": [font] if "<text" in source else None,
        "skip_system_fonts": True,
        "font_family": "DejaVu Sans",
        "background": "white",
    }
    png = resvg_py.svg_to_bytes(svg_string=source, width=side, height=side, **options)
    return PIL.Image.open(io.BytesIO(bytes(png)))


def plot(source: str) -> tuple[Any, list[Any]]:
    """Execute plotting code; return the picture of its last figure, and the elements of that."""
    import matplotlib.pyplot
    import numpy as np
    import PIL.Image

    matplotlib.pyplot.close = lambda *_: None  # also of a figure that the code saves and closes
    names = {"__name__": "__main__"}
    exec(compile(source, "plot.py", "exec"), names)
    figure = matplotlib.pyplot.figure(matplotlib.pyplot.get_fignums()[-1])
    figure.set_dpi(min(100.0, _LONGEST_SIDE / max(figure.get_size_inches())))
    canvas: Any = figure.canvas
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba()).copy()
    return PIL.Image.fromarray(pixels), list(_elements(figure, canvas.get_renderer()))[:_MOST]


def _elements(figure: Any, renderer: Any) -> Iterator[Any]:
    """Yield the kind, colour and box of what the axes of a figure show."""
    from matplotlib import colors

    for axes in figure.axes:
        shown = [*axes.lines, *axes.patches, *axes.collections, *axes.images, axes.title, axes.xaxis.label]
        legend = axes.get_legend()
        for artist in [*shown, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else ())]:
            written = getattr(artist, "get_text", lambda: None)()
            if written == "" or not artist.get_visible():
                continue
            kind = type(artist).__name__ if written is None else f"text {written}"
            colour = next((getattr(artist, n)() for n in ("get_facecolor", "get_color") if hasattr(artist, n)), "black")
            try:
                rgb = colors.to_rgb(colour)
            except ValueError:  # a list of colours
                rgb = colors.to_rgba_array(colour)[0][:3] if len(colour) else (0, 0, 0)
            box = artist.get_window_extent(renderer).transformed(figure.transFigure.inverted())
            yield kind, [255 * float(x) for x in rgb], [float(x) for x in (box.x0, 1 - box.y1, box.x1, 1 - box.y0)]


def main() -> None:
    """Draw what standard input has; does not return."""
    import PIL.ImageOps

    job, channel = json.loads(sys.stdin.read()), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the drawing prints
    sys.stdin, sys.stdout = io.StringIO(), open(os.devnull, "w")
    image, elements = (svg(job["source"], job["side"]), []) if job["kind"] == "svg" else plot(job["source"])
    square = PIL.ImageOps.pad(image.convert("RGB"), (job["side"], job["side"]), color=MARGIN)
    with open(channel, "wb") as out:
        out.write(json.dumps(elements).encode() + b"\n" + square.tobytes())
    os._exit(0)


if __name__ == "__main__":
    main()
