"""Recipes with a critic: a second objective regresses its values, and the values make the advantage."""

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.algorithms.recipes import critic
from rljax.transforms import advantage, chain, penalty, prepare, ratio, reduce, reward, source, surrogate, weight, where
from rljax.types import Algorithm, Count, Fraction, NonNegative, Positive


@recipe
def orz(critic_epochs: Count = 12, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """PPO with gamma = lambda = 1 and no KL, so that A_t = R - V_t; the critic takes many steps.

    Open-Reasoner-Zero (arXiv 2503.24290), 64 samples of each prompt. Differs from ``ppo`` by lambda, KL and the
    critic's epochs.
    """
    return critic.ppo(low, high, lam=1.0, kl=0.0, value_clip=None, critic_epochs=critic_epochs)


@recipe
def vc_ppo(
    lam: Fraction = 0.95,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    value_range: tuple[float, float] | None = None,
) -> Algorithm:
    """PPO whose critic learns from undiscounted returns (lambda 1) while the policy uses ``lam``.

    VC-PPO (arXiv 2503.01491). Train the critic alone in a first phase. ``value_range`` as in ``ppo``.
    """
    return compose(
        advantage=[advantage.gae(1.0, lam, value_lam=1.0), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(0.2, over=value_range)],
    )


@recipe
def vapo(
    alpha: Positive = 0.05,
    low: NonNegative = 0.2,
    high: NonNegative = 0.28,
    likelihood: NonNegative = 0.1,
    value_range: tuple[float, float] | None = None,
) -> Algorithm:
    """VC-PPO with lambda = 1 - 1 / (alpha |y|), a raised clip, token mean, and the likelihood of correct rows.

    VAPO (arXiv 2504.05118). Train the critic alone in a first phase. ``value_range`` as in ``ppo``.

    Args:
      alpha: how fast lambda approaches 1 with the length of a row.
      likelihood: coefficient of the likelihood of correct rows.
    """
    right = penalty.nll(likelihood, "correct", reduce=reduce.mean_over_tokens("correct"))
    return compose(
        advantage=[advantage.length_adaptive_gae(alpha), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(likelihood, right)],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(0.2, over=value_range)],
    )


@recipe
def t_ppo(
    window: Count = 64, gamma: Fraction = 1.0, lam: Fraction = 1.0, low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """PPO on rows that were cut before their end: the value after the cut is the last known one.

    T-PPO (arXiv 2506.15050): a step adds ``window`` tokens to every row, and the policy trains on each token once
    (extra["used"] [B, T] is 1 on tokens of earlier steps); the critic learns from finished rows only.

    Args:
      window: tokens that a step adds to each row.
    """
    return compose(
        source=source.windowed(window),
        advantage=[advantage.truncated_gae(gamma, lam), advantage.whiten()],
        prepare=[prepare.drop_used()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(0.2, prepare=[prepare.drop_truncated()])],
    )


@recipe
def tulu_3(kl: NonNegative = 0.05, lam: Fraction = 1.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """PPO on verifiable rewards of 10 or 0 with k1 in the reward.

    Tulu 3, RLVR (arXiv 2411.15124), whose critic starts from a reward model. Differs from ``ppo`` by the scale of the
    reward and by lambda.

    Args:
      kl: coefficient of the k1 that is charged to the reward, in nats; 0 leaves it out.
    """
    return compose(
        reward=[reward.affine(scale=10.0), *when(kl, reward.kl("k1", kl))],
        advantage=[advantage.gae(1.0, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(0.2)],
    )


@recipe(task="guess()")
def clip_delta(eta: float | None = None, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """PPO on process rewards that repeating a good step cannot increase: step k is paid r_k - r_{k+1}.

    On Designing Effective RL Reward (arXiv 2410.15115): Delta, and before it Clip, min(r_k - eta, 0), where ``eta`` is
    set.

    Args:
      eta: subtracted from the reward of a step before it is clipped at 0; None: no clip.
    """
    return compose(
        reward=[*([] if eta is None else [reward.clip_process(eta)]), reward.delta_process()],
        advantage=[advantage.gae(1.0, 1.0), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(0.2)],
    )


@recipe(task="guess()")
def turn_ppo(
    gamma: Fraction = 1.0, lam: Fraction = 1.0, kl: NonNegative = 0.0, low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """PPO whose GAE takes one step for each turn; all tokens of a turn share its advantage.

    The turn-level unit of ERA and AReaL. One turn is a bandit, A = R - V_0. The KL of tokens, if any, is in the loss.

    Args:
      gamma: discount of later rewards for each turn.
    """
    return compose(
        advantage=[advantage.turn_gae(gamma, lam), advantage.whiten()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k2", kl))],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(0.2)],
    )


@recipe(task="guess()")
def diffusion_ppo(
    gamma: Fraction = 0.99,
    lam: Fraction = 0.95,
    denoising: Fraction = 0.99,
    last: Count | None = None,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
) -> Algorithm:
    """PPO with a ratio for each denoising step: GAE over actions, and a second discount over the steps of each.

    DPPO (arXiv 2409.00588), with ``model.denoising.positions="step"``; the paper's name is taken by another method. It
    clips the ratios of early steps closer, and copies the policy for the steps that it does not train, which here have
    a network of their own with ``model.denoising.split``. Of tokens the steps are those of a turn. Differs from
    ``turn_ppo`` by the second discount and ``last``.

    Args:
      gamma: discount of later rewards for each action.
      denoising: discount of the advantage for each denoising step behind.
      last: how many denoising steps at the end are trained; None: all.
    """
    return compose(
        advantage=[advantage.turn_gae(gamma, lam), advantage.whiten(), advantage.discount_in_turn(denoising)],
        loss=[ratio.token(), surrogate.clip(low, high), *([] if last is None else [weight.turn_end(float(last))])],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(None)],
    )


@recipe(task="maze()")
def webrl(beta: Positive = 1.0, cost: float = 0.05) -> Algorithm:
    """Regress the log-ratio to the reference onto the turn's advantage: (beta log(pi / ref) - A)^2 for each turn.

    WebRL (arXiv 2411.02337), in the paper's squared form; its release binarizes A and uses a smooth L1 loss. The
    critics are the classifiers of ``digirl``.

    Args:
      beta: factor of the log-ratio, in units of the advantage.
      cost: charged to each turn, in units of the reward.
    """
    return compose(
        advantage=[advantage.values(critic.SUCCESS, "min"), advantage.step_value_difference(cost)],
        loss=[surrogate.reference_regression(beta, "turn")],
        reduce=reduce.mean_over_rows(),
        others=critic.success_critics(),
    )


@recipe(task="guess()")
def archer(
    gamma: Fraction = 0.95,
    share: Fraction = 0.5,
    steps: Count = 8,
    critic_epochs: Count = 4,
    critic_optimizer: str | None = None,
    q: tuple[str, ...] = ("q", "q_2"),
    q_target: tuple[str, ...] = ("q_target", "q_2_target"),
    value_target: tuple[str, ...] = ("value_target", "value_2_target"),
) -> Algorithm:
    """REINFORCE on fresh rows by A = Q(s, u) - V(s) of each turn u, with critics of turns that also fit replayed rows.

    ArCHer (arXiv 2402.19446): Q fits r + gamma V(s'), V fits Q, both read from modules that follow the trained ones,
    of which the least counts (``config.module.q_target.follows="q"``, and so on). Q is a scalar behind the turn, V
    before it, of the modules q, q_2, value, value_2, all functions of the row's tokens. Rows are replayed for ``steps``
    steps, where the paper keeps all; it has no token baseline either. Differs from ``turn_ppo`` by TD on stored rows.

    Args:
      gamma: discount of a turn.
      share: share of the groups that are replayed.
      steps: batches that the replay holds.
      critic_epochs: passes of the critics over a batch.
      critic_optimizer: optimizer of the critics, a call as in ``config.phase``; None: the policy's.
      q: the modules that are trained as Q.
      q_target: the modules that Q is read from.
      value_target: the modules that V is read from.
    """
    fits = {"reduce": reduce.mean_over_tokens(), "epochs": critic_epochs, "optimizer": critic_optimizer}
    ends = {"prepare": (prepare.turn_ends(),), "loss": (surrogate.q_error("turn"),)}
    return compose(
        source=source.replay(share, steps),
        advantage=[advantage.turn_q_values(q_target, value_target, gamma)],
        prepare=[prepare.keep("on_policy")],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
        others=[
            *(critic.critic_objective(None, critic_epochs, critic_optimizer, module=n) for n in ("value", "value_2")),
            *(types.Objective(module=name, **ends, **fits) for name in q),
        ],
    )


@recipe
def sac(
    alpha: NonNegative = 0.2,
    gamma: Fraction = 0.99,
    lam: Fraction = 0.0,
    share: Fraction = 1.0,
    steps: Count = 100,
    q: tuple[str, ...] = ("q", "q_2"),
    q_target: tuple[str, ...] = ("q_target", "q_2_target"),
) -> Algorithm:
    """Maximize Q + alpha H by the gradient through drawn actions, with twin critics of actions that fit replayed rows.

    Soft actor-critic (arXiv 1801.01290, 1812.05905; discrete actions and tokens: 1910.07207): Q fits r + gamma V(s'),
    V = E min Q + alpha H of modules that follow the trained ones (``config.module.q_target.follows="q"``). The modules
    q and q_2 have logits. ``alpha="dual_entropy(target)"`` is the adapted temperature. Targets are computed once a
    step. Rows are replayed for ``steps`` steps; in a control world ``seam.source="unrolled(n) | replay(1.0, steps)"``
    replays windows of episodes, and the published deviations of Gaussian actions are ``config.model.mlp.std="output"``.
    Differs from ``iql`` by Q at actions that no row took.

    Args:
      alpha: weight of the entropy, in units of the return.
      gamma: discount of a step.
      lam: lambda of the target of Q.
      share: share of the groups that are replayed.
      steps: batches that the replay holds.
      q: the modules that are trained as Q.
      q_target: the modules that targets are read from.
    """
    mean = reduce.mean_over_tokens()
    return compose(
        source=source.replay(share, steps),
        advantage=[advantage.soft_q_returns(alpha, q_target, gamma, lam)],
        loss=[surrogate.least_q(q), penalty.entropy(alpha)],
        reduce=mean,
        others=[types.Objective(loss=(surrogate.q_error(),), reduce=mean, module=name) for name in q],
    )


@recipe
def hnpg(
    bellman: NonNegative = 1.0,
    gamma: Fraction = 0.99,
    lam: Fraction = 0.95,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    demonstrations: Count = 1,
    critic_epochs: Count = 4,
    q: tuple[str, ...] = ("q", "q_2"),
    q_target: tuple[str, ...] = ("q_target", "q_2_target"),
) -> Algorithm:
    """PPO on fresh rows, whose Q fits their returns and ``bellman`` times the Bellman error of rows of a data set.

    Hybrid actor-critic (HNPG, arXiv 2311.08384): Q is fitted to returns where the policy sampled and to r + gamma
    E_pi Q(s') where it did not. A clipped ratio takes the place of TRPO's natural gradient, and the actor does not see
    states of the data set, as it does in the release. The data are demonstrations of the task; others by
    ``seam.source``. Modules as in ``sac``; the paper has one Q. Differs from ``ppo`` by the critic.

    Args:
      bellman: weight of the mean Bellman error beside the mean error of returns.
      demonstrations: of each prompt's samples, how many are demonstrations.
      critic_epochs: passes of the critics over a batch.
      q: the modules that are trained as Q.
      q_target: the modules that targets and values are read from.
    """
    fit = where("on_policy", surrogate.q_error(), chain(surrogate.q_error(), weight.constant(bellman)))
    both = reduce.mean_over_tokens_by("on_policy")
    return compose(
        source=source.guided(demonstrations),
        advantage=[advantage.hybrid_q_returns(q_target, gamma, lam)],
        prepare=[prepare.keep("on_policy")],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
        others=[types.Objective(loss=(fit,), reduce=both, module=name, epochs=critic_epochs) for name in q],
    )


@recipe
def arsq(
    alpha: Positive = 0.1,
    gamma: Fraction = 0.99,
    lam: Fraction = 0.0,
    share: Fraction = 0.5,
    steps: Count = 20,
    target: str = "q_target",
) -> Algorithm:
    """Soft Q-learning token by token, the policy's logits are Q / alpha: Q fits r + gamma alpha log sum exp(Q / alpha).

    Auto-regressive soft Q (ARSQ, arXiv 2502.00288), where the tokens are an action's numbers, coarse to fine, and V has
    a head of its own; here they are tokens, each discounted, and V is the log of the sum. The policy is softmax(Q /
    alpha) without a gradient of its own. ``config.module.q_target.follows="policy"``. Differs from ``sac`` by having no
    policy beside Q. Logits of a clone are no Q / alpha: the fit unlearns it where rewards are rare at the start.

    Args:
      alpha: weight of the entropy, in units of the return.
      lam: lambda of the target of Q.
      share: share of the groups that are replayed.
      steps: batches that the replay holds.
      target: the module that V is read from.
    """
    return compose(
        source=source.replay(share, steps),
        advantage=[advantage.log_sum_exp_returns(alpha, target, gamma, lam)],
        loss=[surrogate.q_error()],
        reduce=reduce.mean_over_tokens(),
    )
