"""Rewards of the outcome: parts, confidence, learnability, KL; and of the length of a row."""

from typing import Any, Literal

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.frame import extras, idle

GROUP = define.reads(siblings=True)


def field(r: types.Rollout, name: str) -> Any:
    """Return an optional field of the rollout; ValueError where it is absent."""
    return ops.given(getattr(r, name), f"reward: the rollout has no {name}")


def over(a, b) -> types.Array:
    """Return a / b where b > 0, else 0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1.0), 0.0)


def largest(x: types.Array, r: types.Rollout, key: types.Array | None = None) -> types.Array:
    """Return the largest number of a segment at every row of it.

    Args:
      x: ``[B]`` numbers.
      r: the rows; invalid ones do not count.
      key: ``[B]`` int32 ids of the segments; None: the groups.

    Returns:
      ``[B]``; -inf where a segment has no valid row.
    """
    return ops.segment_max(x, r.group if key is None else key, ops.valid_rows(r))


def pay_instead(r: types.Rollout, where: types.Array, reward: types.Array) -> types.Rollout:
    """Return a rollout in which a reward replaces all that some rows were paid.

    Args:
      r: the rows.
      where: bool ``[B]``, equal on the rows of a trajectory.
      reward: ``[B]``.

    Returns:
      The rollout; other rows are unchanged.
    """
    other, token_reward = trajectories.replaced(r, reward), r.token_reward
    if token_reward is not None:
        charges = jnp.zeros_like(token_reward) if other.token_reward is None else other.token_reward
        token_reward = jnp.where(where[:, None], charges, token_reward)
    extra = {
        name: jnp.where(where[:, None], other.extra[name], x) if name == "paid" else x for name, x in r.extra.items()
    }
    return r.replace(reward=jnp.where(where, reward, r.reward), token_reward=token_reward, extra=extra)


@define.reward
def scale(r, factor: types.Number = 0.1) -> types.Rollout:
    """Multiply all that a row is paid, at its tokens too, so that a critic's targets are of about the size of 1.

    Differs from ``affine``, which pays the total of the row at its end.

    Args:
      factor: of every payment.
    """
    paid = {name: factor * x for name, x in r.extra.items() if name == "paid"}
    token_reward = None if r.token_reward is None else factor * r.token_reward
    return extras.put(r.replace(reward=factor * r.reward, token_reward=token_reward), paid)


def part_names(weights: tuple[tuple[str, float], ...]) -> list[str]:
    """Return the names of (name, weight) pairs."""
    return [name for name, _ in weights]


@define.reward(needs=lambda a: define.reads(*part_names(a["parts"])))
def add_parts(
    r, parts: tuple[tuple[str, float], ...] = (("format", 0.5),), full: types.Cap = float("inf")
) -> types.Array:
    """Add weighed parts of the verdict: r + sum_k w_k min(part_k, full).

    A finite ``full`` saturates: a criterion that is met pays no more. Rubicon (arXiv 2508.12790) adds up rubrics with
    diminishing returns, of which no formula was found in a public source, and with a veto (``require``).

    Args:
      parts: (name, weight) pairs.
      full: the value from which a part counts as met; infinity: none does.
    """
    return r.reward + sum(w * jnp.minimum(ops.part(r, k), full) for k, w in parts)


@define.reward(needs=GROUP | types.Needs(behaviour=True))
def confidence_penalty(r) -> types.Array:
    """Charge wrong rows their confidence c = exp(mean_t log pi_b): r - (1 - r) c / (D - c) / G. LENS (2510.08696).

    D = max(1 / mean(r / c), 2 max c) over the G rows of the group, 2 max c where all are wrong; rewards there lie in
    [-1 / G, 0]. Rows with r = 1 are unchanged; c is 0 without tokens.
    """
    c, valid = jnp.exp(ops.row_mean(field(r, "behaviour_logp"), r.mask)[:, 0]), ops.valid_rows(r)
    c = jnp.where(ops.length(r) > 0, c, 0.0)
    reward = trajectories.uncharged(r)
    importance = over(1.0, ops.segment_mean(over(reward, c), r.group, valid))
    odds = over(c, jnp.maximum(importance, 2 * largest(c, r)) - c)
    return r.reward - over((1 - reward) * odds, ops.segment_total(valid, r.group))


@define.reward(needs=define.reads("solver_success") | types.Needs(agents=True))
def learnability(r, unsolved: types.Number = -0.5, malformed: types.Number = -1.0) -> types.Rollout:
    """Pay a proposer 1 - s if the part "solver_success" 0 < s < 1, else ``unsolved``. Absolute Zero (2505.03335).

    Agent 0 is the proposer; other agents keep what they were paid.

    Args:
      unsolved: the reward of a problem that the solver never or always solves.
      malformed: the reward of a problem out of form, whose outcome is UNPARSEABLE.
    """
    success = ops.part(r, "solver_success")
    paid = jnp.where((success > 0) & (success < 1), 1 - success, unsolved)
    paid = jnp.where(field(r, "outcome") == types.Outcome.UNPARSEABLE, malformed, paid)
    return pay_instead(r, field(r, "agent") == 0, paid.astype(r.reward.dtype))


@define.reward(needs=types.Needs(reference=True))
def kl(r, estimator: types.Estimator = "k1", coefficient: types.NonNegative = 0.05) -> types.Rollout:
    """Charge each token its divergence from the reference: r_t -= coefficient k(log pi_b - log pi_ref).

    Unfiltered log-probs at sampling. Only "k1" gives the gradient of reverse KL. Source: Ziegler et al.
    (arXiv 1909.08593, eq. 2). Differs from ``penalty.kl``, which is part of the loss and is differentiated.
    """
    d = trajectories.to_reference(r, "reward.kl")
    cost = -coefficient * ops.kl_estimate(estimator, jnp.where(r.mask > 0, d, 0.0)) * r.mask
    paid = jnp.zeros_like(cost) if r.token_reward is None else r.token_reward
    return r.replace(token_reward=paid + cost, extra={"paid": paid, **r.extra})


Beyond = Literal["hold", "grow", "zero"]


@define.reward
@idle.until(lambda a: (f"{a['limit'] - a['cache']} tokens",), limit=None, cache=None)
def overlong(
    r, limit: types.Count, cache: types.Count, factor: types.NonNegative = 1.0, beyond: Beyond = "hold"
) -> types.Rollout:
    """Penalize length softly: add min(-(len - (limit - cache)) / cache * factor, 0). DAPO (arXiv 2503.14476, eq. 13).

    ``limit`` and ``cache`` in tokens. Beyond the limit "hold" stays at -factor, "grow" continues (verl, AReaL,
    NeMo-RL), "zero" sets the row's reward to 0 (SkyRL).

    Args:
      limit: tokens of the longest row.
      cache: tokens over which the penalty grows.
      factor: penalty at the limit.
      beyond: what happens beyond the limit.
    """
    excess = (ops.length(r) - (limit - cache)) / cache
    added = -factor * jnp.clip(excess, 0.0, None if beyond == "grow" else 1.0)
    if beyond == "zero":
        added = jnp.where(ops.length(r) > limit, -trajectories.uncharged(r), added)
    return r.replace(reward=r.reward + added, parts={**r.parts, "overlong": added})
