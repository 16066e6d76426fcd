"""Recipes with a critic: a second objective regresses its values, and the values make the advantage."""

from typing import Literal

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, penalty, prepare, ratio, reduce, reward, source, surrogate
from rljax.types import Count, Fraction, NonNegative, Positive


def _critic(
    clip: float | None,
    epochs: int | None = None,
    optimizer: str | None = None,
    prepare=(),
    expectile: float = 0.5,
    over: tuple[float, float] | None = None,
    module: str = "value",
) -> types.Objective:
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
):
    """PPO with a critic: k1 in the reward, GAE, whitening, clipped surrogate; the critic is a second objective.

    arXiv 1707.06347 with the settings of RLHF practice (arXiv 2203.02155). Differs from ``ppo_clip`` by the critic.
    With ``value_range`` the critic classifies returns in that range (``value_histogram``); ``value_clip`` is unused.
    """
    return compose(
        reward=when(kl, reward.kl(estimator, kl)),
        advantage=[advantage.gae(gamma, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high, dual)],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(value_clip, critic_epochs, critic_optimizer, over=value_range)],
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
):
    """PPO with two critics, ``value`` and ``value_2``, whose targets and advantages bootstrap from the least value.

    Clipped double Q-learning (TD3, arXiv 1802.09477) of state values, against overestimation. ArCHer (arXiv 2402.19446)
    bootstraps from modules that follow its twin critics: ``bootstrap`` = ("value_target", "value_2_target"). The
    critics differ by how they start: set ``config.module.value_2.weights="random"``. Differs from ``ppo`` by the second
    critic, and by no value clip.
    """
    return compose(
        reward=when(kl, reward.kl("k1", kl)),
        advantage=[advantage.values(bootstrap, combine), advantage.gae(gamma, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(None), _critic(None, module="value_2")],
    )


@recipe
def critic_warmup(
    lam: Fraction = 1.0,
    gamma: Fraction = 1.0,
    clip: Positive | None = None,
    expectile: Fraction = 0.5,
    value_range: tuple[float, float] | None = None,
):
    """Train the critic alone on the policy's samples, and leave the policy as it is.

    The first phase of VC-PPO and VAPO (arXiv 2503.01491, 2504.05118): the critic fits the returns of a policy that does
    not move before it is used. ``expectile`` above 0.5 makes it optimistic (IQL, arXiv 2110.06169). With
    ``value_range`` it classifies returns in that range (``value_histogram``); ``clip`` and ``expectile`` are unused.
    """
    return types.Algorithm(
        objectives=(_critic(clip, expectile=expectile, over=value_range),),
        transforms=(advantage.gae(gamma, 1.0, value_lam=lam),),
    )


@recipe
def orz(critic_epochs: Count = 12, low: NonNegative = 0.2, high: NonNegative = 0.2):
    """PPO with gamma = lambda = 1 and no KL, so that A_t = R - V_t; the critic takes many steps.

    Open-Reasoner-Zero (arXiv 2503.24290), 64 samples of each prompt. Differs from ``ppo`` by lambda, KL and the
    critic's epochs.
    """
    return compose(
        advantage=[advantage.gae(1.0, 1.0), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(None, critic_epochs)],
    )


@recipe
def vc_ppo(
    lam: Fraction = 0.95,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    value_range: tuple[float, float] | None = None,
):
    """PPO whose critic learns from undiscounted returns (lambda 1) while the policy uses ``lam``.

    VC-PPO (arXiv 2503.01491). Train the critic alone in a first phase. ``value_range`` as in ``ppo``.
    """
    return compose(
        advantage=[advantage.gae(1.0, lam, value_lam=1.0), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(0.2, over=value_range)],
    )


@recipe
def vapo(
    alpha: Positive = 0.05,
    low: NonNegative = 0.2,
    high: NonNegative = 0.28,
    likelihood: NonNegative = 0.1,
    value_range: tuple[float, float] | None = None,
):
    """VC-PPO with lambda = 1 - 1 / (alpha |y|), a raised clip, token mean, and the likelihood of correct rows.

    VAPO (arXiv 2504.05118). Train the critic alone in a first phase. ``value_range`` as in ``ppo``.
    """
    right = penalty.nll(likelihood, "correct", reduce=reduce.mean_over_tokens("correct"))
    return compose(
        advantage=[advantage.length_adaptive_gae(alpha), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(likelihood, right)],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(0.2, over=value_range)],
    )


@recipe
def t_ppo(
    window: Count = 64,
    gamma: Fraction = 1.0,
    lam: Fraction = 1.0,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
):
    """PPO on rows that were cut before their end: the value after the cut is the last known one.

    T-PPO (arXiv 2506.15050): a step adds ``window`` tokens to every row, and the policy trains on each token once
    (extra["used"] [B, T] is 1 on tokens of earlier steps); the critic learns from finished rows only.
    """
    return compose(
        source=source.windowed(window),
        advantage=[advantage.truncated_gae(gamma, lam), advantage.whiten()],
        prepare=[prepare.drop_used()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(0.2, prepare=[prepare.drop_truncated()])],
    )


@recipe
def tulu_3(kl: NonNegative = 0.05, lam: Fraction = 1.0, low: NonNegative = 0.2, high: NonNegative = 0.2):
    """PPO on verifiable rewards of 10 or 0 with k1 in the reward.

    Tulu 3, RLVR (arXiv 2411.15124), whose critic starts from a reward model. Differs from ``ppo`` by the scale of the
    reward and by lambda.
    """
    return compose(
        reward=[reward.affine(scale=10.0), *when(kl, reward.kl("k1", kl))],
        advantage=[advantage.gae(1.0, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(0.2)],
    )


@recipe
def clip_delta(eta: float | None = None, low: NonNegative = 0.2, high: NonNegative = 0.2):
    """PPO on process rewards that repeating a good step cannot increase: step k is paid r_k - r_{k+1}.

    On Designing Effective RL Reward (arXiv 2410.15115): Delta, and before it Clip, min(r_k - eta, 0), where ``eta`` is
    set.
    """
    return compose(
        reward=[*([] if eta is None else [reward.clip_process(eta)]), reward.delta_process()],
        advantage=[advantage.gae(1.0, 1.0), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(0.2)],
    )


@recipe
def turn_ppo(
    gamma: Fraction = 1.0, lam: Fraction = 1.0, kl: NonNegative = 0.0, low: NonNegative = 0.2, high: NonNegative = 0.2
):
    """PPO whose GAE takes one step for each turn; all tokens of a turn share its advantage.

    The turn-level unit of ERA and AReaL. One turn is a bandit, A = R - V_0. The KL of tokens, if any, is in the loss.
    """
    return compose(
        advantage=[advantage.turn_gae(gamma, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k2", kl))],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(0.2)],
    )


@recipe
def digirl(cost: float = 0.05, threshold: float = 0.0):
    """Fit the turns whose critic-based advantage is positive: filtered behavior cloning.

    DigiRL (arXiv 2406.11896): A = V(s') - V(s) - cost + r + Monte-Carlo return, kept where above ``threshold``. The
    paper's critics are two success classifiers; here the value module regresses the return.
    """
    return compose(
        advantage=[advantage.step_value_difference(cost), advantage.binarise(threshold)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
        others=[_critic(None)],
    )


@recipe
def webrl(beta: Positive = 1.0, cost: float = 0.05):
    """Regress the log-ratio to the reference onto the turn's advantage: (beta log(pi / ref) - A)^2 for each turn.

    WebRL (arXiv 2411.02337), in the paper's squared form; its release binarizes A and uses a smooth L1 loss. The critic
    is that of ``digirl``.
    """
    return compose(
        advantage=[advantage.step_value_difference(cost)],
        loss=[surrogate.reference_regression(beta, "turn")],
        reduce=reduce.mean_over_rows(),
        others=[_critic(None)],
    )
