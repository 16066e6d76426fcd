"""Dotted paths of a config: they reach functions and classes that a decorator of rljax has marked, and nothing else.

A config is text, and importing a module executes it. A path is therefore resolved in two steps:

1. The module's file is located and read without importing it. It must import rljax and define the name at its top level
   under a decorator, as every recipe, piece and task does. No other module is imported.
2. The module is imported, with the packages that it is part of. The object must have the mark of the kind that the
   field expects: ``config.task`` names a task.

A reward function needs no decorator: the name of its first parameter is its mark; see ``reward``. A config can thus
call any public function on the path whose first parameter is named so, which is no more than whoever writes configs to
run can do. The config of somebody else's run is read within ``only``, where no path outside rljax is imported.

Worker processes of verifiers import this module, so it must not import JAX.
"""

import ast
import contextlib
import contextvars
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rljax.language import messages, reached, scopes, sources

T = TypeVar("T", bound=Callable)

KINDS = {
    "recipe": "@rljax.algorithms.recipe",
    "piece": "a decorator of rljax.transforms.define",
    "task": "@rljax.environments.task",
    "tool": "@rljax.environments.worlds.host.calls.tool",
    "optimizer": "@rljax.training.learning.optimizers.optimizer",
    "sink": "@rljax.host.sinks.sink",
}
"""The kinds of marked objects, each with the decorator that marks it."""

_MARK = "__rljax_kind__"
_ALLOWED: contextvars.ContextVar[tuple[str, ...] | None] = contextvars.ContextVar("allowed", default=None)  # None: all


class NotMarked(ValueError):
    """A path reaches no marked object; the message completes "config.task: ..."."""


class Unknown(NotMarked):
    """A module has no such name; the arguments are the message, the name, and the names under a decorator."""


def mark(function: T, kind: str) -> T:
    """Mark a function or class in place as of a kind of ``KINDS``, and return it."""
    setattr(function, _MARK, kind)
    return function


def marked(function: object, kind: str) -> bool:
    """Return whether an object has the mark of a kind itself: not its base class, not through ``__getattr__``."""
    return getattr(function, "__dict__", {}).get(_MARK) == kind


def only(packages: Iterable[str]) -> contextlib.AbstractContextManager[Any]:
    """Within the block, resolve only paths in these packages or modules: for the config of somebody else's run."""
    return scopes.during(_ALLOWED, tuple(packages))


def load(path: str, kind: str) -> Callable:
    """Return the object at a dotted path.

    Args:
      path: such as ``experiments.study.pieces.mine``.
      kind: the kind of object that is expected.

    Returns:
      The function or class.

    Raises:
      NotMarked: there is no such object, or it is not marked as ``kind``. A module that fails the first step has not
        been imported.
    """
    module, _, name = path.rpartition(".")
    shown = messages.shown(path)
    _permit(path)
    tree = _tree(module, shown, "rljax")
    if not _imports(tree, "rljax"):
        raise NotMarked(f"{shown} is not a {kind}: its module does not import rljax. It was not imported.")
    defined = sources.defined(tree)
    if name not in defined:
        valid = [n for n, d in defined.items() if d.decorator_list and not n.startswith("_")]
        raise Unknown(f"module {module!r} has no function {messages.shown(name)}.", name, valid)
    function = _import(module, name, shown) if defined[name].decorator_list else None
    if not callable(function) or not marked(function, kind):
        raise NotMarked(f"{shown} is not a {kind}: define it under {KINDS[kind]}.")
    return function


def reward(path: str) -> Callable:
    """Return the reward function at a path such as ``my_rewards:brief``; its signature is its mark.

    Args:
      path: ``MODULE:FUNCTION``. The module's source, which is read without importing it, must define the function at
        its top level, with ``completion`` or ``completions`` as its first parameter.

    Returns:
      The function.

    Raises:
      NotMarked: there is no such function. A module whose source lacks it has not been imported.
    """
    function = _unmarked(path, _is_reward, "function")
    if not callable(function):
        name = path.partition(":")[2]
        raise NotMarked(
            f"{messages.shown(path)} is not a reward function: its first parameter must be named completion, or "
            f"completions for one that judges all completions of a prompt together: def {name}(completion, reference)."
        )
    return function


def world(path: str) -> Callable:
    """Return the class of a host world at a path such as ``my_worlds:Shop``; its methods are its mark.

    Args:
      path: ``MODULE:CLASS``. The module's source, which is read without importing it, must define the class at its top
        level, with methods ``reset`` and ``step``, also as coroutines or of base classes that are defined likewise.

    Returns:
      The class.

    Raises:
      NotMarked: there is no such class. A module whose source lacks it has not been imported.
    """
    made = _unmarked(path, _is_world, "class")
    if not isinstance(made, type):
        message = "is not a host world: a class with the methods reset(example) and step(text)."
        raise NotMarked(f"{messages.shown(path)} {message}")
    return made


def module(path: str, library: str) -> None:
    """Check that a config may name a module, which is not imported here.

    Args:
      path: of the module. Its source, which is read without importing it, must import ``library`` or a part of it.
      library: a package.

    Raises:
      NotMarked: there is no such module, it does not import the library, or it is outside ``only``.
    """
    _permit(path)
    shown = messages.shown(path)
    if not _imports(_tree(path, shown), library):
        raise NotMarked(f"{shown} does not import {library}. It was not imported.")
    reached.record(path)


def program(command: str) -> None:
    """Check that a config may name a program, which is then started; ``NotMarked`` within ``only``, if not listed."""
    allowed = _ALLOWED.get()
    if allowed is not None and command not in allowed:
        shown = messages.shown(command)
        raise NotMarked(
            f"the config of the run starts the program {shown}. If you trust it, pass --allow_code={command}, in "
            f"Python allow_code=[{command!r}]."
        )


def _unmarked(path: str, fits: Callable[[str, sources.Definition], bool], kind: str) -> Any:
    """Return what is at MODULE:NAME; None if its definition, which is read without importing the module, does not fit.

    ``kind`` is what NAME should be, for messages.
    """
    module, _, name = path.partition(":")
    shown = messages.shown(path)
    _permit(f"{module}.{name}")
    defined = sources.defined(_tree(module, shown))
    if name not in defined:
        valid = [n for n, d in defined.items() if not n.startswith("_") and fits(module, d)]
        raise Unknown(f"module {module!r} has no {kind} {messages.shown(name)}.", name, valid)
    return _import(module, name, shown) if not name.startswith("_") and fits(module, defined[name]) else None


def _is_world(module: str, definition: sources.Definition) -> bool:
    return isinstance(definition, ast.ClassDef) and {"reset", "step"} <= sources.methods(module, definition)


def _is_reward(module: str, definition: sources.Definition) -> bool:
    if isinstance(definition, ast.ClassDef):
        return False
    parameters = [*definition.args.posonlyargs, *definition.args.args]
    return bool(parameters) and parameters[0].arg in ("completion", "completions")


def _tree(module: str, shown: str, word: str = "") -> ast.Module:
    """Return the syntax tree of a module, which is empty if its source lacks ``word``; ``shown`` is for messages."""
    try:
        return sources.tree(module, word)
    except ValueError as error:
        raise NotMarked(f"{shown} cannot be imported ({error}).") from None


def _imports(tree: ast.AST, library: str) -> bool:
    """Return whether a module imports a package or a part of it."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = [a.name for n in imports if isinstance(n, ast.Import) for a in n.names]
    names += [n.module or "" for n in imports if isinstance(n, ast.ImportFrom) and not n.level]
    return any(n.partition(".")[0] == library for n in names)


def _permit(path: str) -> None:
    """Raise ``NotMarked`` if a config may not name this path, whatever it is."""
    shown, allowed = messages.shown(path), _ALLOWED.get()
    if allowed is not None and not any(path == p or path.startswith(f"{p}.") for p in allowed):
        package = path.partition(".")[0]
        raise NotMarked(
            f"the config of the run names {shown}, code outside rljax's tables; it was not imported. If you trust it, "
            f"pass --allow_code={package}, in Python allow_code=[{package!r}]."
        )
    if any(part.startswith("_") for part in path.split(".")):
        raise NotMarked(f"{shown} has a private part, and a config names public objects only.")
    if path.partition(".")[0] in sys.stdlib_module_names:
        raise NotMarked(f"{shown} is in Python's standard library, which a config cannot call.")


def _import(module: str, name: str, shown: str) -> object:
    reached.record(module)
    try:
        return getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # the module's own errors
        raise NotMarked(f"{shown} cannot be imported ({type(error).__name__}: {error}).") from error
