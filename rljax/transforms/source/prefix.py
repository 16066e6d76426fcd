"""Prefixes: completions that begin with a part of a demonstration, which the policy continues.

No loss touches the tokens of a head, except ``penalty.hint_nll``; the verifier reads head and continuation together.
A head of share s has round(s n) of the n tokens of a demonstration before its last one, end-of-sequence.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import edits, groups

Array = types.Array
Each = Literal["prompt", "row"]
SUPPLIES = frozenset({"head"})


@define.source
def prefixed(share: types.Fraction = 0.5):
    """Begin every completion with the first ``share`` of the prompt's demonstration.

    With a falling schedule the tasks become longer until none is helped: the share of instructions given by QWeb
    (arXiv 1812.09195). QuestA (arXiv 2507.13266) gives 0.5, then 0.25, in two phases; it writes them into the prompt.
    At a constant 0 it is ``task``.

    Args:
      share: of the demonstration's tokens; a number or a schedule.
    """
    if isinstance(share, int | float) and share == 0:
        return types.Source()

    def head(pool, problems, rows, solutions, key):
        del pool, problems, key
        return cut(solutions, jnp.full(rows.reward.shape, share))

    return types.Source(solutions=True, supplies=SUPPLIES, head=head)


@define.source
def prefixed_between(
    low: types.Fraction = 0.0, high: types.Fraction = 1.0, each: Each = "prompt", chance: types.Fraction = 1.0
):
    """Begin completions with a random share of the demonstration, uniform in [low, high].

    Starts from all states of a teacher, as roll-ins by a guide policy: PPO++ (arXiv 2306.11816, where ``chance`` is its
    beta), SnapshotRL.

    Args:
      low: the smallest share.
      high: the largest share.
      each: what has a share of its own; rows of a "prompt" share one, so that a group compares equals.
      chance: probability that a prompt, or a row, has a head at all.
    """

    def head(pool, problems, rows, solutions, key):
        del pool, problems
        keys = _keys(rows, key, each)
        share = jax.vmap(lambda k: jax.random.uniform(k, minval=low, maxval=high))(keys)
        helped = jax.vmap(lambda k: jax.random.bernoulli(jax.random.fold_in(k, 1), chance))(keys)
        return cut(solutions, jnp.where(helped, share, 0.0))

    return types.Source(solutions=True, supplies=SUPPLIES, head=head)


@define.source
def prefixed_binomial(share: types.Fraction = 0.5, each: Each = "prompt"):
    """Begin completions with Binomial(n, share) of the n tokens of the demonstration.

    The hints of UFT (arXiv 2505.16984), whose share falls as ``cosine(0.95, 0.05, 300)`` in 300 of 500 steps and whose
    loss has the term ``penalty.hint_nll`` too.

    Args:
      share: the mean share of the demonstration's tokens; a number or a schedule.
      each: what has a length of its own; rows of a "prompt" share one.
    """

    def head(pool, problems, rows, solutions, key):
        del pool, problems
        column = jnp.arange(solutions.token.shape[1])
        draws = jax.vmap(lambda k: jax.random.bernoulli(k, share, column.shape))(_keys(rows, key, each))
        length = jnp.sum(draws & (column[None, :] < _longest(solutions)[:, None]), axis=1, dtype=jnp.int32)
        return solutions.replace(length=length)

    return types.Source(solutions=True, supplies=SUPPLIES, head=head)


@define.source
def backward(
    start: types.Fraction = 1.0,
    change: types.Fraction = 0.1,
    threshold: types.Fraction = 0.2,
    each: Literal["prompt", "batch"] = "prompt",
    candidates: candidates_lib.Number = 0,
):
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
        del rollout
        known = candidates_lib.index(problems, candidates) if each == "prompt" else jnp.zeros((1,), jnp.int32)
        return {"prompts": known, "share": jnp.full(known.shape, start, jnp.float32)}

    def head(pool, problems, rows, solutions, key):
        del problems, key
        assert rows.index is not None
        return cut(solutions, _of(pool, rows.index))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del count, key
        seen, share = groups.tally(rollout), pool["share"]
        if each == "batch":
            wins, judged = jnp.sum(seen.wins), jnp.sum(seen.count)
            share = share - change * ((judged > 0) & (wins >= threshold * judged))
        else:
            solved = (seen.count > 0) & (seen.wins >= threshold * seen.count)
            share = candidates_lib.add(share, pool["prompts"], seen.index, -change * solved)
        return rollout, {**pool, "share": jnp.maximum(share, 0.0)}

    return types.Source(solutions=True, supplies=SUPPLIES, init=init, head=head, select=select)


@define.source
def bread(
    share: types.Fraction = 0.5,
    change: types.Fraction = 0.125,
    threshold: types.Fraction = 0.5,
    prompts: types.Fraction = 0.5,
    candidates: candidates_lib.Number = 0,
):
    """Sample the groups without a success again, branching from a state of the demonstration.

    The whole group continues one head, so it compares rows of one problem. A prompt's head grows by ``change`` when
    the branches fail too, and shrinks by it when their success rate is above ``threshold``. BREAD (arXiv 2506.17211)
    searches the state by bisection within the step; here the search goes on from visit to visit.

    Args:
      share: the first share of the demonstration's tokens.
      change: what is added to it or subtracted after a visit.
      threshold: the success rate of branches above which the head shrinks.
      prompts: the largest share of the prompts that is sampled again.
      candidates: prompts that have a head length of their own, as in ``backward``.

    Raises:
      ValueError: every prompt of a task with more than 65,536 has a head length of its own.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        del rollout
        known = candidates_lib.index(problems, candidates)
        return {"prompts": known, "share": jnp.full(known.shape, share, jnp.float32)}

    def edit(pool, problems, rollout, solutions, count, key):
        del problems, key
        row, used = edits.places(rollout, edits.unsolved(rollout), count)
        heads = cut(jax.tree.map(lambda x: x[row], solutions), _of(pool, rollout.index[row]))
        return edits.prompts(rollout, row, used).replace(head=heads)

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        return edits.alone(groups.replaced(first, second, edit, edit.row[:, None]), first)

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del count, key
        branches = ops.valid_rows(rollout) * (rollout.extra["pass"] > 0)
        number, places = groups.place(rollout), rollout.group.size
        seen, wins = (
            jax.ops.segment_sum(x, number, places) for x in (branches, branches * (rollout.reward > 0).astype(float))
        )
        move = jnp.where(wins == 0, change, jnp.where(wins > threshold * seen, -change, 0.0)) * (seen > 0)
        index = groups.tally(rollout).index
        moved = candidates_lib.add(pool["share"], pool["prompts"], index, move)
        return rollout, {**pool, "share": jnp.clip(moved, 0.0, 1.0)}

    again = types.Again(edit=edit, merge=merge, share=prompts)
    return types.Source(solutions=True, supplies=SUPPLIES, init=init, again=again, select=select)


# --- for these and for authors of pieces -----------------------------------------------------------


def cut(solutions: types.Action, share: Array) -> types.Action:
    """Return the first ``share`` ``[n]`` of demonstrations ``[n, T]``; their last token is never included."""
    count = _longest(solutions)
    length = jnp.clip(jnp.round(share * count).astype(jnp.int32), 0, count)
    return solutions.replace(length=length)


def _longest(solutions: types.Action) -> Array:
    return jnp.maximum(ops.given(solutions.length, "prefix: demonstrations have no length") - 1, 0)


def _keys(rows: types.Rollout, key: types.Key, each: Each) -> types.Key:
    """Return a key of each row, ``[B]``: that of its group, or its own."""
    keys = jax.vmap(lambda group: jax.random.fold_in(key, group))(rows.group)
    return keys if each == "prompt" else jax.vmap(jax.random.fold_in)(keys, groups.sample(rows))


def _of(pool: types.Tree, index: Array) -> Array:
    """Return the share of prompts ``index`` ``[n]``; that of a prompt without one is the mean."""
    place, there = candidates_lib.slot(pool["prompts"], index)
    return jnp.where(there, pool["share"][place], jnp.mean(pool["share"]))
