"""Text in a terminal; where the output is none, plain lines that are not broken."""

import rich.console
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
