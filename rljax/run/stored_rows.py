"""Stored rows of files in a run: each step's rows, and behaviour log-probs that the file does not have."""

import io
import zipfile
from typing import Any

import jax
import numpy as np

from rljax import types
from rljax.host import processes, workdirs
from rljax.run import host_rollouts, programs
from rljax.training import phases, steps, stored


def rollout(program: programs.Program, step: steps.Step, state: types.TrainState) -> types.Rollout:
    """Return the rows of a step, sharded by row; each host passes those of its devices."""
    drawn, setup = processes.fetch(step.next_prompts(state, program.key)), step.setup
    count = drawn.index.size * stored.groups(setup).length.shape[1]

    def read(place: np.ndarray) -> types.Rollout:
        return stored.rows(setup, drawn.position, drawn.index, place)

    return processes.global_rows(read, count, host_rollouts.layout(program.mesh, count))


def complete(
    step: steps.Step, state: types.TrainState, first: int, directory: workdirs.WorkDirectory | None, digest: str
) -> None:
    """Compute the behaviour log-probs that a phase reads and its file does not have, or read them on resume.

    They are those of the policy at the start of the phase, and are kept in the work directory.

    Args:
      step: the functions of the phase.
      state: the train state.
      first: updates before the phase.
      directory: the work directory; None: the run cannot be resumed.
      digest: of the file.

    Raises:
      ValueError: the phase has begun, and the work directory does not have them.
    """
    setup = step.setup
    if not stored.wants_behaviour(setup):
        return
    groups, name = stored.groups(setup), f"stored-{setup.phase.name}.npz"
    if int(state.step) > first:
        content = directory and directory.read(name)
        groups.behaviour_logp = _read(
            content or b"", digest, groups.token.shape, f"{directory and directory.path}/{name}"
        )
        return
    groups.behaviour_logp = scored(setup, state.params["policy"])
    if directory is not None and processes.leader():
        file = io.BytesIO()
        np.savez(file, logp=groups.behaviour_logp, digest=np.array(digest))
        directory.write(name, file.getvalue())


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


def scored(setup: phases.Setup, params: types.Tree) -> np.ndarray:
    """Return the log-probs of all stored rows under a policy, ``[N, G, T]`` float32, as many rows at a time as a step.

    Args:
      setup: the phase on devices.
      params: the policy's parameters.
    """
    groups, count = stored.groups(setup), setup.prompts
    layout = host_rollouts.layout(setup.mesh, setup.rows)

    @jax.jit
    def score(params: types.Tree, rows: types.Rollout) -> Any:
        return phases.score(setup, "policy", params, rows, types.Needs()).logp

    out = np.zeros(groups.token.shape, np.float32)
    groups.behaviour_logp, before = out, groups.behaviour_logp  # zeros, so that the rows have all fields
    try:
        for start in range(0, len(groups), count):
            index = np.minimum(np.arange(start, start + count), len(groups) - 1)

            def read(place: np.ndarray, index: Any = index) -> types.Rollout:
                return stored.rows(setup, index, index, place)

            rows = processes.global_rows(read, setup.rows, layout)
            mask = rows.mask
            logp, mask = processes.fetch((score(params, rows), mask))
            out[index] = np.where(mask > 0, logp, 0.0).reshape(count, *out.shape[1:])
    finally:
        groups.behaviour_logp = before
    return out
