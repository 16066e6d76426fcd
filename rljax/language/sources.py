"""The source code that a config reaches outside rljax: located without importing it, and identified by digests.

A run records a digest of each module that its config names by a dotted path, and of the modules that those import,
except those of rljax, of the standard library and of installed packages. Modules that are imported by a computed name,
and data files, are not recorded.
"""

import ast
import hashlib
import importlib.util
import pathlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rljax.language import messages

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_INSTALLED = {"site-packages", "dist-packages"}
_first: dict[str, tuple[Any, str]] = {}  # of each imported module: its spec, and its digest when first computed


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


def read(module: str) -> str | None:
    """Return the source of a module, or None if it has none; raises as ``find``."""
    return getattr(find(module), "get_source", lambda name: None)(module)  # compiled modules have none


def digests(modules: Iterable[str]) -> dict[str, str]:
    """Return the digests of modules and of the modules that they import.

    Args:
      modules: names of modules.

    Returns:
      {"mine.py": SHA-256 in hexadecimal digits}, for the modules of the user.

    Raises:
      ValueError: a module has changed since this process imported it, so that other code would run.
    """
    out: dict[str, str] = {}
    waiting, seen = list(modules), set()
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] in ("rljax", *sys.stdlib_module_names):
            continue
        seen.add(name)
        try:
            loader = find(name)
        except (ImportError, ValueError):  # such as a function: ``from package import function``
            continue
        path = getattr(loader, "path", None)
        if path is None or not _of_user(pathlib.Path(path)):
            continue
        package = loader.is_package(name)
        file = name.replace(".", "/") + ("/__init__" if package else "") + pathlib.Path(path).suffix
        out[file] = _digest(name, pathlib.Path(path))
        parent = name.rpartition(".")[0]
        waiting += [parent] if parent else []
        waiting += _imports(loader.get_source(name) or "", name if package else parent)
    return dict(sorted(out.items()))


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return a line for each file in which two results of ``digests`` differ."""
    pairs = {file: (old.get(file, "none")[:8], new.get(file, "none")[:8]) for file in sorted({*old, *new})}
    return [f"code of {file}: {a} -> {b}" for file, (a, b) in pairs.items() if a != b]


def _of_user(path: pathlib.Path) -> bool:
    return not (_INSTALLED & set(path.parts) or path.resolve().is_relative_to(_ROOT))


def _digest(name: str, path: pathlib.Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if name in sys.modules:
        spec = sys.modules[name].__spec__  # a new one after importlib.reload
        if _first.setdefault(name, (spec, digest))[0] is not spec:
            _first[name] = spec, digest
        if _first[name][1] != digest:
            raise ValueError(
                f"{path} has changed since this process imported it. Restart Python (in a notebook: the kernel), or "
                f"reload it with importlib.reload(sys.modules[{name!r}])."
            )
    return digest


def _imports(source: str, package: str) -> list[str]:
    """Return the names that may be modules in the import statements of a module of a package."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):  # imported by other means
        return []
    out = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level <= len(package.split(".")):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            out += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return out
