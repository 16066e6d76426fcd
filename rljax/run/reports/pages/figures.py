"""Figures of a page: inline SVG in the colors of the page, or PNG where an SVG would be large."""

import base64
import io
import re
import zlib
from collections.abc import Iterable

import matplotlib
from matplotlib import figure

from rljax.run.reports.pages import html

# Colors of figures that follow the colors of the page; text without a color does so by the style sheet.
_COLORS = {"#000000": "currentColor", "#ffffff": "var(--back)", "#dddddd": "var(--line)", "#595959": "var(--quiet)"}


def gallery(figures: Iterable[figure.Figure]) -> html.Html:
    """Return figures side by side, as many as fit; give each one panel, so that it is readable on a phone too."""
    return html.tag("div", html.join(inline(fig) for fig in figures), class_="gallery")


def swatch(color: str, linestyle: str = "-") -> html.Html:
    """Return a short line in the color and dashes of a curve, for a legend."""
    dashes = {"--": "5 3", ":": "2 2"}.get(linestyle, "none")
    line = f'<line x2="22" y1="5" y2="5" stroke="{_COLORS.get(color, color)}" stroke-dasharray="{dashes}"'
    start = '<svg class="swatch" viewBox="0 0 22 10" width="22" height="10" aria-hidden="true">'
    return html.Html(f'{start}{line} stroke-width="3"/></svg>')


def inline(fig: figure.Figure, text: str = "", *, limit: int = 150_000) -> html.Html:
    """Return a figure of a page.

    Args:
      fig: the figure.
      text: what it shows, for readers who cannot see it; by default the titles of its panels.
      limit: largest size of an SVG, bytes; a larger one is replaced by a PNG.

    Returns:
      The figure as inline SVG, or as PNG.
    """
    text = text or ", ".join(ax.get_title("left") or ax.get_title() for ax in fig.axes)
    content = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rljax"}):
        fig.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    inline = _inline(content.getvalue(), text)
    if len(inline) <= limit:
        return html.tag("figure", inline)
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=130)
    source = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
    return html.tag("figure", html.Html(f'<img src="{source}" alt="{html.escape(text)}">'))


def _inline(svg: str, text: str) -> html.Html:
    """Return matplotlib's SVG for a page: short, with the page's colors, and ids that no other figure has."""
    size = re.search(r'viewBox="[^"]*"', svg)
    body = re.sub(r"<!--.*?-->|<style.*?</style>", "", svg[svg.index("<defs>") :], flags=re.DOTALL)
    # a tenth of a point is less than a pixel
    body = re.sub(r' (d|x|y)="[^"]*"', lambda match: re.sub(r"(\d+\.\d)\d+", r"\1", match[0]), body)
    body = re.sub("#[0-9a-f]{6}", lambda match: _COLORS.get(match[0], match[0]), body)
    body = re.sub(r' transform="rotate\(-0 [^"]*"|font-family: [^;"]*(; )?', "", body)
    used = set(re.findall(r"#([\w.-]+)[\")]", body))
    prefix = f"p{zlib.crc32(body.encode()):08x}-"
    body = re.sub(r' id="([^"]+)"', lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", body)
    body = re.sub(r"(url\(|href=\")#", rf"\1#{prefix}", body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    start = f'<svg role="img" {size[0] if size else ""} aria-label="{html.escape(text)}">'
    return html.Html(start + body)
