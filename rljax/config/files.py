"""Load config files by name, edit configs and compare them."""

import importlib.util
import json
import pathlib
import sys
from typing import Any

from rljax.config import schema
from rljax.language import errors, foreign, messages, parse, settings


def find(name: str) -> str:
    """Return the path of a config file, given its path or the name of a shipped config.

    Raises:
      ValueError: there is no such file and no such shipped config.
    """
    if pathlib.Path(name).is_file():
        return name
    spec = importlib.util.find_spec("rljax.configs")
    folders = [pathlib.Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    folders.append(pathlib.Path(__file__).parents[2] / "configs")
    for folder in folders:
        shipped = folder / f"{pathlib.PurePath(name).stem}.py"
        if shipped.is_file() and str(pathlib.PurePath(name).parent) in (".", "configs"):
            return str(shipped)
    valid = {p.stem for folder in folders for p in folder.glob("*.py") if p.stem != "__init__"}
    raise ValueError(f"config {name!r}: no such file, and no shipped config of this name.{parse.nearest(name, valid)}")


def load(name: str, argument: str = "") -> schema.ConfigDict:
    """Return ``get_config(argument)`` of a config file, or of a shipped config by name ("quickstart")."""
    what = f"config {name!r}"
    module = executed(find(name), what)
    with errors.called(what):
        return module.get_config(argument)


def executed(path: str, what: str) -> Any:
    """Return the module of a Python file, executed; ``what`` names it in messages, such as "config 'quickstart'"."""
    spec = importlib.util.spec_from_file_location(f"rljax_{what.partition(' ')[0]}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{what}: not a Python file.")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    with errors.called(what):
        spec.loader.exec_module(module)
    return module


def override(config: schema.ConfigDict, field: str, value: Any) -> None:
    """Set a field of a config in place, or an argument of a call in a field.

    Args:
      config: the config.
      field: such as "batch.prompts", or "algorithm.kl": the argument ``kl`` of the call in ``algorithm``.
      value: the new value.

    Raises:
      ValueError: an unknown field, a value of another type, or a call with positional arguments.
    """
    if (text := call(config, field)) != field:
        target = _group(config, text, field)
        argument = field.removeprefix(f"{text}.")
        override(config, text, parse.with_argument(target, argument, value, f"config.{text}"))
        return
    head, _, last = field.rpartition(".")
    check(config, field)
    target = _group(config, head, field)
    try:
        target[last] = value
    except TypeError:
        kind = target.get_type(last).__name__
        raise ValueError(f"config.{field}={messages.shown(value)}: must be of type {kind}.") from None


def call(config: schema.ConfigDict, field: str) -> str:
    """Return the field whose call has the argument ``field``: "algorithm" for "algorithm.kl"; else ``field``."""
    target: Any = config
    names = field.split(".")
    for depth, name in enumerate(names[:-1], start=1):
        target = target.get(name) if isinstance(target, schema.ConfigDict) else None
        if isinstance(target, str):
            return ".".join(names[:depth])
    return field


def check(config: schema.ConfigDict, field: str) -> None:
    """Raise ValueError unless a config has a field, such as "phase.main.batch.prompts"."""
    if field.startswith("phases."):  # the phases themselves are in config.phase
        phase = field.replace("phases", "phase", 1)
        check(config, phase)
        raise ValueError(f"config.{field}: unknown field. Did you mean config.{phase}?")
    head, _, last = field.rpartition(".")
    target, path = _group(config, head, field), tuple(field.split("."))
    if path[0] == "phase" and len(path) > 2 and isinstance(target, schema.ConfigDict):
        schema.check_phase_field(target, path[2:], f"config.phase.{path[1]}")
    if not isinstance(target, schema.ConfigDict) or last not in target:
        fields = [name for name in flatten(config) if not name.startswith(("config.phase.", "config.module."))]
        others = [f"config.phase.{p}.{last}" for p in config.phases if p in config.phase and last in config.phase[p]]
        others += [name for name in fields if name.rpartition(".")[2] in (last, *foreign.SAME.get(last, ()))]
        valid = parse.nearest(last, target.keys()) if isinstance(target, schema.ConfigDict) else ""
        hint = f" Did you mean {' or '.join(others)}?" if others and "Here " not in valid else ""
        raise ValueError(f"config.{field}: unknown field.{hint}{valid}")


def _group(config: schema.ConfigDict, path: str, field: str) -> Any:
    """Return the group or value at a path; errors name ``field``."""
    target: Any = config
    names = tuple(filter(None, path.split(".")))
    for depth, name in enumerate(names, start=1):
        if not isinstance(target, schema.ConfigDict):
            raise ValueError(f"config.{field}: unknown field.")
        check(config, ".".join(names[:depth]))
        target = target[name]
    if target is None:
        raise ValueError(f"config.{field}: config.{path} is not set, so it has no arguments.")
    return target


def last_phase(config: schema.ConfigDict) -> schema.ConfigDict:
    """Return a copy of a config with its last phase only."""
    config = config.copy_and_resolve_references()
    config.phases = config.phases[-1:]
    if config.phase[config.phases[0]].algorithm:  # the seams of the run edit the algorithm of the run
        config.seam.update(dict.fromkeys(config.seam, ""))
    return config


def flatten(config: Any, prefix: str = "config") -> dict[str, Any]:
    """Return {"config.a.b": value}, with tuples as lists, as they are stored in JSON."""
    if not isinstance(config, schema.ConfigDict | dict):
        return {prefix: list(config) if isinstance(config, tuple | list) else config}
    return {k: v for key, value in config.items() for k, v in flatten(value, f"{prefix}.{key}").items()}


def from_dict(fields: dict[str, Any], where: str = "config") -> schema.ConfigDict:
    """Return the config of the dictionary that ``json.loads(dumps(config))`` returns; missing fields have defaults.

    Args:
      fields: the dictionary; it may have been edited.
      where: its name in error messages.

    Returns:
      The config.

    Raises:
      ValueError: an unknown field, or a value of another type or out of range.
    """

    def restore(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: restore(v) for k, v in value.items()}
        return tuple(value) if isinstance(value, list) else value

    stored = restore(fields)
    phases = stored.pop("phase", {"main": {}}) if isinstance(stored, dict) else None
    modules = stored.pop("module", {}) if isinstance(stored, dict) else {}
    if not isinstance(phases, dict) or not all(isinstance(phase, dict) for phase in phases.values()):
        raise ValueError(f"{where}: must be a group of fields, with a group of phases in {where}.phase.")
    settings.verify(schema.Config, stored, where)
    config = schema.default()
    try:
        config.phase = {name: schema.phase(**phase) for name, phase in phases.items()}
    except TypeError as error:
        raise ValueError(f"{where}.phase: {messages.printable(error)}") from error
    if not isinstance(modules, dict) or not all(isinstance(module, dict) for module in modules.values()):
        raise ValueError(f"{where}.module: must be a group of modules.")
    for name, fields in modules.items():
        schema.checked_module(fields, f"{where}.module.{name}")
        config.module[name] = schema.module(**fields)
    for key, value in stored.items():
        if isinstance(value, dict):
            config[key].update(value)
        else:
            config[key] = value
    return config


def dumps(config: schema.ConfigDict, indent: int | None = None) -> str:
    """Return a config as JSON, without the fields that a phase does not set."""

    def keep(value: Any) -> Any:
        return {k: keep(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    tree = keep(json.loads(config.to_json()))
    tree["phase"] = {n: {k: v for k, v in phase.items() if v != {}} for n, phase in tree["phase"].items()}
    return json.dumps(tree, indent=indent)


def differences(a: schema.ConfigDict, b: schema.ConfigDict) -> list[str]:
    """Return a line for each field in which two configs differ."""
    x, y = flatten(a), flatten(b)
    return [f"{k}: {x.get(k)!r} -> {y.get(k)!r}" for k in sorted({*x, *y}) if x.get(k) != y.get(k)]
