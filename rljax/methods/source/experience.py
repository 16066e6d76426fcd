"""Memories that decide which prompts are drawn, or what a group is trained on."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.methods.source import store
from rljax.transforms import define, ops
from rljax.transforms.source import groups

Array = types.Array


def _only(rollout: types.Rollout, counts: Array) -> types.Rollout:
    """Return the rows; a row that does not count is invalid."""
    return rollout.replace(valid=jnp.where(counts, ops.valid_rows(rollout), 0.0))


@define.source
def exgrpo(
    share: types.Fraction = 0.5,
    capacity: types.Count = 1024,
    center: types.Fraction = 0.5,
    width: types.Positive = 1.0,
    start: types.Fraction = 0.35,
) -> types.Source:
    """Draw ``share`` of the prompts from a memory of prompts of medium difficulty, with a stored success in each group.

    The memory holds the success of lowest mean entropy of each prompt that is solved in part, with the prompt's latest
    success rate p; a prompt that is solved whole is removed. Rates are drawn by the normal density N(p; ``center``,
    ``width``), prompts of equal rate uniformly. The stored success takes the place of the group's last sample. The
    memory is used from the first batch whose mean rate is above ``start``. Source: ExGRPO (arXiv 2510.02245), which
    measures entropy under the current policy; here it is measured at sampling.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        memory = store.empty(rollout, capacity, problems.rows)
        return {"memory": memory, "rate": jnp.zeros((capacity,)), "open": jnp.zeros((), bool)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        rate = jnp.where(pool["memory"].filled, pool["rate"], jnp.inf)
        ordered = jnp.sort(rate)
        equal = jnp.searchsorted(ordered, rate, side="right") - jnp.searchsorted(ordered, rate, side="left")
        density = jnp.exp(-0.5 * ((jnp.where(jnp.isfinite(rate), rate, 0.0) - center) / width) ** 2)
        count = min(round(share * offered.size), capacity)
        if count == 0:
            return types.Choice(offered)
        place, there = store.draw(pool["memory"], count, key, density / equal)
        last = offered[offered.size - count :]
        drawn = jnp.where(there & pool["open"], pool["memory"].index[place], last)
        return types.Choice(jnp.concatenate([offered[: offered.size - count], drawn]))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        memory = store.tick(pool["memory"])
        each, number = memory.each, groups.place(rollout)
        places = number[-1] + 1
        drawn = number >= places - jnp.minimum(jnp.round(share * places).astype(jnp.int32), capacity)
        mixed, _ = store.insert(memory, rollout, (drawn & pool["open"])[::each])
        rate, counted = store.rate(rollout, each)
        entropy = ops.given(rollout.entropy, "source.exgrpo: the rows have no entropy")
        entropy = ops.row_mean(entropy, rollout.mask)[:, 0].reshape((-1, each)).mean(axis=1)
        some = store.solved(rollout, each) & (rate < 1)
        memory = store.put(memory, rollout, some, -entropy)
        index = ops.given(rollout.index, "source.exgrpo: the rows have no index")[::each]
        place, there = store.lookup(memory, index)
        latest = pool["rate"].at[jnp.where(there & (counted > 0), place, capacity)].set(rate, mode="drop")
        memory = store.remove(memory, place, there & (rate == 1) & (counted > 0))
        once = counted > 0
        opened = jnp.sum(jnp.where(once, rate, 0.0)) > start * jnp.maximum(jnp.sum(once), 1)
        return mixed, {"memory": memory, "rate": latest, "open": pool["open"] | opened}

    return types.Source(init=init, choose=choose, select=select, off_policy=True)


@define.source
def base_samples(steps: types.Count = 8, solved: types.Fraction = 1.0, capacity: types.Count = 4096) -> types.Source:
    """Keep a solution of each prompt that the policy of the start solves; train on it alone where the prompt is drawn.

    For ``steps`` steps nothing is trained on, so the rows come from the first policy; a prompt whose success rate is
    at least ``solved`` leaves one correct row, of which ``raw_logp`` is the log-prob under that policy. Afterwards a
    group of such a prompt is that row, off-policy, and its other rows are invalid; the other prompts are as usual.
    Source: the split of DPH-RL (arXiv 2509.07430), 8 samples of each prompt. The optimizer still runs in those steps,
    without a gradient: set no weight decay.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> store.Store:
        return store.empty(rollout, capacity, problems.rows)

    def select(rollout: types.Rollout, pool: store.Store, count: int, key: types.Key):
        pool = store.tick(pool)
        collecting, number = pool.clock <= steps, groups.place(rollout)
        correct = store.solved(rollout, pool.each)
        rate, counted = store.rate(rollout, pool.each)
        wanted = jnp.broadcast_to(~collecting, correct.shape)
        mixed, mine = store.insert(pool, rollout, wanted)
        kept = jax.ops.segment_max(mine.astype(jnp.int32), number, number.size)[number] > 0
        mixed = _only(mixed, ~collecting & (mine | ~kept))
        stored = collecting & correct & (rate >= solved) & (counted > 0)
        return mixed, store.put(pool, rollout, stored, jnp.zeros(stored.shape))

    return types.Source(init=init, select=select, off_policy=True, by_prompt=True, flat=True)


@define.source
def unsolved() -> types.Source:
    """Store the demonstrations of prompts that no sample solves; train on as many as a step has prompts at once.

    The last sample of each prompt is its demonstration, which is invalid except on the steps that begin with as many
    stored ones as a batch has groups: those train on the oldest of them alone, one valid row in each group, and remove
    them. Source: ReLIFT (arXiv 2506.07527), whose buffer of 128 is a batch of 128 prompts. The samples of such a step
    are not trained on, whereas ReLIFT adds the likelihood step to it.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> store.Store:
        return store.empty(rollout, rollout.reward.size, problems.rows)  # at least a batch's groups

    def select(rollout: types.Rollout, pool: store.Store, count: int, key: types.Key):
        pool, number = store.tick(pool), groups.place(rollout)
        shown = ~groups.by_policy(rollout)
        rate, counted = store.rate(rollout)
        due = jnp.sum(pool.filled) > number[-1]
        oldest = jnp.argsort(jnp.where(pool.filled, pool.number, jnp.iinfo(jnp.int32).max))
        batch = _only(store.fetch(pool, oldest[number], rollout), shown)
        mixed = groups.put(jnp.broadcast_to(due, shown.shape), batch, _only(rollout, ~shown))
        place = jnp.arange(oldest.size)
        pool = store.remove(pool, oldest, due & (place <= number[-1]))
        failed = shown & (rate == 0) & (counted > 0) & (ops.valid_rows(rollout) > 0)
        return mixed, store.put(pool, rollout, failed, jnp.zeros(failed.shape))

    return types.Source(demonstrated=1, init=init, select=select, off_policy=True, flat=True)
