"""Recipes of stored rows: ratings, preferences without a reference, weights exp(A). On samples they run as well."""

from rljax.algorithms.base import compose, recipe
from rljax.transforms import advantage, prepare, reduce, surrogate
from rljax.types import NonNegative, Number, Positive


@recipe
def kto(beta: Positive = 0.1, desirable: NonNegative = 1.0, undesirable: NonNegative = 1.0, threshold: Number = 0.0):
    """Value rows one by one against a shift z: 1 - sigmoid(+-beta (Delta - z)), Delta = sum log(pi / ref).

    KTO (arXiv 2402.01306). Rows above ``threshold`` are desirable. Differs from ``dpo`` by needing no pairs; z is the
    mean Delta of the other kind's rows, where the paper uses completions of other prompts.
    """
    return compose(
        loss=[surrogate.kahneman_tversky(beta, desirable, undesirable, threshold)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def simpo(beta: Positive = 2.0, margin: NonNegative = 1.0):
    """Prefer the better row of a pair by mean log-probs, without a reference: -log sigmoid(beta h - margin).

    SimPO (arXiv 2405.14734). Differs from ``dpo_length_normalised`` by the margin and by having no reference.
    """
    return compose(
        prepare=[prepare.best_and_worst()],
        loss=[surrogate.length_normalised_preference(beta, margin)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def orpo(coefficient: NonNegative = 0.1):
    """Fit the better row of a pair and prefer it by the ratio of the odds, without a reference.

    ORPO (arXiv 2403.07691): -m_w - coefficient log sigmoid(log odds_w - log odds_l), m the mean logp of a row.
    """
    return compose(
        prepare=[prepare.best_and_worst()],
        loss=[surrogate.odds_ratio(coefficient)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def awr(beta: Positive = 1.0, cap: Positive = 20.0):
    """Fit rows by likelihood, weighed by exp((r - mean) / beta) up to ``cap``.

    AWR (arXiv 1910.00177), the group's mean in place of its critic. Differs from ``filtered_cloning`` by weights that
    grow with the advantage.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.exponentiated(beta, cap)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def awac(beta: Positive = 1.0):
    """``awr`` with weights that are normalized over the batch: N softmax((r - mean) / beta).

    AWAC (arXiv 2006.09359), the group's mean in place of its Q-function's value. Each row counts by its mean logp.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.boltzmann(beta)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows(),
    )
