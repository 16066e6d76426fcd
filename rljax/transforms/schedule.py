"""Numbers that move: they may stand wherever a piece takes a number.

A schedule counts the steps of its phase; an adaptive coefficient follows a metric. Their state is the
algorithm's, so it is checkpointed and restored.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from rljax import transforms, types


def _controller(constructor: Callable[..., types.Controller]) -> Callable[..., types.Controller]:
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def build(*args: Any, **kwargs: Any) -> types.Controller:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        built = constructor(*bound.args, **bound.kwargs)
        return types.Controller(
            built.init, built.value, built.update, transforms.call(constructor.__name__, bound.arguments)
        )

    build.is_piece = True  # type: ignore[attr-defined]
    return build


def _counted(schedule: optax.Schedule) -> types.Controller:
    return types.Controller(
        init=lambda: jnp.zeros((), jnp.int32),
        value=lambda count: jnp.asarray(schedule(count), jnp.float32),
        update=lambda count, metrics: count + 1,
    )


@_controller
def linear(start: float, end: float, steps: types.Count) -> types.Controller:
    """Go from ``start`` to ``end`` over ``steps`` steps, then stay."""
    return _counted(optax.linear_schedule(start, end, steps))


@_controller
def cosine(start: float, end: float, steps: types.Count) -> types.Controller:
    """Go from ``start`` to ``end`` along half a cosine over ``steps`` steps, then stay."""

    def value(count):
        share = jnp.clip(count / steps, 0.0, 1.0)
        return end + (start - end) * 0.5 * (1.0 + jnp.cos(jnp.pi * share))

    return _counted(value)


@_controller
def adaptive_kl(
    initial: types.Positive, target: types.Positive, horizon: types.Positive = 10_000.0
) -> types.Controller:
    """Steer a KL coefficient towards a target divergence.

    beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon), n = rows of the step
    (Ziegler et al., Fine-Tuning Language Models from Human Preferences, arXiv 1909.08593, section 2.2).
    Reads the metrics ``kl`` (nats a token) and ``valid_rows``.
    """

    def update(beta, metrics):
        error = jnp.clip(metrics["kl"] / target - 1.0, -0.2, 0.2)
        return beta * (1.0 + error * metrics["valid_rows"] / horizon)

    return types.Controller(init=lambda: jnp.float32(initial), value=lambda beta: beta, update=update)
