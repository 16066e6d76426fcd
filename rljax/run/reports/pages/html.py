"""The skeleton of a self-contained page: one file that needs no network, in light and dark, readable wide and narrow.

    html.page("Title", [("Curves", figures.gallery([fig])), ("Runs", tables.Table(columns, rows).html())])

Text is escaped, unless it is ``Html``.
"""

import html
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


def folded(summary: Any, content: Any) -> Html:
    """Return content that is shown by a click on its summary."""
    return tag("details", join([tag("summary", summary), content]))
