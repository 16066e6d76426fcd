"""Sources: where the rows of a step come from."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, trajectories


@define.source
def task():
    """Sample the current policy on the task's prompts."""
    return types.Source()


@define.source
def demonstrations():
    """Use the task's demonstrations instead of samples of the policy."""
    return types.Source(origin="demonstrations")


@define.source
def guided(demonstrations: types.Count = 1):
    """Put the task's demonstrations into the group, in place of the last samples of each prompt.

    Those rows have ``on_policy`` 0 and behaviour probability 1, and are verified like the others. LUFFY (arXiv
    2504.14945) and RL-PLUS (arXiv 2508.00222) use 1 of 8.
    """
    return types.Source(demonstrated=demonstrations, off_policy=True)


def _take(rollout: types.Rollout, rows: jax.Array) -> types.Rollout:
    return jax.tree.map(lambda x: x[rows], rollout)


@define.source
def dynamic(oversample: types.Count = 2):
    """Sample ``oversample`` times the prompts and prefer groups whose rewards differ.

    Groups without spread give a group baseline no gradient; they are used only to fill the batch, and are then marked
    invalid. Source: dynamic sampling of DAPO (arXiv 2503.14476, section 3.2), here with a fixed
    number of extra prompts, so that shapes are static.
    """

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del key
        valid = ops.valid_rows(rollout)
        # equal rewards may differ from their mean in the last bit
        reward, once = trajectories.total(rollout), trajectories.once(rollout)
        informative = ops.segment_std(reward, rollout.group, once) > 1e-6
        rows = jnp.argsort(~informative, stable=True)[:count]  # rows of a group are adjacent and stay so
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
        replayed = pool["filled"] & (place >= jnp.round((1.0 - share) * (place[-1] + 1)))

        def pick(fresh: jax.Array, stored: jax.Array) -> jax.Array:
            return jnp.where(replayed.reshape((-1,) + (1,) * (fresh.ndim - 1)), stored, fresh)

        mixed = jax.tree.map(pick, rollout, pool["rows"])
        fresh = jnp.ones_like(rollout.reward) if rollout.on_policy is None else rollout.on_policy
        mixed = mixed.replace(on_policy=jnp.where(replayed, 0.0, fresh), group=place.astype(jnp.int32))
        return mixed, {"rows": rollout, "filled": jnp.ones((), bool)}

    return types.Source(init=init, select=select, off_policy=True)


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

    def init(rollout: types.Rollout) -> types.Tree:
        return {"rows": rollout.replace(parts={}), "free": jnp.ones(rollout.reward.shape, bool)}

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        del key
        going = ops.given(rollout.finish, "source.partial: no finish reason") == types.Finish.UNFINISHED
        ended = ops.segment_max(going.astype(jnp.int32), rollout.group) == 0
        # groups are numbered in the order of the run; rows of a group are adjacent and stay so
        rows = jnp.lexsort((rollout.group, ~ended))[:count]
        chosen, counts = _take(rollout, rows), ended[rows]
        valid = jnp.where(counts, ops.valid_rows(chosen), 0.0)
        chosen = chosen.replace(mask=jnp.where(counts[:, None], chosen.mask, 0.0), valid=valid)
        free = jnp.zeros_like(pool["free"]).at[rows].set(counts)
        return chosen, {"rows": rollout.replace(parts={}), "free": free}

    return types.Source(oversample=oversample, segment=segment, init=init, select=select)
