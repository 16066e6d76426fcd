"""Recipes for stale tokens, and for samplers that differ from the trainer."""

from rljax.algorithms.base import compose, recipe
from rljax.transforms import advantage, ratio, reduce, surrogate, weight
from rljax.types import Algorithm, Cap, NonNegative, Positive


@recipe
def tis(cap: Cap = 2.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Clipped GRPO times min(exp(proximal - behaviour), cap) on every token: truncated importance sampling.

    Your Efficient RL Framework Secretly Brings You Off-Policy Training (Yao et al., 2025); verl, slime.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.truncated_importance(cap)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def icepop(
    bounds: tuple[NonNegative, Positive] = (0.5, 5.0), low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """``tis`` that drops tokens whose importance weight is outside ``bounds`` instead of truncating it.

    IcePop, Ring-1T (arXiv 2510.18855).

    Args:
      bounds: least and greatest importance weight of a token that is kept.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.masked_importance(*bounds)],
        reduce=reduce.mean_over_tokens(),
    )
