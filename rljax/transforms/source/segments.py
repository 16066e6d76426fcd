"""Segments: rows that are sampled over several steps."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.source import groups

_WHOLE = 1 << 20  # tokens: more than any completion has


def _flying(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
    """Return the pool of rows in flight before the first step: all of its places are free."""
    del problems
    return {"rows": rollout.replace(parts={}), "free": jnp.ones(rollout.reward.shape, bool)}


def _going(rollout: types.Rollout) -> tuple[types.Array, types.Array]:
    """Return which rows go on, and which are of a group that has ended, ``[B]`` bool each."""
    going = ops.given(rollout.finish, "source: the rows have no finish reason") == types.Finish.UNFINISHED
    return going, ops.segment_max(going.astype(jnp.int32), rollout.group) == 0


def _complete(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key) -> tuple[types.Rollout, types.Tree]:
    """Return the ``count`` rows of groups that have ended, those drawn first, and the pool without them."""
    del key
    _, ended = _going(rollout)
    # groups are numbered in the order of the run; rows of a group are adjacent and stay so
    rows = jnp.lexsort((rollout.group, ~ended))[:count]
    chosen, counts = groups.take(rollout, rows), ended[rows]
    valid = jnp.where(counts, ops.valid_rows(chosen), 0.0)
    chosen = chosen.replace(mask=jnp.where(counts[:, None], chosen.mask, 0.0), valid=valid)
    free = jnp.zeros_like(pool["free"]).at[rows].set(counts)
    return chosen, {**pool, "rows": rollout.replace(parts={}), "free": free}


@define.source
def partial(segment: types.Count = 64, oversample: types.Count = 2):
    """Add at most ``segment`` tokens a step to ``oversample`` times the prompts' rows; train on groups that ended.

    Unfinished rows are carried over and continued by the newer policy, with their cache recomputed. ``version`` is the
    version that wrote each token, and ``behaviour_logp`` its log-prob under that version. The groups drawn first are
    trained on first and their places refilled; if too few have ended, invalid rows with an empty mask fill the batch.
    Source: segment rollout of UloRL (arXiv 2507.19766), which draws prompts only in place of those trained on, like the
    partial rollouts of Kimi k1.5 (2501.12599). A ratio to the "proximal" policy leaves older tokens uncorrected;
    ``anchor="behaviour"`` corrects each token by the version that wrote it.
    """
    return types.Source(oversample=oversample, segment=segment, init=_flying, select=_complete)


@define.source
def april(oversample: types.Count = 2):
    """Sample ``oversample`` times the prompts' groups and stop as soon as a batch of them has ended.

    The other groups are carried over and continued in the next step. So no step waits for its longest rows, and every
    batch is full. Source: active partial rollouts (APRIL, arXiv 2509.18521), which corrects nothing for the tokens of
    earlier policies. Differs from ``partial`` by what ends the sampling of a step: there a number of tokens. A task of
    one turn.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        if rollout.action is not None and rollout.action.state is not None:
            raise ValueError("source.april: expected a task of one turn, and this one is a world")
        return _flying(rollout, problems)

    return types.Source(oversample=oversample, segment=_WHOLE, early=oversample, init=init, select=_complete)


@define.source
def windowed(segment: types.Count = 64):
    """Add at most ``segment`` tokens a step to every row, and train on all of them, whether they ended or not.

    extra["used"] [B, T] is 1 on the tokens of earlier steps, which the policy has been trained on. A row that goes on
    has reward and parts 0 and ``finish`` LENGTH in the batch, so that ``advantage.truncated_gae`` puts the critic's
    value after the cut, and ``prepare.drop_truncated`` leaves it out of the critic's loss; in the pool it is
    unfinished. A row that ended in an earlier step and waits for the others of its group is invalid;
    ``batch.samples=1`` wastes no place. The metrics of rewards count rows that go on as rows of reward 0. No other
    piece may select among the rows, and the algorithm drops used tokens and compares no samples of a prompt.
    Source: the windows of T-PPO (arXiv 2506.15050), recipe ``t_ppo``. Differs from ``partial`` by the rows trained on.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del count, key
        before, kept = pool["rows"], ~pool["free"]
        going, ended = _going(rollout)
        waited = kept & ~_going(before)[0]
        used = jnp.where(kept[:, None], before.mask, 0.0)
        finish = ops.given(rollout.finish, "source.windowed: the rows have no finish reason")
        outcome = ops.given(rollout.outcome, "source.windowed: the rows have no outcome")
        chosen = rollout.replace(
            reward=jnp.where(going, 0.0, rollout.reward),
            outcome=jnp.where(going, int(types.Outcome.UNJUDGED), outcome),
            finish=jnp.where(going, int(types.Finish.LENGTH), finish),
            valid=jnp.where(waited, 0.0, ops.valid_rows(rollout)),
            parts={name: jnp.where(going, 0.0, x) for name, x in rollout.parts.items()},
            extra={**rollout.extra, "used": used},
        )
        return chosen, {"rows": rollout.replace(parts={}), "free": ended}

    return types.Source(segment=segment, supplies=frozenset({"used"}), init=_flying, select=select)
