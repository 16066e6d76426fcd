"""What an algorithm reads and nobody supplies: the check of the config, and of the page of the table.

Rows of a run always have a mask, a reward, a group and log-probs. Where the task is one turn, their ids are the same
everywhere: one turn, one agent, one domain, an episode for each row. A recipe that reads more would train on these
defaults as another method. A world supplies more (``rljax.environments.traits``).
"""

from collections.abc import Collection

from rljax import types
from rljax.algorithms import interpreter
from rljax.transforms import modules

# Needs that only a source or a world can meet: its name in ``types.Source.supplies``, and what the rows then hold
SUPPLIED = {
    "token_reward": "token rewards",
    "turns": "turns (Rollout.turn)",
    "agents": "agents (Rollout.agent)",
    "episodes": "episodes of several rows (Rollout.episode)",
    "domains": "domains (Rollout.domain)",
}

# The extra that a run computes itself: log-probs [B, T] of the policy one step earlier, unfiltered
PRECEDENT = "previous_logp"


def unsupplied(algorithm: types.Algorithm, supplies: Collection[str] = ()) -> tuple[str, ...]:
    """Return what the algorithm reads that neither its source nor its task supplies.

    Args:
      algorithm: the algorithm.
      supplies: what the task supplies, by the names of ``types.Source.supplies``; a task of one turn: nothing.

    Returns:
      The names in words; empty where it can train. ``missing_parts`` has the parts of the verdict.
    """
    needs, source = interpreter.needs(algorithm), algorithm.source
    supplied = source.supplies | {*supplies}
    absent = ["off-policy rows (on_policy 0)"] * (needs.off_policy and not source.off_policy)
    absent += [words for name, words in SUPPLIED.items() if getattr(needs, name) and name not in supplied]
    return (*absent, *(f"extra[{name!r}]" for name in sorted(needs.extra - supplied - {PRECEDENT})))


def untrained(algorithm: types.Algorithm) -> tuple[str, ...]:
    """Return the modules that the algorithm reads and does not train, which the config must have, sorted."""
    read = {module for module, _ in interpreter.needs(algorithm).scores} | modules.compared(
        interpreter.needs(algorithm)
    )
    return tuple(sorted(read - {modules.REFERENCE, "policy"} - {o.module for o in algorithm.objectives}))


def missing_parts(algorithm: types.Algorithm, parts: Collection[str] = ()) -> tuple[str, ...]:
    """Return the parts that the algorithm reads and that neither its source nor ``parts``, the verdict, has, sorted."""
    return tuple(sorted(interpreter.needs(algorithm).parts - {*parts} - algorithm.source.supplies))
