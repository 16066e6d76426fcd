"""Source text of modules that are not imported: what a config names is checked before any of its code runs."""

import ast
import importlib.util
import pkgutil

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


def defined(module: ast.Module) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """Return the functions and classes at the top level of a module, by name."""
    return {n.name: n for n in module.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def source(module: str) -> str | None:
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
