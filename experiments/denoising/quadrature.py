"""The density of what a chain ends in, exactly up to the spacing of a grid: the steps are Gaussians."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.models import actors

SIDE, REACH = 121, 3.2  # points on each side of the grid, which covers [-REACH, REACH]^2


def points() -> np.ndarray:
    """Return the points of the grid, ``[SIDE^2, 2]``."""
    line = np.linspace(-REACH, REACH, SIDE)
    return np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)


CELL = (2 * REACH / (SIDE - 1)) ** 2  # area of a point


@functools.partial(jax.jit, static_argnums=0)
def densities(actor: actors.Actor, params: Any, observation: jax.Array) -> jax.Array:
    """Return p(x_k) on the grid for the states k = 0 to K of a chain, ``[K + 1, SIDE^2]``.

        p(x_{k+1}) = sum over x_k of p(x_k) N(x_{k+1}; m(x_k), s_k^2) times the area of a point

    Each N is a product of two numbers, so that a step is one product of matrices ``[SIDE, SIDE^2]``.

    Args:
      actor: a denoiser of two numbers, all of whose steps add noise.
      params: its parameters.
      observation: ``[O]``.
    """
    grid = jnp.asarray(points(), jnp.float32)
    line = grid[:SIDE, 1]
    seen = jnp.broadcast_to(observation, (len(grid), observation.size))

    def step(density: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        policy = actor.transition(params, seen, grid, jnp.full(len(grid), number))
        z = (line[None, None] - policy.mean[..., None]) * jnp.exp(-policy.log_std)[..., None]  # [grid, 2, SIDE]
        kernel = jnp.exp(-0.5 * z**2 - policy.log_std[..., None]) / jnp.sqrt(2.0 * jnp.pi)
        after = (kernel[:, 0] * density[:, None]).T @ kernel[:, 1] * CELL
        return after.reshape(-1), after.reshape(-1)

    first = jnp.exp(-0.5 * jnp.sum(grid**2, axis=1)) / (2.0 * jnp.pi)
    _, rest = jax.lax.scan(step, first, jnp.arange(actor.denoising.steps))
    return jnp.concatenate([first[None], rest])


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Return KL(p || q) of densities on the grid, nats."""
    p, q = (np.asarray(x, np.float64) for x in (p, q))
    p, q = p / p.sum(), q / q.sum()
    where = p > 1e-14
    return float(np.sum(p[where] * np.log(p[where] / np.maximum(q[where], 1e-300))))


def tilted(p: np.ndarray, reward: np.ndarray, beta: float) -> np.ndarray:
    """Return the density q = p exp(reward / beta) / Z, which maximizes E_q reward - beta KL(q || p)."""
    log = np.log(np.maximum(np.asarray(p, np.float64), 1e-300)) + reward / beta
    q = np.exp(log - log.max())
    return q / q.sum() / CELL
