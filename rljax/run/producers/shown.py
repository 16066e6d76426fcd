"""Demonstrations of host tasks and host worlds: each host reads the demonstrations of its devices."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.host import processes
from rljax.run import programs
from rljax.run.producers import verified
from rljax.training import steps
from rljax.training.producers import demonstrations


@dataclasses.dataclass(frozen=True)
class Shown:
    """Demonstrations that are read on the host.

    Attributes:
      program: the run.
      step: the compiled functions of the phase.
      demonstrations: the producer of the phase.
    """

    program: programs.Program
    step: steps.Step
    demonstrations: demonstrations.Demonstrations

    waited = 0.0

    def __call__(self, state: types.TrainState) -> types.Rollout:
        """Return the rows of the next step, P rows sharded by row."""
        program, task = self.program, self.step.setup.task
        drawn, number = processes.fetch(self.step.next_prompts(state, program.key)), int(state.step)
        index, position = drawn.index, drawn.position
        read_prompts: Any = task.prompts  # its arguments are NumPy arrays

        def read(rows: np.ndarray) -> types.Rollout:
            prompts, place = read_prompts(index[rows], "train"), jnp.asarray(position[rows])
            batch = self.demonstrations.show(jnp.asarray(number), place, prompts, program.key)
            return jax.device_get(batch.replace(episode=rows.astype(np.int32)))

        return processes.global_rows(read, index.size, verified.layout(program.mesh, index.size))
