"""Draws by domain: how likely each domain is, fixed, by a schedule, or by what its prompts have taught so far.

A domain's number is its place in the order of difficulty, where a piece reads one: 0 is the easiest. The domain of each
prompt of a step is drawn separately; its prompts are then chosen without replacement, as long as there are any.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, trajectories
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


def _source(
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
        del rollout
        return {"prompts": by_domain(problems, candidates, piece), "domains": init(problems.domains)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        del problems
        of = pool["prompts"]
        return types.Choice(draw(of, log_weight(pool["domains"], of), offered.size, key))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del count, key
        new = pool["domains"] if update is None else update(rollout, pool["domains"])
        return rollout, {**pool, "domains": new}

    return types.Source(init=start, choose=choose, select=select)


# --- bandits: a domain is drawn by what its rows taught -------------------------------------------


@define.source
def sec(learning_rate: types.Fraction = 0.5, temperature: types.Positive = 0.5, candidates: candidates_lib.Number = 0):
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

    return _source("sec", candidates, lambda value, of: value / temperature, lambda d: jnp.zeros((d,)), update)


@define.source
def dump(
    window: types.Count = 300,
    exploration: types.NonNegative = 2.0,
    temperature: types.Positive = 0.1,
    candidates: candidates_lib.Number = 0,
):
    """Draw domains by an upper confidence bound of their mean absolute advantage.

    softmax(score / temperature), score_d = mean |A| of the last ``window`` rows of the domain + sqrt(exploration
    ln(N + 1) / (n_d + 1)), n_d the rows of the domain so far, N those of all. Source: DUMP (arXiv 2504.09710).

    Args:
      window: rows of each domain that the mean is taken over.
      exploration: factor of the bonus of domains that were rarely drawn; 0: none.
      temperature: of the softmax.
      candidates: prompts that are drawn from; 0: all.
    """

    def init(domains: int) -> types.Tree:
        return {"advantage": jnp.zeros((domains, window)), "seen": jnp.zeros((domains,), jnp.int32)}

    def log_weight(statistics: types.Tree, of: ByDomain) -> Array:
        del of
        seen = statistics["seen"].astype(jnp.float32)
        mean = jnp.sum(statistics["advantage"], axis=1) / jnp.clip(seen, 1.0, window)
        bonus = jnp.sqrt(exploration * jnp.log(jnp.sum(seen) + 1.0) / (seen + 1.0))
        return (mean + bonus) / temperature

    def update(rollout: types.Rollout, statistics: types.Tree) -> types.Tree:
        seen, place, size = groups.tally(rollout), groups.place(rollout), statistics["seen"].size
        away = jnp.abs(trajectories.total(rollout) - seen.reward[place])
        spread = seen.spread[place]
        advantage = jnp.where(spread > 0, away / jnp.where(spread > 0, spread, 1.0), 0.0)
        domain = jnp.where(groups.counted(rollout) > 0, seen.domain[place], size)  # ``size``: does not count
        number, _ = groups.rank(domain)
        rows = jnp.zeros((size + 1,), jnp.int32).at[domain].add(1)
        kept = jnp.where(number >= rows[domain] - window, domain, size)  # the others would be overwritten in this step
        before = jnp.append(statistics["seen"], 0)[domain]
        return {
            "advantage": statistics["advantage"].at[kept, (before + number) % window].set(advantage, mode="drop"),
            "seen": statistics["seen"] + rows[:size],
        }

    return _source("dump", candidates, log_weight, init, update)


@define.source
def shortfall(
    target: types.Number = 1.0,
    temperature: types.Positive = 0.5,
    learning_rate: types.Fraction = 0.5,
    candidates: candidates_lib.Number = 0,
):
    """Draw domains by how far their mean reward is below a target.

    softmax(max(0, target - R_d) / temperature), R_d a moving average of the mean reward of the domain's rows, 0 at
    first. Source: domain-aware dynamic sampling of RuleReasoner (arXiv 2506.08672), with an exponentially weighted
    mean; the epsilon that it adds to every shortfall cancels in the softmax.

    Args:
      target: reward that a domain should reach.
      temperature: of the softmax.
      learning_rate: weight of the step in the moving average.
      candidates: prompts that are drawn from; 0: all.
    """

    def update(rollout: types.Rollout, value: Array) -> Array:
        seen = groups.tally(rollout)
        return averaged(value, seen, seen.reward, learning_rate)

    def log_weight(value: Array, of: ByDomain) -> Array:
        del of
        return jnp.maximum(0.0, target - value) / temperature

    return _source("shortfall", candidates, log_weight, lambda d: jnp.zeros((d,)), update)


@define.source
def alp(learning_rate: types.Fraction = 0.5, random: types.Fraction = 0.2, candidates: candidates_lib.Number = 0):
    """Draw domains by absolute learning progress: how much the mean reward of a domain changes, up or down.

    p_d = random / D + (1 - random) L_d / sum L, with L_d <- learning_rate |m_d - m'_d| + (1 - learning_rate) L_d where
    the step had rows of domain d, m_d their mean reward and m'_d that of the domain's last visit. L is 0 at first; D
    domains are equally likely while all are 0. Source: ALP-GMM (arXiv 1910.07224), with a random share of 0.2; there
    the progress of an episode is measured against its nearest neighbour in a space of continuous parameters, and a
    Gaussian mixture is fitted to the last episodes. Domains, that is buckets of difficulty, stand in its place here,
    and a moving average in that of the window.

    Args:
      learning_rate: weight of the step in the moving average.
      random: share of the prompts whose domain is uniform, so that progress is noticed anywhere.
      candidates: prompts that are drawn from; 0: all.
    """

    def init(domains: int) -> types.Tree:
        zero = jnp.zeros((domains,))
        return {"reward": zero, "progress": zero, "known": zero}

    def log_weight(of: types.Tree, prompts: ByDomain) -> Array:
        there = (prompts.count > 0) * 1.0
        progress, uniform = there * of["progress"], there / jnp.sum(there)
        total = jnp.sum(progress)
        share = jnp.where(total > 0, progress / jnp.where(total > 0, total, 1.0), uniform)
        return jnp.log(random * uniform + (1.0 - random) * share)

    def update(rollout: types.Rollout, of: types.Tree) -> types.Tree:
        seen = groups.tally(rollout)
        now = jax.ops.segment_sum(seen.count, seen.domain, of["known"].size) > 0
        reward = averaged(of["reward"], seen, seen.reward, 1.0)
        moved = learning_rate * jnp.abs(reward - of["reward"]) + (1.0 - learning_rate) * of["progress"]
        progress = jnp.where(now & (of["known"] > 0), moved, of["progress"])
        return {"reward": reward, "progress": progress, "known": jnp.maximum(of["known"], now)}

    return _source("alp", candidates, log_weight, init, update)


# --- fixed weights, and weights that move over the order of difficulty ----------------------------


@define.source
def mixed(weights: tuple[types.NonNegative, ...], candidates: candidates_lib.Number = 0):
    """Draw domains in proportion to weights, which may be schedules.

    Source: mixture weights of MoDoMoDo (arXiv 2505.24871), which fits them over runs.

    Args:
      weights: one of each domain, with a positive sum.
      candidates: prompts that are drawn from; 0: all.
    """
    if all(isinstance(w, int | float) for w in weights) and not sum(weights) > 0:
        raise ValueError(f"mixed(weights={weights}): the sum must be above 0")

    def init(domains: int) -> types.Tree:
        if len(weights) != domains:
            raise ValueError(f"mixed: {len(weights)} weights, but the task has {domains} domains; give one of each")
        return {}

    def log_weight(statistics: types.Tree, of: ByDomain) -> Array:
        del statistics, of
        return jnp.log(jnp.stack([jnp.asarray(w, jnp.float32) for w in weights]))

    return _source("mixed", candidates, log_weight, init)


@define.source
def ordered(progress: types.Fraction, candidates: candidates_lib.Number = 0):
    """Draw easy domains at first and hard ones later: p_k ~ (1 - s) (K - 1 - k) + s k over domains k = 0 ... K - 1.

    Source: E2H Reasoner (arXiv 2506.06632), whose cosine scheduler is ``progress=cosine(0.0, 1.0, steps)``.

    Args:
      progress: s; 0 never draws the last domain, 1 never the first. Usually a schedule.
      candidates: prompts that are drawn from; 0: all.
    """

    def log_weight(statistics: types.Tree, of: ByDomain) -> Array:
        del statistics
        place = jnp.arange(of.count.size, dtype=jnp.float32)
        return jnp.log((1.0 - progress) * (of.count.size - 1.0 - place) + progress * place)

    return _source("ordered", candidates, log_weight)


@define.source
def gaussian(centre: types.Fraction, width: types.Positive = 0.25, candidates: candidates_lib.Number = 0):
    """Draw domains by a Gaussian over the order of difficulty: p_k ~ exp(-(k / (K - 1) - centre)^2 / (2 width^2)).

    Source: the Gaussian scheduler of E2H Reasoner (arXiv 2506.06632), whose centre is (step / steps)^beta; the draw of
    GAIN-RL (2506.02281), whose centre follows the accuracy, ``centre=adaptive_difficulty()``. There each prompt has a
    rank, as in ``orders.ranked``; here prompts of a domain are equally likely.

    Args:
      centre: place of the most likely domain in the order, 0 the first, 1 the last. Usually a schedule.
      width: standard deviation, in the same unit.
      candidates: prompts that are drawn from; 0: all.
    """

    def log_weight(statistics: types.Tree, of: ByDomain) -> Array:
        del statistics
        place = jnp.linspace(0.0, 1.0, of.count.size)
        return -((place - centre) ** 2) / (2.0 * width**2)

    return _source("gaussian", candidates, log_weight)


@define.source
def easiest(share: types.Fraction, candidates: candidates_lib.Number = 0):
    """Draw prompts uniformly from the easiest ``share`` of the candidates, at least one.

    Source: cyclical curriculum learning (arXiv 2202.05531), with ``share=oscillating(0.25, 1.0)``.

    Args:
      share: of the candidates, in the order of their domains; of the last domain that it reaches, all prompts are
        equally likely. Usually a schedule.
      candidates: prompts that are drawn from; 0: all.
    """

    def log_weight(statistics: types.Tree, of: ByDomain) -> Array:
        del statistics
        size = jnp.maximum(jnp.round(share * of.index.size), 1.0)
        return jnp.log(jnp.clip(size - of.first, 0.0, of.count))

    return _source("easiest", candidates, log_weight)
