"""Filters: which of the scored groups are trained on. ``single.py`` chooses single rows."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.source import groups


@define.source
def dynamic(oversample: types.Count = 2) -> types.Source:
    """Sample ``oversample`` times the prompts and prefer groups whose rewards differ.

    Groups without spread give a group baseline no gradient; they are used only to fill the batch, and are then marked
    invalid. Source: dynamic sampling of DAPO (arXiv 2503.14476, section 3.2), here with a fixed
    number of extra prompts, so that shapes are static.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        valid = ops.valid_rows(rollout)
        informative = groups.spread_of(rollout) > 1e-6  # equal rewards may differ from their mean in the last bit
        rows = jnp.argsort(~informative, stable=True)[:count]  # rows of a group are adjacent and stay so
        kept = groups.take(rollout.replace(valid=jnp.where(informative, valid, 0.0)), rows)
        return kept, pool

    return types.Source(oversample=oversample, select=select)
