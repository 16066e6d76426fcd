"""Mixtures of domains, chosen by runs: a surrogate of the score over the weights of domains, and a run at its maximum.

    from rljax.run.members import mixtures

    config = rljax.get_config("quickstart")
    config.task = "arithmetic(operands=2, digits=(1, 2, 3), noise=0.25)"  # three domains
    result = mixtures.search(config, mixtures.design(3), "runs/mixture", candidates=65536)

The surrogate of MoDoMoDo (arXiv 2505.24871, from memory) is quadratic in the weights. On the simplex of K weights its
general form is Scheffe's polynomial (Experiments with Mixtures, 1958), which has K (K + 1) / 2 coefficients and no
redundant one:

    f(w) = sum_i a_i w_i + sum_{i < j} b_ij w_i w_j.
"""

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Callable, Sequence

import numpy as np

from rljax.config import schema
from rljax.data import storage
from rljax.run import loop
from rljax.run.members import many, population, sweep

_WORD = "mixtures"
_LARGEST = 1_000_000  # mixtures that the maximum is searched among

Weights = tuple[float, ...]
"""The weight of each domain; the sum is 1."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
      weights: where the surrogate is largest.
      predicted: its value there.
      errors: of each run that it was fitted to, its value minus the score.
      runs: these runs.
      best: the run with ``weights``.
    """

    weights: Weights
    predicted: float
    errors: tuple[float, ...]
    runs: tuple[sweep.Run, ...]
    best: sweep.Run


def simplex(domains: int, parts: int) -> list[Weights]:
    """Return every mixture whose weights are multiples of 1 / parts; ValueError above a million."""
    count = math.comb(parts + domains - 1, parts) if parts > 0 else 0
    if not 1 <= count <= _LARGEST:
        raise ValueError(f"{_WORD}: {domains} domains in {parts} parts are {count} mixtures: expected 1 to {_LARGEST}")
    bars = itertools.combinations(range(parts + domains - 1), domains - 1)
    ends = ((-1, *b, parts + domains - 1) for b in bars)
    return [tuple((high - low - 1) / parts for low, high in itertools.pairwise(e)) for e in ends]


def design(domains: int) -> list[Weights]:
    """Return the simplex-lattice design of degree 2 and its centroid: domains alone, pairs in equal parts, and all."""
    corners = np.eye(domains)
    pairs = [(corners[i] + corners[j]) / 2 for i, j in itertools.combinations(range(domains), 2)]
    every = [*corners, *pairs, *([np.full(domains, 1 / domains)] if domains > 2 else [])]
    return [tuple(map(float, w)) for w in every]


def features(weights: Sequence[Weights]) -> np.ndarray:
    """Return the terms of the polynomial, ``[M, K (K + 1) / 2]``: w_i, then w_i w_j for i < j."""
    w = np.asarray(weights, np.float64)
    first, second = np.triu_indices(w.shape[1], 1)
    return np.concatenate([w, w[:, first] * w[:, second]], axis=1)


def fit(weights: Sequence[Weights], scores: Sequence[float]) -> np.ndarray:
    """Return the coefficients of the polynomial with the least squared error.

    Raises:
      ValueError: the mixtures do not determine it.
    """
    terms = features(weights)
    coefficients, _, rank, _ = np.linalg.lstsq(terms, np.asarray(scores, np.float64))
    if rank < terms.shape[1]:
        raise ValueError(
            f"{_WORD}: {len(weights)} mixtures determine {rank} of {terms.shape[1]} coefficients: add mixtures, such "
            "as those of mixtures.design."
        )
    return coefficients


def search(
    config: schema.ConfigDict,
    weights: Sequence[Sequence[float]],
    workdir: str | os.PathLike[str],
    *,
    parts: int = 20,
    candidates: int = 0,
    score: Callable[[loop.Result], float] = population.accuracy,
    progress: bool = True,
) -> Found:
    """Train on given mixtures of the task's domains, fit the surrogate, and train on the mixture at its maximum.

    Prompts are drawn by ``source.mixed`` in place of ``config.seam.source``. A call that was interrupted resumes.

    Args:
      config: of every run; only the mixture differs.
      weights: of the runs that the surrogate is fitted to; those of a run are divided by their sum.
      workdir: folder of the runs, and of ``mixtures.json``, which has weights, scores and the surrogate.
      parts: the maximum is searched among mixtures of multiples of 1 / parts.
      candidates: prompts that are drawn from, see ``source.mixed``; 0: all of the task.
      score: of a result; the larger, the better.
      progress: as in ``train_many``.

    Returns:
      The mixture, and the runs.

    Raises:
      ValueError: weights that are negative or all 0, or differ in number; mixtures that do not determine the
        surrogate; a run that failed; what ``train_many`` refuses.
    """
    if not weights:
        raise ValueError(f"{_WORD}: weights={weights}: expected mixtures, such as those of mixtures.design")
    mixtures, folder = [_normalized(w, len(weights[0])) for w in weights], storage.path(workdir)
    fit(mixtures, [0.0] * len(mixtures))  # refuses too few before any run
    every = simplex(len(mixtures[0]), parts)
    runs = train(config, mixtures, folder / "fitted", candidates=candidates, progress=progress)
    done = [(w, float(score(run.result))) for w, run in zip(mixtures, runs, strict=True) if run.result is not None]
    if len(done) < len(runs):
        failure = next(run.failure for run in runs if run.result is None)
        raise ValueError(f"{_WORD}: {len(runs) - len(done)} of {len(runs)} runs failed; the first: {failure}")
    coefficients = fit(mixtures, [s for _, s in done])
    values = features(every) @ coefficients
    place = int(np.argmax(values))
    chosen, predicted = every[place], float(values[place])
    errors = features(mixtures) @ coefficients - [s for _, s in done]
    [best] = train(config, [chosen], folder / "chosen", candidates=candidates, progress=progress)
    record = {
        "runs": [{"weights": w, "score": s} for w, s in done],
        "coefficients": coefficients.tolist(),
        "chosen": {
            "weights": chosen,
            "predicted": predicted,
            "score": None if best.result is None else float(score(best.result)),
        },
    }
    storage.write(folder / "mixtures.json", json.dumps(record, indent=1) + "\n")
    return Found(chosen, predicted, tuple(map(float, errors)), tuple(runs), best)


def train(
    config: schema.ConfigDict,
    weights: Sequence[Weights],
    workdir: str | os.PathLike[str],
    *,
    candidates: int = 0,
    progress: bool = True,
) -> list[sweep.Run]:
    """Train on each mixture, all in one program; arguments as in ``search``, weights that sum to 1."""
    config = config.copy_and_resolve_references()
    config.seam.source = f"mixed(weights={weights[0]!r}, candidates={candidates})"
    return many.train_many(config, [{"seam.source.weights": w} for w in weights], workdir, progress=progress)


def _normalized(weights: Sequence[float], domains: int) -> Weights:
    if len(weights) != domains or min(weights, default=-1.0) < 0 or not 0 < sum(weights) < math.inf:
        raise ValueError(f"{_WORD}: weights={tuple(weights)}: expected {domains} numbers from 0 on, not all 0")
    return tuple(w / sum(weights) for w in weights)
