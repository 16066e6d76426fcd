"""Text for the user: what error messages show is shortened, printable, and on one line; sizes have binary units."""

import difflib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

_LONGEST_VALUE = 200  # characters of a value in a message
_LONGEST_MESSAGE = 4000
_LONGEST_NAME = 100  # characters of a name that are compared


def need(name: str, package: str, extra: str, module: str = "") -> None:
    """Check that the package is installed that something needs.

    Args:
      name: of what needs it, such as a task.
      package: its name for pip.
      extra: of rljax, which installs it.
      module: what is imported, if it is not named as the package.

    Raises:
      ValueError: it is not installed.
    """
    if importlib.util.find_spec(module or package) is None:
        raise ValueError(f"{name} needs {package}: pip install {package}, or in the checkout pip install '.[{extra}]'")


def shown(value: Any) -> str:
    """Return ``repr(value)``, of a piece or a schedule its call, for a message, shortened to 200 characters."""
    try:
        text = getattr(value, "spec", None) or repr(value)
        text = text if isinstance(text, str) else repr(value)
    except Exception:  # an integer of more digits than Python prints, deep nesting, or an object of a user
        text = f"<a value of type {type(value).__name__} that cannot be printed>"
    return _shortened(text, _LONGEST_VALUE)


def printable(message: Any) -> str:
    """Return a message on one line, shortened to 4,000 characters, with escapes for what could control a terminal."""
    return escaped(" ".join(_shortened(str(message), _LONGEST_MESSAGE).split()))


def escaped(text: str) -> str:
    """Return a text with escapes for what could control a terminal, except line breaks."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def closest(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the valid name that resembles a name most, by ``difflib``; None if none has the similarity ``cutoff``."""
    return next(iter(difflib.get_close_matches(name[:_LONGEST_NAME], list(valid), n=1, cutoff=cutoff)), None)


def hint(name: str, valid: Iterable[str]) -> str:
    """Return a sentence with the valid name that resembles a name most; "" if none is close."""
    return "" if (close := closest(name, valid)) is None else f" Did you mean {close!r}?"


def size(count: int) -> str:
    """Return a number of bytes with a binary unit."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= limit:
            return f"{count / limit:.2f} {unit}"
    return f"{count} B"


def argument(argv: Sequence[str], meaning: str) -> str:
    """Return the argument of a command that takes one.

    Args:
      argv: the command and its arguments, without flags.
      meaning: what the argument is, such as "the work directory of a run".

    Raises:
      ValueError: there is none, or there are several.
    """
    if len(argv) != 2:
        given = f"got {len(argv) - 1}: {' '.join(argv[1:])}" if argv[1:] else "got none"
        raise ValueError(f"{argv[0]}: expected one argument, {meaning}; {given}. See {argv[0]} --help")
    return argv[1]


def _shortened(text: str, limit: int) -> str:
    """Return a text without its middle if it has more than ``limit`` characters."""
    if len(text) <= limit:
        return text
    start, end = limit * 2 // 3, limit // 3
    return f"{text[:start]} ... ({len(text) - start - end:,} characters) ... {text[-end:]}"
