"""The scores of each step of a host task, stored so that they can be replayed."""

from typing import Any

import jax.numpy as jnp

from rljax import types
from rljax.host import processes
from rljax.run import metrics


class Journal:
    """Stores and replays scores. Without a log, nothing is stored.

    Scores are replayed only if the step has produced the same completions again, and for the same judge. The leader
    writes the scores of all processes and broadcasts them when it reads them, so a run may be resumed with another
    number of processes.
    """

    def __init__(self, log: metrics.StepLog | None, first: int, judge: str = ""):
        """Read the records of steps after ``first``, which a resumed run repeats; ``judge`` names task and reward."""
        self._log, self._judge = log, judge
        self._records: dict[tuple[int, int], dict[str, Any]] = processes.from_leader(
            lambda: {(r["step"], r.get("pass", 0)): r for r in log.read() if r["step"] > first} if log else {}
        )

    def __contains__(self, number: tuple[int, int]) -> bool:
        """Return whether the journal has a record of a step's pass."""
        return number in self._records

    def replay(self, number: tuple[int, int], completions: str) -> types.Verdict | None:
        """Return the recorded verdict of a pass.

        Args:
          number: the step, from 1, and its pass, from 0.
          completions: ``host_rollouts.digest`` of its completions.

        Returns:
          The verdict, ``[B]`` each; None if there is no record, or one of other completions.
        """
        record = self._records.get(number)
        if record is None:
            return None
        if record["completions"] != completions or record.get("judge") != self._judge:
            earlier = [r for n, r in sorted(self._records.items()) if n[0] == number[0] and n < number]
            if self._log is not None:
                self._log.cut(number[0] - 1)  # this record and later ones are of another run
                for kept in earlier:
                    self._log.append(kept)
            self._records = {}
            return None
        return types.Verdict(
            reward=jnp.asarray(record["reward"], jnp.float32),
            outcome=jnp.asarray(record["outcome"], jnp.int32),
            parts={k: jnp.asarray(v, jnp.float32) for k, v in record["parts"].items()},
        )

    def record(self, number: tuple[int, int], completions: str, verdict: types.Verdict) -> None:
        """Store the verdict of a pass; it is written and flushed when this returns.

        Args:
          number: the step, from 1, and its pass, from 0.
          completions: ``host_rollouts.digest`` of its completions.
          verdict: ``[B]`` each.
        """
        if self._log is not None:
            self._log.append(
                {
                    "step": number[0],
                    **({"pass": number[1]} if number[1] else {}),
                    "completions": completions,
                    "judge": self._judge,
                    "reward": verdict.reward,
                    "outcome": verdict.outcome,
                    "parts": verdict.parts,
                }
            )
