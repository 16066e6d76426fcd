"""Settings of the loop around the steps."""

import dataclasses

from rljax.language import settings
from rljax.language.settings import Count, Size, setting
from rljax.training.config import Diagnostic


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
        (),
        "More metrics; 'kl', 'moved': two more forward passes each; 'noise', 'signs': more gradients; others: free.",
    )
    report: bool = setting(
        True, "Write report.html when the run ends or is interrupted, and pictures of curves at its end.", fixed=True
    )
    sinks: str = setting(
        "tensorboard()", "Where else records go: calls such as tensorboard() | csv(); 'none'.", fixed=True
    )

    __post_init__ = settings.check
