"""Settings of training."""

import dataclasses
from typing import Annotated, Literal, Protocol

from rljax import sampling
from rljax.language import settings
from rljax.language.settings import Count, NonNegative, Size, setting
from rljax.types import Range

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

    players: tuple[Literal["policy", "snapshot"], ...] = setting(
        ("policy",),
        "Players; seat s of sample n is played by player (s + n) % their number. The policy is one of them.",
    )
    refresh: Count = setting(100, "Steps after which the snapshot becomes a copy of the policy.")

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """Epochs, minibatches and memory of the update."""

    epochs: Count = setting(1, "Passes over the rows of a step.")
    minibatches: Count = setting(1, "Gradient steps per pass, each on an equal part of the rows.")
    microbatches: Count = setting(1, "Parts of a minibatch whose gradients are accumulated, to save memory.")
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


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis; -1 on at most one axis: all remaining devices. See ``training.sharding``."""

    data: Devices = setting(-1, "Replicates the parameters and splits rows; may span slices.")
    fsdp_tensor: Devices = setting(1, "Acts as fsdp in updates and as tensor in resident rollouts.")
    fsdp: Devices = setting(1, "Splits rows and the width of parameters.")
    expert: Devices = setting(1, "Splits experts and rows.")
    sequence: Devices = setting(1, "Splits positions.")
    tensor: Devices = setting(1, "Splits heads, hidden units and the vocabulary.")

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class PhaseConfig:
    """The fields of a phase alone. A phase may also set every field of the run that is not fixed."""

    steps: Count = setting(100, "Number of updates in the phase.")
    optimizer: str = setting("adamw(learning_rate=1e-3, weight_decay=0.0)", "Calls of optax, chained with |.")
    warmup: Size = setting(20, "Updates over which the update is scaled linearly up to full size.")
    reset_optimizer: bool = setting(True, "Whether the optimizer state is reset at the start of the phase.")
    reference: Literal["start", "keep"] = setting(
        "start", "Reference policy: 'start', the policy at the start of the phase; 'keep', that of the previous phase."
    )
    evaluate: str = setting("", "Name of the evaluation at the end of the phase; '': none.")

    __post_init__ = settings.check


class Log(Protocol):
    """The settings of logging that a step reads."""

    @property
    def rollout_rows(self) -> int:
        """Rows of a step that are returned with its metrics, before they are rounded up to whole groups."""
        ...

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Metrics that cost time."""
        ...


class Settings(Protocol):
    """The groups of settings that training reads; ``config.schema.Config`` has these among others."""

    @property
    def task(self) -> str:
        """The call that names the task."""
        ...

    @property
    def batch(self) -> BatchConfig:
        """The rows of a step."""
        ...

    @property
    def world(self) -> WorldConfig:
        """Who plays the seats of a world."""
        ...

    @property
    def sampler(self) -> sampling.SamplerConfig:
        """How tokens are sampled."""
        ...

    @property
    def learner(self) -> LearnerConfig:
        """How the update goes over the rows."""
        ...

    @property
    def log(self) -> Log:
        """What is logged of each step."""
        ...
