"""Filters: which of the scored groups are trained on."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.source import groups


@define.source
def balanced(
    low: types.Fraction = 0.25, high: types.Fraction = 0.75, oversample: types.Count = 2, age: types.Count = 4
) -> types.Source:
    """Train on groups whose accuracy is in a band, and keep the surplus for later steps.

    With p the share of a group's rows whose reward is above 0, a group is used if low <= p <= high: first the groups of
    this step, then stored ones, the newest first; groups outside of the band fill what is left and are invalid. At most
    a batch of groups is stored, for at most ``age`` steps. Source: balanced online difficulty filtering (arXiv
    2504.03380), which samples until the batch is full and so never trains on stored rows; here the number of prompts of
    a step is fixed. Stored rows have ``on_policy`` 0 and keep ``behaviour_logp`` and ``version``; the metric "age" is
    their staleness in updates. Named parts of the reward are not kept.

    Args:
      low: least accuracy of a group that is used.
      high: largest accuracy.
      oversample: prompts drawn for each prompt trained on.
      age: steps after which a stored group is dropped.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        rows = jax.tree.map(lambda x: x[: x.shape[0] // oversample], rollout.replace(parts={}))
        return {"rows": rows, "left": jnp.zeros(rows.reward.shape, jnp.int32)}

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        rollout, places = rollout.replace(parts={}), rollout.reward.size
        right = (trajectories.uncharged(rollout) > 0).astype(rollout.reward.dtype)
        once = trajectories.once(rollout)
        accuracy = ops.segment_mean(right, rollout.group, once)
        inside = (accuracy >= low) & (accuracy <= high) & (ops.segment_total(once, rollout.group) > 0)
        stored = groups.stale(pool["rows"])
        left = jnp.concatenate([jnp.where(inside, age + 1, 0), pool["left"]])  # steps that a group may still wait
        fresh = jnp.arange(left.size, dtype=jnp.int32) < places
        rows = jax.tree.map(lambda new, old: jnp.concatenate([new, old]), rollout, stored)
        # usable groups, the fresh ones first, then fresh ones that fill the batch, then empty places
        order = jnp.argsort(jnp.where(left > 0, age - left, jnp.where(fresh, age + 1, age + 2)), stable=True)
        chosen, waiting = order[:count], order[count:][: pool["left"].size]
        kept = groups.take(rows, chosen)
        kept = kept.replace(valid=jnp.where(left[chosen] > 0, ops.valid_rows(kept), 0.0), episode=groups.episodes(kept))
        return kept, {"rows": groups.take(rows, waiting), "left": jnp.maximum(left[waiting] - 1, 0)}

    return types.Source(oversample=oversample, off_policy=True, stores=True, init=init, select=select)


@define.source
def rounds(
    rounds: types.Count = 4, keep: types.Count = 4, both: bool = True, threshold: types.Fraction = 0.7
) -> types.Source:
    """Read a prompt's samples as rounds, and leave out the rounds after the one in which the prompt is finished.

    A row is positive if its reward is above ``threshold``. A prompt is finished after the first round with at least
    ceil(keep / 2) positive and floor(keep / 2) other rows (``both``), or with one positive row. Later rows are
    invalid: neither the baseline nor the loss reads them. Part "kept" is 1 on ``keep`` of the others, half of them
    positive, as far as there are so many, the first that were drawn. Source: Reinforce-Ada (arXiv 2510.04996), balanced
    and positive-focused; recipe ``reinforce_ada``. There the later rounds are not sampled: here batch.samples is
    ``rounds`` times the samples of a round, so that the estimator is as in the paper and the sampling cost is not.

    Args:
      rounds: rounds of samples of a prompt, at most the samples of the batch.
      keep: rows of a prompt that the loss reads.
      both: whether a prompt is finished when both kinds are there, or when one positive row is.
      threshold: the largest reward of a row that is not positive.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        valid, number = ops.valid_rows(rollout) > 0, groups.place(rollout)
        sample, samples = groups.rank(number)
        around = number * rounds + sample * rounds // samples  # the round of each row, [B]
        positive = valid & (trajectories.uncharged(rollout) > threshold)

        def so_far(x: types.Array) -> types.Array:
            """Return the number of rows with ``x`` in the rounds before each row's, [B]."""
            each = jax.ops.segment_sum(x.astype(jnp.int32), around, number.size * rounds).reshape(-1, rounds)
            return (jnp.cumsum(each, axis=1) - each).reshape(-1)[around]

        right, wrong = so_far(positive), so_far(valid & ~positive)
        more, rest = -(-keep // 2), keep // 2
        drawn = valid & ~((right >= more) & (wrong >= rest) if both else right >= 1)

        def total(x: types.Array) -> types.Array:
            return jax.ops.segment_sum(x.astype(jnp.int32), number, number.size)[number]

        of_right, of_wrong = total(drawn & positive), total(drawn & ~positive)
        most = jnp.where(positive, jnp.maximum(more, keep - of_wrong), jnp.maximum(rest, keep - of_right))
        kept = drawn & (groups.rank(number * 4 + 2 * positive + 1 * drawn)[0] < most)
        parts = {**rollout.parts, "kept": kept.astype(rollout.reward.dtype)}
        return groups.take(rollout.replace(valid=drawn * 1.0, parts=parts), jnp.arange(count)), pool

    return types.Source(select=select, supplies=frozenset({"kept"}))
