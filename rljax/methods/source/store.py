"""Stored rows: a memory of episodes by prompt, of fixed shape.

A store has ``capacity`` entries. An entry is one episode: its E adjacent rows, as the batch had them. Rows keep all of
their fields, so ``behaviour_logp`` and ``version`` belong to the policy that wrote them. When entries compete for
places, the highest priorities stay, and among equals the newest.
"""

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import ops, trajectories
from rljax.transforms.source import groups

Array = types.Array
_NOWHERE = jnp.iinfo(jnp.int32).max


class Store(flax.struct.PyTreeNode):
    """C entries; a ``filled`` one holds an episode of E rows."""

    rows: types.Rollout  # [C * E, ...], the rows of an entry adjacent
    index: Array  # [C] int32, the prompt
    priority: Array  # [C] float32
    number: Array  # [C] int32, entries stored before it in the run
    step: Array  # [C] int32, the clock when it was stored
    filled: Array  # [C] bool
    clock: Array  # int32, steps of the source so far
    count: Array  # int32, entries stored so far

    @property
    def each(self) -> int:
        """Rows of an episode."""
        return self.rows.reward.shape[0] // self.index.shape[0]


def _kept(rows: types.Rollout) -> types.Rollout:
    """Return rows without the states of unfinished episodes, which nothing reads after the batch was chosen."""
    return rows if rows.action is None else rows.replace(action=rows.action.replace(state=None))


def empty(rollout: types.Rollout, capacity: int, each: int = 1) -> Store:
    """Return a store without entries.

    Args:
      rollout: rows with the fields and widths of a batch, ``[B, ...]``.
      capacity: C, the number of entries.
      each: E, the rows of an episode.

    Raises:
      ValueError: the rows have no completion or no prompt's index, so nothing can be stored.
    """
    if rollout.index is None or (rollout.action is None and rollout.context is not None):
        raise ValueError("a memory stores rows that the policy sampled, and the source gives demonstrations")
    zero, whole = jnp.zeros((), jnp.int32), jnp.zeros((capacity,), jnp.int32)
    return Store(
        rows=jax.tree.map(lambda x: jnp.zeros((capacity * each, *x.shape[1:]), x.dtype), _kept(rollout)),
        index=whole,
        priority=jnp.zeros((capacity,)),
        number=whole,
        step=whole,
        filled=jnp.zeros((capacity,), bool),
        clock=zero,
        count=zero,
    )


def tick(store: Store, age: int | None = None) -> Store:
    """Begin a step: advance the clock and remove entries stored more than ``age`` steps ago; None: no limit."""
    clock = store.clock + 1
    young = store.filled if age is None else store.filled & (clock - store.step <= age)
    return store.replace(clock=clock, filled=young)


def remove(store: Store, slot: Array, where: Array) -> Store:
    """Remove the entries at ``slot`` ``[n]`` where ``where`` ``[n]`` is True."""
    return store.replace(filled=store.filled.at[jnp.where(where, slot, store.filled.size)].set(False, mode="drop"))


def put(store: Store, rows: types.Rollout, stored: Array, priority: Array, most: int = 1) -> Store:
    """Store episodes; each prompt keeps its best ``most``, and the store the best of all.

    Args:
      store: C entries.
      rows: N * E rows, the rows of an episode adjacent.
      stored: ``[N]`` bool, which episodes.
      priority: ``[N]`` float32; among equals the newest are better.
      most: entries of one prompt.

    Returns:
      The store; entries that stay have the places that they had.
    """
    size, index = store.index.size, ops.given(rows.index, "a memory: the rows have no index")[:: store.each]
    place = store.count + jnp.cumsum(stored, dtype=jnp.int32) - 1
    of = jnp.where(jnp.concatenate([store.filled, stored]), jnp.concatenate([store.index, index]), _NOWHERE)
    number = jnp.concatenate([store.number, place])
    worth = jnp.concatenate([store.priority, priority.astype(jnp.float32)])
    by_prompt = jnp.lexsort((-number, -worth, of))
    here = jnp.arange(of.size, dtype=jnp.int32)
    first = jax.lax.cummax(jnp.where(of[by_prompt] != jnp.roll(of[by_prompt], 1), here, 0))
    fits = jnp.zeros(of.shape, bool).at[by_prompt].set(here - first < most) & (of != _NOWHERE)
    best = jnp.lexsort((-number, -worth, ~fits))[:size]
    stays = jnp.zeros(of.shape, bool).at[best].set(True) & fits
    old, new = stays[:size], stays[size:]
    free = jnp.argsort(old, stable=True)
    slot = jnp.where(new, free[jnp.maximum(jnp.cumsum(new) - 1, 0)], size)
    at = (slot[:, None] * store.each + jnp.arange(store.each, dtype=slot.dtype)[None, :]).reshape(-1)

    def write(array: Array, value: Array) -> Array:
        return array.at[slot].set(value, mode="drop")

    return store.replace(
        rows=jax.tree.map(lambda x, y: x.at[at].set(y, mode="drop"), store.rows, _like(store.rows, _kept(rows))),
        index=write(store.index, index),
        priority=write(store.priority, priority.astype(jnp.float32)),
        number=write(store.number, place),
        step=write(store.step, jnp.broadcast_to(store.clock, slot.shape)),
        filled=old.at[slot].set(True, mode="drop"),
        count=store.count + jnp.sum(stored, dtype=jnp.int32),
    )


def _like(model: types.Rollout, rows: types.Rollout) -> types.Rollout:
    """Return rows with the extras and parts of ``model`` only."""
    if missing := {*model.extra, *model.parts} - {*rows.extra, *rows.parts}:
        raise ValueError(
            f"rows to store have no {min(missing)!r}: write the piece that stores them before other pieces"
        )
    extra = {name: rows.extra[name] for name in model.extra}
    return rows.replace(extra=extra, parts={name: rows.parts[name] for name in model.parts})


def lookup(store: Store, wanted: Array, nth: Array | int = 0, rank: Array | None = None) -> tuple[Array, Array]:
    """Find an entry of each prompt.

    Args:
      store: C entries.
      wanted: ``[n]`` int32, prompts.
      nth: ``[n]`` int32 or one number, which of the prompt's entries: 0 is the first.
      rank: ``[C]``, by which they are ordered, ascending; None: the newest first.

    Returns:
      (place, there), ``[n]`` each: the entry's place, and whether there is one.
    """
    of = jnp.where(store.filled, store.index, _NOWHERE)
    order = jnp.lexsort((-store.number if rank is None else rank, of))
    place = jnp.searchsorted(of[order], wanted, side="left") + nth
    there = place < jnp.searchsorted(of[order], wanted, side="right")
    return order[jnp.where(there, place, 0)], there


def draw(store: Store, count: int, key: types.Key, weight: Array | None = None) -> tuple[Array, Array]:
    """Draw different entries with probability in proportion to a weight.

    Args:
      store: C entries.
      count: n, how many, at most C.
      key: a typed key.
      weight: ``[C]`` float32, at least 0; None: the priority.

    Returns:
      (place, there), ``[n]`` each; ``there`` is False where fewer than n entries have a weight above 0.
    """
    weight = jnp.where(store.filled, store.priority if weight is None else weight, 0.0)
    noisy = jnp.log(weight) + jax.random.gumbel(key, weight.shape)  # the largest n are a draw without replacement
    best, place = jax.lax.top_k(jnp.where(weight > 0, noisy, -jnp.inf), count)
    return place, best > -jnp.inf


def fetch(store: Store, place: Array, rollout: types.Rollout) -> types.Rollout:
    """Return the rows of entries as rows of a batch: off-policy, in its groups and episodes.

    Args:
      store: C entries.
      place: ``[N]``, one for each episode of the batch.
      rollout: N * E rows, which have what the store does not keep.
    """
    at = (place[:, None] * store.each + jnp.arange(store.each)[None, :]).reshape(-1)
    rows = groups.take(store.rows, at)
    if rows.action is not None and rollout.action is not None:
        rows = rows.replace(action=rows.action.replace(state=rollout.action.state))
    return rows.replace(
        group=rollout.group,
        episode=rollout.episode,
        on_policy=None if rollout.on_policy is None else jnp.zeros_like(rollout.on_policy),
        parts={name: rows.parts.get(name, x) for name, x in rollout.parts.items()},
        extra={name: rows.extra.get(name, x) for name, x in rollout.extra.items()},
    )


# --- the batch, episode by episode ----------------------------------------------------------------


def episodes(x: Array, each: int) -> Array:
    """Return whether any row of an episode has ``x`` ``[B]`` bool, ``[N]`` bool."""
    return jnp.any(x.reshape((-1, each)), axis=1)


def solved(rollout: types.Rollout, each: int = 1) -> Array:
    """Return which episodes of the policy are valid and correct, ``[N]`` bool."""
    counts = groups.by_policy(rollout) & (ops.valid_rows(rollout) > 0)
    return episodes(counts & trajectories.correct(rollout), each)


def rate(rollout: types.Rollout, each: int = 1) -> tuple[Array, Array]:
    """Return the share of a group's episodes that are solved, and how many count, ``[N]`` float32 at each episode."""
    counts = episodes(groups.by_policy(rollout) & (ops.valid_rows(rollout) > 0), each).astype(jnp.float32)
    group = groups.place(rollout)[::each]
    count = jax.ops.segment_sum(counts, group, group.size)[group]
    wins = jax.ops.segment_sum(counts * solved(rollout, each), group, group.size)[group]
    return wins / jnp.maximum(count, 1.0), count


def insert(
    store: Store, rollout: types.Rollout, wanted: Array, most: int = 1, rank: Array | None = None
) -> tuple[types.Rollout, Array]:
    """Put stored episodes of the same prompt in place of the last that the policy wrote of a group.

    Args:
      store: C entries.
      rollout: N * E rows.
      wanted: ``[N]`` bool, equal in a group: whether it gets any.
      most: how many a group gets, as far as there are that many.
      rank: ``[C]``, which of them first, as of ``lookup``.

    Returns:
      The rows, and which of them were replaced, ``[B]`` bool. A stored episode whose first prompt has other tokens than
      the prompt of the group is not used: it is another problem under the same index.
    """
    each, group = store.each, groups.place(rollout)[:: store.each]
    index = ops.given(rollout.index, "a memory: the rows have no index")[::each]
    replaceable = episodes(groups.by_policy(rollout), each)
    seen = jnp.cumsum(replaceable, dtype=jnp.int32)
    last = jax.ops.segment_max(seen, group, group.size)[group] - seen  # 0: the last of its group
    place, there = lookup(store, index, last, rank)
    rows = fetch(store, place, rollout)
    used = wanted & replaceable & (last < most) & there & _same_prompt(rows, rollout)[::each]
    mine = ops.repeat(used, each)
    return groups.put(mine, rows, rollout), mine


def _same_prompt(one: types.Rollout, two: types.Rollout) -> Array:
    """Return which rows were sampled under equal prompts, ``[B]`` bool."""
    if one.context is None or two.context is None:
        return jnp.ones(two.reward.shape, bool)
    (a, b), (c, d) = (one.context.token, one.context.mask), (two.context.token, two.context.mask)
    return jnp.all((b == d) & ((a == c) | (b == 0)), axis=1)
