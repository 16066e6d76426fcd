"""Modules beside the policy: their settings resolved to changes of the policy's network."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rljax import types
from rljax.algorithms import inputs, interpreter
from rljax.config import schema
from rljax.language import messages, parse, settings
from rljax.models.config import READING, Module, ModuleConfig
from rljax.training.phases import Phase
from rljax.transforms import modules

_FIELDS = tuple(f.name for f in dataclasses.fields(ModuleConfig))
_WHOLE = {name for name, row in types.SCORES.items() if "T" not in row.shape}  # scores of a row, not of its tokens
_ALWAYS = ("value", "reward")  # names that a config has without being told


def resolve(config: schema.ConfigDict, phases: Sequence[Phase]) -> dict[str, Module]:
    """Return the modules of a config by name, without the policy; one that a phase trains needs no settings.

    Raises:
      ValueError: an unknown field or name, a cycle of names, or an invalid value; a module that no phase uses, or that
        phases read and neither the config nor a phase provides.
    """
    built: dict[str, Module] = {}
    for name in config.module:
        _resolve(config, name, built, ())
    trained = {name for phase in phases for name in phase.trained} - {"policy"}
    built |= {name: Module(ModuleConfig(), {}) for name in sorted(trained - {*built})}
    _check(phases, built)
    return built


def _resolve(
    config: schema.ConfigDict, name: str, built: dict[str, Module], path: tuple[str, ...]
) -> Mapping[str, Any]:
    """Resolve a module and those it is like; return its changes of the policy's network."""
    where = f"config.module.{name}"
    if name == "policy" and not path:
        raise ValueError(f"{where}: the policy's network is config.model.")
    if name == modules.REFERENCE or {*"/@"} & {*name}:
        raise ValueError(f"{where}: a module has another name than {modules.REFERENCE!r}, without '/' and '@'.")
    if name in path:
        raise ValueError(f"config.module.{path[0]}.like: a cycle, {' -> '.join((*path, name))}.")
    if name in built:
        return built[name].changes
    given = {k: v for k, v in schema.checked_module(config.module[name], where).items() if v is not None}
    fields = settings.build(ModuleConfig, {k: given.pop(k) for k in _FIELDS if k in given}, where)
    field, base = fields.base
    for key, other in (("trunk", fields.trunk or "policy"), (field, base)):
        if other not in ("policy", *config.module):
            nearest = parse.nearest(other, ("policy", *config.module))
            raise ValueError(f"{where}.{key}={messages.shown(other)}: no such module.{nearest}")
    if field != "like" and given:
        raise ValueError(f"{where}.{next(iter(given))}: its network is the network of {field}={base!r}. Remove it.")
    if fields.trunk and _field(config, fields.trunk, "trunk"):
        raise ValueError(
            f"{where}.trunk={fields.trunk!r}: it is a head itself, on the trunk of "
            f"{_field(config, fields.trunk, 'trunk')!r}. Set that."
        )
    if fields.follows and _field(config, base, "follows"):
        raise ValueError(f"{where}.follows={base!r}: it follows {_field(config, base, 'follows')!r} itself. Set that.")
    if fields.follows and fields.trunk and fields.trunk != _field(config, base, "trunk"):
        raise ValueError(
            f"{where}.trunk={fields.trunk!r}: a head follows a head on the same trunk, and {base!r} is none. Remove it."
        )
    for key in READING if fields.trunk else ():
        if getattr(fields, key) or _field(config, fields.trunk, key):
            raise ValueError(
                f"{where}.trunk={fields.trunk!r}: a head reads the rows as they are. Remove {key} or trunk."
            )
    inherited = {} if base == "policy" else _resolve(config, base, built, (*path, name))
    changes = {**inherited, **given}
    built[name] = Module(fields, changes)
    return changes


def outputs(phases: Sequence[Phase], module: str) -> frozenset[str]:
    """Return what the algorithms of all phases use of a module's network: "logits", "scalar", or both."""
    return frozenset({"logits"}) if module == "policy" else frozenset().union(*(p.heads(module) for p in phases))


def _field(config: schema.ConfigDict, module: str, field: str) -> str:
    """Return a field of a module, "" for the policy, which has none."""
    return "" if module == "policy" else config.module[module].get(field, "")


def bins(phases: Sequence[Phase], module: str) -> tuple[float, float, int] | None:
    """Return the bins of a module's values: first center, last center, number; None: its values are plain numbers.

    Raises:
      ValueError: two phases train it with different bins.
    """
    named = {kind: phase.name for phase in phases for kind in sorted(phase.bins(module))}
    if len(named) > 1:
        (one, first), (two, second) = sorted(named.items())[:2]
        raise ValueError(
            f"the values of {module!r} are over {one[2]} bins in {one[:2]} in phase {first!r} and over {two[2]} in "
            f"{two[:2]} in phase {second!r}: they are one head. Give all phases the same bins."
        )
    return next(iter(named), None)


def _check(phases: Sequence[Phase], resolved: Mapping[str, Module]) -> None:
    """Check that modules are used, that those in use are known, their networks and their trunks."""
    phases = [dataclasses.replace(phase, module=resolved) for phase in phases]
    for phase in phases:
        _check_learning(phase)
        for name in phase.modules[1:]:
            if name not in resolved:
                raise ValueError(
                    f"config.algorithm (phase {phase.name!r}): {phase.algorithm.spec} uses the module {name!r}, which "
                    f"no phase trains, and the config has no config.module.{name} = rljax.module(...)."
                    f"{parse.nearest(name, resolved)}"
                )
    used = {name for phase in phases for name in phase.modules}
    for name in sorted(used):
        bins(phases, name)
    for name, module in resolved.items():
        if name not in used and name not in (*_ALWAYS, *(m.settings.like for m in resolved.values())):
            raise ValueError(f"config.module.{name}: no phase trains or reads this module. Remove it.")
        fields = [*module.changes, *(field for field in ("trunk", *READING) if getattr(module.settings, field))]
        if fields and phases[0].settings.model.kind != "transformer":
            raise ValueError(f"config.module.{name}.{fields[0]}: is for networks that read tokens. Remove it.")
        try:
            module.architecture(phases[0].settings.model.architecture)
        except ValueError as error:
            raise ValueError(f"config.module.{name}: {error}") from None
    for phase in phases:
        _check_trunks(phase)
        _check_readings(phase)
        _check_seats(phase)
    _check_followers(phases)
    for name in sorted(used - {"policy"}):
        _check_start(name, phases)


def _check_readings(phase: Phase) -> None:
    """Check that what a phase uses of a module fits what the module reads in place of the rows."""
    spec = phase.algorithm.spec
    for name in phase.modules[1:]:
        reading, used, where = phase.reading(name), phase.fields(name), f"config.module.{name}"
        texts = [field for field in READING if getattr(reading, field)]
        if texts and name in phase.teachers:
            raise ValueError(
                f"{where}.{texts[0]}: phase {phase.name!r} takes an exact divergence from it, which reads the policy's "
                "rows. Remove it."
            )
        if "after_logp" in used and "{solution}" not in reading.after:
            raise ValueError(
                f"{where}.after={messages.shown(reading.after)}: phase {phase.name!r} reads the log-probs of the "
                f"solution behind each row, {spec}. Write {{solution}} into it."
            )
        if reading.cut and (cut := sorted(used - _WHOLE)):
            raise ValueError(
                f"{where}.cut={messages.shown(reading.cut)}: phase {phase.name!r} uses its {cut[0]} at every token, "
                f"{spec}, and it reads none behind the text. Remove it."
            )


def _check_seats(phase: Phase) -> None:
    """Check that the modules that write rows read them as they are, and that the driver of seats can run theirs."""
    host, needs = phase.task.host, interpreter.needs(phase.algorithm)
    for name in phase.writers:
        changed = [*phase.module[name].changes, *(("follows",) if phase.of(name).follows else ())]
        texts = [field for field in READING if getattr(phase.reading(name), field)]
        seated = name in phase.settings.world.players
        if texts or (changed and host and seated):
            why = f"task {phase.task.name!r} has players who write rows"
            if not seated:
                why = f"{phase.algorithm.source.spec} samples a second pass from it"
            elif host:
                why = f"task {phase.task.name!r} is answered on the host, where all players have one network"
            raise ValueError(f"config.module.{name}.{[*texts, *changed][0]}: {why}. Remove it.")
        if changed and name in phase.trained and modules.REFERENCE in modules.compared(needs):
            raise ValueError(
                f"config.module.{name}.{changed[0]}: {phase.algorithm.spec} takes an exact divergence of {name!r} from "
                "the reference, which is a policy of another network. Remove it, or use an estimate of the KL."
            )


def _check_learning(phase: Phase) -> None:
    """Check that the players that learn are modules, and that the algorithm trains them as it does the policy."""
    world, spec, trained = phase.settings.world, phase.algorithm.spec, [o.module for o in phase.algorithm.objectives]
    if not world.trained or phase.algorithm.source.origin != "policy":
        return
    seated = f"a module of config.world.players={world.players}"
    reasons = [f"{name!r} is not {seated}" for name in world.trained if name not in {*phase.writers} & {*world.players}]
    reasons += ["expected each name once"] * (len({*world.trained}) < len(world.trained))
    reasons += [f"{spec} does not train the policy"] * ("policy" not in trained)
    twice = [name for name in world.trained if trained.count(name) > trained.count("policy")]
    reasons += [f"{spec} trains {name!r} itself" for name in twice]
    precedent = inputs.PRECEDENT in interpreter.needs(phase.algorithm).extra
    reasons += [f"{spec} reads the policy one step earlier, and no other module's"] * precedent
    if reasons:
        raise ValueError(f"config.world.trained={world.trained!r} (phase {phase.name!r}): {reasons[0]}.")


def _check_start(name: str, phases: Sequence[Phase]) -> None:
    """Check that words are read, and that no head is read before it is trained: it starts at 0."""
    fields, using = phases[0].of(name), [p for p in phases if name in p.modules]
    words = phases[0].reading(name).words
    if words and not any("reward" in p.fields(name) for p in phases):
        raise ValueError(f"config.module.{name}.words={messages.shown(words)}: no phase uses its rewards. Remove it.")
    fresh = not (fields.weights or fields.follows) and (fields.trunk or fields.like == "policy")
    if fresh and name not in using[0].trained and "scalar" in using[0].heads(name):
        raise ValueError(
            f"config.module.{name}: phase {using[0].name!r} reads numbers of it, and no phase has trained its head, "
            "which starts at 0. Train it in an earlier phase, or set weights."
        )


def _check_followers(phases: Sequence[Phase]) -> None:
    """Check that what is followed is trained, that followers are not, and that both have the outputs that are read."""
    trained = {name: phase for phase in phases for name in phase.trained}
    for name in dict.fromkeys(name for phase in phases for name in phase.modules):
        source = phases[0].of(name).follows
        if not source:
            continue
        where = f"config.module.{name}.follows={source!r}"
        if name in trained:
            raise ValueError(f"{where}: {trained[name].algorithm.spec} (phase {trained[name].name!r}) trains {name!r}.")
        if source not in trained:
            raise ValueError(f"{where}: no phase trains {source!r}, so it never moves. Remove it.")
        if missing := outputs(phases, name) - outputs(phases, source):
            read = "values or rewards" if "scalar" in missing else "log-probs"
            raise ValueError(f"{where}: the phases read {read} of {name!r}, and {source!r} has none.")


def _check_trunks(phase: Phase) -> None:
    """Check that a phase uses heads as heads, and that a head and its trunk can take the same gradient steps."""
    objectives, spec = phase.algorithm.objectives, phase.algorithm.spec
    for name in phase.modules:
        trunk = phase.of(name).trunk
        if trunk and "logits" in phase.heads(name):
            raise ValueError(
                f"config.module.{name}.trunk={trunk!r} (phase {phase.name!r}): {spec} reads log-probs of {name!r}, and "
                "a head is a number at each position. Remove it."
            )

    def steps(o: types.Objective) -> dict[str, Any]:
        epochs, minibatches = phase.settings.learner.of(o)
        optimizer = o.optimizer or phase.start.optimizer
        return {"epochs": epochs, "minibatches": minibatches, "optimizer": optimizer, "every": o.every}

    for lead, *heads in phase.joint:
        of_trunk = steps(objectives[lead])
        for name, given in ((objectives[number].module, steps(objectives[number])) for number in heads):
            for field, value in given.items():
                if value != of_trunk[field]:
                    raise ValueError(
                        f"config.module.{name}.trunk={phase.of(name).trunk!r} (phase {phase.name!r}): {spec} trains "
                        f"{name!r} with {field}={value!r} and its trunk with {of_trunk[field]!r}, and one optimizer "
                        "updates both. Set stop_trunk=True."
                    )
