"""Rollouts of host tasks: prompts are read on the host, and worker processes score completions.

The batch is split into chunks: the workers score chunk k while the devices decode chunk k + 1. Scores are journalled
with their step, so that a run that is killed and resumed gets the same scores, timeouts included. With several
processes, each host reads the prompts and scores the rows of its devices.
"""

import contextlib
import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import pool
from rljax.host import processes
from rljax.run import programs, verdicts
from rljax.training import rollouts, sharding, steps
from rljax.training import rows as rows_lib

UNJUDGED = (
    "some completions are neither correct nor wrong: the reward function returned a number other than 0 and 1 and no "
    "outcome. Accuracy and pass@k do not count them as correct. To fix: set config.verifier.threshold to the smallest "
    "reward of a correct completion, or return {'reward': ..., 'outcome': 'correct'} (or 'wrong')."
)


class VerifierWarning(UserWarning):
    """The verifier crashed on some rows or timed out on all, which are invalid, or did not judge some."""


class Rows(NamedTuple):
    """The rows of a batch that one process scores, as NumPy arrays."""

    place: np.ndarray  # [n] int, the row's number in the batch
    index: np.ndarray  # [n] int32, index of the prompt
    token: np.ndarray  # [n, T] int32
    mask: np.ndarray  # [n, T] float32, 1 on completion tokens

    def of(self, chosen: np.ndarray) -> "Rows":
        """Return the rows with these numbers."""
        return Rows(*(x[chosen] for x in self))


def local_rows(
    index: types.Array, token: types.Array, mask: types.Array, mesh: jax.sharding.Mesh, first: int = 0
) -> Rows:
    """Fetch the rows that this process scores, those on its devices; waits for the devices.

    Args:
      index: ``[B]`` int32 index of each row's prompt.
      token: ``[B, T]`` int32 completion tokens.
      mask: ``[B, T]`` float32, 1 on completion tokens.
      mesh: the run's mesh.
      first: number of rows of the batch before these.

    Returns:
      The rows of this process.
    """
    place, arrays = processes.local_rows((index, token, mask), layout(mesh, token.shape[0]))
    return Rows(first + place, *arrays)


def layout(mesh: jax.sharding.Mesh, rows: int) -> jax.sharding.NamedSharding:
    """Return the sharding of a number of rows: split, or replicated if they do not divide over the mesh."""
    split = sharding.batch_sharding(mesh)
    parts = mesh.size // split.shard_shape((mesh.size,))[0]
    return sharding.replicated(mesh) if rows % parts else split


def digest(rows: Sequence[Rows]) -> str:
    """Return a digest of a batch's prompts and completions that does not depend on chunks and processes."""
    digests = [
        (int(place), hashlib.sha256(b"".join(x.tobytes() for x in row)).digest())
        for part in rows
        for place, *row in zip(*part, strict=True)
    ]
    every = sorted(row for process in processes.gather(digests) for row in process)
    return hashlib.sha256(b"".join(row for _, row in every)).hexdigest()[:32]


def verifiers(task: environments.Task, fields: VerifierConfig) -> contextlib.AbstractContextManager[Any]:
    """Start the workers of a host task, ``pool.Verifiers``; None for a device task."""
    if not environments.scored_on_host(task):
        return contextlib.nullcontext()
    return pool.Verifiers(
        task.reward,
        workers=fields.workers,
        timeout=fields.timeout,
        parts=task.parts,
        memory=fields.memory,
        threshold=fields.threshold,
        interrupted=lambda: bool(processes.received()),
    )


def texts(tokenizer: tokenizers.Tokenizer, token: np.ndarray, mask: np.ndarray) -> list[str]:
    """Decode completions.

    Args:
      tokenizer: the run's tokenizer.
      token: ``[B, T]`` int32.
      mask: ``[B, T]``, above 0 on the tokens to decode.

    Returns:
      B texts.
    """
    return [tokenizer.decode(row[keep > 0].tolist()) for row, keep in zip(token, mask, strict=True)]


def judge(
    task: environments.Task,
    tokenizer: tokenizers.Tokenizer,
    verifiers: pool.Verifiers,
    rows: Rows,
    split: environments.Split,
    samples: int,
) -> pool.Pending:
    """Submit rows to the workers, without waiting for the scores.

    Args:
      task: a host task.
      tokenizer: the run's tokenizer.
      verifiers: the workers.
      rows: the rows of this process.
      split: the split of their prompts.
      samples: completions of a prompt, which are adjacent in the batch.

    Returns:
      The pending scores.

    Raises:
      ValueError: the reward judges the completions of a prompt together, and this process does not have all of them.
    """
    assert environments.scored_on_host(task)
    targets = [task.target(int(i), split) for i in rows.index]
    columns = [environments.columns(task, int(i), split) for i in rows.index]
    groups, counts = np.unique(rows.place // samples, return_inverse=True, return_counts=True)[1:]
    if verifiers.grouped and np.any(counts != samples):
        raise ValueError(
            f"config.batch.prompts: the {rows.place.size} rows of a process are not whole groups of {samples}, which "
            "the reward function judges together; set a multiple of verifier.chunks * the number of processes."
        )
    return verifiers.submit(texts(tokenizer, rows.token, rows.mask), targets, columns, groups.tolist())


def verdict(rows: Sequence[Rows], pending: Sequence[pool.Pending], where: str) -> types.Verdict:
    """Wait for the scores of a batch and gather them from all processes.

    Warns if the verifier crashed on some rows, timed out on all, or did not judge some (``VerifierWarning``).

    Args:
      rows: the rows of this process, by chunk.
      pending: their scores, by chunk.
      where: name of the batch in messages, such as "step 3".

    Returns:
      The verdict of the whole batch on every process, NumPy arrays, ``[B]`` each.

    Raises:
      VerifierError: it crashed on every row; its note is the first traceback.
      Interrupted: the process received SIGTERM or Ctrl-C.
    """
    local = [(r.place, p.result()) for r, p in zip(rows, pending, strict=True)]
    every = [part for process in processes.gather(local) for part in process]
    scored = [s for _, s in every]
    order = np.argsort(np.concatenate([place for place, _ in every]))
    outcome = np.concatenate([s.outcome for s in scored])[order]
    traces = (text for s in scored for row, text in s.errors if s.outcome[row] == types.Outcome.CRASHED)
    warn(outcome, traces, where)
    names = sorted({name for s in scored for name in s.parts})
    return types.Verdict(
        reward=np.concatenate([s.reward for s in scored])[order],  # pyright: ignore[reportArgumentType]  NumPy for jax
        outcome=outcome,  # pyright: ignore[reportArgumentType]
        parts={n: np.concatenate([s.parts.get(n, np.zeros_like(s.reward)) for s in scored])[order] for n in names},  # pyright: ignore[reportArgumentType]
    )


def warn(outcome: np.ndarray, traces: Iterable[str], where: str, judge: str = "verifier") -> None:
    """Warn if the host crashed on some rows of a batch, timed out on all, or did not judge some.

    Args:
      outcome: ``[B]`` int, a ``types.Outcome`` each.
      traces: the reasons of the crashes; the first is shown.
      where: name of the batch, such as "step 3".
      judge: what crashed.

    Raises:
      VerifierError: it crashed on every row; its note is the first reason.
    """
    crashed = int((outcome == types.Outcome.CRASHED).sum())
    if crashed:
        first = next(iter(traces))
        message = f"config.task: the {judge} crashed on {crashed} of {outcome.size} rows of {where}. First:"
        if crashed == outcome.size:
            error = pool.VerifierError(message)
            error.add_note(first)
            raise error
        warnings.warn(f"{message}\n{first}", VerifierWarning, stacklevel=3)
    if outcome.size and np.all(outcome == types.Outcome.TIMED_OUT):
        message = (
            f"config.verifier.timeout: the {judge} timed out on all {outcome.size} rows of {where}; all are invalid."
        )
        warnings.warn(message, VerifierWarning, stacklevel=3)
    if np.any(outcome == types.Outcome.UNJUDGED):
        warnings.warn(UNJUDGED, VerifierWarning, stacklevel=1)  # one place, so that it is shown once


def prompts(
    task: environments.Task, mesh: jax.sharding.Mesh, index: np.ndarray, split: environments.Split
) -> types.Prompts:
    """Return prompts of a task; each host reads those of its devices if it is a host task.

    Args:
      task: the task, bound to the tokenizer.
      mesh: the run's mesh.
      index: ``[P]`` int32 indices of the prompts.
      split: the split of the prompts.

    Returns:
      P prompts.
    """
    if not task.host:
        return task.prompts(jnp.asarray(index), split)
    split_by = layout(mesh, index.size)
    read: Any = task.prompts  # its arguments are NumPy arrays for a host task
    return processes.global_rows(lambda rows: read(index[rows], split), index.size, split_by)


def rollout(
    program: programs.Program,
    step: steps.Step,
    state: types.TrainState,
    verifiers: pool.Verifiers,
    journal: verdicts.Journal,
    chunks: int,
) -> types.Rollout:
    """Sample and score one batch of a host task, or read its demonstrations.

    Args:
      program: the run.
      step: the compiled functions of the phase.
      state: the train state.
      verifiers: the workers of the task.
      journal: scores of earlier attempts at this step.
      chunks: parts of the batch, which divide the prompts.

    Returns:
      The scored rows, sharded by row.

    Raises:
      VerifierError: the verifier crashed on every row; its note is the first traceback.
      Interrupted: the process received SIGTERM or Ctrl-C.
    """
    key, params, task, setup = program.key, state.params["policy"], step.setup.task, step.setup
    drawn, number = processes.fetch(step.next_prompts(state, key)), int(state.step) + 1
    if setup.algorithm.source.origin == "demonstrations":
        return demonstrated(program, step, int(state.step), drawn.position, drawn.index)
    rows, given = [], []
    for part in np.split(np.arange(drawn.index.size), chunks):
        chosen = jax.tree.map(lambda x, part=part: x[part], drawn)
        asked = prompts(task, program.mesh, chosen.index, "train")
        shown = _solutions(program, setup, int(state.step), chosen.index) if setup.solutions else None
        rows.append(step.sample(params, state.pool, state.step, chosen, asked, shown, key))
        given.append(None if shown is None else rows_lib.one_of_each(shown, chosen.index.size))
    judging = _Judging(program, step, verifiers, journal)
    whole = judging.scored(rows, (number, 0))
    if setup.algorithm.source.again is None:
        return whole
    solutions = None if given[0] is None else jax.tree.map(lambda *x: jnp.concatenate(x), *given)
    edit, second = step.edit(state, whole, solutions, key)
    return step.merge(whole, judging.scored([second], (number, 1)), edit)


@dataclasses.dataclass(frozen=True)
class _Judging:
    """Scores the rows of a step's passes."""

    program: programs.Program
    step: steps.Step
    verifiers: pool.Verifiers
    journal: verdicts.Journal

    def scored(self, rows: Sequence[types.Rollout], number: tuple[int, int]) -> types.Rollout:
        """Return the rows of a pass, given in chunks, with their scores; only valid rows are judged."""
        program, setup = self.program, self.step.setup
        task, source = setup.task, setup.algorithm.source
        samples = rows[0].reward.size if source.uneven else setup.samples
        if number[1] and source.again is not None:
            samples = source.again.samples or setup.settings.batch.samples
        used = [np.asarray(processes.fetch(chunk.valid)) > 0 for chunk in rows[: number[1]]]  # of a second pass

        def submit(part: Rows) -> pool.Pending:
            return judge(task, program.tokenizer, self.verifiers, part, "train", samples)

        local, pending = [], []
        for chunk in rows:  # all are dispatched; wait for them in order
            assert chunk.action is not None and chunk.index is not None
            first, written = len(local) * chunk.mask.shape[0], rows_lib.written(chunk)
            part = local_rows(chunk.index, chunk.action.token, written, program.mesh, first)
            local.append(part.of(used[0][part.place]) if used else part)
            if number not in self.journal:
                pending.append(submit(local[-1]))
        completions = digest(local)
        scores = self.journal.replay(number, completions)
        if scores is None:
            pending = pending or [submit(part) for part in local]
            scores = verdict(local, pending, f"step {number[0]}")
            if used:
                scores = jax.tree.map(functools.partial(_spread, used[0]), scores)
            self.journal.record(number, completions, scores)
        return _judged(rows, scores, program.mesh)


def _spread(used: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the scores of the rows that are used as those of all rows ``[n]``, 0 elsewhere."""
    every = np.zeros(used.shape, scores.dtype)
    every[used] = scores
    return every


def _solutions(program: programs.Program, setup: programs.Setup, number: int, index: np.ndarray) -> types.Action:
    """Read the demonstrations of prompts that the source reads; each host reads those of its devices."""
    index = np.repeat(index, setup.solutions)

    def read(rows: np.ndarray) -> types.Action:
        asked: Any = index[rows]  # NumPy for a host task
        return jax.device_get(rollouts.solutions(setup, jnp.asarray(number), asked, program.key))

    return processes.global_rows(read, index.size, layout(program.mesh, index.size))


@functools.partial(jax.jit, static_argnames="mesh")
def _judged(rows: Sequence[types.Rollout], scores: types.Verdict, mesh: jax.sharding.Mesh) -> types.Rollout:
    """Concatenate the chunks of a batch and write the scores into it."""
    whole = jax.tree.map(lambda *x: jnp.concatenate(x), *rows)
    whole = whole.replace(episode=jnp.arange(whole.reward.size, dtype=jnp.int32))
    return sharding.constrain(rows_lib.judged(whole, scores), mesh)


def demonstrated(
    program: programs.Program, step: steps.Step, number: int, position: np.ndarray, index: np.ndarray
) -> types.Rollout:
    """Read demonstrations as rows; each host reads those of its devices.

    Args:
      program: the run.
      step: the functions of the phase.
      number: updates before this step.
      position: ``[P]`` int32 position of each prompt in the run.
      index: ``[P]`` int32 index of each prompt in the training split.

    Returns:
      P rows.
    """
    read_prompts: Any = step.setup.task.prompts  # its arguments are NumPy arrays

    def read(rows: np.ndarray) -> types.Rollout:
        prompts, place = read_prompts(index[rows], "train"), jnp.asarray(position[rows])
        batch = rollouts.demonstrate(step.setup, jnp.asarray(number), place, prompts, program.key)
        return jax.device_get(batch.replace(episode=rows.astype(np.int32)))

    return processes.global_rows(read, index.size, layout(program.mesh, index.size))
