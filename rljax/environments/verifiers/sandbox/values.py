"""Values on their way between two boxes: plain data as JSON; everything else stays where it is, behind a number.

What a program returns is rebuilt here as a value of a builtin type, so none of the program's methods, such as an
``__eq__`` that is always true, reaches the tests.
"""

import builtins
from collections.abc import Callable
from typing import Any

_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any, keep: Callable[[Any], Any]) -> Any:
    """Return a value in types of JSON.

    Args:
      value: any value; an instance of a subclass of a builtin type is encoded as the builtin type.
      keep: given an object that is not plain data, returns a number for it.

    Returns:
      None, a bool, a number or a text as it is, anything else as [type, content].
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for name, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            return [name, [encode(each, keep) for each in value]]
    if isinstance(value, dict):
        return ["dict", [[encode(k, keep), encode(v, keep)] for k, v in value.items()]]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    return ["object", keep(value)]


def decode(data: Any, kept: Callable[[Any], Any]) -> Any:
    """Return the value that ``encode`` wrote.

    Args:
      data: what ``encode`` returned, or anything that a program wrote in its place.
      kept: given a number of ``keep``, returns an object.

    Raises:
      Exception: of any type, if ``encode`` cannot have written this.
    """
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise TypeError("not a value")
        return data
    name, content = data
    if name in _CONTAINERS:
        return _CONTAINERS[name](decode(each, kept) for each in content)
    if name == "dict":
        return {decode(k, kept): decode(v, kept) for k, v in content}
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "complex":
        return complex(*content)
    if name == "object":
        return kept(content)
    raise TypeError("not a value")


def exception(name: Any, message: Any) -> Exception:
    """Return the exception that a program raised: a builtin one, unless its type would end a loop of the tests."""
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    if isinstance(kind, type) and issubclass(kind, _REBUILT):
        return kind(str(message))
    return RuntimeError(f"{name}: {message}")


_REBUILT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
