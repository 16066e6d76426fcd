"""Recipes of stored rows: ratings, preferences without a reference, weights exp(A). On samples they run as well."""

from typing import Literal

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.algorithms.recipes import critic
from rljax.transforms import advantage, penalty, prepare, reduce, surrogate
from rljax.types import Algorithm, Count, Fraction, NonNegative, Positive

Q, TARGETS = ("q", "q_2"), ("q_target", "q_2_target")


@recipe
def simpo(beta: Positive = 2.0, margin: NonNegative = 1.0) -> Algorithm:
    """Prefer the better row of a pair by mean log-probs, without a reference: -log sigmoid(beta h - margin).

    SimPO (arXiv 2405.14734). Differs from ``dpo_length_normalised`` by the margin and by having no reference.

    Args:
      beta: scale of the mean log-probs.
      margin: margin by which the better row should win.
    """
    return compose(
        prepare=[prepare.best_and_worst()],
        loss=[surrogate.length_normalised_preference(beta, margin)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def orpo(coefficient: NonNegative = 0.1) -> Algorithm:
    """Fit the better row of a pair and prefer it by the ratio of the odds, without a reference.

    ORPO (arXiv 2403.07691): -m_w - coefficient log sigmoid(log odds_w - log odds_l), m the mean logp of a row.

    Args:
      coefficient: weight of the odds beside the likelihood.
    """
    return compose(
        prepare=[prepare.best_and_worst()], loss=[surrogate.odds_ratio(coefficient)], reduce=reduce.mean_over_rows()
    )


@recipe
def awac(beta: Positive = 1.0) -> Algorithm:
    """``awr`` with weights that are normalized over the batch: N softmax((r - mean) / beta).

    AWAC (arXiv 2006.09359), the group's mean in place of its Q-function's value. Each row counts by its mean logp.

    Args:
      beta: temperature of the weights, in units of the reward.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.boltzmann(beta)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows(),
    )


def _critics(q: tuple[str, ...], expectile: float, alpha: types.Number = 0.0) -> tuple[types.Objective, ...]:
    """Return the objectives of V, an expectile of Q, and of each Q, whose conservative penalty weighs ``alpha``."""
    error = (surrogate.q_error(), *when(alpha, penalty.nll(alpha)))
    fits = (types.Objective(loss=error, reduce=reduce.mean_over_tokens(), module=name) for name in q)
    return critic.critic_objective(None, expectile=expectile), *fits


@recipe
def q_critics(
    expectile: Fraction = 0.7,
    alpha: NonNegative = 0.0,
    gamma: Fraction = 0.99,
    lam: Fraction = 0.0,
    steps: Count = 1,
    q: tuple[str, ...] = Q,
    target: tuple[str, ...] = TARGETS,
) -> Algorithm:
    """Train the critics of ``iql`` or ``ilql`` alone, and leave the policy as it is: a first phase of either.

    IQL (arXiv 2110.06169) extracts the policy from critics that are trained. Differs from ``critic_warmup`` by Q.

    Args:
      alpha: weight of the penalty log sum_a exp Q(s, a) - Q(s, a_t), beside (Q - target)^2.
      gamma: discount of a token.
      lam: lambda of the target of Q.
      steps: n of the n-step target of Q.
    """
    transforms = advantage.q_returns(gamma, lam, steps), advantage.q_values(target)
    return types.Algorithm(objectives=_critics(q, expectile, alpha), transforms=transforms)


@recipe
def iql(
    expectile: Fraction = 0.7,
    beta: Positive = 1 / 3,
    cap: Positive = 100.0,
    gamma: Fraction = 0.99,
    lam: Fraction = 0.0,
    steps: Count = 1,
    q: tuple[str, ...] = Q,
    target: tuple[str, ...] = TARGETS,
) -> Algorithm:
    """Fit rows by likelihood, each token weighed by exp((Q - V) / beta); Q and V are learned from the rows alone.

    Implicit Q-learning (arXiv 2110.06169), an action is a token: Q fits r + gamma V(s'), V an expectile of the least of
    the followers' Q, no action is asked that no row took. Modules q and q_2 have logits; q_target and q_2_target follow
    them (``config.module.q_target.follows="q"``). Targets are computed once a step. Let a phase of ``q_critics`` be
    before it, or the first weights are noise. Differs from ``awr`` by a critic.

    Args:
      beta: temperature of the weights, in units of the return; the paper's is 3 as a factor.
      cap: largest weight.
      lam: lambda of the target of Q.
      steps: n of the n-step target of Q.
    """
    credit = [advantage.q_returns(gamma, lam, steps), advantage.q_values(target)]
    return compose(
        advantage=[*credit, advantage.exponentiated(beta, cap)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
        others=_critics(q, expectile),
    )


@recipe
def f_dvl(
    weight: Fraction = 0.7,
    beta: Positive = 1 / 3,
    cap: Positive = 100.0,
    gamma: Fraction = 0.99,
    divergence: Literal["chi_square", "total_variation"] = "chi_square",
    q: tuple[str, ...] = Q,
    target: tuple[str, ...] = TARGETS,
) -> Algorithm:
    """``iql`` whose V minimizes (1 - weight) E[V] + weight E[f*(Q - V)], so that it is an implicit maximum of Q.

    f-DVL (arXiv 2302.08560), chi-square or total variation. Its release reads the trained Q and a follower of V; here
    Q is of the followers, as in ``iql``, with a squared error where the release has Huber's. Constants from memory.
    Modules as in ``iql``, and a first phase of ``q_critics``.

    Args:
      weight: lambda of the dual; towards 1 V approaches the largest Q of the rows.
      beta: temperature of the weights, in units of the return.
      cap: largest weight.
      divergence: f, of the rows that V is learned from.
    """
    error, mean = surrogate.dual_value_error(weight, divergence), reduce.mean_over_tokens()
    return compose(
        advantage=[advantage.q_returns(gamma), advantage.q_values(target), advantage.exponentiated(beta, cap)],
        loss=[surrogate.reinforce()],
        reduce=mean,
        others=[types.Objective(loss=(error,), reduce=mean, module="value"), *_critics(q, 0.5)[1:]],
    )


@recipe
def ilql(
    expectile: Fraction = 0.7,
    beta: Positive = 4.0,
    alpha: NonNegative = 0.01,
    gamma: Fraction = 0.99,
    lam: Fraction = 0.0,
    q: tuple[str, ...] = Q,
    target: tuple[str, ...] = TARGETS,
) -> Algorithm:
    """``iql`` with a conservative penalty, whose policy is the reference with its log-probs shifted by beta (Q - V).

    Implicit language Q-learning (arXiv 2206.11871): pi ~ ref exp(beta (Q - V)), here by the exact KL(pi || that) at
    every token of the rows, as KL(pi || ref) - beta (E_pi Q + H) + beta H, Q the mean of both. The paper shifts the
    clone at decoding instead, by the least Q: ``q_critics``, then ``evaluate --shift=beta``. Constants from memory. Let
    the reference be a clone of the rows (``config.phases``: ``sft`` or ``filtered_cloning`` first). Modules and phases
    as in ``iql``.

    Args:
      beta: factor of Q - V, in nats for a unit of the return.
      alpha: weight of the conservative penalty, as in ``q_critics``.
      lam: lambda of the target of Q.
    """
    shift = [penalty.distillation((name,), "reverse_kl", beta / len(target)) for name in target]
    return compose(
        advantage=[advantage.q_returns(gamma, lam), advantage.q_values(target)],
        loss=[*shift, penalty.exact_kl("reverse_kl", 1.0), penalty.entropy(-beta)],
        reduce=reduce.mean_over_tokens(),
        others=_critics(q, expectile, alpha),
    )


@recipe
def cql(
    alpha: NonNegative = 0.2,
    coefficient: NonNegative = 5.0,
    gamma: Fraction = 0.99,
    lam: Fraction = 0.0,
    samples: Count = 10,
    q: tuple[str, ...] = Q,
    target: tuple[str, ...] = TARGETS,
) -> Algorithm:
    """``sac`` on stored rows, whose critics are pushed down at all actions and up at the actions of the rows.

    Conservative Q-learning, CQL(H) (arXiv 2006.04779, eq. 4): Q fits the soft target and pays ``coefficient`` (log int
    exp Q(s, a) da - Q(s, a_t)), so that actions that no row took are worth little. The Lagrange form of the paper keeps
    that difference at a limit: ``coefficient=multiplier('q/conservative', LIMIT)``. Rows come from files:
    ``seam.source="recorded('FILE.npz')"``. Differs from ``iql`` by asking Q of actions that no row took. Modules as in
    ``sac``.

    Args:
      alpha: weight of the entropy, in units of the return.
      coefficient: weight of the conservative penalty beside (Q - target)^2.
      gamma: discount of a step.
      lam: lambda of the target of Q.
      samples: actions of the uniform distribution, and of the policy, that estimate the integral.
    """
    mean = reduce.mean_over_tokens()
    fit = (surrogate.q_error(), *when(coefficient, penalty.conservative(coefficient, samples)))
    return compose(
        advantage=[advantage.soft_q_returns(alpha, target, gamma, lam)],
        loss=[surrogate.least_q(q), penalty.entropy(alpha)],
        reduce=mean,
        others=[types.Objective(loss=fit, reduce=mean, module=name) for name in q],
    )


@recipe
def b_coder(
    scale: Positive = 1.0,
    gamma: Fraction = 1.0,
    lam: Fraction = 0.0,
    base: str = "base",
    critic_epochs: Count | None = None,
) -> Algorithm:
    """Q-learning whose Q = scale (log pi - max log pi) + V is the policy's own, backed up on a fixed policy's action.

    B-Coder (arXiv 2310.03173, from memory): Q fits r + gamma Q(s', b'), b' the most probable token of the frozen module
    ``base``, a copy of the policy (``config.module.base``). The paper's first stage, V alone, is a phase of
    ``b_coder_values``; here V goes on learning in the second. Its terms beside the Bellman error, and its ranking of
    programs by the reward that Q implies, are absent. Rows of any policy, ``source.stored`` for example.

    Args:
      scale: of the log-probs, in units of the return.
      lam: lambda of the target of Q.
      base: the module that the backup's action is of.
      critic_epochs: passes of V over a batch.
    """
    return compose(
        advantage=[advantage.dueling_q_returns(scale, base, gamma, lam)],
        loss=[surrogate.dueling_error(scale, base)],
        reduce=reduce.mean_over_tokens(),
        others=[critic.critic_objective(None, critic_epochs)],
    )


@recipe
def b_coder_values(scale: Positive = 1.0, gamma: Fraction = 1.0, lam: Fraction = 0.0, base: str = "base") -> Algorithm:
    """The first stage of ``b_coder``: V alone, so that Q fits while the policy, its advantage, stays as it is.

    B-Coder (arXiv 2310.03173, from memory).

    Args:
      scale: of the log-probs, in units of the return.
      lam: lambda of the target of Q.
      base: the module that the backup's action is of.
    """
    credit = (advantage.dueling_q_returns(scale, base, gamma, lam),)
    return types.Algorithm(objectives=(critic.critic_objective(None),), transforms=credit)
