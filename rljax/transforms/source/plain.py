"""Sources without a pool: samples, demonstrations, and both in one group."""

from rljax import types
from rljax.transforms import define


@define.source
def task():
    """Sample the current policy on the task's prompts."""
    return types.Source()


@define.source
def demonstrations():
    """Use the task's demonstrations instead of samples of the policy."""
    return types.Source(origin="demonstrations")


@define.source
def guided(demonstrations: types.Count = 1):
    """Put the task's demonstrations into the group, in place of the last samples of each prompt.

    Those rows have ``on_policy`` 0 and behaviour probability 1, and are verified like the others. LUFFY (arXiv
    2504.14945) and RL-PLUS (arXiv 2508.00222) use 1 of 8.
    """
    return types.Source(demonstrated=demonstrations, off_policy=True)
