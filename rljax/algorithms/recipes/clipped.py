"""Recipes on the clipped ratio, and on what replaces it: several safe steps for each rollout."""

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, penalty, ratio, reduce, reward, source, surrogate, weight
from rljax.types import Algorithm, Count, Fraction, NonNegative, Positive


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
) -> Algorithm:
    """Group-relative policy optimization: A = (r - mean) / std, clipped ratio, k3 to the reference, mean over rows.

    DeepSeekMath (arXiv 2402.03300, eq. 3-4). Public systems differ in ``dual``, ``limit``, ``charge`` and
    ``aggregate``; ``like`` has the settings of one.

    Args:
      ddof: degrees of freedom that the standard deviation of a group takes off its size.
      estimator: estimator of the KL from the sampled tokens; ``ops.kl_estimate`` defines them.
      limit: bound of |log rho|, in nats; None: no bound.
      charge: coefficient of a k1 that is charged to the advantage, after the statistics of the group.
      aggregate: reduction of the loss; None: ``mean_over_rows()``.
    """
    z_score = [advantage.center_by_group(), advantage.scale_by_group(epsilon, ddof)]
    return compose(
        advantage=[*z_score, *when(charge, advantage.charge_kl("k1", charge))],
        loss=[ratio.token(limit=limit), surrogate.clip(low, high, dual), *when(kl, penalty.kl(estimator, kl))],
        reduce=aggregate or reduce.mean_over_rows(),
    )


@recipe
def dr_grpo(low: NonNegative = 0.2, high: NonNegative = 0.2, length: Count | None = None) -> Algorithm:
    """GRPO without its two biases: A = r - mean, and a constant length in place of |y|.

    Understanding R1-Zero-Like Training (arXiv 2503.20783).
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
) -> Algorithm:
    """GRPO with a raised upper clip, token mean, dynamic sampling, and optional soft overlong punishment; no KL.

    DAPO (arXiv 2503.14476), where answers of 16k tokens have ``overlong`` (20480, 4096). The authors' release also has
    ``dual`` 10.

    Args:
      overlong: limit and cache of the soft punishment of length, in tokens; None leaves it out.
    """
    return compose(
        source=source.dynamic(oversample),
        reward=[reward.overlong(*overlong)] if overlong else [],
        advantage=[advantage.center_by_group(), advantage.scale_by_group(epsilon)],
        loss=[ratio.token(), surrogate.clip(low, high, dual)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def gspo(low: NonNegative = 3e-4, high: NonNegative = 4e-4) -> Algorithm:
    """GRPO with one ratio for the whole sequence: s = exp(mean_t log rho_t). GSPO (arXiv 2507.18071).

    Args:
      low: distance of the clip's lower bound from ratio 1; the ratio of a row varies less than the ratio of a token.
      high: distance of the clip's upper bound from ratio 1.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.sequence(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def lite_ppo(low: NonNegative = 0.2, high: NonNegative = 0.2, epsilon: NonNegative = 1e-4) -> Algorithm:
    """GRPO with the batch's standard deviation and a token mean: A = (r - group mean) / batch std.

    Lite PPO (arXiv 2508.08221). Differs from ``grpo`` by the key of the scale and the reduction.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_batch(epsilon)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def forking_tokens(share: Fraction = 0.2, low: NonNegative = 0.2, high: NonNegative = 0.28) -> Algorithm:
    """DAPO in which only the ``share`` of tokens with the highest entropy has a policy gradient.

    Beyond the 80/20 Rule (arXiv 2506.01939). The denominator counts all tokens.

    Args:
      share: share of the tokens of a minibatch, by entropy, that keep their policy gradient.
    """
    return compose(
        source=source.dynamic(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), weight.high_entropy(share)],
        reduce=reduce.mean_over_tokens(),
    )
