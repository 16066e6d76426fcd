"""Producers whose rows pass through the host; ``training.producers`` has what they compile.

``verified``    Completions that worker processes score, in chunks: chunk k is scored while chunk k + 1 is decoded.
``answered``    Episodes of host worlds: conversations whose turns worker processes answer.
``conversations``  How they are begun, played and judged; ``lanes``: their rows in the slots of the decoder.
``from_files``  Stored rows, and behaviour log-probs that the file does not have; demonstrations of host tasks.
``arriving``    Rows that others write into a folder during the run.
``ahead``       Any rows that the policy samples, ahead of updates, or on devices of their own.
"""

import contextlib
from typing import Any, Protocol

from rljax import types
from rljax.environments import traits
from rljax.host import workdirs
from rljax.run import programs
from rljax.run.producers import answered, arriving, conversations, from_files, verified
from rljax.run.records import journals
from rljax.training import steps
from rljax.training.producers import completions, demonstrations, segments, stored, turns


class Producer(Protocol):
    """Returns the rows of the next step of a phase."""

    @property
    def waited(self) -> float:
        """Seconds for which the run has waited for worker processes."""
        ...

    def __call__(self, state: types.TrainState) -> types.Rollout:
        """Return the rows of the step after ``state``, sharded by row."""
        ...


def workers(setup: programs.Setup) -> contextlib.AbstractContextManager[Any]:
    """Return the worker processes of a phase's task, not yet started: of a world, of a verifier, or none.

    An evaluation of a phase that reads demonstrations needs them too.
    """
    about = traits.traits(setup.task)
    if not about.host:
        return contextlib.nullcontext()
    return verified.verifiers(setup.task, setup.settings.verifier) if about.whole else conversations.Worlds(setup)


def make(
    program: programs.Program,
    step: steps.Step,
    workers: Any,
    journal: journals.Journal | None = None,
    state: types.TrainState | None = None,
    directory: workdirs.WorkDirectory | None = None,
) -> Producer | None:
    """Return the producer of a phase; None where the program computes its rows.

    Args:
      program: the run.
      step: the compiled functions of the phase.
      workers: the started ``workers`` of the phase.
      journal: what the host answered in earlier attempts; None: nothing is replayed or stored.
      state: the train state; None: rows of files need no log-probs of it.
      directory: the work directory, where log-probs of rows of files, and which rows have arrived, are kept; None: not.
    """
    journal = journal or journals.Journal()
    match step.producer:
        case stored.Stored() as given if given.groups.version is not None:
            return arriving.Arriving(program, step, given, directory)
        case stored.Stored() as given:
            producer = from_files.FromFiles(program, step, given)
            if state is not None:
                producer.complete(state, directory)
            return producer
        case demonstrations.Demonstrations(traced=False) as given:
            return from_files.Shown(program, step, given)
        case turns.Turns() | segments.Segments(whole=turns.Turns()):
            return answered.Answered(program, step, workers, journal)
        case completions.Completions(traced=False):
            fields = step.setup.settings
            chunks = fields.learner.microbatches if step.setup.overlapped else fields.verifier.chunks
            return verified.Verified(program, step, workers, journal, chunks)
        case completions.Twice(traced=False):
            return verified.VerifiedTwice(program, step, workers, journal, step.setup.settings.verifier.chunks)
    return None
