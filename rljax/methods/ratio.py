"""Ratios: other anchors of the importance ratio."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, ops, ratio
from rljax.transforms.frame import idle


@define.ratio(needs=ratio.anchored_needs)
@idle.until("ratio", limit=idle.ABOVE_0)
def sequence_token(loss, r, s, anchor: types.Anchor = "proximal", limit: types.Positive | None = None) -> types.Array:
    """Use the row's geometric mean in value, the token's log-prob in gradient: sg(s) exp(logp - sg(logp)).

    Source: GSPO-token (arXiv 2507.18071, eq. 14). Value of ``sequence``; the same gradient under a row mean when the
    advantage is constant over the row. ``limit`` is an upper bound on log s.
    """
    d = ratio.difference(r, s, anchor)
    fixed = jax.lax.stop_gradient(d)
    row = ops.row_mean(fixed, r.mask) + d - fixed
    return row if limit is None else jnp.minimum(row, limit)


def _age(r: types.Rollout, s: types.Scores):
    version = ops.given(r.version, "ratio.interpolated: the rollout has no version")
    return (ops.current_version(r) - version).astype(r.mask.dtype)


@define.ratio(
    needs=types.Needs(behaviour=True, moves=frozenset({"steps", "sampler"})),
    statistics=(define.statistic("age", _age, shared=True),),
)
def interpolated(loss, r, s) -> tuple[types.Array, types.Array]:
    """Put the proximal policy between sampler and policy by age: log prox = log b + (1 - 1/age) (sg(logp) - log b).

    Source: A-3PO (arXiv 2512.06547). Age is the trainer's version minus the token's; at age 0 or 1 the
    proximal policy is the sampler. Weights that follow see the same proximal policy.
    """
    d = ratio.difference(r, s, "behaviour")
    behaviour = ops.given(r.behaviour_logp, "ratio.interpolated: the rollout has no behaviour_logp")
    moved = (1.0 - 1.0 / jnp.maximum(r.extra["age"], 1.0)) * jax.lax.stop_gradient(d)
    return d - moved, behaviour + moved


def _difference_and_proximal(r: types.Rollout, s: types.Scores):
    """Return (logp - proximal, proximal), 0 on masked tokens."""
    d = ratio.difference(r, s, "proximal")
    return d, jax.lax.stop_gradient(ops.live_logp(r, s) - d)


@define.ratio(needs=types.Needs(proximal=True))
def multiple_importance(loss, r, s) -> types.Array:
    """Weigh external tokens by 2 pi / (pi_old + (pi_old + 1) / 2), the balance of policy and demonstrator.

    Source: RL-PLUS (arXiv 2508.00222), pi_old the proximal policy. pi_old = 1 gives pi.
    """
    d, proximal = _difference_and_proximal(r, s)
    return d + jnp.log(2.0) + proximal - jnp.log(1.5 * jnp.exp(proximal) + 0.5)


@define.ratio(needs=types.Needs(proximal=True) | define.reads(extra=("probe_logp",)))
def mixture(loss, r, s, alpha: types.Fraction = 0.1) -> types.Array:
    """Divide by the mixture that wrote the row: pi / ((1 - alpha) pi_old + alpha mu), log mu in extra["probe_logp"].

    Source: REX-RAG (arXiv 2508.08149). alpha 0 is ``token``.
    """
    d, proximal = _difference_and_proximal(r, s)
    probe = jnp.where(r.mask > 0, ops.extra(r, "probe_logp"), 0.0)
    # in logs: both probabilities may be too small for their exponentials
    return d + proximal - jnp.logaddexp(jnp.log1p(-alpha) + proximal, jnp.log(alpha) + probe)
