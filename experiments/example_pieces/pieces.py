"""A surrogate of this study, and a recipe that combines it with pieces of the library."""

import jax
import jax.numpy as jnp

from rljax import algorithms, types
from rljax.transforms import advantage, define, reduce


@define.surrogate
def tapered(
    loss: types.Loss, rollout: types.Rollout, scores: types.Scores, power: types.NonNegative = 1.0
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Scale down the negative updates of unlikely tokens: -A logp if A >= 0, else -A sg(p^power) logp.

    With p = exp(logp), the gradient where A < 0 is -A p^power times that of logp. At power 0 the piece is
    ``surrogate.reinforce``. At power 1 the term has the gradient of -A p, since p times the gradient of logp
    is the gradient of p. The factor sg(p^power) is not differentiated (sg: stop-gradient). Source: none, it
    is an example.

    Args:
      loss: the terms and ratios of the pieces before this one; not read.
      rollout: the rows, with ``advantage``.
      scores: the model's scores of these rows, with ``logp``.
      power: exponent of the probability; no unit.

    Returns:
      The policy term, ``[B, T]`` nats, and the metric ``own/taper``, ``[B, T]``: the factor.

    Raises:
      ValueError: the rollout has no advantage, or the scores have no logp.
    """
    if rollout.advantage is None or scores.logp is None:
        raise ValueError("tapered: needs rollout.advantage and scores.logp; give the recipe an advantage piece")
    factor = jnp.where(rollout.advantage < 0, jax.lax.stop_gradient(jnp.exp(power * scores.logp)), 1.0)
    return -rollout.advantage * factor * scores.logp, {"own/taper": factor}


@algorithms.recipe
def tapered_rloo(power: types.NonNegative = 1.0):
    """REINFORCE with a leave-one-out baseline and scaled negative updates; ``rloo()`` at power 0."""
    return algorithms.compose(
        advantage=[advantage.leave_one_out()],
        loss=[tapered(power)],
        reduce=reduce.mean_over_rows_of_sums(),
    )
