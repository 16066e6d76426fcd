"""Divergences between distributions over a module's k most probable tokens and all others as one token.

Merging tokens never increases such a divergence (the data-processing inequality), so it is at most that over the
vocabulary, grows with k, and equals it where k is the size of the vocabulary.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rljax import models, types
from rljax.models.network import transformer
from rljax.models.scores import head
from rljax.transforms import modules, ops
from rljax.types import Array

Ranked = Mapping[str, int]  # the largest k of each module


def apart(needs: types.Needs) -> tuple[types.Needs, Ranked]:
    """Return the needs without divergences over most probable tokens, and their modules with the largest k."""
    tops = {name: count for name in needs.divergence if (count := modules.top(name))}
    ranked: dict[str, int] = {}
    for name, count in sorted(tops.items()):
        (module,) = modules.parts(name)[1]
        ranked[module] = max(count, ranked.get(module, 0))
    return dataclasses.replace(needs, divergence=needs.divergence - {*tops}), ranked


def columns(rollout: types.Rollout, ranked: Ranked, put: Callable[[Array], Array]) -> dict[str, tuple[Array, Array]]:
    """Return the k tokens of each module, ``[X, W, k]``, and their log-probabilities and the rest's, [X, W, k + 1].

    Args:
      rollout: its ``scores`` are read.
      ranked: the modules.
      put: moves ``[B, T, ...]`` to ``[X, W, ...]``.

    Raises:
      ValueError: the rollout lacks them, or has fewer tokens.
    """
    out = {}
    for module, count in ranked.items():
        stored = modules.score(rollout, module, "top")
        if stored[0].shape[-1] < count:
            raise ValueError(f"rollout.scores[{module!r}].top has {stored[0].shape[-1]} tokens, expected {count}")
        out[module] = (put(stored[0][..., :count]), put(merged(stored[1], count)))
    return out


def merged(logp: Array, count: int) -> Array:
    """Return log-probabilities ``[..., count + 1]`` of the first ``count`` tokens and of all others as one token."""
    if logp.shape[-1] == count + 1:
        return logp
    rest = jax.nn.logsumexp(logp[..., count:], axis=-1, keepdims=True)
    return jnp.concatenate([logp[..., :count], rest], axis=-1)


def positive(temperature: Array | float) -> Array:
    """Return the temperature as an array; 1 for 0, the temperature of greedy sampling."""
    temperature = jnp.asarray(temperature, jnp.float32)
    return jnp.where(temperature > 0, temperature, 1.0)


def most_probable(
    model: models.Model,
    params: types.Tree,
    request: head.Request,
    count: int,
    temperature: Array | float,
    columns: Mapping[str, Any],
) -> dict[str, tuple[Array, Array]]:
    """Return ``types.Scores.top`` of groups of columns by that name: [n, B, c, k] and [n, B, c, k + 1]."""
    weight = transformer.unembedding(model.architecture, params).T
    ids, logp = head.most_probable(request, columns["hidden"], weight, positive(temperature), count)
    real = columns["real"][..., None]
    return {"top": (jnp.where(real, ids, 0), jnp.where(real, logp, 0.0))}


def divergences(names: frozenset[str], live: Mapping[str, Array], stored: Mapping[str, Any]) -> dict[str, Array]:
    """Return the divergences of the policy from the modules, by their names in ``Needs.divergence``.

    Args:
      names: their names; those over the vocabulary are left out.
      live: the policy's log-probabilities of each module's tokens and the rest, ``[..., k + 1]``.
      stored: see ``columns``.
    """
    out = {}
    for full in sorted(names):
        if count := modules.top(full):
            name, (module,), _ = modules.parts(full)
            out[full] = ops.divergence(name, merged(live[module], count), merged(stored[module][1], count))
    return out
