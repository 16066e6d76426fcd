"""Values on their way between two boxes: plain data as JSON; everything else stays where it is, behind a number.

What a program returns is rebuilt here as a value of a builtin type or of one of the standard library, so none of the
program's methods, such as an ``__eq__`` that is always true, reaches the tests.
"""

import builtins
import collections
import importlib
from collections.abc import Callable, Sequence
from typing import Any

_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}

# By the exact type of a value: what makes it, and its arguments.
_MADE: dict[tuple[str, str], tuple[str, Callable[[Any], Sequence[Any]]]] = {
    ("builtins", "range"): ("range", lambda x: [x.start, x.stop, x.step]),
    ("builtins", "slice"): ("slice", lambda x: [x.start, x.stop, x.step]),
    ("builtins", "bytearray"): ("bytearray.fromhex", lambda x: [x.hex()]),
    ("collections", "deque"): ("deque", lambda x: [list(x), x.maxlen]),
    ("collections", "Counter"): ("Counter", lambda x: [dict(x)]),
    ("collections", "OrderedDict"): ("OrderedDict", lambda x: [list(x.items())]),
    ("collections", "defaultdict"): ("defaultdict", lambda x: [None, dict(x)]),
    ("decimal", "Decimal"): ("Decimal", lambda x: [str(x)]),
    ("fractions", "Fraction"): ("Fraction", lambda x: [x.numerator, x.denominator]),
    ("datetime", "date"): ("date.fromisoformat", lambda x: [x.isoformat()]),
    ("datetime", "time"): ("time.fromisoformat", lambda x: [x.isoformat()]),
    ("datetime", "datetime"): ("datetime.fromisoformat", lambda x: [x.isoformat()]),
    ("datetime", "timedelta"): ("timedelta", lambda x: [x.days, x.seconds, x.microseconds]),
}


def encode(value: Any, keep: Callable[[Any], Any]) -> Any:
    """Return a value in types of JSON.

    Args:
      value: any value; an instance of a subclass of a builtin type is encoded as the builtin type.
      keep: given an object that is not plain data, returns the content of ["object", content].

    Returns:
      None, a bool, a number or a text as it is, anything else as [type, content].
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value)
    if (key := (kind.__module__, kind.__qualname__)) in _MADE:
        return ["made", [*key, encode(list(_MADE[key][1](value)), keep)]]
    if isinstance(value, tuple) and isinstance(fields := getattr(value, "_fields", None), tuple):
        return ["named", [kind.__name__, list(fields), encode(list(value), keep)]]
    for name, container in _CONTAINERS.items():
        if isinstance(value, container):
            return [name, [encode(each, keep) for each in value]]
    if isinstance(value, dict):
        return ["dict", [[encode(k, keep), encode(v, keep)] for k, v in value.items()]]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    if kind is type and getattr(builtins, value.__name__, None) is value:
        return ["type", value.__name__]
    return ["object", keep(value)]


def decode(data: Any, kept: Callable[[Any], Any]) -> Any:
    """Return the value that ``encode`` wrote.

    Args:
      data: what ``encode`` returned, or anything that a program wrote in its place.
      kept: given what ``keep`` returned, returns an object.

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
    if name == "made":
        module, qualname, arguments = content
        maker: Any = importlib.import_module(module) if (module, qualname) in _MADE else None
        for attribute in _MADE[module, qualname][0].split("."):
            maker = getattr(maker, attribute)
        return maker(*decode(arguments, kept))
    if name == "named":
        return collections.namedtuple(content[0], content[1])(*decode(content[2], kept))
    if name == "type" and isinstance(kind := getattr(builtins, content), type):
        return kind
    if name == "object":
        return kept(content)
    raise TypeError("not a value")


def update(value: Any, new: Any) -> None:
    """Change containers in place, so that ``value`` is equal to ``new``; what stands at the same place stays itself."""
    if type(value) is not type(new):
        return
    if isinstance(value, list | tuple | collections.deque):
        merged = [_merged(a, b) for a, b in zip(value, new, strict=False)] + list(new)[len(value) :]
        if isinstance(value, list):
            value[:] = merged
        elif isinstance(value, collections.deque):
            value.clear()
            value.extend(merged)
    elif isinstance(value, dict):
        merged = {k: _merged(value[k], v) if k in value else v for k, v in new.items()}
        value.clear()
        value.update(merged)
    elif isinstance(value, set):
        value.clear()
        value.update(new)
    elif isinstance(value, bytearray):
        value[:] = new


def _merged(value: Any, new: Any) -> Any:
    if type(value) is type(new) and isinstance(value, list | dict | set | bytearray | tuple | collections.deque):
        if isinstance(value, tuple):
            return value if value == new else new
        update(value, new)
        return value
    return new


def exception(names: Sequence[Any], args: Sequence[Any]) -> Exception:
    """Return an exception that another box raised.

    Args:
      names: of its type and the bases of this, in the order of method resolution.
      args: its arguments.

    Returns:
      An exception of the first builtin type, unless this would end a loop of the tests.
    """
    for name in names:
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        if isinstance(kind, type) and issubclass(kind, _REBUILT):
            try:
                return kind(*args)
            except TypeError:  # an exception with arguments of its own, such as UnicodeDecodeError
                break
    return RuntimeError(f"{names[0]}: {', '.join(map(str, args))}")


_REBUILT = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError, OSError, RuntimeError),
    *(TypeError, ValueError),
)
