"""A step that runs again and again, with the train state that it carries on: what all subjects time."""

from collections.abc import Callable
from typing import Any

import jax

from rljax import bench, types
from rljax.training import steps


class Runner:
    """A step with its train state; each call returns when its work is done.

    Attributes:
      step: the step.
      key: the run's key.
      state: the train state after the last call.
      rows: the rows of the last ``rollout``.
      metrics: the metrics of the last ``whole``.
    """

    def __init__(
        self, step: steps.Step, key: types.Key, produce: Callable[[types.TrainState], types.Rollout] | None = None
    ):
        """Make the train state; ``produce`` makes rows of it, and is the step's rollout by default."""
        self.step, self.key, self.state = step, key, step.begin(None, key)
        self._produce = produce
        self.rows: Any = None
        self.metrics: Any = None

    def rollout(self) -> None:
        """Make the rows of the state."""
        self.rows = jax.block_until_ready(
            self._produce(self.state) if self._produce else self.step.rollout(self.state, self.key)
        )

    def update(self) -> None:
        """Update on the rows of the last rollout."""
        self.state, metrics = self.step.update(self.state, self.rows, self.key)
        jax.block_until_ready(metrics)

    def whole(self) -> None:
        """Run the step: one program, or rows that are produced and the update on them."""
        if self._produce:
            rows = self._produce(self.state)
            self.state, self.metrics = self.step.update(self.state, rows, self.key)
        else:
            assert self.step.fused is not None
            self.state, self.metrics = self.step.fused(self.state, self.key)
        jax.block_until_ready(self.metrics)


def first(call: Callable[[], None]) -> float:
    """Return the seconds of a first call, which compiles."""
    return bench.seconds(call, 1)[0]
