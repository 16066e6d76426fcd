"""Filters of single rows, which read their advantages."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.source import groups, single

_LATER = ("advantage", "ref_logp", "proximal_logp", "value", "returns")  # written after the rows were sampled


def _store(rollout: types.Rollout, size: int) -> types.Tree:
    """Return an empty memory for ``size`` rows like the rows of a batch, with their advantages."""
    rows = rollout.replace(parts={}, scores={}, **dict.fromkeys(_LATER))

    def empty(x: types.Array) -> types.Array:
        return jnp.zeros((size, *x.shape[1:]), x.dtype)

    return {"rows": jax.tree.map(empty, rows), "advantage": empty(rollout.mask), "filled": jnp.zeros((size,), bool)}


def _joined(rollout: types.Rollout, pool: types.Tree, name: str) -> types.Rollout:
    """Return the rows of a batch and then of the memory; log-probs of other policies are written afterwards."""
    for field, present in (("token rewards", rollout.token_reward), ("a critic's returns", rollout.returns)):
        if present is not None:
            raise ValueError(f"source.{name}: stored rows keep no {field}; expected a recipe and a task without them")
    stored = groups.stale(pool["rows"]).replace(advantage=pool["advantage"])
    fresh = rollout.replace(parts={}, scores={}, **dict.fromkeys(_LATER[1:]))
    extra = {k: x for k, x in fresh.extra.items() if k in stored.extra}
    return jax.tree.map(lambda new, old: jnp.concatenate([new, old]), fresh.replace(extra=extra), stored)


def _kept(rows: types.Rollout, filled: types.Array, order: types.Array) -> types.Tree:
    """Return the memory that holds the rows of ``order``."""
    stored = groups.take(rows, order)
    return {"rows": stored.replace(advantage=None), "advantage": stored.advantage, "filled": filled[order]}


@define.source
def selective_replay(batches: types.Count = 1) -> types.Source:
    """Drop rows with A = 0, and draw rows again in their place, with probability proportional to |A| + 1e-4.

    |A| is the largest of a row's tokens. Selective sample replay of VL-Rethinker (arXiv 2504.08837): the paper draws
    from a memory of earlier steps, its release within the batch (``batches=1``). The release also adds back groups that
    are all correct, up to a tenth of the rows; this does not. Differs from ``dynamic`` by rows instead of groups.

    Args:
      batches: the batches drawn from: this one and the batches of the last ``batches`` - 1 steps.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        return () if batches == 1 else _store(rollout, rollout.reward.size * (batches - 1))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        rows = rollout if batches == 1 else _joined(rollout, pool, "selective_replay")
        filled = jnp.ones(rollout.reward.shape, bool)
        filled = filled if batches == 1 else jnp.concatenate([filled, pool["filled"]])
        strength = single.strength_of(rows, "selective_replay")
        strength = jnp.where(filled, strength, 0.0)
        fresh = jnp.argsort(~(strength[: rollout.reward.size] > 0), stable=True)[:count]
        chance = jnp.where(strength > 0, jnp.log(strength + 1e-4), -jnp.inf)
        some = jnp.any(strength > 0)
        again = jax.random.categorical(key, jnp.where(some, chance, 0.0), shape=(count,))
        chosen = jnp.where((strength[fresh] > 0) | ~some, fresh, again)
        if batches > 1:
            pool = _kept(rows, filled, jnp.arange(pool["filled"].size))
        return single.take(rows, chosen), pool

    return types.Source(grouped=False, off_policy=batches > 1, init=init, select=select)


@define.source
def recompose(
    oversample: types.Count = 2, compensation: types.Fraction = 0.5, decay: types.Fraction = 0.99
) -> types.Source:
    """Train on the shortest right and the longest wrong rows, and on the others at a rate that falls.

    The right rows of a group are ranked from the shortest, the wrong ones from the longest; the rows with the lowest
    rank, as a share of the rows of their kind, fill the batch. The others wait in a buffer of one rollout. In step t,
    with probability ``compensation`` * ``decay``^t, the batch is a compensation batch, drawn without replacement from
    the buffer, and all rows of the step go into the buffer. Source: rollout response recomposition of RoRecomp (arXiv
    2509.25958). The shares and the schedule of the paper were not found: these are choices.

    Args:
      oversample: prompts drawn for each prompt trained on; 1 / ``oversample`` of the rows has priority.
      compensation: probability of a compensation batch in the first step.
      decay: factor of that probability at each step.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        return {**_store(rollout, rollout.reward.size), "step": jnp.zeros((), jnp.int32)}

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        rows, size = _joined(rollout, pool, "recompose"), rollout.reward.size
        right = trajectories.uncharged(rollout) > 0
        length, valid = jnp.sum(rollout.mask, axis=1), ops.valid_rows(rollout) > 0
        kind = jnp.where(valid, 1 * right, 2)
        rank, many = groups.rank(groups.place(rollout) * 3 + kind, jnp.where(right, length, -length))
        priority = jnp.argsort(jnp.where(valid, (rank + 0.5) / many, jnp.inf), stable=True)
        which, place = jax.random.split(key)
        stored = pool["filled"]
        buffer = size + jnp.argsort(jnp.where(stored, jax.random.uniform(place, stored.shape), 2.0))
        compensate = jax.random.uniform(which) < compensation * decay ** pool["step"]
        compensate &= jnp.sum(stored) >= count
        # what is left after the batch: the rest of the step, then the rest of the buffer
        first = jnp.concatenate([priority[:count], priority[count:], buffer])
        second = jnp.concatenate([buffer[:count], priority, buffer[count:]])
        order = jnp.where(compensate, second, first)
        filled = jnp.concatenate([valid, stored])
        new = _kept(rows, filled, order[count:][:size])
        return single.take(rows, order[:count]), {**new, "step": pool["step"] + 1}

    return types.Source(grouped=False, off_policy=True, oversample=oversample, init=init, select=select)


@define.source
def one_of_each(oversample: types.Count = 2) -> types.Source:
    """Train on one right and one wrong row of each prompt that has both, drawn at random.

    Other rows fill the batch and are invalid; with ``oversample`` = samples / 2 there is a place for the pair of every
    prompt. Source: OREAL (arXiv 2502.06781), which trains on one right and one wrong row of a prompt; the weights of
    both follow from the group's success rate, as the recipe computes it.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        valid, number = ops.valid_rows(rollout) > 0, groups.place(rollout)
        right = trajectories.uncharged(rollout) > 0
        both = (ops.segment_max(1 * (valid & right), number) > 0) & (ops.segment_max(1 * (valid & ~right), number) > 0)
        rank, _ = groups.rank(number * 2 + 1 * right, ~valid, jax.random.uniform(key, right.shape))
        used = both & (rank == 0)
        rows = jnp.argsort(~used, stable=True)[:count]
        return single.take(rollout, rows, used[rows]), pool

    return types.Source(grouped=False, oversample=oversample, select=select)
