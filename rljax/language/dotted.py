"""Dotted paths of a config: they reach functions and classes that a decorator of rljax has marked, and nothing else.

A config is text, and importing a module executes it. A path is therefore resolved in two steps:

1. The module's file is located and read without importing it. It must import rljax and define the name at its top level
   under a decorator, as every recipe, piece and task does. No other module is imported.
2. The module is imported, with the packages that it is part of. The object must have the mark of the kind that the
   field expects: ``config.task`` names a task.

Worker processes of verifiers import this module, so it must not import JAX.
"""

import ast
import contextlib
import contextvars
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rljax.language import messages

T = TypeVar("T", bound=Callable)

KINDS = {
    "recipe": "@rljax.algorithms.recipe",
    "piece": "a decorator of rljax.transforms.define",
    "task": "@rljax.environments.task",
    "optimizer": "@rljax.training.optimizers.optimizer",
    "sink": "@rljax.run.sinks.sink",
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


@contextlib.contextmanager
def only(packages: Iterable[str]) -> Iterator[None]:
    """Within the block, resolve only paths in these packages or modules: for the config of somebody else's run."""
    token = _ALLOWED.set(tuple(packages))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


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
    shown, allowed = messages.shown(path), _ALLOWED.get()
    if allowed is not None and not any(path == p or path.startswith(f"{p}.") for p in allowed):
        package = path.partition(".")[0]
        raise NotMarked(
            f"the config of the run names {shown}, code outside rljax's tables; it was not imported. If you trust it, "
            f"pass --allow_code={package}, in Python allow_code=[{package!r}]."
        )
    if any(part.startswith("_") for part in path.split(".")):
        raise NotMarked(f"{shown} has a private part, and a config names public objects only.")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise NotMarked(f"{shown} is in Python's standard library, which a config cannot call.")
    _check_source(path, module, name, kind)
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # the module's own errors
        raise NotMarked(f"{shown} cannot be imported ({type(error).__name__}: {error}).") from error
    function = getattr(imported, name, None)
    if not callable(function) or not marked(function, kind):
        raise NotMarked(f"{shown} is not a {kind}: define it under {KINDS[kind]}.")
    return function


def _check_source(path: str, module: str, name: str, kind: str) -> None:
    """Check, without importing it, that a module can have a marked object of this name."""
    shown = messages.shown(path)
    try:
        source = _source(module) or ""
        tree = ast.parse(source if "rljax" in source else "")
    except (ImportError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotMarked(f"{shown} cannot be imported ({error}).") from None
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = [a.name for n in imports if isinstance(n, ast.Import) for a in n.names]
    names += [n.module or "" for n in imports if isinstance(n, ast.ImportFrom) and not n.level]
    if not any(n.partition(".")[0] == "rljax" for n in names):
        raise NotMarked(f"{shown} is not a {kind}: its module does not import rljax. It was not imported.")
    defined = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    if name not in defined:
        valid = [n for n, d in defined.items() if d.decorator_list and not n.startswith("_")]
        raise Unknown(f"module {module!r} has no function {messages.shown(name)}.", name, valid)
    if not defined[name].decorator_list:
        raise NotMarked(f"{shown} is not a {kind}: define it under {KINDS[kind]}.")


def _source(module: str) -> str | None:
    """Return the source of a module, found as the import system does, but without importing its packages.

    Raises:
      ImportError: there is no such module.
    """
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)  # imports nothing, as the name has no package
    locations = [] if spec is None else list(spec.submodule_search_locations or [])
    loader, name = spec and spec.loader, top
    for part in rest:
        name, portions, loader = f"{name}.{part}", [], None
        for location in locations:
            finder = pkgutil.get_importer(location)
            spec = finder.find_spec(name) if finder else None
            if spec is not None and spec.loader is not None:
                loader, portions = spec.loader, list(spec.submodule_search_locations or [])
                break
            portions += [] if spec is None else list(spec.submodule_search_locations or [])  # a namespace package
        locations = portions
    if loader is None:
        raise ImportError(f"no module named {messages.shown(module)}")
    return getattr(loader, "get_source", lambda name: None)(name)  # compiled modules have none
