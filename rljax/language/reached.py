"""The code outside rljax that a config reaches, identified by digests.

A run records a digest of each module that its config names by a dotted path, and of the modules that those import,
except modules of rljax, of the standard library and of installed packages. Modules that are imported by a computed
name, and data files, are not recorded.
"""

import ast
import contextlib
import contextvars
import hashlib
import pathlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rljax.language import scopes, sources

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_INSTALLED = {"site-packages", "dist-packages"}
_RECORD: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("record", default=None)  # None: off
_first: dict[str, tuple[Any, str]] = {}  # of each imported module: its spec, and its digest when first computed


def recording() -> contextlib.AbstractContextManager[set[str]]:
    """Yield a set that receives the module of every path that is resolved within the block."""
    return scopes.during(_RECORD, set())


def record(module: str) -> None:
    """Record a module that a config names."""
    if (modules := _RECORD.get()) is not None:
        modules.add(module)


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
            loader = sources.find(name)
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
    kinds = {file: "code" if file.endswith(".py") else "content" for file in pairs}  # data too, see ``config.resolve``
    return [f"{kinds[file]} of {file}: {a} -> {b}" for file, (a, b) in pairs.items() if a != b]


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
