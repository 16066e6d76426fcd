"""Schedules and adaptive coefficients: they may be used wherever a piece takes a number.

A schedule counts the steps of its phase; an adaptive coefficient follows a metric. Their state is part of the
algorithm's, so it is checkpointed and restored.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
import optax

from rljax import types
from rljax.transforms import define


def _counted(schedule: optax.Schedule) -> types.Controller:
    return types.Controller(
        init=lambda: jnp.zeros((), jnp.int32),
        value=lambda count: jnp.asarray(schedule(count), jnp.result_type(float)),
        update=lambda count, metrics: count + 1,
    )


def _steered(initial: float, update: Callable[[types.Array, types.Metrics], types.Array]) -> types.Controller:
    """Return a controller whose state is its value."""
    return types.Controller(lambda: jnp.asarray(initial, jnp.result_type(float)), lambda value: value, update)


@define.schedule
def linear(start: float, end: float, steps: types.Count) -> types.Controller:
    """Go from ``start`` to ``end`` over ``steps`` steps, then stay.

    Args:
      start: first value.
      end: last value.
      steps: steps of the phase from first to last.
    """
    return _counted(optax.linear_schedule(start, end, steps))


@define.schedule
def cosine(start: float, end: float, steps: types.Count) -> types.Controller:
    """Go from ``start`` to ``end`` along half a cosine over ``steps`` steps, then stay.

    Args:
      start: first value.
      end: last value.
      steps: steps of the phase from first to last.
    """

    def value(count):
        share = jnp.clip(count / steps, 0.0, 1.0)
        return end + (start - end) * 0.5 * (1.0 + jnp.cos(jnp.pi * share))

    return _counted(value)


@define.schedule
def exponential(start: types.Positive, end: types.Positive, steps: types.Count) -> types.Controller:
    """Go from ``start`` to ``end`` by a constant factor each step over ``steps`` steps, then stay.

    Args:
      start: first value.
      end: last value.
      steps: steps of the phase from first to last.
    """
    return _counted(lambda count: start * (end / start) ** jnp.clip(count / steps, 0.0, 1.0))


@define.schedule
def staircase(
    initial: float,
    change: float,
    every: types.Count,
    start: int = 0,
    low: types.Bound = -math.inf,
    high: types.Bound = math.inf,
) -> types.Controller:
    """Add ``change`` at the steps start + 1, start + 1 + every, ..., clamped to [low, high].

    value = clip(initial + change ceil(max(step - start, 0) / every), low, high).

    Args:
      initial: first value.
      change: added at each stair.
      every: steps of a stair.
      start: last step with the first value.
      low: lower bound.
      high: upper bound.
    """

    def value(count):
        stairs = jnp.ceil(jnp.maximum(count - start, 0) / every)
        return jnp.clip(initial + change * stairs, low, high)

    return _counted(value)


@define.schedule
def decay(initial: float, factor: types.Positive, every: types.Count = 1, low: float = 0.0) -> types.Controller:
    """Multiply by ``factor`` every so many steps: max(initial factor^floor(step / every), low).

    Args:
      initial: first value.
      factor: multiplies the value.
      every: steps between two multiplications.
      low: lower bound.
    """
    return _counted(lambda count: jnp.maximum(initial * factor ** jnp.floor(jnp.asarray(count) / every), low))


@define.schedule
def piecewise(values: tuple[tuple[int, float], ...]) -> types.Controller:
    """Use each value from its step on: ((0, 1.0), (100, 0.5)) is 1 up to step 99 and 0.5 from then on."""

    def value(count):
        steps, numbers = (jnp.asarray(x) for x in zip(*values, strict=True))
        return numbers[jnp.maximum(jnp.sum(count >= steps) - 1, 0)]

    return _counted(value)


@define.schedule
def oscillating(low: types.Positive, high: types.Positive, period: types.Count = 4) -> types.Controller:
    """Go from ``low`` to ``high`` and back, again and again, by a constant factor each step.

    value = low (high / low)^(1 - |1 - 2 step / period|), step modulo period. Cyclical curriculum learning (arXiv
    2202.05531) so varies the share of the examples that it trains on.

    Args:
      low: first value.
      high: value after half a period.
      period: steps until the first value is reached again.
    """

    def value(count):
        share = 1.0 - jnp.abs(1.0 - 2.0 * (count % period) / period)
        return low * (high / low) ** share

    return _counted(value)


@define.schedule
def adaptive_difficulty(
    initial: types.Fraction = 0.0,
    target: types.Fraction = 0.5,
    slope: types.Positive = 2.0,
    step: types.Positive = 0.01,
) -> types.Controller:
    """Move towards harder prompts while the accuracy is above a target, towards easier ones while it is below.

    c <- clip(c + step tanh(slope (accuracy - target)), 0, 1): the accuracy's part of the draw of GAIN-RL (arXiv
    2506.02281), whose step is half a batch of ranks. Reads the metric ``accuracy``.

    Args:
      initial: first value.
      target: accuracy at which it stays.
      slope: of the tanh.
      step: largest change after a step.
    """
    return _steered(
        initial, lambda c, metrics: jnp.clip(c + step * jnp.tanh(slope * (metrics["accuracy"] - target)), 0.0, 1.0)
    )


@define.schedule
def adaptive_kl(
    initial: types.Positive, target: types.Positive, horizon: types.Positive = 10_000.0
) -> types.Controller:
    """Steer a KL coefficient towards a target divergence.

    beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon), n = rows of the step
    (Ziegler et al., Fine-Tuning Language Models from Human Preferences, arXiv 1909.08593, section 2.2).
    Reads the metrics ``kl`` (nats a token) and ``valid_rows``.

    Args:
      initial: first coefficient.
      target: divergence to reach, nats a token.
      horizon: rows over which the coefficient adapts.
    """

    def update(beta, metrics):
        error = jnp.clip(metrics["kl"] / target - 1.0, -0.2, 0.2)
        return beta * (1.0 + error * metrics["valid_rows"] / horizon)

    return _steered(initial, update)


@define.schedule
def adaptive_entropy(
    target: types.Positive, initial: types.NonNegative = 0.01, step: types.Positive = 0.005
) -> types.Controller:
    """Steer an entropy coefficient: + step after a step with entropy <= target, - step after others; 0 above target.

    Skywork-OR1 (arXiv 2505.22312). Reads the metric ``live_entropy`` (nats a token), which ``penalty.entropy`` writes.

    Args:
      target: entropy to keep, nats a token.
      initial: first coefficient.
      step: change of the coefficient after a step.
    """

    def update(state, metrics):
        coefficient, _ = state
        below = metrics["live_entropy"] <= target
        return jnp.maximum(coefficient + jnp.where(below, step, -step), 0.0), below

    return types.Controller(
        init=lambda: (jnp.asarray(initial, jnp.result_type(float)), jnp.ones((), bool)),
        value=lambda state: jnp.where(state[1], state[0], 0.0),
        update=update,
    )


@define.schedule
def dual_entropy(target: types.Number, initial: types.Positive = 0.2, step: types.Positive = 0.003) -> types.Controller:
    """Steer a coefficient until the entropy is at a target: alpha <- alpha exp(step clip(target - entropy, -1, 1)).

    The dual variable of a constraint on the entropy: gradient ascent in log alpha (SAC, arXiv 1812.05905, eq. 18),
    clipped. Differs from ``adaptive_entropy`` by moving in proportion to the distance, and by going to either side, so
    that the target may be negative, as densities have. Reads the metric ``live_entropy``, which ``penalty.entropy``
    writes.

    Args:
      target: entropy to reach, nats a token or an action; of A numbers in [-1, 1] SAC takes -A.
      initial: first coefficient.
      step: change of its logarithm after a step, for each nat of distance up to 1.
    """
    return _steered(
        initial, lambda c, metrics: c * jnp.exp(step * jnp.clip(target - metrics["live_entropy"], -1.0, 1.0))
    )


@define.schedule
def multiplier(
    metric: str,
    limit: float,
    rate: types.Positive = 0.05,
    initial: types.NonNegative = 0.0,
    most: types.Positive = 10.0,
) -> types.Controller:
    """Steer the price of a constraint, metric <= limit: c <- clip(c + rate (metric - limit), 0, most).

    Gradient ascent on the Lagrange multiplier, as in reward constrained policy optimization (RCPO, arXiv 1805.11074)
    and Safe RLHF (arXiv 2310.12773): ``reward.charge('cost', multiplier('reward/cost', 0.1))`` keeps the mean of the
    part "cost" at 0.1 or below. For a bound from below give the negative of a quantity. Reads any metric of the step.

    Args:
      metric: its name.
      limit: largest value that costs nothing, in the unit of the metric.
      rate: change of the price after a step, for each unit above the limit.
      initial: first price.
      most: largest price.
    """

    def update(price, metrics):
        if metric not in metrics:
            raise ValueError(f"multiplier: no metric {metric!r}; a step has {', '.join(sorted(metrics))}")
        return jnp.clip(price + rate * (metrics[metric] - limit), 0.0, most)

    return _steered(initial, update)


@define.schedule
def adaptive_mixture(
    target: types.NonNegative,
    initial: types.Fraction = 0.5,
    step: types.Number = 5e-4,
    low: types.Fraction = 0.05,
    high: types.Fraction = 0.95,
) -> types.Controller:
    """Steer the weight of imitation by the entropy: mu <- clip(mu + step (target - entropy), low, high).

    The entropy term of AMFT (arXiv 2508.06944), without its meta-gradient, which needs the gradients of a validation
    loss and of both terms: 1 - mu, the weight of the policy term, is the same schedule with -``step`` and the bounds of
    1 - mu. An index of papers records that the authors asked to withdraw the manuscript. Reads the metric ``entropy``
    (nats a token, at sampling).

    Args:
      target: entropy at which it stays, nats a token.
      initial: first value.
      step: change for each nat of distance.
      low: smallest value.
      high: largest value.
    """
    return _steered(initial, lambda c, metrics: jnp.clip(c + step * (target - metrics["entropy"]), low, high))
