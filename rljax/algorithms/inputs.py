"""What an algorithm reads and nobody supplies: the check of the config, and of the page of the table.

Rows of a run always have a mask, a reward, a group, log-probs, and ids that are the same everywhere: one turn, one
agent, one domain, an episode for each row. A recipe that reads more would train on these defaults as another method.
"""

from collections.abc import Collection

from rljax import types
from rljax.algorithms import interpreter

# Needs that only a source can meet: its name in ``types.Source.supplies``, and what the rows then hold
SUPPLIED = {
    "token_reward": "token rewards",
    "turns": "turns (Rollout.turn)",
    "agents": "agents (Rollout.agent)",
    "episodes": "episodes of several rows (Rollout.episode)",
    "domains": "domains (Rollout.domain)",
}


def unsupplied(algorithm: types.Algorithm) -> tuple[str, ...]:
    """Return what the algorithm reads that its source does not supply, in words; empty where it can train.

    ``missing_parts`` has what depends on the task.
    """
    needs, source = interpreter.needs(algorithm), algorithm.source
    absent = ["off-policy rows (on_policy 0)"] * (needs.off_policy and not source.off_policy)
    absent += [words for name, words in SUPPLIED.items() if getattr(needs, name) and name not in source.supplies]
    return (*absent, *(f"extra[{name!r}]" for name in sorted(needs.extra - source.supplies)))


def missing_parts(algorithm: types.Algorithm, parts: Collection[str] = ()) -> tuple[str, ...]:
    """Return the parts of a verdict that the algorithm reads and that are not among ``parts``, sorted."""
    return tuple(sorted(interpreter.needs(algorithm).parts - {*parts}))
