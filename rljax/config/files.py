"""Config files by name, edits of a config, and how two differ."""

import importlib.util
import pathlib
from typing import Any

from rljax.config import schema
from rljax.language import parse


def find(name: str) -> str:
    """Return the path of a config file: the path itself, or that of a shipped config of this name.

    Raises:
      ValueError: there is neither.
    """
    if pathlib.Path(name).is_file():
        return name
    spec = importlib.util.find_spec("rljax.configs")
    homes = [pathlib.Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    homes.append(pathlib.Path(__file__).parents[2] / "configs")
    for home in homes:
        shipped = home / f"{pathlib.PurePath(name).stem}.py"
        if shipped.is_file():
            return str(shipped)
    valid = {p.stem for home in homes if home.is_dir() for p in home.glob("*.py") if p.stem != "__init__"}
    raise ValueError(f"config {name!r}: no such file, and no shipped config of this name.{parse.nearest(name, valid)}")


def load(name: str, argument: str = "") -> schema.ConfigDict:
    """Return ``get_config(argument)`` of a config file, or of a shipped config by name ("quickstart")."""
    path = find(name)
    spec = importlib.util.spec_from_file_location("rljax_config", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"config {name!r}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument)


def override(config: schema.ConfigDict, field: str, value: Any) -> None:
    """Set a field, or an argument of a call: ``override(config, "algorithm.positive", 0.2)``.

    Raises:
      ValueError: there is no such field or argument.
    """
    head, _, argument = field.rpartition(".")
    target: Any = config
    for name in filter(None, head.split(".")):
        target = _child(target, name, field)
    if isinstance(target, str):
        override(config, head, parse.with_argument(target, argument, value, f"config.{head}"))
        return
    _child(target, argument, field)
    try:
        target[argument] = value
    except TypeError as error:
        raise ValueError(f"config.{field}={value!r}: must be of type {type(target[argument]).__name__}.") from error


def _child(parent: Any, name: str, field: str) -> Any:
    if not isinstance(parent, schema.ConfigDict) or name not in parent:
        valid = parse.nearest(name, parent.keys()) if isinstance(parent, schema.ConfigDict) else ""
        raise ValueError(f"config.{field}: unknown field.{valid}")
    return parent[name]


def flatten(config: schema.ConfigDict | dict, prefix: str = "config") -> dict[str, Any]:
    """Return {"config.a.b": value}, tuples as lists, as a config reads back from JSON."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}.{key}"
        if isinstance(value, schema.ConfigDict | dict):
            out |= flatten(value, name)
        else:
            out[name] = list(value) if isinstance(value, tuple | list) else value
    return out


def from_dict(fields: dict[str, Any]) -> schema.ConfigDict:
    """Return the config that ``to_json`` and ``json.loads`` took apart: lists are tuples again.

    Fields this version has and the stored config lacks get their defaults.
    """

    def restore(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: restore(v) for k, v in value.items()}
        return tuple(value) if isinstance(value, list) else value

    fields_now, stored = schema.default().to_dict(), restore(fields)
    for key, value in stored.items():
        if key == "phase":
            fields_now[key] = {name: schema.phase(**p) for name, p in value.items()}
        elif isinstance(value, dict):
            fields_now[key] = {**fields_now.get(key, {}), **value}
        else:
            fields_now[key] = value
    return schema.ConfigDict(fields_now)


def differences(a: schema.ConfigDict, b: schema.ConfigDict) -> list[str]:
    """Return the fields in which two configs differ, one line each."""
    x, y = flatten(a), flatten(b)
    return [f"{k}: {x.get(k)!r} -> {y.get(k)!r}" for k in sorted({*x, *y}) if x.get(k) != y.get(k)]
