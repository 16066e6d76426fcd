"""Recipes that fit a target: mirror descent, implicit policies, preference pairs."""

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, after, prepare, ratio, reduce, reward, source, surrogate
from rljax.types import Algorithm, Count, Fraction, NonNegative, Positive


@recipe
def kimi_k15(tau: Positive = 0.1, length: NonNegative = 0.0) -> Algorithm:
    """Regress the row's log-ratio onto its centered reward: (r - mean - tau Delta)^2, Delta = sum_t log rho_t.

    Kimi k1.5 (arXiv 2501.12599, eq. 3), online mirror descent; the report does not publish tau. The
    authors switch the reward of length on after a warm-up.

    Args:
      tau: factor of the log-ratio of a row, in units of the reward.
      length: weight of the reward of length; 0 leaves it out.
    """
    return compose(
        reward=when(length, reward.min_max_length(length)),
        advantage=[advantage.center_by_group()],
        loss=[ratio.token(), surrogate.mirror_descent(tau)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def pmd_mean(tau: Positive = 0.01) -> Algorithm:
    """Mirror descent with a leave-one-out baseline, divided by the length: tau / 2 (A / tau - Delta)^2 / |y|.

    OpenKimi, PMD-mean. On-policy it has the gradient of REINFORCE by row mean. Differs from ``kimi_k15`` by the
    baseline and the scale.

    Args:
      tau: temperature of the target, in units of the reward.
    """
    return compose(
        advantage=[advantage.leave_one_out()],
        loss=[ratio.token(), surrogate.scaled_mirror_descent(tau)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def pmd_partition(tau: Positive = 0.01) -> Algorithm:
    """``pmd_mean`` with the log-partition of the other rows as baseline: A_i = r_i - tau log mean_j exp(r_j / tau).

    OpenKimi, PMD-partition. As tau goes to infinity it is the baseline of ``pmd_mean``, as tau goes to 0 the best other
    row.

    Args:
      tau: temperature of the target and of the baseline, in units of the reward.
    """
    return compose(
        advantage=[advantage.log_partition_baseline(tau)],
        loss=[ratio.token(), surrogate.scaled_mirror_descent(tau)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def a_star_po(beta: Positive = 1e-3) -> Algorithm:
    """Regress the log-ratio to the reference onto r - V*: (beta log(pi / ref) - (r - V*))^2.

    A*-PO (arXiv 2505.20686). The part "optimal_value" is V* of each row's prompt, estimated beforehand from 8 samples
    of the reference: V* = b log mean exp(r / b), b = 0.5.

    Args:
      beta: factor of the log-ratio of a row, in units of the reward.
    """
    return compose(
        advantage=[advantage.part_baseline("optimal_value")],
        loss=[surrogate.reference_regression(beta)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def direct_reward_optimisation(beta: Positive) -> Algorithm:
    """REINFORCE with a quadratic penalty on every token: -(A logp - beta / 2 (logp - proximal)^2).

    Offline Regularised RL (arXiv 2405.19107); the literature has no default for ``beta``.

    Args:
      beta: factor of the squared log-ratio of a token.
    """
    return compose(
        advantage=[advantage.center_by_group()],
        loss=[ratio.token(), surrogate.quadratic(beta)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def gvpo(beta: Positive = 0.1) -> Algorithm:
    """Match differences of log-ratios to differences of rewards within a group.

    GVPO (arXiv 2504.19599): ((beta (Delta_i - mean Delta)) - (r_i - mean r))^2 / 2, summed over a group and divided by
    G - 1, averaged over the rows of all groups.

    Args:
      beta: factor of the log-ratio of a row, in units of the reward.
    """
    return compose(
        advantage=[advantage.center_by_group()],
        loss=[ratio.token(), surrogate.group_variance(beta)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def flow_rl(beta: Positive = 15.0, cap: Positive = 10.0) -> Algorithm:
    """Match the policy to exp(beta A) times the reference: trajectory balance with a learned log Z(x).

    FlowRL (arXiv 2509.15207): w (log Z + mean logp - beta A - mean ref)^2, w the truncated ratio of the row. The value
    module is log Z, read at the first token. A second objective regresses it onto beta A + mean ref - mean logp at
    sampling: on the first step this is the direction of its half of the joint gradient.

    Args:
      beta: change of the mean log-prob for a unit of advantage, in nats.
      cap: largest ratio of a row.
    """
    partition = types.Objective(
        module="value", loss=(surrogate.value_error(None),), reduce=reduce.mean_over_first_tokens()
    )
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(), advantage.partition_target(beta)],
        loss=[ratio.token(), surrogate.trajectory_balance(beta, cap)],
        reduce=reduce.mean_over_rows(),
        others=[partition],
    )


@recipe
def nft(
    prompt_weight: types.PromptWeight = "failure",
    floor: Positive = 1.0,
    length: Positive = 1000.0,
    oversample: Count = 2,
) -> Algorithm:
    """Fit correct rows by likelihood, and wrong ones through the policy they imply, in one supervised loss.

    Negative-aware fine-tuning (arXiv 2505.18116): correct -log R, wrong -log((1 - p R) / (1 - p)), R the token ratio, p
    the group's success rate. Rewards are 0 or 1; mixed groups only. ``floor`` 1 caps the slope of wrong tokens where R
    > 1, and their loss is then shown as 0.

    Args:
      prompt_weight: weight of a prompt by its success rate.
      floor: least value of (1 - p R) / (1 - p).
      length: divisor of the sum over all tokens.
    """
    return compose(
        source=source.dynamic(oversample),
        prepare=[prepare.drop_flat_groups()],
        loss=[ratio.token(limit=10.0), surrogate.implicit_negative(prompt_weight, floor)],
        reduce=reduce.sum_over_tokens(length),
    )


@recipe
def a_lol_token(low: Fraction = 0.9, high: NonNegative = 0.9) -> Algorithm:
    """``a_lol`` with a clipped ratio for each token, the paper's sequence form (arXiv 2305.14718).

    Args:
      low: distance of the least ratio of a token from 1.
      high: distance of the greatest ratio of a token from 1.
    """
    return compose(
        advantage=[advantage.part_baseline("prompt_value"), advantage.positive_part()],
        loss=[ratio.token("reference"), surrogate.clipped_importance(low, high)],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def a_lol_reference_free() -> Algorithm:
    """``a_lol`` without the ratio: -relu(R - V(x)) sum logp (arXiv 2305.14718)."""
    return compose(
        advantage=[advantage.part_baseline("prompt_value"), advantage.positive_part()],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def spin(beta: Positive = 0.1, every: Count = 1) -> Algorithm:
    """Prefer a demonstration to a sample of the previous round: -log sigmoid(beta h), whatever either is paid.

    SPIN (arXiv 2401.01335, with the logistic loss; from memory and from summaries of the paper). A round is a
    step: its rows are sampled before its epochs and minibatches (``config.learner``), and the reference of all of them
    is the policy that sampled, so two samples of a prompt are its pair. With ``every`` above 1 the reference is older
    than the samples. Differs from ``dpo`` by the pairs, which no reward decides, and by the reference.

    Args:
      beta: scale of the log-ratios.
      every: steps of a round, after which the reference is the policy.
    """
    return compose(
        source=source.guided(1),
        prepare=[prepare.demonstration_and_sample()],
        loss=[surrogate.preference(beta)],
        reduce=reduce.mean_over_rows(),
        after=[after.reset_reference(every)],
    )


@recipe
def dpo_length_normalised(beta: Positive = 5.0, smoothing: Fraction = 0.0) -> Algorithm:
    """DPO on per-token means of the log-ratios, so that length does not decide. Tulu 3 (arXiv 2411.15124).

    Args:
      beta: scale of the mean log-ratios.
    """
    return compose(
        prepare=[prepare.best_and_worst()],
        loss=[surrogate.preference(beta, smoothing, per_token=True)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def step_apo(beta: Positive = 0.1) -> Algorithm:
    """DPO on steps, with the values of the states they reach: -log sigmoid(beta h - V(s'_w) + V(s'_l)).

    Step-APO of CPL. The part "next_value" is V of the state after the row's step.

    Args:
      beta: scale of the log-ratios.
    """
    return compose(
        prepare=[prepare.best_and_worst()],
        loss=[surrogate.preference(beta, next_value=True)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def p3o(kl: NonNegative = 0.05, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Follow the gradient of a pair's reward difference: (r1 - r2) grad(logp(y1) - logp(y2)) / 2.

    P3O (arXiv 2310.00212), V1: each row's product ratio is clipped separately, and k1 is charged to the reward. The
    pair is two rows of the group drawn at random: with 2 samples of a prompt all rows are used, with more the rest are
    dropped, so sample 2. Differs from ``dpo`` by the weight r1 - r2 and the clip.

    Args:
      kl: coefficient of the k1 that is charged to the reward, in nats; 0 leaves it out.
    """
    return compose(
        reward=when(kl, reward.kl("k1", kl)),
        prepare=[prepare.random_pair()],
        loss=[ratio.product(), surrogate.pairwise_clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )
