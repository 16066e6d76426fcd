"""A policy of the sampler made of several networks: log-probs shifted by the values of critics."""

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp

from rljax import models, types

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Shifted:
    """A ``Policy``: pi(a | s) ~ pi_0(a | s) exp(beta (min_i Q_i(s, a) - V(s))), Q_i the logits of critics.

    The perturbed policy of ILQL (arXiv 2206.11871, section 4.3). V(s) is one number for all tokens, so that it cancels
    and nothing reads it. Logits of policy and critics are divided by the temperature together, as ``ilql`` trains them.
    Parameters, weights and caches are tuples, one entry for each network.
    """

    networks: tuple[models.Model, ...]  # the policy, then the critics
    beta: float  # factor of Q - V, in nats for a unit of the return

    def decode_params(self, params: types.Tree) -> types.Tree:
        """Return the parameters of each network in the form that the other functions read."""
        return tuple(model.decode_params(p) for model, p in zip(self.networks, params, strict=True))

    def _all(self, each: list[tuple[Array, Any]]) -> tuple[Array, Any]:
        """Return the hidden states of all networks side by side, and their caches."""
        return jnp.concatenate([hidden for hidden, _ in each], axis=-1), tuple(cache for _, cache in each)

    def prefill(self, weights: types.Tree, *read: Any) -> tuple[Array, Any]:
        """Run every network over the prompts."""
        return self._all([model.prefill(w, *read) for model, w in zip(self.networks, weights, strict=True)])

    def extend(self, weights: types.Tree, token: Array, mask: Array, cache: Any) -> tuple[Array, Any]:
        """Append one token to each row in every network."""
        each = zip(self.networks, weights, cache, strict=True)
        return self._all([model.extend(w, token, mask, c) for model, w, c in each])

    def select(self, cache: Any, prompts: Array | None, rows: Array) -> Any:
        """Return the caches of a selection of rows."""
        return tuple(model.select(c, prompts, rows) for model, c in zip(self.networks, cache, strict=True))

    def logits(self, params: types.Tree, hidden: Array) -> Array:
        """Return the shifted logits, from the hidden states of all networks side by side."""
        ends = itertools.accumulate(model.architecture.width for model in self.networks)
        parts = jnp.split(hidden, [*ends][:-1], axis=-1)
        z, *q = (model.logits(w, h) for model, w, h in zip(self.networks, params, parts, strict=True))
        return z + self.beta * jnp.min(jnp.stack(q), axis=0)
