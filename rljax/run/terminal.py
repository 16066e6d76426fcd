"""Tables of text in a terminal; where the output is none, plain lines that are not broken."""

from collections.abc import Iterable, Sequence

import rich.console
import rich.table
import rich.text

from rljax.language import messages

Cell = str | rich.text.Text
_WIDTH = 250  # columns of output that is not a terminal


def console() -> rich.console.Console:
    """Return the console of standard output."""
    made = rich.console.Console(highlight=False, markup=False)
    if not (made.is_terminal or made.is_jupyter):
        made.width = _WIDTH
    return made


def text(value: Cell, style: str = "") -> rich.text.Text:
    """Return text without markup; a string is escaped, so that it cannot control the terminal."""
    return value if isinstance(value, rich.text.Text) else rich.text.Text(messages.escaped(value), style)


def table(columns: Sequence[Cell], rows: Iterable[Sequence[Cell]], *, left: int = 1) -> rich.table.Table:
    """Return a table.

    Args:
      columns: the headings.
      rows: the cells of each row; the last ones may be absent.
      left: number of columns that are aligned left; the others are numbers, aligned right.

    Returns:
      The table.
    """
    out = rich.table.Table(box=None, padding=(0, 2, 0, 0), header_style="underline")
    for i, column in enumerate(columns):
        out.add_column(text(column), justify="left" if i < left else "right", overflow="fold", min_width=7)
    for row in rows:
        out.add_row(*map(text, row))
    return out


def show(
    to: rich.console.Console, columns: Sequence[Cell], rows: Iterable[Sequence[Cell]], *, title: str = "", left: int = 1
) -> None:
    """Print a title and a table, as ``table`` makes it."""
    if title:
        to.print(text(title, "bold"))
    to.print(table(columns, rows, left=left))
    to.print()
