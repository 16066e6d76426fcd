"""The network of an actor: layers of hidden units over normalized observations."""

import dataclasses
import itertools
import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from rljax.language import settings
from rljax.language.settings import setting
from rljax.models.architectures import FROZEN, Width
from rljax.types import Array, Key, Range, Tree

STATISTICS = f"observation{FROZEN}"
_CLIP = 10.0  # of a normalized observation


@dataclasses.dataclass(frozen=True)
class Mlp:
    """The network of the policy of a control world; critics have another of the same shape."""

    layers: Annotated[int, Range(0, 1000)] = setting(2, "Hidden layers; 0: a linear map.", fixed=True)
    width: Width = setting(64, "Units of a hidden layer.", fixed=True)
    activation: Literal["tanh", "relu", "silu"] = setting("tanh", "Of the hidden units.", fixed=True)
    normalise: bool = setting(
        False, "Whether observations are normalized by running mean and deviation, part of the state.", fixed=True
    )
    squash: bool = setting(False, "Whether actions are tanh of Gaussians; else Gaussians, clipped.", fixed=True)
    log_std: Annotated[float, Range(-10, 10)] = setting(
        0.0, "First log standard deviation of Gaussian actions.", fixed=True
    )
    std: Literal["free", "output"] = setting(
        "free", "Standard deviations: the same in all states, or outputs of the network.", fixed=True
    )

    __post_init__ = settings.check

    def init(self, key: Key, observed: int, outputs: int, scale: float, more: int = 0) -> Tree:
        """Return parameters: orthogonal matrices, times sqrt(2), in the last layer ``scale``; biases are 0."""
        sizes = [observed + more, *[self.width] * self.layers, outputs]
        params: dict[str, Tree] = {}
        for number, (rows, columns) in enumerate(itertools.pairwise(sizes)):
            draw = jax.nn.initializers.orthogonal(scale if number == self.layers else math.sqrt(2.0))
            kernel = draw(jax.random.fold_in(key, number), (rows, columns), jnp.float32)
            params[f"layer_{number}"] = {"kernel": kernel, "bias": jnp.zeros(columns)}
        if self.normalise:
            params[STATISTICS] = {"count": jnp.zeros(()), "mean": jnp.zeros(observed), "square": jnp.zeros(observed)}
        return params

    def apply(self, params: Tree, observation: Array, *more: Array) -> Array:
        """Return the outputs ``[..., outputs]`` for observations ``[..., O]`` and further inputs, not normalized."""
        x = observation
        if self.normalise:
            of = params[STATISTICS]
            deviation = jnp.sqrt(of["square"] / jnp.maximum(of["count"], 1.0) + 1e-8)
            mean, deviation = (jnp.broadcast_to(y, x.shape) for y in (of["mean"], deviation))
            x = jnp.where(of["count"] > 0, jnp.clip((x - mean) / deviation, -_CLIP, _CLIP), x)
        x = jnp.concatenate([x, *more], axis=-1) if more else x
        activate = {"tanh": jnp.tanh, "relu": jax.nn.relu, "silu": jax.nn.silu}[self.activation]
        for number in range(self.layers + 1):
            layer = params[f"layer_{number}"]
            x = x @ layer["kernel"]
            x = x + jnp.broadcast_to(layer["bias"], x.shape)
            x = x if number == self.layers else activate(x)
        return x

    def observed(self, params: Tree, observation: Array, weight: Array) -> Tree:
        """Return parameters whose statistics contain more observations.

        Args:
          params: from ``init``.
          observation: ``[..., O]``.
          weight: ``[...]``, 1 on observations that count.

        Returns:
          The parameters; count, mean and sum of squared differences are merged as in Chan et al. (1983).
        """
        if not self.normalise:
            return params
        of, w = params[STATISTICS], weight[..., None]
        flat = tuple(range(weight.ndim))
        count = jnp.sum(weight)
        mean = jnp.sum(jnp.where(w > 0, observation, 0.0), axis=flat) / jnp.maximum(count, 1.0)
        apart = observation - jnp.broadcast_to(mean, observation.shape)
        square = jnp.sum(jnp.where(w > 0, apart**2, 0.0), axis=flat)
        total = jnp.maximum(of["count"] + count, 1.0)
        gap = mean - of["mean"]
        merged = {
            "count": of["count"] + count,
            "mean": of["mean"] + gap * count / total,
            "square": of["square"] + square + gap**2 * of["count"] * count / total,
        }
        return {**params, STATISTICS: merged}
