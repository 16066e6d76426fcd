"""Rows that the host reads: stored rows, with behaviour log-probs that the file does not have, and demonstrations."""

import dataclasses
import io
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.config import resolve
from rljax.host import processes, workdirs
from rljax.run import programs
from rljax.run.producers import verified
from rljax.training import phases, steps
from rljax.training.producers import demonstrations, stored


@dataclasses.dataclass(frozen=True)
class FromFiles:
    """Rows of a file; each host passes the rows of its devices.

    Attributes:
      program: the run.
      step: the compiled functions of the phase.
      stored: the producer of the phase.
    """

    program: programs.Program
    step: steps.Step
    stored: stored.Stored

    waited = 0.0

    def __call__(self, state: types.TrainState) -> types.Rollout:
        """Return the rows of the next step, sharded by row."""
        drawn = processes.fetch(self.step.next_prompts(state, self.program.key))
        return placed(self.program, self.stored, drawn.position, drawn.index)

    def complete(self, state: types.TrainState, directory: workdirs.WorkDirectory | None) -> None:
        """Compute the behaviour log-probs that a phase reads and its file does not have, or read them on resume.

        The policy at the start of the phase computes them; the work directory keeps them.

        Args:
          state: the train state.
          directory: the work directory; None: the run cannot be resumed.

        Raises:
          ValueError: the phase has begun, and the work directory does not have them.
        """
        setup = self.step.setup
        if not self.stored.wants_behaviour:
            return
        groups, name = self.stored.groups, f"stored-{setup.phase.name}.npz"
        digest = resolve.digest(setup.phase)
        if int(state.step) > setup.phase.first:
            content = directory and directory.read(name)
            groups.computed = True
            groups.behaviour_logp = _read(
                content or b"", digest, groups.shape, f"{directory and directory.path}/{name}"
            )
            return
        groups.computed, groups.behaviour_logp = True, scored(self.stored, state.params["policy"])
        if directory is not None and processes.leader():
            file = io.BytesIO()
            np.savez(file, logp=groups.behaviour_logp, digest=np.array(digest))
            directory.write(name, file.getvalue())


def placed(program: programs.Program, given: stored.Stored, position: np.ndarray, index: np.ndarray) -> types.Rollout:
    """Return rows, sharded by row; arguments as ``stored.Stored.of``."""
    count = index.size * given.groups.length.shape[1]

    def read(place: np.ndarray) -> types.Rollout:
        return given.of(position, index, place)

    return processes.global_rows(read, count, verified.layout(program.mesh, count))


def _read(content: bytes, digest: str, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Return stored log-probs of the file with this digest."""
    try:
        arrays = np.load(io.BytesIO(content), allow_pickle=False)
        if str(arrays["digest"]) == digest and arrays["logp"].shape == shape:
            return arrays["logp"]
        problem = "is of another file"
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile):
        problem = "is absent or damaged"
    raise ValueError(
        f"{where} {problem}. It holds the log-probs of the stored rows under the policy at the start of the phase, "
        "which this run cannot compute again. To fix: start anew by --fresh, or write a column 'behaviour_logp'."
    )


def scored(given: stored.Stored, params: types.Tree) -> np.ndarray:
    """Return the log-probs of all stored rows under a policy, ``[N, G, T]`` float32, as many rows at a time as a step.

    Args:
      given: the producer of the phase.
      params: the policy's parameters.
    """
    setup, groups, count = given.setup, given.groups, given.setup.prompts
    layout = verified.layout(setup.mesh, setup.rows)

    @jax.jit
    def score(params: types.Tree, rows: types.Rollout) -> Any:
        return phases.score(setup, "policy", params, rows, types.Needs()).logp

    out = np.zeros(groups.shape, np.float32)
    groups.behaviour_logp, before = out, groups.behaviour_logp  # zeros, so that the rows have all fields
    try:
        for start in range(0, len(groups), count):
            index = np.minimum(np.arange(start, start + count), len(groups) - 1)

            def read(place: np.ndarray, index: Any = index) -> types.Rollout:
                return given.of(index, index, place)

            rows = processes.global_rows(read, setup.rows, layout)
            mask = rows.mask
            logp, mask = processes.fetch((score(params, rows), mask))
            out[index] = np.where(mask > 0, logp, 0.0).reshape(count, *out.shape[1:])
    finally:
        groups.behaviour_logp = before
    return out


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
