"""The schema of a config: the groups of settings, collected.

Each group is a frozen dataclass in the folder that reads it; ``Config`` contains all of them. ``default()`` and
``phase()`` return the schema as a ``ConfigDict``, which config files, flags and sweeps edit.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import ml_collections
from ml_collections import config_dict

from rljax.algorithms.config import SeamConfig
from rljax.data.config import TokenizerConfig
from rljax.environments.config import VerifierConfig
from rljax.language import messages, parse, settings
from rljax.language.settings import group, setting
from rljax.models.config import ModelConfig, ModuleConfig
from rljax.run.config import CheckpointConfig, EvaluationConfig, LogConfig
from rljax.sampling.config import SamplerConfig
from rljax.training.config import BatchConfig, LearnerConfig, MeshConfig, PhaseConfig, WorldConfig
from rljax.types import Range

if TYPE_CHECKING:

    class ConfigDict(Any):
        """A ConfigDict; type checkers accept any field."""

else:
    ConfigDict = ml_collections.ConfigDict


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of a run. A phase may set the fields that are not fixed."""

    name: str = setting("run", "Name of the run; part of its default work directory.", fixed=True)
    seed: Annotated[int, Range(0, 2**32 - 1)] = setting(0, "Seed of all random draws.", fixed=True)
    cpu_devices: Annotated[int, Range(0, 256)] = setting(
        0, "Number of devices that JAX creates on a CPU; 0: one.", fixed=True
    )
    task: str = setting("arithmetic()", "Task: a call of the table, or of a dotted path to a marked function.")
    algorithm: str = setting("grpo()", "Algorithm: a call of the table, or of a dotted path to a recipe.")
    seam: SeamConfig = group(SeamConfig)
    tokenizer: TokenizerConfig = group(TokenizerConfig, fixed=True)
    model: ModelConfig = group(ModelConfig)
    sampler: SamplerConfig = group(SamplerConfig)
    batch: BatchConfig = group(BatchConfig)
    world: WorldConfig = group(WorldConfig)
    learner: LearnerConfig = group(LearnerConfig)
    mesh: MeshConfig = group(MeshConfig, fixed=True)
    verifier: VerifierConfig = group(VerifierConfig)
    evaluation: EvaluationConfig = group(EvaluationConfig)
    checkpoint: CheckpointConfig = group(CheckpointConfig)
    log: LogConfig = group(LogConfig)
    profile: str = setting("", "Steps to trace to WORKDIR/profile, such as 'steps 10-12'.", fixed=True)
    phases: tuple[str, ...] = setting(("main",), "Names of the phases, in order.", fixed=True)


def default() -> ConfigDict:
    """Return a config with every field at its default."""
    modules = {"value": module(), "reward": module()}
    return ConfigDict({**settings.defaults(Config), "phase": {"main": phase()}, "module": modules})


def module_fields() -> list[settings.Field]:
    """Return the fields of a module: those of ``ModuleConfig``, and those of the policy's network."""
    head = list(settings.fields(ModuleConfig))
    known = {field.path for field in head}
    return [*head, *(field for field in settings.fields(ModelConfig) if field.path not in {*known, ("vocabulary",)})]


def module(**fields: Any) -> ConfigDict:
    """Return a module beside the policy: a critic, a reward model, a teacher.

    Args:
      **fields: fields of ``ModuleConfig`` and of ``ModelConfig``, such as ``weights="Qwen2.5-0.5B"`` or ``layers=1``;
        the others are those of the module that it is like.

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
