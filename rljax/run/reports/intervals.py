"""Means with 95 % intervals over the runs of an arm, and differences between two arms.

Runs that differ in their seed alone are the replicates, so that intervals are Student's t over runs. With one run there
is only the interval over the prompts of its evaluation, which does not contain the variation between seeds.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import special

from rljax.run import passk

LEVEL = 0.95
_NONE = math.nan, math.nan


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A quantity of an evaluation: mean, interval over prompts, and the value of each prompt if they are known."""

    mean: float
    interval: tuple[float, float]
    values: npt.NDArray[np.float64] | None = None


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean or a difference, with its interval.

    Attributes:
      mean: the estimate.
      low: lower end of the interval; nan without one.
      high: upper end of the interval; nan without one.
      count: number of runs, or of pairs of runs if they are paired.
      over: what the interval is over: a field or "prompts", after "paired" or "unpaired" if it is that of a difference,
        and after "equal" if there is none as all values are equal; "" if there is none as there is one run.
    """

    mean: float
    low: float
    high: float
    count: int
    over: str = ""


def mean(values: Sequence[float], over: str = "seed", prompts: Prompts | None = None, unit: bool = False) -> Estimate:
    """Return the mean over runs with Student's t interval, mean -+ t_{n-1} s / sqrt(n); equal values have none.

    Args:
      values: one value for each run.
      over: the field in which the runs differ.
      prompts: with one run, its evaluation.
      unit: whether the quantity lies in [0, 1]; then so does the interval.

    Returns:
      The estimate.
    """
    count = len(values)
    center = float(np.mean(values))
    if count == 1:
        return Estimate(center, *prompts.interval, 1, "prompts") if prompts else Estimate(center, *_NONE, 1)
    if np.ptp(values) <= 1e-12 * np.max(np.abs(values)):  # an interval of width 0 would claim certainty
        return Estimate(center, *_NONE, count, f"equal {over}")
    half = _t(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    low, high = (max(center - half, 0.0), min(center + half, 1.0)) if unit else (center - half, center + half)
    return Estimate(center, low, high, count, over)


def difference(first: Mapping[object, float], second: Mapping[object, float], over: str = "seed") -> Estimate:
    """Return the mean of ``second`` minus that of ``first``, with its interval.

    If both have the same seeds, at least two, the interval is Student's t over the differences of each seed. Otherwise
    the runs are independent: Welch's t (Biometrika 34, 1947), with the degrees of freedom of Satterthwaite.

    Args:
      first: the baseline's values by seed.
      second: the other arm's values by seed.
      over: the field that ``first`` and ``second`` are keyed by.

    Returns:
      The estimate; without an interval if an arm has one run.
    """
    if first.keys() == second.keys() and len(first) > 1:
        paired = mean([second[key] - first[key] for key in first], over)
        return paired if math.isnan(paired.low) else dataclasses.replace(paired, over=f"paired {over}")
    a, b = np.array(list(first.values())), np.array(list(second.values()))
    center, count = float(b.mean() - a.mean()), len(a) + len(b)
    if min(len(a), len(b)) < 2:
        return Estimate(center, *_NONE, count)
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    if not parts.any():
        return Estimate(center, *_NONE, count, f"equal {over}")
    freedom = parts.sum() ** 2 / (parts**2 / [len(a) - 1, len(b) - 1]).sum()
    half = _t(freedom) * math.sqrt(parts.sum())
    return Estimate(center, center - half, center + half, count, f"unpaired {over}")


def difference_over_prompts(first: Prompts, second: Prompts, center: float) -> Estimate:
    """Return the difference between two runs with its interval over prompts.

    With the values of each prompt, it is the bootstrap interval over the differences of each prompt. Without them, the
    two intervals are combined as if the prompts were independent, so that the interval is usually too wide.

    Args:
      first: the baseline's evaluation.
      second: the other run's, on the same prompts.
      center: the difference.
    """
    if first.values is not None and second.values is not None and len(first.values) == len(second.values):
        gaps = second.values - first.values
        if not gaps.any():  # all resamples are equal: as many prompts may still differ as a proportion of 0 allows
            high = passk.wilson(0, len(gaps))[1]
            return Estimate(center, -high, high, 2, "paired prompts")
        low, high = passk.bootstrap(gaps)
        return Estimate(center, float(low[0]), float(high[0]), 2, "paired prompts")
    (a, (a_low, a_high)), (b, (b_low, b_high)) = (first.mean, first.interval), (second.mean, second.interval)
    low, high = math.hypot(b - b_low, a_high - a), math.hypot(b_high - b, a - a_low)
    return Estimate(center, center - low, center + high, 2, "prompts")


def _t(freedom: float) -> float:
    """Return the quantile of Student's t distribution for a two-sided interval."""
    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))
