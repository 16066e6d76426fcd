"""Annotations as schemas: check values against them, and describe in words what they allow."""

import difflib
import inspect
import types as builtin_types
import typing
from typing import Any

from rljax import types


def describe(hint: Any) -> str:
    """Return in words what an annotation allows; "" if it allows anything."""
    if hint is Any or hint is inspect.Parameter.empty:
        return ""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        base, *marks = arguments
        ranges = " and ".join(f"in {m}" for m in marks if isinstance(m, types.Range))
        return " ".join(filter(None, (describe(base) or "a number", ranges)))
    if origin in (typing.Union, builtin_types.UnionType):
        return " or ".join(dict.fromkeys(filter(None, map(describe, arguments))))
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple:
        size, items = (
            ("a tuple", arguments[:1]) if arguments[-1] is Ellipsis else (f"a tuple of {len(arguments)}", arguments)
        )
        return ", ".join([size, *(f"each {text}" for text in dict.fromkeys(map(describe, items)) if text)])
    names = {float: "a number", int: "a whole number", str: "a text", bool: "True or False", type(None): "None"}
    if hint is None:
        return "None"
    return names.get(hint, f"a {hint.__name__}") if isinstance(hint, type) else ""


def mismatch(value: Any, hint: Any) -> str | None:
    """Return None if a value fits an annotation, else what is allowed, in words."""
    return None if _fits(value, hint) else describe(hint)


def closest(value: Any, hint: Any) -> str:
    """Return a sentence with the nearest text that an annotation allows; "" if none is close."""
    choices = (
        [c for c in typing.get_args(hint) if isinstance(c, str)] if typing.get_origin(hint) is typing.Literal else []
    )
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    return f" Did you mean {near[0]!r}?" if near else ""


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is inspect.Parameter.empty:
        return True
    if origin is typing.Annotated:
        base, *marks = arguments
        if isinstance(value, types.Controller):  # a number that changes during the run; its range is not checked
            return _fits(value, base)
        return _fits(value, base) and all(_inside(value, m) for m in marks if isinstance(m, types.Range))
    if origin in (typing.Union, builtin_types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and _fits_tuple(value, arguments)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is None or hint is type(None):
        return value is None
    return isinstance(value, hint) if isinstance(hint, type) else True


def _inside(value: Any, valid: types.Range) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value in valid


def _fits_tuple(value: tuple[Any, ...], items: tuple[Any, ...]) -> bool:
    if len(items) == 2 and items[1] is Ellipsis:
        items = items[:1] * len(value)
    return len(value) == len(items) and all(_fits(v, h) for v, h in zip(value, items, strict=True))
