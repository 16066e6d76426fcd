"""Recipes for conversations, agents, and episodes of several rows."""

from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, penalty, prepare, ratio, reduce, reward, surrogate
from rljax.types import Algorithm, Count, Fraction, NonNegative


@recipe(task="maze()")
def webagent_r1(low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO on episodes of several turns, averaged over the tokens of a turn, then turns, then episodes.

    WebAgent-R1 (arXiv 2505.16421), M-GRPO. One turn is ``grpo`` without KL.
    """
    return compose(
        advantage=[advantage.center_by("group"), advantage.scale_by("group")],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_turns(),
    )


@recipe(task="game('kuhn_poker')")
def spiral(roles: Count = 2, decay: Fraction = 0.95, games: Count = 1) -> Algorithm:
    """Self-play REINFORCE with a running baseline for each game and role; tokens without advantage are dropped.

    SPIRAL (arXiv 2506.24119): A = R - b_role, b <- decay b + (1 - decay) R.

    Args:
      roles: roles, numbered as ``agent`` from 0.
      decay: weight of the former baseline, for each step.
      games: of a mixture, numbered as ``domain`` from 0.
    """
    return compose(
        advantage=[advantage.role_baseline(roles, decay, games)],
        prepare=[prepare.keep("nonzero")],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="revise(arithmetic())")
def score_initial(kl: NonNegative = 0.1) -> Algorithm:
    """SCoRe, stage I: pay only the second attempt, and keep the first one close to the reference.

    SCoRe (arXiv 2409.12917): attempts are turns 0 and 1, paid by token rewards; the row's reward is the second
    attempt's, so a row without a second attempt is paid nothing.

    Args:
      kl: coefficient of the KL to the reference in the first attempt, in nats; 0 leaves it out.
    """
    return compose(
        reward=[reward.only_turn(1)],
        advantage=[advantage.returns()],
        loss=[surrogate.reinforce(), *when(kl, penalty.kl("k2", kl, only="first_turn"))],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe(task="revise(arithmetic())")
def score(alpha: NonNegative = 10.0, kl: NonNegative = 0.01) -> Algorithm:
    """SCoRe, stage II: pay the second attempt r2 + alpha (r2 - r1), with a small KL everywhere.

    SCoRe (arXiv 2409.12917). Differs from ``score_initial`` by the bonus and by paying both attempts.

    Args:
      alpha: weight of the improvement from the first attempt to the second.
    """
    return compose(
        reward=[reward.improvement(alpha)],
        advantage=[advantage.returns()],
        loss=[surrogate.reinforce(), *when(kl, penalty.kl("k2", kl))],
        reduce=reduce.mean_over_rows_of_sums(),
    )
