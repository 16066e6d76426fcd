"""Memories: rows of earlier steps. The frame is ``store.py``."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.methods.source import store
from rljax.transforms import define, ops, trajectories
from rljax.transforms.source import groups

Array = types.Array


@define.source
def replay(share: types.Fraction = 0.25, steps: types.Count = 1) -> types.Source:
    """Replace the last ``share`` of the groups by groups of the last ``steps`` batches, which are that old at most.

    The pool holds those batches as they were sampled; the first step has none and trains on fresh rows alone. A group
    is replaced by the group of the same place in one of the batches, all equally likely, if that group has the same
    rows of the batch, as all have whose samples are equally many. ``behaviour_logp`` and ``version`` stay as the policy
    that wrote the rows left them, whose ``on_policy`` is 0. Source: ReMix (arXiv 2507.06892): 0.4, 2.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        rows = jax.tree.map(lambda x: jnp.zeros((steps * x.shape[0], *x.shape[1:]), x.dtype), rollout)
        return {"rows": rows, "filled": jnp.zeros((), jnp.int32)}  # batches stored so far

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        def spans(group: Array) -> Array:
            rows = rollout.replace(group=group)
            return jnp.stack([groups.sample(rows), groups.size(rows)], axis=1)

        place, size = groups.place(rollout), rollout.reward.size
        if pool["rows"].reward.size != steps * size:
            raise ValueError("source.replay stores whole batches: write it before the pieces that choose among rows")
        filled = pool["filled"].astype(jnp.int32)
        replayed = (filled > 0) & (place >= jnp.round((1.0 - share) * (place[-1] + 1)))
        behind = jax.random.randint(key, (size,), 0, jnp.clip(filled, 1, steps))[place]
        batch = (filled - 1 - behind) % steps
        rows = groups.take(pool["rows"], batch * size + jnp.arange(size, dtype=jnp.int32))
        stored = jax.vmap(spans)(pool["rows"].group.reshape(steps, size))[batch, jnp.arange(size)]
        replayed &= jnp.all(stored == spans(rollout.group), axis=1)
        mixed = groups.put(replayed, rows, rollout)
        mixed = mixed.replace(on_policy=jnp.where(replayed, 0.0, trajectories.on_policy(rollout)), group=place)
        apart = groups.episodes(mixed)
        if apart is not None and mixed.episode is not None:
            shared = jnp.max(apart) > jnp.max(ops.dense(mixed.episode))  # a number stands in groups of two steps
            mixed = mixed.replace(episode=jnp.where(shared, apart, mixed.episode))
        start = (filled % steps) * size
        kept = jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, start, 0), pool["rows"], rollout)
        return mixed, {"rows": kept, "filled": filled + 1}

    return types.Source(init=init, select=select, off_policy=True, stores=True)


@define.source
def hindsight(share: types.Fraction = 0.8) -> types.Source:
    """Put other goals into a ``share`` of the rows of a world with goals: states that they reached later.

    The goal of such a row is where one of its states is, after any of its steps or turns, all equally likely; the world
    says what would have been read and paid (``Rules.relabel`` of control, ``Rules.aimed`` of texts). The row ends where
    it arrives; a trajectory that does not is cut, with ``finish`` LENGTH. ``on_policy`` is then 0, and log-probs at
    sampling stay those with the true goal: of a text, those under the prompt it was sampled under. After ``replay``,
    whose memory keeps the true goals: ``unrolled(50) | replay(1.0, 100) | hindsight()``. Hindsight experience replay
    (arXiv 1707.01495), strategy "future", where each step has a goal of its own, of the rest of the episode; here the
    steps of a row share one.
    """

    def relabel(rollout: types.Rollout, task: Any, key: types.Key) -> types.Rollout:
        drawn, context = jax.random.uniform(key, (2, rollout.reward.size)), rollout.context
        if context is not None:  # the others are trained under their own prompt
            token, mask = context.training
            rollout = rollout.replace(context=context.replace(train_token=token, train_mask=mask))
        new, possible = task.relabelled(rollout, drawn[1])
        return groups.put((drawn[0] < share) & possible, groups.stale(new), rollout)

    return types.Source(relabel=relabel, off_policy=True)


def _successes(
    capacity: int, age: int | None, wanted: Callable[[types.Rollout, int], Array], most: int = 1, added: int = 1
) -> types.Source:
    """Return a source that stores correct episodes and puts ``added`` of a prompt's into groups that are ``wanted``."""

    def init(rollout: types.Rollout, problems: types.Problems) -> store.Store:
        return store.empty(rollout, capacity, problems.rows)

    def select(rollout: types.Rollout, pool: store.Store, count: int, key: types.Key):
        pool = store.tick(pool, age)
        rank = jax.random.uniform(key, pool.index.shape)
        mixed, _ = store.insert(pool, rollout, wanted(rollout, pool.each), added, rank)
        solved = store.solved(rollout, pool.each)
        return mixed, store.put(pool, rollout, solved, jnp.zeros(solved.shape), most)

    return types.Source(init=init, select=select, off_policy=True, by_prompt=True)


def _failed(rollout: types.Rollout, each: int) -> Array:
    """Return which episodes are of groups that count and have no success, ``[N]`` bool."""
    rate, count = store.rate(rollout, each)
    return (rate == 0) & (count > 0)


@define.source
def arpo(capacity: types.Count = 1024, age: types.Count | None = None) -> types.Source:
    """Put one stored success of the same prompt into a group that failed whole, in place of its last sample.

    The newest success of each of ``capacity`` prompts is stored, for at most ``age`` steps (None: no limit). Other
    groups stay as they are. The advantages of the group, all 0 before, are then above 0 in the stored row and below in
    the others. Source: ARPO, agentic replay (arXiv 2505.16282). A group of which no sample counts has not failed.
    """
    return dataclasses.replace(_successes(capacity, age, _failed), flat=True)


@define.source
def rlep(
    added: types.Count = 2, kept: types.Count = 8, capacity: types.Count = 4096, age: types.Count | None = None
) -> types.Source:
    """Put ``added`` stored successes of the same prompt into every group that counts, in place of its last samples.

    Of each prompt the newest ``kept`` successes are stored, and those added are drawn uniformly. Source: RLEP (arXiv
    2507.07451), which adds 2 to 16 samples; there an earlier run collects the successes, here the run itself does.
    """
    return _successes(capacity, age, lambda rollout, each: store.rate(rollout, each)[1] > 0, kept, added)


@define.source
def guided_if(below: types.Number = 0.5, capacity: types.Count = 1024, age: types.Count | None = None) -> types.Source:
    """Put one stored success of the same prompt into the groups whose mean reward is below ``below``.

    It takes the place of the last sample, and the group's statistics count it. Source: EasyVideoR1 (2025), whose good
    rows come from a file. ``arpo`` where only groups without any success are below.
    """

    def low(rollout: types.Rollout, each: int) -> Array:
        tally, group = groups.tally(rollout), groups.place(rollout)[::each]
        return (tally.reward < below)[group] & (tally.count > 0)[group]

    return _successes(capacity, age, low)
