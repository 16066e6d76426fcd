"""Recipes that differ in their advantage: baselines, normalizers, weights by sign or difficulty."""

from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, penalty, prepare, ratio, reduce, reward, source, surrogate
from rljax.types import Algorithm, Count, Fraction, NonNegative


@recipe
def reinforce(gamma: Fraction = 1.0) -> Algorithm:
    """Follow the plain policy gradient: minimize -sum_t G_t logp_t, averaged over rows (Williams 1992). No baseline."""
    return compose(
        advantage=[advantage.returns(gamma)], loss=[surrogate.reinforce()], reduce=reduce.mean_over_rows_of_sums()
    )


@recipe
def rloo(kl: NonNegative = 0.0) -> Algorithm:
    """REINFORCE with a leave-one-out baseline: A_i = r_i - mean over j != i of r_j.

    Back to Basics (arXiv 2402.14740). Differs from
    ``reinforce`` by the baseline.

    Args:
      kl: coefficient of the k1 that is charged to the reward, in nats; 0 leaves it out.
    """
    return compose(
        reward=when(kl, reward.kl("k1", kl)),
        advantage=[advantage.leave_one_out()],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def w_reinforce(
    positive: NonNegative = 0.1,
    negative: NonNegative = 1.0,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    entropy: NonNegative = 1e-3,
) -> Algorithm:
    """Weigh correct answers less than wrong ones: A = positive 1[r = 1] - negative 1[r = 0].

    The Surprising Effectiveness of Negative Reinforcement (arXiv 2506.01347). Rewards must be 0 or 1.

    Args:
      positive: advantage of correct rows.
      negative: minus the advantage of wrong rows.
    """
    return compose(
        advantage=[advantage.sign_weighted(positive, negative)],
        loss=[ratio.token(), surrogate.clip(low, high), *when(entropy, penalty.entropy(entropy))],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def psr(low: NonNegative = 0.2, high: NonNegative = 0.2, entropy: NonNegative = 1e-3) -> Algorithm:
    """Train on positive samples only: A = 1[r = 1], and wrong rows are dropped before the token mean.

    PSR (arXiv 2506.01347). Differs from ``w_reinforce`` by the rows that are dropped.
    """
    return compose(
        advantage=[advantage.sign_weighted(1.0, 0.0)],
        prepare=[prepare.keep("correct")],
        loss=[ratio.token(), surrogate.clip(low, high), *when(entropy, penalty.entropy(entropy))],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def nsr(low: NonNegative = 0.2, high: NonNegative = 0.2, entropy: NonNegative = 1e-3) -> Algorithm:
    """Train on negative samples only: A = -1[r = 0], and correct rows are dropped before the token mean.

    NSR (arXiv 2506.01347). Differs from ``psr`` by the sign.
    """
    return compose(
        advantage=[advantage.sign_weighted(0.0, 1.0)],
        prepare=[prepare.keep("wrong")],
        loss=[ratio.token(), surrogate.clip(low, high), *when(entropy, penalty.entropy(entropy))],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def rl_zvp(alpha: NonNegative = 0.1, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO that also learns from groups without spread, token by token, in proportion to entropy.

    RL-ZVP (arXiv 2509.21880): A_t = alpha H_t where all rows are correct, A_t = -alpha (max H - H_t) where all are
    wrong. Equals ``grpo`` without KL on mixed groups.

    Args:
      alpha: advantage for each nat of entropy in groups without spread.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(), advantage.zero_variance(alpha)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def lens(all_wrong: NonNegative = 0.25, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO whose wrong rows are charged their confidence, so that groups of wrong rows train the policy too.

    LENS (arXiv 2510.08696): groups without a correct row are only centered, and weigh ``all_wrong``. The paper samples
    16 rows for each prompt.

    Args:
      all_wrong: weight of groups without a correct row.
    """
    return compose(
        reward=[reward.confidence_penalty()],
        advantage=[advantage.center_by_group(), advantage.scale_mixed_groups(all_wrong)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def pass_at_k(k: Count = 4, low: NonNegative = 0.2, high: NonNegative = 0.28, oversample: Count = 2) -> Algorithm:
    """DAPO's chain on the analytic advantage of pass@k: the group is paid for the best of k rows.

    Pass@k Training (arXiv 2508.10751). k = 1 is the group z-score with the population deviation.

    Args:
      k: rows of which the best one is paid, at most the size of a group.
    """
    return compose(
        source=source.dynamic(oversample),
        advantage=[advantage.pass_at_k(k)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def on_policy_distillation(teachers: tuple[str, ...] = ()) -> Algorithm:
    """Let a teacher teach the policy on the policy's own samples: A_t = log teacher - log pi.

    On-policy distillation, as in MiMo-V2-Flash (arXiv 2601.02780); pi is the policy at sampling, unfiltered. The
    expected gradient equals the gradient of each token's reverse KL. A teacher is a module with ``weights``.
    """
    return compose(
        advantage=[advantage.distillation(teachers)],
        loss=[ratio.token(), surrogate.unclipped()],
        reduce=reduce.mean_over_tokens(),
    )
