"""Settings without effect: what a phase sets and nothing reads, or what cannot change its gradient.

Pieces declare when their arguments have no effect (``transforms.frame.idle``). A message is a warning where the user
wrote the value, and a note where the recipe has it by default.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from rljax import types
from rljax.algorithms import interpreter, seams
from rljax.config import schema
from rljax.language import settings
from rljax.sampling import processors
from rljax.training.phases import Phase
from rljax.transforms import modules

_ACT = "Set config.learner.epochs or config.learner.minibatches above 1, or remove it."
_ONE_STEP = "each rollout has one gradient step"
_REASONS = {  # by cause that is absent: why, and what to change
    (): ("its coefficient is 0.", "Raise it, or remove the piece."),
    ("ratio",): (f"{_ONE_STEP}, so the ratio is 1.", _ACT),
    ("steps",): (f"{_ONE_STEP}, from the policy that it is compared with.", _ACT),
    ("sampler",): (
        "the policy that is trained is the one that sampled, with the same distribution, so importance weights are 1.",
        "It acts on replayed, partial or demonstrated rows, with sampling filters, or in bfloat16. Else remove it.",
    ),
    ("steps", "sampler"): (f"{_ONE_STEP}, from the policy that sampled.", _ACT),
    ("steps", "reference"): (f"{_ONE_STEP}, and before it the reference is the policy.", _ACT),
}
_ALWAYS_1 = ("the ratio of ratio.on_policy() is always 1.", "Set another config.seam.ratio, or remove it.")


def noted(config: schema.ConfigDict, phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Return the phases of a config with their warnings and notes; what concerns the run is in the first one."""
    out = []
    for phase, unread in zip(phases, _of_fields(config, phases), strict=True):
        warnings, notes = _of_algorithm(phase)
        out.append(dataclasses.replace(phase, warnings=(*unread, *warnings), notes=tuple(notes)))
    return tuple(out)


def _of_algorithm(phase: Phase) -> tuple[list[str], list[str]]:
    """Return warnings and notes about pieces without effect, each a sentence."""
    plain = seams.plain(phase.settings.algorithm)  # what the user did not write
    defaults = interpreter.needs(plain).idle
    groups: dict[tuple[bool, tuple[str, str]], list[str]] = {}
    for needs, causes in _parts(phase):
        for call, *until in sorted(needs.idle):
            if not any(_holds(cause, causes, phase) for cause in until):
                by_default = (call, *until) in defaults
                if by_default and until and "=" in until[-1]:
                    continue  # an argument of another variant of the piece, at its default
                groups.setdefault((by_default, _reason(until, needs, phase)), []).append(call)
    messages: tuple[list[str], list[str]] = ([], [])
    for (by_default, (why, remedy)), calls in groups.items():
        verb = "has" if len(calls) == 1 else "have"
        messages[by_default].append(f"phase {phase.name!r}: {', '.join(calls)} {verb} no effect: {why} {remedy}")
    messages[1].extend(_uncorrected(phase))
    return messages


def _uncorrected(phase: Phase) -> list[str]:
    """Return a note if rows are trained under another prompt than they were sampled under, as if they were not."""
    algorithm, needs = phase.algorithm, interpreter.needs(phase.algorithm)
    again = algorithm.source.again is not None and algorithm.source.again.plain
    if not (again or _retold(phase)) or needs.behaviour or needs.off_policy:
        return []
    trains = algorithm.source.spec if again else f"task {phase.task.name!r}"
    return [
        f"phase {phase.name!r}: {trains} trains rows under another prompt than they were sampled under, and "
        f"{algorithm.spec} corrects them by nothing, so their gradient is biased. A ratio with "
        'anchor="behaviour" corrects it.'
    ]


def _parts(phase: Phase) -> list[tuple[types.Needs, set[str]]]:
    """Return the needs of the transforms and of each objective, with the causes that hold there."""
    parts = [(interpreter.rollout_needs(phase.algorithm), set())]
    learner, sampler, source = phase.settings.learner, phase.settings.sampler, phase.algorithm.source
    shape = phase.settings.model.architecture
    common = set()
    if (
        source.off_policy
        or source.segment
        or phase.settings.run.lag
        or source.origin != "policy"
        or _retold(phase)
        or (_filtered(phase) and sampler.rescore == "unfiltered")
        or (shape.dtype, shape.param_dtype, shape.decode_weights) != ("float32", "float32", "float")
    ):
        common.add("sampler")
    starts = phase.start.steps == 1 and (phase.start.reference == "start" or phase.first == 0)
    if not (starts or parts[0][0].follows):
        common.add("reference")
    trained: set[str] = set()
    for o in phase.algorithm.objectives:
        causes = common | ({"steps"} if math.prod(learner.of(o)) > 1 or o.module in trained else set())
        moves = interpreter.objective_needs(o).moves
        if not moves or moves & (causes | {"always"}):
            causes.add("ratio")
        parts.append((interpreter.objective_needs(o), causes))
        trained.add(o.module)
    return parts


def _retold(phase: Phase) -> bool:
    """Return whether the task is a world whose rows are trained under another prompt than they were sampled under."""
    return getattr(phase.task, "training", None) is not None


def _filtered(phase: Phase) -> bool:
    return bool(processors.active(phase.settings.sampler))


def _holds(cause: str, causes: set[str], phase: Phase) -> bool:
    number, _, unit = cause.partition(" ")
    return phase.task.completion_length > int(number) if unit == "tokens" else cause in causes


def _reason(until: Sequence[str], needs: types.Needs, phase: Phase) -> tuple[str, str]:
    if until and "=" in until[0]:
        return f"it is read only with {until[0]}.", "Remove it."
    if until and until[0].endswith(" tokens"):
        length = phase.task.completion_length
        return f"completions have at most {length} tokens, and it begins above {until[0]}.", "Lower its limit."
    if "ratio" in until and needs.moves == {"never"}:
        return _ALWAYS_1
    return _REASONS.get(tuple(until)) or (f"nothing changes {' or '.join(until)} here.", "Remove it.")


@dataclasses.dataclass(frozen=True)
class _Read:
    """When settings are read, and what to say where they are not."""

    fields: tuple[str, ...]  # names, or the beginning of names up to a dot
    by: Callable[[Phase], Any]
    why: str


_READ = (
    _Read(("verifier.",), lambda p: p.task.host, "the task is verified on the device"),
    _Read(
        ("evaluation.prompts", "evaluation.samples"),
        lambda p: p.settings.evaluation.every,
        "config.evaluation.every is 0, so there are no evaluations during training",
    ),
    _Read(
        ("evaluation.final_prompts", "evaluation.final_samples"),
        lambda p: p.start.before or p.start.evaluate,
        "no phase names an evaluation (config.phase.NAME.evaluate)",
    ),
    _Read(
        ("run.", "mesh.rollout"),
        lambda p: p.algorithm.source.origin == "policy",
        "no phase samples rows: they are demonstrations, or stored",
    ),
    _Read(
        ("world.refresh", "world.snapshots"),
        lambda p: "snapshot" in p.settings.world.players,
        "no phase has a snapshot among players",
    ),
    _Read(("world.swap",), lambda p: len({*p.settings.world.players}) > 1, "one player has every seat"),
    _Read(("log.rollouts",), lambda p: p.settings.log.rollout_rows, "config.log.rollout_rows is 0"),
    _Read(("log.rollout_rows",), lambda p: p.settings.log.rollouts, "config.log.rollouts is 0"),
    _Read(
        ("sampler.rescore",),
        lambda p: p.algorithm.source.origin == "policy" and _filtered(p),
        f"no phase samples rows with a filter ({', '.join(processors.FILTERS)})",
    ),
    *(
        _Read(
            (f"learner.{name}",),
            lambda p, name=name: any(getattr(o, name) is None for o in p.algorithm.objectives),
            "every objective of the algorithm sets its own",
        )
        for name in ("epochs", "minibatches")
    ),
)


def _of_fields(config: schema.ConfigDict, phases: Sequence[Phase]) -> list[list[str]]:
    """Return for each phase the warnings about fields that it, or the run, sets and nothing reads.

    A field is set if it differs from its default, or if a phase sets it.
    """
    references = _references(phases)
    warnings = [[*_of_phase(p), *_alike(p, phases[:n]), *references[n]] for n, p in enumerate(phases)]
    for name in config.phase:
        if name not in config.phases and config.phase[name].to_dict() != schema.phase().to_dict():
            warnings[0].append(f"config.phase.{name} has no effect: config.phases={config.phases} does not name it.")
    asking = [p for p in phases if "kl" in p.settings.log.diagnostics]
    if asking and not any(modules.reads_reference(interpreter.needs(p.algorithm)) for p in asking):
        warnings[0].append("config.log.diagnostics: 'kl' has no effect: no algorithm has a reference.")
    for field in settings.fields(schema.Config):
        path = ".".join(field.path)
        for read in (r for r in _READ if path.startswith(r.fields)):
            setting = {p.name: None if field.fixed else _at(config.phase[p.name], field.path) for p in phases}
            inherit = [p for p in phases if setting[p.name] is None]
            value = _at(config, field.path, field.default)
            if value != field.default and inherit and not any(map(read.by, inherit)):
                warnings[0].append(f"config.{path}={value!r} has no effect: {read.why}.")
            for number, p in enumerate(phases):
                if setting[p.name] not in (None, field.default) and not read.by(p):
                    where = f"config.phase.{p.name}.{path}={setting[p.name]!r}"
                    warnings[number].append(f"{where} has no effect: {read.why}.")
    return warnings


def _of_phase(phase: Phase) -> list[str]:
    where, start, needs = f"config.phase.{phase.name}", phase.start, interpreter.needs(phase.algorithm)
    lines = []
    if start.reference == "keep" and not modules.reads_reference(needs):
        lines.append(f"{where}.reference='keep' has no effect: {phase.algorithm.spec} reads no reference.")
    elif start.reference == "keep" and phase.first == 0:
        lines.append(f"{where}.reference='keep' has no effect: it is the first phase.")
    if not start.reset_optimizer and phase.first == 0:
        lines.append(f"{where}.reset_optimizer=False has no effect: it is the first phase.")
    if phase.settings.sampler.top_k == 1 and needs.siblings and phase.algorithm.source.origin == "policy":
        lines.append(
            f"config.sampler.top_k=1 (phase {phase.name!r}): all samples of a prompt are equal, so their advantages "
            "are 0 and the policy does not learn. Set it to 0, or above 1."
        )
    return lines


def _references(phases: Sequence[Phase]) -> list[list[str]]:
    """Return for each phase the warnings about modules that it measures from another reference than they learned from.

    The reference of a phase is the policy at its start, that is after so many phases which train the policy, or that of
    the phase before; pieces after the update move it.
    """
    warnings: list[list[str]] = []
    learned: dict[str, tuple[str, Any]] = {}  # of each module: the phase that has trained it, and its reference
    policies, held = 0, None
    for phase in phases:
        if not modules.reads_reference(interpreter.needs(phase.algorithm)):
            held = None
        elif held is None or phase.start.reference == "start":
            held = policies
        read = sorted((phase.implicit - phase.trained) & {*learned})
        warnings.append(
            [
                f"phase {phase.name!r} measures {name!r} from its own reference, and phase {learned[name][0]!r} has "
                f"trained it from another one. Set config.phase.{phase.name}.reference='keep', and so in every phase "
                "between them."
                for name in read
                if learned[name][1] != held
            ]
        )
        held = phase.name if phase.algorithm.after and held is not None else held
        learned |= {name: (phase.name, held) for name in phase.implicit & phase.trained}
        policies += "policy" in phase.trained
    return warnings


def _alike(phase: Phase, earlier: Sequence[Phase]) -> list[str]:
    """Return a warning for each module that starts equal to another and is trained equally, so that both stay equal."""
    kinds: dict[str, list[str]] = {}
    for name, kind in _training(phase).items():
        start = phase.module.get(name)
        if start is not None and start.settings.weights != "random" and name not in phase.writers:
            kinds.setdefault(repr((kind, start)), []).append(name)
    pairs = [(first, other) for first, *others in kinds.values() for other in others]
    return [
        f"phase {phase.name!r}: the modules {first!r} and {other!r} start equal and have equal objectives, so they stay"
        f" equal. Set config.module.{other}.weights='random'."
        for first, other in pairs
        if all(_training(p).get(first) == _training(p).get(other) for p in earlier)
    ]


def _training(phase: Phase) -> dict[str, list[Any]]:
    """Return how a phase trains each module: the pieces and gradient steps of its objectives."""
    of: dict[str, list[Any]] = {}
    for o in phase.algorithm.objectives:
        pieces = [piece.spec for piece in (*o.prepare, *o.loss, o.reduce)]
        of.setdefault(o.module, []).append((pieces, o.epochs, o.minibatches, o.optimizer, o.every))
    return of


def _at(tree: Any, path: Sequence[str], absent: Any = None) -> Any:
    """Return the value at a path; a group that was assigned as a dictionary may lack it."""
    for name in path:
        if name not in tree:
            return absent
        tree = tree[name]
    return tree
