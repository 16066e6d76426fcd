"""After-update transforms: they update the reference policy once a step is done."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, idle


@define.after(needs=lambda a: types.Needs(reference=True, follows=idle.equals(a["decay"], 0)))
def ema_reference(reference, params, metrics, decay: types.Fraction = 0.99):
    """Let the reference follow the policy: ref <- decay ref + (1 - decay) params."""
    return jax.tree.map(lambda r, p: decay * r + (1.0 - decay) * p, reference, params)


@define.constructor("after")
def reset_reference(every: types.Count = 100):
    """Copy the policy into the reference after every ``every``-th step of the phase."""

    def apply(reference, params, metrics, count, key):
        del metrics, key
        count = count + 1
        due = count % every == 0
        return jax.tree.map(lambda r, p: jnp.where(due, p, r), reference, params), count

    needs = types.Needs(reference=True, follows=every == 1)
    return types.AfterTransform(apply, init=lambda: jnp.zeros((), jnp.int32), needs=needs)


@define.constructor("after")
def mix_reference(every: types.Count = 32, share: types.Fraction = 0.9):
    """Move the reference most of the way to the policy every so often: ref <- share params + (1 - share) ref.

    After every ``every``-th step of the phase. Source: TR-DPO (arXiv 2404.09656) as RLT's release sets it (arXiv
    2506.08388). ``share`` 1 is ``reset_reference``; ``every`` 1 is ``ema_reference`` with decay 1 - share.
    """

    def apply(reference, params, metrics, count, key):
        del metrics, key
        count = count + 1
        due = count % every == 0
        mixed = jax.tree.map(lambda r, p: jnp.where(due, share * p + (1.0 - share) * r, r), reference, params)
        return mixed, count

    needs = types.Needs(reference=True, follows=every == 1 and idle.equals(share, 1))
    return types.AfterTransform(apply, init=lambda: jnp.zeros((), jnp.int32), needs=needs)
