"""Recipes of stored rows: ratings, preferences without a reference, weights exp(A). On samples they run as well."""

from rljax.algorithms.base import compose, recipe
from rljax.transforms import advantage, prepare, reduce, surrogate
from rljax.types import Algorithm, NonNegative, Positive


@recipe
def simpo(beta: Positive = 2.0, margin: NonNegative = 1.0) -> Algorithm:
    """Prefer the better row of a pair by mean log-probs, without a reference: -log sigmoid(beta h - margin).

    SimPO (arXiv 2405.14734). Differs from ``dpo_length_normalised`` by the margin and by having no reference.

    Args:
      beta: scale of the mean log-probs.
      margin: margin by which the better row should win.
    """
    return compose(
        prepare=[prepare.best_and_worst()],
        loss=[surrogate.length_normalised_preference(beta, margin)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def orpo(coefficient: NonNegative = 0.1) -> Algorithm:
    """Fit the better row of a pair and prefer it by the ratio of the odds, without a reference.

    ORPO (arXiv 2403.07691): -m_w - coefficient log sigmoid(log odds_w - log odds_l), m the mean logp of a row.

    Args:
      coefficient: weight of the odds beside the likelihood.
    """
    return compose(
        prepare=[prepare.best_and_worst()], loss=[surrogate.odds_ratio(coefficient)], reduce=reduce.mean_over_rows()
    )


@recipe
def awac(beta: Positive = 1.0) -> Algorithm:
    """``awr`` with weights that are normalized over the batch: N softmax((r - mean) / beta).

    AWAC (arXiv 2006.09359), the group's mean in place of its Q-function's value. Each row counts by its mean logp.

    Args:
      beta: temperature of the weights, in units of the reward.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.boltzmann(beta)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows(),
    )
