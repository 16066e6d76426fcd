"""Settings of sampling."""

import dataclasses
from typing import Annotated, Literal

from rljax.language import settings
from rljax.language.settings import NonNegative, Share, Size, setting
from rljax.types import Range


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
    """How tokens are drawn, and how the decoding loop is laid out."""

    temperature: NonNegative = setting(1.0, "Divisor of the logits, also in scoring; 0 is greedy, in evaluations only.")
    top_k: Size = setting(0, "Most probable tokens kept at each draw; 0 keeps all.")
    top_p: Annotated[float, Range(0, 1, open_low=True)] = setting(
        1.0, "Probability mass kept at each draw; 1 keeps all."
    )
    min_p: Share = setting(0.0, "Least probability kept, relative to the most probable token; 0 keeps all.")
    draw: Literal["gumbel", "inverse"] = setting(
        "inverse", "'gumbel': one random number for each token of the vocabulary; 'inverse': one for each draw."
    )
    rescore: Literal["unfiltered", "kept"] = setting(
        "unfiltered", "Support over which the trainer normalizes: the whole vocabulary, or what the sampler kept."
    )
    stop: tuple[str, ...] = setting((), "Texts that end a completion, beside the tokenizer's stop tokens.")
    cache_block: Size = setting(64, "Columns by which the part of the cache that is read grows; 0 reads all columns.")
    layout: Literal["update", "resident"] = setting(
        "update", "Sharding of the policy in rollouts: as in updates, or gathered once for each rollout."
    )
    unroll: bool = setting(
        True, "Whether decoding has no loop over layers: each weight is read once, but it compiles for longer."
    )
    compact: Annotated[int, Range(0, 16)] = setting(
        0, "How often the batch may shrink to half its rows as rows end; each compiles a loop."
    )

    slots: Size = setting(
        0, "Conversations that are decoded at once; a slot takes the next one when one ends. 0: all of a step."
    )

    __post_init__ = settings.check
