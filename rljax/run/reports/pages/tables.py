"""One model of a table, and what it is written as: text, HTML for a page, Markdown for a file.

tables.Table(["arm", "runs", "pass@1"], [["grpo()", 3, 0.51]], title="Means").show()
"""

import dataclasses
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import rich.console
import rich.table

from rljax.run.reports.pages import html, terminal

_WIDEST = 10_000  # columns of a console in which any table fits


@dataclasses.dataclass(frozen=True)
class Table:
    """Headings and rows of cells: text, numbers, or None for an empty cell; the last cells of a row may be absent.

    Attributes:
      columns: the headings.
      rows: the cells of each row, of which the first is a heading.
      title: the text above the table.
      left: number of first columns that are aligned left; the others are numbers, aligned right.
    """

    columns: Sequence[Any]
    rows: Iterable[Sequence[Any]]
    title: Any = ""
    left: int = 1

    def text(self) -> rich.table.Table:
        """Return the table for a terminal, without its title; numbers have four digits."""
        out = rich.table.Table(box=None, padding=(0, 2, 0, 0), header_style="underline")
        for i, column in enumerate(self.columns):
            justify = "left" if i < self.left else "right"
            out.add_column(terminal.text(column), justify=justify, overflow="fold", min_width=7)
        for row in self.rows:
            out.add_row(*(terminal.text(_plain(cell)) for cell in row))
        return out

    def fits(self, console: rich.console.Console) -> bool:
        """Return whether a console is as wide as the table."""
        options = console.options.update(width=_WIDEST)
        return console.measure(self.text(), options=options).maximum <= console.width

    def show(self, console: rich.console.Console | None = None) -> None:
        """Print the title and the table, on standard output by default."""
        console = console or terminal.console()
        if self.title:
            console.print(terminal.text(self.title, "bold"))
        console.print(self.text())
        console.print()

    def html(self) -> html.Html:
        """Return the table for a page, where it scrolls sideways if it is too wide; numbers have three digits."""

        def row(cells: Sequence[Any], heading: bool) -> html.Html:
            scopes = ["col"] * len(cells) if heading else ["row", *[""] * (len(cells) - 1)]
            parts = [
                html.tag("th" if scope else "td", _short(cell), scope=scope, class_="" if i < self.left else "number")
                for i, (cell, scope) in enumerate(zip(cells, scopes, strict=True))
            ]
            return html.tag("tr", html.Html("".join(parts)))

        above = html.tag("p", self.title, class_="quiet") if self.title else ""  # a caption would scroll with the table
        body = html.tag("tbody", html.join(row(cells, False) for cells in self.rows))
        inner = html.join([html.tag("thead", row(self.columns, True)), body])
        return html.join([above, html.tag("div", html.tag("table", inner), class_="scroll")])

    def lines(self) -> list[str]:
        """Return the lines of plain text, without the title."""
        rows = [[_plain(cell) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(self.columns))]
        sides = ["<" if i < self.left else ">" for i in range(len(widths))]
        formed = (zip(row, sides, widths, strict=False) for row in rows)
        return ["  ".join(f"{cell:{side}{width}}" for cell, side, width in row).rstrip() for row in formed]

    def markdown(self) -> list[str]:
        """Return the lines of the table in a Markdown file, without its title."""
        marks = ["---" if i < self.left else "---:" for i in range(len(self.columns))]
        rows = [[*row, *[None] * (len(marks) - len(row))] for row in (self.columns, marks, *self.rows)]
        return ["|" + "".join(" |" if cell in ("", None) else f" {cell} |" for cell in row) for row in rows]


def _plain(cell: Any) -> Any:
    """Return a cell as text for a terminal; styled text is returned unchanged."""
    if isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Integral):
        return f"{float(cell):.4g}"
    return "" if cell is None else str(cell) if isinstance(cell, numbers.Integral) else cell


def _short(cell: Any) -> Any:
    """Return a cell for a page; HTML is returned unchanged."""
    if isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Integral):
        value = float(cell)
        return f"{value:,.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.3g}"
    return "" if cell is None else cell
