"""Source text of modules that are not imported: what a config names is checked before any of its code runs."""

import ast
import importlib.util
import pkgutil
from typing import Any

from rljax.language import messages


def tree(module: str, word: str = "") -> ast.Module:
    """Return the syntax tree of a module, without importing it; an empty one if its source lacks ``word``.

    Raises:
      ValueError: the module cannot be found or parsed; the message is the reason.
    """
    try:
        text = source(module) or ""
        return ast.parse(text if word in text else "")
    except (ImportError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


Definition = ast.FunctionDef | ast.ClassDef

_DEEPEST = 20  # base classes above one another


def defined(module: ast.Module) -> dict[str, Definition]:
    """Return the functions and classes at the top level of a module, by name."""
    return {n.name: n for n in module.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def methods(module: str, definition: ast.ClassDef, deepest: int = _DEEPEST) -> set[str]:
    """Return the names of a class's methods and of those that it inherits, without importing anything.

    Args:
      module: where the class is defined.
      definition: of the class.
      deepest: the most classes above one another that are followed.

    Returns:
      The names; without the names of base classes that are not at the top level of a module, or that have no source.
    """
    names = {n.name for n in definition.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    for base in definition.bases if deepest else ():
        base = base.value if isinstance(base, ast.Subscript) else base  # Base[int]
        place, _, name = _absolute(module, ast.unparse(base)).rpartition(".")
        try:
            parent = defined(tree(place)).get(name) if place else None
            if parent is None and place:  # imported there from elsewhere
                place, _, name = _absolute(place, name).rpartition(".")
                parent = defined(tree(place)).get(name)
        except ValueError:
            continue
        if isinstance(parent, ast.ClassDef):
            names |= methods(place, parent, deepest - 1)
    return names


def _absolute(module: str, name: str) -> str:
    """Return the dotted path of what a module calls ``name``, by its imports: "Base", "other.Base"."""
    first, _, rest = name.partition(".")
    package = getattr(find(module), "is_package", lambda _: False)(module)
    imports = [node for node in tree(module).body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        for alias in node.names:
            if isinstance(node, ast.Import):
                if alias.asname == first or (not alias.asname and name.startswith(f"{alias.name}.")):
                    return f"{alias.name}.{rest}" if alias.asname else name
            elif (alias.asname or alias.name) == first:
                above = module.split(".")[: (1 if package else 0) - node.level or None] if node.level else []
                return ".".join(
                    [*above, *([node.module] if node.module else []), alias.name, *([rest] if rest else [])]
                )
    return f"{module}.{name}"


def source(module: str) -> str | None:
    """Return the source of a module, or None if it has none, as a compiled one; raises as ``find``."""
    return getattr(find(module), "get_source", lambda name: None)(module)


def find(module: str) -> Any:
    """Return the loader of a module, found as the import system does, but without importing its packages.

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
    return loader
