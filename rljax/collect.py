"""Rollouts of host tasks: prompts read on the host, completions scored by worker processes.

The batch is cut into chunks: while the workers judge chunk k the devices decode chunk k + 1. Scores are
journalled with their step, so that a run that is replayed after a kill sees the time-outs it saw before.
"""

import contextlib
import hashlib
import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rljax import metrics, tasks, types
from rljax import program as programs
from rljax import rollout as rollouts
from rljax import step as steps
from rljax.rewards import pool


class VerifierWarning(UserWarning):
    """The verifier crashed on some rows, or timed out on all. They are invalid, and the run goes on."""


class Journal:
    """The scores of each step, kept to be replayed. Without a log, nothing is kept.

    A score belongs to a completion: what was found is replayed only if the step made the same completions again,
    so a resumed run under a changed config is judged afresh.
    """

    def __init__(self, log: metrics.StepLog | None, first: int):
        """Read the records of steps after ``first``, which a resumed run is about to make again."""
        self._log = log
        self._found = {r["step"]: r for r in log.read() if r["step"] > first} if log else {}

    def replay(self, step: int, rows: Sequence[types.Rollout]) -> types.Verdict | None:
        """Return what the workers said of these completions when the step was made before, else None."""
        found = self._found.get(step)
        if found is None or self._log is None:
            return None
        if found["completions"] != _digest(rows):
            self._log.cut(step - 1)  # this record and those after it tell of another run
            self._found = {}
            return None
        return types.Verdict(
            reward=jnp.asarray(found["reward"], jnp.float32),
            outcome=jnp.asarray(found["outcome"], jnp.int32),
            parts={k: jnp.asarray(v, jnp.float32) for k, v in found["parts"].items()},
        )

    def record(self, step: int, rows: Sequence[types.Rollout], verdict: types.Verdict) -> None:
        """Keep what the workers said; it is with the operating system when this returns."""
        if self._log is not None:
            self._log.append(
                {
                    "step": step,
                    "completions": _digest(rows),
                    "reward": verdict.reward,
                    "outcome": verdict.outcome,
                    "parts": verdict.parts,
                }
            )


def _digest(rows: Sequence[types.Rollout]) -> str:
    """Tell completions and their prompts from any others, however they are cut into chunks."""
    parts = jax.device_get([(r.index, r.action.token, r.mask) for r in rows if r.action is not None])
    return hashlib.sha256(b"".join(np.concatenate(x).tobytes() for x in zip(*parts, strict=True))).hexdigest()[:32]


def verifiers(program: programs.Program) -> contextlib.AbstractContextManager[pool.Verifiers | None]:
    """Start the workers of a host task; a device task has none."""
    if not tasks.scored_on_host(program.task):
        return contextlib.nullcontext()
    fields, task = program.config.verifier, program.task
    return pool.Verifiers(task.reward, workers=fields.workers, timeout=fields.timeout, parts=task.parts)


def texts(program: programs.Program, token: np.ndarray, mask: np.ndarray) -> list[str]:
    """Decode completions, [B, T] each."""
    return [program.tokenizer.decode(row[keep > 0].tolist()) for row, keep in zip(token, mask, strict=True)]


def judge(
    program: programs.Program,
    verifiers: pool.Verifiers,
    index: np.ndarray,
    split: tasks.Split,
    token: np.ndarray,
    mask: np.ndarray,
) -> pool.Pending:
    """Hand rows to the workers; returns at once. ``index`` [B] of the prompts, ``token`` and ``mask`` [B, T]."""
    task = program.task
    assert tasks.scored_on_host(task)
    return verifiers.submit(texts(program, token, mask), [task.reference(int(i), split) for i in index])


def verdict(pending: Sequence[pool.Pending], where: str) -> types.Verdict:
    """Wait for the scores of the parts of a batch and join them: NumPy arrays, [B] each.

    Warns where the verifier crashed on some rows or timed out on all (``VerifierWarning``).

    Raises:
      RuntimeError: it crashed on every row; the first traceback is in the message.
    """
    scored = [p.result() for p in pending]
    outcome = np.concatenate([s.outcome for s in scored])
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
        reward=np.concatenate([s.reward for s in scored]),  # pyright: ignore[reportArgumentType]  NumPy for jax
        outcome=outcome,  # pyright: ignore[reportArgumentType]
        parts={n: np.concatenate([s.parts.get(n, np.zeros_like(s.reward)) for s in scored]) for n in names},  # pyright: ignore[reportArgumentType]
    )


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
    key, params = program.key, state.params["policy"]
    position, index = jax.device_get(step.draw(state, key))
    if step.plan.algorithm.source.origin == "demonstrations":
        return step.sample(params, state.step, position, program.task.prompts(index, "train"), key)
    rows = [
        step.sample(params, state.step, position[part], program.task.prompts(index[part], "train"), key)
        for part in np.split(np.arange(index.size), chunks)
    ]
    number = int(state.step) + 1
    found = journal.replay(number, rows)
    if found is None:
        found = _judged(program, rows, verifiers, f"step {number}")
        journal.record(number, rows, found)
    whole = jax.tree.map(lambda *x: jnp.concatenate(x), *rows)
    whole = whole.replace(rollout=jnp.arange(whole.reward.size, dtype=jnp.int32))
    return rollouts.judged(whole, jax.tree.map(jnp.asarray, found))


def _judged(
    program: programs.Program, rows: Sequence[types.Rollout], verifiers: pool.Verifiers, where: str
) -> types.Verdict:
    """Hand over chunk after chunk as the devices finish them, then wait for the scores."""
    pending = []
    for chunk in rows:  # all are dispatched already; device_get waits for this one only
        assert chunk.action is not None
        index, token, mask = jax.device_get((chunk.index, chunk.action.token, chunk.mask))
        pending.append(judge(program, verifiers, index, "train", token, mask))
    return verdict(pending, where)
