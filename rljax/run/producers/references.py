"""Whether the reference solutions of questions pass: rows whose own solution is not correct teach nothing."""

import collections
import time
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from rljax import types
from rljax.environments.questions import task as questions
from rljax.environments.verifiers import judging

_SECONDS = 5.0  # of a run, before its first step


class Failed(NamedTuple):
    """A question whose reference solution is not correct."""

    question: questions.Question
    outcome: str
    error: str  # of a reward function that raised


class Tried(NamedTuple):
    """What the reward function says of the reference solutions of a task."""

    total: int  # questions that have a solution
    tried: int
    failed: tuple[Failed, ...]

    def __str__(self) -> str:
        """Return one line."""
        counted = f"{self.tried:,} of {self.total:,} reference solutions tried"
        if not self.failed:
            return f"{counted}, all correct"
        kinds = collections.Counter(failed.outcome for failed in self.failed)
        named = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
        error = next((f"; the first error: {failed.error}" for failed in self.failed if failed.error), "")
        where = questions.places([failed.question for failed in self.failed])
        return f"{counted}, {len(self.failed):,} not correct ({named}): {where}{error}"


def solutions(task: Any) -> list[questions.Question]:
    """Return the questions of a task that have a solution, the training split first; none of another task."""
    sources = task.sources.values() if isinstance(task, questions.Questions) else ()
    return [question for source in sources for question in source if question.solution is not None]


def tried(asked: Iterable[questions.Question], verifiers: judging.Verifiers, seconds: float = float("inf")) -> Tried:
    """Judge the reference solutions of questions.

    Args:
      asked: questions that have a solution.
      verifiers: the started workers of their task.
      seconds: after which no further solution is tried. They are tried in an order that is drawn with a fixed seed, in
        parts that double, so that a slow reward function is asked for few.

    Returns:
      What it says. Rewards that do not say whether a solution is correct do not fail.
    """
    rows, place, size, began = list(asked), 0, 2, time.monotonic()
    failed: dict[int, Failed] = {}
    order = np.random.default_rng(0).permutation(len(rows))
    while place < len(rows) and time.monotonic() - began < seconds:
        part = [rows[i] for i in order[place : place + size]]
        given = ([q.solution or "" for q in part], [q.reference for q in part], [q.columns for q in part])
        scored = verifiers.submit(*given).result()
        errors = dict(scored.errors)
        for number, (question, outcome) in enumerate(zip(part, scored.outcome, strict=True)):
            if outcome not in (types.Outcome.CORRECT, types.Outcome.UNJUDGED):
                name = types.Outcome(outcome).name.lower().replace("_", " ")
                last = errors.get(number, "").strip().splitlines()[-1:]
                failed[order[place + number]] = Failed(question, name, "".join(last))
        place, size = place + len(part), min(2 * size, 1024)
    return Tried(len(rows), place, tuple(failed[row] for row in sorted(failed)))


def warn(task: Any, verifiers: judging.Verifiers) -> None:
    """Try reference solutions for a few seconds, and warn of those that are not correct."""
    result = tried(solutions(task), verifiers, _SECONDS)
    if result.failed:
        more = "" if result.tried == result.total else " python -m rljax data inspect tries all."
        text = f"task {task.name!r}: {result}. Nothing that is like them gets a reward.{more}"
        warnings.warn(text, questions.DataWarning, stacklevel=2)
