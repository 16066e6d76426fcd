"""Rewards of a learned reward model, ``Scores.reward`` of a module that this phase does not train."""

from typing import Literal

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories


def _needs(a) -> types.Needs:
    names = a["module"]
    if not names or len({*names}) != len(names):
        raise ValueError(f"learned: module={names} must be at least one name, each once")
    return modules.needs(*names, field="reward")


@define.reward(needs=_needs)
def learned(
    r,
    module: tuple[str, ...] = ("reward",),
    scale: types.Number = 1.0,
    bias: types.Number = 0.0,
    low: types.Bound = float("-inf"),
    high: types.Bound = float("inf"),
    combine: Literal["mean", "worst", "uncertainty"] = "mean",
    coefficient: types.NonNegative = 1.0,
    verified: types.Number = 0.0,
):
    """Pay the score of a reward model in place of the verifier's reward: verified r + scale (R + bias).

    R of several modules is their mean, their minimum ("worst"), or their mean minus coefficient times their variance
    ("uncertainty"), as in the conservative ensembles of Coste et al. (arXiv 2310.02743). A row of which a score is not
    finite, or outside of [low, high], is invalid: it counts nowhere.

    Args:
      module: names of ``config.module``.
      scale: factor of R.
      bias: added to R before the factor.
      low: the least score that the models may give.
      high: the largest.
      combine: how several scores become one.
      coefficient: of the variance.
      verified: factor of the verifier's reward.
    """
    scores = jnp.stack([modules.score(r, name, "reward") for name in module])
    inside = jnp.all(jnp.isfinite(scores) & (scores >= low) & (scores <= high), axis=0)
    scores = jnp.where(inside, scores, 0.0)
    reward = jnp.min(scores, axis=0) if combine == "worst" else jnp.mean(scores, axis=0)
    if combine == "uncertainty":
        reward = reward - coefficient * jnp.var(scores, axis=0)
    paid = verified * trajectories.uncharged(r) + scale * (reward + bias)
    r = trajectories.replaced(r, jnp.where(inside, paid, 0.0))
    return r.replace(valid=jnp.where(inside, ops.valid_rows(r), 0.0))
