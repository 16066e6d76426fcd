"""Recipes that differ from ``grpo(kl=0.0)`` by the advantage alone."""

from rljax import algorithms, types
from rljax.transforms import advantage, ratio, reduce, surrogate


@algorithms.recipe
def pass_at_k(k: types.Count = 4):
    """Pay a group for the best of k rows; unlike the library's ``pass_at_k``, with the mean over rows of GRPO."""
    return algorithms.compose(
        advantage=[advantage.pass_at_k(k)],
        loss=[ratio.token(), surrogate.clip()],
        reduce=reduce.mean_over_rows(),
    )
