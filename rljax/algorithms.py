"""The table: one function for each published method, returning a composition of pieces.

A recipe's signature is its schema and the only home of its defaults. What it does not name has the
defaults of ``compose``.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rljax import transforms, types
from rljax.transforms import advantage, penalty, prepare, ratio, reduce, reward, source, surrogate

TABLE: dict[str, Callable[..., types.Algorithm]] = {}


def recipe(constructor: Callable[..., types.Algorithm]) -> Callable[..., types.Algorithm]:
    """Enter a recipe in the table and record its calls with every default filled in."""
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def build(*args: Any, **kwargs: Any) -> types.Algorithm:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        built = constructor(*bound.args, **bound.kwargs)
        return dataclasses.replace(built, spec=transforms.call(constructor.__name__, bound.arguments))

    if constructor.__module__ == __name__:
        TABLE[constructor.__name__] = build
    return build


def _given(coefficient: types.Number) -> bool:
    """Tell whether a coefficient asks for its piece: anything but a plain 0 (it may be traced, or a schedule)."""
    return not (isinstance(coefficient, int | float) and coefficient == 0)


def compose(
    *,
    advantage: Sequence[types.RolloutTransform] = (),
    loss: Sequence[types.LossTransform],
    reduce: types.PrepareTransform,
    reward: Sequence[types.RolloutTransform] = (),
    prepare: Sequence[types.PrepareTransform] = (),
    source: types.Source = source.task(),
    after: Sequence[types.AfterTransform] = (),
    others: Sequence[types.Objective] = (),
) -> types.Algorithm:
    """Return an algorithm of one policy objective, and ``others`` such as a critic's."""
    policy = types.Objective(loss=tuple(loss), reduce=reduce, prepare=tuple(prepare))
    return types.Algorithm(
        objectives=(policy, *others), rollout=(*reward, *advantage), source=source, after=tuple(after)
    )


@recipe
def sft():
    """Fit demonstrations: minimise -log pi(y | x), token mean."""
    return compose(source=source.demonstrations(), loss=[surrogate.likelihood()], reduce=reduce.mean_over_tokens())


@recipe
def reinforce(gamma: types.Fraction = 1.0):
    """Follow the plain policy gradient: -sum_t G_t logp_t, mean over rows (Williams 1992). No baseline."""
    return compose(
        advantage=[advantage.returns(gamma)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def rloo(kl: types.NonNegative = 0.0):
    """REINFORCE with a leave-one-out baseline: A_i = r_i - mean over j != i of r_j.

    Back to Basics (arXiv 2402.14740). ``kl`` > 0 charges k1 to the reward, as the paper does. Differs from
    ``reinforce`` by the baseline.
    """
    return compose(
        reward=[reward.kl("k1", kl)] if _given(kl) else [],
        advantage=[advantage.leave_one_out()],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe
def grpo(
    low: types.NonNegative = 0.2,
    high: types.NonNegative = 0.2,
    kl: types.NonNegative = 0.04,
    epsilon: types.NonNegative = 1e-6,
    ddof: int = 1,
):
    """Group-relative policy optimisation: A = (r - mean) / std, clipped ratio, k3 to the reference, row mean.

    DeepSeekMath (arXiv 2402.03300, eq. 3-4). ``kl`` 0 leaves the reference out.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group(epsilon, ddof)],
        loss=[ratio.token(), surrogate.clip(low, high), *([penalty.kl("k3", kl)] if _given(kl) else [])],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def dr_grpo(low: types.NonNegative = 0.2, high: types.NonNegative = 0.2, length: types.Count | None = None):
    """GRPO without its two biases: A = r - mean, and a constant length in place of |y|.

    Understanding R1-Zero-Like Training (arXiv 2503.20783). ``length`` None: the sampler's limit.
    """
    return compose(
        advantage=[advantage.center_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.fixed_length(length),
    )


@recipe
def dapo(
    low: types.NonNegative = 0.2,
    high: types.NonNegative = 0.28,
    oversample: types.Count = 2,
    overlong: tuple[types.Count, types.Count] | None = None,
):
    """GRPO with a raised upper clip, token mean, dynamic sampling and soft overlong punishment; no KL.

    DAPO (arXiv 2503.14476). ``overlong`` is (limit, cache) in tokens; the paper's 16k answers use
    (20480, 4096); None leaves it out.
    """
    return compose(
        source=source.dynamic(oversample),
        reward=[reward.overlong(*overlong)] if overlong else [],
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def gspo(low: types.NonNegative = 3e-4, high: types.NonNegative = 4e-4):
    """GRPO with one ratio for the whole sequence: s = exp(mean_t log rho_t). GSPO (arXiv 2507.18071)."""
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.sequence(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def ppo_clip(low: types.NonNegative = 0.2, high: types.NonNegative = 0.2):
    """PPO's clipped surrogate without a critic: group-centred rewards whitened over the batch, token mean.

    Surrogate: arXiv 1707.06347, eq. 7; advantage: REINFORCE++-baseline (arXiv 2501.03262).
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def ppo(
    low: types.NonNegative = 0.2,
    high: types.NonNegative = 0.2,
    gamma: types.Fraction = 1.0,
    lam: types.Fraction = 0.95,
    kl: types.NonNegative = 0.05,
    value_clip: types.Positive | None = 0.2,
    critic_epochs: types.Count | None = None,
    critic_optimizer: str | None = None,
):
    """PPO with a critic: k1 in the reward, GAE, whitening, clipped surrogate; the critic is a second objective.

    arXiv 1707.06347 with the settings of RLHF practice (arXiv 2203.02155). Differs from ``ppo_clip`` by the critic.
    """
    critic = types.Objective(
        module="value",
        loss=(surrogate.value_error(value_clip),),
        reduce=reduce.mean_over_tokens(),
        epochs=critic_epochs,
        optimizer=critic_optimizer,
    )
    return compose(
        reward=[reward.kl("k1", kl)] if _given(kl) else [],
        advantage=[advantage.gae(gamma, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[critic],
    )


@recipe
def w_reinforce(
    positive: types.NonNegative = 0.1,
    negative: types.NonNegative = 1.0,
    low: types.NonNegative = 0.2,
    high: types.NonNegative = 0.2,
    entropy: types.NonNegative = 1e-3,
):
    """Weigh right answers less than wrong ones: A = positive 1[r = 1] - negative 1[r = 0].

    The Surprising Effectiveness of Negative Reinforcement (arXiv 2506.01347). Rewards must be 0 or 1.
    """
    return compose(
        advantage=[advantage.sign_weighted(positive, negative)],
        loss=[ratio.token(), surrogate.clip(low, high), *([penalty.entropy(entropy)] if _given(entropy) else [])],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def psr(low: types.NonNegative = 0.2, high: types.NonNegative = 0.2, entropy: types.NonNegative = 1e-3):
    """Positive samples only: the wrong rows are dropped before the token mean (arXiv 2506.01347)."""
    built = w_reinforce(1.0, 0.0, low, high, entropy)
    return _keeping(built, prepare.keep("correct"))


@recipe
def nsr(low: types.NonNegative = 0.2, high: types.NonNegative = 0.2, entropy: types.NonNegative = 1e-3):
    """Negative samples only: the right rows are dropped before the token mean (arXiv 2506.01347)."""
    built = w_reinforce(0.0, 1.0, low, high, entropy)
    return _keeping(built, prepare.keep("wrong"))


def _keeping(algorithm: types.Algorithm, filter_: types.PrepareTransform) -> types.Algorithm:
    policy, *others = algorithm.objectives
    policy = dataclasses.replace(policy, prepare=(filter_, *policy.prepare))
    return dataclasses.replace(algorithm, objectives=(policy, *others))
