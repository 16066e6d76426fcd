"""Histories: draws by totals of all visits, by the last visit, or by one number of each visit."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.methods.source import bandits
from rljax.transforms import define
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import draws

Array = types.Array


def _totals(decay: Any = 1.0) -> Callable[[draws.Statistics, draws.Seen], draws.Statistics]:
    """Return the update of plain totals of rows and successes."""
    return lambda of, step: {"count": decay * of["count"] + step.count, "wins": decay * of["wins"] + step.wins}


@define.source
def band(
    low: types.Fraction = 0.2,
    high: types.Fraction = 0.8,
    forget: types.Fraction = 0.99,
    settle: types.Cap = float("inf"),
    candidates: candidates_lib.Number = 0,
) -> types.Source:
    """Draw prompts whose success rate is within [low, high], or not known, in the order of the shuffle.

    Rate: successes / rows, both multiplied by ``forget`` at every step. A prompt of which less than one row is left
    counts as not seen, so that prompts outside of the band are tried again. If too few are within, the nearest follow.
    Source: online difficulty filtering (arXiv 2504.03380), there by the rate measured in the step itself. A falling
    ``high`` keeps the hardest prompts, as the second stage of DRIVE (arXiv 2511.06307). With ``forget`` 1 and
    ``settle`` G, and a phase of learning rate 0 with the same source before, the rates belong to a frozen policy;
    ``low`` below 1 / G and above 0 then asks for spread, as the pivots of PivotRL (arXiv 2603.21383).

    Args:
      low: lowest success rate.
      high: highest success rate.
      forget: factor of a step; G rows are forgotten after log G / -log(forget) steps.
      settle: rows of a prompt after which its rate does not change any more; inf: it always changes.
      candidates: see ``draws``.

    Raises:
      ValueError: ``low`` is above ``high``.
    """
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        raise ValueError(f"low={low} is above high={high}.")

    def update(of: draws.Statistics, step: draws.Seen) -> draws.Statistics:
        new = _totals(forget)(of, step)
        return {k: jnp.where(of["count"] >= settle, of[k], new[k]) for k in new}

    def score(of: draws.Statistics, given: Array, key: types.Key) -> Array:
        rate = of["wins"] / jnp.maximum(of["count"], 1e-6)
        away = jnp.maximum(jnp.maximum(low - rate, rate - high), 0.0)
        return jnp.where((of["count"] < 1.0) | (away < 1e-6), jnp.where(given, 1.0, 0.0), -away)

    return draws.draw(candidates, {"count": 0.0, "wins": 0.0}, update, score, share=0.0)


@define.source
def retire(above: types.Fraction = 0.9, after: types.Count = 8, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw from the shuffle without prompts that are solved; random others take their places.

    A prompt is retired once at least ``after`` rows of it have been seen and the share that succeeded is ``above`` or
    more, for good: it is drawn only if fewer than P others are left. Source: ScaleRL (arXiv 2510.13786).

    Args:
      above: success rate.
      after: rows.
      candidates: see ``draws``.
    """

    def score(of: draws.Statistics, given: Array, key: types.Key) -> Array:
        solved = (of["count"] >= after) & (of["wins"] >= above * of["count"] - 1e-3)
        return jnp.where(solved, -1.0, jnp.where(given, 1.0, 0.0))

    return draws.draw(candidates, {"count": 0.0, "wins": 0.0}, _totals(), score, share=0.0)


@define.source
def regret(floor: types.Positive = 0.05, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw prompts with weights max - mean of the rewards at their last visit. eva (arXiv 2411.00062).

    A prompt not seen yet has the largest weight of all. The paper then rewrites the prompts, this does not.

    Args:
      floor: added to every weight, as a multiple of the largest.
      candidates: see ``draws``.
    """

    def update(of: draws.Statistics, step: draws.Seen) -> draws.Statistics:
        new = step.count > 0
        return {"regret": jnp.where(new, step.best - step.reward, of["regret"]), "known": jnp.maximum(of["known"], new)}

    def score(of: draws.Statistics, given: Array, key: types.Key) -> Array:
        top = jnp.max(of["regret"])
        top = jnp.where(top > 0, top, 1.0)
        return bandits.weighted(jnp.where(of["known"] > 0, of["regret"], top) + floor * top, key)

    return draws.draw(candidates, {"regret": 0.0, "known": 0.0}, update, score)


@define.source
def prioritized(
    score: Literal["advantage", "regret"] = "advantage",
    temperature: types.Positive = 0.1,
    staleness: types.Fraction = 0.1,
    candidates: candidates_lib.Number = 0,
) -> types.Source:
    """Draw prompts by the rank of a score and by how long they have not been drawn.

    As large a share of all prompts as has been seen is the probability that a place of the step goes to one of them,
    drawn with weights c_i, the steps since its last visit, in a share ``staleness`` of these places, and with weights
    rank_i^(-1 / temperature) in the others, rank 1 the largest score of the last visit. The other places go to prompts
    not seen yet. Source: Prioritized Level Replay (arXiv 2010.03934), also in DRED (arXiv 2402.03479); there the score
    is the mean absolute GAE of an episode, and levels are drawn one by one, with replacement. Differs from ``regret``,
    whose weights are the values themselves.

    Args:
      score: "advantage", mean abs(r - mean) of the prompt's rows, or "regret", max - mean.
      temperature: a small one draws the largest scores only.
      staleness: share of the places of seen prompts that goes by the time since the last visit.
      candidates: see ``draws``.
    """

    def update(of: draws.Statistics, step: draws.Seen) -> draws.Statistics:
        new, value = step.count > 0, step.advantage if score == "advantage" else step.best - step.reward
        return {
            "score": jnp.where(new, value, of["score"]),
            "known": jnp.maximum(of["known"], new),
            "age": jnp.where(new, 0.0, of["age"] + 1.0),
        }

    def priority(of: draws.Statistics, given: Array, key: types.Key) -> Array:
        known, (place_key, rank_key, age_key) = of["known"] > 0, jax.random.split(key, 3)
        size = jnp.sum(given)  # P, as the shuffle gives all
        place = jax.random.uniform(place_key, (2, *known.shape))
        replayed = (place[0] < jnp.mean(known)) & (jnp.arange(known.size) < size)
        old = jnp.sum(replayed & (place[1] < staleness))
        rank = 1.0 + _place(jnp.where(known, of["score"], -jnp.inf))
        weighted = jax.random.gumbel(rank_key, rank.shape) - jnp.log(rank) / temperature
        ranked = _place(jnp.where(known, weighted, -jnp.inf))
        by_rank = known & (ranked < jnp.sum(replayed) - old)
        age = jnp.maximum(bandits.weighted(of["age"], age_key), -1e9)  # prompts of the last step come last
        by_age = known & ~by_rank & (_place(jnp.where(known & ~by_rank, age, -jnp.inf)) < old)
        unseen = _place(jnp.where(known, -jnp.inf, 0.0))
        drawn = by_rank | by_age | (~known & (unseen < size - jnp.sum(replayed)))
        return jnp.where(drawn, 1, -jnp.where(known, ranked, unseen))  # if a kind has too few, the other fills up

    return draws.draw(candidates, {"score": 0.0, "known": 0.0, "age": 0.0}, update, priority, share=0.0)


def _place(value: Array) -> Array:
    """Return the place of each number in descending order, ``[n]`` int32 from 0; equal ones are in their order."""
    return jnp.argsort(jnp.argsort(-value, stable=True))


@define.source
def lim(visits: types.Count = 4, keep: types.Number = 0.2, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw prompts whose learning curve follows the mean curve.

    s = 1 - sum_k (r_k - m_k)^2 / sum_k (1 - m_k)^2, with r_k the success rate of the prompt at its k-th visit and m the
    mean of r over all prompts. Until every prompt has had ``visits`` visits, the prompts of the fewest are drawn; then
    prompts with s >= keep, in the order of the shuffle. If too few are left, the largest s follow. Source: LIMR (arXiv
    2502.11886), which selects once, after a run of its own, with a threshold of 0.2 in the code.

    Args:
      visits: K, steps in which a prompt is seen before it is judged; K numbers are kept of each prompt.
      keep: least s.
      candidates: see ``draws``.
    """

    def score(curve: Array, first: Array) -> Array:
        aligned = alignment(curve) - keep
        return jnp.where(aligned >= 0, first, aligned)

    return _judged(visits, score, candidates)


@define.source
def weak(visits: types.Count = 4, bound: types.Fraction = 0.5, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw prompts that the policy fails to learn: its success rate was below a bound at every visit, and it falls.

    The slope of the line of least squares through the rates of ``visits`` visits is below 0. Until every prompt has had
    them, the prompts of the fewest are drawn; then the weak ones, in the order of the shuffle, and others only if too
    few are left. Source: SwS (arXiv 2506.08989), from memory; there new problems are written from the weak ones, and
    those with a success rate from 0.25 to 0.75 are trained on, ``band(0.25, 0.75)``.

    Args:
      visits: steps in which a prompt is seen before it is judged, at least 2; one number is kept of each.
      bound: of the success rate.
      candidates: see ``draws``.

    Raises:
      ValueError: ``visits`` is 1, which has no slope.
    """
    if visits < 2:
        raise ValueError(f"visits={visits}: must be at least 2, as one visit has no slope.")

    def score(curve: Array, first: Array) -> Array:
        slope = curve @ (jnp.arange(visits, dtype=curve.dtype) - (visits - 1) / 2)  # times a positive number
        falls = (jnp.max(curve, axis=1) < bound) & (slope < -1e-6)
        return jnp.where(falls, 1.0, 0.0) + first

    return _judged(visits, score, candidates)


def _judged(visits: int, score: Callable[[Array, Array], Array], candidates: int) -> types.Source:
    """Return the source that draws each prompt ``visits`` times and judges it by its success rates.

    Args:
      visits: K.
      score: from rates ``[n, K]``, and 0.5 on the prompts of the shuffle, 0 on others, to scores ``[n]``.
      candidates: number of prompts; 0: all.
    """

    def update(of: draws.Statistics, step: draws.Seen) -> draws.Statistics:
        now = (jnp.arange(visits)[None, :] == of["visits"][:, None]) & (step.count > 0)[:, None]
        rate = (step.wins / jnp.maximum(step.count, 1.0))[:, None]
        seen_before = jnp.minimum(of["visits"] + (step.count > 0), float(visits))
        return {"curve": jnp.where(now, rate, of["curve"]), "visits": seen_before}

    def choose(of: draws.Statistics, given: Array, key: types.Key) -> Array:
        first = jnp.where(given, 0.5, 0.0)
        return jnp.where(jnp.min(of["visits"]) < visits, first - of["visits"], score(of["curve"], first))

    return draws.draw(candidates, {"curve": np.zeros(visits), "visits": 0.0}, update, choose, share=0.0)


def alignment(curve: Array) -> Array:
    """Return how well each curve of ``[N, K]`` follows their mean, ``[N]``: 1 on it; see ``lim``."""
    mean = jnp.mean(curve, axis=0, keepdims=True)
    room = jnp.sum((1.0 - mean) ** 2)
    return 1.0 - jnp.sum((curve - mean) ** 2, axis=1) / jnp.where(room > 0, room, 1.0)  # no room: all are 1
