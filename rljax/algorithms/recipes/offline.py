"""Recipes of stored rows: ratings, preferences without a reference, weights exp(A). On samples they run as well."""

from rljax.algorithms.base import compose, recipe
from rljax.transforms import advantage, reduce, surrogate
from rljax.types import Algorithm, NonNegative, Number, Positive


@recipe
def kto(
    beta: Positive = 0.1, desirable: NonNegative = 1.0, undesirable: NonNegative = 1.0, threshold: Number = 0.0
) -> Algorithm:
    """Value rows one by one against a shift z: 1 - sigmoid(+-beta (Delta - z)), Delta = sum log(pi / ref).

    KTO (arXiv 2402.01306). Differs from ``dpo`` by needing no pairs; z is the
    mean Delta of the other kind's rows, where the paper uses completions of other prompts.

    Args:
      beta: scale of the log-ratios.
      desirable: weight of desirable rows.
      undesirable: weight of the other rows.
      threshold: reward that desirable rows exceed.
    """
    return compose(
        loss=[surrogate.kahneman_tversky(beta, desirable, undesirable, threshold)], reduce=reduce.mean_over_rows()
    )


@recipe
def awr(beta: Positive = 1.0, cap: Positive = 20.0) -> Algorithm:
    """Fit rows by likelihood, weighed by exp((r - mean) / beta) up to ``cap``.

    AWR (arXiv 1910.00177), the group's mean in place of its critic. Differs from ``filtered_cloning`` by weights that
    grow with the advantage.

    Args:
      beta: temperature of the weights, in units of the reward.
      cap: largest weight.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.exponentiated(beta, cap)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
    )
