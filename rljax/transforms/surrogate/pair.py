"""Surrogates of pairs: ``prepare.best_and_worst`` chooses the two rows of a group.

Both rows have the pair's loss, so that ``reduce.mean_over_rows`` is the mean over pairs.
"""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.surrogate import row

PAIR = types.Needs(whole="group", siblings=True)


def preference_sign(rollout: types.Rollout) -> types.Array:
    """Return ``[B]``: 1 on the better row of a pair, -1 on the worse one, 0 on the others."""
    return ops.extra(rollout, "preference")


def margin_of(x, rollout: types.Rollout) -> types.Array:
    """Return x of the better row minus x of the worse one, at every row of the group; x and result [B, 1]."""
    signed = jnp.where(preference_sign(rollout) != 0, x[:, 0], 0.0) * preference_sign(rollout)
    return ops.segment_total(signed, rollout.group)[:, None]


def _preference_needs(a) -> types.Needs:
    return PAIR | types.Needs(reference=True, parts=frozenset({"next_value"} if a["next_value"] else ()))


@define.surrogate(needs=_preference_needs)
def preference(
    loss,
    r,
    s,
    beta: types.Positive = 0.1,
    smoothing: types.Fraction = 0.0,
    per_token: bool = False,
    next_value: bool = False,
) -> tuple[types.Array, types.Metrics]:
    """Prefer the better row: -(1 - s) log sigmoid(x) - s log sigmoid(-x), x = beta h, s the label smoothing.

    h = sum_w log(pi / ref) - sum_l log(pi / ref), means in place of sums with ``per_token``. Source: DPO (arXiv
    2305.18290, eq. 7). With ``next_value`` (Step-APO), x = beta h - V(s'_w) + V(s'_l) from the part "next_value".

    Args:
      beta: scale of the log-ratios.
      smoothing: label smoothing s, the probability that the preference is wrong.
      per_token: average log-ratios over tokens instead of summing them.
      next_value: subtract the margin of the part "next_value".
    """
    delta = (ops.row_mean if per_token else ops.row_sum)(row.to_reference(r, s), r.mask)
    x = beta * margin_of(delta, r)
    if next_value:
        x = x - margin_of(ops.part(r, "next_value")[:, None], r)
    value = -(1.0 - smoothing) * jax.nn.log_sigmoid(x) - smoothing * jax.nn.log_sigmoid(-x)
    return value * jnp.ones_like(r.mask), {"preferred": jnp.where(x > 0, jnp.ones_like(r.mask), 0.0)}


@define.surrogate(needs=PAIR | types.Needs(reference=True))
def squared_preference(loss, r, s, beta: types.Positive = 0.1, per_token: bool = False) -> types.Array:
    """Regress the margin onto 1 / (2 beta): (h - 1 / (2 beta))^2, h as in ``preference``.

    Source: IPO (arXiv 2310.12036, eq. 17); ``per_token`` averages log-ratios over tokens, as TRL and AReaL do.
    """
    delta = (ops.row_mean if per_token else ops.row_sum)(row.to_reference(r, s), r.mask)
    return (margin_of(delta, r) - 0.5 / beta) ** 2 * jnp.ones_like(r.mask)
