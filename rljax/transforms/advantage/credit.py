"""Credit inside a row: critics, turns, trees, steps, and mixtures of two advantages."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.advantage import normalise

Piece = types.RolloutTransform
Step = Literal["turn", "tag"]
VALUE = types.Needs(value=True)
PAID = types.Needs(token_reward=True)
TURNS = types.Needs(turns=True)


def _estimates(r: types.Rollout, gamma, lam, value_lam=None, bootstrap: types.Number = 0.0):
    """Return (estimates with ``lam``, targets with ``value_lam``); ``bootstrap`` is added to the rewards."""
    value, paid = ops.given(r.value, "advantage: the rollout has no value"), ops.token_rewards(r) + bootstrap
    advantage = trajectories.gae(r, paid, value, r.mask, gamma, lam)
    target = advantage if value_lam is None else trajectories.gae(r, paid, value, r.mask, gamma, value_lam)
    return advantage, value + target


def _value_needs(a) -> types.Needs:
    names = a["module"]
    if not names or len({*names}) != len(names):
        raise ValueError(f"values: module={names} must be at least one name, each once")
    return modules.needs(*names, field="value")


@define.advantage(needs=_value_needs)
def values(r, module: tuple[str, ...] = ("value", "value_2"), combine: Literal["min", "mean"] = "min"):
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
def gae(r, gamma: types.Fraction = 1.0, lam: types.Fraction = 1.0, value_lam: types.Fraction | None = None):
    """Use generalised advantage estimates of the critic's values; write the critic's target too.

    A_t = delta_t + gamma lam A_{t+1}, returns = A + V (arXiv 1506.02438, eq. 16). With both 1, A_t = R - V_t.
    ``value_lam`` is the lambda of the returns (VC-PPO, arXiv 2503.01491); None: ``lam``.

    Args:
      gamma: discount of a step.
      lam: lambda of the advantage.
      value_lam: lambda of the critic's target; None: ``lam``.
    """
    return _estimates(r, gamma, lam, value_lam)


@define.advantage(needs=VALUE)
def length_adaptive_gae(r, alpha: types.Positive = 0.05, gamma: types.Fraction = 1.0, value_lam: types.Fraction = 1.0):
    """Compute ``gae`` with a lambda for each row: lam = clip(1 - 1 / (alpha |y|), 0, 1). VAPO (arXiv 2504.05118).

    Args:
      alpha: how fast lambda approaches 1 with the row's length in tokens.
      gamma: discount of a step.
      value_lam: lambda of the critic's target.
    """
    lam = jnp.clip(1.0 - 1.0 / (alpha * jnp.maximum(ops.length(r), 1.0)), 0.0, 1.0)
    return _estimates(r, gamma, lam, value_lam)


@define.advantage(needs=VALUE)
def truncated_gae(r, gamma: types.Fraction = 1.0, lam: types.Fraction = 1.0):
    """Compute ``gae``, with the last value after the cut on rows cut by the length limit. T-PPO (arXiv 2506.15050)."""
    finish = ops.given(r.finish, "truncated_gae: the rollout has no finish")[:, None]
    value = ops.given(r.value, "truncated_gae: the rollout has no value")
    cut = jnp.where(finish == types.Finish.LENGTH, gamma * value * ops.last_token(r.mask), 0.0)
    return _estimates(r, gamma, lam, bootstrap=cut)


def _steps(ids):
    """Return ids [B, T] that differ between rows."""
    return ops.dense(jnp.broadcast_to(jnp.arange(ids.shape[0], dtype=ids.dtype)[:, None], ids.shape), ids)


def _turns(r: types.Rollout):
    """Return (reward, value, first, spread): a turn's numbers at its first token, 1 there; copy first to turn."""
    ids = _steps(ops.segments(r, "turn"))
    first = ops.segment_first(ids, r.mask)
    reward = ops.segment_total(ops.token_rewards(r), ids) * first
    value = jnp.where(first > 0, ops.given(r.value, "advantage: the rollout has no value"), 0.0)
    return reward, value, first, lambda x: ops.segment_total(x * first, ids)


@define.advantage(needs=VALUE | TURNS)
def turn_gae(r, gamma: types.Fraction = 1.0, lam: types.Fraction = 1.0):
    """Compute ``gae`` with one step a turn: its reward is the sum over its tokens, its value that of its first token.

    A turn's tokens share advantage and target. Source: ERA, AReaL. One turn is a bandit, A = R - V_0.
    """
    reward, value, first, spread = _turns(r)
    advantage = trajectories.gae(r, reward, value, first, gamma, lam)
    return spread(advantage), spread(advantage + value)


@define.advantage(needs=VALUE | TURNS)
def step_value_difference(r, cost: types.Number = 0.05):
    """Judge a turn by the values around it and by its return: A = V(next) - V - cost + r + return from it on.

    Undiscounted; V after the last turn is 0; the return is the critic's target. Source: DigiRL (arXiv 2406.11896).
    Differs from ``turn_gae`` with lambda 0 by the cost and the return.
    """
    reward, value, first, spread = _turns(r)
    to_go = trajectories.reward_to_go(r, 1.0, reward, first)
    return spread(trajectories.gae(r, reward, value, first, 1.0, 0.0) + to_go) - cost, spread(to_go)


def _text(mask):
    """Return [B, T], whether the token stands at or before the row's last trained one; tool output counts."""
    return jnp.cumsum(mask[:, ::-1], axis=1)[:, ::-1] > 0


@define.advantage(needs=normalise.SIBLINGS)
def prefix_tree(r):
    """Add temporal differences on the tree of the group's shared prefixes: A_t = r - mean + V(s_{t+1}) - V(s_t).

    V(s) is the mean reward of the group's rows that begin with the tokens s, tool output among them. Source: TEMPO
    (2025), which then divides by the group's std. Along a row that ends alone the differences sum to r - mean.
    """
    if r.action is None:
        raise ValueError("prefix_tree: the rollout has no action")
    reward = ops.row_reward(r)
    root = ops.segment_mean(reward, r.group, ops.valid_rows(r))[:, None]
    value = trajectories.prefix_mean(r, reward)
    return reward[:, None] - root + (value - jnp.concatenate([root, value[:, :-1]], axis=1))


@define.advantage(needs=define.reads(extra=("node",), siblings=True))
def branch_tree(r):
    """Credit a node of a branching rollout by its rise: A = (V - V_root + V - V_parent) / sqrt(leaves).

    V is the mean reward of the rows through a node, leaves their number, V_root the group's mean. extra["node"] [B, T]
    holds ids, the same in all rows of a node and in no other group; the parent is the node before it in the row, or
    the root. Source: AttnRL (2025). Differs from ``prefix_tree`` by nodes that the sampler names.
    """
    node, reward, valid = ops.extra(r, "node"), ops.row_reward(r), ops.valid_rows(r)
    runs = _text(r.mask)
    once = ops.segment_first(_steps(node), jnp.where(runs, valid[:, None], 0.0))
    value = ops.segment_mean(reward[:, None] * jnp.ones_like(r.mask), node, once)
    leaves = jnp.maximum(ops.segment_total(once, node), 1.0)
    root = ops.segment_mean(reward, r.group, valid)

    def step(carry, column):
        (here, at, parent), (n, v) = carry, column
        parent = jnp.where(n != here, at, parent)
        return (n, v, parent), parent

    _, parent = jax.lax.scan(step, (node[:, 0], root, root), (node.T, value.T))
    return (2.0 * value - root[:, None] - parent.T) / jnp.sqrt(leaves)


def _on_tokens(ids, mask):
    return ids if ids.ndim == 2 else jnp.broadcast_to(ids[:, None], mask.shape)


@define.advantage(needs=lambda a: normalise.keyed(a["key"]))
def center_distinct(r, key: types.Segments = "agent"):
    """Subtract the mean of the distinct advantages of what shares ``key``, each counted once. MARS (2025).

    Values within 1e-6 are one. Differs from ``center_by`` per token in that a turn's length does not weigh.
    """
    a, counted = normalise.current(r), ops.trained_tokens(r) > 0
    among = ops.dense(_on_tokens(ops.segments(r, key), r.mask), jnp.where(counted, 1, 0))
    flat, ids = jnp.where(counted, a, 0.0).reshape(-1), among.reshape(-1)
    order = jnp.lexsort((flat, ids))
    step = (jnp.diff(flat[order]) > 1e-6) | (jnp.diff(ids[order]) != 0)
    new = jnp.concatenate([jnp.ones_like(step[:1], shape=1), step])
    once = jnp.zeros_like(flat).at[order].set(jnp.where(new, jnp.ones_like(flat), 0.0)).reshape(a.shape)
    return a - ops.segment_mean(a, among, jnp.where(counted, once, 0.0))


def _step_rewards(r: types.Rollout, key, unit, ddof=1):
    """Return (the steps' rewards, centred over the steps that share ``key``, and their spread), [B, T]."""
    ids, among = _steps(ops.segments(r, unit)), _on_tokens(ops.segments(r, key), r.mask)
    paid = ops.given(r.token_reward, "advantage: the rollout has no token_reward") * r.mask
    reward, once = ops.segment_total(paid, ids), ops.segment_first(ids, ops.trained_tokens(r))
    return reward - ops.segment_mean(reward, among, once), ops.segment_std(reward, among, once, ddof)


@define.advantage(needs=lambda a: PAID | normalise.keyed(a["key"]) | normalise.keyed(a["unit"]))
def center_steps(r, key: types.Segments = ("group", "turn"), unit: Step = "turn"):
    """Subtract from a step's reward the mean over the steps that share ``key``; the step's tokens share the result.

    A step is the trained tokens of one row with equal ``unit``; its reward is the token rewards there, without the
    row's. Source: UI-S1 (arXiv 2509.11543); RLVMR (arXiv 2507.22844) with tags.
    """
    return _step_rewards(r, key, unit)[0]


@define.advantage(needs=lambda a: PAID | normalise.keyed(a["key"]) | normalise.keyed(a["unit"]))
def zscore_steps(
    r, key: types.Segments = "group", unit: Step = "turn", epsilon: types.NonNegative = 1e-6, ddof: int = 1
):
    """Divide ``center_steps`` by the steps' spread: (r - mean) / (std + epsilon). iStar (arXiv 2509.19199).

    Args:
      key: ids of the steps that share a mean: one name or several.
      unit: what makes a step of the tokens of a row.
      epsilon: added to the standard deviation.
      ddof: subtracted from the count in the variance.
    """
    centred, std = _step_rewards(r, key, unit, ddof)
    return normalise.over(centred, std + epsilon)


@define.constructor("advantage")
def mix(first: Piece, second: Piece, episode: types.Number = 1.0, step: types.Number = 1.0):
    """Add an advantage of the episode and one of its steps: A = episode A_first + step A_second.

    ``first`` sees the rows' reward alone, ``second`` token rewards too; both start from no advantage. A correct row
    whose reward is 0, since a world pays its tokens, has the reward 1 for ``first``. Source: UI-S1 (arXiv 2509.11543),
    RLVMR (arXiv 2507.22844).

    Args:
      first: advantage piece of the episode.
      second: advantage piece of the steps.
      episode: weight of the first.
      step: weight of the second.
    """

    def apply(r: types.Rollout, state, key):
        start = r.replace(advantage=None)
        whole = start.replace(token_reward=None, reward=trajectories.outcome(r))
        a, one = first.apply(whole, state[0], jax.random.fold_in(key, 0))
        b, two = second.apply(start, state[1], jax.random.fold_in(key, 1))
        total = episode * a.advantage + step * b.advantage
        return b.replace(advantage=total, returns=a.returns if b.returns is None else b.returns), (one, two)

    return dataclasses.replace(transforms.chain(first, second), apply=apply)


@define.advantage(needs=types.Needs(siblings=True))
def process_leave_one_out(r, gamma: types.Fraction = 1.0):
    """Add two leave-one-out advantages: of the row's reward, and of its tokens' rewards p.

    A_t = sum over s >= t of gamma^{s - t} (p_s - mean over j != i of mean_s p^j_s) + r_i - mean over j != i of r_j, j
    the group's other rows. Source: PRIME (arXiv 2502.01456, eq. 6). Without token rewards it is ``leave_one_out``.

    Args:
      gamma: discount of a token.
    """
    paid = jnp.zeros_like(r.mask) if r.token_reward is None else jnp.where(r.mask > 0, r.token_reward, 0.0)
    counts = ops.valid_rows(r)

    def others(x):
        x = jnp.where(counts > 0, x, 0.0)
        number = ops.segment_total(counts, r.group) - counts
        mean = (ops.segment_total(x, r.group) - x) / jnp.maximum(number, 1.0)
        return jnp.where(number > 0, mean, x)

    process = trajectories.reward_to_go(r, gamma, (paid - others(ops.row_mean(paid, r.mask)[:, 0])[:, None]) * r.mask)
    return process + (ops.reward(r) - others(ops.reward(r)))[:, None]


@define.constructor("advantage")
def convex(first: Piece, second: Piece, share: types.Fraction):
    """Apply ``mix`` with weights that sum to 1: (1 - share) A_first + share A_second. RL Tango (arXiv 2505.15034).

    Args:
      first: advantage piece of the episode.
      second: advantage piece of the steps.
      share: weight of the second.
    """
    return mix(first, second, 1.0 - share, share)


@define.advantage(needs=types.Needs(reference=True, value=True))
def partition_target(r, beta: types.Positive):
    """Write the critic's target as log Z(x): mean_t (beta A + log ref - log pi); A stays. FlowRL (arXiv 2509.15207)."""
    d = trajectories.to_reference(r, "partition_target")
    return r.replace(returns=ops.row_mean(beta * normalise.current(r) - d, r.mask) * r.mask)
