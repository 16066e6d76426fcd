"""Memories: rows of earlier steps."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define


@define.source
def replay(share: types.Fraction = 0.25):
    """Replace the last ``share`` of the groups by rows of the step before (off-policy by one version).

    The pool holds the last batch as it was sampled; the first step has none and trains on fresh rows alone.
    ``behaviour_logp`` and ``version`` stay those of the policy that wrote the rows; named parts of the
    reward are not kept.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        del problems
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
