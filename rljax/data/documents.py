"""Files that others wrote: read within limits, JSON parsed strictly, errors in one line that names the file."""

import collections
import functools
import json
import os
import re
import stat
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


def parse(data: bytes, where: str, integer: Callable[[str], int] = _integer) -> Any:
    """Return the value of a JSON text.

    Args:
      data: the text in UTF-8, with or without a byte order mark.
      where: the file, for messages.
      integer: converts the text of an integer.

    Returns:
      The value.

    Raises:
      ValueError: the text is not UTF-8, or not JSON as RFC 8259 defines it (NaN is not), or it has a name twice in an
        object, a number that no float can hold, half of a surrogate pair, or hundreds of levels.
    """
    try:
        text = data.decode("utf-8-sig")
        value = _decoder(integer).decode(text)
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


@functools.cache
def _decoder(integer: Callable[[str], int]) -> json.JSONDecoder:
    hooks = {"object_pairs_hook": _unique, "parse_constant": _finite, "parse_float": _finite}
    return json.JSONDecoder(parse_int=integer, **hooks)


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """Return the object of a JSON text; ValueError if it is not JSON or not an object."""
    value = parse(data, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {kind(value)}, expected an object")
    return value


def read(path: storage.Path) -> dict[str, Any]:
    """Return the object in a file, local or gs://.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not a file, too large, not JSON, or not an object; the message names the file.
    """
    return parse_object(content(path), str(path))


def content(path: storage.Path, most: int = LARGEST) -> bytes:
    """Return the content of a file of at most ``most`` bytes. Raises as ``read``."""
    if (length := size(path)) > most:
        raise ValueError(f"{os.fspath(path)}: {length:,} bytes, expected at most {most:,}")
    try:
        return storage.read(path)
    except PermissionError as error:
        raise ValueError(f"{os.fspath(path)}: cannot be read: {error.strerror}") from error


def size(path: storage.Path) -> int:
    """Return the size of a file, bytes. Raises as ``read``: a local pipe would block, a device would never end."""
    if storage.remote(path):
        return storage.size(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{os.fspath(path)}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
        raise ValueError(f"{os.fspath(path)}: {kind}, expected a file")
    return status.st_size


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((name, _),) = collections.Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name[:100]!r} twice in an object")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text[:40]} is not a finite number")
    return number
