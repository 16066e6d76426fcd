"""Histories: draws by totals of all visits, by the last visit, or by one number of each visit."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from rljax import types
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
    candidates: candidates_lib.Number = 0,
):
    """Draw prompts whose success rate is within [low, high], or not known; those of the shuffle first.

    Rate: successes / rows, both multiplied by ``forget`` at every step. A prompt of which less than one row is left
    counts as not seen, so that those outside of the band are tried again. If too few are within, the nearest follow.
    Source: online difficulty filtering (arXiv 2504.03380), there by the rate measured in the step itself.

    Args:
      low: lowest success rate.
      high: highest success rate.
      forget: factor of a step; G rows are forgotten after log G / -log(forget) steps.
      candidates: see ``draws``.

    Raises:
      ValueError: ``low`` is above ``high``.
    """
    if low > high:
        raise ValueError(f"low={low} is above high={high}.")

    def score(of: draws.Statistics, given: Array, key: types.Key) -> Array:
        del key
        rate = of["wins"] / jnp.maximum(of["count"], 1e-6)
        away = jnp.maximum(jnp.maximum(low - rate, rate - high), 0.0)
        return jnp.where((of["count"] < 1.0) | (away < 1e-6), jnp.where(given, 1.0, 0.0), -away)

    return draws.draw(candidates, {"count": 0.0, "wins": 0.0}, _totals(forget), score, share=0.0)


@define.source
def retire(above: types.Fraction = 0.9, after: types.Count = 8, candidates: candidates_lib.Number = 0):
    """Draw from the shuffle without prompts that are solved; random others take their places.

    A prompt is retired once at least ``after`` rows of it have been seen and the share that succeeded is ``above`` or
    more, for good: it is drawn only if fewer than P others are left. Source: ScaleRL (arXiv 2510.13786).

    Args:
      above: success rate.
      after: rows.
      candidates: see ``draws``.
    """

    def score(of: draws.Statistics, given: Array, key: types.Key) -> Array:
        del key
        solved = (of["count"] >= after) & (of["wins"] >= above * of["count"] - 1e-3)
        return jnp.where(solved, -1.0, jnp.where(given, 1.0, 0.0))

    return draws.draw(candidates, {"count": 0.0, "wins": 0.0}, _totals(), score, share=0.0)


@define.source
def regret(floor: types.Positive = 0.05, candidates: candidates_lib.Number = 0):
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
        del given
        top = jnp.max(of["regret"])
        top = jnp.where(top > 0, top, 1.0)
        return draws.weighted(jnp.where(of["known"] > 0, of["regret"], top) + floor * top, key)

    return draws.draw(candidates, {"regret": 0.0, "known": 0.0}, update, score)


@define.source
def lim(visits: types.Count = 4, keep: types.Number = 0.2, candidates: candidates_lib.Number = 0):
    """Draw prompts whose learning curve follows the mean curve.

    s = 1 - sum_k (r_k - m_k)^2 / sum_k (1 - m_k)^2, with r_k the success rate of the prompt at its k-th visit and m the
    mean of r over all prompts. Until every prompt has had ``visits`` visits, those of the fewest are drawn; then those
    with s >= keep, and those of the shuffle first. If too few are left, those of the largest s follow. Source: LIMR
    (arXiv 2502.11886), which selects once, after a run of its own, with a threshold of 0.2 in the code.

    Args:
      visits: K, steps in which a prompt is seen before it is judged; K numbers are kept of each prompt.
      keep: least s.
      candidates: see ``draws``.
    """

    def update(of: draws.Statistics, step: draws.Seen) -> draws.Statistics:
        now = (jnp.arange(visits)[None, :] == of["visits"][:, None]) & (step.count > 0)[:, None]
        rate = (step.wins / jnp.maximum(step.count, 1.0))[:, None]
        seen_before = jnp.minimum(of["visits"] + (step.count > 0), float(visits))
        return {"curve": jnp.where(now, rate, of["curve"]), "visits": seen_before}

    def score(of: draws.Statistics, given: Array, key: types.Key) -> Array:
        del key
        first = jnp.where(given, 0.5, 0.0)
        aligned = alignment(of["curve"]) - keep
        judged = jnp.where(aligned >= 0, first, aligned)
        return jnp.where(jnp.min(of["visits"]) < visits, first - of["visits"], judged)

    return draws.draw(candidates, {"curve": np.zeros(visits), "visits": 0.0}, update, score, share=0.0)


def alignment(curve: Array) -> Array:
    """Return how well each curve of ``[N, K]`` follows their mean, ``[N]``: 1 on it; see ``lim``."""
    mean = jnp.mean(curve, axis=0, keepdims=True)
    room = jnp.sum((1.0 - mean) ** 2)
    return 1.0 - jnp.sum((curve - mean) ** 2, axis=1) / jnp.where(room > 0, room, 1.0)  # no room: all are 1
