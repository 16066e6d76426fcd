"""One piece of this study's own, and an algorithm made of it and the library's pieces."""

import jax
import jax.numpy as jnp

from rljax import algorithms, types
from rljax.transforms import advantage, define, reduce


@define.surrogate
def tapered(
    loss: types.Loss, rollout: types.Rollout, scores: types.Scores, power: types.NonNegative = 1.0
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Push wrong tokens down only as far as they are likely: -A logp if A >= 0, else -A sg(p^power) logp.

    With p = exp(logp), the gradient where A < 0 is -A p^power times that of logp. Power 0 is
    ``surrogate.reinforce``; power 1 descends on the probability itself, since p times the gradient of
    logp is the gradient of p. Source: none, it is an example. The factor sg(p^power) is not
    differentiated (sg: stop-gradient).

    Args:
      loss: what the pieces before it wrote; not read.
      rollout: the rows.
      scores: what the model gives for them.
      power: how fast the push fades; no unit.

    Returns:
      The policy term, ``[B, T]`` nats, and the metric ``taper``, ``[B, T]``, the factor.
    """
    if rollout.advantage is None or scores.logp is None:
        raise ValueError("tapered: needs rollout.advantage and scores.logp; give the recipe an advantage piece")
    factor = jnp.where(rollout.advantage < 0, jax.lax.stop_gradient(jnp.exp(power * scores.logp)), 1.0)
    return -rollout.advantage * factor * scores.logp, {"taper": factor}


@algorithms.recipe
def tapered_rloo(power: types.NonNegative = 1.0):
    """REINFORCE with a leave-one-out baseline whose negative updates fade; ``rloo()`` at power 0."""
    return algorithms.compose(
        advantage=[advantage.leave_one_out()],
        loss=[tapered(power)],
        reduce=reduce.mean_over_rows_of_sums(),
    )
