"""Config files by name, edits of a config, and how two differ."""

import importlib.util
import json
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
    head, _, last = field.rpartition(".")
    target = _group(config, head, field)
    if isinstance(target, str):
        override(config, head, parse.with_argument(target, last, value, f"config.{head}"))
        return
    check(config, field)
    try:
        target[last] = value
    except TypeError as error:
        kind = target.get_type(last).__name__
        raise ValueError(f"config.{field}={value!r}: must be of type {kind}.") from error


def check(config: schema.ConfigDict, field: str) -> None:
    """Raise ValueError unless a config has a field, such as "phase.main.batch.prompts"."""
    head, _, last = field.rpartition(".")
    target = _group(config, head, field)
    path = tuple(field.split("."))
    if path[0] == "phase" and len(path) > 2 and isinstance(target, schema.ConfigDict):
        schema.check_phase_field(target, path[2:], f"config.phase.{path[1]}")
    if not isinstance(target, schema.ConfigDict) or last not in target:
        valid = parse.nearest(last, target.keys()) if isinstance(target, schema.ConfigDict) else ""
        raise ValueError(f"config.{field}: unknown field.{valid}")


def _group(config: schema.ConfigDict, path: str, field: str) -> Any:
    """Return what stands at a path, a group of fields or a value; ``field`` is the one that errors name."""
    target: Any = config
    names = tuple(filter(None, path.split(".")))
    for depth, name in enumerate(names, start=1):
        check(config, ".".join(names[:depth])) if isinstance(target, schema.ConfigDict) else None
        if not isinstance(target, schema.ConfigDict):
            raise ValueError(f"config.{field}: unknown field.")
        target = target[name]
    if target is None:
        raise ValueError(f"config.{field}: config.{path} is not set, so it has no arguments.")
    return target


def last_phase(config: schema.ConfigDict) -> schema.ConfigDict:
    """Return a copy of a config that has its last phase alone."""
    config = config.copy_and_resolve_references()
    config.phases = config.phases[-1:]
    if config.phase[config.phases[0]].algorithm:  # the run's seams were for other phases
        config.seam.update(dict.fromkeys(config.seam, ""))
    return config


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

    stored = restore(fields)
    config = schema.default()
    config.phase = {name: schema.phase(**_renamed(p)) for name, p in stored.pop("phase", {"main": {}}).items()}
    for key, value in stored.items():
        if isinstance(value, dict):
            config[key].update(_RENAMED.get(key, lambda group: group)(value))
        else:
            config[key] = value
    return config


def _renamed(phase: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a phase under their present names: sizes were fields of the phase, 0 for the run's."""
    batch = {n: phase.pop(n) for n in ("prompts", "samples") if n in phase}
    sizes = {n: v for n, v in batch.items() if v}
    phase = {n: v for n, v in phase.items() if v != "" or n == "evaluate"}
    return {**phase, "batch": {**phase.get("batch", {}), **sizes}} if sizes else phase


_RENAMED = {"sampler": lambda group: {{"block": "cache_block"}.get(n, n): v for n, v in group.items()}}


def dumps(config: schema.ConfigDict, indent: int | None = None) -> str:
    """Return a config as JSON, without the fields of a phase that it does not set."""

    def keep(value: Any) -> Any:
        return {k: keep(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    tree = keep(json.loads(config.to_json()))
    for name in tree["phase"]:
        tree["phase"][name] = {k: v for k, v in tree["phase"][name].items() if v != {}}
    return json.dumps(tree, indent=indent)


def differences(a: schema.ConfigDict, b: schema.ConfigDict) -> list[str]:
    """Return the fields in which two configs differ, one line each."""
    x, y = flatten(a), flatten(b)
    return [f"{k}: {x.get(k)!r} -> {y.get(k)!r}" for k in sorted({*x, *y}) if x.get(k) != y.get(k)]
