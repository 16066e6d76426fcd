"""Unbiased estimators of pass@k, pass^k, maj@k and best@k, and confidence intervals.

Shapes: P prompts, n samples per prompt of which c are correct, K values of k. NumPy, float64.

    pass@k   the probability that at least one of k samples is correct      1 - C(n - c, k) / C(n, k)
    pass^k   the probability that all k samples are correct                 C(c, k) / C(n, k)
    maj@k    the probability that their most frequent answer is correct     from random subsets
    best@k   the probability that the one of the largest score is correct   see ``best_of_k``

All but maj@k average over all subsets of k of the n samples. Raising the average of c / n to a power is biased.
"""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def powers_of_two(samples: int) -> list[int]:
    """Return 1, 2, 4, ... up to ``samples``."""
    return [2**i for i in range(samples.bit_length())]


def pass_at_k(correct: npt.ArrayLike, samples: npt.ArrayLike, k: Sequence[int]) -> Floats:
    """Return the unbiased estimate of the probability that at least one of k samples is correct, per prompt.

    pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod_{j < k} (n - c - j) / (n - j). Every factor is in [0, 1], so nothing
    overflows. Source: Chen et al., Evaluating Large Language Models Trained on Code, arXiv 2107.03374, equation 1.

    Args:
      correct: ``[P]`` int, number of correct samples c of each prompt.
      samples: int or ``[P]`` int, number of samples n of each prompt.
      k: the K values of k, each from 1 to the smallest n.

    Returns:
      ``[P, K]`` float64 in [0, 1]; the mean over prompts is the estimate for a task.

    Raises:
      ValueError: no prompt, c outside [0, n], or k outside [1, n].
    """
    c, n, tries = _checked(correct, samples, k)
    return 1.0 - _drawn_from(n - c, n, tries)


def pass_hat_k(correct: npt.ArrayLike, samples: npt.ArrayLike, k: Sequence[int]) -> Floats:
    """Return the unbiased estimate of the probability that all k samples are correct, per prompt.

    pass^k = C(c, k) / C(n, k). Source: Yao et al., tau-bench, arXiv 2406.12045. It equals ``pass_at_k`` at k = 1 and
    decreases in k, whereas that increases.

    Args:
      correct: ``[P]`` int, number of correct samples c of each prompt.
      samples: int or ``[P]`` int, number of samples n of each prompt.
      k: the K values of k, each from 1 to the smallest n.

    Returns:
      ``[P, K]`` float64 in [0, 1].

    Raises:
      ValueError: as ``pass_at_k``.
    """
    c, n, tries = _checked(correct, samples, k)
    return _drawn_from(c, n, tries)


def majority_at_k(
    answer: npt.ArrayLike, correct: npt.ArrayLike, k: Sequence[int], *, seed: int = 0, draws: int = 1024
) -> Floats:
    """Return an estimate of the probability that the most frequent answer of k samples is correct, per prompt.

    maj@k, self-consistency (arXiv 2203.11171). Answers that are equally frequent win equally often; where one answer is
    correct in some samples only, such as behind a working that counts too, its share of correct ones counts. Each
    sample is in each place equally often, as the first k of all n rotations of random orders are drawn: so at k = 1 and
    k = n there is no error of the draw, and between the mean over P prompts deviates by about 0.5 / sqrt(P draws / k)
    from the average over all subsets.

    Args:
      answer: ``[P, n]`` int, the number of each sample's answer; negative: it has none, and does not vote.
      correct: ``[P, n]``, whether the sample is correct.
      k: the K values of k, each from 1 to n.
      seed: of the random orders.
      draws: subsets of k samples that are drawn of each prompt: a multiple of n, n at least.

    Returns:
      ``[P, K]`` float64 in [0, 1].

    Raises:
      ValueError: no prompt, arrays of different shapes, or k outside [1, n].
    """
    number = _integers("answer", answer)
    right = _of_each("answer", number, correct)
    (prompts, n), out = number.shape, np.zeros((len(number), len(k)))
    _checked(np.zeros(prompts, np.int64), n, k)
    generator, turned = np.random.default_rng(seed), (np.arange(n)[:, None] + np.arange(n)[None, :]) % n
    for p in range(prompts):
        voters = number[p] >= 0
        _, place = np.unique(number[p][voters], return_inverse=True)
        if not place.size:
            continue
        kinds = place.max() + 1
        share = np.bincount(place, right[p][voters]) / np.bincount(place)
        of = np.full(n, kinds)  # the last column counts those that do not vote
        of[voters] = place
        drawn = np.concatenate([of[generator.permutation(n)][turned] for _ in range(max(draws // n, 1))])
        rows = np.arange(len(drawn))[:, None] * (kinds + 1)
        for column, tries in enumerate(k):
            counted = np.bincount((drawn[:, :tries] + rows).ravel(), minlength=len(drawn) * (kinds + 1))
            votes = counted.reshape(len(drawn), kinds + 1)[:, :kinds]
            most = votes.max(axis=1, keepdims=True)
            wins = (votes == most) & (most > 0)
            out[p, column] = (wins @ share / np.maximum(wins.sum(axis=1), 1)).mean()
    return out


def best_of_k(score: npt.ArrayLike, correct: npt.ArrayLike, k: Sequence[int]) -> Floats:
    """Return the probability that the sample of the largest score among k is correct, per prompt.

    A sample is chosen with probability (C(b + t, k) - C(b, k)) / (t C(n, k)), where b samples have a smaller score and
    t, itself included, the same one: equal scores win equally often.

    Args:
      score: ``[P, n]``, such as the rewards of a model.
      correct: ``[P, n]``, whether the sample is correct.
      k: the K values of k, each from 1 to n.

    Returns:
      ``[P, K]`` float64 in [0, 1].

    Raises:
      ValueError: as ``majority_at_k``.
    """
    x = np.asarray(score, np.float64)
    right = _of_each("score", x, correct)
    below, upto = (compare(x[:, None, :], x[:, :, None]).sum(axis=2) for compare in (np.less, np.less_equal))
    among = [_drawn_from(*_checked(number.ravel(), x.shape[1], k)) for number in (upto, below)]
    chosen = (among[0] - among[1]).reshape(*x.shape, -1) / (upto - below)[..., None]
    return (chosen * right[..., None]).sum(axis=1)


def support(base: npt.ArrayLike, result: npt.ArrayLike) -> dict[str, float]:
    """Return which prompts each of two evaluations solves, in shares of the prompts and as rates.

    A prompt is solved if at least one sample is correct. With P, S, E the numbers of prompts solved by both, by the
    base alone and by the result alone: retention = P / (P + S), discovery = E / (P + E). Source: the empirical support
    of The Invisible Leash (arXiv 2507.14843), there of completions whose probability is above a bound.

    Args:
      base: ``[N]``, number of correct samples of each prompt.
      result: ``[N]``, the same of the second evaluation, on the same prompts with as many samples.

    Returns:
      "both", "base", "result" and "neither", which add up to 1, "retention" and "discovery"; NaN without a prompt.

    Raises:
      ValueError: no prompt, or evaluations of different numbers of prompts.
    """
    before, after = _integers("base", base) > 0, _integers("result", result) > 0
    if before.ndim != 1 or before.shape != after.shape or not before.size:
        raise ValueError(f"base, result: got shapes {before.shape} and {after.shape}, must be [N] with N at least 1")
    kept, lost, new = before & after, before & ~after, after & ~before
    counts = {"both": kept, "base": lost, "result": new, "neither": ~(before | after)}
    shares = {name: float(np.mean(solved)) for name, solved in counts.items()}
    return {**shares, "retention": _rate(kept, before), "discovery": _rate(new, after)}


def _rate(some: npt.NDArray[np.bool_], of: npt.NDArray[np.bool_]) -> float:
    return float(some.sum() / of.sum()) if of.any() else float("nan")


def bootstrap(
    values: npt.ArrayLike, *, seed: int = 0, resamples: int = 2000, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Return the percentile bootstrap interval of the mean over prompts.

    Prompts, that is, rows of ``values``, are resampled with replacement; the interval is between the quantiles
    (1 - level) / 2 and (1 + level) / 2 of the resampled means. It is too narrow for few prompts. Where all prompts have
    0, or all have 1, all resamples are equal and the ``wilson`` interval is returned instead.

    Args:
      values: ``[P, K]``, or ``[P]`` for K = 1.
      seed: seed of the NumPy generator; equal seeds give equal intervals.
      resamples: number of resamples.
      level: the coverage, in (0, 1).

    Returns:
      The lower and the upper ends, each ``[K]`` float64.

    Raises:
      ValueError: no prompt, a shape of another rank, resamples < 1, or level outside (0, 1).
    """
    table = np.asarray(values, np.float64)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.shape[0] == 0:
        raise ValueError(f"values: got shape {np.shape(values)}, must be [P] or [P, K] with P at least 1")
    if resamples < 1:
        raise ValueError(f"resamples: got {resamples}, must be at least 1")
    _check_level(level)
    prompts = table.shape[0]
    generator = np.random.default_rng(seed)
    chunk = max(1, 2**22 // prompts)  # resamples per batch: at most 32 MiB of counts
    means = np.concatenate(
        [
            generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=min(chunk, resamples - start)) @ table
            for start in range(0, resamples, chunk)
        ]
    )
    low, high = np.quantile(means / prompts, [(1 - level) / 2, (1 + level) / 2], axis=0)
    for certain in (0, 1):
        constant = np.all(table == certain, axis=0)
        low[constant], high[constant] = wilson(prompts * certain, prompts, level=level)
    return low, high


def means(values: npt.ArrayLike) -> list[list[float]]:
    """Return [mean, low, high] with the 95 % ``bootstrap`` interval of each of K columns ``[P, K]``, or of ``[P]``."""
    table = np.asarray(values, np.float64)
    return [[float(x) for x in row] for row in zip(np.atleast_1d(table.mean(axis=0)), *bootstrap(table), strict=True)]


def share(successes: int, total: int) -> list[float]:
    """Return [mean, low, high] of a proportion with its 95 % ``wilson`` interval."""
    return [successes / total, *wilson(successes, total)]


def wilson(successes: int, total: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion.

    With p = successes / total, n = total and z the normal quantile of (1 + level) / 2:
    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n). Unlike the normal interval, it stays in [0, 1]
    and has a positive width at 0 and n successes. Source: Wilson, Probable inference, the law of succession, and
    statistical inference, JASA 22, 1927.

    Args:
      successes: number of successes.
      total: number of trials.
      level: the coverage, in (0, 1).

    Returns:
      The lower and the upper end, in [0, 1].

    Raises:
      ValueError: total < 1, successes outside [0, total], or level outside (0, 1).
    """
    if total < 1:
        raise ValueError(f"total: got {total}, must be at least 1")
    if not 0 <= successes <= total:
        raise ValueError(f"successes: got {successes}, must be in [0, {total}]")
    _check_level(level)
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    p = successes / total
    center = p + z * z / (2 * total)
    half = z * (p * (1 - p) / total + z * z / (4 * total * total)) ** 0.5
    scale = 1 + z * z / total
    # At 0 and n successes one end is exactly 0 or 1; rounding could miss it by an ulp.
    low = 0.0 if successes == 0 else (center - half) / scale
    high = 1.0 if successes == total else (center + half) / scale
    return low, high


def _of_each(name: str, values: npt.NDArray[Any], correct: npt.ArrayLike) -> Floats:
    """Return whether each sample is correct, ``[P, n]``, as ``values`` must be."""
    right = np.asarray(correct, np.float64)
    if values.ndim != 2 or not values.size or right.shape != values.shape:
        raise ValueError(f"{name}, correct: got shapes {values.shape} and {right.shape}, must be [P, n] with P, n > 0")
    return right


def _drawn_from(good: npt.NDArray[np.int64], samples: npt.NDArray[np.int64], k: npt.NDArray[np.int64]) -> Floats:
    """Return C(good, k) / C(samples, k), ``[P, K]``: the probability that k samples are all among the ``good``."""
    removed = np.arange(k.max())[None, :]  # number of samples removed before each one
    probability = np.maximum(good[:, None] - removed, 0) / (samples[:, None] - removed)
    return np.cumprod(probability, axis=1)[:, k - 1]


def _checked(
    correct: npt.ArrayLike, samples: npt.ArrayLike, k: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    c = _integers("correct", correct)
    n = _integers("samples", samples)
    tries = _integers("k", k)
    if c.ndim != 1 or c.size == 0:
        raise ValueError(f"correct: got shape {c.shape}, must be [P] with P at least 1")
    if n.ndim > 1 or (n.ndim == 1 and n.shape != c.shape):
        raise ValueError(f"samples: got shape {n.shape}, must be one number or one per prompt, [{c.size}]")
    if tries.ndim != 1 or tries.size == 0:
        raise ValueError(f"k: got {k!r}, must be a sequence of at least one number")
    n = np.broadcast_to(n, c.shape)
    if (c < 0).any() or (c > n).any():
        row = int(np.flatnonzero((c < 0) | (c > n))[0])
        raise ValueError(f"correct: got {c[row]} of {n[row]} samples for prompt {row}, must be in [0, {n[row]}]")
    if tries.min() < 1 or tries.max() > n.min():
        raise ValueError(
            f"k: got {tries.tolist()}, must be in [1, {n.min()}], the smallest number of samples of a prompt"
        )
    return c, n, tries


def _integers(name: str, value: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(value)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name}: got {array.dtype}, must be integers")
    return array.astype(np.int64)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level: got {level}, must be in (0, 1)")
