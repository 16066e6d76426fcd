"""Means with 95 % intervals over the runs of an arm, and differences between two arms.

Runs that differ in their seed alone are the replicates, so that intervals are Student's t over runs. With one run there
is only the interval over the prompts of its evaluation, which does not contain the variation between seeds.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

LEVEL = 0.95
Triple = Sequence[float]  # mean, low, high


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean or a difference, with its interval.

    Attributes:
      mean: the estimate.
      low: lower end of the interval; nan without one.
      high: upper end of the interval; nan without one.
      count: number of runs, or of pairs of runs if ``over`` begins with "paired".
      over: what the interval is over; "" without one.
    """

    mean: float
    low: float
    high: float
    count: int
    over: str = ""


def mean(values: Sequence[float], over: str = "seed", prompts: Triple | None = None, unit: bool = False) -> Estimate:
    """Return the mean over runs with Student's t interval, mean -+ t_{n-1} s / sqrt(n).

    Args:
      values: one value for each run.
      over: the field in which the runs differ.
      prompts: with one run, its mean and the interval over prompts.
      unit: whether the quantity lies in [0, 1]; then so does the interval.

    Returns:
      The estimate.
    """
    count = len(values)
    center = float(np.mean(values))
    if count == 1:
        return Estimate(*prompts, 1, "prompts") if prompts else Estimate(center, math.nan, math.nan, 1)
    half = _t(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    low, high = (max(center - half, 0.0), min(center + half, 1.0)) if unit else (center - half, center + half)
    return Estimate(center, low, high, count, over)


def difference(
    first: Mapping[object, float],
    second: Mapping[object, float],
    over: str = "seed",
    prompts: tuple[Triple | None, Triple | None] = (None, None),
) -> Estimate:
    """Return the mean of ``second`` minus that of ``first``, with its interval.

    With at least two common seeds, values are paired by seed and others are left out: t over the differences. Otherwise
    the runs are independent: Welch's t (Biometrika 34, 1947), with the Satterthwaite degrees of freedom. With one run
    in an arm, the intervals over prompts are combined as if they were independent; both arms answer the same prompts,
    so that this interval is usually too wide.

    Args:
      first: the baseline's values by seed.
      second: the other arm's values by seed.
      over: the field that ``first`` and ``second`` are keyed by.
      prompts: for each arm, the mean and the interval over prompts, where it has one run.

    Returns:
      The estimate.
    """
    common = [key for key in first if key in second]
    if len(common) > 1:
        paired = mean([second[key] - first[key] for key in common])
        return dataclasses.replace(paired, over=f"paired {over}")
    a, b = np.array(list(first.values())), np.array(list(second.values()))
    center = float(b.mean() - a.mean())
    if len(a) > 1 and len(b) > 1:
        parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
        freedom = parts.sum() ** 2 / (parts**2 / [len(a) - 1, len(b) - 1]).sum() if parts.any() else 1.0
        half = _t(freedom) * math.sqrt(parts.sum())
        return Estimate(center, center - half, center + half, len(a) + len(b), over)
    if len(a) == len(b) == 1 and prompts[0] and prompts[1]:
        (p, p_low, p_high), (q, q_low, q_high) = prompts
        low, high = math.hypot(q - q_low, p_high - p), math.hypot(q_high - q, p - p_low)
        return Estimate(center, center - low, center + high, 2, "prompts")
    return Estimate(center, math.nan, math.nan, len(a) + len(b))


def _t(freedom: float) -> float:
    """Return the quantile of Student's t distribution for a two-sided interval."""
    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))
