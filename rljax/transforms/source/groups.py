"""Batches as groups: rows of a prompt, which are adjacent, counted and chosen together."""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import ops, trajectories

Array = types.Array
T = TypeVar("T")


def take(tree: T, rows: Array) -> T:
    """Return the rows with these numbers of a rollout, or of another tree of arrays."""
    return jax.tree.map(lambda x: x[rows], tree)


def place(rollout: types.Rollout) -> Array:
    """Return the number of each row's group in the batch, ``[B]`` int32: 0, 1, ... in order."""
    return jnp.cumsum(starts(rollout), dtype=jnp.int32) - 1


def rank(ids: Array, *keys: Array) -> tuple[Array, Array]:
    """Return the place of each row among the rows with its id, and how many there are, ``[B]`` int32 each.

    Args:
      ids: ``[B]`` integers.
      keys: ``[B]`` each, ascending; the first decides, then the second; rows with equal keys are in their order.
    """
    number = ops.dense(ids)
    size = jax.ops.segment_sum(jnp.ones_like(number), number, ids.size)
    order = jnp.lexsort((*reversed(keys), number))
    first = jnp.cumsum(size) - size
    ranked = jnp.zeros_like(number).at[order].set(jnp.arange(ids.size, dtype=number.dtype))
    return (ranked - first[number]).astype(jnp.int32), size[number].astype(jnp.int32)


def starts(rollout: types.Rollout) -> Array:
    """Return where a group begins, ``[B]`` bool."""
    return (rollout.group != jnp.roll(rollout.group, 1)).at[0].set(True)


def sample(rollout: types.Rollout) -> Array:
    """Return the number of each row among the adjacent rows of its group, ``[B]`` int32."""
    row = jnp.arange(rollout.group.size, dtype=jnp.int32)
    return row - jax.lax.cummax(jnp.where(starts(rollout), row, 0))


def size(rollout: types.Rollout) -> Array:
    """Return the number of rows of each row's group, ``[B]`` int32."""
    number = place(rollout)
    return jax.ops.segment_sum(jnp.ones_like(number), number, number.size)[number]


def replaced(first: types.Rollout, second: types.Rollout, edit: types.Edit, start: Array) -> types.Rollout:
    """Return the first pass with rows of the second in place of some.

    Args:
      first: B rows.
      second: n * samples rows; the rows of an edit are adjacent.
      edit: n edits; rows of an edit that is not used change nothing.
      start: ``[n, 1]`` or ``[n, samples]`` int32, the first of the places of an edit's rows, or each place; places
        outside of the edit's group are left out.

    Returns:
      B rows, each in the episode that its place had.
    """
    samples, rows, number = second.group.size // edit.row.size, first.group.size, place(first)
    target = start if start.shape[1] == samples else start + jnp.arange(samples, dtype=jnp.int32)[None, :]
    inside = (target < rows) & (number[jnp.minimum(target, rows - 1)] == number[edit.row][:, None])
    target = jnp.where(edit.used[:, None] & inside, target, rows).reshape(-1)
    merged = jax.tree.map(lambda old, new: old.at[target].set(new, mode="drop"), first, second)
    return merged.replace(episode=first.episode)


def put(mine: Array, new: T, old: T) -> T:
    """Return ``new`` in the rows where ``mine`` ``[B]`` is True, ``old`` in the others; rollouts, or any arrays.

    Raises:
      ValueError: one of them has a field that the other lacks.
    """
    one, two = ({jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(x)} for x in (new, old))
    if one != two:
        raise ValueError(f"{min(one ^ two)} is in the rows of this step or in those in their place, and not in both")
    return jax.tree.map(lambda x, y: jax.vmap(jnp.where)(mine, x, y), new, old)


def stale(rows: types.Rollout) -> types.Rollout:
    """Return the rows of an earlier step, as the policy of this step sees them: ``on_policy`` 0."""
    return rows.replace(on_policy=jnp.zeros_like(rows.reward))


def episodes(rollout: types.Rollout) -> Array | None:
    """Return new numbers of the episodes of rows from several steps, where equal ones may belong to two groups."""
    return None if rollout.episode is None else ops.dense(rollout.group, rollout.episode).astype(jnp.int32)


class Tally(NamedTuple):
    """What a step saw of each prompt, at the place of its group; groups beyond the batch have count 0."""

    index: Array  # [B] int32, the prompt
    count: Array  # [B] float32, rows that the policy wrote and that count, an episode once
    wins: Array  # [B] float32, how many of them have a reward above 0
    reward: Array  # [B] float32, mean total reward
    spread: Array  # [B] float32, standard deviation of the total rewards
    advantage: Array  # [B] float32, mean |r - mean| / std of the group; 0 if all are equal
    domain: Array  # [B] int32
    best: Array  # [B] float32, largest total reward; 0 where nothing counts


def again(rollout: types.Rollout) -> Array:
    """Return which rows are of a second pass, ``[B]`` bool."""
    return rollout.extra.get("pass", jnp.zeros_like(rollout.reward)) > 0


def by_policy(rollout: types.Rollout) -> Array:
    """Return which rows the policy wrote under the task's prompt, ``[B]`` bool."""
    return (trajectories.on_policy(rollout) > 0) & ~again(rollout)


def counted(rollout: types.Rollout) -> Array:
    """Return 1 on the rows that a tally counts, ``[B]``: not rows of a second pass, nor rows of other authors."""
    return trajectories.once(rollout) * by_policy(rollout)


def measured(rollout: types.Rollout) -> tuple[Array, Array]:
    """Return ``counted`` and the total reward, without charges, ``[B]`` each; those of the first pass in a second."""
    reward, once = trajectories.uncharged(rollout), counted(rollout)
    if "first_outcome" in rollout.extra:
        second = again(rollout)
        reward = jnp.where(second, rollout.extra["first_reward"], reward)
        once = jnp.where(second, rollout.extra["first_outcome"] != types.Outcome.CRASHED, once)
    return once, reward


def tally(rollout: types.Rollout) -> Tally:
    """Count the scored rows of each prompt that the policy wrote; for a row of a second pass, the first pass counts."""
    number, places, (once, reward) = place(rollout), rollout.group.size, measured(rollout)

    def total(x: Array) -> Array:
        return jax.ops.segment_sum(x, number, places)

    def of_group(x: Array) -> Array:
        return jnp.zeros((places,), x.dtype).at[number].set(x)

    count = total(once)
    some = jnp.maximum(count, 1.0)
    mean = total(once * reward) / some
    away = jnp.where(once > 0, reward - mean[number], 0.0)
    spread = jnp.sqrt(total(away**2) / some)
    spread = jnp.where(spread > ops.FLAT, spread, 0.0)
    index = jnp.zeros_like(number) if rollout.index is None else rollout.index
    domain = jnp.zeros_like(number) if rollout.domain is None else rollout.domain
    return Tally(
        index=of_group(index),
        count=count,
        wins=total(once * (reward > 0)),
        reward=mean,
        spread=spread,
        advantage=jnp.where(spread > 0, total(jnp.abs(away)) / some / jnp.where(spread > 0, spread, 1.0), 0.0),
        domain=of_group(domain),
        best=jnp.where(count > 0, jax.ops.segment_max(jnp.where(once > 0, reward, -jnp.inf), number, places), 0.0),
    )
