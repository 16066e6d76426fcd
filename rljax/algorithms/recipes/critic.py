"""Recipes with a critic: a second objective regresses its values, and the values make the advantage."""

from collections.abc import Sequence
from typing import Literal

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, ratio, reduce, reward, surrogate
from rljax.types import Algorithm, Count, Fraction, NonNegative, Positive


def critic_objective(
    clip: float | None,
    epochs: int | None = None,
    optimizer: str | None = None,
    prepare: Sequence[types.PrepareTransform] = (),
    expectile: float = 0.5,
    over: tuple[float, float] | None = None,
    module: str = "value",
) -> types.Objective:
    """Return the objective that regresses a critic's values onto the returns.

    Args:
      clip: largest change of a value within an update; None: no bound.
      epochs: passes over the batch; None: as many as the policy has.
      optimizer: of the module; None: the policy's.
      prepare: pieces that mask tokens of this objective only.
      expectile: weight of errors below the return, 0 to 1; 0.5 is the mean.
      over: least and largest return of a critic over bins; None: a critic of one number.
      module: the critic.
    """
    error = surrogate.value_error(clip, expectile) if over is None else surrogate.value_histogram(over)
    return types.Objective(
        module=module,
        prepare=tuple(prepare),
        loss=(error,),
        reduce=reduce.mean_over_tokens(),
        epochs=epochs,
        optimizer=optimizer,
    )


@recipe
def ppo(
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    kl: NonNegative = 0.05,
    value_clip: Positive | None = 0.2,
    dual: Positive | None = None,
    estimator: types.Estimator = "k1",
    critic_epochs: Count | None = None,
    critic_optimizer: str | None = None,
    value_range: tuple[float, float] | None = None,
) -> Algorithm:
    """PPO with a critic: k1 in the reward, GAE, whitening, clipped surrogate; the critic is a second objective.

    arXiv 1707.06347 with the settings of RLHF practice (arXiv 2203.02155). Differs from ``ppo_clip`` by the critic.
    With ``value_range`` the critic classifies returns in that range (``value_histogram``); ``value_clip`` is unused.

    Args:
      kl: coefficient of the KL that is charged to the reward, in nats; 0 leaves it out.
      value_clip: largest change of a value within an update, in units of the return; None: no bound.
      estimator: estimator of the KL from the sampled tokens; ``ops.kl_estimate`` defines them.
      critic_optimizer: optimizer of the critic, a call as in ``config.phase``; None: the policy's.
    """
    return compose(
        reward=when(kl, reward.kl(estimator, kl)),
        advantage=[advantage.gae(gamma, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high, dual)],
        reduce=reduce.mean_over_tokens(),
        others=[critic_objective(value_clip, critic_epochs, critic_optimizer, over=value_range)],
    )


@recipe
def twin_critics(
    bootstrap: tuple[str, ...] = ("value", "value_2"),
    combine: Literal["min", "mean"] = "min",
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    kl: NonNegative = 0.05,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
) -> Algorithm:
    """PPO with two critics, ``value`` and ``value_2``, whose targets and advantages bootstrap from the least value.

    Clipped double Q-learning (TD3, arXiv 1802.09477) of state values, against overestimation. ArCHer (arXiv 2402.19446)
    bootstraps from modules that follow its twin critics: ``bootstrap`` = ("value_target", "value_2_target"). The
    critics differ by how they start: set ``config.module.value_2.weights="random"``. Differs from ``ppo`` by the second
    critic, and by no value clip.

    Args:
      bootstrap: modules whose values the targets and advantages bootstrap from.
      combine: how their values become one.
      kl: coefficient of the k1 that is charged to the reward, in nats; 0 leaves it out.
    """
    return compose(
        reward=when(kl, reward.kl("k1", kl)),
        advantage=[advantage.values(bootstrap, combine), advantage.gae(gamma, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[critic_objective(None), critic_objective(None, module="value_2")],
    )


@recipe
def critic_warmup(
    lam: Fraction = 1.0,
    gamma: Fraction = 1.0,
    clip: Positive | None = None,
    expectile: Fraction = 0.5,
    value_range: tuple[float, float] | None = None,
) -> Algorithm:
    """Train the critic alone on the policy's samples, and leave the policy as it is.

    The first phase of VC-PPO and VAPO (arXiv 2503.01491, 2504.05118): the critic fits the returns of a policy that does
    not move before it is used. ``expectile`` above 0.5 makes it optimistic (IQL, arXiv 2110.06169). With
    ``value_range`` it classifies returns in that range (``value_histogram``); ``clip`` and ``expectile`` are unused.

    Args:
      lam: lambda of the critic's target.
      clip: largest change of a value within an update, in units of the return; None: no bound.
      expectile: expectile of the returns that the critic fits; 0.5 is their mean.
    """
    return types.Algorithm(
        objectives=(critic_objective(clip, expectile=expectile, over=value_range),),
        transforms=(advantage.gae(gamma, 1.0, value_lam=lam),),
    )


SUCCESS = ("value", "value_2")


def success_critics() -> list[types.Objective]:
    """Return the objectives of two critics that classify success: cross-entropy on the return, clamped to [0, 1]."""
    classify = surrogate.value_histogram((0.0, 1.0), bins=2, sigma=0.0)
    return [types.Objective(loss=(classify,), reduce=reduce.mean_over_tokens(), module=module) for module in SUCCESS]


@recipe(task="maze()")
def digirl(cost: float = 0.05, threshold: float = 0.0, episodes: Fraction = 1.0) -> Algorithm:
    """Fit the turns whose critic-based advantage is positive: filtered behavior cloning.

    DigiRL (arXiv 2406.11896): A = V(s') - V(s) - cost + r + Monte-Carlo return, kept where above ``threshold``. V is
    the lower of two probabilities of success, of the classifiers ``value`` and ``value_2``, which differ by how they
    start: set ``config.module.value_2.weights="random"``.

    Args:
      cost: charged to each turn, in units of the reward.
      threshold: advantage that a turn must exceed to be fitted.
      episodes: share of the episodes that are fitted, those whose return is most above V of their first state; the
        release has 0.1, and 1 is all.
    """
    return compose(
        advantage=[
            advantage.values(SUCCESS, "min"),
            advantage.step_value_difference(cost),
            advantage.binarise(threshold),
            advantage.keep_above_value(episodes),
        ],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
        others=success_critics(),
    )
