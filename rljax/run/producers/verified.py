"""Rollouts of host tasks: prompts are read on the host, and worker processes score completions.

The batch is split into chunks: the workers score chunk k while the devices decode chunk k + 1. Scores are journalled
with their step, so that a run that is killed and resumed gets the same scores, timeouts included. With several
processes, each host reads the prompts and scores the rows of its devices.
"""

import dataclasses
import functools
import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import judging
from rljax.environments.workers import pool
from rljax.host import processes
from rljax.run import programs
from rljax.run.records import journals
from rljax.training import passes, sharding, steps
from rljax.training import rows as rows_lib
from rljax.training.producers import completions

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


def verifiers(task: Any, fields: VerifierConfig) -> judging.Verifiers:
    """Return the workers of a host task, not yet started."""
    return judging.Verifiers(task.reward, fields, task.parts, interrupted=lambda: bool(processes.received()))


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
    task: Any,
    tokenizer: tokenizers.Tokenizer,
    verifiers: judging.Verifiers,
    rows: Rows,
    split: environments.Split,
    samples: int,
) -> judging.Pending:
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
    targets = [task.target(int(i), split) for i in rows.index]
    columns = [environments.columns(task, int(i), split) for i in rows.index]
    groups, counts = np.unique(rows.place // samples, return_inverse=True, return_counts=True)[1:]
    if verifiers.grouped and np.any(counts != samples):
        raise ValueError(
            f"config.batch.prompts: the {rows.place.size} rows of a process are not whole groups of {samples}, which "
            "the reward function judges together; set a multiple of verifier.chunks * the number of processes."
        )
    return verifiers.submit(texts(tokenizer, rows.token, rows.mask), targets, columns, groups.tolist())


def verdict(rows: Sequence[Rows], pending: Sequence[judging.Pending], where: str) -> types.Verdict:
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
    """Return prompts of a task; each host reads the prompts of its devices if it is a host task.

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


@dataclasses.dataclass(frozen=True)
class Verified:
    """Completions of a host task: sampled on devices, scored by worker processes.

    Attributes:
      program: the run.
      step: the compiled functions of the phase.
      verifiers: the workers of the task.
      journal: scores of earlier attempts.
      chunks: parts of the batch, which divide the prompts.
    """

    program: programs.Program
    step: steps.Step
    verifiers: judging.Verifiers
    journal: journals.Journal
    chunks: int

    @property
    def waited(self) -> float:
        """Seconds for which the run has waited for the workers."""
        return self.verifiers.waited

    def __call__(self, state: types.TrainState) -> types.Rollout:
        """Sample and score the batch of the next step.

        Raises:
          VerifierError: the verifier crashed on every row; its note is the first traceback.
          Interrupted: the process received SIGTERM or Ctrl-C.
        """
        return self.first(state)[0]

    def first(self, state: types.TrainState) -> tuple[types.Rollout, types.Action | None]:
        """Return the batch of the next step, and a demonstration of each prompt if the source reads them."""
        setup = self.step.setup
        rows, given = zip(*self._sampled(state), strict=True)
        samples = rows[0].reward.size if setup.algorithm.source.uneven else setup.samples
        whole = self.scored(rows, (int(state.step) + 1, 0), samples)()
        return whole, None if given[0] is None else jax.tree.map(lambda *x: jnp.concatenate(x), *given)

    def parts(self, state: types.TrainState) -> Iterator[types.Rollout]:
        """Yield the chunks of the next step; chunk k is scored while chunk k + 1 is decoded. Raises as a call."""
        number, judging, decoding = int(state.step) + 1, None, None
        for place, chunk in enumerate(itertools.chain((rows for rows, _ in self._sampled(state)), [None])):
            if decoding is not None:
                scored = self.scored([decoding], (number, place - 1), self.step.setup.samples)
                if judging is not None:
                    yield judging()
                judging = scored
            decoding = chunk
        assert judging is not None
        yield judging()

    def _sampled(self, state: types.TrainState) -> Iterator[tuple[types.Rollout, types.Action | None]]:
        """Yield the chunks of the next step, dispatched, and a demonstration of each prompt if the source reads any."""
        program, step, setup = self.program, self.step, self.step.setup
        drawn = processes.fetch(step.next_prompts(state, program.key))
        for part in np.split(np.arange(drawn.index.size), self.chunks):
            chosen = jax.tree.map(lambda x, part=part: x[part], drawn)
            asked = prompts(setup.task, program.mesh, chosen.index, "train")
            shown = _solutions(program, setup, int(state.step), chosen.index) if setup.solutions else None
            rows = step.sample(state.params["policy"], state.pool, state.step, chosen, asked, shown, program.key)
            yield rows, None if shown is None else rows_lib.one_of_each(shown, chosen.index.size)

    def scored(
        self, rows: Sequence[types.Rollout], number: tuple[int, int], samples: int, used: np.ndarray | None = None
    ) -> Callable[[], types.Rollout]:
        """Submit the rows of a pass; return a function that waits for their scores and returns the rows with them.

        Args:
          rows: the rows, in chunks.
          number: of the step, from 1, and of the pass, or of the chunk, from 0.
          samples: rows of a prompt, which are adjacent.
          used: ``[B]`` bool, the rows that are judged; None: all.
        """
        program, task = self.program, self.step.setup.task

        def submit(part: Rows) -> judging.Pending:
            return judge(task, program.tokenizer, self.verifiers, part, "train", samples)

        local, pending = [], []
        for chunk in rows:  # all are dispatched; wait for them in order
            assert chunk.action is not None and chunk.index is not None
            first, written = len(local) * chunk.mask.shape[0], rows_lib.written(chunk)
            part = local_rows(chunk.index, chunk.action.token, written, program.mesh, first)
            local.append(part if used is None else part.of(used[part.place]))
            if not self.journal.has(journals.VERDICTS, number):
                pending.append(submit(local[-1]))
        completions = digest(local)

        def result() -> types.Rollout:
            scores = self.journal.replay(journals.VERDICTS, number, completions)
            if scores is None:
                scores = verdict(local, pending or [submit(part) for part in local], f"step {number[0]}")
                if used is not None:
                    scores = jax.tree.map(functools.partial(_spread, used), scores)
                self.journal.record(journals.VERDICTS, number, completions, scores)
            return _judged(rows, scores, program.mesh)

        return result


@dataclasses.dataclass(frozen=True)
class VerifiedTwice(Verified):
    """Completions of a host task in two passes; only the rows that a second pass uses are judged."""

    def __call__(self, state: types.TrainState) -> types.Rollout:
        """Sample and score both passes of the next step; raises what ``Verified`` raises."""
        step = self.step
        whole, solutions = self.first(state)
        edit, second = step.edit(state, whole, solutions, self.program.key)
        used = np.asarray(processes.fetch(second.valid)) > 0
        scored = self.scored([second], (int(state.step) + 1, 1), passes.samples(step.setup), used)()
        return step.merge(whole, scored, edit)


def _spread(used: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return scores of all rows ``[n]`` from the scores of the used rows; 0 elsewhere."""
    every = np.zeros(used.shape, scores.dtype)
    every[used] = scores
    return every


def _solutions(program: programs.Program, setup: programs.Setup, number: int, index: np.ndarray) -> types.Action:
    """Read the demonstrations of prompts that the source reads; each host reads the demonstrations of its devices."""
    index = np.repeat(index, setup.solutions)

    def read(rows: np.ndarray) -> types.Action:
        asked: Any = index[rows]  # NumPy for a host task
        return jax.device_get(completions.solutions(setup, jnp.asarray(number), asked, program.key))

    return processes.global_rows(read, index.size, layout(program.mesh, index.size))


@functools.partial(jax.jit, static_argnames="mesh")
def _judged(rows: Sequence[types.Rollout], scores: types.Verdict, mesh: jax.sharding.Mesh) -> types.Rollout:
    """Concatenate the chunks of a batch and write the scores into it."""
    whole = jax.tree.map(lambda *x: jnp.concatenate(x), *rows)
    whole = whole.replace(episode=jnp.arange(whole.reward.size, dtype=jnp.int32))
    return sharding.constrain(rows_lib.judged(whole, scores), mesh)
