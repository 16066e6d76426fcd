"""Draws: sources that choose the prompts of a step by statistics of each prompt.

A draw keeps numbers for each of N candidates, updates them from the rows of every step, which it returns unchanged, and
gives the P prompts of the next step: the prompts of the largest score, in random order among equals. No prompt is drawn
twice in a step. A weighted draw without replacement is a score too: log w plus Gumbel noise (Gumbel top-k, Kool et al.,
arXiv 1903.06059). A row succeeds if its total reward is above 0.

Argument ``candidates`` of every draw: how many prompts have statistics, and are trained on; 0: all of the task.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import groups

Array = types.Array
Statistics = Mapping[str, Array]
PRIOR = {"wins": 1.0, "losses": 1.0}  # Beta(1, 1), uniform


class Seen(NamedTuple):
    """What a step saw of each candidate."""

    count: Array  # [N] float32, rows; 0: the prompt was not drawn
    wins: Array  # [N] float32, rows that succeed
    reward: Array  # [N] float32, mean total reward; 0 if the prompt was not drawn
    best: Array  # [N] float32, largest total reward; 0 if the prompt was not drawn
    advantage: Array  # [N] float32, mean |reward - mean of the group|; 0 if the prompt was not drawn


def seen(index: Array, rollout: types.Rollout) -> Seen:
    """Return what the rows of a step say of candidates ``index`` ``[N]``; other prompts are not counted."""
    tally, zero = groups.tally(rollout), jnp.zeros(index.shape)
    advantage = tally.advantage * tally.spread
    count, wins, reward, advantage = (
        candidates_lib.add(zero, index, tally.index, x)
        for x in (tally.count, tally.wins, tally.count * tally.reward, tally.count * advantage)
    )
    place, there = candidates_lib.slot(index, tally.index)
    place = jnp.where(there & (tally.count > 0), place, index.size)
    best = jnp.full(index.shape, -jnp.inf).at[place].max(tally.best, mode="drop")
    some = jnp.maximum(count, 1.0)
    return Seen(count, wins, reward / some, jnp.where(count > 0, best, 0.0), advantage / some)


def enough(index: Array, size: int, count: int) -> None:
    """Raise ValueError if there are fewer candidates ``index`` than the ``size`` different prompts of a step."""
    if index.size < size:
        raise ValueError(
            f"candidates={count}: a step draws {size} different prompts, and there are {index.size}; set "
            f"candidates to {size} or more, or draw fewer prompts a step."
        )


def draw(
    count: int,
    start: Mapping[str, Any],
    update: Callable[[Statistics, Seen], Statistics],
    score: Callable[[Statistics, Array, types.Key], Array],
    share: Any = 1.0,
    pool: int = 0,
) -> types.Source:
    """Return the source that draws the P candidates of the largest score.

    Args:
      count: number of candidates; 0: all prompts.
      start: the statistics of a prompt by name, a number or an array of ``[...]`` each.
      update: from the statistics ``[N, ...]`` and what a step saw to the new statistics.
      score: from the statistics of n candidates in random order, bool ``[n]``, and a key, to scores ``[n]``. The
        booleans are True on the (1 - share) P prompts of the shuffle.
      share: of the step's prompts, how many are drawn; the shuffle gives the others.
      pool: n is this number times P, at most N; 0: n is N.

    Returns:
      The source.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        index = candidates_lib.index(problems, count)
        of = {k: jnp.full((index.size, *np.shape(x)), x, jnp.float32) for k, x in start.items()}
        return {"candidate": index, "statistics": of}

    def choose(pooled: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        index, size = pooled["candidate"], offered.size
        enough(index, size, count)
        order_key, score_key = jax.random.split(key)
        order = jax.random.permutation(order_key, index.size)
        shuffled = offered if index.size == problems.size else order  # all are candidates: places are indices
        given = jnp.zeros(index.shape, bool).at[shuffled[: size - round(share * size)]].set(True)
        order = order[: pool * size or None]
        value = score({k: x[order] for k, x in pooled["statistics"].items()}, given[order], score_key)
        return types.Choice(index[order[jax.lax.top_k(value, size)[1]]])

    def select(rollout: types.Rollout, pooled: types.Tree, count: int, key: types.Key):
        new = update(pooled["statistics"], seen(pooled["candidate"], rollout))
        return rollout, {**pooled, "statistics": new}

    return types.Source(init=init, choose=choose, select=select)


def posterior(decay: Any, unseen: Any = 1.0) -> Callable[[Statistics, Seen], Statistics]:
    """Return the update of Beta posteriors: a <- d a + (1 - d) + successes, d is ``unseen`` of prompts not drawn."""

    def update(of: Statistics, step: Seen) -> Statistics:
        kept = jnp.where(step.count > 0, decay, unseen)
        new = {"wins": step.wins, "losses": step.count - step.wins}
        return {k: kept * of[k] + (1.0 - kept) + x for k, x in new.items()}

    return update


@define.source
def mopps(
    target: types.Fraction = 0.5,
    decay: types.Fraction = 1.0,
    pool: types.Count = 16,
    candidates: candidates_lib.Number = 0,
) -> types.Source:
    """Draw prompts whose success rate, drawn from its posterior, is nearest to ``target``.

    Of ``pool`` times as many random candidates, each with p ~ Beta(a, b), draw the least (p - target)^2. After a
    step a <- decay a + (1 - decay) + successes, and b likewise with failures, for the prompts drawn; a = b = 1 at
    first. Source: MoPPS (arXiv 2507.04632); its release sets a and b to 8 if a prompt has one sample, this does not.

    Args:
      target: success rate.
      decay: 1 forgets nothing; less moves the posterior towards the prior at every visit.
      pool: candidates compared for each prompt drawn.
      candidates: see the module.
    """

    def score(of: Statistics, given: Array, key: types.Key) -> Array:
        return -((jax.random.beta(key, of["wins"], of["losses"]) - target) ** 2)

    return draw(candidates, PRIOR, posterior(decay), score, pool=pool)


@define.source
def learnability(
    share: types.Fraction = 0.5, decay: types.Fraction = 1.0, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw a share of the prompts by the largest expected p (1 - p), the rest from the shuffle.

    E[p (1 - p)] = ab / ((a + b)(a + b + 1)) under the posterior of ``mopps``: 1/6 for a prompt not seen yet, 1/4 at
    most. Source: Sampling for Learnability (arXiv 2408.15099), also in Kinetix (arXiv 2410.23208); there p is measured
    by rollouts of their own.

    Args:
      share: of the prompts of a step.
      decay: see ``mopps``.
      candidates: see the module.
    """

    def score(of: Statistics, given: Array, key: types.Key) -> Array:
        total = of["wins"] + of["losses"]
        return jnp.where(given, jnp.inf, of["wins"] * of["losses"] / (total * (total + 1.0)))

    return draw(candidates, PRIOR, posterior(decay), score, share)
