"""Draws by domain: fixed, by a schedule, or by what its prompts have taught; and by the posterior of each prompt."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import domains as domains_lib
from rljax.transforms.source import draws, groups


@define.source
def dump(
    window: types.Count = 300,
    exploration: types.NonNegative = 2.0,
    temperature: types.Positive = 0.1,
    candidates: candidates_lib.Number = 0,
) -> types.Source:
    """Draw domains by an upper confidence bound of their mean absolute advantage.

    softmax(score / temperature), score_d = mean |A| of the last ``window`` rows of the domain + sqrt(exploration
    ln(N + 1) / (n_d + 1)), n_d the rows of the domain so far, N the rows of all. Source: DUMP (arXiv 2504.09710).

    Args:
      window: rows of each domain that the mean is taken over.
      exploration: factor of the bonus of domains that were rarely drawn; 0: none.
      temperature: of the softmax.
      candidates: prompts that are drawn from; 0: all.
    """

    def init(domains: int) -> types.Tree:
        return {"advantage": jnp.zeros((domains, window)), "seen": jnp.zeros((domains,), jnp.int32)}

    def log_weight(statistics: types.Tree, of: domains_lib.ByDomain) -> types.Array:
        seen = statistics["seen"].astype(jnp.float32)
        mean = jnp.sum(statistics["advantage"], axis=1) / jnp.clip(seen, 1.0, window)
        bonus = jnp.sqrt(exploration * jnp.log(jnp.sum(seen) + 1.0) / (seen + 1.0))
        return (mean + bonus) / temperature

    def update(rollout: types.Rollout, statistics: types.Tree) -> types.Tree:
        seen, place, size = groups.tally(rollout), groups.place(rollout), statistics["seen"].size
        once, reward = groups.measured(rollout)
        away = jnp.abs(reward - seen.reward[place])
        spread = seen.spread[place]
        advantage = jnp.where(spread > 0, away / jnp.where(spread > 0, spread, 1.0), 0.0)
        domain = jnp.where(once > 0, seen.domain[place], size)  # ``size``: does not count
        number, _ = groups.rank(domain)
        rows = jnp.zeros((size + 1,), jnp.int32).at[domain].add(1)
        kept = jnp.where(number >= rows[domain] - window, domain, size)  # the others would be overwritten in this step
        before = jnp.append(statistics["seen"], 0)[domain]
        return {
            "advantage": statistics["advantage"].at[kept, (before + number) % window].set(advantage, mode="drop"),
            "seen": statistics["seen"] + rows[:size],
        }

    return domains_lib.weighted_source("dump", candidates, log_weight, init, update)


@define.source
def shortfall(
    target: types.Number = 1.0,
    temperature: types.Positive = 0.5,
    learning_rate: types.Fraction = 0.5,
    candidates: candidates_lib.Number = 0,
) -> types.Source:
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

    def update(rollout: types.Rollout, value: types.Array) -> types.Array:
        seen = groups.tally(rollout)
        return domains_lib.averaged(value, seen, seen.reward, learning_rate)

    def log_weight(value: types.Array, of: domains_lib.ByDomain) -> types.Array:
        return jnp.maximum(0.0, target - value) / temperature

    return domains_lib.weighted_source("shortfall", candidates, log_weight, lambda d: jnp.zeros((d,)), update)


@define.source
def adversarial(
    rate: types.Positive = 0.5, uniform: types.Fraction = 0.1, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw domains as an adversary would: where the policy fails, more and more, by multiplicative weights.

    p_d = uniform / D + (1 - uniform) q_d, with q_d <- q_d exp(rate (1 - m_d)) / sum where the step had rows of domain
    d, m_d their mean reward. Source: group distributionally robust optimization (arXiv 1911.08731, algorithm 1), whose
    weights multiply the losses of fixed groups; here they decide what is drawn. Differs from ``shortfall`` by a memory
    that adds up over steps: the worst domain wins in the end, however small its gap is.

    Args:
      rate: step size of the weights' logarithms, for a reward that is 1 too small.
      uniform: share of the prompts whose domain is uniform, so that every domain is seen.
      candidates: prompts that are drawn from; 0: all.
    """

    def update(rollout: types.Rollout, weight: types.Array) -> types.Array:
        seen = groups.tally(rollout)
        mean = domains_lib.averaged(jnp.ones_like(weight), seen, seen.reward, 1.0)  # 1 where the step had no rows
        return jax.nn.log_softmax(weight + rate * (1.0 - mean))

    def log_weight(weight: types.Array, of: domains_lib.ByDomain) -> types.Array:
        return jnp.log(uniform / weight.size + (1.0 - uniform) * jax.nn.softmax(weight))

    return domains_lib.weighted_source("adversarial", candidates, log_weight, lambda d: jnp.zeros((d,)), update)


@define.source
def alp(
    learning_rate: types.Fraction = 0.5, random: types.Fraction = 0.2, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw domains by absolute learning progress: how much the mean reward of a domain changes, up or down.

    p_d = random / D + (1 - random) L_d / sum L, with L_d <- learning_rate |m_d - m'_d| + (1 - learning_rate) L_d where
    the step had rows of domain d, m_d their mean reward and m'_d the mean at the domain's last visit. L is 0 at first;
    D domains are equally likely while all are 0. Source: ALP-GMM (arXiv 1910.07224), with a random share of 0.2; there
    the progress of an episode is measured against its nearest neighbour in a space of continuous parameters, as in
    ``alp_gmm``. Domains, that is buckets of difficulty, stand in its place here, and a moving average in place of the
    window.

    Args:
      learning_rate: weight of the step in the moving average.
      random: share of the prompts whose domain is uniform, so that progress is noticed anywhere.
      candidates: prompts that are drawn from; 0: all.
    """

    def init(domains: int) -> types.Tree:
        zero = jnp.zeros((domains,))
        return {"reward": zero, "progress": zero, "known": zero}

    def log_weight(of: types.Tree, prompts: domains_lib.ByDomain) -> types.Array:
        there = (prompts.count > 0) * 1.0
        progress, uniform = there * of["progress"], there / jnp.sum(there)
        total = jnp.sum(progress)
        share = jnp.where(total > 0, progress / jnp.where(total > 0, total, 1.0), uniform)
        return jnp.log(random * uniform + (1.0 - random) * share)

    def update(rollout: types.Rollout, of: types.Tree) -> types.Tree:
        seen = groups.tally(rollout)
        now = jax.ops.segment_sum(seen.count, seen.domain, of["known"].size) > 0
        reward = domains_lib.averaged(of["reward"], seen, seen.reward, 1.0)
        moved = learning_rate * jnp.abs(reward - of["reward"]) + (1.0 - learning_rate) * of["progress"]
        progress = jnp.where(now & (of["known"] > 0), moved, of["progress"])
        return {"reward": reward, "progress": progress, "known": jnp.maximum(of["known"], now)}

    return domains_lib.weighted_source("alp", candidates, log_weight, init, update)


@define.source
def mixed(weights: tuple[types.NonNegative, ...], candidates: candidates_lib.Number = 0) -> types.Source:
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

    def log_weight(statistics: types.Tree, of: domains_lib.ByDomain) -> types.Array:
        return jnp.log(jnp.stack([jnp.asarray(w, jnp.float32) for w in weights]))

    return domains_lib.weighted_source("mixed", candidates, log_weight, init)


@define.source
def ordered(progress: types.Fraction, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw easy domains at first and hard ones later: p_k ~ (1 - s) (K - 1 - k) + s k over domains k = 0 ... K - 1.

    Source: E2H Reasoner (arXiv 2506.06632), whose cosine scheduler is ``progress=cosine(0.0, 1.0, steps)``.

    Args:
      progress: s; 0 never draws the last domain, 1 never the first. Usually a schedule.
      candidates: prompts that are drawn from; 0: all.
    """

    def log_weight(statistics: types.Tree, of: domains_lib.ByDomain) -> types.Array:
        place = jnp.arange(of.count.size, dtype=jnp.float32)
        return jnp.log((1.0 - progress) * (of.count.size - 1.0 - place) + progress * place)

    return domains_lib.weighted_source("ordered", candidates, log_weight)


@define.source
def gaussian(
    centre: types.Fraction, width: types.Positive = 0.25, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw domains by a Gaussian over the order of difficulty: p_k ~ exp(-(k / (K - 1) - centre)^2 / (2 width^2)).

    Source: the Gaussian scheduler of E2H Reasoner (arXiv 2506.06632), whose centre is (step / steps)^beta; the draw of
    GAIN-RL (2506.02281), whose centre follows the accuracy, ``centre=adaptive_difficulty()``. There each prompt has a
    rank, as in ``orders.ranked``; here prompts of a domain are equally likely.

    Args:
      centre: place of the most likely domain in the order, 0 the first, 1 the last. Usually a schedule.
      width: standard deviation, in the same unit.
      candidates: prompts that are drawn from; 0: all.
    """

    def log_weight(statistics: types.Tree, of: domains_lib.ByDomain) -> types.Array:
        place = jnp.linspace(0.0, 1.0, of.count.size)
        return -((place - centre) ** 2) / (2.0 * width**2)

    return domains_lib.weighted_source("gaussian", candidates, log_weight)


@define.source
def easiest(share: types.Fraction, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw prompts uniformly from the easiest ``share`` of the candidates, at least one.

    Source: cyclical curriculum learning (arXiv 2202.05531), with ``share=oscillating(0.25, 1.0)``.

    Args:
      share: of the candidates, in the order of their domains; of the last domain that it reaches, all prompts are
        equally likely. Usually a schedule.
      candidates: prompts that are drawn from; 0: all.
    """

    def log_weight(statistics: types.Tree, of: domains_lib.ByDomain) -> types.Array:
        size = jnp.maximum(jnp.round(share * of.index.size), 1.0)
        return jnp.log(jnp.clip(size - of.first, 0.0, of.count))

    return domains_lib.weighted_source("easiest", candidates, log_weight)


def _mean(of: draws.Statistics) -> types.Array:
    return of["wins"] / (of["wins"] + of["losses"])


def weighted(weight: types.Array, key: types.Key) -> types.Array:
    """Return scores whose largest are a draw without replacement, with probabilities as ``weight`` ``[n]``."""
    return jnp.log(weight) + jax.random.gumbel(key, weight.shape)


@define.source
def vade(
    decay: types.Fraction = 0.9, unseen: types.Fraction = 0.99, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw prompts of the largest p (1 - p), with p drawn from a posterior that is forgotten at two rates.

    The posterior of ``mopps``, in which prompts that were not drawn move towards the prior too, by another decay.
    Source: VADE (arXiv 2511.18902) for the posterior, the Thompson draw and the two decays. Its information gain and
    its constants were not available: p (1 - p), and which prompts each decay applies to, are assumptions.

    Args:
      decay: of prompts drawn in the step.
      unseen: of the others.
      candidates: see the module.
    """

    def score(of: draws.Statistics, given: types.Array, key: types.Key) -> types.Array:
        p = jax.random.beta(key, of["wins"], of["losses"])
        return p * (1.0 - p)

    return draws.draw(candidates, draws.PRIOR, draws.posterior(decay, unseen), score)


@define.source
def by_failure(decay: types.Fraction = 1.0, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw prompts with weights 1 - success rate. Prioritized sampling of Kimi k1.5 (arXiv 2501.12599).

    The rate is the mean a / (a + b) of the posterior of ``mopps``, 1/2 for a prompt not seen yet.

    Args:
      decay: see ``mopps``.
      candidates: see the module.
    """
    return draws.draw(
        candidates, draws.PRIOR, draws.posterior(decay), lambda of, _, key: weighted(1.0 - _mean(of), key)
    )


@define.source
def by_deviation(
    floor: types.Positive = 0.05, decay: types.Fraction = 1.0, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw prompts with weights sqrt(v (1 - v)) + floor, v the success rate. SPO (arXiv 2509.13232).

    The rate is computed as in ``by_failure``; SPO's decay depends on the change of the policy, here it is a number.

    Args:
      floor: weight of a prompt that always or never succeeds.
      decay: see ``mopps``.
      candidates: see the module.
    """

    def score(of: draws.Statistics, given: types.Array, key: types.Key) -> types.Array:
        v = _mean(of)
        return weighted(jnp.sqrt(v * (1.0 - v)) + floor, key)

    return draws.draw(candidates, draws.PRIOR, draws.posterior(decay), score)


@define.source
def hard_replay(
    share: types.Fraction = 0.25, decay: types.Fraction = 1.0, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw a share of the prompts from prompts seen before, with weights 1 / success rate; the rest from the shuffle.

    Source: difficulty-aware retrospective sampling of QwenLong-L1 (arXiv 2505.17667), there between phases. Statistics
    pass to the next phase if its task and source are the same. The rate is computed as in ``by_failure``, above 0.

    Args:
      share: of the prompts of a step; what cannot be filled so is drawn at random.
      decay: see ``mopps``.
      candidates: see the module.
    """

    def score(of: draws.Statistics, given: types.Array, key: types.Key) -> types.Array:
        before = of["wins"] + of["losses"] > 2.0 + 1e-3  # more than the prior
        return jnp.where(given, jnp.inf, jnp.where(before, weighted(1.0 / _mean(of), key), -jnp.inf))

    return draws.draw(candidates, draws.PRIOR, draws.posterior(decay), score, share)
