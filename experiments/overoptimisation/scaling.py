"""Best-of-n without bias, and the forms of Gao et al. of the gold reward against the KL from the base."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def best_of_n(proxy: npt.ArrayLike, value: npt.ArrayLike, n: Sequence[int]) -> Floats:
    """Return the expected value of the sample that the proxy ranks first among n, averaged over prompts.

    The mean over all subsets of n of the N samples of a prompt: sum_i C(i - 1, n - 1) / C(N, n) value_i, i = 1..N in
    the order of the proxy; samples of equal proxy share their places. The estimator of WebGPT (arXiv 2112.09332) and of
    Gao et al. (arXiv 2210.10760), from memory.

    Args:
      proxy: ``[P, N]``, by which is selected.
      value: ``[P, N]``, what is averaged: the gold reward, or the proxy itself.
      n: K numbers of samples, each in [1, N].

    Returns:
      ``[K]`` float64.

    Raises:
      ValueError: an n outside of [1, N], or shapes that differ.
    """
    by, x = np.asarray(proxy, np.float64), np.asarray(value, np.float64)
    if by.ndim != 2 or by.shape != x.shape:
        raise ValueError(f"proxy, value: got shapes {by.shape} and {x.shape}, must be [P, N] both")
    count = by.shape[1]
    if not all(1 <= k <= count for k in n):
        raise ValueError(f"n: got {tuple(n)}, must be in [1, {count}], the samples of a prompt")
    order = np.argsort(by, axis=1)
    by, x = np.take_along_axis(by, order, axis=1), np.take_along_axis(x, order, axis=1)
    for ranked, of in zip(by, x, strict=True):
        place = np.cumsum(np.diff(ranked, prepend=ranked[0]) > 0)
        of[:] = (np.bincount(place, of) / np.bincount(place))[place]
    weight = [[math.comb(i, k - 1) / math.comb(count, k) for i in range(count)] for k in n]
    return np.array(weight) @ x.mean(axis=0)


def best_of_n_kl(n: int) -> float:
    """Return the KL of best-of-n from what it samples, log n - (n - 1) / n nats; an upper bound if samples repeat.

    Exact if no two samples have one score: Stiennon et al. (arXiv 2009.01325), from memory. The bound: Beirami et al.
    (arXiv 2401.01879), from memory.
    """
    return math.log(n) - (n - 1) / n


@dataclasses.dataclass(frozen=True)
class Fit:
    """R(d) = d (alpha - beta d) of best-of-n, or d (alpha - beta log d) of RL, d = sqrt(KL).

    ``explained`` is the share of the variance of R that the form explains, below 0 if the mean of R is closer to it.
    """

    alpha: float
    beta: float
    explained: float
    logarithm: bool

    def __call__(self, d: npt.ArrayLike) -> Floats:
        """Return R at d > 0."""
        x = np.asarray(d, np.float64)
        return x * (self.alpha - self.beta * (np.log(x) if self.logarithm else x))

    @property
    def peak(self) -> float:
        """The KL at which R is largest; infinity if it does not turn down."""
        if self.beta <= 0:
            return math.inf
        if not self.logarithm:
            return (max(self.alpha, 0.0) / (2 * self.beta)) ** 2
        exponent = 2 * (self.alpha / self.beta - 1)
        return math.exp(exponent) if exponent < 700 else math.inf


def fit(kl: npt.ArrayLike, gain: npt.ArrayLike, logarithm: bool) -> Fit:
    """Fit a form of Gao et al. (arXiv 2210.10760, from memory) by least squares.

    Args:
      kl: ``[N]`` nats; points at or below 0 are left out, where the forms are 0.
      gain: ``[N]``, R: the reward less that of the base.
      logarithm: the form of RL; else that of best-of-n.

    Returns:
      The fit; nan with fewer than two points.
    """
    x, y = np.asarray(kl, np.float64), np.asarray(gain, np.float64)
    d, y = np.sqrt(x[x > 0]), y[x > 0]
    if d.size < 2:
        return Fit(math.nan, math.nan, math.nan, logarithm)
    terms = np.stack([d, -d * (np.log(d) if logarithm else d)], axis=1)
    alpha, beta = np.linalg.lstsq(terms, y)[0]
    spread = float(np.sum((y - y.mean()) ** 2))
    rest = float(np.sum((y - terms @ [alpha, beta]) ** 2))
    return Fit(float(alpha), float(beta), 1 - rest / spread if spread else math.nan, logarithm)


def at(kl: Sequence[float], value: Sequence[float], target: float) -> float:
    """Return the value where a run first is at a KL, linear in sqrt(KL) between measurements; nan if it never is."""
    d, goal = np.sqrt(np.maximum(kl, 0.0)), math.sqrt(target)
    after = int(np.argmax(d >= goal))
    if d[after] < goal:
        return math.nan
    if after == 0:
        return float(value[0])
    part = (goal - d[after - 1]) / (d[after] - d[after - 1])
    return float(value[after - 1] + part * (value[after] - value[after - 1]))
