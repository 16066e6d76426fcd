"""Recipes on the clipped ratio, and on what replaces it: several safe steps for each rollout."""

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import (
    advantage,
    after,
    penalty,
    prepare,
    ratio,
    reduce,
    reward,
    schedule,
    source,
    surrogate,
    weight,
)
from rljax.types import Count, Fraction, Limit, NonNegative, Positive


@recipe
def grpo(
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    kl: NonNegative = 0.04,
    epsilon: NonNegative = 1e-6,
    ddof: int = 1,
    estimator: types.Estimator = "k3",
    dual: Positive | None = None,
    limit: Positive | None = None,
    charge: NonNegative = 0.0,
    aggregate: types.PrepareTransform | None = None,
):
    """Group-relative policy optimization: A = (r - mean) / std, clipped ratio, k3 to the reference, mean over rows.

    DeepSeekMath (arXiv 2402.03300, eq. 3-4). ``kl`` 0 leaves the reference out. Systems differ in ``dual``, ``limit``
    (of log rho), ``charge`` (k1 charged to the advantage, after the group statistics) and ``aggregate`` (None:
    ``mean_over_rows()``); ``like`` has the settings of one, see DIFFERENCES.md.
    """
    z_score = [advantage.center_by_group(), advantage.scale_by_group(epsilon, ddof)]
    return compose(
        advantage=[*z_score, *when(charge, advantage.charge_kl("k1", charge))],
        loss=[ratio.token(limit=limit), surrogate.clip(low, high, dual), *when(kl, penalty.kl(estimator, kl))],
        reduce=aggregate or reduce.mean_over_rows(),
    )


@recipe
def r1_zero(clip: NonNegative = 10.0, kl: NonNegative = 1e-3):
    """GRPO as DeepSeek-R1-Zero reports it: a clip so wide that it rarely binds, and a small k3.

    DeepSeek-R1 (arXiv 2501.12948), 16 samples of each prompt. The lower bound 1 - clip is negative, so only the upper
    one has an effect.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(clip, clip), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def dr_grpo(low: NonNegative = 0.2, high: NonNegative = 0.2, length: Count | None = None):
    """GRPO without its two biases: A = r - mean, and a constant length in place of |y|.

    Understanding R1-Zero-Like Training (arXiv 2503.20783). ``length`` None is the sampler's limit.
    """
    return compose(
        advantage=[advantage.center_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.fixed_length(length),
    )


@recipe
def dapo(
    low: NonNegative = 0.2,
    high: NonNegative = 0.28,
    oversample: Count = 2,
    overlong: tuple[Count, Count] | None = None,
    dual: Positive | None = None,
    epsilon: NonNegative = 1e-6,
):
    """GRPO with a raised upper clip, token mean, dynamic sampling, and optional soft overlong punishment; no KL.

    DAPO (arXiv 2503.14476). ``overlong`` is (limit, cache) in tokens; the paper's answers of 16k tokens use (20480,
    4096), None leaves it out. The authors' release also has ``dual`` 10.
    """
    return compose(
        source=source.dynamic(oversample),
        reward=[reward.overlong(*overlong)] if overlong else [],
        advantage=[advantage.center_by_group(), advantage.scale_by_group(epsilon)],
        loss=[ratio.token(), surrogate.clip(low, high, dual)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def dapo_filter(low: NonNegative = 0.2, high: NonNegative = 0.28, oversample: Count = 2):
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
def gspo(low: NonNegative = 3e-4, high: NonNegative = 4e-4):
    """GRPO with one ratio for the whole sequence: s = exp(mean_t log rho_t). GSPO (arXiv 2507.18071)."""
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.sequence(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def gspo_token(low: NonNegative = 3e-4, high: NonNegative = 4e-4, limit: Positive | None = 10.0):
    """GSPO whose gradient flows through each token separately: the ratio is sg(s) rho_t / sg(rho_t).

    GSPO-token (arXiv 2507.18071, eq. 13-14); log s is at most ``limit``, as in verl. Same value as ``gspo``, and the
    same gradient when A is constant over the row.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.sequence_token(limit=limit), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def luspo(low: NonNegative = 2e-3, high: NonNegative = 2.5e-3):
    """GSPO whose rows are scaled by their length, so that long rows count in full: mean over rows of |y_i| loss_i.

    LUSPO (arXiv 2602.05261). |y| times the row's token mean is its token sum.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.sequence(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def gmpo(epsilon: NonNegative = 0.4):
    """GRPO on the geometric mean of token ratios, each clipped in log space before the mean: -A exp(mean_t d'_t).

    GMPO (arXiv 2507.20673). Differs from ``gspo`` by clipping tokens instead of the mean.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.geometric_mean(epsilon)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def cispo(low: Limit = float("inf"), high: NonNegative = 4.0, epsilon: NonNegative = 1e-6):
    """REINFORCE weighed by a clipped, constant ratio, so that every token keeps its gradient.

    CISPO, MiniMax-M1 (arXiv 2506.13585, eq. 4): -sg(clip(rho, 1 - low, 1 + high)) A logp. ``high`` is an offset: 4 is
    the cap of 5 that ScaleRL advises.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(epsilon)],
        loss=[ratio.token(), surrogate.clipped_importance(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def scale_rl(high: NonNegative = 4.0, lag: int = 8):
    """CISPO on batch-scaled advantages, averaged over prompts, without flat groups and stale tokens.

    The loss of ScaleRL (arXiv 2510.13786). Its curriculum (prompts solved 90 % of the time are retired) and its 32-bit
    output head are settings of the sampler and the model.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_batch()],
        prepare=[prepare.drop_flat_groups()],
        loss=[ratio.token(), surrogate.clipped_importance(high=high), weight.fresh(lag)],
        reduce=reduce.mean_over_prompts(),
    )


@recipe
def sapo(positive: Positive = 1.0, negative: Positive = 1.05):
    """GRPO with a soft gate in place of the clip: -A (4 / tau) sigmoid(tau (rho - 1)).

    SAPO (arXiv 2511.20347); ``positive`` and ``negative`` are tau by the sign of A.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.soft_gate(positive, negative)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def vespo(
    positive: tuple[float, float] = (2.0, 3.0),
    negative: tuple[float, float] = (3.0, 2.0),
):
    """REINFORCE weighed by sg(W^k exp(lambda (1 - W))), W the product ratio to the sampler.

    VESPO (arXiv 2602.10693); (k, lambda) by the sign of A; W is at least 1e-8. Differs from ``cispo`` by one smooth
    weight for each row.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.product("behaviour", low=-18.420681), surrogate.gamma_weight(positive, negative)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def dppo(low: NonNegative = 0.15, high: NonNegative = 0.15, cap: Positive = 20.0):
    """Importance-weighted REINFORCE that drops tokens whose probability has moved too far in the direction of A.

    DPPO (arXiv 2602.04879), total-variation mask: drop A > 0 with pi - pi_b > high, A < 0 with pi_b - pi > low.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token("behaviour"), surrogate.divergence_mask("tv", low, high, cap)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def dppo_kl(low: NonNegative = 0.05, high: NonNegative = 0.05, cap: Positive = 20.0):
    """DPPO with the Bernoulli KL of the sampled token in place of total variation (arXiv 2602.04879)."""
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token("behaviour"), surrogate.divergence_mask("kl", low, high, cap)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def ppo_clip(low: NonNegative = 0.2, high: NonNegative = 0.2):
    """PPO's clipped surrogate without a critic: group-centered rewards, whitened over the batch, token mean.

    Surrogate: arXiv 1707.06347, eq. 7; advantage: REINFORCE++-baseline (arXiv 2501.03262).
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def lite_ppo(low: NonNegative = 0.2, high: NonNegative = 0.2, epsilon: NonNegative = 1e-4):
    """GRPO with the batch's standard deviation and a token mean: A = (r - group mean) / batch std.

    Lite PPO (arXiv 2508.08221). Differs from ``grpo`` by the key of the scale and the reduction.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_batch(epsilon)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def clip_cov(share: Fraction = 2e-4, low: NonNegative = 1.0, high: NonNegative = 1.0, bounds: tuple = (1.0, 5.0)):
    """DAPO's chain with a clip that rarely binds; a few tokens of high covariance lose their gradient.

    The Entropy Mechanism (arXiv 2505.22617, section 4): among unclipped tokens with (A - mean)(logp - mean) in
    ``bounds``, a random ``share`` of all tokens.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.covariance_mask(share, bounds)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def kl_cov(share: Fraction = 2e-4, coefficient: NonNegative = 1.0):
    """Unclipped ratio, with |logp - proximal| charged to the tokens of highest covariance.

    The Entropy Mechanism (arXiv 2505.22617, section 4). ``share`` is 2e-3 for 7B models. Differs from ``clip_cov`` by a
    penalty in place of a mask.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.unclipped(), penalty.covariance_kl(share, coefficient)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def forking_tokens(share: Fraction = 0.2, low: NonNegative = 0.2, high: NonNegative = 0.28):
    """DAPO whose policy gradient is that of the ``share`` of tokens with the highest entropy.

    Beyond the 80/20 Rule (arXiv 2506.01939). The denominator counts all tokens.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.high_entropy(share)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def skywork_or1(target: Positive = 0.2, step: Positive = 0.005, low: NonNegative = 0.2, high: NonNegative = 0.2):
    """GRPO by token mean with an entropy bonus whose coefficient rises while the entropy is below ``target``.

    Skywork-OR1 (arXiv 2505.22312), MAGIC; its curriculum of several stages is written as phases.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[
            ratio.token(),
            surrogate.clip(low, high),
            penalty.entropy(schedule.adaptive_entropy(target, 0.01, step)),
        ],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def stable_reinforce(low: NonNegative = 0.2, high: NonNegative = 0.2, sigmas: Positive = 3.0):
    """GRPO with the log-ratio clamped before exp and outlying advantages dropped.

    StableReinforce, R1-Reward (arXiv 2505.02835): |log rho| <= log 1000; tokens with |A - mean| > sigmas std get A = 0.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(), advantage.drop_outliers(sigmas)],
        loss=[ratio.token(limit=6.907755), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def prorl(low: NonNegative = 0.2, high: NonNegative = 0.4, kl: NonNegative = 1e-3, every: Count = 500):
    """DAPO with a KL to a reference that is regularly reset to the policy.

    ProRL (arXiv 2505.24864). The paper resets by hand on stagnation, with fresh optimizer state, which a phase with
    ``reset_optimizer`` does; ``every`` resets after that many steps.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_tokens(),
        after=[after.reset_reference(every)],
    )


@recipe
def simplerl_zoo(kl: NonNegative = 1e-4, entropy: NonNegative = 1e-3, low: NonNegative = 0.2, high: NonNegative = 0.2):
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
def intellect_2(low: NonNegative = 0.2, high: NonNegative = 0.2, dual: Positive = 4.0, kl: NonNegative = 1e-3):
    """GRPO by token mean with a two-sided clip: the loss of negative advantages is at most -dual A.

    INTELLECT-2 (arXiv 2505.07291). Differs from ``grpo`` by ``dual``, the coefficient of k3 and the reduction.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high, dual), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_tokens(),
    )
