"""Forks: second passes that continue a part of the policy's own completion.

No loss touches the tokens that a continuation begins with; its reward is paid for the whole completion.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.frame import extras
from rljax.transforms.source import edits, groups

Array = types.Array


@define.source
def cure(
    share: edits.Share = 0.25, branches: types.Count = 3, top: types.Count = 20, forks: types.Count = 1
) -> types.Source:
    """Cut rows before tokens of high entropy and sample continuations into the same group.

    The first share * samples rows of a group are cut at ``forks`` tokens each, drawn without replacement among the
    ``top`` of highest entropy; ``branches`` continuations of each cut take the places of other rows, which are sampled
    and not used. CURE (arXiv 2508.11016, stage 1): 4 rows cut and 3 branches of each make groups of 16. TreeRL (arXiv
    2506.11902): 6 rows, their 2 tokens of highest entropy (``top`` 2) and 2 branches of each make groups of 30. Tokens
    that end a row are never drawn; CURE's release leaves out tokens of one character too.

    Args:
      share: of a group's rows that are cut; times the samples of a prompt, a whole number.
      branches: continuations of each cut.
      top: tokens of a row that may be drawn.
      forks: cuts of a row, at most ``top``.

    Raises:
      ValueError: rows and branches are more than the group, or cuts than the tokens that may be drawn.
    """
    if forks > top:
        raise ValueError(f"cure: forks={forks} cuts are more than the tokens that may be drawn, top={top}")
    if share * (1 + forks * branches) > 1 + 1e-6:
        raise ValueError(
            f"cure: share={share} of a group, forks={forks} and branches={branches} of each are "
            f"{share * (1 + forks * branches):g} times the group; share may be at most {1 / (1 + forks * branches):g}"
        )

    def places(rollout: types.Rollout, key: types.Key) -> tuple[Array, Array]:
        place, count = entropy_places(rollout, top)
        drawn = jnp.where(jnp.arange(top)[None, :] < count[:, None], _uniform(key, count.size, top), jnp.inf)
        return jnp.take_along_axis(place, jnp.argsort(drawn, axis=1), axis=1), count

    return types.Source(again=_cut(share, branches, forks, places, lambda rollout, rows: rows))


@define.source
def attended(
    delimiter: str,
    share: edits.Share = 1 / 3,
    forks: types.Count = 2,
    top: types.Fraction = 0.2,
    apart: types.Count = 4,
) -> types.Source:
    """Cut rows before the steps that later steps attend to most and sample continuations into the same group.

    Of the steps of a row but its first the ``top`` share is taken that ``models.Model.attended`` says later ones attend
    to most, and of these the ``forks`` earliest ones. Of the first n = share * samples rows of a group
    ceil(n exp(-a)) are cut, a their share of right ones; a continuation of each cut takes the place of another row.
    AttnRL (arXiv 2509.26628): 6 rows and 12 continuations make groups of 18. In its release cuts are 512 tokens apart,
    right and wrong rows are balanced, and groups of right ones are cut only where attention is above a running mean.

    Args:
      delimiter: text of the token that ends a step.
      share: of a group's rows that may be cut; times the samples of a prompt, a whole number.
      forks: cuts of a row.
      top: share of a row's steps before which it may be cut, at least one.
      apart: steps from one to the first whose attention to it counts.

    Raises:
      ValueError: rows and continuations are more than the group, or the delimiter is not one token.
    """
    if share * (1 + forks) > 1 + 1e-6:
        raise ValueError(
            f"attended: share={share} of a group and forks={forks} of each are {share * (1 + forks):g} times the group"
        )

    def look(problems: types.Problems, rollout: types.Rollout, attention: Any) -> Array:
        ends = _ends("attended", problems, delimiter, rollout)
        step = 1 + jnp.cumsum(ends, axis=1, dtype=jnp.int32) - ends
        step = jnp.where(jnp.arange(step.shape[1])[None, :] < _length(rollout)[:, None], step, 0)
        of_step = jnp.take_along_axis(attention(step, apart), jnp.maximum(step - 1, 0), axis=1)
        return jnp.where((step > 1) & jnp.roll(ends, 1, axis=1), of_step, -1.0)

    def places(rollout: types.Rollout, key: types.Key) -> tuple[Array, Array]:
        score, width = rollout.extra["attention"], rollout.mask.shape[1]
        number = jnp.ceil(top * jnp.sum(score >= 0, axis=1) - 1e-3).astype(jnp.int32)
        rank = jnp.argsort(jnp.argsort(-score, axis=1, stable=True), axis=1)
        chosen = rank < number[:, None]
        return jnp.sort(jnp.where(chosen, jnp.arange(width)[None, :], width), axis=1)[:, :forks], number

    def expanded(rollout: types.Rollout, rows: Array) -> Array:
        group, counted = groups.place(rollout), (groups.sample(rollout) < rows) * ops.valid_rows(rollout)
        right = counted * trajectories.correct(rollout)
        right, counted = (jax.ops.segment_sum(x, group, group.size)[group] for x in (right, counted))
        return jnp.ceil(rows * jnp.exp(-right / jnp.maximum(counted, 1.0)) - 1e-3).astype(jnp.int32)

    return types.Source(again=dataclasses.replace(_cut(share, 1, forks, places, expanded), look=look))


def _cut(
    share: float,
    branches: int,
    forks: int,
    places: Callable[[types.Rollout, types.Key], tuple[Array, Array]],
    expanded: Callable[[types.Rollout, Array], Array],
) -> types.Again:
    """Return the second pass that continues the first rows of a group from some of their tokens, in other places.

    Args:
      share: of a group's rows that may be cut.
      branches: continuations of each cut.
      forks: cuts of a row.
      places: where each row may be cut, ``[B, >= forks]``, and how many of these places there are, ``[B]``.
      expanded: of how many of its rows that may be cut a group's are, ``[B]``.
    """

    def rows_cut(rollout: types.Rollout) -> Array:
        return jnp.maximum(jnp.floor(share * groups.size(rollout) + 1e-3), 1).astype(jnp.int32)

    def edit(pool, problems, rollout, solutions, count, key):
        place, candidates = places(rollout, key)
        chosen = (groups.sample(rollout) < expanded(rollout, rows_cut(rollout))) & (candidates > 0)
        number = jnp.arange(count)
        row, fork = jnp.argsort(~chosen, stable=True)[number // forks].astype(jnp.int32), number % forks
        return _continued(rollout, row, chosen[row] & (fork < candidates[row]), place[row, fork])

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        sample, number = groups.sample(first), jnp.arange(edit.row.size, dtype=jnp.int32)
        start = jnp.arange(sample.size, dtype=jnp.int32) - sample + rows_cut(first) + sample * forks * branches
        return groups.replaced(first, second, edit, (start[edit.row] + number % forks * branches)[:, None])

    return types.Again(edit=edit, merge=merge, share=share * forks, by="row", samples=branches)


@define.source
def retry_from_middle(low: types.Fraction = 0.5, high: types.Fraction = 0.5, rows: edits.Share = 0.5) -> types.Source:
    """Continue each row of a group without a success from a state of its own completion, in its place.

    Args:
      low: the smallest share of the completion that is kept.
      high: the largest; a row's share is uniform between them.
      rows: the largest share of the rows that is sampled again.
    """

    def edit(pool, problems, rollout, solutions, count, key):
        failed = edits.unsolved(rollout)[groups.place(rollout)] & (_length(rollout) > 1)
        failed &= trajectories.on_policy(rollout) > 0  # a demonstration stays
        row = jnp.argsort(~failed, stable=True)[:count].astype(jnp.int32)
        share = low + (high - low) * _uniform(key, count)
        return _continued(rollout, row, failed[row], _kept(rollout, row, share))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        return groups.replaced(first, second, edit, edit.row[:, None])

    return types.Source(again=types.Again(edit=edit, merge=merge, share=rows, by="row", samples=1))


@define.source
def branched(low: types.Fraction = 0.25, high: types.Fraction = 0.75, prompts: edits.Share = 0.5) -> types.Source:
    """Sample a group whose rewards do not differ again, all rows from one state of one of its completions.

    Rows are compared with others from the same state only, as in the branches of B2-DiffuRL (arXiv 2503.11240).

    Args:
      low: the smallest share of the completion that is kept.
      high: the largest; a group's share is uniform between them.
      prompts: the largest share of the prompts that is sampled again.
    """

    def edit(pool, problems, rollout, solutions, count, key):
        drawn = jax.ops.segment_max(ops.valid_rows(rollout), groups.place(rollout), rollout.group.size) > 0
        flat = groups.starts(rollout) & trajectories.flat(rollout) & drawn[groups.place(rollout)]
        begin = jnp.argsort(~flat, stable=True)[:count].astype(jnp.int32)
        sample = jnp.floor(_uniform(jax.random.fold_in(key, 1), count) * groups.size(rollout)[begin])
        row = begin + sample.astype(jnp.int32)
        share = low + (high - low) * _uniform(key, count)
        return _continued(rollout, row, flat[begin] & (_length(rollout)[row] > 1), _kept(rollout, row, share))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        start = edit.row - groups.sample(first)[edit.row]
        return edits.alone(groups.replaced(first, second, edit, start[:, None]), first)

    return types.Source(again=types.Again(edit=edit, merge=merge, share=prompts))


@define.source
def anytime(
    cuts: types.Count = 4,
    summaries: types.Count = 4,
    room: types.Count = 32,
    text: str = "",
    train_summary: bool = False,
) -> types.Source:
    """Cut every thought at token budgets and force summaries, whose rewards credit the segments before them.

    With T completion tokens, budget j of 1 .. cuts is b_j = j (T - room) / cuts. A row longer than b_j gets ``text``
    behind its first b_j tokens and ``summaries`` endings; r_j is their mean reward, and a shorter row's own reward.
    Writes extra["cut_reward"] ``[B, cuts]`` and extra["segment"] ``[B, T]``, the budgets spent before a token, for
    ``advantage.budget_relative``; the reward of a row becomes the mean of r_j; tokens behind b_cuts are not trained.
    With ``train_summary`` the first ending of the last budget stands there instead, in segment ``cuts``, and
    extra["summary"] ``[B]`` is its reward less the mean r_cuts. Source: AnytimeReasoner (arXiv 2505.13438), which
    trains the endings of all budgets; with its last-only weights of the budgets that is the same term.

    Args:
      cuts: token budgets.
      summaries: endings of each.
      room: the tokens kept for text and ending.
      text: what is written behind a cut thought.
      train_summary: whether an ending of the last budget is trained.

    Raises:
      ValueError: there is no room for the budgets or for the text.
    """

    def budgets(width: int) -> Array:
        if width - room < cuts:
            raise ValueError(
                f"anytime: room={room} leaves {width - room} of {width} completion tokens for {cuts} budgets"
            )
        return jnp.asarray([j * (width - room) // cuts for j in range(1, cuts + 1)], jnp.int32)

    def edit(pool, problems, rollout, solutions, count, key):
        words = problems.encode(text)
        if len(words) >= room:
            raise ValueError(f"anytime: text has {len(words)} tokens; room={room} must be above that")
        rows, width = rollout.mask.shape
        assert count == rows * cuts, (count, rows, cuts)
        row = jnp.repeat(jnp.arange(rows, dtype=jnp.int32), cuts)
        spent = jnp.tile(budgets(width), rows)
        out = _continued(rollout, row, _length(rollout)[row] > spent, spent)
        column, token = jnp.arange(width)[None, :] - spent[:, None], rollout.action.token[row]
        for i, word in enumerate(words):
            token = jnp.where(column == i, word, token)
        return out.replace(head=types.Action(token=token, length=spent + len(words)))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        rows, width = first.mask.shape
        mean, valid = _means(second, (rows, cuts, summaries))
        cut, spent = edit.used.reshape(rows, cuts), budgets(width)
        reward = jnp.where(cut & jnp.any(valid > 0, axis=2), mean, first.reward[:, None])
        segment = jnp.sum(jnp.arange(width)[:, None] >= spent[None, :], axis=1)
        trained = ~cut[:, -1:] | (segment < cuts)[None, :]
        number = jnp.broadcast_to(jnp.minimum(segment, cuts - 1), (rows, width)).astype(jnp.int32)
        out = first.replace(mask=first.mask * trained, reward=jnp.mean(reward, axis=1))
        written = {"cut_reward": reward, "segment": number}
        if train_summary:
            last = ((jnp.arange(rows) * cuts + cuts - 1) * summaries).astype(jnp.int32)
            ending = groups.take(second, last)
            whole = edits.joined(first, ending, jnp.arange(rows), jnp.broadcast_to(spent[-1], (rows,)))
            kept = cut[:, -1] & valid[:, -1, 0].astype(bool)
            judged = {name: getattr(out, name) for name in ("reward", "valid", "outcome", "parts", "episode", "turn")}
            whole = extras.put(whole.replace(**judged), {"pass": out.extra["pass"]})
            out = groups.put(kept, whole, out)
            number = jnp.where(kept[:, None], segment[None, :], number).astype(jnp.int32)
            gain = jnp.where(kept, ending.reward - mean[:, -1], 0.0)
            written = {"cut_reward": reward, "segment": number, "summary": gain}
        return extras.put(out, written)

    again = types.Again(edit=edit, merge=merge, share=float(cuts), by="row", samples=summaries)
    supplies = {"cut_reward", "segment"} | ({"summary"} if train_summary else set())
    return types.Source(again=again, supplies=frozenset(supplies))


@define.source
def vine(cuts: types.Count = 4, samples: types.Count = 9, delimiter: str = "", module: str = "policy") -> types.Source:
    """Estimate the success rate at states within every row by continuations from there, which are not trained.

    A row of S steps before its last is cut behind step floor(j (S + 1) / (cuts + 1)) for j of 1 .. cuts: behind every
    step if S = cuts, and more than once behind some if S is less. Writes extra["cut_reward"] ``[B, cuts]``, the mean
    reward of the continuations of each cut, and extra["segment"] ``[B, T]``, the cuts before a token, for
    ``advantage.segment_rise``. Source: VinePPO (arXiv 2410.01679). With the continuations of a guide, a segment is
    credited with its advantage under the guide: AggreVaTeD (arXiv 1703.01030, for language 2306.11816), exactly where
    each segment is one token.

    Args:
      cuts: places at which a row is cut.
      samples: continuations from each: cuts * samples rows are sampled for each that is trained.
      delimiter: text of the token that ends a step; empty: every token is a step.
      module: that samples the continuations: "policy", or one of config.module, such as a guide that is not trained.

    Raises:
      ValueError: the delimiter is not one token.
    """

    def edit(pool, problems, rollout, solutions, count, key):
        token = rollout.action.token
        ends = _ends("vine", problems, delimiter, rollout) if delimiter else jnp.ones_like(token, bool)
        ends &= jnp.arange(token.shape[1])[None, :] < _length(rollout)[:, None] - 1
        done = jnp.cumsum(ends, axis=1, dtype=jnp.int32)
        step = jnp.arange(1, cuts + 1)[None, :] * (done[:, -1:] + 1) // (cuts + 1)
        at = jnp.sum(done[:, :, None] < step[:, None, :], axis=1, dtype=jnp.int32) + (step > 0)
        row = jnp.repeat(jnp.arange(len(token), dtype=jnp.int32), cuts)
        return _continued(rollout, row, jnp.ones_like(row, bool), at.reshape(-1))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        assert edit.head is not None and edit.head.length is not None
        rows, width = first.mask.shape
        mean, valid = _means(second, (rows, cuts, samples))
        value = jnp.where(jnp.any(valid > 0, axis=2), mean, first.reward[:, None])
        at = edit.head.length.reshape(rows, cuts, 1)
        segment = jnp.sum(at <= jnp.arange(width)[None, None, :], axis=1, dtype=jnp.int32)
        return extras.put(first, {"cut_reward": value, "segment": segment})

    again = types.Again(edit=edit, merge=merge, share=float(cuts), by="row", samples=samples, module=module)
    return types.Source(again=again, supplies=frozenset({"cut_reward", "segment"}))


# --- for these and for authors of pieces -----------------------------------------------------------


def entropy_places(rollout: types.Rollout, top: int) -> tuple[Array, Array]:
    """Return the positions of highest entropy of each row, ``[B, top]`` in falling order, and how many there are.

    Those are tokens that the policy wrote and that do not end the row.
    """
    entropy, width = ops.given(rollout.entropy, "forks: the rollout has no entropy"), rollout.mask.shape[1]
    ends = rollout.finish == types.Finish.STOP
    last = ends[:, None] & (jnp.arange(width)[None, :] == _length(rollout)[:, None] - 1)
    free = (rollout.mask > 0) & ~last
    _, place = jax.lax.top_k(jnp.where(free, entropy, -jnp.inf), min(top, width))
    place = jnp.pad(place, ((0, 0), (0, top - place.shape[1])))
    return place.astype(jnp.int32), jnp.minimum(jnp.sum(free, axis=1, dtype=jnp.int32), top)


def _ends(piece: str, problems: types.Problems, delimiter: str, rollout: types.Rollout) -> Array:
    """Return where a token is the delimiter, ``[B, T]`` bool."""
    ids = problems.encode(delimiter)
    if len(ids) != 1:
        raise ValueError(f"{piece}: delimiter={delimiter!r}: expected text of one token, it has {len(ids)}")
    return ops.given(rollout.action and rollout.action.token, f"{piece}: the rows have no tokens") == ids[0]


def _length(rollout: types.Rollout) -> Array:
    """Return the positions in use of each row, ``[B]`` int32, its head included."""
    return ops.given(rollout.action and rollout.action.length, "forks: the rollout has no lengths")


def _kept(rollout: types.Rollout, row: Array, share: Array) -> Array:
    """Return how many tokens are ``share`` ``[n]`` of the tokens of each row before its last, ``[n]`` int32."""
    return jnp.round(share * (_length(rollout)[row] - 1)).astype(jnp.int32)


def _uniform(key: types.Key, count: int, *shape: int) -> Array:
    return jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), shape))(jnp.arange(count))


def _means(second: types.Rollout, shape: tuple[int, int, int]) -> tuple[Array, Array]:
    """Return the mean reward of the valid rows of the last axis, 0 without any, and ``valid`` in this shape."""
    reward, valid = (x.reshape(shape) for x in (ops.reward(second), ops.valid_rows(second)))
    total = jnp.sum(jnp.where(valid > 0, reward, 0.0), axis=2)
    return total / jnp.maximum(jnp.sum(valid, axis=2), 1.0), valid


def _continued(rollout: types.Rollout, row: Array, used: Array, length: Array) -> types.Edit:
    """Return edits that continue the first ``length`` ``[n]`` tokens of rows ``row`` ``[n]`` under the same prompts."""
    assert rollout.context is not None and rollout.action is not None
    head = types.Action(token=rollout.action.token[row], length=jnp.where(used, length, 0))
    return types.Edit(row, used, rollout.context.token[row], rollout.context.mask[row], head)
