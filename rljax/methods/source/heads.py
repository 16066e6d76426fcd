"""Prefixes of random length, and prefixes that a failed prompt gets."""

from typing import Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import edits, groups, prefix

Each = Literal["prompt", "row"]


@define.source
def prefixed_between(
    low: types.Fraction = 0.0, high: types.Fraction = 1.0, each: Each = "prompt", chance: types.Fraction = 1.0
) -> types.Source:
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
        keys = _keys(rows, key, each)
        share = jax.vmap(lambda k: jax.random.uniform(k, minval=low, maxval=high))(keys)
        helped = jax.vmap(lambda k: jax.random.bernoulli(jax.random.fold_in(k, 1), chance))(keys)
        return prefix.cut(solutions, jnp.where(helped, share, 0.0))

    return types.Source(solutions=True, supplies=prefix.SUPPLIES, head=head)


@define.source
def prefixed_binomial(share: types.Fraction = 0.5, each: Each = "prompt") -> types.Source:
    """Begin completions with Binomial(n, share) of the n tokens of the demonstration.

    The hints of UFT (arXiv 2505.16984), whose share falls as ``cosine(0.95, 0.05, 300)`` in 300 of 500 steps and whose
    loss has the term ``penalty.hint_nll`` too.

    Args:
      share: the mean share of the demonstration's tokens; a number or a schedule.
      each: what has a length of its own; rows of a "prompt" share one.
    """

    def head(pool, problems, rows, solutions, key):
        column = jnp.arange(solutions.token.shape[1])
        draws = jax.vmap(lambda k: jax.random.bernoulli(k, share, column.shape))(_keys(rows, key, each))
        length = jnp.sum(draws & (column[None, :] < prefix.longest(solutions)[:, None]), axis=1, dtype=jnp.int32)
        return solutions.replace(length=length)

    return types.Source(solutions=True, supplies=prefix.SUPPLIES, head=head)


@define.source
def bread(
    share: types.Fraction = 0.5,
    change: types.Fraction = 0.125,
    threshold: types.Fraction = 0.5,
    prompts: types.Fraction = 0.5,
    candidates: candidates_lib.Number = 0,
) -> types.Source:
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
        known = candidates_lib.index(problems, candidates)
        return {"prompts": known, "share": jnp.full(known.shape, share, jnp.float32)}

    def edit(pool, problems, rollout, solutions, count, key):
        row, used = edits.places(rollout, edits.unsolved(rollout), count)
        heads = prefix.cut(jax.tree.map(lambda x: x[row], solutions), prefix.share_of(pool, rollout.index[row]))
        return edits.prompts(rollout, row, used).replace(head=heads)

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        return edits.alone(groups.replaced(first, second, edit, edit.row[:, None]), first)

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
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
    return types.Source(solutions=True, supplies=prefix.SUPPLIES, init=init, again=again, select=select)


def _keys(rows: types.Rollout, key: types.Key, each: Each) -> types.Key:
    """Return a key of each row, ``[B]``: one for its group, or one for the row."""
    keys = jax.vmap(lambda group: jax.random.fold_in(key, group))(rows.group)
    return keys if each == "prompt" else jax.vmap(jax.random.fold_in)(keys, groups.sample(rows))
