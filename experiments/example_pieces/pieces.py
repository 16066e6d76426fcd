"""One piece of this study's own, and an algorithm made of it and the library's pieces."""

import jax
import jax.numpy as jnp

from rljax import algorithms, transforms, types
from rljax.transforms import advantage, reduce


@transforms.piece(seam="surrogate")
def tapered(power: types.NonNegative = 1.0):
    """Push wrong tokens down only as far as they are likely: -A logp if A >= 0, else -A sg(p^power) logp.

    With p = exp(logp), the gradient where A < 0 is -A p^power times that of logp. Power 0 is
    ``surrogate.reinforce``; power 1 descends on the probability itself, since p times the gradient of
    logp is the gradient of p. Source: none, it is an example. The factor sg(p^power) is not
    differentiated (sg: stop-gradient).

    Args:
      power: how fast the push fades; no unit.
    """

    def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
        if rollout.advantage is None or scores.logp is None:
            raise ValueError("tapered: needs rollout.advantage and scores.logp; give the recipe an advantage piece")
        factor = jnp.where(rollout.advantage < 0, jax.lax.stop_gradient(jnp.exp(power * scores.logp)), 1.0)
        return loss.replace(
            terms={**loss.terms, "policy": -rollout.advantage * factor * scores.logp},
            metrics={**loss.metrics, "taper": factor},
        )

    return transforms.stateless(types.LossTransform, apply)


@algorithms.recipe
def tapered_rloo(power: types.NonNegative = 1.0):
    """REINFORCE with a leave-one-out baseline whose negative updates fade; ``rloo()`` at power 0."""
    return algorithms.compose(
        advantage=[advantage.leave_one_out()],
        loss=[tapered(power)],
        reduce=reduce.mean_over_rows_of_sums(),
    )
