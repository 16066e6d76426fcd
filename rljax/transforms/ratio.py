"""Ratios: write ``Loss.log_ratio``, the log of the importance ratio each surrogate uses.

log rho = logp - anchor, the anchor under stop-gradient: "proximal", the policy at the start of the update;
"behaviour", what the sampler assigned, under the version that wrote each token; "reference"; or "one", probability 1.
With a single gradient step the proximal policy is the current one, and no extra pass is made. Under truncated sampling
the log-probs are renormalized over the kept support (``Rollout.action.kept``), except against the reference, which is
unfiltered.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.frame import idle


def difference(rollout: types.Rollout, scores: types.Scores, anchor: types.Anchor) -> types.Array:
    """Return logp - anchor; the anchor is a constant.

    Args:
      rollout: the rows.
      scores: with ``logp`` ``[B, T]``.
      anchor: whose log-probs are subtracted; see the module.

    Returns:
      ``[B, T]`` nats, 0 on masked tokens.

    Raises:
      ValueError: a log-prob is absent.
    """
    logp = ops.given(scores.logp, "ratio: the scores have no logp")
    if anchor == "reference" and scores.raw_logp is not None:
        logp = scores.raw_logp
    if anchor == "proximal":
        below = logp if rollout.proximal_logp is None else rollout.proximal_logp
    elif anchor == "one":
        below = jnp.zeros_like(logp)
    else:
        field = rollout.behaviour_logp if anchor == "behaviour" else rollout.ref_logp
        below = ops.given(field, f"ratio: anchor={anchor!r}, but the rollout has no such log-prob")
    # masked tokens may hold anything, infinities included: they must not reach the exponential
    return jnp.where(rollout.mask > 0, logp - jax.lax.stop_gradient(below), 0.0)


MOVES = {"proximal": {"steps"}, "behaviour": {"steps", "sampler"}}  # takes the ratio to an anchor from 1


def anchor_needs(*anchors: str | None) -> types.Needs:
    """Return the needs of log-ratios against these policies."""
    return types.Needs(
        reference="reference" in anchors, proximal="proximal" in anchors, behaviour="behaviour" in anchors
    )


def anchored_needs(arguments: define.Arguments) -> types.Needs:
    """Return the needs of a ratio to the argument ``anchor``, and when it differs from 1."""
    return anchor_needs(arguments["anchor"]) | types.Needs(moves=frozenset(MOVES.get(arguments["anchor"], {"always"})))


@define.ratio(needs=anchored_needs)
@idle.until("ratio", limit=idle.ABOVE_0)
def token(loss, r, s, anchor: types.Anchor = "proximal", limit: types.Positive | None = None) -> types.Array:
    """Use the ratio of each token: rho_t = exp(logp_t - anchor_t). Source: PPO (arXiv 1707.06347, section 3).

    ``limit`` clamps log rho to [-limit, limit], without gradient outside; many systems use 20, others none.
    """
    d = difference(r, s, anchor)
    return d if limit is None else jnp.clip(d, -limit, limit)


@define.ratio(needs=anchored_needs)
def sequence(loss, r, s, anchor: types.Anchor = "proximal") -> types.Array:
    """Use the geometric mean over the row: s = exp(sum_t m_t (logp_t - anchor_t) / |y|), on every token.

    Source: GSPO (arXiv 2507.18071, eq. 7). Equals ``token`` on rows of one token.
    """
    return ops.row_mean(difference(r, s, anchor), r.mask)


@define.ratio(needs=anchored_needs)
@idle.until("ratio", low=types.Range(float("-inf"), -1e-30), high=idle.ABOVE_0)
def product(
    loss, r, s, anchor: types.Anchor = "proximal", low: types.Bound = -20.0, high: types.Bound = 20.0
) -> types.Array:
    """Use the whole row's ratio: exp(sum_t m_t (logp_t - anchor_t)), its logarithm clamped to [low, high].

    Unbiased where not clamped, and of high variance. Differs from ``sequence`` by the sum in place of the mean.

    Args:
      anchor: whose log-probs are the denominator.
      low: lower bound of the log-ratio, nats.
      high: upper bound of the log-ratio, nats.
    """
    return jnp.clip(ops.row_sum(difference(r, s, anchor), r.mask), low, high)


@define.ratio(needs=types.Needs(moves=frozenset({"never"})))
def on_policy(loss, r, s) -> types.Array:
    """Treat every token as on-policy: exp(logp - sg(logp)), value 1, the gradient of REINFORCE.

    Source: UloRL's pseudo-on-policy ratio (arXiv 2507.19766) for rows stitched from several versions.
    """
    d = difference(r, s, "one")
    return d - jax.lax.stop_gradient(d)


@define.ratio(needs=lambda a: anchor_needs(a["anchor"]))
def shaped(loss, r, s, gamma: types.Positive = 0.1, anchor: types.Anchor = "one") -> types.Array:
    """Reshape the ratio so that unlikely tokens learn most: rho / (rho + gamma), gradient gamma rho / (rho + gamma)^2.

    Source: LUFFY's policy shaping (arXiv 2504.14945, eq. 9), where anchor "one" makes rho = pi; with anchor
    "behaviour", the soft limit of Guide (arXiv 2506.13923) on rows sampled in another context.
    """
    d = difference(r, s, anchor)
    return d - jnp.logaddexp(d, jnp.log(gamma))


def _soft_limit(r: types.Rollout, s: types.Scores, quantile, anchor: types.Anchor):
    """Return the quantile of the ratios of tokens that the policy did not sample, ``[B]``; 1 if there are none."""
    others = (trajectories.on_policy(r)[:, None] <= 0) & (r.mask > 0) & (ops.valid_rows(r)[:, None] > 0)
    limit = jnp.nanquantile(jnp.where(others, jnp.exp(difference(r, s, anchor)), jnp.nan), quantile)
    return jnp.where(jnp.any(others), jnp.maximum(limit, 1e-4), 1.0) * jnp.ones_like(r.reward)


def _limited(a) -> tuple[types.PrepareTransform, ...]:
    statistic = functools.partial(_soft_limit, quantile=a["quantile"], anchor=a["anchor"])
    return (define.statistic("soft_limit", statistic, types.Needs(live=True)),)


@define.ratio(needs=lambda a: anchor_needs(a["anchor"]), statistics=_limited)
@idle.until("steps", "sampler", quantile=None)
def shaped_by_quantile(loss, r, s, quantile: types.Fraction = 0.9, anchor: types.Anchor = "behaviour") -> types.Array:
    """Reshape the ratio by ``shaped``, gamma the ``quantile`` of the minibatch's ratios, at least 1e-4.

    Only tokens with ``on_policy`` 0 count. Source: the scripts of Guide (arXiv 2506.13923), with 0.9.
    """
    d = difference(r, s, anchor)
    return d - jnp.logaddexp(d, jnp.log(r.extra["soft_limit"])[:, None])


def __getattr__(name: str) -> Any:
    return transforms.piece("ratio", name)
