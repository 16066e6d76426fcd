"""State-action values: targets of Q and of V, and Q - V. Q of a token is its logit in a module, of a turn a scalar."""

import functools
import operator
from typing import Literal

import jax.numpy as jnp

from rljax import types
from rljax.methods.reward import turns
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.advantage import credit
from rljax.transforms.frame import extras

TWINS = ("q_target", "q_2_target")
NORMALISER = "log_normaliser"
Combine = Literal["min", "mean"]


def _combined(r: types.Rollout, each: list[types.Array], combine: Combine) -> types.Array:
    stacked = jnp.stack([jnp.where(r.mask > 0, x, 0.0) for x in each])
    return jnp.min(stacked, axis=0) if combine == "min" else jnp.mean(stacked, axis=0)


@define.advantage(needs=credit.VALUE)
def q_returns(r, gamma: types.Fraction = 1.0, lam: types.Fraction = 0.0, steps: types.Count = 1) -> types.Rollout:
    """Write the target of Q(s_t, a_t), extra["q_returns"]: r_t + gamma V(s_{t+1}); the advantage stays.

    With ``steps`` = n, r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n V(s_{t+n}); with ``lam`` the TD(lambda) return, the
    mean of these with weights (1 - lam) lam^{n-1}. V is the rollout's value, 0 behind the end. Differs from ``gae``,
    whose returns are the TD(lambda) return as a target of V(s_t), by the field that it writes.

    Args:
      gamma: discount of a token.
      lam: lambda of TD(lambda); 0 is one step.
      steps: n of the n-step return; with ``lam``, V is backed up n - 1 steps before.
    """
    return extras.put(r, {"q_returns": _targets(r, gamma, lam, steps)})


def _targets(r: types.Rollout, gamma, lam, steps: int) -> types.Array:
    backed = r
    for _ in range(steps - 1):  # the Bellman operator along each row
        backed = backed.replace(value=credit.estimates(backed, gamma, 0.0)[1])
    return jnp.where(r.mask > 0, credit.estimates(backed, gamma, lam)[1], 0.0)


def _expected(piece: str, a) -> types.Needs:
    return modules.needs("policy", field=modules.divergence(modules.LEAST, *modules.named(piece, a["module"])))


def _expectation(piece: str, r: types.Rollout, module: tuple[str, ...]) -> types.Array:
    """Return E_{a ~ policy} min_i Q_i(s, a), [B, T]."""
    least = r.scores.get("policy", types.Scores()).divergence.get(modules.divergence(modules.LEAST, *module))
    return ops.given(least, f"{piece}: the rollout has no scores['policy'].divergence of least_q")


def _soft(a) -> types.Needs:
    return modules.needs("policy", field="entropy") | _expected("soft_q_returns", a)


@define.advantage(needs=_soft)
def soft_q_returns(
    r,
    alpha: types.NonNegative = 0.2,
    module: tuple[str, ...] = TWINS,
    gamma: types.Fraction = 0.99,
    lam: types.Fraction = 0.0,
    steps: types.Count = 1,
) -> types.Rollout:
    """Write the soft target of Q, as ``q_returns`` with V(s) = E_{a ~ pi} min_i Q_i(s, a) + alpha H(pi(s)).

    Soft actor-critic (arXiv 1812.05905, eq. 2 and 3; discrete: 1910.07207), whose target has one drawn action; here the
    entropy is exact, and so is the expectation where actions can be counted. Differs from ``q_returns`` by the policy
    that V is of: the one that is trained, whatever wrote the rows.

    Args:
      alpha: weight of the entropy, in units of the return.
      module: names of ``config.module``, networks with logits, which are Q.
      gamma: discount of a step.
      lam: lambda of TD(lambda); 0 is one step.
      steps: n of the n-step return.
    """
    value = _expectation("soft_q_returns", r, module) + alpha * modules.score(r, "policy", "entropy")
    return extras.put(r, {"q_returns": _targets(r.replace(value=value), gamma, lam, steps)})


@define.advantage(needs=lambda a: _expected("hybrid_q_returns", a) | types.Needs(off_policy=True))
def hybrid_q_returns(
    r, module: tuple[str, ...] = TWINS, gamma: types.Fraction = 0.99, lam: types.Fraction = 0.95
) -> types.Rollout:
    """Judge by GAE of V(s) = E_{a ~ pi} min_i Q_i(s, a); Q's target is the return, and of other rows r + gamma V(s').

    Source: hybrid fitted policy evaluation of HNPG (arXiv 2311.08384), whose V has one drawn action; rows that the
    policy did not sample have ``on_policy`` 0. The target is extra["q_returns"]. Differs from ``soft_q_returns`` by the
    returns of the policy's rows, by the advantage, and by having no entropy.

    Args:
      module: names of ``config.module``, networks with logits, which are Q.
      gamma: discount of a step.
      lam: lambda of the advantage.
    """
    valued = r.replace(value=_expectation("hybrid_q_returns", r, module))
    whole, one = (_targets(valued, gamma, x, 1) for x in (1.0, 0.0))
    r = ops.with_advantage(r, credit.estimates(valued, gamma, lam)[0])
    return extras.put(r, {"q_returns": jnp.where(trajectories.on_policy(r)[:, None] > 0, whole, one)})


@define.advantage(needs=lambda a: modules.needs(*modules.named("log_sum_exp_returns", a["module"]), field=NORMALISER))
def log_sum_exp_returns(
    r,
    alpha: types.Positive = 0.1,
    module: str = "q_target",
    gamma: types.Fraction = 0.99,
    lam: types.Fraction = 0.0,
    steps: types.Count = 1,
) -> types.Rollout:
    """Write the soft target of logits z = Q / alpha: ``q_returns`` / alpha with V(s) = alpha log sum_a exp z_a.

    Soft Q-learning (arXiv 1702.08165, eq. 4 and 5, from memory): V is of the best policy, softmax(Q / alpha), not of
    the one that wrote the rows, and exact over the vocabulary. Differs from ``soft_q_returns``, where a policy
    apart from Q is asked.

    Args:
      alpha: weight of the entropy, in units of the return.
      module: name of ``config.module``, a network whose logits are Q / alpha.
      gamma: discount of a step.
      lam: lambda of TD(lambda); 0 is one step.
      steps: n of the n-step return.
    """
    valued = r.replace(value=alpha * modules.score(r, module, NORMALISER))
    return extras.put(r, {"q_returns": _targets(valued, gamma, lam, steps) / alpha})


def _dueling(a) -> types.Needs:
    names = [modules.divergence(name, a["base"]) for name in ops.MODES]
    read = (modules.needs("policy", field=field) for field in ("logp", *names))
    return functools.reduce(operator.or_, read, credit.VALUE)


@define.advantage(needs=_dueling)
def dueling_q_returns(
    r, scale: types.Positive = 1.0, base: str = "base", gamma: types.Fraction = 0.99, lam: types.Fraction = 0.0
) -> types.Rollout:
    """Write targets of Q(s, a) = scale (log pi(a | s) - max log pi) + V(s): r + gamma Q(s', b'), b' a fixed policy's.

    b' is the most probable token of ``base``. Differences of logits are those of log-probs. The target of Q is
    extra["q_returns"], and of V, ``returns``, the same minus scale (log pi(a_t) - max log pi). Source: the conservative
    Bellman operator of B-Coder (arXiv 2310.03173, from memory), whose fixed point is the value of the base's greedy
    policy. Differs from ``q_returns`` by Q(s', b') in place of V(s') = max Q(s', a).

    Args:
      scale: of the log-probs, in units of the return.
      base: name of ``config.module``, a fixed policy.
      gamma: discount of a token.
      lam: lambda of TD(lambda); 0 is one step.
    """
    of = r.scores.get("policy", types.Scores())
    top, at = (of.divergence.get(modules.divergence(name, base)) for name in ops.MODES)
    top, at = (ops.given(x, "dueling_q_returns: the rollout lacks scores['policy'].divergence") for x in (top, at))
    value = ops.given(r.value, "dueling_q_returns: the rollout has no value")
    target = _targets(r.replace(value=value + scale * (at - top)), gamma, lam, 1)
    gap = scale * (modules.score(r, "policy", "logp") - top)
    return extras.put(r.replace(returns=jnp.where(r.mask > 0, target - gap, 0.0)), {"q_returns": target})


def _logits(a) -> types.Needs:
    names = modules.named("q_values", a["module"])
    return credit.VALUE | modules.needs(*names, field="logp") | modules.needs(*names, field=NORMALISER)


@define.advantage(needs=_logits)
def q_values(r, module: tuple[str, ...] = TWINS, combine: Combine = "min") -> tuple[types.Array, types.Array]:
    """Judge a token by Q - V: A = Q(s_t, a_t) - V(s_t), Q the least of several modules' logits of the token.

    Q is the target of V too, which ``value_error(None, expectile)`` fits: V is then an expectile of Q over the tokens
    that the rows took (IQL, arXiv 2110.06169, eq. 5). Where the modules follow the trained ones
    (``config.module.NAME.follows``), Q is their Polyak average. Differs from ``gae`` by reading no reward.

    Args:
      module: names of ``config.module``, networks with logits.
      combine: how several Q become one.
    """
    value = ops.given(r.value, "q_values: the rollout has no value")
    q = _combined(r, [modules.logit(r.scores.get(name, types.Scores())) for name in module], combine)
    return q - value, q


def _behind_turns(a) -> types.Needs:
    q, v = (modules.named("turn_q_values", a[name]) for name in ("q", "value"))
    return credit.VALUE | credit.TURNS | modules.needs(*q, field="process") | modules.needs(*v, field="value")


@define.advantage(needs=_behind_turns)
def turn_q_values(
    r,
    q: tuple[str, ...] = TWINS,
    value: tuple[str, ...] = ("value_target", "value_2_target"),
    gamma: types.Fraction = 0.95,
    combine: Combine = "min",
) -> types.Rollout:
    """Judge a turn u by Q(s, u) - V(s): Q is read behind its last token, V before its first, each the least of several.

    The targets are r + gamma V(s') of Q, extra["q_returns"], and Q of V; the advantage and both targets are equal on
    the tokens of a turn. Source: the utterance level of ArCHer (arXiv 2402.19446, eq. 2 and 3, from memory). Differs
    from ``turn_gae`` by Q, so that A has no noise of the next state.

    Args:
      q: names of ``config.module``, whose scalar behind a turn is Q.
      value: names of ``config.module``, whose scalar before a turn is V.
      gamma: discount of a turn.
      combine: how several critics become one.
    """
    v = _combined(r, [modules.score(r, name, "value") for name in value], combine)
    paid, v, first, spread = credit.turn_numbers(r.replace(value=v), gamma)
    each = _combined(r, [modules.score(r, name, "process") for name in q], combine)
    ids, ends = turns.turns(r)
    behind = ops.segment_total(each * ends, ids)
    target = spread(trajectories.gae(r, paid, v, first, gamma, 0.0) + v)
    r = ops.with_advantage(r, behind - spread(v)).replace(returns=behind * r.mask)
    return extras.put(r, {"q_returns": target * r.mask})
