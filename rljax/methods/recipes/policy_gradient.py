"""Recipes that differ in their advantage: baselines, normalizers, weights by sign or difficulty."""

from typing import Literal

from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, after, penalty, prepare, ratio, reduce, reward, source, surrogate, weight
from rljax.types import Algorithm, Count, Fraction, NonNegative, Number, Positive


@recipe
def remax(kl: NonNegative = 0.0) -> Algorithm:
    """REINFORCE with the reward of the greedy completion as baseline: A_t = G_t - r(greedy).

    ReMax (arXiv 2310.10505). The part "greedy_reward" is the greedy completion's reward for each row's prompt. Differs
    from ``rloo`` by the baseline.

    Args:
      kl: coefficient of the k1 that is charged to the reward, in nats; 0 leaves it out.
    """
    return compose(
        reward=when(kl, reward.kl("k1", kl)),
        advantage=[advantage.part_baseline("greedy_reward")],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def reinforce_plus_plus(
    kl: NonNegative = 1e-3, gamma: Fraction = 1.0, low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """PPO without a critic or a group: returns with k1 in the reward, whitened over the batch.

    REINFORCE++ (arXiv 2501.03262). Differs from ``reinforce`` by the whitening and the clip.

    Args:
      kl: coefficient of the k1 that is charged to the reward, in nats; 0 leaves it out.
    """
    return compose(
        reward=when(kl, reward.kl("k1", kl)),
        advantage=[advantage.returns(gamma), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def reinforce_plus_plus_baseline(kl: NonNegative = 1e-3, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """``ppo_clip`` with k2 to the reference in the loss.

    REINFORCE++-baseline (arXiv 2501.03262). Differs from ``reinforce_plus_plus`` by the group mean and by where the KL
    is.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k2", kl))],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def opo() -> Algorithm:
    """REINFORCE with the group's length-weighted mean reward as baseline: b = sum |y_i| r_i / sum |y_i|.

    OPO (arXiv 2505.23585): the baseline of least variance when gradient norms grow with length. Strictly on-policy, one
    update for each batch. Differs from ``rloo`` by the baseline and the token mean.
    """
    return compose(
        advantage=[advantage.length_weighted_baseline()], loss=[surrogate.reinforce()], reduce=reduce.mean_over_tokens()
    )


@recipe
def otb() -> Algorithm:
    """REINFORCE with an optimal baseline for each token: B_t = sum_i G_t W_t / sum_i W_t over the group.

    Optimal token baseline (arXiv 2602.07078); W_t sums the squared logit gradients 1 - 2 pi + sum pi^2 up to t. Differs
    from ``opo`` by weights that depend on the token.
    """
    return compose(
        advantage=[advantage.optimal_token_baseline()], loss=[surrogate.reinforce()], reduce=reduce.mean_over_tokens()
    )


@recipe
def gpg(floor: Fraction = 0.5) -> Algorithm:
    """REINFORCE on centered rewards, divided by the share of groups with spread: A = (r - mean) / max(share, floor).

    GPG (arXiv 2504.02546). The authors resample until the share reaches ``floor``. Differs from ``dr_grpo`` by the
    scale and the missing clip.

    Args:
      floor: least share of groups with spread that the advantages are divided by.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_informative_share(floor)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def max_rl(low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Center by the group's mean reward and divide by it: A = (r - mean) / mean, so that rare successes weigh 1 / p.

    MaxRL (arXiv 2602.02710). Differs from ``grpo`` by the scale: the mean in place of the standard deviation.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group_mean()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def gdpo(weights: tuple[tuple[str, float], ...], low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Normalize each part of the reward in its group, add the parts up, then standardize over the batch.

    GDPO (arXiv 2601.05242).
    """
    return compose(
        reward=[reward.decoupled(weights)],
        advantage=[advantage.center_by("batch"), advantage.scale_by("batch")],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def longwriter_zero(
    weights: tuple[tuple[str, float], ...], low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """Normalize each part of the reward in its group and add the parts up by weights.

    LongWriter-Zero (arXiv 2506.18841). Differs from ``gdpo`` by leaving out the statistics of the batch.
    """
    return compose(
        reward=[reward.decoupled(weights)],
        advantage=[advantage.returns()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def spo(prompts: Count, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """One row for each prompt: subtract a remembered success rate of the prompt, then standardize over the batch.

    SPO (arXiv 2509.13232). The part "drift" is the mean |change of
    log-prob| of the prompt's last row. Its prioritized choice of prompts is part of the sampler.

    Args:
      prompts: prompts of the training split.
    """
    return compose(
        advantage=[advantage.value_tracker(prompts), advantage.standardise_rows()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def best_minus_second(scale: bool = False, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Pay only the best row of a group: A is its reward minus the second best (arXiv 2503.19595).

    Args:
      scale: divide by the standard deviation of the group.
    """
    return compose(
        advantage=[advantage.best_minus_second(scale)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def brpo_pairwise(limit: Positive = 0.6, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Pay 1 to rows that beat the group's reference row and -1 to the others; one-sided groups are paid nothing.

    BRPO of Writing-Zero (arXiv 2506.00103). The part "beats_reference" is 1 or -1, and 0 on the reference row itself.

    Args:
      limit: largest |mean| of the advantages of a group that is trained on.
    """
    return compose(
        advantage=[advantage.pairwise_reference(limit)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def brpo_budget(
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    length: Count | None = None,
    budgets: Literal["uniform", "linear", "last"] = "uniform",
) -> Algorithm:
    """Credit each segment of a thought with the rewards at the token budgets that are still ahead of it.

    BRPO of AnytimeReasoner (arXiv 2505.13438). extra["cut_reward"] [B, S] and extra["segment"] [B, T], which
    ``source.anytime`` writes; one budget is ``dr_grpo``.

    Args:
      budgets: weights of the budgets; ``advantage.budget_relative`` defines them.
    """
    return compose(
        advantage=[advantage.budget_relative(budgets)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.fixed_length(length),
    )


@recipe
def reinforce_ada(low: NonNegative = 0.2, high: NonNegative = 0.28) -> Algorithm:
    """Take the baseline from every row drawn, update on those kept: A = r - mean of all, rows with part "kept" 1.

    Reinforce-Ada (arXiv 2510.04996). Which rows are drawn and kept is decided by the sampler. Differs from
    ``dr_grpo`` by the rows left out of the loss. The release also sets a dual clip of 10.
    """
    return compose(
        advantage=[advantage.center_by_group()],
        prepare=[prepare.keep("kept")],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="mixture(guess(numbers=32), guess(numbers=64))")
def golongrl(
    gamma: Number = 1.0, alpha: Fraction = 0.8, low: NonNegative = 0.2, high: NonNegative = 0.28, dual: Positive = 3.0
) -> Algorithm:
    """Group mean, scale of the domain, and more weight for successes on hard prompts and failures on easy ones.

    GoLongRL (2025): the spread is pooled over the prompts of a domain. The release samples 16 rows for each prompt.

    Args:
      gamma: how much the weight of a success grows with the difficulty of its prompt.
      alpha: share of the mean of the group in the threshold of a success; the rest is the mean of the domain.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_task()],
        loss=[ratio.token(), surrogate.clip(low, high, dual), weight.by_solve_rate(gamma, alpha)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def t1(kl: NonNegative = 1e-3, entropy: NonNegative = 1e-3, decay: Fraction = 0.99) -> Algorithm:
    """RLOO with an entropy bonus and a KL to a moving average of the policy.

    T1 (arXiv 2501.11651). The report does not publish its coefficients; the defaults are small.

    Args:
      decay: weight of the former reference in the moving average, for each step.
    """
    return compose(
        advantage=[advantage.leave_one_out()],
        loss=[surrogate.reinforce(), *when(kl, penalty.kl("k2", kl)), *when(entropy, penalty.entropy(entropy))],
        reduce=reduce.mean_over_rows_of_sums(),
        after=[after.ema_reference(decay)],
    )


@recipe
def tempo(low: NonNegative = 0.2, high: NonNegative = 0.2, epsilon: NonNegative = 1e-6) -> Algorithm:
    """GRPO plus temporal differences on the tree of the group's shared prefixes.

    TEMPO (arXiv 2509.18314): A = (r - mean + V(s_{t+1}) - V(s_t)) / (std + epsilon), V the mean reward under a prefix.
    """
    return compose(
        advantage=[advantage.prefix_tree(), advantage.scale_by_group(epsilon)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def vine_ppo(
    cuts: Count = 4,
    samples: Count = 9,
    delimiter: str = "",
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    kl: NonNegative = 1e-4,
) -> Algorithm:
    """PPO whose values are Monte Carlo estimates: continuations of every row from the states where it is cut.

    VinePPO (arXiv 2410.01679), which cuts at each step of the reasoning and has ``samples`` 9. Differs from ``ppo`` by
    what stands for the critic, and from ``rloo`` by the credit within a row.

    Args:
      cuts: places at which a row is cut.
      samples: continuations from each.
      delimiter: text of the token that ends a step, behind which rows are cut; empty: rows are cut evenly.
    """
    return compose(
        source=source.vine(cuts, samples, delimiter),
        advantage=[advantage.segment_rise()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def attn_rl(low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Credit a node of a branching rollout by its rise: A = (2 V - V_root - V_parent) / sqrt(leaves).

    AttnRL (arXiv 2509.26628), whose sampler decides by attention where to branch; TreeRL (arXiv 2506.11902) has the
    same advantage. A source that branches makes the tree: ``attended``, or ``cure``; see ``advantage.branch_tree``.
    """
    return compose(
        advantage=[advantage.branch_tree()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )
