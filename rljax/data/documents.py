"""JSON that others wrote: parsed strictly, and refused in one line that names the file and what is wrong with it."""

import json
import re
from collections.abc import Callable
from typing import Any

from rljax.data import storage

LARGEST = 128 << 20  # bytes of a file of settings; the largest published tokenizer.json has about a third

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of an escaped character, possibly without the other half
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


def _integer(text: str) -> int:
    if len(text) > 1000:  # Python refuses 4,300
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def kind(value: Any) -> str:
    """Return the JSON type of a value, in words."""
    return _KINDS.get(type(value), "null")


def parse(content: bytes, where: str, integer: Callable[[str], int] = _integer) -> Any:
    """Return the value of a JSON text.

    Args:
      content: the text in UTF-8, with or without a byte order mark.
      where: the file, for messages.
      integer: converts the text of an integer.

    Returns:
      The value.

    Raises:
      ValueError: the text is not UTF-8, or not JSON as RFC 8259 defines it (NaN is not), or it has a name twice in an
        object, a number that no float can hold, half of a surrogate pair, or hundreds of levels.
    """
    try:
        text = content.decode("utf-8-sig")
        hooks = {"object_pairs_hook": _unique, "parse_constant": _finite, "parse_float": _finite}
        value = json.loads(text, parse_int=integer, **hooks)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise ValueError(f"{where}: not JSON that can be read: nested too deeply") from None
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        raise ValueError(f"{where}: not JSON: not a text in UTF-8 ({byte})") from None
    except UnicodeEncodeError:
        raise ValueError(f"{where}: not JSON: an escape is half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        raise ValueError(f"{where}: not JSON: {error.msg} ({line}column {error.colno})") from None
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Return the object of a JSON text; ValueError if it is not JSON or not an object."""
    value = parse(content, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {kind(value)}, expected an object")
    return value


def read(path: storage.Path) -> dict[str, Any]:
    """Return the object in a file, local or gs://.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not a file, too large, not JSON, or not an object; the message names the file.
    """
    return parse_object(storage.read_whole(path, LARGEST), str(path))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)[:100]!r} twice in an object")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text[:40]} is not a finite number")
    return number
