"""What a phase chooses: its settings, its algorithm with edited seams, and its optimizers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import optax

from rljax import types
from rljax.algorithms import seams
from rljax.algorithms.config import SeamConfig
from rljax.config import files, schema
from rljax.language import messages, parse, settings
from rljax.training import optimizers
from rljax.training.config import PhaseConfig
from rljax.training.phases import Phase

SEAMS = tuple(f.name for f in dataclasses.fields(SeamConfig))
OTHER = ("phase", "module")  # groups by name, beside those of the run


def settings_of(config: schema.ConfigDict, name: str) -> tuple[PhaseConfig, dict[str, Any], schema.Config]:
    """Return the fields of a phase alone, the fields of the run that it overrides, and the run's settings in it."""
    start, changes = _changes(config, name)
    run = {n: v for n, v in config.items() if n not in OTHER}
    if "algorithm" in changes:
        run["seam"] = {}  # the seams of the run edit the algorithm of the run
    return start, changes, settings.build(schema.Config, _merged(run, changes))


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a phase sets, those that are not None, without empty groups."""
    out = {}
    for name, value in values.items():
        value = _set(value) if hasattr(value, "items") else value
        if value is not None and value != {}:
            out[name] = value
    return out


def _merged(run: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with some values replaced."""
    out = dict(run.items())
    for name, value in changes.items():
        out[name] = _merged(out[name], value) if isinstance(value, dict) else value
    return out


def _changes(config: schema.ConfigDict, name: str) -> tuple[PhaseConfig, dict[str, Any]]:
    """Return the fields of the phase alone, and the fields of the run that it overrides."""
    where = f"config.phase.{name}"
    schema.check_phase(config.phase[name], schema.phase(), where)
    changes = _set(config.phase[name])
    for field in ("task", "algorithm"):
        if not changes.get(field, True):
            del changes[field]  # "" means the run's value
    start = {f.name: changes.pop(f.name) for f in dataclasses.fields(PhaseConfig) if f.name in changes}
    settings.verify(schema.Config, changes, where)
    return settings.build(PhaseConfig, start, where), changes


def algorithm(chosen: schema.Config, name: str, changes: Mapping[str, Any]) -> types.Algorithm:
    """Return the algorithm of a phase, its seams edited."""
    field = f"config.phase.{name}" if "algorithm" in changes else "config"
    built = seams.algorithm(chosen.algorithm, f"{field}.algorithm")
    for seam in SEAMS:
        where = f"config.phase.{name}.seam" if seam in changes.get("seam", {}) else "config.seam"
        if getattr(chosen.seam, seam):
            edits = {**dict.fromkeys(SEAMS, ""), seam: getattr(chosen.seam, seam)}
            built = seams.edited(built, edits, f"{where}.")
    return built


def optimizers_of(
    built: types.Algorithm, start: PhaseConfig, chosen: schema.Config, name: str
) -> tuple[optax.GradientTransformation, ...]:
    """Return the optimizer of each objective of a phase."""
    field, clip_norm = f"config.phase.{name}.optimizer", chosen.learner.clip_norm
    return tuple(_optimizer(o.optimizer or start.optimizer, field, clip_norm, start.warmup) for o in built.objectives)


def _optimizer(text: str, field: str, clip_norm: float, warmup: int) -> optax.GradientTransformation:
    parts = parse.many(text, parse.Registry("optimizer", optimizers.functions()), field)
    if not parts or not all(isinstance(p, optax.GradientTransformation) for p in parts):
        raise ValueError(f"{field}={messages.shown(text)}: must be a chain of optax gradient transformations.")
    return optimizers.build(parts, clip_norm=clip_norm, warmup=warmup)


def traced(config: schema.ConfigDict, phase: Phase[schema.Config], values: Mapping[str, Any]) -> Phase[schema.Config]:
    """Return a phase with traced numbers in place of some of its own.

    Args:
      config: the config of the phase.
      phase: from ``resolve.phases``.
      values: scalars by field: arguments of calls in the algorithm, its seams or the optimizer, and settings.

    Returns:
      The phase, with algorithm, optimizers and settings of these numbers.

    Raises:
      Exception: Python reads a number, so it must be known when the program is traced.
    """
    config, chosen, named = config.copy_and_resolve_references(), phase.settings, {}
    changes = _changes(config, phase.name)[1]
    for number, (field, value) in enumerate(values.items()):
        path = field.split(".")
        of_phase = path[0] == "phase"
        if files.call(config, field) != field:
            named[f"traced_{number}"] = value
            files.override(config, field, parse.Name(f"traced_{number}"))
        elif of_phase and path[1] == phase.name:
            chosen = _with(chosen, path[2:], value)
        elif not of_phase and not _has(changes, path):
            chosen = _with(chosen, path, value)
    with parse.naming(named):
        start, changes, written = settings_of(config, phase.name)
        built = algorithm(written, phase.name, changes)
        return dataclasses.replace(
            phase, settings=chosen, algorithm=built, optimizers=optimizers_of(built, start, chosen, phase.name)
        )


def _has(values: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Return whether nested values have one at a path."""
    head, *rest = path
    return head in values and (not rest or _has(values[head], rest))


def _with(group: Any, path: Sequence[str], value: Any) -> Any:
    """Return nested settings with one of them replaced."""
    head, *rest = path
    return dataclasses.replace(group, **{head: _with(getattr(group, head), rest, value) if rest else value})
