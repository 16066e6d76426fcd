"""The complement of ``weight.high_entropy``."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops


@define.weight
def low_entropy(loss, r, s, share: types.Fraction = 0.8):
    """Keep the ``share`` of the minibatch's tokens with the lowest entropy at sampling."""
    entropy = ops.given(r.entropy, "low_entropy: the rollout has no entropy")
    bound = jnp.nanquantile(jnp.where(r.mask > 0, entropy, jnp.nan), share)
    return (entropy < bound).astype(r.mask.dtype)
