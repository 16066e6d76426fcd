"""The schema of a config: ``default()``, ``phase()`` and ``module()`` return it as a ``ConfigDict``.

Config files, flags and sweeps edit a ``ConfigDict``; ``Config`` is the same as a typed record, see ``training.config``.
"""

from typing import TYPE_CHECKING, Any

import ml_collections
from ml_collections import config_dict

from rljax.language import messages, parse, settings
from rljax.models.config import ModelConfig, ModuleConfig
from rljax.training.config import Config as Config
from rljax.training.config import PhaseConfig

if TYPE_CHECKING:

    class ConfigDict(Any):
        """A ConfigDict; type checkers accept any field."""

else:
    ConfigDict = ml_collections.ConfigDict


def default() -> ConfigDict:
    """Return a config with every field at its default."""
    modules = {"value": module(), "reward": module()}
    return ConfigDict({**settings.defaults(Config), "phase": {"main": phase()}, "module": modules})


def module_fields() -> list[settings.Field]:
    """Return the fields of a module: the fields of ``ModuleConfig``, and of the policy's network without its tower."""
    head = list(settings.fields(ModuleConfig))
    known = {field.path for field in head}
    known |= {("vocabulary",), ("kind",)}
    return [*head, *(f for f in settings.fields(ModelConfig) if f.path not in known and len(f.path) == 1)]


def module(**fields: Any) -> ConfigDict:
    """Return a module beside the policy: a critic, a reward model, a teacher.

    Args:
      **fields: fields of ``ModuleConfig`` and of ``ModelConfig``, such as ``weights="Qwen2.5-0.5B"`` or ``layers=1``;
        the others are equal in the module that it is like.

    Returns:
      A ConfigDict with every field that a module may set.

    Raises:
      ValueError: an unknown field.
    """
    tree = {f.path[0]: config_dict.placeholder(f.type) for f in module_fields()}
    new = ConfigDict({**tree, **settings.defaults(ModuleConfig)})
    new.update(checked_module(fields, "module"))
    return new


def checked_module(values: Any, where: str) -> dict[str, Any]:
    """Return the fields of a module, checked; ``where`` is its name in errors.

    Raises:
      ValueError: an unknown field, or a value of another type or out of range.
    """
    if not hasattr(values, "items"):
        raise ValueError(f"{where}={messages.shown(values)}: must be a module, such as rljax.module(layers=1)")
    known = {f.path[0]: f for f in module_fields()}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{where}.{name}: unknown field.{parse.nearest(name, known)}")
        if value is not None:
            settings.check_value(f"{where}.{name}", value, known[name].hint)
    return dict(values.items())


def phase(**fields: Any) -> ConfigDict:
    """Return a phase: one algorithm for a number of steps.

    Args:
      **fields: fields of ``PhaseConfig``, and fields of the run that are not fixed, for this phase only: a value, or
        a dictionary for a group (``batch={"prompts": 64}``). A field that is None has the run's value.

    Returns:
      A ConfigDict with every field that a phase may set.

    Raises:
      ValueError: an unknown field, or one that applies to the whole run.
    """
    tree = settings.defaults(PhaseConfig)
    for field in settings.fields(Config):
        if not field.fixed:
            settings.put(tree, field.path, config_dict.placeholder(field.type))
    new = ConfigDict(tree)
    check_phase(fields, new, "phase")
    new.update(fields)
    return new


def check_phase(values: Any, target: Any, where: str, path: tuple[str, ...] = ()) -> None:
    """Check that every field of nested values is one that a phase can set.

    Args:
      values: a mapping, or a group of one.
      target: a phase, or the group of it at ``path``.
      where: name of the phase in error messages.
      path: the names from the phase to ``values``.

    Raises:
      ValueError: an unknown field, one that applies to the whole run, or a value in place of a group.
    """
    if not hasattr(values, "items"):
        raise ValueError(f"{where}={messages.shown(values)}: must be a phase, such as rljax.phase(steps=100).")
    for name, value in values.items():
        check_phase_field(target, (*path, name), where)
        if isinstance(target[name], ConfigDict):
            if not hasattr(value, "items"):
                raise ValueError(f"{where}.{'.'.join((*path, name))}={value!r}: must be a group of fields.")
            check_phase(value, target[name], where, (*path, name))


_BATCH = ("prompts", "samples")


def check_phase_field(target: Any, path: tuple[str, ...], where: str = "phase") -> None:
    """Check that a phase has a field.

    Args:
      target: the phase or the group of it that should contain the field.
      path: the names from the phase to the field, such as ("batch", "prompts").
      where: name of the phase in error messages.

    Raises:
      ValueError: the phase has no such field, or the field applies to the whole run.
    """
    if path[-1] in target:
        return
    name, run = ".".join(path), {f.path: f for f in settings.fields(Config)}
    known = [f for p, f in run.items() if p[: len(path)] == path]
    if known:
        raise ValueError(f"{where}.{name}: a phase cannot set {name}, which applies to the whole run.")
    if path[-1] in _BATCH and len(path) == 1:
        raise ValueError(f"{where}.{name}: unknown field. Use {where}.batch.{name}.")
    raise ValueError(f"{where}.{name}: unknown field.{parse.nearest(path[-1], target.keys())}")
