"""Settings of training."""

import dataclasses
from typing import Annotated, Literal

from rljax.language import settings
from rljax.language.settings import Count, NonNegative, Size, setting
from rljax.types import Range

Devices = Annotated[int, Range(-1)]


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """The rows of one step."""

    prompts: Count = setting(32, "Prompts of a step.")
    samples: Count = setting(
        16, "Completions of each prompt; 1 where the source demonstrates, unless its phase says more."
    )

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """How the update goes over the rows of a step."""

    epochs: Count = setting(1, "Passes over the rows of a step.")
    minibatches: Count = setting(1, "Gradient steps of a pass; each has its part of the rows.")
    microbatches: Count = setting(1, "Parts of a minibatch whose gradients are added, to save memory.")
    share_prompt: bool = setting(True, "Whether a prompt is read once for all its completions.")
    lanes: Size = setting(0, "Packed rows of a prompt's completions in a unit of work; 0: each completion is a row.")
    vocabulary: Size = setting(4096, "Tokens of the vocabulary whose logits exist at once; 0: all.")
    keep_logits: bool = setting(False, "Whether logits are kept for the backward pass instead of recomputed.")
    shared_critic: NonNegative = setting(
        0.0,
        "0: the critic is a network of its own; else a head on the policy's trunk, its loss times this.",
        fixed=True,
    )
    rounding: Literal["nearest", "stochastic"] = setting(
        "nearest", "Rounding of bfloat16 parameters after an update; 'stochastic' keeps small updates on average."
    )
    offload: bool = setting(False, "Whether optimizer state is kept in the host's memory between updates.")
    clip_norm: NonNegative = setting(1.0, "Global norm that the gradient is clipped to; 0: not clipped.")
    max_skipped: Count = setting(5, "Non-finite updates in a row after which the run stops.")

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices of each mesh axis; -1 on one axis: all that are left. See ``training.sharding``."""

    data: Devices = setting(-1, "Copies of the parameters; splits rows, and may span slices.")
    fsdp_tensor: Devices = setting(1, "Like fsdp in updates, like tensor in resident rollouts.")
    fsdp: Devices = setting(1, "Splits rows and the width of parameters.")
    expert: Devices = setting(1, "Splits experts and rows.")
    sequence: Devices = setting(1, "Splits positions.")
    tensor: Devices = setting(1, "Splits heads, hidden units and the vocabulary.")

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class PhaseConfig:
    """What only a phase has. It may also set every field of the run that is not fixed."""

    steps: Count = setting(100, "Updates of the phase.")
    optimizer: str = setting("adamw(learning_rate=1e-3, weight_decay=0.0)", "Calls of optax, chained with |.")
    warmup: Size = setting(20, "Updates over which the size of an update grows linearly to its full size.")
    reset_optimizer: bool = setting(True, "Whether the phase begins with a fresh optimizer state.")
    reference: Literal["start", "keep"] = setting(
        "start", "Reference policy: the policy as the phase begins, or the reference of the phase before."
    )
    evaluate: str = setting("", "Name of the evaluation made when the phase ends; '': none.")

    __post_init__ = settings.check
