"""Sources: where the rows of a step come from, as pure functions over a checkpointed pool.

A source is a piece or a chain of pieces, ``a() | b()``. A piece fills in some of these functions (``types.Source``):

``init(rollout, problems) -> pool``
    The pool at the start of a phase. ``rollout`` has the shapes of a batch, ``problems`` the size of the task.
``choose(pool, problems, offered, key) -> Choice``
    The prompts of the step and the samples of each, before sampling. ``offered`` ``[P]`` are the next of the shuffle;
    as many are returned. Samples of unequal numbers (``uneven``) have a sum of B = prompts * samples rows; without
    ``uneven`` a prompt has all its samples or, in the last places, none, and those rows are invalid.
``head(pool, problems, rows, solutions, key) -> Action``
    The tokens that each completion begins with, ``[B, T]`` and ``length`` ``[B]``; the policy continues them, and no
    loss touches them. ``rows`` have no completion yet; ``solutions`` ``[B, T]`` are the task's demonstrations
    (``solutions=True``). A host task samples the rows in chunks: a random head depends on the group, not on the place.
``again``
    A second pass (``types.Again``). ``edit(pool, problems, rollout, solutions, count, key) -> Edit`` returns ``count``
    edited prompts after the first pass has been scored, ``solutions`` ``[B, T]`` being a demonstration for each row;
    each prompt that is ``used`` gets rows, which ``module`` samples and which are scored too; ``merge(first, second,
    edit) -> rollout`` puts them in place of rows of the first pass.
``select(rollout, pool, count, key) -> (rollout, pool)``
    Returns ``count`` of the scored rows, whole groups, and observes them all: it updates the statistics in the pool.
    If any piece has ``grouped`` False, all select after the rollout transforms, so that ``advantage`` comes from whole
    groups, and may return any rows, in any number of each.
``relabel(rollout, task, key) -> rollout``
    Puts other goals into the chosen rows of a world with ``goals``, by its ``relabelled``. No pool keeps these rows.
``observe(pool, metrics) -> pool``
    Ends the step.
``renew(pool) -> pool``
    Begins a phase that carries the pool over: schedules start again.

Where rollouts run ahead of updates (``config.run.lag``), the functions before sampling read the pool of the version
that samples, as the sampler has it together with the policy; ``select`` and ``observe`` write the trainer's. A piece
with a ``segment`` is refused there, because it needs both in one step.

Statistics cover a declared set of prompts (``candidates``) or domains. In a chain at most one piece chooses, one writes
heads, one has a second pass and one carries rows in flight; any number select, each among the rows that the one before
it returned. ``frame.extras`` lists the arrays of ``rollout.extra``, which say how a row was made.

====================  ===================================================================
``plain.py``          samples, demonstrations, and both in one group
``draws.py``          prompts chosen by statistics of each prompt: posteriors of its success rate
``domains.py``        prompts by domain: a bandit
``segments.py``       rows that are sampled over several steps
``single.py``         which of the scored groups, and of the rows by their advantages
``files.py``          rows of files, read before the run or as they arrive
``prefix.py``         completions that begin with a part of a demonstration
``second.py``         what is sampled again from an edited prompt
``edits.py``          for authors of second passes: edited prompts, rows in place of others
``groups.py``         for authors of pieces: batches as groups, tallies of prompts
``candidates.py``     for authors of pieces: the prompts that statistics are kept of
``chain.py``          several pieces as one source
====================  ===================================================================

``rljax.methods.source`` has the other pieces: memories of rows of earlier steps, budgets of samples, orders of prompts,
forks and insertions into completions, other draws, filters and second passes.
"""

from typing import Any

from rljax import transforms
from rljax.transforms.source import candidates, chain, edits, groups  # before a piece of these names is looked up
from rljax.transforms.source.domains import sec
from rljax.transforms.source.draws import learnability, mopps
from rljax.transforms.source.files import arriving, recorded, stored
from rljax.transforms.source.plain import demonstrations, guided, guided_below, task
from rljax.transforms.source.prefix import backward, prefixed
from rljax.transforms.source.second import ghpo, guide
from rljax.transforms.source.segments import partial
from rljax.transforms.source.single import dynamic, pairs


def __getattr__(name: str) -> Any:
    return transforms.piece("source", name)
