"""Rollouts of host tasks: prompts read on the host, completions scored by worker processes.

The batch is cut into chunks: while the workers judge chunk k the devices decode chunk k + 1. Scores are
journalled with their step, so that a run that is replayed after a kill sees the time-outs it saw before. Where
there are several processes, each host reads the prompts and judges the rows of its own devices.
"""

import contextlib
import functools
import hashlib
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments.verifiers import pool
from rljax.host import processes
from rljax.run import metrics, programs
from rljax.training import rollouts, sharding, steps


class VerifierWarning(UserWarning):
    """The verifier crashed on some rows, or timed out on all. They are invalid, and the run goes on."""


class Rows(NamedTuple):
    """The rows of a batch that one process answers for, on its host."""

    place: np.ndarray  # [n] in the batch
    index: np.ndarray  # [n] of the prompt
    token: np.ndarray  # [n, T]
    mask: np.ndarray  # [n, T]


def own(index: types.Array, token: types.Array, mask: types.Array, mesh: jax.sharding.Mesh, first: int = 0) -> Rows:
    """Fetch those of B rows that lie on this host; waits for the devices. The batch has ``first`` rows before them."""
    place, found = processes.local_rows((index, token, mask), _layout(mesh, token.shape[0]))
    return Rows(first + place, *found)


def _layout(mesh: jax.sharding.Mesh, rows: int) -> jax.sharding.NamedSharding:
    """Return how so many rows are split over the mesh; those that do not divide are everywhere."""
    split = sharding.batch_sharding(mesh)
    parts = mesh.size // split.shard_shape((mesh.size,))[0]
    return sharding.replicated(mesh) if rows % parts else split


class Journal:
    """The scores of each step, kept to be replayed. Without a log, nothing is kept.

    A score belongs to a completion: what was found is replayed only if the step made the same completions again,
    so a resumed run under a changed config is judged afresh. The leader writes what all processes found, and reads
    it to all: a run may be resumed by another number of processes.
    """

    def __init__(self, log: metrics.StepLog | None, first: int):
        """Read the records of steps after ``first``, which a resumed run is about to make again."""
        self._log = log
        self._found: dict[int, dict[str, Any]] = processes.from_leader(
            lambda: {r["step"]: r for r in log.read() if r["step"] > first} if log else {}
        )

    def __contains__(self, step: int) -> bool:
        """Tell whether the step was made before."""
        return step in self._found

    def replay(self, step: int, completions: str) -> types.Verdict | None:
        """Return what the workers said of these completions (``digest``) when the step was made before, else None."""
        found = self._found.get(step)
        if found is None:
            return None
        if found["completions"] != completions:
            if self._log is not None:
                self._log.cut(step - 1)  # this record and those after it tell of another run
            self._found = {}
            return None
        return types.Verdict(
            reward=jnp.asarray(found["reward"], jnp.float32),
            outcome=jnp.asarray(found["outcome"], jnp.int32),
            parts={k: jnp.asarray(v, jnp.float32) for k, v in found["parts"].items()},
        )

    def record(self, step: int, completions: str, verdict: types.Verdict) -> None:
        """Keep what the workers said; it is with the operating system when this returns."""
        if self._log is not None:
            self._log.append(
                {
                    "step": step,
                    "completions": completions,
                    "reward": verdict.reward,
                    "outcome": verdict.outcome,
                    "parts": verdict.parts,
                }
            )


def digest(rows: Sequence[Rows]) -> str:
    """Tell the completions of a batch and their prompts from any others, however they are cut up and spread."""
    found = [
        (int(place), hashlib.sha256(b"".join(x.tobytes() for x in row)).digest())
        for part in rows
        for place, *row in zip(*part, strict=True)
    ]
    every = sorted(row for process in processes.gather(found) for row in process)
    return hashlib.sha256(b"".join(row for _, row in every)).hexdigest()[:32]


def verifiers(setup: programs.Setup) -> contextlib.AbstractContextManager[pool.Verifiers | None]:
    """Start the workers of a host task; a device task has none."""
    task, fields = setup.task, setup.settings.verifier
    if not environments.scored_on_host(task):
        return contextlib.nullcontext()
    return pool.Verifiers(task.reward, workers=fields.workers, timeout=fields.timeout, parts=task.parts)


def texts(tokenizer: tokenizers.Tokenizer, token: np.ndarray, mask: np.ndarray) -> list[str]:
    """Decode completions, ``token`` and ``mask`` [B, T]."""
    return [tokenizer.decode(row[keep > 0].tolist()) for row, keep in zip(token, mask, strict=True)]


def judge(
    task: environments.Task,
    tokenizer: tokenizers.Tokenizer,
    verifiers: pool.Verifiers,
    rows: Rows,
    split: environments.Split,
) -> pool.Pending:
    """Hand rows to the workers; returns at once.

    Args:
      task: a host task.
      tokenizer: the run's tokenizer.
      verifiers: the workers.
      rows: the rows of this host.
      split: the split that their prompts are from.

    Returns:
      The scores, which may not be there yet.
    """
    assert environments.scored_on_host(task)
    targets = [task.target(int(i), split) for i in rows.index]
    return verifiers.submit(texts(tokenizer, rows.token, rows.mask), targets)


def verdict(rows: Sequence[Rows], pending: Sequence[pool.Pending], where: str) -> types.Verdict:
    """Wait for the scores of all processes' parts of a batch and join them: NumPy arrays, [B] each, on every process.

    Warns where the verifier crashed on some rows or timed out on all (``VerifierWarning``).

    Raises:
      RuntimeError: it crashed on every row; the first traceback is in the message.
    """
    mine = [(r.place, p.result()) for r, p in zip(rows, pending, strict=True)]
    every = [part for process in processes.gather(mine) for part in process]
    scored = [s for _, s in every]
    order = np.argsort(np.concatenate([place for place, _ in every]))
    outcome = np.concatenate([s.outcome for s in scored])[order]
    crashed = int((outcome == types.Outcome.CRASHED).sum())
    if crashed:
        first = next(text for s in scored for row, text in s.errors if s.outcome[row] == types.Outcome.CRASHED)
        message = f"config.task: the verifier crashed on {crashed} of {outcome.size} rows of {where}. First:\n{first}"
        if crashed == outcome.size:
            raise RuntimeError(message)
        warnings.warn(message, VerifierWarning, stacklevel=2)
    if np.all(outcome == types.Outcome.TIMED_OUT):
        message = f"config.verifier.timeout: the verifier timed out on all {outcome.size} rows of {where}; none counts."
        warnings.warn(message, VerifierWarning, stacklevel=2)
    names = sorted({name for s in scored for name in s.parts})
    return types.Verdict(
        reward=np.concatenate([s.reward for s in scored])[order],  # pyright: ignore[reportArgumentType]  NumPy for jax
        outcome=outcome,  # pyright: ignore[reportArgumentType]
        parts={n: np.concatenate([s.parts.get(n, np.zeros_like(s.reward)) for s in scored])[order] for n in names},  # pyright: ignore[reportArgumentType]
    )


def prompts(
    task: environments.Task, mesh: jax.sharding.Mesh, index: np.ndarray, split: environments.Split
) -> types.Prompts:
    """Return prompts ``index`` [P] of a task; of a host task, each host reads those of its devices."""
    if not task.host:
        return task.prompts(jnp.asarray(index), split)
    layout = _layout(mesh, index.size)
    read: Any = task.prompts  # a host task takes NumPy arrays
    return processes.global_rows(lambda rows: read(index[rows], split), index.size, layout)


def rollout(
    program: programs.Program,
    step: steps.Step,
    state: types.TrainState,
    verifiers: pool.Verifiers,
    journal: Journal,
    chunks: int,
) -> types.Rollout:
    """Sample and score one batch of a host task, or read its demonstrations.

    Raises:
      RuntimeError: the verifier crashed on every row; its traceback is in the message.
    """
    key, params, task = program.key, state.params["policy"], step.setup.task
    position, index = processes.fetch(step.next_prompts(state, key))
    if step.setup.algorithm.source.origin == "demonstrations":
        return _demonstrated(program, step, int(state.step), position, index)
    parts = np.split(np.arange(index.size), chunks)
    rows = [
        step.sample(params, state.step, position[part], prompts(task, program.mesh, index[part], "train"), key)
        for part in parts
    ]
    number = int(state.step) + 1
    mine, pending = [], []
    for chunk in rows:  # all are dispatched already; this waits for one after the other
        assert chunk.action is not None and chunk.index is not None
        first = len(mine) * chunk.mask.shape[0]
        mine.append(own(chunk.index, chunk.action.token, chunk.mask, program.mesh, first))
        if number not in journal:
            pending.append(judge(task, program.tokenizer, verifiers, mine[-1], "train"))
    completions = digest(mine)
    found = journal.replay(number, completions)
    if found is None:
        pending = pending or [judge(task, program.tokenizer, verifiers, part, "train") for part in mine]
        found = verdict(mine, pending, f"step {number}")
        journal.record(number, completions, found)
    return _judged(rows, found, program.mesh)


@functools.partial(jax.jit, static_argnames="mesh")
def _judged(rows: Sequence[types.Rollout], found: types.Verdict, mesh: jax.sharding.Mesh) -> types.Rollout:
    """Join the chunks of a batch and write the scores into it."""
    whole = jax.tree.map(lambda *x: jnp.concatenate(x), *rows)
    whole = whole.replace(episode=jnp.arange(whole.reward.size, dtype=jnp.int32))
    return sharding.constrain(rollouts.judged(whole, found), mesh)


def _demonstrated(
    program: programs.Program, step: steps.Step, number: int, position: np.ndarray, index: np.ndarray
) -> types.Rollout:
    """Read demonstrations as rows; each host reads those of its own devices."""
    prompts: Any = step.setup.task.prompts  # a host task takes NumPy arrays

    def read(rows: np.ndarray) -> types.Rollout:
        there = prompts(index[rows], "train")
        made = rollouts.demonstrate(step.setup, jnp.asarray(number), jnp.asarray(position[rows]), there, program.key)
        return jax.device_get(made.replace(episode=rows.astype(np.int32)))

    return processes.global_rows(read, index.size, _layout(program.mesh, index.size))
