"""The skeleton of a self-contained page: one file that needs no network, in light and dark, readable wide and narrow.

    html.page("Title", [("Curves", pictures.gallery([fig])), ("Runs", html.table(columns, rows))])

Text is escaped, unless it is ``Html``.
"""

import html
import numbers
import pathlib
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any


class Html(str):
    """Text that is HTML already and is not escaped."""


def escape(value: Any) -> Html:
    """Return a value as HTML text; ``Html`` is returned unchanged."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, content: Any = "", **attributes: str) -> Html:
    """Return an element with escaped content; ``class_`` is written ``class``, and ``aria_label`` ``aria-label``."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items() if value
    )
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
    anchors = [re.sub(r"\W+", "-", heading.lower()).strip("-") for heading, _ in sections]
    both = list(zip(anchors, sections, strict=True))
    text = string.Template(pathlib.Path(__file__).with_name("page.html").read_text()).substitute(
        title=escape(title),
        lead=escape(lead),
        head=head,
        links=join(tag("li", tag("a", heading, href=f"#{anchor}")) for anchor, (heading, _) in both),
        sections=join(
            tag("section", join([tag("h2", heading), content]), id=anchor) for anchor, (heading, content) in both
        ),
    )
    return text.encode(errors="replace").decode()  # a lone surrogate, as in text of bytes, has no UTF-8


def table(
    columns: Sequence[Any], rows: Iterable[Sequence[Any]], *, caption: Any = "", text: Iterable[int] = ()
) -> Html:
    """Return a table, which scrolls sideways where it is too wide.

    Args:
      columns: the headings.
      rows: the cells of each row, of which the first is a heading; numbers are written with three digits, None as an
        empty cell.
      caption: text above the table.
      text: columns that are aligned left, as the first one; others are numbers, aligned right.

    Returns:
      The table.
    """
    left = {0, *text}

    def row(cells: Sequence[Any], heading: bool) -> Html:
        parts = []
        for i, cell in enumerate(cells):
            scope = "col" if heading else "row" if i == 0 else ""
            parts.append(
                tag("th" if scope else "td", _written(cell), scope=scope, class_="" if i in left else "number")
            )
        return tag("tr", Html("".join(parts)))

    above = tag("p", caption, class_="quiet") if caption else ""  # a caption would scroll with a wide table
    body = tag("tbody", join(row(cells, False) for cells in rows))
    inner = join([tag("thead", row(columns, True)), body])
    return join([above, tag("div", tag("table", inner), class_="scroll")])


def _written(cell: Any) -> Any:
    if isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Integral):
        value = float(cell)
        return f"{value:,.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.3g}"
    return "" if cell is None else cell


def folded(summary: Any, content: Any) -> Html:
    """Return content that is shown by a click on its summary."""
    return tag("details", join([tag("summary", summary), content]))
