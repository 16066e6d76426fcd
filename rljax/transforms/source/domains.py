"""Draws by domain: how likely each domain is, by what its prompts have taught so far.

A domain's number is its place in the order of difficulty, where a piece reads one: 0 is the easiest. The domain of each
prompt of a step is drawn separately; its prompts are then chosen without replacement, as long as there are any.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import groups

Array = types.Array


class ByDomain(NamedTuple):
    """The candidates, in the order of their domains."""

    index: Array  # [N] int32, in the training split
    domain: Array  # [N] int32, ascending
    first: Array  # [D] int32, place of the first candidate of each domain
    count: Array  # [D] int32, candidates of each domain


def by_domain(problems: types.Problems, candidates: int, piece: str) -> ByDomain:
    """Return the candidates by domain; ValueError if the task reports no domains."""
    if problems.domains < 2:
        raise ValueError(
            f"{piece}: the task reports no domains. Use a task whose prompts have some, such as "
            "arithmetic(digits=(1, 2, 3)), or jsonl(..., domain='COLUMN')."
        )
    index = candidates_lib.index(problems, candidates)
    domain = problems.domain(index).astype(jnp.int32)
    order = jnp.argsort(domain, stable=True).astype(jnp.int32)
    count = jnp.zeros((problems.domains,), jnp.int32).at[domain].add(1)
    return ByDomain(index[order], domain[order], jnp.cumsum(count, dtype=jnp.int32) - count, count)


def draw(of: ByDomain, log_weight: Array, places: int, key: types.Key) -> Array:
    """Draw the prompts of a step.

    Args:
      of: the candidates, N of D domains.
      log_weight: ``[D]``, log of each domain's probability up to a constant; domains without candidates are not drawn.
      places: P.
      key: a typed key.

    Returns:
      ``[P]`` int32, in the training split. A prompt is there twice only if its domain was drawn more often than it has
      candidates.
    """
    domain_key, prompt_key = jax.random.split(key)
    weight = jnp.where(of.count > 0, log_weight, -jnp.inf)
    weight = jnp.where(jnp.any(weight > -jnp.inf), weight, jnp.log(of.count * 1.0))  # of no weight anywhere: uniform
    domain = jax.random.categorical(domain_key, weight, shape=(places,)).astype(jnp.int32)
    shuffled = of.index[jnp.lexsort((jax.random.uniform(prompt_key, of.index.shape), of.domain))]
    return shuffled[of.first[domain] + groups.rank(domain)[0] % jnp.maximum(of.count[domain], 1)]


def averaged(value: Array, seen: groups.Tally, of_group: Array, learning_rate: types.Number) -> Array:
    """Return a moving average of each domain ``[D]`` after a step; domains without rows keep theirs.

    Args:
      value: ``[D]``, the average before.
      seen: the tally of the step.
      of_group: ``[B]``, what is averaged over the rows, at the places of the groups.
      learning_rate: weight of the step.
    """
    rows = jax.ops.segment_sum(seen.count, seen.domain, value.size)
    mean = jax.ops.segment_sum(seen.count * of_group, seen.domain, value.size) / jnp.maximum(rows, 1.0)
    return jnp.where(rows > 0, learning_rate * mean + (1.0 - learning_rate) * value, value)


def weighted_source(
    piece: str,
    candidates: int,
    log_weight: Callable[[types.Tree, ByDomain], Array],
    init: Callable[[int], types.Tree] = lambda domains: {},
    update: Callable[[types.Rollout, types.Tree], types.Tree] | None = None,
) -> types.Source:
    """Return the source that draws by ``log_weight(statistics, prompts)`` ``[D]``.

    Args:
      piece: its name.
      candidates: how many prompts; 0: all.
      log_weight: of each domain, up to a constant.
      init: from the number of domains to the statistics.
      update: from the scored rows and the statistics to new statistics.
    """

    def start(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        return {"prompts": by_domain(problems, candidates, piece), "domains": init(problems.domains)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        of = pool["prompts"]
        return types.Choice(draw(of, log_weight(pool["domains"], of), offered.size, key))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        new = pool["domains"] if update is None else update(rollout, pool["domains"])
        return rollout, {**pool, "domains": new}

    return types.Source(init=start, choose=choose, select=select)


# --- bandits: a domain is drawn by what its rows taught -------------------------------------------


@define.source
def sec(
    learning_rate: types.Fraction = 0.5, temperature: types.Positive = 0.5, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw domains by softmax(Q / temperature), Q a moving average of the mean absolute advantage of a domain's rows.

    Q_d <- learning_rate mean|A| + (1 - learning_rate) Q_d where the step had rows of domain d; A = (r - mean) / std of
    the group, so that with rewards 0 and 1 mean|A| = 2 sqrt(p (1 - p)). Q starts at 0. Source: Self-Evolving Curriculum
    for LLM Reasoning (arXiv 2505.14970), which uses learning rate 0.5 and temperatures from 0.2 to 1.

    Args:
      learning_rate: weight of the step in the moving average.
      temperature: of the softmax; a large one is uniform over the domains.
      candidates: prompts that are drawn from; 0: all.
    """

    def update(rollout: types.Rollout, value: Array) -> Array:
        seen = groups.tally(rollout)
        return averaged(value, seen, seen.advantage, learning_rate)

    return weighted_source("sec", candidates, lambda value, of: value / temperature, lambda d: jnp.zeros((d,)), update)


# --- fixed weights, and weights that move over the order of difficulty ----------------------------
