"""Checks that the task, the algorithm, its source and the sizes of a phase are compatible."""

import dataclasses
import math
import operator

from rljax import environments, types
from rljax.algorithms import inputs, interpreter
from rljax.config import schema
from rljax.environments import traits
from rljax.environments.verifiers import outcomes
from rljax.language import limits
from rljax.sampling import processors
from rljax.training import producers
from rljax.training.phases import Phase
from rljax.transforms import modules
from rljax.transforms.source import files


def check(phase: Phase, trains: bool = True) -> None:
    """Check that algorithm, source, task and sizes of a phase are compatible.

    Args:
      phase: the phase.
      trains: whether it trains; else the time limit of its task alone is checked.

    Raises:
      ValueError: two of them are incompatible; the message names the fields, their values and what is allowed.
    """
    _check_timeout(phase)
    _check_pictures(phase)
    _check_kind(phase)
    if "" in phase.settings.sampler.stop:
        raise _wrong(phase, "sampler.stop", "no text may be empty.")
    shape, unroll = phase.settings.model.architecture, phase.settings.sampler.unroll
    if shape.decode_attention == "kernel" and shape.scan and not unroll:
        why = "must be True with model.decode_attention='kernel', which reads the cache of one layer."
        raise _wrong(phase, "sampler.unroll", why)
    if not trains:
        return
    chosen, algorithm, task, name = phase.settings, phase.algorithm, phase.task, phase.name
    prompts, samples, source, about = chosen.batch.prompts, chosen.batch.samples, algorithm.source, traits.traits(task)
    drawn = prompts * source.oversample
    if (rows := drawn * samples * about.rows_of_episode) > limits.ROWS:
        given = f"config.batch.prompts={prompts}, config.batch.samples={samples} (phase {name!r})"
        raise ValueError(f"{given}: a step has {rows:,} rows, of at most {limits.ROWS:,}.")
    if about.host and about.whole and source.origin == "policy" and drawn % chosen.verifier.chunks:
        raise _wrong(phase, "verifier.chunks", f"must divide the {drawn} prompts of a step.")
    _inputs(phase)
    _source(phase)
    _world(phase)
    if samples <= source.demonstrated:
        raise _wrong(phase, "batch.samples", f"{source.spec} leaves no sample to the policy.")
    if interpreter.needs(algorithm).siblings and samples < 2:
        why = f"{algorithm.spec} has a group baseline and needs at least 2 samples of each prompt."
        raise _wrong(phase, "batch.samples", why)
    if source.origin == "policy" and chosen.sampler.temperature <= 0:
        raise _wrong(phase, "sampler.temperature", "must be above 0 in training.")
    _check_rounding(chosen)
    _check_split(phase)


def _wrong(phase: Phase, field: str, reason: str) -> ValueError:
    """Return the error of a setting of a phase."""
    value = operator.attrgetter(field)(phase.settings)
    return ValueError(f"config.{field}={value!r} (phase {phase.name!r}): {reason}")


def _check_timeout(phase: Phase) -> None:
    """Check that the time limit of workers is above the limits of the task itself."""
    task, about = phase.task, traits.traits(phase.task)
    what = f"a turn of {task.name!r} may take by its own limits"
    if about.whole:
        what = f"the reward function of {task.name!r} allows itself"
    if phase.settings.verifier.timeout <= about.longest:
        raise _wrong(phase, "verifier.timeout", f"must be above {about.longest:g}, the seconds that {what}.")


def _check_kind(phase: Phase) -> None:
    """Check that the network reads what the task shows, and that no field of another kind of network is set."""
    model, tokens = phase.settings.model, traits.traits(phase.task).actions is None
    what = "tokens" if tokens else "observations of a control world"
    if (model.kind == "transformer") != tokens:
        kind = "transformer" if tokens else "mlp"
        raise _wrong(phase, "model.kind", f"task {phase.task.name!r} has {what}. Set it to {kind!r}.")
    plain = type(phase.settings)()
    other = ("model.mlp", "model.denoising") if tokens else ("model.architecture", "tokenizer", "model.weights")
    for group in other:
        given, default = (operator.attrgetter(group)(x) for x in (phase.settings, plain))
        if given == default:
            continue
        fields = [f.name for f in dataclasses.fields(given)] if dataclasses.is_dataclass(given) else []
        changed = next((f".{name}" for name in fields if getattr(given, name) != getattr(default, name)), "")
        field = f"{group}{changed}"
        value = operator.attrgetter(field)(phase.settings)
        name = field.replace("architecture.", "")
        raise ValueError(f"config.{name}={value!r} (phase {phase.name!r}): has no effect, as the task has {what}.")
    if not tokens:
        _check_actor(phase)


def _check_actor(phase: Phase) -> None:
    """Check what an actor cannot do."""
    needs, sampler = interpreter.needs(phase.algorithm), phase.settings.sampler
    if phase.settings.model.mlp.normalise and modules.reads_reference(needs):
        why = "reads the reference policy, whose observations would be scaled anew by each step."
        raise _wrong(phase, "model.mlp.normalise", f"{phase.algorithm.spec} {why}")
    model, discrete = phase.settings.model, hasattr(traits.traits(phase.task).actions, "count")
    chain = model.denoising.steps
    for field in ("squash", "log_std", "std") if discrete or chain else ():
        if getattr(model.mlp, field) != getattr(type(model.mlp)(), field):
            kind = "discrete actions" if discrete else f"model.denoising.steps={chain}"
            raise _wrong(phase, f"model.mlp.{field}", f"has no effect with {kind}. Remove it.")
    if discrete and chain:
        raise _wrong(phase, "model.denoising.steps", "has no effect with discrete actions. Remove it.")
    if chain and phase.algorithm.source.relabel is not None:
        raise _wrong(phase, "model.denoising.steps", f"{phase.algorithm.source.spec} relabels single steps. Remove it.")
    if processors.active(sampler):
        raise ValueError(f"config.sampler (phase {phase.name!r}): top_k, top_p and min_p filter tokens. Remove them.")
    for field in ("run.lag", "run.overlap", "mesh.rollout", "learner.lanes", "sampler.stop"):
        if operator.attrgetter(field)(phase.settings):
            raise _wrong(phase, field, "is for rows of tokens.")
    if phase.algorithm.source.segment and needs.siblings:
        raise ValueError(
            f"config.algorithm (phase {phase.name!r}): {phase.algorithm.spec} compares the samples of a prompt, and "
            f"{phase.algorithm.source.spec} cuts them. Use whole episodes, or an algorithm without a group baseline."
        )


def _check_pictures(phase: Phase) -> None:
    """Check that the policy reads the pictures of the task."""
    vision, pictures = phase.settings.model.architecture.vision, traits.traits(phase.task).pictures
    if pictures is None:
        inner = (getattr(phase.task, "inner", None), *getattr(phase.task, "worlds", ()))
        if hidden := [task.name for task in inner if task is not None and traits.traits(task).pictures is not None]:
            raise ValueError(f"config.task (phase {phase.name!r}): a world around {hidden[0]!r} hides its pictures.")
        return
    where = f"config.task (phase {phase.name!r}): the prompts of {phase.task.name!r} have pictures"
    if not vision.layers:
        raise ValueError(f"{where}, and config.model.vision.layers=0: the policy reads text only. Set it above 0.")
    for field, read, given in (
        ("pixels", (vision.pixels, vision.pixels), (pictures.height, pictures.width)),
        ("tokens", vision.tokens, pictures.tokens),
    ):
        if read != given:
            raise ValueError(f"{where} of {given} {field}: config.model.vision.{field} reads {read}.")


def _inputs(phase: Phase) -> None:
    """Check that task and source supply the arrays that the algorithm reads."""
    algorithm, task, name = phase.algorithm, phase.task, phase.name
    where = f"config.algorithm (phase {name!r}): {algorithm.spec}"
    stored_rows = algorithm.source if isinstance(algorithm.source, files.Stored) else None
    _check_kind_of_rows(phase)
    if algorithm.source.relabel is not None and not getattr(task, "goals", False):
        spec = algorithm.source.spec
        raise ValueError(f"{where}: {spec} needs rules that relabel goals, and those of {task.name!r} do not.")
    supplied, reporter, parts = traits.traits(task).supplies, f"task {task.name!r}", task.parts
    if stored_rows is not None:
        supplied, reporter, parts = supplied & {"token_reward", "turns"}, stored_rows.spec, stored_rows.parts
    missing, unsupplied = inputs.missing_parts(algorithm, parts), inputs.unsupplied(algorithm, supplied)
    if missing:
        raise ValueError(f"{where} reads parts[{missing[0]!r}]; {reporter} reports {', '.join(parts) or 'none'}.")
    if unsupplied:
        given = f" supplies {', '.join(sorted(supplied))}" if supplied else " supplies none of what worlds do"
        raise ValueError(
            f"{where} reads {', '.join(unsupplied)}, which neither its source nor task {task.name!r} supplies; the task"
            f"{given}. rljax.objective accepts them as arrays."
        )
    if interpreter.needs(algorithm).siblings and not traits.traits(task).shared:
        raise ValueError(
            f"{where} compares the samples of a prompt, and each sample of {task.name!r} begins another problem. Use "
            "an algorithm without a group baseline."
        )


def _check_kind_of_rows(phase: Phase) -> None:
    """Check that a file has rows of tokens for a task with tokens, and steps for a control world."""
    source = phase.algorithm.source
    if not isinstance(source, files.Stored):
        return
    where, about = f"config.algorithm (phase {phase.name!r}): {source.spec}", traits.traits(phase.task)
    if reason := producers.refused(phase.task).get("stored"):
        raise ValueError(f"{where} has one row for an episode, and {reason}.")
    if about.actions is not None:
        fits, text = source.kind == "steps", "a control world, whose steps source.recorded reads"
    elif source.kind == "steps":
        fits, text = False, "no control world: use source.stored"
    else:
        fits, text = about.whole or source.kind == "rows", "a world, whose files have conversations: kind 'rows'"
    if not fits:
        raise ValueError(f"{where} is a store of another kind of rows: task {phase.task.name!r} is {text}.")
    if source.kind == "steps" and phase.settings.model.denoising.positions == "step":
        raise _wrong(phase, "model.denoising.positions", f"{source.spec} has whole actions. Set it to 'action'.")


def _world(phase: Phase) -> None:
    """Check that players, source and sampler can run the task if it is a world, and that a task has no players."""
    chosen, algorithm, task = phase.settings, phase.algorithm, phase.task
    players, end, seats = chosen.world.players, f"task {task.name!r}", traits.traits(task).seats
    several = len({*players}) > 1
    if "policy" not in players or (seats == 1 and len(players) > 1):
        allowed = "'policy' alone, since one seat writes" if seats == 1 else "'policy' among them"
        raise _wrong(phase, "world.players", f"expected {allowed} in {end}.")
    if (many := seats + (chosen.batch.samples - 1) * chosen.world.swap) < len(players):
        raise _wrong(phase, "world.players", f"expected at most {many} in {end}, which has {seats} seats.")
    if "snapshot" in players and inputs.PRECEDENT in interpreter.needs(algorithm).extra:
        why = f"the snapshot is the policy one step earlier, which {algorithm.spec} reads."
        raise _wrong(phase, "world.players", f"expected 'policy' alone, as {why}")
    if chosen.sampler.slots and "slots" in (reasons := producers.refused(task)):
        raise _wrong(phase, "sampler.slots", f"{reasons['slots']}. Set it to 0.")
    each = seats * (chosen.batch.samples if several else 1)
    if chosen.sampler.slots % each:
        whole = "the rows of a prompt, which several players write" if several else "the seats of an episode"
        raise _wrong(phase, "sampler.slots", f"must be a multiple of {each}, {whole}.")
    if chosen.sampler.compact and "compact" in producers.refused(task):
        raise _wrong(phase, "sampler.compact", f"expected 0 in {end}.")


_WHOLE = {"row": "a row", "episode": "an episode", "group": "a group"}


def _check_split(phase: Phase) -> None:
    """Check that rows divide into minibatches and micro-batches without splitting what must stay whole.

    The pieces that run on a minibatch count the rows of an episode together, so no minibatch splits an episode.
    """
    chosen, algorithm, task, name = phase.settings, phase.algorithm, phase.task, phase.name
    prompts, samples, learner = chosen.batch.prompts, chosen.batch.samples, chosen.learner
    each = traits.traits(task).rows_of_episode
    units = {"row": 1, "episode": each, "group": samples * each}
    rows = f"{prompts} prompts * {samples} samples" + (f" * {each} rows of an episode" if each > 1 else "")
    for o in algorithm.objectives:
        whole = interpreter.objective_needs(o).whole
        _, minibatches = learner.of(o)
        pieces = minibatches * learner.parts
        if interpreter.needs(algorithm).siblings and prompts % minibatches:
            raise ValueError(
                f"config.learner.minibatches={minibatches} (phase {name!r}): must divide the {prompts} prompts."
            )
        _check_lanes(phase, o)
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


def _check_lanes(phase: Phase, o: types.Objective) -> None:
    """Check that algorithm, source and attention support packed rows."""
    chosen, algorithm, field = phase.settings, phase.algorithm, "learner.lanes"
    lanes, samples, whole = chosen.learner.lanes, chosen.batch.samples, interpreter.objective_needs(o).whole
    if not lanes or algorithm.source.origin == "demonstrations":
        return
    if not chosen.learner.share_prompt or lanes > samples:
        raise _wrong(phase, field, f"needs learner.share_prompt=True, and must be at most batch.samples={samples}.")
    if whole != "row":
        raise _wrong(phase, field, f"{algorithm.spec} needs each {whole} in one micro-batch. Set it to 0.")
    if chosen.model.architecture.attention == "splash":
        why = "splash attention supports no packed rows. Set it to 0 or set another model.attention."
        raise _wrong(phase, field, why)


def _check_rounding(chosen: schema.Config) -> None:
    """Check that a run with stochastic rounding trains bfloat16 parameters."""
    shape = chosen.model.architecture
    if chosen.learner.rounding == "stochastic" and (shape.param_dtype != "bfloat16" or shape.adapted):
        trained = "adapters, which are float32" if shape.adapted else f"{shape.param_dtype} parameters"
        raise ValueError(
            f"config.learner.rounding='stochastic': applies to bfloat16 parameters, and this run trains {trained}. Set "
            "it to 'nearest', or set config.model.param_dtype='bfloat16' without adapters."
        )


# --- what a source asks ------------------------------------------------------------------------


_ASKED = {  # by field of ``types.Source``, as in ``producers.refused``
    "again": "has a second pass, which needs a task of one turn",
    "demonstrated": "mixes completions",
    "head": "continues completions",
    "uneven": "gives the prompts unequal samples",
    "segment": "carries rows over inside the program",
    "early": "ends a segment with the first groups",
    "demonstrations": "imitates demonstrations",
}


def _source(phase: Phase) -> None:
    """Check what a source asks of the rest of a phase: second passes, unequal numbers of rows, single rows."""
    algorithm, task, name = phase.algorithm, phase.task, phase.name
    source, where = algorithm.source, f"config.algorithm (phase {name!r})"
    for what, reason in producers.refused(task).items():
        if what in _ASKED and getattr(source, what, source.origin == what):
            raise ValueError(f"{where}: {source.spec} {_ASKED[what]}, and {reason}.")
    if source.segment and phase.settings.run.lag:
        why = f"{source.spec} continues the rows of the step before, which a rollout that runs ahead does not have."
        raise _wrong(phase, "run.lag", f"{why} Set it to 0, or use another config.seam.source.")
    if phase.settings.run.overlap and source.origin == "policy":
        _check_overlap(phase)
    sampler = phase.settings.sampler
    if isinstance(source, files.Arriving) and sampler.rescore == "kept" and processors.active(sampler):
        why = f"rows of {source.spec} lack the support that was kept at sampling. Set it to 'unfiltered'."
        raise _wrong(phase, "sampler.rescore", why)
    if phase.edited and phase.settings.learner.lanes:
        why = f"packed rows share a prompt, and {source.spec} trains rows of a group under several. Set it to 0."
        raise _wrong(phase, "learner.lanes", why)
    if source.uneven:
        _check_drawn(phase)
    if not source.grouped and traits.traits(task).rows_of_episode > 1:
        raise ValueError(
            f"{where}: {source.spec} selects single rows, and an episode of task {task.name!r} has several. Use "
            "another config.seam.source."
        )
    if not source.grouped and source.segment:
        raise ValueError(f"{where}: {source.spec} selects single rows, and rows in flight need whole groups.")
    if "used" in source.supplies:
        _check_windows(algorithm, where)
    if source.uneven or not source.grouped:
        for o in algorithm.objectives:
            _check_objective(phase, o)


def _check_overlap(phase: Phase) -> None:
    """Check that gradients can be computed as rows arrive, a micro-batch at a time."""
    settings, algorithm, source = phase.settings, phase.algorithm, phase.algorithm.source
    learner, plain = settings.learner, types.Source
    chosen = source.select is not plain.select or source.head or source.again or source.demonstrated or source.uneven
    repeats = [math.prod(learner.of(o)) for o in algorithm.objectives]
    shared = len(phase.trained) < len(algorithm.objectives) or any(phase.of(m).trunk for m in phase.modules)
    reasons = (
        (settings.run.lag, f"config.run.lag={settings.run.lag} overlaps whole rollouts. Set one of both"),
        (learner.microbatches < 2, "the parts are micro-batches. Set config.learner.microbatches above 1"),
        (settings.batch.prompts % learner.parts, "config.learner.microbatches must divide the prompts"),
        (learner.lanes, f"config.learner.lanes={learner.lanes} packs rows of the whole batch. Set it to 0"),
        (settings.log.diagnostics, "config.log.diagnostics reads the gradients of the whole batch. Leave it empty"),
        (not traits.traits(phase.task).whole, f"task {phase.task.name!r} has several turns"),
        (chosen or source.segment, f"{source.spec} selects, edits or continues rows of the whole batch"),
        (max(repeats) > 1, "an objective takes several gradient steps on the rows of a step"),
        (shared, "two objectives train one network"),
        (any(o.every > 1 for o in algorithm.objectives), "an objective does not step at every update"),
        (interpreter.needs(algorithm).live, f"{algorithm.spec} reads log-probs of the whole minibatch"),
    )
    for holds, reason in reasons:
        if holds:
            raise _wrong(phase, "run.overlap", f"{reason}.")


def _check_windows(algorithm: types.Algorithm, where: str) -> None:
    """Check that an algorithm that gets rows that go on leaves out tokens of earlier steps, and compares no rewards."""
    needs, source = interpreter.needs(algorithm), algorithm.source.spec
    if "used" not in needs.extra:
        raise ValueError(
            f"{where}: {source} returns tokens of earlier steps too, which {algorithm.spec} would train on again. Add "
            "config.seam.prepare='+ drop_used()'."
        )
    if needs.siblings:
        raise ValueError(
            f"{where}: {algorithm.spec} compares the samples of a prompt, and samples of {source} that go on have no "
            "reward yet. Use an algorithm without a group baseline, such as t_ppo()."
        )


def _check_drawn(phase: Phase) -> None:
    """Check the rollout of a source that gives prompts unequal numbers of samples."""
    chosen, source, task, name = phase.settings, phase.algorithm.source, phase.task, phase.name
    where = f"config.algorithm (phase {name!r})"
    unequal = f"{source.spec} gives the prompts unequal samples"
    equal = {"rows in flight are of": source.segment, "demonstrations take the last samples of": source.demonstrated}
    for other in (other for other, there in equal.items() if there):
        raise ValueError(f"{where}: {unequal}, and {other} equal groups.")
    if not environments.scored_on_host(task):
        return
    if chosen.verifier.chunks != 1:
        raise _wrong(phase, "verifier.chunks", f"must be 1, as {unequal}, and a chunk has a fixed number of rows.")
    if outcomes.grouped(task.reward):
        raise ValueError(
            f"{where}: {unequal}, and the reward function of task {task.name!r} judges batch.samples rows together."
        )


def _check_objective(phase: Phase, o: types.Objective) -> None:
    """Check that no minibatch or micro-batch splits a group that an objective reads whole."""
    chosen, algorithm, name = phase.settings, phase.algorithm, phase.name
    needs, source = interpreter.objective_needs(o), algorithm.source
    _, minibatches = chosen.learner.of(o)
    pieces = minibatches * chosen.learner.parts
    if (needs.whole == "group" and pieces > 1) or (needs.siblings and minibatches > 1):
        split = pieces if needs.whole == "group" else minibatches
        raise ValueError(
            f"config.learner.minibatches * config.learner.microbatches = {split} (phase {name!r}): must be 1, as "
            f"{algorithm.spec} reads whole groups, and the groups of {source.spec} are of unequal sizes."
        )
    if chosen.learner.lanes:
        raise _wrong(phase, "learner.lanes", f"must be 0, as the groups of {source.spec} are of unequal sizes.")
