"""State-action values: targets of Q and of V, and Q - V. Q of a token is its logit in a module, of a turn a scalar."""

from typing import Literal

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.advantage import credit
from rljax.transforms.frame import extras

TWINS = ("q_target", "q_2_target")
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


def _soft(a) -> types.Needs:
    least = modules.divergence(modules.LEAST, *modules.named("soft_q_returns", a["module"]))
    return modules.needs("policy", field="entropy") | modules.needs("policy", field=least)


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
    of = r.scores.get("policy", types.Scores())
    least = of.divergence.get(modules.divergence(modules.LEAST, *module))
    value = ops.given(least, "soft_q_returns: the rollout has no scores['policy'].divergence of least_q")
    value = value + alpha * modules.score(r, "policy", "entropy")
    return extras.put(r, {"q_returns": _targets(r.replace(value=value), gamma, lam, steps)})


def _logits(a) -> types.Needs:
    names = modules.named("q_values", a["module"])
    return credit.VALUE | modules.needs(*names, field="logp") | modules.needs(*names, field="log_normaliser")


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
    behind = ops.segment_total(each * turn_ends(r), credit.distinct_ids(ops.segments(r, "turn")))
    target = spread(trajectories.gae(r, paid, v, first, gamma, 0.0) + v)
    r = ops.with_advantage(r, behind - spread(v)).replace(returns=behind * r.mask)
    return extras.put(r, {"q_returns": target * r.mask})


def turn_ends(r: types.Rollout) -> types.Array:
    """Return 1 on the last trained token of each turn and 0 elsewhere, [B, T]."""
    ids = credit.distinct_ids(ops.segments(r, "turn"))
    return ops.segment_first(ids[:, ::-1], r.mask[:, ::-1])[:, ::-1]
