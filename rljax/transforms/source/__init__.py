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
    each prompt that is ``used`` gets rows, which are scored too; ``merge(first, second, edit) -> rollout`` puts them in
    place of rows of the first pass.
``select(rollout, pool, count, key) -> (rollout, pool)``
    Returns ``count`` of the scored rows, whole groups, and observes them all: it updates the statistics in the pool.
    If any piece has ``grouped`` False, all select after the rollout transforms, so that ``advantage`` is that of whole
    groups, and may return any rows, in any number of each.
``observe(pool, metrics) -> pool``
    Ends the step.

Statistics cover a declared set of prompts (``candidates``) or domains. In a chain at most one piece chooses, one writes
heads, one has a second pass and one carries rows in flight; any number select, each among the rows that the one before
it returned. ``rollout.extra`` says of a row: "pass" is 1 in rows of a second pass, "head" ``[B, T]`` is 1 on the tokens
of a head, "repeat" is how often the step had drawn the prompt before; "first_reward" and "first_outcome" are those of
the row that the first pass had in its place.

====================  ===================================================================
``plain.py``          samples, demonstrations, and both in one group
``draws.py``          prompts chosen by statistics of each prompt: posteriors of its success rate
``histories.py``      the same: totals, the last visit, learning curves
``orders.py``         prompts from easy to hard: by rank, in blocks, as variants of a problem
``segments.py``       rows that are sampled over several steps
``filters.py``        which of the scored groups are trained on
``single.py``         which of the scored rows, by their advantages
``budgets.py``        how many samples each prompt gets
``memory.py``         rows of earlier steps
``files.py``          rows of files, which no policy samples
``domains.py``        prompts by domain: bandits, mixtures, orders of difficulty
``experience.py``     memories that decide which prompts are drawn, or what a group is trained on
``store.py``          for authors of pieces: memories of episodes by prompt
``prefix.py``         completions that begin with a part of a demonstration
``forks.py``          second passes that continue a part of the policy's own completion
``inserts.py``        second passes that write tokens into the policy's own completion
``second.py``         what is sampled again from an edited prompt
``edits.py``          for authors of second passes: edited prompts, rows in place of others
``groups.py``         for authors of pieces: batches as groups, tallies of prompts
``candidates.py``     for authors of pieces: the prompts that statistics are kept of
``chain.py``          several pieces as one source
====================  ===================================================================
"""

from rljax.transforms.source.budgets import adaptive, inverse_success, knapsack
from rljax.transforms.source.domains import alp, dump, easiest, gaussian, mixed, ordered, sec, shortfall
from rljax.transforms.source.draws import by_deviation, by_failure, hard_replay, learnability, mopps, vade
from rljax.transforms.source.experience import base_samples, exgrpo, unsolved
from rljax.transforms.source.files import stored
from rljax.transforms.source.filters import balanced, dynamic, rounds
from rljax.transforms.source.forks import anytime, branched, cure, expert_rewrite, retry_from_middle
from rljax.transforms.source.histories import band, lim, prioritized, regret, retire, weak
from rljax.transforms.source.inserts import answered, intervene, probed, rethink
from rljax.transforms.source.memory import arpo, guided_if, replay, rlep
from rljax.transforms.source.orders import adcl, ladder, ranked
from rljax.transforms.source.plain import demonstrations, guided, guided_below, task
from rljax.transforms.source.prefix import backward, bread, prefixed, prefixed_between, prefixed_binomial
from rljax.transforms.source.second import (
    explained,
    ghpo,
    guide,
    hinted,
    refine,
    reflect,
    scaffold,
    self_judged,
    templates,
)
from rljax.transforms.source.segments import april, partial, windowed
from rljax.transforms.source.single import one_of_each, pairs, recompose, selective_replay

__all__ = [
    "adaptive",
    "adcl",
    "alp",
    "answered",
    "anytime",
    "april",
    "arpo",
    "backward",
    "balanced",
    "band",
    "base_samples",
    "branched",
    "bread",
    "by_deviation",
    "by_failure",
    "cure",
    "demonstrations",
    "dump",
    "dynamic",
    "easiest",
    "exgrpo",
    "expert_rewrite",
    "explained",
    "gaussian",
    "ghpo",
    "guide",
    "guided",
    "guided_below",
    "guided_if",
    "hard_replay",
    "hinted",
    "intervene",
    "inverse_success",
    "knapsack",
    "ladder",
    "learnability",
    "lim",
    "mixed",
    "mopps",
    "one_of_each",
    "ordered",
    "pairs",
    "partial",
    "prefixed",
    "prefixed_between",
    "prefixed_binomial",
    "prioritized",
    "probed",
    "ranked",
    "recompose",
    "refine",
    "reflect",
    "regret",
    "replay",
    "rethink",
    "retire",
    "retry_from_middle",
    "rlep",
    "rounds",
    "scaffold",
    "sec",
    "selective_replay",
    "self_judged",
    "shortfall",
    "stored",
    "task",
    "templates",
    "unsolved",
    "vade",
    "weak",
    "windowed",
]
