"""Recipes that train a reward model: alone, on rows of the policy or of files, or beside the policy."""

from rljax import types
from rljax.algorithms.base import compose, recipe
from rljax.algorithms.recipes import critic
from rljax.transforms import advantage, ratio, reduce, reward, surrogate
from rljax.types import Algorithm, Fraction, NonNegative, Positive


@recipe(task="guess()")
def spa(gamma: Fraction = 1.0, lam: Fraction = 0.95, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """PPO in which each turn is paid its share of the outcome, by a model that learns from outcomes alone.

    SPA-RL (arXiv 2505.20732): the module ``prm`` gives a score behind each turn, and is trained so that the scores of a
    row add up to its outcome; there it is trained before the policy, here beside it. Differs from ``ppo`` by what is
    paid where, and by no KL.
    """
    model = types.Objective(module="prm", loss=(surrogate.progress_error(),), reduce=reduce.mean_over_rows())
    return compose(
        reward=[reward.progress("prm")],
        advantage=[advantage.gae(gamma, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(0.2), model],
    )


@recipe
def prime(beta: Positive = 0.05, gamma: Fraction = 1.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Pay tokens by an implicit process reward model that learns from the outcomes of the same rows.

    PRIME (arXiv 2502.01456): the module ``prm``, which starts as the policy, is trained by cross-entropy on beta
    sum log(prm / ref), and beta log(prm / ref) of each token is its process reward, which has a leave-one-out baseline.
    The paper scores the rows after the update of the module, this recipe before it.

    Args:
      beta: scale of the log-ratios: the process reward for a nat.
    """
    model = types.Objective(module="prm", loss=(surrogate.implicit_outcome(beta),), reduce=reduce.mean_over_rows())
    return compose(
        reward=[reward.implicit_steps("prm", beta)],
        advantage=[advantage.process_leave_one_out(gamma)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[model],
    )
