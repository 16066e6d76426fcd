"""Prepare transforms: on the whole minibatch, under stop-gradient, before it is split.

A piece that drops a token from every term changes the mask; a weight (``transforms.weight``) changes the policy term
only.
"""

from typing import Any

import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.frame import extras


@define.prepare
def keep(r, s, predicate: types.Predicate) -> types.Array:
    """Drop what does not satisfy ``predicate`` (``transforms.where``) from every term and every denominator."""
    return transforms.PREDICATES[predicate](r)


@define.prepare(needs=types.Needs(siblings=True))
def drop_unpaired(r, s, ties: bool = False) -> types.Array:
    """Drop groups without a pair: two rows of unequal reward, or with ``ties`` any two; from denominators too."""
    reward, used = trajectories.total(r), jnp.where(jnp.any(r.mask > 0, axis=1), ops.valid_rows(r), 0.0)
    if ties:
        return ops.segment_total(used, r.group)[:, None] > 1
    low, high = (ops.segment_max(x, r.group, used) for x in (-reward, reward))
    return (high + low)[:, None] > 0


@define.prepare(needs=types.Needs(token_reward=True))
def step_ends(r, s) -> types.Array:
    """Keep the tokens at which a step ends, whose token reward is not 0, so that a mean counts each step once."""
    return ops.given(r.token_reward, "prepare.step_ends: the rollout has no token_reward") != 0


@define.prepare(needs=types.Needs(siblings=True))
def best_and_worst(r, s) -> tuple[types.Rollout, types.Array]:
    """Pair each group's best and worst row (the first among equals) and drop all others.

    Writes extra["preference"] [B], 1 and -1, and extra["margin"] [B], the difference of their rewards. Groups whose
    rewards do not differ have no pair.
    """
    reward, eligible = trajectories.total(r), (ops.valid_rows(r) > 0) & jnp.any(r.mask > 0, axis=1)

    def first_best(score):
        top = eligible & (score >= ops.segment_max(score, r.group, eligible.astype(reward.dtype)))
        return ops.segment_first(r.group, top.astype(reward.dtype))

    best, worst = first_best(reward), first_best(-reward)
    margin = ops.segment_total(jnp.where(eligible, reward, 0.0) * (best - worst), r.group)
    preference = jnp.where(margin > 0, best - worst, 0.0)
    return extras.put(r, {"preference": preference, "margin": margin}), preference[:, None] != 0


def __getattr__(name: str) -> Any:
    return transforms.piece("prepare", name)
