"""Filters: which of the scored groups are trained on, and which single rows.

Those of rows read their advantages, computed on the whole groups that were sampled. They have
``Source.grouped`` False. What they return may have any number of rows of a prompt, and a row more than
once; rows of a step before have ``on_policy`` 0 and the advantage they had then.
"""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.source import groups

Array = types.Array


def strength_of(rollout: types.Rollout, name: str) -> Array:
    """Return the largest |A| of the tokens of each row that counts, ``[B]``."""
    advantage = ops.given(rollout.advantage, f"source.{name}: the algorithm computes no advantage")
    return jnp.max(jnp.abs(advantage) * ops.trained_tokens(rollout), axis=1)


def take(rollout: types.Rollout, rows: Array, used: Array | None = None) -> types.Rollout:
    """Return the rows with these numbers, each an episode; rows not ``used`` are invalid."""
    taken = groups.take(rollout, rows)
    if used is not None:
        taken = taken.replace(valid=jnp.where(used, ops.valid_rows(taken), 0.0))
    return taken.replace(episode=jnp.arange(rows.size, dtype=jnp.int32))


@define.source
def pairs(keep: types.Fraction = 0.5, draws: types.Count = 8, oversample: types.Count = 1) -> types.Source:
    """Pair a group's best row with its worst, and so on inwards, and draw the batch from the pairs by |A1| + |A2|.

    The outer ``keep`` of a group's pairs are candidates. Each of ``draws`` parts of the batch is drawn without
    replacement from all candidates, with probability proportional to |A1| + |A2|. Source: pairwise trajectory sampling
    and advantage-based batch shuffle of Shuffle-R1 (arXiv 2508.05612; 16 samples, of which 8 are kept).

    Args:
      keep: share of the pairs of a group that are candidates.
      draws: parts of the batch; with 1 and keep = 1 / oversample, every candidate is trained on once.
      oversample: prompts drawn for each prompt trained on.

    Raises:
      ValueError: the batch cannot be divided into ``draws`` parts of whole pairs.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        if count % (2 * draws):
            raise ValueError(f"source.pairs(draws={draws}): must divide the {count // 2} pairs of a batch")
        strength, size = strength_of(rollout, "pairs"), rollout.reward.size
        signed = jnp.sum(ops.given(rollout.advantage, "") * ops.trained_tokens(rollout), axis=1)
        signed = jnp.sign(signed) * strength
        number = groups.place(rollout)
        rank, samples = groups.rank(number, -signed)
        order = jnp.lexsort((rank, number))
        at = jnp.zeros_like(order).at[order].set(jnp.arange(size))  # the place of each row in ``order``
        partner = order[jnp.clip(at + samples - 1 - 2 * rank, 0, size - 1)]
        candidate = rank < jnp.ceil(keep * (samples // 2))
        score = jnp.where(candidate, jnp.log(strength + strength[partner] + 1e-12), -jnp.inf)
        score = score[None, :] + jax.random.gumbel(key, (draws, size))
        best = jax.lax.top_k(score, count // 2 // draws)[1].reshape(-1)
        rows = jnp.stack([best, partner[best]], axis=1).reshape(-1)
        return take(rollout, rows, jnp.repeat(candidate[best], 2)), pool

    return types.Source(grouped=False, oversample=oversample, select=select)


@define.source
def dynamic(oversample: types.Count = 2) -> types.Source:
    """Sample ``oversample`` times the prompts and prefer groups whose rewards differ.

    Groups without spread give a group baseline no gradient; they are used only to fill the batch, and are then marked
    invalid. Source: dynamic sampling of DAPO (arXiv 2503.14476, section 3.2), here with a fixed
    number of extra prompts, so that shapes are static.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        valid = ops.valid_rows(rollout)
        informative = ~trajectories.flat(rollout)
        rows = jnp.argsort(~informative, stable=True)[:count]  # rows of a group are adjacent and stay so
        kept = groups.take(rollout.replace(valid=jnp.where(informative, valid, 0.0)), rows)
        return kept, pool

    return types.Source(oversample=oversample, select=select)
