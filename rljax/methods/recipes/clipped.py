"""Recipes on the clipped ratio, and on what replaces it: several safe steps for each rollout."""

from rljax.algorithms.base import compose, recipe, when
from rljax.algorithms.recipes import clipped
from rljax.transforms import advantage, after, penalty, prepare, ratio, reduce, schedule, source, surrogate, weight
from rljax.types import Algorithm, Count, Fraction, Limit, NonNegative, Positive


@recipe
def r1_zero(clip: NonNegative = 10.0, kl: NonNegative = 1e-3) -> Algorithm:
    """GRPO as DeepSeek-R1-Zero reports it: a clip so wide that it rarely binds, and a small k3.

    DeepSeek-R1 (arXiv 2501.12948), 16 samples of each prompt. The lower bound 1 - clip is negative, so only the upper
    one has an effect.

    Args:
      clip: distance of both bounds of the clip from ratio 1.
    """
    return clipped.grpo(clip, clip, kl)


@recipe
def dapo_filter(low: NonNegative = 0.2, high: NonNegative = 0.28, oversample: Count = 2) -> Algorithm:
    """DAPO's earlier variant: truncated rows are left out of the loss instead of being punished.

    Overlong filtering (arXiv 2503.14476, section 3.4). Differs from ``dapo`` by ``prepare.drop_truncated``.
    """
    return compose(
        source=source.dynamic(oversample),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        prepare=[prepare.drop_truncated()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def gspo_token(low: NonNegative = 3e-4, high: NonNegative = 4e-4, limit: Positive | None = 10.0) -> Algorithm:
    """GSPO whose gradient flows through each token separately: the ratio is sg(s) rho_t / sg(rho_t).

    GSPO-token (arXiv 2507.18071, eq. 13-14); log s is at most ``limit``, as in verl. Same value as ``gspo``, and the
    same gradient when A is constant over the row.

    Args:
      limit: greatest log of the ratio of a row, in nats; None: no bound.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.sequence_token(limit=limit), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def luspo(low: NonNegative = 2e-3, high: NonNegative = 2.5e-3) -> Algorithm:
    """GSPO whose rows are scaled by their length, so that long rows count in full: mean over rows of |y_i| loss_i.

    LUSPO (arXiv 2602.05261). |y| times the row's token mean is its token sum.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.sequence(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def gmpo(epsilon: NonNegative = 0.4) -> Algorithm:
    """GRPO on the geometric mean of token ratios, each clipped in log space before the mean: -A exp(mean_t d'_t).

    GMPO (arXiv 2507.20673). Differs from ``gspo`` by clipping tokens instead of the mean.

    Args:
      epsilon: bound of the log-ratio of a token, in nats.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.geometric_mean(epsilon)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def cispo(low: Limit = float("inf"), high: NonNegative = 4.0, epsilon: NonNegative = 1e-6) -> Algorithm:
    """REINFORCE weighed by a clipped, constant ratio, so that every token keeps its gradient.

    CISPO, MiniMax-M1 (arXiv 2506.13585, eq. 4): -sg(clip(rho, 1 - low, 1 + high)) A logp. ``high`` is an offset: 4 is
    the cap of 5 that ScaleRL advises.

    Args:
      low: distance of the least weight from 1; infinite: no bound.
      high: distance of the greatest weight from 1.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(epsilon)],
        loss=[ratio.token(), surrogate.clipped_importance(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def scale_rl(high: NonNegative = 4.0, lag: int = 8) -> Algorithm:
    """CISPO on batch-scaled advantages, averaged over prompts, without flat groups and stale tokens.

    The loss of ScaleRL (arXiv 2510.13786). Its curriculum (prompts solved 90 % of the time are retired) and its 32-bit
    output head are settings of the sampler and the model.

    Args:
      high: distance of the greatest weight from 1.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_batch()],
        prepare=[prepare.drop_flat_groups()],
        loss=[ratio.token(), surrogate.clipped_importance(high=high), weight.fresh(lag)],
        reduce=reduce.mean_over_prompts(),
    )


@recipe
def sapo(positive: Positive = 1.0, negative: Positive = 1.05) -> Algorithm:
    """GRPO with a soft gate in place of the clip: -A (4 / tau) sigmoid(tau (rho - 1)).

    SAPO (arXiv 2511.20347); tau depends on the sign of A.

    Args:
      positive: tau where A > 0: how fast the gate closes with the distance of the ratio from 1.
      negative: tau where A < 0.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.soft_gate(positive, negative)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def vespo(positive: tuple[float, float] = (2.0, 3.0), negative: tuple[float, float] = (3.0, 2.0)) -> Algorithm:
    """REINFORCE weighed by sg(W^k exp(lambda (1 - W))), W the product ratio to the sampler.

    VESPO (arXiv 2602.10693); (k, lambda) by the sign of A; W is at least 1e-8. Differs from ``cispo`` by one smooth
    weight for each row.

    Args:
      positive: (k, lambda) where A >= 0.
      negative: (k, lambda) where A < 0.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.product("behaviour", low=-18.420681), surrogate.gamma_weight(positive, negative)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def dppo(low: NonNegative = 0.15, high: NonNegative = 0.15, cap: Positive = 20.0) -> Algorithm:
    """Importance-weighted REINFORCE that drops tokens whose probability has moved too far in the direction of A.

    DPPO (arXiv 2602.04879), total-variation mask: drop A > 0 with pi - pi_b > high, A < 0 with pi_b - pi > low.

    Args:
      low: largest decrease of the probability of a token where A < 0.
      high: largest increase of the probability of a token where A > 0.
      cap: largest ratio.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token("behaviour"), surrogate.divergence_mask("tv", low, high, cap)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def dppo_kl(low: NonNegative = 0.05, high: NonNegative = 0.05, cap: Positive = 20.0) -> Algorithm:
    """DPPO with the Bernoulli KL of the sampled token in place of total variation (arXiv 2602.04879).

    Args:
      low: largest KL of a token where A < 0, in nats.
      high: largest KL of a token where A > 0, in nats.
      cap: largest ratio.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token("behaviour"), surrogate.divergence_mask("kl", low, high, cap)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def ppo_clip(low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """PPO's clipped surrogate without a critic: group-centered rewards, whitened over the batch, token mean.

    Surrogate: arXiv 1707.06347, eq. 7; advantage: REINFORCE++-baseline (arXiv 2501.03262).
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def clip_cov(
    share: Fraction = 2e-4, low: NonNegative = 1.0, high: NonNegative = 1.0, bounds: tuple = (1.0, 5.0)
) -> Algorithm:
    """DAPO's chain with a clip that rarely binds; a few tokens of high covariance lose their gradient.

    The Entropy Mechanism (arXiv 2505.22617, section 4): among unclipped tokens with (A - mean)(logp - mean) in
    ``bounds``, a random ``share`` of all tokens.

    Args:
      share: share of the tokens of a minibatch that lose their gradient.
      bounds: least and greatest covariance of the tokens that may lose their gradient.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.covariance_mask(share, bounds)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def kl_cov(share: Fraction = 2e-4, coefficient: NonNegative = 1.0) -> Algorithm:
    """Unclipped ratio, with |logp - proximal| charged to the tokens of highest covariance.

    The Entropy Mechanism (arXiv 2505.22617, section 4). ``share`` is 2e-3 for 7B models. Differs from ``clip_cov`` by a
    penalty in place of a mask.

    Args:
      share: share of the tokens of a minibatch that is charged.
      coefficient: factor of the charge, in nats.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.unclipped(), penalty.covariance_kl(share, coefficient)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def skywork_or1(
    target: Positive = 0.2, step: Positive = 0.005, low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """GRPO by token mean with an entropy bonus whose coefficient rises while the entropy is below ``target``.

    Skywork-OR1 (arXiv 2505.22312), MAGIC; its curriculum of several stages is written as phases.

    Args:
      target: entropy below which the coefficient rises, in nats.
      step: change of the coefficient in a step.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), penalty.entropy(schedule.adaptive_entropy(target, 0.01, step))],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def stable_reinforce(low: NonNegative = 0.2, high: NonNegative = 0.2, sigmas: Positive = 3.0) -> Algorithm:
    """GRPO with the log-ratio clamped before exp and outlying advantages dropped.

    StableReinforce, R1-Reward (arXiv 2505.02835): |log rho| <= log 1000; tokens with |A - mean| > sigmas std get A = 0.

    Args:
      sigmas: distance from the mean, in standard deviations, beyond which an advantage becomes 0.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(), advantage.drop_outliers(sigmas)],
        loss=[ratio.token(limit=6.907755), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def prorl(low: NonNegative = 0.2, high: NonNegative = 0.4, kl: NonNegative = 1e-3, every: Count = 500) -> Algorithm:
    """DAPO with a KL to a reference that is regularly reset to the policy.

    ProRL (arXiv 2505.24864). The paper resets by hand on stagnation, with fresh optimizer state, which a phase with
    ``reset_optimizer`` does; ``every`` resets after that many steps.

    Args:
      every: steps from one reset of the reference to the next.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_tokens(),
        after=[after.reset_reference(every)],
    )


@recipe
def simplerl_zoo(
    kl: NonNegative = 1e-4, entropy: NonNegative = 1e-3, low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """GRPO with a small k3 and a small entropy bonus. SimpleRL-Zoo (arXiv 2503.18892); ``kl`` is 1e-3 at 32B."""
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[
            ratio.token(),
            surrogate.clip(low, high),
            *when(kl, penalty.kl("k3", kl)),
            *when(entropy, penalty.entropy(entropy)),
        ],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def intellect_2(
    low: NonNegative = 0.2, high: NonNegative = 0.2, dual: Positive = 4.0, kl: NonNegative = 1e-3
) -> Algorithm:
    """GRPO by token mean with a two-sided clip: the loss of negative advantages is at most -dual A.

    INTELLECT-2 (arXiv 2505.07291). Differs from ``grpo`` by ``dual``, the coefficient of k3 and the reduction.
    """
    return clipped.grpo(low, high, kl, dual=dual, aggregate=reduce.mean_over_tokens())
