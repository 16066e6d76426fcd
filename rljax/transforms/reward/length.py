"""Rewards of length: the number of trained tokens of a row."""

from typing import Literal

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.frame import idle

Beyond = Literal["hold", "grow", "zero"]


@define.reward
@idle.until(lambda a: (f"{a['limit'] - a['cache']} tokens",), limit=None, cache=None)
def overlong(
    r, limit: types.Count, cache: types.Count, factor: types.NonNegative = 1.0, beyond: Beyond = "hold"
) -> types.Rollout:
    """Penalize length softly: add min(-(len - (limit - cache)) / cache * factor, 0). DAPO (arXiv 2503.14476, eq. 13).

    ``limit`` and ``cache`` in tokens. Beyond the limit "hold" stays at -factor, "grow" continues (verl, AReaL,
    NeMo-RL), "zero" sets the row's reward to 0 (SkyRL).

    Args:
      limit: tokens of the longest row.
      cache: tokens over which the penalty grows.
      factor: penalty at the limit.
      beyond: what happens beyond the limit.
    """
    excess = (ops.length(r) - (limit - cache)) / cache
    added = -factor * jnp.clip(excess, 0.0, None if beyond == "grow" else 1.0)
    if beyond == "zero":
        added = jnp.where(ops.length(r) > limit, -trajectories.uncharged(r), added)
    return r.replace(reward=r.reward + added, parts={**r.parts, "overlong": added})
