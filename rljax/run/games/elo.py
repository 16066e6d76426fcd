"""Elo ratings of players, such as checkpoints, from the results of their games."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

Floats = npt.NDArray[np.float64]
SCALE = 400 / math.log(10)  # Elo points for each unit of log-odds


@dataclasses.dataclass(frozen=True)
class Rating:
    """A player's rating in Elo points; the mean over players is 0."""

    player: str
    elo: float
    low: float  # ends of the interval
    high: float
    games: int


def expected(difference: npt.ArrayLike) -> Floats:
    """Return the expected score of a player who is rated ``difference`` Elo points above the other player."""
    return special.expit(np.asarray(difference, np.float64) / SCALE)


def fit(points: npt.ArrayLike, prior: float = 0.0) -> Floats:
    """Return the maximum likelihood ratings of the Bradley-Terry model.

    A player i scores against j with probability ``1 / (1 + 10 ** ((r_j - r_i) / 400))``; a drawn game counts as half a
    win of each. Source: Bradley and Terry, Rank analysis of incomplete block designs, Biometrika 39, 1952.

    Args:
      points: ``[N, N]``, what player i (row) has scored against player j: wins, and half of the draws.
      prior: drawn games that are added for every player, against one of rating 0. Above 0, ratings are finite also
        where a player has won all games; they are then no longer of maximum likelihood, but nearer to 0.

    Returns:
      ``[N]`` Elo points with mean 0.

    Raises:
      ValueError: a wrong shape, negative points, or no finite maximum: some players have never lost a point to the
        others.
    """
    points = np.asarray(points, np.float64)
    if points.ndim != 2 or points.shape[0] != points.shape[1] or points.shape[0] < 2:
        raise ValueError(f"points: got shape {points.shape}, must be [N, N] with N at least 2")
    if not np.all(points >= 0) or prior < 0:
        raise ValueError("points: must not be negative, nor prior")
    count = len(points)
    if not prior and not np.all(np.linalg.matrix_power(np.eye(count) + (points > 0), count) > 0):
        raise ValueError("points: some players have never lost a point to the others; give prior > 0")

    def loss(r: Floats) -> tuple[float, Floats]:
        """Return the negative log-likelihood at log-odds r, and its gradient."""
        difference = r[:, None] - r[None, :]
        value = -np.sum(points * special.log_expit(difference))
        value -= prior / 2 * np.sum(special.log_expit(r) + special.log_expit(-r))
        lost = points * special.expit(-difference)
        return value, np.sum(lost.T - lost, axis=1) + prior / 2 * (special.expit(r) - special.expit(-r))

    result = optimize.minimize(
        loss, np.zeros(count), jac=True, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-9}
    )
    return (result.x - result.x.mean()) * SCALE


def ratings(
    games: Sequence[tuple[str, str, float]],
    *,
    prior: float = 1.0,
    seed: int = 0,
    resamples: int = 500,
    level: float = 0.95,
) -> list[Rating]:
    """Return ratings with percentile bootstrap intervals over games.

    The first move is an advantage in most games: let every pair play in both orders equally often.

    Args:
      games: (player, other player, score of the first one: 1, 0.5 or 0) of each game.
      prior: as in ``fit``.
      seed: seed of the NumPy generator.
      resamples: number of resamples.
      level: the coverage, in (0, 1).

    Returns:
      The ratings, the highest first.

    Raises:
      ValueError: fewer than two players, a score that is none, a player against itself, or as ``fit``.
    """
    for one, other, score in games:
        if score not in (0, 0.5, 1) or one == other:
            raise ValueError(f"games: got {(one, other, score)!r}, must be two players and a score of 0, 0.5 or 1")
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level: got {level}, must be in (0, 1); resamples: got {resamples}, must be at least 1")
    players = sorted({name for game in games for name in game[:2]})
    if len(players) < 2:
        raise ValueError(f"games: got {len(players)} players, must be at least 2")
    number = {name: i for i, name in enumerate(players)}
    results, counts = np.unique(
        np.array([(number[one], number[other], 2 * score) for one, other, score in games], np.int64),
        axis=0,
        return_counts=True,
    )

    def points(counts: npt.NDArray[np.int64]) -> Floats:
        table = np.zeros((len(players),) * 2)
        np.add.at(table, (results[:, 0], results[:, 1]), counts * results[:, 2] / 2)
        np.add.at(table, (results[:, 1], results[:, 0]), counts * (1 - results[:, 2] / 2))
        return table

    whole = points(counts)
    elo = fit(whole, prior)
    drawn = np.random.default_rng(seed).multinomial(len(games), counts / len(games), size=resamples)
    low, high = np.quantile([fit(points(c), prior) for c in drawn], [(1 - level) / 2, (1 + level) / 2], axis=0)
    played = np.sum(whole + whole.T, axis=1)
    made = [
        Rating(name, float(elo[i]), float(low[i]), float(high[i]), round(played[i])) for i, name in enumerate(players)
    ]
    return sorted(made, key=lambda rating: -rating.elo)
