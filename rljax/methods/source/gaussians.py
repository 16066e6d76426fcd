"""Draws by numbers that describe a prompt: a Gaussian mixture over parameters and learning progress."""

import functools
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import draws, groups

Array = types.Array
_ITERATIONS, _REGULARISER = 30, 1e-4  # of expectation and maximization; added to variances


class Mixture(NamedTuple):
    """A mixture of Gaussians of d dimensions; a component of weight 0 is not used."""

    weight: Array  # [k] float32, sum 1
    mean: Array  # [k, d] float32
    root: Array  # [k, d, d] float32, Cholesky factor of the covariance


@define.source
def alp_gmm(
    window: types.Count = 250,
    most: Annotated[int, types.Range(2, 32)] = 10,
    random: types.Fraction = 0.2,
    candidates: candidates_lib.Number = 4096,
) -> types.Source:
    """Draw prompts by absolute learning progress over the numbers that describe them, the task's ``parameters``.

    Progress of a prompt is |r - r'|, r its mean reward and r' that of the nearest prompt seen before, which may be
    itself. Mixtures of 2 to ``most`` Gaussians over (parameters, progress) are fitted to the last ``window`` prompts,
    and the one of the lowest Akaike criterion is kept. A draw picks a Gaussian in proportion to the mean progress that
    it has, takes parameters from it, clipped to [0, 1], and then the nearest candidate that the step does not have yet;
    a share ``random`` of the draws, and all until there are ``window`` prompts or while nothing progresses, is uniform.
    Source: ALP-GMM (arXiv 1910.07224), with its window, number of Gaussians and random share. There parameters are
    generated, here the nearest of the candidates is taken; there the mixture is fitted once per window, here after
    every step.

    Args:
      window: prompts that the mixture is fitted to.
      most: Gaussians.
      random: share of uniform draws.
      candidates: prompts that are drawn from; 0: all.

    Raises:
      ValueError: ``window`` is below ``most``, the task has no ``parameters``, or there are fewer candidates than
        prompts of a step.
    """
    if window < most:
        raise ValueError(f"alp_gmm: window={window} prompts are fewer than most={most} Gaussians")

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        if problems.parameters is None:
            raise ValueError(
                "alp_gmm: the task reports no parameters. Use a task whose prompts have some, such as "
                "cartpole(length=(0.1, 2.0), shown=True), or draw by domain with alp()."
            )
        index = candidates_lib.index(problems, candidates)
        parameters, zero = problems.parameters(index), jnp.zeros(index.shape)
        recent = jnp.zeros((window, parameters.shape[1] + 1))
        known = {"candidate": index, "parameters": parameters, "reward": zero, "known": zero}
        return known | {"recent": recent, "count": jnp.int32(0)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        index, size = pool["candidate"], offered.size
        draws.enough(index, size, candidates)
        keys = jax.random.split(key, 4)
        fitted = fit(pool["recent"], most, keys[0])
        wanted, progress = drawn(fitted, size, keys[1])
        ready = (pool["count"] >= window) & (progress > 0)
        uniform = ~ready | jax.random.bernoulli(keys[2], random, (size,))
        wanted = jnp.where(uniform[:, None], jax.random.uniform(keys[3], wanted.shape), wanted)

        place = _nearest(pool["parameters"], wanted)
        return types.Choice(index[place])

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        seen = groups.tally(rollout)
        place, there = candidates_lib.slot(pool["candidate"], seen.index)
        there &= seen.count > 0
        parameters = pool["parameters"]
        distance = jnp.sum((parameters[place][:, None] - parameters[None]) ** 2, axis=2)
        before = jnp.argmin(jnp.where(pool["known"][None] > 0, distance, jnp.inf), axis=1)
        progress = jnp.where(jnp.any(pool["known"] > 0), jnp.abs(seen.reward - pool["reward"][before]), 0.0)
        at = (pool["count"] + jnp.cumsum(there) - 1) % window
        row = jnp.concatenate([parameters[place], progress[:, None]], axis=1)
        place = jnp.where(there, place, parameters.shape[0])
        return rollout, {
            **pool,
            "reward": pool["reward"].at[place].set(seen.reward, mode="drop"),
            "known": pool["known"].at[place].set(1.0, mode="drop"),
            "recent": pool["recent"].at[jnp.where(there, at, window)].set(row, mode="drop"),
            "count": pool["count"] + jnp.sum(there, dtype=jnp.int32),
        }

    return types.Source(init=init, choose=choose, select=select)


def _nearest(parameters: Array, wanted: Array) -> Array:
    """Return the candidate nearest to each point ``[n, K]`` in turn, none of them twice, ``[n]`` int32."""

    def nearest(free: Array, point: Array) -> tuple[Array, Array]:
        distance = jnp.sum((parameters - point[None]) ** 2, axis=1)
        place = jnp.argmin(jnp.where(free, distance, jnp.inf))
        return free.at[place].set(False), place

    return jax.lax.scan(nearest, jnp.ones(parameters.shape[0], bool), wanted)[1]


def drawn(mixture: Mixture, count: int, key: types.Key) -> tuple[Array, Array]:
    """Draw parameters from Gaussians that are picked in proportion to their mean progress, the last dimension.

    Args:
      mixture: k Gaussians of d dimensions.
      count: of the draws.
      key: a typed key.

    Returns:
      ``[count, d - 1]`` float32 in [0, 1], and the sum of the mean progress, a scalar; 0: the draws mean nothing.
    """
    pick, noise = jax.random.split(key)
    progress = jnp.where(mixture.weight > 0, jnp.maximum(mixture.mean[:, -1], 0.0), 0.0)
    picked = jax.random.categorical(pick, jnp.log(progress), shape=(count,))
    normal = jax.random.normal(noise, (count, mixture.mean.shape[1]))
    point = mixture.mean[picked] + jnp.einsum("nij,nj->ni", mixture.root[picked], normal)
    return jnp.clip(point[:, :-1], 0.0, 1.0), jnp.sum(progress)


def fit(x: Array, most: int, key: types.Key) -> Mixture:
    """Fit mixtures of 2 to ``most`` Gaussians by expectation and maximization; return the one of the lowest AIC.

    AIC = 2 p - 2 ln L with p = k - 1 + k d + k d (d + 1) / 2. Each begins with k of the points as means and the
    covariance of all of them.

    Args:
      x: ``[n, d]``, the points.
      most: k of the largest mixture.
      key: a typed key, which picks the points.
    """
    d = x.shape[1]
    number = jnp.arange(2, most + 1)
    fitted, likelihood = jax.vmap(functools.partial(_fitted, x, most))(number, jax.random.split(key, most - 1))
    criterion = 2 * (number * (1 + d + d * (d + 1) / 2) - 1) - 2 * likelihood
    return jax.tree.map(lambda leaf: leaf[jnp.argmin(criterion)], fitted)


def _fitted(x: Array, most: int, number: Array, key: types.Key) -> tuple[Mixture, Array]:
    """Return a mixture of ``number`` Gaussians, of which there is room for ``most``, and its log-likelihood."""
    d, used = x.shape[1], jnp.arange(most) < number
    noise = _REGULARISER * jnp.eye(d)[None]
    mean = x[jax.random.choice(key, x.shape[0], (most,), replace=False)]
    root = jnp.linalg.cholesky(jnp.cov(x.T, bias=True).reshape(1, d, d) + noise)
    start = Mixture(used / number, mean, jnp.broadcast_to(root, (most, d, d)))

    def better(_: int, of: Mixture) -> Mixture:
        share = jax.nn.softmax(joint(of, x), axis=1)
        total = jnp.sum(share, axis=0)
        some = jnp.maximum(total, 1e-6)
        mean = share.T @ x / some[:, None]
        away = x[:, None] - mean[None]
        covariance = jnp.einsum("nk,nki,nkj->kij", share, away, away) / some[:, None, None]
        return Mixture(total / x.shape[0], mean, jnp.linalg.cholesky(covariance + noise))

    of = jax.lax.fori_loop(0, _ITERATIONS, better, start)
    return of, jnp.sum(jax.nn.logsumexp(joint(of, x), axis=1))


def joint(of: Mixture, x: Array) -> Array:
    """Return the log-density of points ``[n, d]`` and components together, ``[n, k]``; -inf of components not used."""
    away = x[:, None] - of.mean[None]
    scaled = jax.vmap(lambda root, one: jax.scipy.linalg.solve_triangular(root, one.T, lower=True), (0, 1))(
        of.root, away
    )
    volume = jnp.sum(jnp.log(jnp.diagonal(of.root, axis1=1, axis2=2)), axis=1) + x.shape[1] / 2 * np.log(2 * np.pi)
    return (jnp.log(of.weight) - volume)[None] - 0.5 * jnp.sum(scaled**2, axis=1).T
