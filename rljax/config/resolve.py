"""The config resolved: the one place where its names are looked up.

``default()`` (in ``schema.py``) has every field. ``resolve(config)`` turns strings into tasks, algorithms and
optimizers and checks whatever can be checked before any device work; each error names the field, what was
given and what is allowed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import optax

from rljax import environments, models, sampling, types
from rljax.algorithms import inputs, interpreter, seams
from rljax.config import schema
from rljax.host import profiles
from rljax.language import parse
from rljax.models.checkpoints import families, weights
from rljax.training import optimizers, sharding

# --- what a resolved config is -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase with its names resolved. It makes the updates ``first`` < step <= ``last``."""

    name: str
    algorithm: types.Algorithm
    first: int
    last: int
    prompts: int
    samples: int
    optimizers: tuple[optax.GradientTransformation, ...]  # one for each objective
    reset_optimizer: bool
    reference: str
    evaluate: str


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A config with its names resolved and its numbers checked."""

    task: environments.Task  # not yet bound to a tokenizer
    phases: tuple[Phase, ...]
    processors: sampling.Processors
    rescore: bool
    profile: range  # steps to trace

    @property
    def steps(self) -> int:
        """Updates of the whole run."""
        return self.phases[-1].last

    def phase_of(self, step: int) -> Phase:
        """Return the phase that makes the update after ``step`` finished ones; the last when all are done."""
        return next((p for p in self.phases if step < p.last), self.phases[-1])


def _optax_registry() -> dict[str, Callable[..., Any]]:
    own = {"muon": optimizers.muon}
    return own | {n: f for n, f in vars(optax).items() if callable(f) and not isinstance(f, type) and n[0].islower()}


def _optimizer(text: str, field: str, clip_norm: float, warmup: int) -> optax.GradientTransformation:
    parts = parse.many(text, _optax_registry(), field)
    if not parts or not all(isinstance(p, optax.GradientTransformation) for p in parts):
        raise ValueError(f"{field}={text!r}: not a chain of optax gradient transformations.")
    return optimizers.build(parts, clip_norm=clip_norm, warmup=warmup)


def _phase(config: schema.ConfigDict, task: environments.Task, name: str, first: int) -> Phase:
    if name not in config.phase:
        raise ValueError(f"config.phases: no config.phase.{name}.{parse.nearest(name, config.phase.keys())}")
    fields, field = config.phase[name], f"config.phase.{name}"
    if fields.algorithm:
        algorithm = seams.algorithm(fields.algorithm, f"{field}.algorithm")
    else:
        algorithm = seams.edited(seams.algorithm(config.algorithm, "config.algorithm"), config.seam)
    if config.learner.shared_critic and interpreter.needs(algorithm).value:
        algorithm = seams.on_one_trunk(algorithm, config.learner.shared_critic)
    _at_least(0, {f"{field}.{k}": fields[k] for k in ("prompts", "samples", "warmup")})
    prompts, samples = fields.prompts or config.batch.prompts, fields.samples or config.batch.samples
    samples = 1 if algorithm.source.origin == "demonstrations" and not fields.samples else samples
    _at_least(1, {f"{field}.steps": fields.steps, "batch.prompts": prompts, "batch.samples": samples})
    drawn, chunks = prompts * algorithm.source.oversample, config.verifier.chunks
    if task.host and algorithm.source.origin == "policy" and drawn % chunks:
        raise ValueError(
            f"config.verifier.chunks={chunks} (phase {name!r}): must divide the {drawn} prompts of a step."
        )
    _inputs(algorithm, task, name)
    if samples <= algorithm.source.demonstrated:
        raise ValueError(
            f"config.batch.samples={samples} (phase {name!r}): {algorithm.source.spec} leaves none to the policy."
        )
    if interpreter.needs(algorithm).siblings and samples < 2:
        raise ValueError(
            f"config.batch.samples={samples} (phase {name!r}): {algorithm.spec} has a group baseline and "
            "needs at least 2 samples of each prompt."
        )
    if fields.reference not in ("start", "keep"):
        raise ValueError(f"{field}.reference={fields.reference!r}: 'start' or 'keep'.")
    built = tuple(
        _optimizer(o.optimizer or fields.optimizer, f"{field}.optimizer", config.learner.clip_norm, fields.warmup)
        for o in algorithm.objectives
    )
    _split(config, algorithm, prompts, samples, name)
    return Phase(
        name=name,
        algorithm=algorithm,
        first=first,
        last=first + fields.steps,
        prompts=prompts,
        samples=samples,
        optimizers=built,
        reset_optimizer=fields.reset_optimizer,
        reference=fields.reference,
        evaluate=fields.evaluate,
    )


def _inputs(algorithm: types.Algorithm, task: environments.Task, name: str) -> None:
    """Check that somebody gives the named arrays the algorithm reads."""
    where = f"config.algorithm (phase {name!r}): {algorithm.spec}"
    missing, unsupplied = inputs.missing_parts(algorithm, task.parts), inputs.unsupplied(algorithm)
    if missing:
        reported = ", ".join(task.parts) or "none"
        raise ValueError(f"{where} reads parts[{missing[0]!r}]; task {task.name!r} reports {reported}.")
    if unsupplied:
        raise ValueError(
            f"{where} reads {', '.join(unsupplied)}, which its source does not supply; rljax.objective takes it "
            "on arrays."
        )
    if algorithm.source.segment and task.host:
        raise ValueError(
            f"{where}: {algorithm.source.spec} carries rows over inside the program; task {task.name!r} is scored on "
            "the host. Another config.seam.source, or a task with a device verifier."
        )
    if algorithm.source.demonstrated and task.host:
        raise ValueError(f"{where}: task {task.name!r} gives its demonstrations on the host, not inside a rollout.")


def _at_least(low: int, fields: dict[str, Any]) -> None:
    for field, value in fields.items():
        if value < low:
            raise ValueError(f"config.{field.removeprefix('config.')}={value}: at least {low}.")


def _split(config: schema.ConfigDict, algorithm: types.Algorithm, prompts: int, samples: int, name: str) -> None:
    """Check that rows divide into minibatches and micro-batches without cutting a block."""
    for o in algorithm.objectives:
        unit = 1 if interpreter.objective_needs(o).whole == "row" else samples
        minibatches = o.minibatches or config.learner.minibatches
        pieces = minibatches * config.learner.microbatches
        if interpreter.needs(algorithm).siblings and prompts % minibatches:
            raise ValueError(
                f"config.learner.minibatches={minibatches} (phase {name!r}): must divide the {prompts} prompts."
            )
        _lanes(config, algorithm, o, samples, name)
        if (prompts * samples) % (pieces * unit):
            raise ValueError(
                f"config.learner.minibatches * config.learner.microbatches = {pieces} (phase {name!r}): must divide "
                f"{prompts} prompts * {samples} samples" + (" without cutting a group." if unit > 1 else ".")
            )


def _lanes(config: schema.ConfigDict, algorithm: types.Algorithm, o: types.Objective, samples: int, name: str) -> None:
    """Check that packed rows fit the run: completions of one prompt, in any order, read by a kernel that can."""
    lanes, block = config.learner.lanes, interpreter.objective_needs(o).whole
    if not lanes or algorithm.source.origin != "policy":
        return
    where = f"config.learner.lanes={lanes} (phase {name!r})"
    if not config.learner.share_prompt or lanes > samples:
        raise ValueError(f"{where}: needs learner.share_prompt, and is at most the {samples} samples of a prompt.")
    if block != "row":
        raise ValueError(f"{where}: {algorithm.spec} needs each {block} whole in a micro-batch; lanes may part it. 0.")
    if config.model.attention == "splash":
        raise ValueError(f"{where}: splash attention has one completion to a row; 0, or another model.attention.")


def architecture(
    config: schema.ConfigDict, vocabulary: int, output: Literal["logits", "scalar", "both"] = "logits"
) -> models.Architecture:
    """Return the model's architecture for a tokenizer's vocabulary."""
    fields = config.model.to_dict()
    folder = fields.pop("weights")
    if 0 < fields["vocabulary"] < vocabulary:
        raise ValueError(
            f"config.model.vocabulary={fields['vocabulary']} (weights {folder!r}): the tokenizer has {vocabulary} ids."
        )
    fields["vocabulary"] = fields["vocabulary"] or vocabulary
    try:
        return models.Architecture(output=output, **fields)
    except ValueError as error:
        raise ValueError(f"config.model: {error}") from None


def complete(config: schema.ConfigDict) -> schema.ConfigDict:
    """Return a copy whose ``model`` is what the folder ``model.weights`` says, where one is named.

    Raises:
      ValueError: the folder has no config.json, or one of no known family.
    """
    config = config.copy_and_resolve_references()
    if config.model.weights:
        try:
            config.model.update(families.read(weights.config(config.model.weights)))
        except ValueError as error:
            raise ValueError(f"config.model.weights={config.model.weights!r}: {error}") from None
    return config


def _rounding(config: schema.ConfigDict, shape: models.Architecture) -> None:
    """Check that stochastic rounding has something to round."""
    rounding = config.learner.rounding
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"config.learner.rounding={rounding!r}: 'nearest' or 'stochastic'.")
    if rounding == "stochastic" and (shape.param_dtype != "bfloat16" or shape.adapted):
        trained = "adapters, which are float32" if shape.adapted else f"parameters of {shape.param_dtype}"
        raise ValueError(
            f"config.learner.rounding='stochastic': rounds parameters in bfloat16, and this run trains {trained}; "
            "'nearest', or config.model.param_dtype='bfloat16' without adapters."
        )


def resolve(config: schema.ConfigDict) -> Resolved:
    """Resolve every name and check every number that can be checked without a device.

    Raises:
      ValueError: names the field, what was given and what is allowed.
    """
    _known(config, schema.default())
    counts = {
        "learner": ("epochs", "minibatches", "microbatches", "max_skipped"),
        "verifier": ("chunks",),
        "evaluation": ("prompts", "samples", "final_prompts", "final_samples"),
        "checkpoint": ("every", "max_to_keep"),
        "log": ("every",),
    }
    optional = {
        "learner": ("clip_norm", "lanes", "shared_critic", "vocabulary"),
        "sampler": ("cache_block", "compact"),
        "verifier": ("workers",),  # 0 scores in this process
        "evaluation": ("every",),
        "log": ("rollouts", "rollout_rows"),
    }
    for low, table in ((1, counts), (0, optional)):
        _at_least(low, {f"{part}.{field}": config[part][field] for part, fields in table.items() for field in fields})
    _at_least(0, {"cpu_devices": config.cpu_devices})
    if config.verifier.timeout <= 0:
        raise ValueError(f"config.verifier.timeout={config.verifier.timeout}: more than 0 seconds.")
    _rounding(config, architecture(config, vocabulary=1))
    task = parse.one(config.task, environments.TASKS, "config.task")
    rescore = config.sampler.rescore
    if rescore not in ("unfiltered", "kept"):
        raise ValueError(f"config.sampler.rescore={rescore!r}: 'unfiltered' or 'kept'.")
    if config.sampler.layout not in sharding.TABLES:
        valid = parse.nearest(config.sampler.layout, sharding.TABLES)
        raise ValueError(f"config.sampler.layout={config.sampler.layout!r}: unknown layout.{valid}")
    for text in config.sampler.stop:
        if not isinstance(text, str) or not text:
            raise ValueError(f"config.sampler.stop={config.sampler.stop!r}: {text!r} is not a text of some length.")
    if config.sampler.temperature <= 0:
        raise ValueError(f"config.sampler.temperature={config.sampler.temperature}: training samples at more than 0.")
    processors = sampling.build(**{k: config.sampler[k] for k in ("temperature", "top_k", "top_p", "min_p", "draw")})
    if not config.phases:
        raise ValueError("config.phases: at least one phase.")
    phases: list[Phase] = []
    for name in config.phases:
        phases.append(_phase(config, task, name, phases[-1].last if phases else 0))
    traced = profiles.steps(config.profile, phases[-1].last)
    return Resolved(task, tuple(phases), processors, rescore == "kept" and processors.filter is not None, traced)


def _known(config: schema.ConfigDict, fields: schema.ConfigDict, path: str = "config") -> None:
    for field, value in config.items():
        if path == "config.phase":
            _known(value, schema.phase(), f"{path}.{field}")
        elif field not in fields:
            raise ValueError(f"{path}.{field}: unknown field.{parse.nearest(field, fields.keys())}")
        elif isinstance(fields[field], schema.ConfigDict):
            _known(value, fields[field], f"{path}.{field}")
        elif type(value) is not type(fields[field]) and not (type(value) is int and type(fields[field]) is float):
            raise ValueError(f"{path}.{field}={value!r}: must be of type {type(fields[field]).__name__}.")
