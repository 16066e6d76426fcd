"""Published methods, the settings that stand for them, and what of them is absent: COVERAGE.md."""

import inspect
import pathlib
import statistics
import tomllib
from collections.abc import Mapping
from typing import Any

from rljax import algorithms

_FILE = pathlib.Path(__file__).parents[1] / "methods/published.toml"
_READ = tomllib.loads(_FILE.read_text())
RECIPES: Mapping[str, str] = _READ["recipes"]  # what is absent or different of a recipe, by its name
GROUPS: Mapping[str, Mapping[str, Mapping[str, Any]]] = _READ["settings"]  # fields of methods by group and name
OUTSIDE: Mapping[str, str] = _READ["outside"]  # why a method is not here
GRPO = "grpo(kl=0.0)"  # the algorithm of settings that name none


def settings() -> dict[str, dict[str, Any]]:
    """Return the fields of each published method that is no recipe, by dotted path; "config" is a shipped config."""
    listed = {name: fields for methods in GROUPS.values() for name, fields in methods.items()}
    return {
        name: ({} if "config" in fields else {"algorithm": GRPO}) | {k: v for k, v in fields.items() if k != "absent"}
        for name, fields in listed.items()
    }


def page() -> str:
    """Write the page: tables of the recipes of which something is absent, of the groups, and of what is outside."""
    listed = sum(map(len, GROUPS.values()))
    introduction = _FILE.with_suffix(".txt").read_text().rstrip("\n")
    sizes = [_size(name) for name in algorithms.TABLE]
    half, most = round(statistics.median(sizes)), max(sizes)
    counts = {"recipes": len(sizes), "less": len(RECIPES), "settings": listed, "half": half, "most": most}
    lines = [introduction.format(**counts)]
    lines += ["", "## Recipes", "", "| recipe | absent or different |", "| --- | --- |"]
    lines += [f"| `{name}` | {_cell(RECIPES[name])} |" for name in algorithms.TABLE if name in RECIPES]
    for group, methods in GROUPS.items():
        lines += ["", f"## Settings: {group}", "", "| method | config | absent or different |", "| --- | --- | --- |"]
        for name, fields in methods.items():
            shown = [_field(field, value) for field, value in fields.items() if field != "absent"]
            lines.append(f"| {name} | {', '.join(shown)} | {_cell(fields.get('absent', ''))} |")
    lines += ["", "## Outside", "", "| method | why |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(why)} |" for name, why in OUTSIDE.items()]
    return "\n".join(lines) + "\n"


def _size(name: str) -> int:
    """Return the lines of a recipe: decorator, signature and body, without the docstring."""
    signature, _, body = inspect.getsource(inspect.unwrap(algorithms.TABLE[name])).split('"""')
    return len(signature.rstrip().splitlines()) + len(body.strip().splitlines())


def _field(name: str, value: Any) -> str:
    """Return a field as a config sets it."""
    return f"`--config {value}`" if name == "config" else f"`{name}={_cell(str(value))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
