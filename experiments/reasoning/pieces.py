"""The source of the topic ``one_example``: few problems."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import groups


@define.source
def few(count: types.Count = 1) -> types.Source:
    """Give the places of every step to ``count`` problems: of the first step, the ones whose rewards deviate most.

    The first step chooses them and trains on no row.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        return jnp.full((count,), -1, jnp.int32)

    def choose(held: types.Tree, problems: types.Problems, offered: types.Array, key: types.Key) -> types.Choice:
        return types.Choice(jnp.where(held[0] < 0, offered, jnp.resize(held, offered.shape)))

    def select(rollout: types.Rollout, held: types.Tree, limit: int, key: types.Key):
        tally, chosen = groups.tally(rollout), held[0] >= 0
        most = tally.index[jax.lax.top_k(tally.spread, count)[1]]
        return rollout.replace(valid=rollout.valid * chosen), jnp.where(chosen, held, most)

    return types.Source(init=init, choose=choose, select=select)
