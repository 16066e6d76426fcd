"""Values that hold within a ``with`` block and the calls in it, in this thread or coroutine."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def during(variable: contextvars.ContextVar, value: T) -> Iterator[T]:
    """Give a variable a value within the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
