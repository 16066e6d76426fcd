"""Check the settings of a config and resolve its names.

``check(config)`` returns the settings as a typed ``schema.Config``; ``phases(config)`` returns the phases with task,
algorithm and optimizers. Both check everything that needs no device; an error names the field, its value and what is
allowed.
"""

import dataclasses
from typing import Literal

from rljax import environments, models, types
from rljax.algorithms import inputs, interpreter, seams
from rljax.config import choices, effects, modules, schema, sources, stored
from rljax.environments import worlds
from rljax.environments.worlds import supplies
from rljax.environments.worlds.host import limited
from rljax.host import profiles
from rljax.language import limits, messages, parse, reached, settings
from rljax.models.checkpoints import families, weights
from rljax.models.config import ModelConfig
from rljax.run import sinks
from rljax.training.config import PhaseConfig
from rljax.training.phases import Phase
from rljax.transforms.source import files

# --- settings ----------------------------------------------------------------------------------


def check(config: schema.ConfigDict) -> schema.Config:
    """Return the settings of the run, without the changes of its phases.

    Raises:
      ValueError: an unknown field, or a value of another type or out of range.
    """
    built = settings.build(schema.Config, {name: value for name, value in config.items() if name not in choices.OTHER})
    if "" in built.sampler.stop:
        raise ValueError(f"config.sampler.stop={built.sampler.stop!r}: no text may be empty.")
    sinks.build(built.log.sinks, "config.log.sinks")
    return built


def complete(config: schema.ConfigDict) -> schema.ConfigDict:
    """Return a copy of a config; where ``weights`` names a folder, the shape is read from the config.json there.

    Raises:
      ValueError: the folder has no config.json, or its model family is unknown.
    """
    config = config.copy_and_resolve_references()
    if config.model.weights:
        try:
            config.model.update(families.read(weights.config(config.model.weights)))
        except ValueError as error:
            raise ValueError(f"config.model.weights={config.model.weights!r}: {error}") from None
    modules.complete(config)
    return config


def architecture(
    model: ModelConfig, vocabulary: int, output: Literal["logits", "scalar", "both"] = "logits"
) -> models.Architecture:
    """Return the model's architecture for a tokenizer.

    Args:
      model: the settings of the model.
      vocabulary: number of ids of the tokenizer.
      output: outputs of the network.

    Returns:
      The architecture; its vocabulary is that of the settings, or the tokenizer's if the setting is 0.

    Raises:
      ValueError: the model's vocabulary is smaller than the tokenizer's.
    """
    size = model.architecture.vocabulary
    if 0 < size < vocabulary:
        raise ValueError(
            f"config.model.vocabulary={size} (weights {model.weights!r}): must be at least "
            f"{vocabulary}, the number of ids of the tokenizer."
        )
    return dataclasses.replace(model.architecture, vocabulary=size or vocabulary, output=output)


# --- phases ------------------------------------------------------------------------------------


def phases(config: schema.ConfigDict, trains: bool = True) -> tuple[Phase[schema.Config], ...]:
    """Return the phases of a run, with names resolved and values checked.

    Args:
      config: of the run.
      trains: whether the phases will train; else algorithm, task and sizes need not be compatible.

    Raises:
      ValueError: an invalid field; the message names the field, its value and what is allowed.
    """
    run = check(config)
    if not run.phases:
        raise ValueError("config.phases=(): must name at least one phase.")
    built: list[Phase[schema.Config]] = []
    tasks: dict[str, environments.Task] = {}  # created once, since a task may read files
    for name in run.phases:
        if name not in config.phase:
            raise ValueError(f"config.phases: no config.phase.{name}.{parse.nearest(name, config.phase.keys())}")
        built.append(_phase(config, name, built[-1].last if built else 0, tasks, trains))
    module = modules.resolve(config, built)
    _check_seams(config, run)
    profiles.steps(run.profile, built[-1].last)
    built = [dataclasses.replace(phase, module=module) for phase in built]
    unread = effects.of_fields(config, built)
    return tuple(
        dataclasses.replace(phase, warnings=(*lines, *phase.warnings))
        for phase, lines in zip(built, unread, strict=True)
    )


def code(config: schema.ConfigDict) -> dict[str, str]:
    """Return digests of the modules outside rljax that a config reaches and of its files of stored rows.

    See ``reached``. Raises as ``phases``, and ValueError if a file of stored rows cannot be read.
    """
    with reached.recording() as modules:
        resolved = phases(config)
    return reached.digests(modules) | stored.digests(resolved)


def _check_seams(config: schema.ConfigDict, run: schema.Config) -> None:
    """Raise ValueError if a seam of the run is set and no phase uses it."""
    for seam in choices.SEAMS:
        users = [n for n in run.phases if not config.phase[n].algorithm and config.phase[n].seam[seam] is None]
        if getattr(run.seam, seam) and not users:
            raise ValueError(
                f"config.seam.{seam}={getattr(run.seam, seam)!r} edits nothing: every phase sets algorithm or this "
                f"seam. Set config.phase.{run.phases[-1]}.seam.{seam}."
            )


def played(config: schema.ConfigDict, task: str) -> schema.ConfigDict:
    """Return a copy of a config whose policy plays another task in every phase.

    It has no algorithm of the run, no seam, optimizer and other module, so that none of them restricts the task.
    """
    config = config.copy_and_resolve_references()
    config.task, config.algorithm, config.module = task, "reinforce()", type(config)()
    config.seam.update(dict.fromkeys(choices.SEAMS, ""))
    for phase in config.phase.values():
        phase.task, phase.algorithm, phase.optimizer = None, None, PhaseConfig.optimizer
        phase.seam.update(dict.fromkeys(choices.SEAMS))
    return config


def _phase(
    config: schema.ConfigDict, name: str, first: int, tasks: dict[str, environments.Task], trains: bool
) -> Phase[schema.Config]:
    start, changes, chosen = choices.settings_of(config, name)
    algorithm = choices.algorithm(chosen, name, changes)
    chosen = stored.grouped(chosen, algorithm, changes, name)
    field = f"config.phase.{name}"
    if chosen.task not in tasks:
        where = f"{field}.task" if "task" in changes else "config.task"
        with limited.within(chosen.verifier):
            tasks[chosen.task] = parse.one(chosen.task, parse.Registry("task", environments.TASKS), where)
        if not hasattr(tasks[chosen.task], "host"):
            raise ValueError(
                f"{where}={messages.shown(chosen.task)}: did not return a task"
                + (
                    "; rules of characters go into worlds.text.TextWorld."
                    if hasattr(tasks[chosen.task], "alphabet")
                    else "."
                )
            )
    task = tasks[chosen.task]
    _check_timeout(chosen, task, name)
    if trains:
        _check_phase(chosen, algorithm, task, name)

    phase = Phase(
        name=name,
        first=first,
        last=first + start.steps,
        start=start,
        settings=chosen,
        algorithm=algorithm,
        optimizers=choices.optimizers_of(algorithm, start, chosen, name),
        task=task,
    )
    warnings, notes = effects.of_algorithm(phase, seams.plain(chosen.algorithm))
    return dataclasses.replace(phase, warnings=tuple(warnings), notes=tuple(notes))


# --- checks ------------------------------------------------------------------------------------


def _check_phase(chosen: schema.Config, algorithm: types.Algorithm, task: environments.Task, name: str) -> None:
    """Check that algorithm, task and sizes of a phase are compatible."""
    prompts, samples, source = chosen.batch.prompts, chosen.batch.samples, algorithm.source
    if (rows := prompts * samples * source.oversample * supplies.rows_of_episode(task)) > limits.ROWS:
        raise ValueError(
            f"config.batch.prompts={prompts}, config.batch.samples={samples} (phase {name!r}): a step has {rows:,} "
            f"rows, of at most {limits.ROWS:,}."
        )
    drawn, chunks = prompts * source.oversample, chosen.verifier.chunks
    if environments.scored_on_host(task) and source.origin == "policy" and drawn % chunks:
        raise ValueError(
            f"config.verifier.chunks={chunks} (phase {name!r}): must divide the {drawn} prompts of a step."
        )
    _inputs(algorithm, task, name)
    sources.check(chosen, algorithm, task, name)
    _world(chosen, algorithm, task, name)
    if samples <= source.demonstrated:
        raise ValueError(
            f"config.batch.samples={samples} (phase {name!r}): {source.spec} leaves no sample to the policy."
        )
    if interpreter.needs(algorithm).siblings and samples < 2:
        raise ValueError(
            f"config.batch.samples={samples} (phase {name!r}): {algorithm.spec} has a group baseline and "
            "needs at least 2 samples of each prompt."
        )
    if source.origin == "policy" and chosen.sampler.temperature <= 0:
        raise ValueError(
            f"config.sampler.temperature={chosen.sampler.temperature} (phase {name!r}): must be above 0 in training."
        )
    _check_rounding(chosen)
    _check_split(chosen, algorithm, task, name)


def _check_timeout(chosen: schema.Config, task: environments.Task, name: str) -> None:
    """Check that the time limit of workers is above the limits of the task itself."""
    what, longest = _longest(task)
    if chosen.verifier.timeout <= longest:
        raise ValueError(
            f"config.verifier.timeout={chosen.verifier.timeout} (phase {name!r}): must be above {longest:g}, the"
            f" seconds that {what}."
        )


def _longest(task: environments.Task) -> tuple[str, float]:
    """Return the seconds that workers may need for a row or a turn by limits of the task itself, and what they are."""
    if worlds.on_host(task):
        return f"a turn of {task.name!r} may take by its own limits", task.longest
    if environments.scored_on_host(task):
        return f"the reward function of {task.name!r} allows itself", getattr(task.reward, "longest", 0.0)
    return "", 0.0


def _inputs(algorithm: types.Algorithm, task: environments.Task, name: str) -> None:
    """Check that task and source supply the arrays that the algorithm reads."""
    where = f"config.algorithm (phase {name!r}): {algorithm.spec}"
    stored_rows = algorithm.source if isinstance(algorithm.source, files.Stored) else None
    if stored_rows is not None and worlds.in_turns(task):
        raise ValueError(f"{where}: {algorithm.source.spec} has rows of one turn, and task {task.name!r} is a world.")
    supplied = supplies.supplies(task) if stored_rows is None else frozenset()
    reporter = f"task {task.name!r}" if stored_rows is None else stored_rows.spec
    parts = task.parts if stored_rows is None else stored_rows.parts
    missing, unsupplied = inputs.missing_parts(algorithm, parts), inputs.unsupplied(algorithm, supplied)
    if missing:
        raise ValueError(f"{where} reads parts[{missing[0]!r}]; {reporter} reports {', '.join(parts) or 'none'}.")
    if unsupplied:
        given = f" supplies {', '.join(sorted(supplied))}" if supplied else " supplies none of what worlds do"
        raise ValueError(
            f"{where} reads {', '.join(unsupplied)}, which neither its source nor task {task.name!r} supplies; the task"
            f"{given}. rljax.objective accepts them as arrays."
        )
    if interpreter.needs(algorithm).siblings and not supplies.shared(task):
        raise ValueError(
            f"{where} compares the samples of a prompt, and each sample of {task.name!r} begins another problem. Use "
            "an algorithm without a group baseline."
        )
    if algorithm.source.segment and task.host:
        raise ValueError(
            f"{where}: {algorithm.source.spec} carries rows over inside the program, and task {task.name!r} is scored "
            "on the host, or played there. Use another config.seam.source, or a task that runs on devices."
        )


def _world(chosen: schema.Config, algorithm: types.Algorithm, task: environments.Task, name: str) -> None:
    """Check that players, source and sampler can run the task if it is a world, and that a task has no players."""
    players, source, end = chosen.world.players, algorithm.source, f"task {task.name!r}"
    alone = not worlds.in_turns(task) or task.seats == 1
    if "policy" not in players or (alone and len(players) > 1):
        allowed = "'policy' alone, since one seat writes" if alone else "'policy' among them"
        raise ValueError(f"config.world.players={players} (phase {name!r}): expected {allowed} in {end}.")
    if "snapshot" in players and inputs.PRECEDENT in interpreter.needs(algorithm).extra:
        raise ValueError(
            f"config.world.players={players} (phase {name!r}): expected 'policy' alone, as the snapshot is the policy "
            f"one step earlier, which {algorithm.spec} reads."
        )
    if chosen.sampler.compact and worlds.on_host(task):
        raise ValueError(f"config.sampler.compact={chosen.sampler.compact} (phase {name!r}): expected 0 in {end}.")
    if not worlds.in_turns(task):
        return
    if source.demonstrated or source.head is not None:
        what = "mixes" if source.demonstrated else "continues"
        raise ValueError(f"config.algorithm (phase {name!r}): {source.spec} {what} completions, and {end} is a world.")
    if source.segment and (task.seats > 1 or task.rows == "chapters"):
        raise ValueError(f"config.algorithm (phase {name!r}): {source.spec} needs one-seat conversations, not {end}.")
    if chosen.sampler.compact and task.seats > 1:
        raise ValueError(f"config.sampler.compact={chosen.sampler.compact} (phase {name!r}): expected 0 in {end}.")


_WHOLE = {"row": "a row", "episode": "an episode", "group": "a group"}


def _check_split(chosen: schema.Config, algorithm: types.Algorithm, task: environments.Task, name: str) -> None:
    """Check that rows divide into minibatches and micro-batches without splitting what must stay whole.

    The pieces that run on a minibatch count the rows of an episode together, so no minibatch splits an episode.
    """
    prompts, samples, learner = chosen.batch.prompts, chosen.batch.samples, chosen.learner
    each = supplies.rows_of_episode(task)
    units = {"row": 1, "episode": each, "group": samples * each}
    rows = f"{prompts} prompts * {samples} samples" + (f" * {each} rows of an episode" if each > 1 else "")
    for o in algorithm.objectives:
        whole = interpreter.objective_needs(o).whole
        minibatches = o.minibatches or learner.minibatches
        pieces = minibatches * learner.microbatches
        if interpreter.needs(algorithm).siblings and prompts % minibatches:
            raise ValueError(
                f"config.learner.minibatches={minibatches} (phase {name!r}): must divide the {prompts} prompts."
            )
        _check_lanes(chosen, algorithm, o, name)
        if (prompts * samples) % minibatches and each > 1:
            raise ValueError(
                f"config.learner.minibatches={minibatches} (phase {name!r}): must divide {prompts} prompts * {samples} "
                f"samples, since the {each} rows of an episode stay together."
            )
        if (prompts * samples * each) % (pieces * units[whole]):
            raise ValueError(
                f"config.learner.minibatches * config.learner.microbatches = {pieces} (phase {name!r}): must divide "
                f"{rows}" + (f" without splitting {_WHOLE[whole]}." if units[whole] > 1 else ".")
            )


def _check_lanes(chosen: schema.Config, algorithm: types.Algorithm, o: types.Objective, name: str) -> None:
    """Check that algorithm, source and attention support packed rows."""
    lanes, samples, whole = chosen.learner.lanes, chosen.batch.samples, interpreter.objective_needs(o).whole
    if not lanes or algorithm.source.origin == "demonstrations":
        return
    where = f"config.learner.lanes={lanes} (phase {name!r})"
    if not chosen.learner.share_prompt or lanes > samples:
        raise ValueError(f"{where}: needs learner.share_prompt=True, and must be at most batch.samples={samples}.")
    if whole != "row":
        raise ValueError(f"{where}: {algorithm.spec} needs each {whole} in one micro-batch. Set it to 0.")
    if chosen.model.architecture.attention == "splash":
        raise ValueError(
            f"{where}: splash attention supports no packed rows. Set it to 0 or set another model.attention."
        )


def _check_rounding(chosen: schema.Config) -> None:
    """Check that a run with stochastic rounding trains bfloat16 parameters."""
    shape = chosen.model.architecture
    if chosen.learner.rounding == "stochastic" and (shape.param_dtype != "bfloat16" or shape.adapted):
        trained = "adapters, which are float32" if shape.adapted else f"{shape.param_dtype} parameters"
        raise ValueError(
            f"config.learner.rounding='stochastic': applies to bfloat16 parameters, and this run trains {trained}. Set "
            "it to 'nearest', or set config.model.param_dtype='bfloat16' without adapters."
        )
