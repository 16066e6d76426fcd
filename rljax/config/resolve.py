"""Resolve a config: check its fields, find what its names mean, and check that the parts of each phase fit.

``run(config)`` returns the result, a ``Resolved``. It does everything that needs no device, once and in this order:

1. ``complete``   the shapes of networks that start from a folder, from its config.json;
2. ``check``      every field of the run: type and range, and the names of sinks;
3. ``_phase``     of each phase: its settings, its algorithm with edited seams, its task, its optimizers, and whether
                  these fit each other (``compatible``);
4. ``profiles``   the steps to trace;
5. ``modules``    the networks beside the policy, and whether the phases use them as what they are;
6. ``effects``    warnings of what is set and has no effect.

An error names the field, its value and what is allowed.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import optax

from rljax import environments, types
from rljax.algorithms import seams
from rljax.algorithms.config import SeamConfig
from rljax.config import compatible, effects, files, modules, schema
from rljax.data import rows
from rljax.environments import traits
from rljax.environments.worlds.host import limited
from rljax.host import backends, profiles, sinks
from rljax.language import messages, parse, reached, settings
from rljax.models.checkpoints import families, tensors, weights
from rljax.training.config import PhaseConfig
from rljax.training.learning import optimizers
from rljax.training.phases import Phase as Phase
from rljax.transforms.source import files as stored_files

SEAMS = tuple(f.name for f in dataclasses.fields(SeamConfig))
_GROUPS = ("phase", "module")  # groups by name, beside the settings of the run
_WIDE = 256  # width of a policy whose products are worth a device for each core
_OF_POLICY = ("vocabulary", "output", "bins", "vision")  # of a module, the tokenizer, the pieces, the policy decide


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A config, checked, with its names resolved."""

    config: schema.ConfigDict  # a copy, which later changes of the argument do not affect
    settings: schema.Config  # of the run, without the changes of its phases
    phases: tuple[Phase, ...]
    named: frozenset[str]  # modules of the dotted paths in the config

    @functools.cached_property
    def code(self) -> dict[str, str]:
        """Digests of the modules outside rljax that the config reaches and of its files of stored rows, by file.

        ValueError if a file of stored rows cannot be read. See ``language.reached``.
        """
        of = [(p.algorithm.source, p) for p in self.phases]
        stored = {s.file: digest(p) for s, p in of if isinstance(s, stored_files.Stored) and s.fixed}
        return reached.digests(self.named) | stored


def run(config: schema.ConfigDict, trains: bool = True) -> Resolved:
    """Resolve the config of a run; see the module for what is checked.

    Args:
      config: of the run.
      trains: whether the run trains; else algorithm, task and sizes need not be compatible.

    Raises:
      ValueError: an invalid field; the message names the field, its value and what is allowed.
    """
    built: list[Phase] = []
    tasks: dict[str, environments.Task] = {}  # created once, since a task may read files
    with reached.recording() as named:
        config = complete(config)
        checked = check(config)
        if not checked.phases:
            raise ValueError("config.phases=(): must name at least one phase.")
        for name in checked.phases:
            if checked.phases.count(name) > 1:
                raise ValueError(f"config.phases={checked.phases}: names {name!r} twice.")
            if name not in config.phase:
                raise ValueError(f"config.phases: no config.phase.{name}.{parse.nearest(name, config.phase.keys())}")
            built.append(_phase(config, name, built[-1].last if built else 0, tasks, trains))
    profiles.steps(checked.profile, built[-1].last)
    _check_seams(config, checked)
    _check_tower(checked, built)
    beside = modules.resolve(config, built)
    built = [dataclasses.replace(phase, module=beside) for phase in built]
    return Resolved(config, checked, effects.noted(config, built), frozenset(named))


def phases(config: schema.ConfigDict, trains: bool = True) -> tuple[Phase, ...]:
    """Return the phases of ``run(config, trains)``."""
    return run(config, trains).phases


def _check_tower(checked: schema.Config, phases: Sequence[Phase]) -> None:
    """Check that a vision tower that no public checkpoint brings is read."""
    layers, seen = checked.model.architecture.vision.layers, (traits.traits(phase.task).pictures for phase in phases)
    if layers and not checked.model.weights and not any(seen):
        raise ValueError(f"config.model.vision.layers={layers}: no phase has a task with pictures.")


# --- the run -----------------------------------------------------------------------------------


def complete(config: schema.ConfigDict) -> schema.ConfigDict:
    """Return a copy of a config; where ``weights`` names a folder, the shape is read from the config.json there.

    Raises:
      ValueError: a folder has no config.json, its model family is unknown, or its digest is another one.
    """
    config = config.copy_and_resolve_references()
    beside = {f"config.module.{name}": module for name, module in config.module.items()}
    for where, network in {"config.model": config.model, **beside}.items():
        folder = network.get("weights") if hasattr(network, "get") else None
        if not isinstance(folder, str) or folder in (("", "random") if where in beside else ("",)):
            continue
        if network.get("trunk"):
            continue  # a head has its trunk's shape, and starts from no folder
        try:
            shape = families.read(weights.config(folder))
        except ValueError as error:
            raise ValueError(f"{where}.weights={folder!r}: {error}") from None
        if network.get("digest") and (sha256 := tensors.digest(folder)) != network.digest:
            raise ValueError(f"{where}.digest={network.digest!r}: the digest of {folder!r} is {sha256}")
        network.update({field: x for field, x in shape.items() if where not in beside or field not in _OF_POLICY})
    return config


def check(config: schema.ConfigDict) -> schema.Config:
    """Return the settings of the run, without the changes of its phases.

    Raises:
      ValueError: an unknown field, or a value of another type or out of range.
    """
    built = settings.build(schema.Config, {name: value for name, value in config.items() if name not in _GROUPS})
    if "" in built.sampler.stop:
        raise ValueError(f"config.sampler.stop={built.sampler.stop!r}: no text may be empty.")
    sinks.build(built.log.sinks, "config.log.sinks")
    return built


def parallel(config: schema.ConfigDict) -> int:
    """Return how many CPU devices suit a run, where ``config.cpu_devices`` leaves it open.

    One for each core, if the policy has at least ``_WIDE`` columns, its mesh takes all devices that there are, and the
    prompts of each micro-batch divide; else 1.

    Args:
      config: a config that ``check`` accepts.
    """
    run, count = check(config), backends.cores()
    if run.model.architecture.width < _WIDE or run.mesh.rollout or -1 not in run.mesh.axes.values():
        return 1
    chosen = [_settings(config, name)[2] for name in run.phases]
    pieces = [c.learner.minibatches * c.learner.parts for c in chosen]
    return 1 if any(c.batch.prompts % (count * n) for c, n in zip(chosen, pieces, strict=True)) else count


def digest(phase: Phase) -> str:
    """Return the digest of the files that the source of a phase names; ValueError if they cannot be read."""
    source = phase.algorithm.source
    assert isinstance(source, stored_files.Stored)
    try:
        return rows.digest(source.file)
    except (ValueError, OSError) as error:
        raise ValueError(f"phase {phase.name!r}, {source.spec}: {error}") from None


def _check_seams(config: schema.ConfigDict, run: schema.Config) -> None:
    """Raise ValueError if a seam of the run is set and no phase uses it."""
    for seam in SEAMS:
        users = [n for n in run.phases if not config.phase[n].algorithm and config.phase[n].seam[seam] is None]
        if getattr(run.seam, seam) and not users:
            raise ValueError(
                f"config.seam.{seam}={getattr(run.seam, seam)!r} edits nothing: every phase sets algorithm or this "
                f"seam. Set config.phase.{run.phases[-1]}.seam.{seam}."
            )


def played(config: schema.ConfigDict, task: str) -> schema.ConfigDict:
    """Return a copy of a config whose policy plays another task in every phase.

    It has no algorithm of the run, no seam, optimizer, other module or player, so that none restricts the task.
    """
    config = config.copy_and_resolve_references()
    config.task, config.algorithm, config.module = task, "reinforce()", type(config)()
    config.seam.update(dict.fromkeys(SEAMS, ""))
    config.world.update({"players": ("policy",), "trained": ()})
    for phase in config.phase.values():
        phase.world.update({"players": None, "trained": None})
        phase.task, phase.algorithm, phase.optimizer = None, None, PhaseConfig.optimizer
        phase.seam.update(dict.fromkeys(SEAMS))
    return config


# --- a phase -----------------------------------------------------------------------------------


def _phase(
    config: schema.ConfigDict, name: str, first: int, tasks: dict[str, environments.Task], trains: bool
) -> Phase:
    """Return a phase that begins after update ``first``; its task is added to ``tasks`` if it is not there."""
    start, changes, chosen = _settings(config, name)
    algorithm = _algorithm(chosen, name, changes)
    chosen = _grouped(chosen, algorithm, changes, name)
    if chosen.task not in tasks:
        where = f"config.phase.{name}.task" if "task" in changes else "config.task"
        tasks[chosen.task] = _task(chosen, where)
    phase = Phase(
        name=name,
        first=first,
        last=first + start.steps,
        start=start,
        settings=chosen,
        algorithm=algorithm,
        optimizers=_optimizers(algorithm, start, chosen, name),
        task=tasks[chosen.task],
    )
    compatible.check(phase, trains)
    return phase


def _task(chosen: schema.Config, where: str) -> environments.Task:
    """Return the task that settings name; ``where`` is the field in errors."""
    with limited.within(chosen.verifier):
        task = parse.one(chosen.task, parse.Registry("task", environments.TASKS), where)
    if not hasattr(task, "host"):
        rules = "; rules of characters go into worlds.text.TextWorld" if hasattr(task, "alphabet") else ""
        raise ValueError(f"{where}={messages.shown(chosen.task)}: did not return a task{rules}.")
    return task


def _settings(config: schema.ConfigDict, name: str) -> tuple[PhaseConfig, dict[str, Any], schema.Config]:
    """Return the fields of a phase alone, the fields of the run that it overrides, and the run's settings in it."""
    start, changes = _changes(config, name)
    run = {n: v for n, v in config.items() if n not in _GROUPS}
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


def _algorithm(chosen: schema.Config, name: str, changes: Mapping[str, Any]) -> types.Algorithm:
    """Return the algorithm of a phase, its seams edited; players that learn have the policy's objectives."""
    field = f"config.phase.{name}" if "algorithm" in changes else "config"
    built = seams.algorithm(chosen.algorithm, f"{field}.algorithm")
    for seam in SEAMS:
        where = f"config.phase.{name}.seam" if seam in changes.get("seam", {}) else "config.seam"
        if getattr(chosen.seam, seam):
            edits = {**dict.fromkeys(SEAMS, ""), seam: getattr(chosen.seam, seam)}
            built = seams.edited(built, edits, f"{where}.")
    of_policy = [o for o in built.objectives if o.module == "policy"]
    trained = chosen.world.trained if built.source.origin == "policy" else ()
    others = [dataclasses.replace(o, module=name) for name in trained for o in of_policy]
    return dataclasses.replace(built, objectives=(*built.objectives, *others)) if others else built


def _optimizers(
    built: types.Algorithm, start: PhaseConfig, chosen: schema.Config, name: str
) -> tuple[optax.GradientTransformation, ...]:
    """Return the optimizer of each objective of a phase."""
    where, learner = f"config.phase.{name}", chosen.learner
    tower = [optimizers.parts(start.tower_optimizer, f"{where}.tower_optimizer")] if start.tower_optimizer else []
    of_each = [optimizers.parts(o.optimizer or start.optimizer, f"{where}.optimizer") for o in built.objectives]
    given = {"clip_norm": learner.clip_norm, "warmup": start.warmup}
    return tuple(optimizers.build([optimizers.apart(main, *tower)] if tower else main, **given) for main in of_each)


def traced(config: schema.ConfigDict, phase: Phase, values: Mapping[str, Any]) -> Phase:
    """Return a phase with traced numbers in place of some of its own.

    Args:
      config: the config of the phase.
      phase: from ``run``.
      values: arrays by field: arguments of calls in the algorithm, its seams or the optimizer, ``[n]`` for a tuple of n
        numbers, and scalars of settings.

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
            named[f"traced_{number}"] = tuple(value) if value.ndim else value
            files.override(config, field, parse.Name(f"traced_{number}"))
        elif of_phase and path[1] == phase.name:
            chosen = _with(chosen, path[2:], value)
        elif not of_phase and not _has(changes, path):
            chosen = _with(chosen, path, value)
    with parse.naming(named):
        start, changes, written = _settings(config, phase.name)
        built = _algorithm(written, phase.name, changes)
        return dataclasses.replace(
            phase, settings=chosen, algorithm=built, optimizers=_optimizers(built, start, chosen, phase.name)
        )


def _has(values: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Return whether nested values have one at a path."""
    head, *rest = path
    return head in values and (not rest or _has(values[head], rest))


def _with(group: Any, path: Sequence[str], value: Any) -> Any:
    """Return nested settings with one of them replaced."""
    head, *rest = path
    return dataclasses.replace(group, **{head: _with(getattr(group, head), rest, value) if rest else value})


def _grouped(chosen: schema.Config, algorithm: types.Algorithm, changes: Mapping[str, Any], name: str) -> schema.Config:
    """Return the settings of a phase with the samples of a prompt that its source has, if it does not sample any.

    Raises:
      ValueError: the phase sets another number.
    """
    source, samples = algorithm.source, changes.get("batch", {}).get("samples")
    if source.origin != "demonstrations" and not (isinstance(source, stored_files.Stored) and source.kind != "rows"):
        return chosen
    each = 2 if isinstance(source, stored_files.Stored) and source.kind == "pairs" else 1
    if samples not in (None, each):
        raise ValueError(f"config.phase.{name}.batch.samples={samples}: {source.spec} has groups of {each}.")
    return dataclasses.replace(chosen, batch=dataclasses.replace(chosen.batch, samples=each))
