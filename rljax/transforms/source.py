"""Sources: where the rows of a step come from."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops


@define.source
def task():
    """Sample the current policy on the task's prompts."""
    return types.Source()


@define.source
def demonstrations():
    """Take the task's own demonstrations instead of samples of the policy."""
    return types.Source(origin="demonstrations")


@define.source
def guided(demonstrations: types.Count = 1):
    """Put the task's demonstrations into the group, in place of the last samples of each prompt.

    Those rows have ``on_policy`` 0 and behaviour probability 1, and are verified like the others. LUFFY (arXiv
    2504.14945) and RL-PLUS (arXiv 2508.00222) take 1 of 8.
    """
    return types.Source(demonstrated=demonstrations, off_policy=True)


def _take(rollout: types.Rollout, rows: jax.Array) -> types.Rollout:
    return jax.tree.map(lambda x: x[rows], rollout)


@define.source
def dynamic(oversample: types.Count = 2):
    """Sample ``oversample`` times the prompts and prefer groups whose rewards differ.

    Groups without spread teach a group baseline nothing and are taken only to fill the batch, in which case
    they are marked invalid. Source: dynamic sampling of DAPO (arXiv 2503.14476, section 3.2), here with a fixed
    number of extra prompts, so that shapes are static.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del key
        valid = ops.valid_rows(rollout)
        # equal rewards may differ from their own mean in the last bit
        informative = ops.segment_std(ops.row_reward(rollout), rollout.group, valid) > 1e-6
        rows = jnp.argsort(~informative, stable=True)[:count]  # rows of a group stand together and stay so
        kept = _take(rollout.replace(valid=jnp.where(informative, valid, 0.0)), rows)
        return kept, pool

    return types.Source(oversample=oversample, select=select)


@define.source
def replay(share: types.Fraction = 0.25):
    """Replace the last ``share`` of the groups by rows of the step before (off-policy by one version).

    The pool holds the last batch as it was sampled; the first step has none and trains on fresh rows alone.
    ``behaviour_logp`` and ``version`` stay those of the policy that wrote the rows; named parts of the
    reward are not kept.
    """

    def init(rollout: types.Rollout) -> types.Tree:
        return {"rows": rollout.replace(parts={}), "filled": jnp.zeros((), bool)}

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del key
        rollout = rollout.replace(parts={})
        first = rollout.group != jnp.roll(rollout.group, 1)
        place = jnp.cumsum(first.at[0].set(True)) - 1  # 0 .. groups-1, in order
        old = pool["filled"] & (place >= jnp.round((1.0 - share) * (place[-1] + 1)))

        def pick(now: jax.Array, before: jax.Array) -> jax.Array:
            return jnp.where(old.reshape((-1,) + (1,) * (now.ndim - 1)), before, now)

        mixed = jax.tree.map(pick, rollout, pool["rows"])
        fresh = jnp.ones_like(rollout.reward) if rollout.on_policy is None else rollout.on_policy
        mixed = mixed.replace(on_policy=jnp.where(old, 0.0, fresh), group=place.astype(jnp.int32))
        return mixed, {"rows": rollout, "filled": jnp.ones((), bool)}

    return types.Source(init=init, select=select, off_policy=True)


@define.source
def partial(segment: types.Count = 64, oversample: types.Count = 2):
    """Add at most ``segment`` tokens a step to ``oversample`` times the prompts' rows; train on groups that ended.

    Unfinished rows are carried over and continued by the newer policy, their cache recomputed; ``version`` tells who
    wrote each token, ``behaviour_logp`` what that policy thought. The groups drawn first are taken first and their
    places refilled; where too few have ended, the batch is filled with invalid rows of empty mask. Source: segment
    rollout of UloRL (arXiv 2507.19766), which draws anew only in place of what was trained on, like the partial
    rollouts of Kimi k1.5 (2501.12599). A ratio to the "proximal" policy leaves older tokens uncorrected;
    ``anchor="behaviour"`` corrects each by its own version.
    """

    def init(rollout: types.Rollout) -> types.Tree:
        return {"rows": rollout.replace(parts={}), "free": jnp.ones(rollout.reward.shape, bool)}

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del key
        going = ops.given(rollout.finish, "source.partial: no finish reason") == types.Finish.UNFINISHED
        ended = ops.segment_max(going.astype(jnp.int32), rollout.group) == 0
        # a group's number is its place in the run; rows of a group stand together and stay so
        rows = jnp.lexsort((rollout.group, ~ended))[:count]
        chosen, counts = _take(rollout, rows), ended[rows]
        valid = jnp.where(counts, ops.valid_rows(chosen), 0.0)
        chosen = chosen.replace(mask=jnp.where(counts[:, None], chosen.mask, 0.0), valid=valid)
        free = jnp.zeros_like(pool["free"]).at[rows].set(counts)
        return chosen, {"rows": rollout.replace(parts={}), "free": free}

    return types.Source(oversample=oversample, segment=segment, init=init, select=select)
