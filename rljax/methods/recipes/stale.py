"""Recipes for stale tokens, and for samplers that differ from the trainer."""

from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, penalty, ratio, reduce, schedule, source, surrogate, weight
from rljax.types import Algorithm, Cap, Fraction, NonNegative, Positive


@recipe
def areal(cap: Cap = 5.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """PPO's clip around the proximal policy, times exp(proximal - behaviour) for the lag of the sampler.

    AReaL, decoupled PPO (arXiv 2505.24298, eq. 5). On fresh rows it differs from ``ppo_clip`` by the scale of the
    group.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.masked_importance(high=cap)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def a_3po(cap: Cap = 5.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """``areal`` with a proximal policy that is interpolated between sampler and policy by age, not computed.

    A-3PO (arXiv 2512.06547): log prox = log b + a (sg(logp) - log b), a = 1 - 1 / age. Saves a forward pass.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(), advantage.whiten()],
        loss=[ratio.interpolated(), surrogate.clip(low, high), weight.masked_importance(high=cap)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def aipo(cap: float = 4.0) -> Algorithm:
    """REINFORCE weighed by the truncated ratio to the sampler: -sg(min(exp(logp - behaviour), cap)) A logp.

    AIPO, LlamaRL (arXiv 2505.24034); cap between 2 and 10. Equals ``cispo`` without a lower bound, anchored on the
    sampler.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token("behaviour"), surrogate.clipped_importance(high=cap - 1.0)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def rollout_is(low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """``aipo`` that drops the tokens outside [1 - low, 1 + high] instead of truncating their weight.

    The rollout_is of SkyRL.

    Args:
      low: distance of the least ratio that is kept from 1.
      high: distance of the greatest ratio that is kept from 1.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token("behaviour"), surrogate.banded_importance(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def seq_mask_tis(
    bounds: tuple[NonNegative, Positive] = (0.999, 1.002), low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """Keep a row only if its geometric-mean weight is in ``bounds``; then use each token's weight, untruncated.

    The form of OpenRLHF and NeMo-RL. Differs from ``icepop`` by deciding on rows.

    Args:
      bounds: least and greatest geometric-mean weight of a row that is kept.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.sequence_masked_importance(*bounds)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def m2po(tau: Positive = 0.04, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Drop the most off-policy tokens until the mean of (behaviour - proximal)^2 over the rest is below tau.

    M2PO (arXiv 2510.01161). Bounds the second moment of the log-ratio instead of each ratio.

    Args:
      tau: bound of the mean squared log-ratio between sampler and trainer, in nats squared.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.second_moment_mask(tau)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def kpop(bound: Positive = 2.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Drop tokens where the larger of the two Bernoulli KLs between trainer and sampler exceeds ``bound``.

    KPop. Differs from ``icepop`` by a mask: the weight of the tokens it keeps stays 1.

    Args:
      bound: largest KL of a token that is kept, in nats.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.bernoulli_kl_mask(bound)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def prime_rl(low: NonNegative = 0.2, high: NonNegative = 0.2, kl_tau: NonNegative = 1e-3, lag: int = 8) -> Algorithm:
    """Centered rewards, the total-variation mask of ``dppo``, and kl_tau (logp - behaviour)^2 to the sampler.

    The default of prime-rl (2025). Tokens older than ``lag`` versions are left out.

    Args:
      low: largest decrease of the probability of a token where A < 0.
      high: largest increase of the probability of a token where A > 0.
      kl_tau: coefficient of the squared log-ratio to the sampler; 0 leaves it out.
    """
    return compose(
        advantage=[advantage.center_by_group()],
        loss=[
            ratio.token("behaviour"),
            surrogate.divergence_mask("tv", low, high),
            weight.fresh(lag),
            *when(kl_tau, penalty.squared_log_ratio(kl_tau)),
        ],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def ulorl(entropy: NonNegative = 0.2, low: NonNegative = 0.2, high: NonNegative = 0.28) -> Algorithm:
    """Declare stitched rollouts on-policy (ratio 1), and mask the well-mastered tokens of correct rows.

    UloRL (arXiv 2507.19766): pseudo-on-policy ratio; DMMPT drops tokens of probability >= 0.99 in correct rows whose
    mean entropy is below ``entropy``. Its segment rollout is ``source.partial``.

    Args:
      entropy: mean entropy of a correct row below which its mastered tokens are masked, in nats.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.on_policy(), surrogate.clip(low, high), weight.mastered_token_mask(entropy)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def remix(
    share: Fraction = 0.4,
    epsilon: NonNegative = 0.2,
    kl: NonNegative = 1e-3,
    entropy: NonNegative = 1e-3,
    base: Fraction | None = None,
) -> Algorithm:
    """Replay rows under a clip centered on exp(proximal - behaviour); a KL moves from the base to the previous policy.

    ReMix (arXiv 2507.06892), Mix-PPG and KL-Convex: base KL(pi || ref) + (1 - base) KL(pi || pi_{k-1}), where ``base``
    None is max(1 - 0.1 ceil((step - 50) / 10), 0.5). ``kl`` 0 leaves both out; else the run keeps a copy of pi_{k-1}.
    At step 50-100 the authors reset the reference and continue on-policy, which is a phase of its own.

    Args:
      share: share of the groups that are replayed.
      epsilon: distance of both bounds of the clip from its center.
      kl: coefficient of both KLs, in nats; 0 leaves them out.
      base: share of the KL to the base policy; None: max(1 - 0.1 ceil((step - 50) / 10), 0.5).
    """
    falling = schedule.staircase(1.0, -0.1, every=10, start=50, low=0.5)
    return compose(
        source=source.replay(share, steps=2),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[
            ratio.token("behaviour"),
            surrogate.centred_clip(epsilon),
            *when(kl, penalty.previous_convex_kl("k3", kl, falling if base is None else base)),
            *when(entropy, penalty.entropy(entropy)),
        ],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def deepseek_v32(
    low: NonNegative = 0.2, high: NonNegative = 0.2, kl: NonNegative = 1e-3, delta: Positive = 0.5
) -> Algorithm:
    """GRPO with an importance-corrected k3, and a mask on off-policy rows of negative advantage.

    DeepSeek-V3.2 (arXiv 2512.02556, section 3.1): the corrected k3 has the gradient of reverse KL.

    Args:
      delta: mean log(behaviour / pi) above which a row of negative advantage is dropped, in nats.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[
            ratio.token(),
            surrogate.clip(low, high),
            weight.off_policy_sequence_mask(delta),
            *when(kl, penalty.kl("k3", kl, correction="behaviour")),
        ],
        reduce=reduce.mean_over_rows(),
    )
