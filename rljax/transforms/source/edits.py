"""For authors of second passes: edited prompts as arrays, and rows of the second pass in place of the first one's."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import ops
from rljax.transforms.frame import extras
from rljax.transforms.source import groups

Array = types.Array
Share = Annotated[float, types.Range(0, 1, open_low=True)]
Part = tuple[Array, Array]  # token [n, K] or [K], and mask of the same shape


def text(problems: types.Problems, written: str) -> Part:
    """Return the tokens of a text.

    Raises:
      ValueError: the tokenizer cannot write it.
    """
    token = jnp.asarray(problems.encode(written), jnp.int32)
    return token, jnp.ones(token.shape)


def longest(problems: types.Problems, *texts: str) -> int:
    """Return the number of tokens of the longest of some texts."""
    return max((len(problems.encode(t)) for t in texts), default=0)


def room(*texts: str, share: float = 0.0, own: bool = False) -> Callable[[types.Problems, int, int], int]:
    """Return an ``Again.longer`` for the longest of some texts, a ``share`` of the solution, and a completion if any.

    Args:
      texts: one of them is written.
      share: the most of the solution that is shown.
      own: whether the row's own completion is shown.
    """

    def longer(problems: types.Problems, prompt: int, completion: int) -> int:
        return longest(problems, *texts) + math.floor(share * (completion - 1) + 1e-4) + own * completion

    return longer


def solution(solutions: types.Action, row: Array, share: Array | float) -> Part:
    """Return the first ``share`` (a number or [n]) of the solutions of rows ``[n]``, rounded down, without their end.

    Args:
      solutions: a demonstration for each row, ``[B, T]``; its last token ends it.
      row: ``[n]`` int32.
      share: in [0, 1].

    Returns:
      token and mask, ``[n, T]``.
    """
    assert solutions.length is not None
    words = jnp.maximum(solutions.length[row] - 1, 0)
    shown = jnp.floor(share * words + 1e-4)  # 0.75 * 4 in float32 may be below 3
    token = solutions.token[row]
    return token, (jnp.arange(token.shape[1])[None, :] < shown[:, None]).astype(jnp.float32)


def completion(rollout: types.Rollout, row: Array) -> Part:
    """Return the completions of rows ``[n]``, ``[n, T]``; a completion that ended by a token is shown without it."""
    assert rollout.action is not None
    token = rollout.action.token[row]
    return token, (jnp.arange(token.shape[1])[None, :] < written(rollout)[row, None]).astype(jnp.float32)


def only(where: Array, part: Part) -> Part:
    """Return a part in the edits where ``where`` ``[n]`` is True, and nothing in the others."""
    token, mask = (jnp.broadcast_to(x, (where.size, x.shape[-1])) for x in part)
    return token, jnp.where(where[:, None], mask, 0.0)


def prompts(rollout: types.Rollout, row: Array, used: Array, *after: Part) -> types.Edit:
    """Return the prompts of rows with parts after them, left-padded to the width that the prompts have.

    Args:
      rollout: the first pass, whose prompts have room for the parts (``Again.longer``).
      row: ``[n]`` int32, the row of each edit.
      used: ``[n]`` bool.
      after: what follows the prompt, in order.

    Returns:
      n edits.
    """
    assert rollout.context is not None
    width = rollout.context.token.shape[1]
    parts = [(rollout.context.token[row], rollout.context.mask[row]), *after]
    whole = [[jnp.broadcast_to(x, (row.size, x.shape[-1])) for x in part] for part in parts]
    token, mask = (jnp.concatenate([part[i] for part in whole], axis=1) for i in (0, 1))
    order = jnp.argsort(mask > 0, axis=1, stable=True)[:, -width:]  # padding moves to the left
    token, mask = (jnp.take_along_axis(x, order, axis=1) for x in (token, mask))
    return types.Edit(row.astype(jnp.int32), used, token, mask)


# --- which groups, which rows ----------------------------------------------------------------------


def unsolved(rollout: types.Rollout) -> Array:
    """Return whether no row of a group is paid above 0, at the place of the group, ``[B]`` bool.

    Rows that are invalid or that the policy did not write do not count; a group without others is not unsolved.
    """
    seen = groups.tally(rollout)
    return (seen.count > 0) & (seen.wins == 0)


def places(rollout: types.Rollout, chosen: Array, count: int) -> tuple[Array, Array]:
    """Return the first row of the first ``count`` chosen groups, and which of these places are used, ``[count]`` each.

    Args:
      rollout: B rows.
      chosen: ``[B]`` bool, at the place of each group.
      count: number of places.

    Returns:
      row ``[count]`` int32 and used ``[count]`` bool.
    """
    order = jnp.argsort(~chosen, stable=True)
    order = jnp.pad(order, (0, max(0, count - order.size)))[:count]
    first = jnp.searchsorted(groups.place(rollout), order).astype(jnp.int32)
    used = chosen[order] & (jnp.arange(count) < chosen.size)
    return jnp.minimum(first, rollout.group.size - 1), used


def right(second: types.Rollout) -> Array:
    """Return which rows count and are paid above 0, ``[M]`` bool."""
    return (second.reward > 0) & (second.mask.sum(axis=1) > 0) & (ops.valid_rows(second) > 0)


def first_solved(first: types.Rollout, second: types.Rollout, edit: types.Edit, levels: int) -> Array:
    """Return the rows of the first of a group's levels that has a right row, ``[M]`` bool.

    Sampling all levels at once and keeping the first that succeeds has the same distribution as sampling one after the
    other until one succeeds. Of an edit with more rows than its group, as many count as the group has.

    Args:
      first: B rows, groups adjacent.
      second: M rows; the rows of an edit are adjacent.
      edit: its prompts; ``levels`` adjacent ones are of one group, the last ones possibly fewer.
      levels: how many.
    """
    count = edit.row.size
    every = second.reward.size // count
    fits = jnp.arange(every)[None, :] < groups.size(first)[edit.row, None]
    solved = jnp.any(right(second).reshape(count, every) & fits, axis=1) & edit.used
    solved = jnp.pad(solved, (0, -count % levels)).reshape(-1, levels)
    chosen = solved & (jnp.cumsum(solved, axis=1) == 1)
    return jnp.repeat(chosen.reshape(-1)[:count], every)


def alone(rows: types.Rollout, first: types.Rollout) -> types.Rollout:
    """Return merged rows without the rows of the first pass in groups that have rows of the second.

    They are left over in groups that are larger than the second pass, of sources with unequal samples. They count for
    nothing; statistics of the first pass keep them.
    """
    again, number = groups.again(rows), groups.place(first)
    some = jax.ops.segment_max(again.astype(jnp.int32), number, number.size)[number] > 0
    left = some & ~again
    rows = rows.replace(mask=jnp.where(left[:, None], 0.0, rows.mask), valid=jnp.where(left, 0.0, ops.valid_rows(rows)))
    return extras.put(rows, {"pass": some * 1.0})


def put(
    first: types.Rollout, second: types.Rollout, edit: types.Edit, kept: Array, most: int | None = None
) -> types.Rollout:
    """Put rows of the second pass in place of the last rows of their groups, in order.

    Args:
      first: B rows, groups adjacent.
      second: M rows; the rows of an edit are adjacent.
      edit: its prompts.
      kept: ``[M]`` bool, the rows to put; of unused edits none are.
      most: rows put into a group; None: as many as it has.

    Returns:
      B rows.
    """
    rows, every = first.group.size, second.reward.size // edit.row.size
    number = groups.place(first)
    size = jax.ops.segment_sum(jnp.ones_like(number), number, rows)
    of = number[jnp.repeat(edit.row, every)]
    kept = kept & jnp.repeat(edit.used, every)
    rank, _ = groups.rank(of, ~kept)
    limit = size if most is None else jnp.minimum(size, most)
    put_in = jnp.minimum(jax.ops.segment_sum(kept.astype(jnp.int32), of, rows), limit)
    end = jnp.cumsum(size)
    target = (end - put_in)[of] + rank
    target = jnp.where(kept & (rank < put_in[of]), target, rows)
    source = jnp.full((rows,), -1, jnp.int32).at[target].set(jnp.arange(of.size, dtype=jnp.int32), mode="drop")
    new = groups.take(second, jnp.maximum(source, 0))
    return groups.put(source >= 0, new.replace(group=first.group, episode=first.episode), first)


# --- tokens within completions ----------------------------------------------------------------------


def joined(first: types.Rollout, second: types.Rollout, row: Array, kept: Array) -> types.Rollout:
    """Return rows of a second pass with their first tokens as the policy wrote them in the first one.

    Args:
      first: B rows.
      second: M rows, whose heads begin with tokens of rows of the first pass under the same prompt.
      row: ``[M]`` int32, these rows.
      kept: ``[M]`` int32, how many tokens.

    Returns:
      M rows; before ``kept`` mask, head, token rewards and what the sampler reported come from the first pass.
    """
    mine = jnp.arange(first.mask.shape[1])[None, :] < kept[:, None]

    def pick(old: Array | None, new: Array | None) -> Array | None:
        if old is None or new is None:
            return new
        return jnp.where(mine.reshape(mine.shape + (1,) * (new.ndim - 2)), old[row], new)

    names = ("mask", "behaviour_logp", "raw_logp", "entropy", "square_prob", "version", "token_reward")
    fields = {name: pick(getattr(first, name), getattr(second, name)) for name in names}
    assert first.action is not None and second.action is not None
    action = second.action.replace(kept=pick(first.action.kept, second.action.kept))
    head = pick(first.extra["head"], second.extra["head"])
    return extras.put(second.replace(action=action, **fields), {"head": head})


def written(rollout: types.Rollout) -> Array:
    """Return the number of tokens of each completion, without the one that ends it, ``[B]`` int32."""
    assert rollout.action is not None and rollout.action.length is not None
    if rollout.finish is None:
        return rollout.action.length
    return rollout.action.length - (rollout.finish == types.Finish.STOP)


def inserted(rollout: types.Rollout, row: Array, at: Array, words: Part) -> types.Action:
    """Return the first tokens of completions of rows ``[n]``, and words behind them, as heads ``[n, T]``.

    Args:
      rollout: B rows.
      row: ``[n]`` int32.
      at: ``[n]`` int32, the tokens that are kept.
      words: token and mask ``[n, K]``, padding on the right.
    """
    assert rollout.action is not None
    token, (word, mask) = rollout.action.token[row], words
    column = jnp.arange(token.shape[1])[None, :] - at[:, None]
    count = jnp.sum(mask > 0, axis=1, dtype=jnp.int32)
    new = jnp.take_along_axis(word, jnp.clip(column, 0, word.shape[1] - 1), axis=1)
    here = (column >= 0) & (column < count[:, None])
    return types.Action(token=jnp.where(here, new, token), length=at + count)


def last_place(token: Array, length: Array, text: Sequence[int]) -> Array:
    """Return where the last occurrence of a text begins in each row, ``[n]``; ``length`` where there is none.

    Args:
      token: ``[n, T]`` int32.
      length: ``[n]``, tokens of each row.
      text: token ids; it is found token by token, so it must always have the same ones.
    """
    same = jnp.all(jnp.stack([jnp.roll(token == number, -i, axis=1) for i, number in enumerate(text)]), axis=0)
    column = jnp.arange(token.shape[1])[None, :]
    begins = same & (column + len(text) <= length[:, None])
    return jnp.where(jnp.any(begins, axis=1), jnp.max(jnp.where(begins, column, 0), axis=1), length)


def behind(token: Array, length: Array, text: Sequence[int]) -> Array:
    """Return what follows the last occurrence of a text in each row, bool ``[n, T]``; all of a row without it."""
    at = last_place(token, length, text)
    start = jnp.where(at < length, at + len(text), 0)
    column = jnp.arange(token.shape[1])[None, :]
    return (column >= start[:, None]) & (column < length[:, None])
