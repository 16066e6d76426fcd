"""The estimator of means over runs and of differences between two arms, with 95 % intervals.

Runs that differ in their seed alone are the replicates. Two cases, which ``Estimate.over`` names:

- The value of each prompt is known, and all runs have the same prompts, as in an evaluation: the interval covers seeds
  and prompts, that is, other seeds and other prompts of the task.
- One number for each run, as a metric of the training: Student's t over runs. Of numbers that are means over prompts
  that the runs share, this covers other seeds on these prompts alone.

With one run, an interval over its prompts does not contain the variation between seeds.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import special

from rljax.run.evaluation import passk

LEVEL = 0.95
RESAMPLES = 2000
ANY = -math.inf, math.inf  # the range of a quantity without bounds
UNIT = 0.0, 1.0
_NONE = math.nan, math.nan

Floats = npt.NDArray[np.float64]
Values = float | Floats  # of a run: one number, or [P], one for each prompt


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A quantity of an evaluation: mean, interval over prompts, and the value of each prompt if they are known."""

    mean: float
    interval: tuple[float, float]
    values: Floats | None = None


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean or a difference, with its interval.

    Attributes:
      mean: the estimate.
      low: lower end of the interval; nan without one.
      high: upper end of the interval; nan without one.
      count: number of runs, or of pairs of runs if they are paired.
      over: what the interval is over: a field such as "seed", "prompts", or "seed and prompts"; after "paired" or
        "unpaired" if it is a difference, and after "equal" if there is none as all values are equal; "" if
        there is none as there is one run.
      freedom: degrees of freedom of Student's t whose quantile times the standard error is half of the interval.
    """

    mean: float
    low: float
    high: float
    count: int
    over: str = ""
    freedom: float = math.inf

    def p(self, bound: float = 0.0) -> float:
        """Return the two-sided p value of the hypothesis that the quantity is ``bound``; 1 without an interval.

        It is below 1 - ``LEVEL`` if and only if ``bound`` lies outside the interval.
        """
        side = self.mean - self.low if bound < self.mean else self.high - self.mean
        if math.isnan(side) or bound == self.mean:
            return 1.0
        ratio = abs(self.mean - bound) / side if side else math.inf
        # scipy's distribution needs a finite number; at 1e9 it is the normal one
        return 2 * float(special.stdtr(min(self.freedom, 1e9), -ratio * _t(self.freedom)))


def mean(
    values: Sequence[Values], over: str = "seed", prompts: Prompts | None = None, bounds: tuple[float, float] = ANY
) -> Estimate:
    """Return the mean over runs with its interval; equal values have none.

    Args:
      values: of each run, a number, or ``[P]`` if the value of each of P prompts is known, the same for all runs.
      over: the field in which the runs differ.
      prompts: with one run, its evaluation.
      bounds: the range of the quantity, in which the interval lies.

    Returns:
      The estimate.

    Raises:
      ValueError: no run, or runs of different numbers of prompts.
    """
    table = _table(values)
    count, center = len(table), float(table.mean())
    if count == 1 and prompts:
        return Estimate(center, *prompts.interval, 1, "prompts")
    if count == 1 and table.shape[1] > 1:
        low, high = passk.bootstrap(table[0])
        return Estimate(center, float(low[0]), float(high[0]), 1, "prompts")
    return _estimate([table], over, bounds) if count > 1 else Estimate(center, *_NONE, 1)


def difference(
    first: Mapping[Hashable, Values],
    second: Mapping[Hashable, Values],
    over: str = "seed",
    bounds: tuple[float, float] = ANY,
) -> Estimate:
    """Return the mean of ``second`` minus the mean of ``first``, with its interval.

    It is paired by prompt if the values of the prompts are known, and by seed if both have the same seeds, at least
    two. Otherwise seeds are independent: Welch's variance (Biometrika 34, 1947), with the degrees of freedom of
    Satterthwaite.

    Args:
      first: the baseline's values by seed, see ``mean``.
      second: the other arm's values by seed.
      over: the field that ``first`` and ``second`` are keyed by.
      bounds: the range of the quantity; the range of the difference follows.

    Returns:
      The estimate; without an interval if an arm has one run.

    Raises:
      ValueError: an arm without a run, or runs of different numbers of prompts.
    """
    width, paired = bounds[1] - bounds[0], first.keys() == second.keys() and len(first) > 1
    a, b = _table(list(first.values())), _table([second[key] for key in (first if paired else second)])
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"got {a.shape[1]} and {b.shape[1]} prompts, must be the same in both arms.")
    if paired:
        return _estimate([b - a], over, (-width, width), "paired ")
    if min(len(a), len(b)) < 2:
        return Estimate(float(b.mean() - a.mean()), *_NONE, len(a) + len(b))
    return _estimate([b, a], over, (-width, width), "unpaired ")


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
        if np.ptp(gaps) == 0:  # all resamples are equal: as many prompts may still differ as a proportion of 0 allows
            share = all(np.all((x >= 0) & (x <= 1)) for x in (first.values, second.values))
            wide = passk.wilson(0, len(gaps))[1] if share else math.nan
            return Estimate(center, max(center - wide, -1.0), min(center + wide, 1.0), 2, "paired prompts")
        low, high = passk.bootstrap(gaps)
        return Estimate(center, float(low[0]), float(high[0]), 2, "paired prompts")
    (a, (a_low, a_high)), (b, (b_low, b_high)) = (first.mean, first.interval), (second.mean, second.interval)
    low, high = math.hypot(b - b_low, a_high - a), math.hypot(b_high - b, a - a_low)
    return Estimate(center, max(center - low, -1.0), min(center + high, 1.0), 2, "prompts")


def holm(p: Sequence[float]) -> list[float]:
    """Return p values corrected for their number, by Holm's step-down procedure.

    In ascending order, p_(i) becomes the largest of (m - j + 1) p_(j), j <= i, at most 1. All hypotheses with a
    corrected value of at most alpha can be rejected, with a probability of at most alpha that one of them is true.
    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.

    Args:
      p: m values in [0, 1].

    Returns:
      The corrected values, in the order of ``p``.
    """
    order, largest, corrected = np.argsort(p, kind="stable"), 0.0, [0.0] * len(p)
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * float(p[i])))
        corrected[int(i)] = largest
    return corrected


# --- the estimator ---------------------------------------------------------------------------------


def _estimate(arms: Sequence[Floats], over: str, bounds: tuple[float, float], kind: str = "") -> Estimate:
    """Return the mean of the first arm, minus the mean of the second if there is one.

    For the runs r and prompts p of an arm, x_rp = mu + seed_r + prompt_p + rest_rp, so that the variance of the mean
    of S runs and P prompts is (s_seed^2 + s_rest^2 / P) / S + s_prompt^2 / P. The first part is estimated by the
    variance of the means of runs and has S - 1 degrees of freedom, the second by the variance of the means of prompts
    less what s_rest adds to it. With t the quantiles of Student's t, the half width of the interval is

        h = sqrt(t_{S-1}^2 first + t_{P-1}^2 second)

    which is Student's interval over runs if P = 1. With more prompts, the interval has the shape of the bootstrap that
    resamples seeds and prompts independently (Owen, The pigeonhole bootstrap, Annals of Applied Statistics 1, 2007),
    stretched to the half width h: the bootstrap alone counts s_rest three times, and is too narrow for two or three
    runs.

    Args:
      arms: ``[S, P]`` each, with the same prompts.
      over: the field in which the runs of an arm differ.
      bounds: the range of the mean, or of the difference.
      kind: of the difference.
    """
    signs = (1.0, -1.0)[: len(arms)]
    prompts, count = arms[0].shape[1], sum(map(len, arms))
    center = float(sum(sign * x.mean() for sign, x in zip(signs, arms, strict=True)))
    parts = np.array([x.mean(axis=1).var(ddof=1) / len(x) for x in arms])
    of_prompts = sum(sign * x.mean(axis=0) for sign, x in zip(signs, arms, strict=True))
    scale = max(float(np.abs(x).max()) for x in arms)
    constant = max(float(np.ptp(x.mean(axis=1))) for x in arms) <= 1e-12 * scale
    several = 0.0 if prompts == 1 else float(np.var(of_prompts, ddof=1)) / prompts - sum(map(_rest, arms))
    second = max(several, 0.0)
    if constant and second <= (1e-12 * scale) ** 2:  # an interval of width 0 would claim certainty
        return _equal(center, count, prompts, over, bounds, kind)
    freedom = 1.0 if constant else parts.sum() ** 2 / (parts**2 / [len(x) - 1 for x in arms]).sum()
    squared = _t(freedom) ** 2 * parts.sum()
    if prompts == 1:
        half = math.sqrt(squared)
        return Estimate(center, *_within(center - half, center + half, bounds), count, f"{kind}{over}", float(freedom))
    squared += _t(prompts - 1) ** 2 * second
    low, high = _within(*_shape(arms, signs, center, math.sqrt(squared)), bounds)
    quantile = math.sqrt(squared / (parts.sum() + second))
    known = float(special.stdtridf((1 + LEVEL) / 2, quantile))
    return Estimate(center, low, high, count, f"{kind}{over} and prompts", known)


def _rest(table: Floats) -> float:
    """Return the estimate of s_rest^2 / (S P), see ``_estimate``."""
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    count, prompts = table.shape
    return float((rest**2).sum() / ((count - 1) * (prompts - 1)) / table.size)


def _shape(arms: Sequence[Floats], signs: Sequence[float], center: float, half: float) -> tuple[float, float]:
    """Return the interval of the pigeonhole bootstrap, stretched: its deviation times the quantile is ``half``."""
    generator = np.random.default_rng(0)

    def weights(count: int) -> Floats:
        return generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count

    runs = sum(sign * (weights(len(x)) @ x) for sign, x in zip(signs, arms, strict=True))
    means = np.einsum("rp,rp->r", runs, weights(arms[0].shape[1]))
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    stretch = half / (special.ndtri((1 + LEVEL) / 2) * means.std())
    return center - stretch * (center - low), center + stretch * (high - center)


def _equal(center: float, count: int, prompts: int, over: str, bounds: tuple[float, float], kind: str) -> Estimate:
    """Return the estimate where all values are equal: of a proportion at the end of its range; otherwise none."""
    end = (bounds == UNIT and center in bounds) or (bounds == (-1.0, 1.0) and center == 0.0)
    if prompts == 1 or not end:
        return Estimate(center, *_NONE, count, f"equal {over}")
    part = passk.wilson(0, prompts)[1]  # as many prompts may still differ as a proportion of 0 allows
    return Estimate(center, *_within(center - part, center + part, bounds), count, f"{kind}{over} and prompts")


def _within(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    return min(max(low, bounds[0]), bounds[1]), min(max(high, bounds[0]), bounds[1])


def _table(values: Sequence[Values]) -> Floats:
    """Return the values of an arm, ``[S, P]``, P = 1 for numbers."""
    rows = [np.atleast_1d(np.asarray(x, np.float64)) for x in values]
    sizes = {row.shape for row in rows}
    if len(sizes) != 1:
        raise ValueError(f"values: got shapes {sorted(sizes)}, must be one for all runs.")
    return np.stack(rows)


def _t(freedom: float) -> float:
    """Return the quantile of Student's t distribution for a two-sided interval."""
    return float(special.stdtrit(min(freedom, 1e9), (1 + LEVEL) / 2))
