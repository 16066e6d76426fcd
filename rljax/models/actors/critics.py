"""Critics of actions over all actions of a state: the expectation of Q over a policy's, and log int exp Q."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.models.actors import distributions
from rljax.transforms import ops
from rljax.types import Array, Tree


def least(policy: Any, critics: Sequence[tuple[Any, Tree]], rows: types.Rollout, temperature: Array | float) -> Array:
    """Return E_{a ~ policy} min_i Q_i(s, a), exact for categorical actions.

    Of Gaussian ones it is min_i Q_i(s, a) at a = acted(mean + std z), z ~ N(0, I), extra["noise"], whose gradient is
    the reparameterised one (arXiv 1801.01290, eq. 13).

    Args:
      policy: the distribution of actions in the states ``[B, T]``.
      critics: actors of output "action" and their parameters, which are not differentiated.
      rows: with ``motion``, and extra["noise"] like the actions where these are numbers.
      temperature: of the logits of critics of categorical actions.

    Returns:
      ``[B, T]``.
    """
    motion: Any = rows.motion
    frozen = [(critic, jax.lax.stop_gradient(params)) for critic, params in critics]
    if isinstance(policy, distributions.Categorical):
        each = [critic.architecture.apply(params, motion.observation) / temperature for critic, params in frozen]
        return jnp.sum(jnp.exp(policy.every_logp()) * jnp.min(jnp.stack(each), axis=0), axis=-1)
    action = policy.acted(policy.mean + jnp.exp(policy.log_std) * ops.extra(rows, "noise"))
    return jnp.min(
        jnp.stack([critic.of_action(params, motion.observation, action) for critic, params in frozen]), axis=0
    )


def every(critic: Any, params: Tree, policy: distributions.Gaussian, rows: types.Rollout) -> Array:
    """Return log int exp Q(s, a) da over the actions in (-1, 1)^A, estimated by importance sampling.

    log 1 / (2 N) (sum_i exp(Q(s, a_i)) 2^A + sum_j exp(Q(s, b_j)) / pi(b_j | s)), N actions a_i that are uniform and N
    b_j of a policy (arXiv 2006.04779, appendix F): the log of an estimator without bias.

    Args:
      critic: an actor of output "action", with ``squash``.
      params: its parameters, which are differentiated.
      policy: the distribution of actions in the states ``[B, T]``, a constant.
      rows: with ``motion``, and extra["candidates"] ``[B, T, 2 N, A]``: uniform in [-1, 1], and then from N(0, 1).

    Returns:
      ``[B, T]``.
    """
    motion: Any = rows.motion
    uniform, z = jnp.split(ops.extra(rows, "candidates"), 2, axis=-2)
    each = jax.lax.stop_gradient(jax.tree.map(lambda x: x[..., None, :], policy))
    u = each.mean + jnp.exp(each.log_std) * z
    action = jnp.concatenate([uniform, each.acted(u)], axis=-2)
    density = jnp.concatenate([jnp.full(z.shape[:-1], -z.shape[-1] * math.log(2.0)), each.logp(u)], axis=-1)
    observation = motion.observation[..., None, :]
    seen = jnp.broadcast_to(observation, (*action.shape[:-1], observation.shape[-1]))
    return jax.nn.logsumexp(critic.of_action(params, seen, action) - density, axis=-1) - math.log(action.shape[-2])
