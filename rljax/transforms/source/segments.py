"""Segments: rows that are sampled over several steps."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.source import groups


def in_flight(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
    """Return the pool of rows in flight before the first step: all of its places are free."""
    return {"rows": rollout.replace(parts={}), "free": jnp.ones(rollout.reward.shape, bool)}


def still_going(rollout: types.Rollout) -> tuple[types.Array, types.Array]:
    """Return which rows go on, and which are of a group that has ended, ``[B]`` bool each."""
    going = ops.given(rollout.finish, "source: the rows have no finish reason") == types.Finish.UNFINISHED
    return going, ops.segment_max(going.astype(jnp.int32), rollout.group) == 0


def of_tokens(rollout: types.Rollout) -> None:
    """Raise ValueError if the rows are of a control world, whose rows do not contain what earlier steps added."""
    if rollout.motion is not None:
        raise ValueError("source: carries rows of tokens over; for a control world use source.unrolled")


def completed(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key) -> tuple[types.Rollout, types.Tree]:
    """Return the ``count`` rows of groups that have ended, the groups drawn first, and the pool without them."""
    of_tokens(rollout)
    _, ended = still_going(rollout)
    # groups are numbered in the order of the run; rows of a group are adjacent and stay so
    rows = jnp.lexsort((rollout.group, ~ended))[:count]
    chosen, counts = groups.take(rollout, rows), ended[rows]
    valid = jnp.where(counts, ops.valid_rows(chosen), 0.0)
    chosen = chosen.replace(mask=jnp.where(counts[:, None], chosen.mask, 0.0), valid=valid)
    free = jnp.zeros_like(pool["free"]).at[rows].set(counts)
    return chosen, {**pool, "rows": rollout.replace(parts={}), "free": free}


@define.source
def partial(segment: types.Count = 64, oversample: types.Count = 2) -> types.Source:
    """Add at most ``segment`` tokens a step to ``oversample`` times the prompts' rows; train on groups that ended.

    Unfinished rows are carried over and continued by the newer policy, with their cache recomputed. ``version`` is the
    version that wrote each token, and ``behaviour_logp`` its log-prob under that version. The groups drawn first are
    trained on first and their places refilled; if too few have ended, invalid rows with an empty mask fill the batch.
    Source: segment rollout of UloRL (arXiv 2507.19766), which draws prompts only in place of prompts trained on, like
    the partial rollouts of Kimi k1.5 (2501.12599). A ratio to the "proximal" policy leaves older tokens uncorrected;
    ``anchor="behaviour"`` corrects each token by the version that wrote it.
    """
    return types.Source(oversample=oversample, segment=segment, init=in_flight, select=completed)


def cut(rollout: types.Rollout, pool: types.Tree) -> types.Rollout:
    """Return all rows of a step as rows to train on; those that go on are cut here.

    A row that goes on has reward and parts 0, no verdict, and ``finish`` LENGTH. A row that ended in an earlier step
    and waits for the others of its group is invalid.
    """
    before, kept = pool["rows"], ~pool["free"]
    going, _ = still_going(rollout)
    waited = kept & ~still_going(before)[0]
    outcome = ops.given(rollout.outcome, "source: the rows have no outcome")
    return rollout.replace(
        reward=jnp.where(going, 0.0, rollout.reward),
        outcome=jnp.where(going, int(types.Outcome.UNJUDGED), outcome),
        finish=jnp.where(going, int(types.Finish.LENGTH), ops.given(rollout.finish, "source: no finish")),
        valid=jnp.where(waited, 0.0, ops.valid_rows(rollout)),
        parts={name: jnp.where(going, 0.0, x) for name, x in rollout.parts.items()},
    )


@define.source
def unrolled(steps: types.Count = 32) -> types.Source:
    """Act for at most ``steps`` steps of time in every row of a control world, and train on all of them.

    An episode that has not ended goes on in the next step's row under the newer policy; in the batch it is cut, with
    ``finish`` LENGTH, so that ``advantage.gae`` puts the value of the state behind the cut in place of the rest. The
    other steps of a row whose episode ended have mask 0, and a new problem begins there in the next step. The fixed
    number of steps of PPO (arXiv 1707.06347, section 5). Differs from ``partial`` by the rows trained on.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        if rollout.motion is None:
            raise ValueError("source.unrolled: expected a control world; for tokens use source.partial or t_ppo()")
        return cut(rollout, pool), {"rows": rollout.replace(parts={}), "free": still_going(rollout)[1]}

    return types.Source(segment=steps, init=in_flight, select=select)
