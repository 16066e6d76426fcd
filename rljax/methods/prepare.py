"""Prepare transforms: tokens, rows and groups that leave every term of the loss."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.methods.reward import turns
from rljax.transforms import define, ops, trajectories
from rljax.transforms.frame import extras, idle


@define.prepare(needs=lambda a: ops.key_needs(a["key"]))
def drop_truncated(r, s, key: types.Segment | None = None) -> types.Array:
    """Drop the rows that ran into the length limit (the overlong filter of DAPO, arXiv 2503.14476).

    ``key`` "episode" drops every row of a rollout of which one was cut (SUPO, arXiv 2510.06727).
    """
    finish = ops.given(r.finish, "prepare.drop_truncated: the rollout has no finish reason")
    cut = (finish == types.Finish.LENGTH).astype(r.mask.dtype) * ops.valid_rows(r)
    return (cut if key is None else ops.segment_total(cut, ops.segments(r, key)))[:, None] == 0


@define.prepare(needs=types.Needs(turns=True))
def turn_ends(r, s) -> types.Array:
    """Keep the last token of each turn, so that a mean counts each turn once."""
    return turns.turns(r)[1] > 0


def _begins(token, used, marker: tuple[int, ...]):
    """Return bool [B, T], where the tokens of a marker begin."""
    shifted = [jnp.roll(token == number, -k, axis=1) for k, number in enumerate(marker)]
    fits = jnp.arange(token.shape[1])[None, :] + len(marker) <= used[:, None]
    return jnp.all(jnp.stack(shifted), axis=0) & fits


def _markers(a) -> types.Needs:
    for name in ("opening", "closing"):
        if not a[name]:
            raise ValueError(f"drop_between: {name}=() must be at least one token id")
    return types.Needs()


@define.prepare(needs=_markers)
def drop_between(r, s, opening: tuple[int, ...], closing: tuple[int, ...]) -> types.Array:
    """Drop spans from ``opening`` to the next ``closing``, both included; one that is not closed is kept.

    For results that the policy writes in the place of a tool: they stay in the context, and no term trains on them.
    Source: the mask of information tokens in the release of Self-Search RL (arXiv 2508.10874), which finds the markers
    in the text; here they are compared token by token, so a marker must always have the same tokens.

    Args:
      opening: token ids of the marker that begins a span, such as <information>.
      closing: token ids of the marker that ends it.

    Raises:
      ValueError: a marker without tokens.
    """
    action = r.action
    if action is None:
        raise ValueError("prepare.drop_between: the rollout has no action")
    place = jnp.arange(r.mask.shape[1])
    last = jnp.max(jnp.where(r.mask > 0, place + 1, 0), axis=1)
    used = last if action.length is None else action.length
    opens, ends = (_begins(action.token, used, marker) for marker in (opening, closing))
    ends = jnp.roll(ends, len(closing) - 1, axis=1)  # at the last token of the marker

    def step(start, column):
        t, begins, stops = column
        start = jnp.where((start < 0) & begins, t, start)
        closed = (start >= 0) & stops & (t - start + 1 >= len(opening) + len(closing))
        return jnp.where(closed, -1, start), jnp.where(closed, start, t + 1)

    _, begun = jax.lax.scan(step, jnp.full_like(last, -1), (place, opens.T, ends.T))
    # a token is inside a span if one that ends at it or later begins at it or before
    return jax.lax.cummin(begun, axis=0, reverse=True).T > place[None, :]


@define.prepare(needs=types.Needs(siblings=True))
def drop_flat_groups(r, s) -> types.Array:
    """Drop groups whose rewards do not differ, from denominators too: the loss's side of dynamic sampling."""
    return ~trajectories.flat(r)[:, None]


@define.prepare(needs=types.Needs(extra=frozenset({"used"})))
def drop_used(r, s) -> types.Array:
    """Drop tokens that an earlier step has trained on, extra["used"] 1 (T-PPO, arXiv 2506.15050)."""
    return ops.extra(r, "used") == 0


@define.prepare(needs=types.Needs(fixed_proximal=True, behaviour=True))
@idle.until("sampler", low=types.Range(float("-inf"), 0), high=idle.FROM_0, estimator=None, level=None)
def reject(
    r,
    s,
    estimator: types.Estimator = "k3",
    low: types.Bound = float("-inf"),
    high: types.Bound = 0.5,
    level: types.RejectLevel = "token",
) -> types.Array:
    """Keep what has low <= k(log pi_b - log proximal) <= high, k a token's divergence, or its row's.

    The token also leaves KL, entropy and every denominator, as in verl's decoupled mode; ``weight.reject`` does not
    change those. Levels: "token", "row_sum", "row_mean", "row_max".

    Args:
      estimator: a name of ``ops.kl_estimate``.
      low: lower bound, nats.
      high: upper bound, nats.
      level: "token", or how a row's tokens are combined.
    """
    return divergence_within(r, r.proximal_logp, estimator, low, high, level)


@define.prepare(needs=types.Needs(fixed_proximal=True))
def perplexity_within(r, s, low: types.Positive = 1 / 0.95, high: types.Positive = 2.0) -> types.Array:
    """Drop rows of earlier steps whose perplexity under the policy, exp(-mean log pi), is not in [low, high].

    What the policy writes anyway teaches it nothing, and what it would not write misleads it. Source: WebRL (arXiv
    2411.02337), replay of successes.
    """
    proximal = ops.given(r.proximal_logp, "perplexity_within: the rollout has no proximal_logp")
    perplexity = jnp.exp(-ops.row_mean(proximal, r.mask))
    return (trajectories.on_policy(r)[:, None] > 0) | ((perplexity >= low) & (perplexity <= high))


def divergence_within(
    r: types.Rollout, proximal: types.Array | None, estimator: str, low: Any, high: Any, level: str
) -> types.Array:
    """Return where the divergence of the sampler from the proximal policy is within bounds.

    Args:
      r: the rows, with ``behaviour_logp``.
      proximal: ``[B, T]``, log-probs of the proximal policy.
      estimator: a name of ``ops.kl_estimate``.
      low: the lower bound, nats.
      high: the upper bound, nats.
      level: "token", or how a row's tokens are combined: "row_sum", "row_mean" or "row_max".

    Returns:
      Bool, ``[B, T]``; False on masked tokens.
    """
    behaviour = ops.given(r.behaviour_logp, "reject: the rollout has no behaviour_logp")
    proximal = ops.given(proximal, "reject: the rollout has no proximal_logp")
    k = ops.kl_estimate(estimator, jnp.where(r.mask > 0, behaviour - proximal, 0.0))
    if level == "row_max":
        k = jnp.max(jnp.where(r.mask > 0, k, -jnp.inf), axis=1, keepdims=True)
    elif level != "token":
        k = (ops.row_sum if level == "row_sum" else ops.row_mean)(k, r.mask)
    return (k >= low) & (k <= high) & (r.mask > 0)


@define.prepare
def solve_rate(r, s) -> types.Rollout:
    """Write extra["solve_rate"] [B], the share of a group's valid rows that are correct (``trajectories.correct``)."""
    rate = ops.segment_mean(trajectories.correct(r).astype(r.mask.dtype), r.group, trajectories.once(r))
    return extras.put(r, {"solve_rate": rate})


@define.prepare(needs=types.Needs(siblings=True, off_policy=True))
def demonstration_and_sample(r, s) -> tuple[types.Rollout, types.Array]:
    """Pair each group's first demonstration, the better row whatever it is paid, and first sample; drop all others.

    Writes extra["preference"] and extra["margin"] as ``best_and_worst`` does, with the margin 1; a demonstration is a
    row with ``on_policy`` 0. Groups that lack either have no pair. Source: SPIN (arXiv 2401.01335). Differs from
    ``best_and_worst`` by reading no reward.
    """
    used = jnp.where(jnp.any(r.mask > 0, axis=1), ops.valid_rows(r), 0.0)
    sampled = ops.given(r.on_policy, "prepare.demonstration_and_sample: the rollout has no on_policy") > 0
    shown, written = (ops.segment_first(r.group, jnp.where(kind, used, 0.0)) for kind in (~sampled, sampled))
    complete = ops.segment_total(shown + written, r.group) == 2
    preference = jnp.where(complete, shown - written, 0.0)
    margin = complete.astype(preference.dtype)
    return extras.put(r, {"preference": preference, "margin": margin}), preference[:, None] != 0


@define.constructor("prepare")
def random_pair() -> types.PrepareTransform:
    """Make a pair of two rows of each group, drawn at random without replacement, and drop all others.

    Writes extra["preference"] and extra["margin"] as ``best_and_worst`` does; two rows of equal reward are a pair of
    margin 0, and a group of fewer than two rows with a token has none. Source: the two samples of P3O (arXiv
    2310.00212). Differs from ``best_and_worst``, whose pairs of a larger group are not two samples of the policy.
    """

    def apply(r: types.Rollout, scores: types.Scores | None, state: types.State, key: types.Key):
        reward = trajectories.total(r)
        eligible = ops.valid_rows(r) * jnp.any(r.mask > 0, axis=1).astype(reward.dtype)
        order = jax.random.uniform(key, reward.shape, jnp.float32).astype(reward.dtype)
        _, _, one = ops.segment_top(order, r.group, eligible)
        _, _, two = ops.segment_top(order, r.group, eligible * (1.0 - one))
        complete = ops.segment_total(one + two, r.group) == 2
        gap = ops.segment_total(jnp.where(eligible > 0, reward, 0.0) * (one - two), r.group)
        preference = jnp.where(complete, jnp.where(gap < 0, two - one, one - two), 0.0)
        r = extras.put(r, {"preference": preference, "margin": jnp.abs(gap)})
        return r.replace(mask=jnp.where(preference[:, None] != 0, r.mask, 0.0)), state

    return types.PrepareTransform(apply, needs=types.Needs(siblings=True))


@define.constructor("prepare")
def random_positions(share: types.Fraction = 0.6) -> types.PrepareTransform:
    """Keep a random share of each row's positions, at least one, drawn anew for each update; drop the others.

    Source: the denoising steps that DanceGRPO (arXiv 2505.07818) trains, 0.6 of a chain's in its release. ``share`` = 1
    keeps all.
    """

    def apply(r: types.Rollout, scores: types.Scores | None, state: types.State, key: types.Key):
        order = jnp.where(r.mask > 0, jax.random.uniform(key, r.mask.shape), 2.0)
        rank = jnp.argsort(jnp.argsort(order, axis=1), axis=1)
        whole = share * jnp.sum((r.mask > 0).astype(r.mask.dtype), axis=1, keepdims=True)
        count = jnp.ceil(whole * (1 - 1e-6)).astype(rank.dtype)  # 0.6 of 25 is 15.000001 in float32
        return r.replace(mask=jnp.where(rank < jnp.maximum(count, 1), r.mask, 0.0)), state

    return types.PrepareTransform(apply)
