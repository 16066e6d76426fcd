"""Annotations as schemas: check values against them, and describe in words what they allow."""

import collections.abc
import inspect
import types as builtin_types
import typing
from typing import Any

import typing_extensions
from jax import core

from rljax import types
from rljax.language import messages

_INTEGERS, _NUMBERS = types.Range(-1e9, 1e9), types.Range()  # where an annotation gives no range


def describe(hint: Any) -> str:
    """Return in words what an annotation allows; "" if it allows anything."""
    if hint is Any or hint is inspect.Parameter.empty:
        return ""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        base, *marks = arguments
        ranges = " and ".join(f"in {m}" for m in marks if isinstance(m, types.Range))
        return f"{'a whole number' if base is int else 'a number'} {ranges}" if ranges else describe(base)
    if origin in (typing.Union, builtin_types.UnionType):
        return " or ".join(dict.fromkeys(filter(None, map(describe, arguments))))
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple:
        size = "a tuple" if arguments[-1] is Ellipsis else f"a tuple of {len(arguments)}"
        return ", ".join([size, *(f"each {text}" for text in dict.fromkeys(map(describe, arguments)) if text)])
    names = {
        float: "a finite number",
        int: f"a whole number in {_INTEGERS}",
        str: "a text",
        bool: "True or False",
        type(None): "None",
    }
    if hint is None:
        return "None"
    return names.get(hint, f"a {hint.__name__}") if isinstance(hint, type) else ""


def mismatch(value: Any, hint: Any) -> str | None:
    """Return None if a value fits an annotation, else what is allowed, in words.

    Infinity fits only a ``types.Range`` that ends there, and NaN fits nothing.
    """
    return None if _fits(value, hint) else describe(hint) or "finite"


def closest(value: Any, hint: Any) -> str:
    """Return a sentence with the nearest text that an annotation allows; "" if none is close."""
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return messages.hint(value, [c for c in choices if isinstance(c, str)]) if isinstance(value, str) else ""


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        base, *marks = arguments
        ranges = [m for m in marks if isinstance(m, types.Range)]
        if not ranges or isinstance(value, types.Controller | core.Tracer):  # a number of any range
            return _fits(value, base)
        return _is_number(value, whole=base is int) and all(value in m for m in ranges)
    if origin in (typing.Union, builtin_types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and _fits_tuple(value, arguments)
    if hint is int:
        return _is_number(value, whole=True) and value in _INTEGERS
    if hint is float:
        return isinstance(value, core.Tracer) or (_is_number(value) and value in _NUMBERS)
    if hint is None or hint is type(None):
        return value is None
    if origin is collections.abc.Callable:
        return callable(value)
    if isinstance(hint, type) and hint not in (Any, inspect.Parameter.empty) and not _is(value, hint):
        return False
    return _finite(value)


def _is(value: Any, kind: type) -> bool:
    # ``isinstance`` of a protocol ignores ``__getattr__`` since Python 3.12; worlds take members from what is inside
    if typing_extensions.is_protocol(kind):
        return all(hasattr(value, name) for name in typing_extensions.get_protocol_members(kind))
    return isinstance(value, kind)


def _finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_finite, value))
    return not _is_number(value) or value in _NUMBERS


def _is_number(value: Any, whole: bool = False) -> bool:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)


def _fits_tuple(value: tuple[Any, ...], items: tuple[Any, ...]) -> bool:
    if len(items) == 2 and items[1] is Ellipsis:
        items = items[:1] * len(value)
    return len(value) == len(items) and all(_fits(v, h) for v, h in zip(value, items, strict=True))
