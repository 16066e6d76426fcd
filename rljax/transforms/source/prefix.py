"""Prefixes: completions that begin with a part of a demonstration, which the policy continues.

No loss touches the tokens of a head, except ``penalty.hint_nll``; the verifier reads head and continuation together.
A head of share s has round(s n) of the n tokens of a demonstration before its last one, end-of-sequence.
"""

from typing import Literal

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.frame import idle
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import groups

Array = types.Array
SUPPLIES = frozenset({"head"})


@define.source
def prefixed(share: types.Fraction = 0.5) -> types.Source:
    """Begin every completion with the first ``share`` of the prompt's demonstration.

    With a falling schedule the tasks become longer until none is helped: the share of instructions given by QWeb
    (arXiv 1812.09195). QuestA (arXiv 2507.13266) gives 0.5, then 0.25, in two phases; it writes them into the prompt.
    At a constant 0 it is ``task``.

    Args:
      share: of the demonstration's tokens; a number or a schedule.
    """
    if idle.equals(share, 0):
        return types.Source()

    def head(pool, problems, rows, solutions, key):
        return cut(solutions, jnp.full(rows.reward.shape, share))

    return types.Source(solutions=True, supplies=SUPPLIES, head=head)


@define.source
def backward(
    start: types.Fraction = 1.0,
    change: types.Fraction = 0.1,
    threshold: types.Fraction = 0.2,
    each: Literal["prompt", "batch"] = "prompt",
    candidates: candidates_lib.Number = 0,
) -> types.Source:
    """Start near the end of the demonstration and move back by ``change`` whenever the success rate allows it.

    share <- max(share - change, 0) if the rate of the step is at least ``threshold``; else it stays. Backward algorithm
    (arXiv 1812.03381, which moves back at a rate of 0.2); R3 (arXiv 2402.05808) has such stages for reasoning.

    Args:
      start: the first share of the demonstration's tokens.
      change: the part of the demonstration by which the start moves.
      threshold: the success rate, of rewards above 0, from which on it moves.
      each: whether every "prompt" has a start of its own, by its own rate, or the "batch" has one.
      candidates: prompts that have a start of their own, see ``source.candidates``; the others use the mean. 0: all.

    Raises:
      ValueError: every prompt of a task with more than 65,536 has a start of its own.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        known = candidates_lib.index(problems, candidates) if each == "prompt" else jnp.zeros((1,), jnp.int32)
        return {"prompts": known, "share": jnp.full(known.shape, start, jnp.float32)}

    def head(pool, problems, rows, solutions, key):
        assert rows.index is not None
        return cut(solutions, share_of(pool, rows.index))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        seen, share = groups.tally(rollout), pool["share"]
        if each == "batch":
            wins, judged = jnp.sum(seen.wins), jnp.sum(seen.count)
            share = share - change * ((judged > 0) & (wins >= threshold * judged))
        else:
            solved = (seen.count > 0) & (seen.wins >= threshold * seen.count)
            share = candidates_lib.add(share, pool["prompts"], seen.index, -change * solved)
        return rollout, {**pool, "share": jnp.maximum(share, 0.0)}

    return types.Source(solutions=True, supplies=SUPPLIES, init=init, head=head, select=select)


# --- for these and for authors of pieces -----------------------------------------------------------


def cut(solutions: types.Action, share: Array) -> types.Action:
    """Return the first ``share`` ``[n]`` of demonstrations ``[n, T]``; their last token is never included."""
    count = longest(solutions)
    length = jnp.clip(jnp.round(share * count).astype(jnp.int32), 0, count)
    return solutions.replace(length=length)


def longest(solutions: types.Action) -> Array:
    """Return the length of each demonstration without its last token, ``[B]``."""
    return jnp.maximum(ops.given(solutions.length, "prefix: demonstrations have no length") - 1, 0)


def share_of(pool: types.Tree, index: Array) -> Array:
    """Return the share of prompts ``index`` ``[n]``; a prompt without one has the mean."""
    place, there = candidates_lib.slot(pool["prompts"], index)
    return jnp.where(there, pool["share"][place], jnp.mean(pool["share"]))
