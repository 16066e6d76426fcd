"""Sources without a pool: samples, demonstrations, and both in one group."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.source import groups


@define.source
def task() -> types.Source:
    """Sample the current policy on the task's prompts."""
    return types.Source()


@define.source
def demonstrations() -> types.Source:
    """Use the task's demonstrations instead of samples of the policy."""
    return types.Source(origin="demonstrations")


@define.source
def guided(demonstrations: types.Count = 1) -> types.Source:
    """Put the task's demonstrations into the group, in place of the last samples of each prompt.

    Those rows have ``on_policy`` 0 and behaviour probability 1, and are verified like the others. LUFFY (arXiv
    2504.14945) and RL-PLUS (arXiv 2508.00222) use 1 of 8.
    """
    return types.Source(demonstrated=demonstrations, off_policy=True)


@define.source
def guided_below(below: types.Number = 0.5, demonstrations: types.Count = 1) -> types.Source:
    """Put the task's demonstrations into the groups whose samples have a mean reward below ``below``.

    They take the place of the last samples of each prompt, which are not sampled in any group; in the other groups
    these rows are invalid. Source: EasyVideoR1 (2025), which adds a good row of a file to a weak group. Differs from
    ``guided`` by the groups, and from ``guided_if`` by rows that the policy need not have found itself.

    Args:
      below: mean reward of a group's samples.
      demonstrations: of each prompt's samples, how many are demonstrations.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        tally, place = groups.tally(rollout), groups.place(rollout)
        weak = ((tally.reward < below) & (tally.count > 0))[place]
        last = groups.sample(rollout) >= groups.size(rollout) - demonstrations  # not what a memory has put before them
        used = groups.by_policy(rollout) | ~last | weak
        return rollout.replace(valid=jnp.where(used, ops.valid_rows(rollout), 0.0)), pool

    return types.Source(demonstrated=demonstrations, off_policy=True, select=select)
