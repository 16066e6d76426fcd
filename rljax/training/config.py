"""Settings of a run: ``Config`` collects all groups, and every floor from here up reads it.

Each group is a frozen dataclass in the folder that reads it; the groups that ``run/`` reads are here.
"""

import dataclasses
from typing import Annotated, Literal

from rljax.algorithms.config import SeamConfig
from rljax.data.config import TokenizerConfig
from rljax.environments.config import VerifierConfig
from rljax.language import settings
from rljax.language.settings import Count, NonNegative, Size, group, setting
from rljax.models.config import ModelConfig
from rljax.sampling.config import SamplerConfig
from rljax.types import Objective, Range

Devices = Annotated[int, Range(-1, 1e6)]
Diagnostic = Literal["clip", "entropy", "kl", "moved", "noise", "signs", "weights"]  # see README.md


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """The rows of one step."""

    prompts: Count = setting(32, "Prompts of a step.")
    samples: Count = setting(
        16, "Completions per prompt; a phase on demonstrations has 1 unless it sets this field itself."
    )

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class WorldConfig:
    """Who plays the seats of a world."""

    players: tuple[str, ...] = setting(
        ("policy",),
        "Players: 'policy', 'snapshot' of it, modules; player (s + n) % their number has seat s in sample n.",
    )
    swap: bool = setting(True, "Whether players change seats from sample to sample; False: n counts as 0.")
    trained: tuple[str, ...] = setting(
        (), "Modules among the players that learn as the policy does, from their own rows."
    )
    refresh: Count = setting(
        100, "Steps after which the snapshot, of several the oldest, becomes a copy of the policy."
    )
    snapshots: Annotated[int, Range(1, 64)] = setting(1, "Snapshots; each step draws the one that plays.")

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """Epochs, minibatches and memory of the update."""

    epochs: Count = setting(1, "Passes over the rows of a step.")
    minibatches: Count = setting(1, "Gradient steps per pass, each on an equal part of the rows.")
    microbatches: Size = setting(
        0, "Parts of a minibatch whose gradients are accumulated; 0: as many as suit a CPU's cache, elsewhere 1."
    )
    share_prompt: bool = setting(True, "Whether a prompt is computed once for all its completions.")
    lanes: Size = setting(
        0, "Packed rows of a prompt's completions per micro-batch; 0: no packing, each completion is a row."
    )
    vocabulary: Size = setting(4096, "Vocabulary entries whose logits are computed at a time; 0: all.")
    keep_logits: bool = setting(False, "Whether logits are saved for the backward pass instead of being recomputed.")
    rounding: Literal["nearest", "stochastic"] = setting(
        "nearest",
        "Rounding of bfloat16 parameters after an update; 'stochastic' preserves small updates in expectation.",
    )
    offload: bool = setting(False, "Whether optimizer state is stored in host memory between updates.")
    clip_norm: NonNegative = setting(1.0, "Maximum global norm of the gradient; 0: no clipping.")
    max_skipped: Count = setting(5, "Consecutive non-finite updates that a run tolerates; one more stops it.")

    __post_init__ = settings.check

    @property
    def parts(self) -> int:
        """The number of micro-batches that is set; 1 where it is chosen."""
        return max(1, self.microbatches)

    def of(self, objective: Objective) -> tuple[int, int]:
        """Return the epochs and the minibatches of an objective, its own or the run's."""
        return objective.epochs or self.epochs, objective.minibatches or self.minibatches


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis; -1 on at most one axis: all remaining devices. See ``training.sharding``."""

    data: Devices = setting(-1, "Replicates the parameters and splits rows; may span slices.")
    fsdp_tensor: Devices = setting(1, "Acts as fsdp in updates and as tensor in resident rollouts.")
    fsdp: Devices = setting(1, "Splits rows and the width of parameters.")
    expert: Devices = setting(1, "Splits experts and rows.")
    sequence: Devices = setting(1, "Splits positions.")
    tensor: Devices = setting(1, "Splits heads, hidden units and the vocabulary.")
    rollout: Size = setting(
        0, "Devices that only sample, the first ones; the axes are over the others. 0: all devices sample and update."
    )

    __post_init__ = settings.check

    @property
    def axes(self) -> dict[str, int]:
        """The devices along each axis."""
        return {name: size for name, size in dataclasses.asdict(self).items() if name != "rollout"}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """How rollouts and updates overlap."""

    lag: Size = setting(
        0, "Updates that a rollout runs ahead: rollout k is sampled by version max(0, k - lag). 0: in turn."
    )
    overlap: bool = setting(False, "Whether gradients of a micro-batch are computed while the next ones are sampled.")

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class PhaseConfig:
    """The fields of a phase alone. A phase may also set every field of the run that is not fixed."""

    steps: Count = setting(100, "Number of updates in the phase.")
    optimizer: str = setting("adamw(learning_rate=1e-3, weight_decay=0.0)", "Calls of optax, chained with |.")
    tower_optimizer: str = setting("", "Optimizer of the vision tower and its projection; '': the same.")
    warmup: Size = setting(20, "Gradient steps over which the update is scaled linearly up to full size.")
    reset_optimizer: bool = setting(True, "Whether the optimizer state is reset at the start of the phase.")
    reference: Literal["start", "keep"] = setting(
        "start",
        "Reference policy: 'start', the policy at the start of the phase; 'keep', the reference of the previous phase.",
    )
    before: str = setting("", "Name of the evaluation at the start of the phase; '': none.")
    evaluate: str = setting("", "Name of the evaluation at the end of the phase; '': none.")

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations on held-out prompts."""

    every: Size = setting(0, "Steps between evaluations during training; 0: none.")
    prompts: Count = setting(128, "Prompts of an evaluation during training.")
    samples: Count = setting(32, "Completions of each of its prompts.")
    final_prompts: Count = setting(256, "Prompts of an evaluation that a phase names.")
    final_samples: Count = setting(64, "Completions of each of its prompts.")

    __post_init__ = settings.check

    def size(self, final: bool) -> tuple[int, int]:
        """Return prompts and samples of an evaluation that a phase names, or of one during training."""
        return (self.final_prompts, self.final_samples) if final else (self.prompts, self.samples)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints of the train state."""

    every: Count = setting(100, "Steps between checkpoints; phases and evaluations end with one too.")
    max_to_keep: Count = setting(2, "Newest checkpoints kept, beside the best and those at ends of phases.", fixed=True)
    init: str = setting(
        "", "Run whose parameters this one begins with: RUN@STEP, RUN@PHASE or RUN, its newest checkpoint.", fixed=True
    )

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What is written of each step."""

    every: Count = setting(10, "Steps between flushes of the metrics.")
    rollouts: Size = setting(50, "Steps between dumps of sampled rollouts; the last step of a phase has one. 0: none.")
    rollout_rows: Size = setting(32, "Rows of a dump, rounded up to whole groups; 0: none.")
    diagnostics: tuple[Diagnostic, ...] = setting(
        (), "More metrics; 'kl', 'moved': two more forward passes each; 'noise', 'signs': more gradients; others: free."
    )
    report: bool = setting(
        True, "Write report.html when the run ends or is interrupted, and pictures of curves at its end.", fixed=True
    )
    sinks: str = setting(
        "tensorboard()", "Where else records go: calls such as tensorboard() | csv(); 'none'.", fixed=True
    )

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of a run. A phase may set the fields that are not fixed."""

    name: str = setting("run", "Name of the run; part of its default work directory.", fixed=True)
    seed: Annotated[int, Range(0, 2**32 - 1)] = setting(0, "Seed of all random draws.", fixed=True)
    cpu_devices: Annotated[int, Range(0, 256)] = setting(
        0, "Devices that JAX creates on a CPU; 0: a wide policy has one for each core, others one.", fixed=True
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
    run: RunConfig = group(RunConfig)
    verifier: VerifierConfig = group(VerifierConfig)
    evaluation: EvaluationConfig = group(EvaluationConfig)
    checkpoint: CheckpointConfig = group(CheckpointConfig)
    log: LogConfig = group(LogConfig)
    profile: str = setting("", "Steps to trace to WORKDIR/profile, such as 'steps 10-12'.", fixed=True)
    phases: tuple[str, ...] = setting(("main",), "Names of the phases, in order.", fixed=True)
