"""Draws by the posterior of the success rate of each prompt."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import draws


def _mean(of: draws.Statistics) -> types.Array:
    return of["wins"] / (of["wins"] + of["losses"])


def weighted(weight: types.Array, key: types.Key) -> types.Array:
    """Return scores whose largest are a draw without replacement, with probabilities as ``weight`` ``[n]``."""
    return jnp.log(weight) + jax.random.gumbel(key, weight.shape)


@define.source
def vade(
    decay: types.Fraction = 0.9, unseen: types.Fraction = 0.99, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw prompts of the largest p (1 - p), with p drawn from a posterior that is forgotten at two rates.

    The posterior of ``mopps``, in which prompts that were not drawn move towards the prior too, by another decay.
    Source: VADE (arXiv 2511.18902) for the posterior, the Thompson draw and the two decays. Its information gain and
    its constants were not available: p (1 - p), and which prompts each decay applies to, are assumptions.

    Args:
      decay: of prompts drawn in the step.
      unseen: of the others.
      candidates: see the module.
    """

    def score(of: draws.Statistics, given: types.Array, key: types.Key) -> types.Array:
        p = jax.random.beta(key, of["wins"], of["losses"])
        return p * (1.0 - p)

    return draws.draw(candidates, draws.PRIOR, draws.posterior(decay, unseen), score)


@define.source
def by_failure(decay: types.Fraction = 1.0, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw prompts with weights 1 - success rate. Prioritized sampling of Kimi k1.5 (arXiv 2501.12599).

    The rate is the mean a / (a + b) of the posterior of ``mopps``, 1/2 for a prompt not seen yet.

    Args:
      decay: see ``mopps``.
      candidates: see the module.
    """
    return draws.draw(
        candidates, draws.PRIOR, draws.posterior(decay), lambda of, _, key: weighted(1.0 - _mean(of), key)
    )


@define.source
def by_deviation(
    floor: types.Positive = 0.05, decay: types.Fraction = 1.0, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw prompts with weights sqrt(v (1 - v)) + floor, v the success rate. SPO (arXiv 2509.13232).

    The rate is computed as in ``by_failure``; SPO's decay depends on the change of the policy, here it is a number.

    Args:
      floor: weight of a prompt that always or never succeeds.
      decay: see ``mopps``.
      candidates: see the module.
    """

    def score(of: draws.Statistics, given: types.Array, key: types.Key) -> types.Array:
        v = _mean(of)
        return weighted(jnp.sqrt(v * (1.0 - v)) + floor, key)

    return draws.draw(candidates, draws.PRIOR, draws.posterior(decay), score)


@define.source
def hard_replay(
    share: types.Fraction = 0.25, decay: types.Fraction = 1.0, candidates: candidates_lib.Number = 0
) -> types.Source:
    """Draw a share of the prompts from prompts seen before, with weights 1 / success rate; the rest from the shuffle.

    Source: difficulty-aware retrospective sampling of QwenLong-L1 (arXiv 2505.17667), there between phases. Statistics
    pass to the next phase if its task and source are the same. The rate is computed as in ``by_failure``, above 0.

    Args:
      share: of the prompts of a step; what cannot be filled so is drawn at random.
      decay: see ``mopps``.
      candidates: see the module.
    """

    def score(of: draws.Statistics, given: types.Array, key: types.Key) -> types.Array:
        before = of["wins"] + of["losses"] > 2.0 + 1e-3  # more than the prior
        return jnp.where(given, jnp.inf, jnp.where(before, weighted(1.0 / _mean(of), key), -jnp.inf))

    return draws.draw(candidates, draws.PRIOR, draws.posterior(decay), score, share)
