"""The skeleton of a self-contained page: one file that needs no network, in light and dark, readable wide and narrow.

    html.page("Title", [("Curves", html.gallery(html.picture(fig, "reward"))), ("Runs", html.table(columns, rows))])

Text is escaped, unless it is ``Html``. Figures become SVG that takes the colors of the page, or PNG where an SVG would
be large.
"""

import base64
import html
import io
import numbers
import pathlib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib import figure

# Colors of figures that follow those of the page; text without a color does so by the style sheet.
_COLORS = {"#000000": "currentColor", "#ffffff": "var(--back)", "#dddddd": "var(--line)", "#595959": "var(--quiet)"}


class Html(str):
    """Text that is HTML already and is not escaped."""


def escape(value: Any) -> Html:
    """Return a value as HTML text; ``Html`` is returned unchanged."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, content: Any = "", **attributes: str) -> Html:
    """Return an element with escaped content; the attribute ``class_`` is written ``class``."""
    written = "".join(f' {key.rstrip("_")}="{html.escape(value)}"' for key, value in attributes.items() if value)
    return Html(f"<{name}{written}>{escape(content)}</{name}>")


def join(parts: Iterable[Any]) -> Html:
    """Return the escaped parts, one per line."""
    return Html("\n".join(escape(part) for part in parts))


def page(title: str, sections: Sequence[tuple[str, Any]], *, lead: Any = "", head: Html = Html("")) -> str:  # noqa: B008
    """Return a page with a contents list.

    Args:
      title: its title and heading.
      sections: (heading, content) of each section.
      lead: text below the title.
      head: elements added to the head, such as a script.

    Returns:
      The HTML document.
    """
    links = [tag("li", tag("a", heading, href=f"#{_anchor(heading)}")) for heading, _ in sections]
    parts = [tag("section", join([tag("h2", heading), content]), id=_anchor(heading)) for heading, content in sections]
    style = pathlib.Path(__file__).with_name("style.css").read_text()
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{style}</style>
{head}
</head>
<body>
<header><h1>{escape(title)}</h1>{escape(lead)}</header>
<nav aria-label="Contents"><ul>{join(links)}</ul></nav>
<main>
{join(parts)}
</main>
</body>
</html>
"""


def _anchor(heading: str) -> str:
    return re.sub(r"\W+", "-", heading.lower()).strip("-")


def table(
    columns: Sequence[Any], rows: Iterable[Sequence[Any]], *, caption: Any = "", text: Iterable[int] = ()
) -> Html:
    """Return a table, which scrolls sideways where it is too wide.

    Args:
      columns: the headings.
      rows: the cells of each row, of which the first is a heading; numbers are written with five digits, None as an
        empty cell.
      caption: text above the table.
      text: columns that are aligned left, as the first one; others are numbers, aligned right.

    Returns:
      The table.
    """
    left = {0, *text}

    def row(name: str, cells: Sequence[Any]) -> Html:
        parts = []
        for i, cell in enumerate(cells):
            scope = "col" if name == "th" else "row" if i == 0 else ""
            kind = "" if i in left else "number"
            parts.append(tag("th" if scope else "td", _written(cell), scope=scope, class_=kind))
        return tag("tr", Html("".join(parts)))

    body = join(row("td", cells) for cells in rows)
    above = tag("caption", caption) if caption else ""
    inner = join([above, tag("thead", row("th", columns)), tag("tbody", body)])
    return tag("div", tag("table", inner), class_="scroll")


def _written(cell: Any) -> Any:
    real = isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Integral)
    return "" if cell is None else f"{cell:.5g}" if real else cell


def fields(values: Mapping[str, Any], caption: Any = "") -> Html:
    """Return a table of names and values."""
    return table(("field", "value"), values.items(), caption=caption, text=(1,))


def folded(summary: Any, content: Any) -> Html:
    """Return content that is shown by a click on its summary."""
    return tag("details", join([tag("summary", summary), content]))


def gallery(*pictures: Html) -> Html:
    """Return pictures side by side, as many as fit; give each figure one panel."""
    return tag("div", join(pictures), class_="gallery")


def picture(fig: figure.Figure, text: str, *, caption: Any = "", limit: int = 150_000) -> Html:
    """Return a figure of a page.

    Args:
      fig: the figure.
      text: what it shows, for readers who cannot see it.
      caption: text below it.
      limit: largest size of an SVG, bytes; a larger one is replaced by a PNG.

    Returns:
      The figure as inline SVG, or as PNG.
    """
    below = tag("figcaption", caption) if caption else ""
    content = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rljax"}):
        fig.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    inline = _inline(content.getvalue(), text)
    if len(inline) <= limit:
        return tag("figure", join([inline, below]))
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=130)
    source = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
    return tag("figure", join([Html(f'<img src="{source}" alt="{html.escape(text)}">'), below]))


def _inline(svg: str, text: str) -> Html:
    """Return matplotlib's SVG for a page: short, with the page's colors, and ids that no other picture has."""
    size = re.search(r'viewBox="[^"]*"', svg)
    body = re.sub(r"<!--.*?-->|<style.*?</style>", "", svg[svg.index("<defs>") :], flags=re.DOTALL)
    body = re.sub(
        r' (d|x|y)="[^"]*"', lambda match: re.sub(r"(\d+\.\d)\d+", r"\1", match[0]), body
    )  # a tenth of a point
    body = re.sub("#[0-9a-f]{6}", lambda match: _COLORS.get(match[0], match[0]), body)
    body = re.sub(r' transform="rotate\(-0 [^"]*"|font-family: [^;"]*(; )?', "", body)
    used = set(re.findall(r"#([\w.-]+)[\")]", body))
    prefix = f"p{zlib.crc32(body.encode()):08x}-"
    body = re.sub(r' id="([^"]+)"', lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", body)
    body = re.sub(r"(url\(|href=\")#", rf"\1#{prefix}", body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    start = f'<svg role="img" {size[0] if size else ""} aria-label="{html.escape(text)}">'
    return Html(start + body)
