"""Segments with a bound: rows that are sampled over several steps."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define
from rljax.transforms.frame import extras
from rljax.transforms.source import segments

_WHOLE = 1 << 20  # tokens: more than any completion has


@define.source
def april(oversample: types.Count = 2) -> types.Source:
    """Sample ``oversample`` times the prompts' groups and stop as soon as a batch of them has ended.

    The other groups are carried over and continued in the next step. So no step waits for its longest rows, and every
    batch is full. Source: active partial rollouts (APRIL, arXiv 2509.18521), which corrects nothing for the tokens of
    earlier policies. Differs from ``partial`` by what ends the sampling of a step: there a number of tokens. A task of
    one turn.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        if rollout.action is not None and rollout.action.state is not None:
            raise ValueError("source.april: expected a task of one turn, and this one is a world")
        return segments.in_flight(rollout, problems)

    return types.Source(oversample=oversample, segment=_WHOLE, early=oversample, init=init, select=segments.completed)


@define.source
def windowed(segment: types.Count = 64) -> types.Source:
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
        segments.of_tokens(rollout)
        used = jnp.where(pool["free"][:, None], 0.0, pool["rows"].mask)
        chosen, ended = segments.cut(rollout, pool), segments.still_going(rollout)[1]
        return extras.put(chosen, {"used": used}), {"rows": rollout.replace(parts={}), "free": ended}

    return types.Source(segment=segment, supplies=frozenset({"used"}), init=segments.in_flight, select=select)
