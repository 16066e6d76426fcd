"""Credit inside a row: turns, trees, steps, and mixtures of two advantages."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.advantage import baseline, credit, normalise

Piece = types.RolloutTransform
Step = Literal["turn", "tag"]
PAID = types.Needs(token_reward=True)


@define.advantage(needs=credit.VALUE)
def length_adaptive_gae(
    r, alpha: types.Positive = 0.05, gamma: types.Fraction = 1.0, value_lam: types.Fraction = 1.0
) -> tuple[types.Array, types.Array]:
    """Compute ``gae`` with a lambda for each row: lam = clip(1 - 1 / (alpha |y|), 0, 1). VAPO (arXiv 2504.05118).

    Args:
      alpha: how fast lambda approaches 1 with the row's length in tokens.
      gamma: discount of a step.
      value_lam: lambda of the critic's target.
    """
    lam = jnp.clip(1.0 - 1.0 / (alpha * jnp.maximum(ops.length(r), 1.0)), 0.0, 1.0)
    return credit.estimates(r, gamma, lam, value_lam)


@define.advantage(needs=credit.VALUE)
def truncated_gae(r, gamma: types.Fraction = 1.0, lam: types.Fraction = 1.0) -> tuple[types.Array, types.Array]:
    """Compute ``gae``, with the last value after the cut on rows cut by the length limit. T-PPO (arXiv 2506.15050)."""
    if r.motion is not None:  # ``gae`` reads the value of the state behind a cut
        return credit.estimates(r, gamma, lam)
    finish = ops.given(r.finish, "truncated_gae: the rollout has no finish")[:, None]
    value = ops.given(r.value, "truncated_gae: the rollout has no value")
    cut = (finish == types.Finish.LENGTH) & trajectories.last(r)[:, None]
    cut = jnp.where(cut, gamma * value * ops.last_token(r.mask), 0.0)
    return credit.estimates(r, gamma, lam, bootstrap=cut)


@define.advantage(needs=credit.VALUE | credit.TURNS)
def turn_gae(r, gamma: types.Fraction = 1.0, lam: types.Fraction = 1.0) -> tuple[types.Array, types.Array]:
    """Compute ``gae`` with one step a turn, whose reward sums its tokens and whose value is at its first token.

    A turn's tokens share advantage and target. Source: ERA, AReaL. One turn is a bandit, A = R - V_0.
    """
    reward, value, first, spread = credit.turn_numbers(r, gamma)
    advantage = trajectories.gae(r, reward, value, first, gamma, lam)
    return spread(advantage), spread(advantage + value)


@define.advantage(needs=normalise.SIBLINGS)
def prefix_tree(r) -> types.Array:
    """Add temporal differences on the tree of the group's shared prefixes: A_t = r - mean + V(s_{t+1}) - V(s_t).

    V(s) is the mean reward of the group's rows that begin with the tokens s, tool output among them. Source: TEMPO
    (2025), which then divides by the group's std. Along a row that ends alone the differences sum to r - mean.
    """
    root, before, value, _ = _tree(r)
    return (trajectories.total(r) - root)[:, None] + value - before


@define.advantage(needs=normalise.SIBLINGS)
def tree_targets(r) -> types.Rollout:
    """Write the critic's target as V(s_t), the mean reward of the group's rows that begin with the tokens s_t; A stays.

    Source: the values of nodes in AlphaMath (arXiv 2405.03553). Where a row is alone it is the row's reward, the target
    of ``gae`` at lambda 1 without discount; where a source such as ``cure`` branches it varies less.
    """
    return r.replace(returns=_tree(r)[1] * r.mask)


def _tree(r: types.Rollout) -> tuple[types.Array, types.Array, types.Array, types.Array]:
    """Return the mean of the group [B], V before and behind each token, and the rows that begin alike, ``[B, T]``."""
    reward, once = trajectories.total(r), trajectories.once(r)
    root, (value, leaves) = ops.segment_mean(reward, r.group, once), trajectories.prefixes(r, reward)
    start = jnp.where((once == 0) & (ops.valid_rows(r) > 0), reward, root)  # where the row before has led
    return root, jnp.concatenate([start[:, None], value[:, :-1]], axis=1), value, leaves


@define.advantage(needs=normalise.SIBLINGS)
def branch_tree(r) -> types.Array:
    """Credit a node of the tree of shared prefixes by its rise: A = (V - V_root + V - V_parent) / sqrt(leaves).

    A node is a run of tokens that the same rows of the group begin with: its leaves, whose mean reward is V. V_root is
    the group's mean; the parent is the node before it, or the root. Source: TreeRL (arXiv 2506.11902), AttnRL (arXiv
    2509.26628). A source such as ``cure`` makes groups that branch; rows that begin alike by chance share nodes too.
    """
    root, before, value, leaves = _tree(r)

    def step(carry, column):
        (here, at, parent), (n, v) = carry, column
        parent = jnp.where(n != here, at, parent)
        return (n, v, parent), parent

    _, parent = jax.lax.scan(step, (leaves[:, 0], before[:, 0], before[:, 0]), (leaves.T, value.T))
    return (2.0 * value - root[:, None] - parent.T) / jnp.sqrt(jnp.maximum(leaves, 1.0))


def _on_tokens(ids, mask):
    return ids if ids.ndim == 2 else jnp.broadcast_to(ids[:, None], mask.shape)


@define.advantage(needs=lambda a: normalise.keyed(a["key"]))
def center_distinct(r, key: types.Segments = "agent") -> types.Array:
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
    ids, among = credit.distinct_ids(ops.segments(r, unit)), _on_tokens(ops.segments(r, key), r.mask)
    paid = ops.given(r.token_reward, "advantage: the rollout has no token_reward") * r.mask
    reward, once = ops.segment_total(paid, ids), ops.segment_first(ids, ops.trained_tokens(r))
    return reward - ops.segment_mean(reward, among, once), ops.segment_std(reward, among, once, ddof)


@define.advantage(needs=lambda a: PAID | normalise.keyed(a["key"]) | normalise.keyed(a["unit"]))
def center_steps(r, key: types.Segments = ("group", "turn"), unit: Step = "turn") -> types.Array:
    """Subtract from a step's reward the mean over the steps that share ``key``; the step's tokens share the result.

    A step is the trained tokens of one row with equal ``unit``; its reward is the token rewards there, without the
    row's. Source: UI-S1 (arXiv 2509.11543); RLVMR (arXiv 2507.22844) with tags.
    """
    return _step_rewards(r, key, unit)[0]


@define.advantage(needs=lambda a: PAID | normalise.keyed(a["key"]) | normalise.keyed(a["unit"]))
def zscore_steps(
    r, key: types.Segments = "group", unit: Step = "turn", epsilon: types.NonNegative = 1e-6, ddof: int = 1
) -> types.Array:
    """Divide ``center_steps`` by the steps' spread: (r - mean) / (std + epsilon). iStar (arXiv 2509.19199).

    Args:
      key: ids of the steps that share a mean: one name or several.
      unit: what makes a step of the tokens of a row.
      epsilon: added to the standard deviation.
      ddof: subtracted from the count in the variance.
    """
    centred, std = _step_rewards(r, key, unit, ddof)
    return normalise.scaled(centred, std, epsilon)


@define.advantage(needs=PAID | normalise.SIBLINGS)
def process_supervision(r, epsilon: types.NonNegative = 1e-6, ddof: int = 1) -> types.Array:
    """Add up the normalised rewards of the steps to come: A_t = sum over s >= t of (p_s - mean) / (std + epsilon).

    A step ends at a trained token whose reward p_s is not 0; mean and deviation are over all steps of the group. The
    row's reward is not read. Source: process supervision of GRPO, DeepSeekMath (arXiv 2402.03300, section 4.1.3).

    Args:
      epsilon: added to the standard deviation.
      ddof: subtracted from the count in the variance.
    """
    paid = ops.given(r.token_reward, "process_supervision: the rollout has no token_reward") * r.mask
    steps = r.extra.get("paid", paid) != 0  # a charge of a KL makes no step
    among, once = _on_tokens(r.group, r.mask), jnp.where(steps, ops.trained_tokens(r), 0.0)
    centred = paid - ops.segment_mean(paid, among, once)
    step = once * normalise.scaled(centred, ops.segment_std(paid, among, once, ddof), epsilon)
    return trajectories.reward_to_go(r, 1.0, step)


@define.constructor("advantage")
def mix(first: Piece, second: Piece, episode: types.Number = 1.0, step: types.Number = 1.0) -> types.RolloutTransform:
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


@define.advantage(needs=normalise.SIBLINGS)
def process_leave_one_out(r, gamma: types.Fraction = 1.0) -> types.Array:
    """Add two leave-one-out advantages: of the row's reward, and of its tokens' rewards p.

    A_t = sum over s >= t of gamma^{s - t} (p_s - mean over j != i of mean_s p^j_s) + r_i - mean over j != i of r_j, j
    the group's other rows. Source: PRIME (arXiv 2502.01456, eq. 6). Without token rewards it is ``leave_one_out``.

    Args:
      gamma: discount of a token.
    """
    paid = jnp.zeros_like(r.mask) if r.token_reward is None else jnp.where(r.mask > 0, r.token_reward, 0.0)
    total, length = (trajectories.summed(r, x) for x in (ops.row_sum(paid, r.mask)[:, 0], ops.length(r)))
    reward, base = ops.reward(r), baseline.others(r, total / jnp.maximum(length, 1))[:, None]
    return trajectories.reward_to_go(r, gamma, (paid - base) * r.mask) + (reward - baseline.others(r, reward))[:, None]


@define.advantage(needs=define.reads(extra=("segment", "cut_reward"), siblings=True))
def segment_rise(r) -> types.Array:
    """Credit a segment with the rise of the success rate: A_t = V_{j+1} - V_j in segment j.

    V_j is the mean reward of continuations from where segment j begins, extra["cut_reward"] [B, S] for j of 1 .. S; V_0
    that of the group's other rows, V_{S+1} the row's reward. extra["segment"] [B, T] holds j. They add up to the
    leave-one-out advantage. Source: VinePPO (arXiv 2410.01679), whose V_0 is of continuations too.
    """
    cut, segment, reward = ops.extra(r, "cut_reward"), ops.extra(r, "segment"), ops.reward(r)[:, None]
    value = jnp.concatenate([baseline.others(r, reward[:, 0])[:, None], cut, reward], axis=1)
    return jnp.take_along_axis(jnp.diff(value, axis=1), segment, axis=1)


@define.constructor("advantage")
def convex(first: Piece, second: Piece, share: types.Fraction) -> types.RolloutTransform:
    """Apply ``mix`` with weights that sum to 1: (1 - share) A_first + share A_second. RL Tango (arXiv 2505.15034).

    Args:
      first: advantage piece of the episode.
      second: advantage piece of the steps.
      share: weight of the second.
    """
    return mix(first, second, 1.0 - share, share)


@define.advantage(needs=types.Needs(reference=True, value=True))
def partition_target(r, beta: types.Positive) -> types.Rollout:
    """Write the critic's target as log Z(x): mean_t (beta A + log ref - log pi); A stays. FlowRL (arXiv 2509.15207)."""
    d = trajectories.to_reference(r, "partition_target")
    return r.replace(returns=ops.row_mean(beta * normalise.current(r) - d, r.mask) * r.mask)
