"""Budgets: how many samples each prompt of a step gets, B rows in all."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import groups, single

Array = types.Array


def allot(value: Array, least: int, total: int) -> Array:
    """Return how many samples each prompt gets, ``[P]`` int32: the numbers with the largest sum of values.

    Args:
      value: ``[P, n]``, the value of each further sample beyond ``least``, at most the value of the one before.
      least: samples of every prompt.
      total: their sum.

    Returns:
      The numbers, each at least ``least``.

    Raises:
      ValueError: ``total`` is below ``least`` or above ``least`` + n samples for every prompt.
    """
    prompts, more = value.shape
    rest = total - least * prompts
    if not 0 <= rest <= more * prompts:
        raise ValueError(
            f"config.batch.samples: {total} rows for {prompts} prompts: expected from least = {least} to most = "
            f"{least + more} of each"
        )
    chosen = jax.lax.top_k(value.reshape(-1), rest)[1] // more
    return least + jnp.zeros((prompts,), jnp.int32).at[chosen].add(1)


def _offered(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> tuple[Array, Array]:
    """Return the prompts of a step, ``[P]``, and their places among the candidates, drawn if those are not all."""
    size = pool["candidates"].size
    drawn = size < problems.size
    place = jax.random.permutation(key, size)[jnp.arange(offered.size) % size] if drawn else offered
    return pool["candidates"][place], place


def _check(least: int, most: int) -> None:
    if most <= least:
        raise ValueError(f"most={most}: must be above least={least}")


@define.source
def knapsack(
    least: types.Count = 2, most: types.Count = 128, prior: types.Fraction = 0.5, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Divide the B samples of a step among its prompts by the value of exploration.

    N samples of a prompt with success rate p have the value (1 - p^N - (1 - p)^N) p (1 - p)^2: the probability of both
    a right and a wrong sample, times the gain of a gradient. It is concave in N and one more sample adds
    p (1 - p)^2 (p^N (1 - p) + (1 - p)^N p), so that the B - least * P largest gains are the best division. p is the
    share of rewards above 0 at the last visit. Prompts with p of 0 or 1 gain nothing; what is left over is divided
    evenly among prompts with p = 0, then p = 1. Source: Knapsack RL (arXiv 2509.25849). Its dynamic program treats "no
    further samples" otherwise, and what it gives to prompts not yet visited was not found: here ``prior``.

    Args:
      least: samples of every prompt, at least 2 for a baseline of the group.
      most: the largest number of samples of a prompt.
      prior: success rate of a prompt that has not been visited.
      candidates: the number of prompts of which rates are kept; 0: all.

    Raises:
      ValueError: ``most`` is not above ``least``, or B is below ``least`` or above ``most`` samples of each prompt.
    """
    _check(least, most)

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        index = candidates_lib.index(problems, candidates)
        rate = jnp.full(index.shape, prior, jnp.float32)
        return {"candidates": index, "rate": rate, "rows": jnp.zeros(rollout.reward.shape, bool)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        index, place = _offered(pool, problems, offered, key)
        p, number = pool["rate"][place][:, None], jnp.arange(least, most, dtype=jnp.float32)[None, :]
        gain = p * (1.0 - p) ** 2 * (p**number * (1.0 - p) + (1.0 - p) ** number * p)
        surplus = jnp.where(p < 1, -number, -1e6 - number)  # below any gain
        return types.Choice(index, allot(jnp.where((p > 0) & (p < 1), gain, surplus), least, pool["rows"].size))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        seen = groups.tally(rollout)
        place, there = candidates_lib.slot(pool["candidates"], seen.index)
        place = jnp.where(there & (seen.count > 0), place, pool["candidates"].size)
        rate = pool["rate"].at[place].set(seen.wins / jnp.maximum(seen.count, 1.0), mode="drop")
        return rollout, {**pool, "rate": rate}

    return types.Source(uneven=True, init=init, choose=choose, select=select)


@define.source
def inverse_success(
    least: types.Count = 2,
    most: types.Count = 128,
    positives: types.Positive = 1.0,
    total: types.Positive = 17.0,
    decay: types.Fraction = 0.9,
    candidates: candidates_lib.Number = 0,
) -> types.Source:
    """Divide the B samples of a step among its prompts in proportion to 1 / p, p their estimated success rate.

    p = (positives + wins) / (total + rows), of the rows of the prompt so far, whose counts are multiplied by ``decay``
    at each visit. The numbers are whole, by the divisors of Sainte-Lague. Source: the later branch of the release of
    Reinforce-Ada (arXiv 2510.04996).

    Args:
      least: samples of every prompt, at least 2 for a baseline of the group.
      most: the largest number of samples of a prompt.
      positives: right rows that are assumed before the first visit.
      total: rows that are assumed before the first visit.
      decay: factor of the counts at each visit.
      candidates: the number of prompts of which counts are kept; 0: all.

    Raises:
      ValueError: ``most`` is not above ``least``, or B is below ``least`` or above ``most`` samples of each prompt.
    """
    _check(least, most)

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        index = candidates_lib.index(problems, candidates)
        none = jnp.zeros(index.shape, jnp.float32)
        return {"candidates": index, "wins": none, "count": none, "rows": jnp.zeros(rollout.reward.shape, bool)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        index, place = _offered(pool, problems, offered, key)
        weight = (total + pool["count"][place]) / (positives + pool["wins"][place])
        number = jnp.arange(least, most, dtype=jnp.float32)
        return types.Choice(index, allot(weight[:, None] / (number + 0.5)[None, :], least, pool["rows"].size))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        seen, known = groups.tally(rollout), pool["candidates"]
        place, there = candidates_lib.slot(known, seen.index)
        visited = jnp.where(there & (seen.count > 0), place, known.size)
        factor = jnp.ones_like(pool["count"]).at[visited].set(decay, mode="drop")
        new = {
            name: pool[name] * factor + candidates_lib.add(jnp.zeros_like(factor), known, seen.index, amount)
            for name, amount in (("wins", seen.wins), ("count", seen.count))
        }
        return rollout, {**pool, **new}

    return types.Source(uneven=True, init=init, choose=choose, select=select)


@define.source
def adaptive(oversample: types.Count = 4, decay: types.Fraction = 0.9) -> types.Source:
    """Draw as many prompts as are expected to leave a batch of groups whose rewards differ, and no more.

    With s the moving average of the share of sampled groups whose rewards differ, the step samples
    min(oversample * P, ceil(P / s)) prompts; the other places are not sampled. The batch is filled as by ``dynamic``,
    which always samples ``oversample`` * P. Source: adaptive DAPO of CodeV-R1 (arXiv 2505.24183), whose release
    takes the smallest share so far instead of an average, and draws in turns until the batch is full. Places without
    samples take memory, and no decode steps where ``sampler.compact`` is set; their prompts are left out of the epoch.

    Args:
      oversample: the most prompts drawn for each prompt trained on.
      decay: of the moving average, which begins at 1.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        return {"share": jnp.ones(()), "rows": jnp.zeros(rollout.reward.shape, bool)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        batch, each = offered.size // oversample, pool["rows"].size // offered.size
        wanted = jnp.ceil(batch / jnp.maximum(pool["share"], 1.0 / oversample) - 1e-4)
        return types.Choice(offered, jnp.where(jnp.arange(offered.size) < wanted, each, 0).astype(jnp.int32))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        seen = groups.tally(rollout)
        count_of = jnp.sum((seen.count > 0) * 1.0)
        share = jnp.where(count_of > 0, jnp.sum((seen.spread > 0) * 1.0) / jnp.maximum(count_of, 1.0), pool["share"])
        rows, _ = single.dynamic(oversample).select(rollout, (), count, key)
        return rows, {**pool, "share": decay * pool["share"] + (1.0 - decay) * share}

    return types.Source(oversample=oversample, init=init, choose=choose, select=select)
