"""Rollouts of host tasks: prompts read on the host, completions scored by worker processes.

The batch is cut into chunks: while the workers judge chunk k the devices decode chunk k + 1. Scores are
journalled with their step, so that a run that is replayed after a kill sees the time-outs it saw before.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax import program as programs
from rljax import step as steps
from rljax.rewards import pool


class Journal:
    """The scores of each step, kept in order to be replayed. Without a log, nothing is kept."""

    def __init__(self, log: Any | None, first: int):
        """Read the records of steps after ``first``, which a resumed run is about to make again."""
        self._log = log
        self._found = {r["step"]: r for r in log.read() if r["step"] > first} if log else {}

    def get(self, step: int, index: np.ndarray) -> types.Verdict | None:
        """Return what the workers said when this step was made before, if it was made of the same prompts."""
        found = self._found.get(step)
        if found is None or found["index"] != index.tolist():
            return None
        return types.Verdict(
            reward=jnp.asarray(found["reward"], jnp.float32),
            outcome=jnp.asarray(found["outcome"], jnp.int32),
            parts={k: jnp.asarray(v, jnp.float32) for k, v in found["parts"].items()},
        )

    def put(self, step: int, index: np.ndarray, verdict: types.Verdict) -> None:
        """Record what the workers said."""
        if self._log and step not in self._found:
            lists = jax.tree.map(lambda x: np.asarray(x).tolist(), verdict)
            self._log.append(
                {"step": step, "index": index.tolist(), "reward": lists.reward, "outcome": lists.outcome}
                | {"parts": lists.parts}
            )


def verifiers(program: programs.Program) -> contextlib.AbstractContextManager[pool.Verifiers | None]:
    """Start the workers of a host task; a device task has none."""
    if not program.task.host:
        return contextlib.nullcontext()
    fields = program.config.verifier
    task: Any = program.task  # a HostTask, as ``host`` says
    return pool.Verifiers(task.reward, workers=fields.workers, timeout=fields.timeout, parts=task.parts)


def texts(program: programs.Program, token: np.ndarray, mask: np.ndarray) -> list[str]:
    """Decode completions, [B, T] each."""
    return [
        program.tokenizer.decode([int(t) for t, m in zip(row, keep, strict=True) if m > 0])
        for row, keep in zip(token, mask, strict=True)
    ]


def judge(
    program: programs.Program,
    verifiers: pool.Verifiers,
    index: np.ndarray,
    split: str,
    token: np.ndarray,
    mask: np.ndarray,
) -> pool.Pending:
    """Hand rows to the workers; returns at once."""
    references = [program.task.reference(int(i), split) for i in index]
    return verifiers.submit(texts(program, token, mask), references)


def rollout(
    program: programs.Program,
    step: steps.Step,
    state: types.TrainState,
    verifiers: pool.Verifiers,
    journal: Journal,
    chunks: int,
) -> types.Rollout:
    """Sample and score one batch of a host task.

    Raises:
      RuntimeError: the verifier crashed on every row; its traceback is in the message.
    """
    key = program.key
    position, index = jax.device_get(step.draw(state, key))
    number = int(state.step)
    if step.plan.algorithm.source.origin == "demonstrations":
        prompts = program.task.prompts(index, "train")
        return step.sample(state.params["policy"], number, position, prompts, key)
    rows: list[types.Rollout] = []
    for part in np.split(np.arange(index.shape[0]), chunks):
        prompts = program.task.prompts(index[part], "train")
        rows.append(step.sample(state.params["policy"], np.int32(number), position[part], prompts, key))
    verdict = journal.get(number + 1, index)
    if verdict is None:
        verdict = _judged(program, rows, verifiers)
        journal.put(number + 1, index, verdict)
    whole = jax.tree.map(lambda *x: jnp.concatenate(x), *rows)
    whole = whole.replace(rollout=jnp.arange(whole.reward.shape[0], dtype=jnp.int32))
    return steps.judged(whole, verdict)


def _judged(
    program: programs.Program, rows: Sequence[types.Rollout], verifiers: pool.Verifiers
) -> types.Verdict:
    """Score chunk after chunk as the devices finish them."""
    pending = []
    for chunk in rows:  # all are dispatched already; device_get waits for this one only
        index, token, mask = jax.device_get((chunk.index, chunk.action.token, chunk.mask))
        pending.append(judge(program, verifiers, index, "train", token, mask))
    scored = [p.result() for p in pending]
    outcome = np.concatenate([s.outcome for s in scored])
    if np.all(outcome == types.Outcome.CRASHED):
        first = next((text for s in scored for _, text in s.errors), "no traceback")
        raise RuntimeError(f"config.task: the verifier crashed on all {outcome.size} rows of a step. First:\n{first}")
    names = sorted(set().union(*(s.parts for s in scored)))
    blank = [np.zeros_like(s.reward) for s in scored]
    return types.Verdict(
        reward=jnp.asarray(np.concatenate([s.reward for s in scored])),
        outcome=jnp.asarray(outcome),
        parts={
            n: jnp.asarray(np.concatenate([s.parts.get(n, z) for s, z in zip(scored, blank, strict=True)]))
            for n in names
        },
    )
