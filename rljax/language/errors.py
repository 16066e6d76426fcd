"""Errors of code that rljax calls: a piece, a task, a function that a config names. They keep their file and line.

An error is of one of two kinds. A statement ``raise ValueError(...)`` of rljax is a message to the user, who has to
change a setting: ``is_message`` recognizes it, and a command prints it in one line. Any other exception is a mistake in
code: ``inside`` turns it into a ``CodeError``, which names the code that was called and has its traceback as a note.
"""

import contextlib
import dis
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rljax.language import messages

# Modules whose frames say nothing about the mistake: they only call the code in which it was made
_CALLERS = (
    *("contextlib", "functools", "flax", "jax", "jaxlib", __name__, "rljax.algorithms.interpreter"),
    *("rljax.transforms.define", "rljax.transforms.frame.contracts", "rljax.transforms.frame.shapes"),
)
_CALLERS_DOTTED = tuple(f"{name}." for name in _CALLERS)
_CALLER_FILES = ("rljax.transforms", "rljax.language.parse", "rljax.language.dotted", "importlib")


class CodeError(ValueError):
    """An exception inside a piece, a task or another function that rljax calls; its notes have the traceback."""

    def __init__(self, message: str, notes: Iterable[str] = ()):
        """Make the error; empty notes are left out."""
        super().__init__(message)
        self.notes = tuple(note for note in notes if note)  # JAX adds others to __notes__
        for note in self.notes:
            self.add_note(note)


class Absent(ValueError):
    """What a piece or a recipe needs is not given: a required argument, or arrays that only some recipes have."""


def _module(frame: types.FrameType) -> str:
    return frame.f_globals.get("__name__", "")


def _calls_only(frame: types.FrameType) -> bool:
    name = _module(frame)
    return (
        name in _CALLER_FILES or name.startswith("importlib.") or name.startswith(_CALLERS_DOTTED) or name in _CALLERS
    )


def _raised(error: BaseException) -> types.TracebackType | None:
    """Return the innermost frame of a traceback, if a statement ``raise`` of that frame raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    return trace if dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS" else None


def is_message(error: BaseException) -> bool:
    """Return whether a statement ``raise`` of rljax raised a ValueError, which is then a message to the user.

    A ValueError of Python, NumPy, JAX or the user's modules is a mistake in code, unless rljax raised it anew.
    """
    trace = _raised(error)
    return isinstance(error, ValueError) and trace is not None and _module(trace.tb_frame).startswith("rljax.")


def is_refusal(error: BaseException) -> bool:
    """Return whether a function refuses its arguments: OSError, or its package or rljax raises ValueError or TypeError.

    What a library raises that the function of a user calls is a mistake in the code of the user.
    """
    raised = _raised(error)
    if raised is None or not isinstance(error, ValueError | TypeError):
        return isinstance(error, OSError)
    frames = (f for f, _ in traceback.walk_tb(error.__traceback__) if not _calls_only(f))
    packages = [_module(frame).partition(".")[0] for frame in frames]
    first = next((package for package in packages if package != "rljax"), "rljax")
    return _module(raised.tb_frame).partition(".")[0] in ("rljax", "ml_collections", first)


def trace(error: BaseException) -> str:
    """Return the traceback of an error without the frames of JAX and of the functions that only call others."""
    frames = [(f, line) for f, line in traceback.walk_tb(error.__traceback__) if not _calls_only(f)]
    if isinstance(error, SyntaxError):  # of a module: its text has file and line
        return "".join(traceback.format_exception_only(error)).rstrip()
    if not frames:
        return ""
    lines = traceback.StackSummary.extract(iter(frames)).format()
    return "".join(["Traceback (frames of JAX are left out):\n", *lines]).rstrip()


@contextlib.contextmanager
def inside(what: str, notes: Callable[[Exception], Iterable[str]] = lambda error: ()) -> Iterator[None]:
    """Within the block, turn an exception into a ``CodeError`` that names the code in which it was raised.

    Args:
      what: the code, such as "surrogate clip(low=0.2)".
      notes: from the exception to further lines, after its traceback.

    Raises:
      CodeError: any exception of the block; one that has been turned already is unchanged.
    """
    try:
        yield
    except CodeError:
        raise
    except Exception as error:
        named = f"{error}" if is_message(error) else f"{type(error).__name__}: {error}"
        raise CodeError(f"{what}: {named}", (trace(error), *notes(error))) from None


@contextlib.contextmanager
def called(what: str) -> Iterator[None]:
    """Within the block, name the function of a user that is called with the arguments of a user.

    Raises:
      ValueError: the function refuses its arguments (``is_refusal``), in one line.
      CodeError: any other exception of the block, with its traceback.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, CodeError) and is_refusal(error):
            raise ValueError(f"{what}: {messages.printable(error)}") from error
        with within(what) if isinstance(error, CodeError) else inside(what):
            raise


@contextlib.contextmanager
def within(where: str) -> Iterator[None]:
    """Within the block, write ``where`` before the message of a ``CodeError``."""
    try:
        yield
    except CodeError as error:
        raise CodeError(f"{where}: {error}", error.notes) from None


def place(function: Callable[..., Any]) -> str:
    """Return the file and line in which a Python function is defined."""
    code = getattr(function, "__code__", None)
    return "built in" if code is None else f'File "{code.co_filename}", line {code.co_firstlineno}'
