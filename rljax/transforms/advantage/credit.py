"""Credit inside a row: critics."""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.advantage import normalise

VALUE = types.Needs(value=True)
TURNS = types.Needs(turns=True)


def estimates(
    r: types.Rollout, gamma, lam, value_lam=None, bootstrap: types.Number = 0.0
) -> tuple[types.Array, types.Array]:
    """Return (estimates with ``lam``, targets with ``value_lam``); ``bootstrap`` is added to the rewards."""
    value = ops.given(r.value, "advantage: the rollout has no value")
    paid = trajectories.token_rewards(r) + bootstrap
    if r.motion is not None:
        paid = paid + _beyond(r, value, gamma)
    advantage = trajectories.gae(r, paid, value, r.mask, gamma, lam)
    target = advantage if value_lam is None else trajectories.gae(r, paid, value, r.mask, gamma, value_lam)
    return advantage, value + target


def _beyond(r: types.Rollout, value: types.Array, gamma) -> types.Array:
    """Return gamma V of the state behind the last action, at that action, on rows of a control world that were cut."""
    behind = value[:, -1:]  # an episode that has ended stays in its last state
    cut = ops.given(r.finish, "advantage: the rollout has no finish")[:, None] == types.Finish.LENGTH
    return jnp.where(cut, gamma * behind * ops.last_token(r.mask), 0.0)


@define.advantage(needs=lambda a: modules.needs(*modules.named("values", a["module"]), field="value"))
def values(r, module: tuple[str, ...] = ("value", "value_2"), combine: Literal["min", "mean"] = "min") -> types.Rollout:
    """Replace the values that later pieces read by the least of several critics' values, or by their mean; A stays.

    V_t = min_i V_i(s_t), from which the targets of all critics then bootstrap: clipped double Q-learning (TD3, arXiv
    1802.09477, eq. 10, from memory), here of state values. ArCHer (arXiv 2402.19446) reads critics that follow the
    trained ones, ``config.module.NAME.follows``.

    Args:
      module: names of ``config.module``, critics.
      combine: how several values become one.
    """
    each = jnp.stack([modules.score(r, name, "value") for name in module])
    return r.replace(value=jnp.min(each, axis=0) if combine == "min" else jnp.mean(each, axis=0))


@define.advantage(needs=VALUE)
def gae(
    r, gamma: types.Fraction = 1.0, lam: types.Fraction = 1.0, value_lam: types.Fraction | None = None
) -> tuple[types.Array, types.Array]:
    """Use generalised advantage estimates of the critic's values; write the critic's target too.

    A_t = delta_t + gamma lam A_{t+1}, returns = A + V (arXiv 1506.02438, eq. 16). With both 1, A_t = R - V_t. After the
    last token V is 0; after the last action of a control world, where a time limit or the end of a window cut the
    episode, it is the value of the state behind it.
    ``value_lam`` is the lambda of the returns (VC-PPO, arXiv 2503.01491); None: ``lam``.

    Args:
      gamma: discount of a step.
      lam: lambda of the advantage.
      value_lam: lambda of the critic's target; None: ``lam``.
    """
    return estimates(r, gamma, lam, value_lam)


def distinct_ids(ids) -> types.Array:
    """Return ids [B, T] that differ between rows."""
    return ops.dense(jnp.broadcast_to(jnp.arange(ids.shape[0], dtype=ids.dtype)[:, None], ids.shape), ids)


def turn_numbers(
    r: types.Rollout, gamma
) -> tuple[types.Array, types.Array, types.Array, Callable[[types.Array], types.Array]]:
    """Return (reward, value, first, spread): a turn's numbers at its first token, 1 there; copy first to turn.

    Of a control world the reward holds ``gamma`` V of the state behind an episode that was cut.
    """
    ids = distinct_ids(ops.segments(r, "turn"))
    first = ops.segment_first(ids, r.mask)
    values = ops.given(r.value, "advantage: the rollout has no value")
    paid = trajectories.token_rewards(r) + (0.0 if r.motion is None else _beyond(r, values, gamma))
    reward = ops.segment_total(paid, ids) * first
    value = jnp.where(first > 0, values, 0.0)
    return reward, value, first, lambda x: ops.segment_total(x * first, ids)


def behind_in_turn(r: types.Rollout) -> types.Array:
    """Return how many trained tokens of its turn stand behind each trained token, [B, T]; 0 elsewhere."""
    ids = distinct_ids(ops.segments(r, "turn"))
    before = jnp.cumsum(r.mask, axis=1) - r.mask  # in the row
    start = ops.segment_total(before * ops.segment_first(ids, r.mask), ids)
    return (ops.segment_total(r.mask, ids) - 1.0 - (before - start)) * r.mask


@define.advantage(needs=VALUE | TURNS)
def step_value_difference(r, cost: types.Number = 0.05) -> tuple[types.Array, types.Array]:
    """Judge a turn by the values around it and by its return: A = V(next) - V - cost + r + return from it on.

    Undiscounted; V after the last turn is 0; the return is the critic's target. Source: DigiRL (arXiv 2406.11896).
    Differs from ``turn_gae`` with lambda 0 by the cost and the return.
    """
    reward, value, first, spread = turn_numbers(r, 1.0)
    to_go = trajectories.reward_to_go(r, 1.0, reward, first)
    return spread(trajectories.gae(r, reward, value, first, 1.0, 0.0) + to_go) - cost, spread(to_go)


@define.advantage(needs=VALUE)
def keep_above_value(r, share: types.Fraction = 0.1) -> types.Array:
    """Keep A in the ``share`` of the episodes whose return is most above V of their first state; 0 in the others.

    Equal ones at the bound are all kept. Source: DigiRL (arXiv 2406.11896), the filter by the value of the instruction,
    which is what the first state holds; there a network of its own, 0.1.
    """
    value = ops.given(r.value, "advantage.keep_above_value: the rollout has no value")
    counted = trajectories.once(r, ops.valid_rows(r) * jnp.max(r.mask, axis=1))
    first = trajectories.summed(r, counted * ops.row_sum(value, ops.first_token(r.mask))[:, 0])
    above = trajectories.total(r) - first
    bound = jnp.nanquantile(jnp.where(counted > 0, above, jnp.nan), 1.0 - share, method="higher")
    return jnp.where((above >= bound)[:, None], normalise.current(r), 0.0)
