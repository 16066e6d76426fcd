"""Sources: where the rows of a step come from, as pure functions over a checkpointed pool.

A source is a piece or a chain of pieces, ``a() | b()``. A piece fills in some of these functions (``types.Source``):

``init(rollout, problems) -> pool``
    The pool at the start of a phase. ``rollout`` has the shapes of a batch, ``problems`` the size of the task.
``choose(pool, problems, offered, key) -> Choice``
    The prompts of the step and the samples of each, before sampling. ``offered`` ``[P]`` are the next of the shuffle;
    as many are returned. Samples of unequal numbers (``uneven``) have a sum of B = prompts * samples rows.
``head(pool, problems, solutions, key) -> Action``
    The tokens that each completion begins with, ``[B, T]`` and ``length`` ``[B]``; the policy continues them, and no
    loss touches them. ``solutions`` ``[B, T]`` are the task's demonstrations (``solutions=True``).
``again``
    A second pass (``types.Again``). ``edit(pool, problems, rollout, solutions, count, key) -> Edit`` returns ``count``
    edited prompts after the first pass has been scored, ``solutions`` ``[B, T]`` being a demonstration for each row;
    each prompt that is ``used`` gets rows, which are scored too; ``merge(first, second, edit) -> rollout`` puts them in
    place of rows of the first pass.
``select(rollout, pool, count, key) -> (rollout, pool)``
    Returns ``count`` of the scored rows, whole groups, and observes them all: it updates the statistics in the pool.
``observe(pool, metrics) -> pool``
    Ends the step.

Statistics cover a declared set of prompts (``candidates``) or domains. In a chain at most one piece chooses, one writes
heads, one has a second pass and one carries rows in flight; any number select, each among the rows that the one before
it returned. ``rollout.extra`` says of a row: "pass" is 1 in rows of a second pass, "head" ``[B, T]`` is 1 on the tokens
of a head, "repeat" is how often the step had drawn the prompt before; "first_reward" and "first_outcome" are those of
the row that the first pass had in its place.

====================  ===================================================================
``plain.py``          samples, demonstrations, and both in one group
``segments.py``       rows that are sampled over several steps
``filters.py``        which of the scored rows are trained on
``memory.py``         rows of earlier steps
``second.py``         what is sampled again from an edited prompt
``edits.py``          for authors of second passes: edited prompts, rows in place of others
``groups.py``         for authors of pieces: batches as groups, tallies of prompts
``candidates.py``     for authors of pieces: the prompts that statistics are kept of
``chain.py``          several pieces as one source
====================  ===================================================================
"""

from rljax.transforms.source.filters import dynamic
from rljax.transforms.source.memory import replay
from rljax.transforms.source.plain import demonstrations, guided, task
from rljax.transforms.source.second import explained, ghpo, guide, refine, reflect, scaffold, templates
from rljax.transforms.source.segments import partial

__all__ = [
    "demonstrations",
    "dynamic",
    "explained",
    "ghpo",
    "guide",
    "guided",
    "partial",
    "refine",
    "reflect",
    "replay",
    "scaffold",
    "task",
    "templates",
]
