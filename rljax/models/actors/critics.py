"""What a policy is worth to critics of actions: the expectation of Q over its actions, differentiable in the policy."""

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
