"""Recipes that fit a target: mirror descent, implicit policies, preference pairs."""

from rljax.algorithms.base import compose, recipe
from rljax.transforms import advantage, prepare, ratio, reduce, surrogate
from rljax.types import Algorithm, Fraction, NonNegative, Positive


@recipe
def a_lol(low: Fraction = 0.9, high: NonNegative = 0.9) -> Algorithm:
    """Offline policy gradient on rows better than the reference's value, weighed by a clipped ratio of the row.

    A-LoL (arXiv 2305.14718): -relu(R - V(x)) sg(clip(pi / ref, 1 - low, 1 + high)) sum logp; the part "prompt_value" is
    V(x).

    Args:
      low: distance of the least ratio of a row from 1.
      high: distance of the greatest ratio of a row from 1.
    """
    return compose(
        advantage=[advantage.part_baseline("prompt_value"), advantage.positive_part()],
        loss=[ratio.product("reference"), surrogate.clipped_importance(low, high)],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def filtered_cloning(threshold: float = 0.0) -> Algorithm:
    """Fit the rows whose reward is above ``threshold``: A_t = 1[R_t > threshold], R_t what is paid from t on.

    Filtered behavior cloning of TTI, rejection-sampling fine-tuning (RFT). Differs from ``reinforce`` by the advantage
    of 0 or 1.

    Args:
      threshold: reward that the rows which are fitted exceed.
    """
    return compose(
        advantage=[advantage.returns(), advantage.binarise(threshold)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def dpo(beta: Positive = 0.1, smoothing: Fraction = 0.0) -> Algorithm:
    """Prefer the best row of a group to its worst: -log sigmoid(beta h), h the difference of log-ratios.

    DPO (arXiv 2305.18290), online: h = sum_w log(pi / ref) - sum_l log(pi / ref). On fresh samples of the policy it is
    iterative DPO, on stored pairs the offline method. Several phases of it are its rounds: the reference of each is the
    policy at its start. With ``source.guided`` right demonstrations beat wrong samples of the previous round.

    Args:
      beta: scale of the log-ratios: coefficient of the KL that the preferences imply.
    """
    return compose(
        prepare=[prepare.best_and_worst()], loss=[surrogate.preference(beta, smoothing)], reduce=reduce.mean_over_rows()
    )


@recipe
def ipo(beta: Positive = 0.1, per_token: bool = False) -> Algorithm:
    """Regress the preference margin onto 1 / (2 beta): (h - 1 / (2 beta))^2.

    IPO (arXiv 2310.12036). TRL and AReaL set ``per_token``. Differs from ``dpo`` by a finite target for the margin.

    Args:
      beta: scale of the target: the margin of the log-ratios is 1 / (2 beta).
      per_token: average log-ratios over tokens instead of summing them.
    """
    return compose(
        prepare=[prepare.best_and_worst()],
        loss=[surrogate.squared_preference(beta, per_token)],
        reduce=reduce.mean_over_rows(),
    )
