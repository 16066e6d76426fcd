"""Weights: constants that multiply the policy term, and only it."""

from typing import Literal

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.methods import prepare
from rljax.transforms import define, ops, trajectories, weight
from rljax.transforms.advantage import credit
from rljax.transforms.frame import extras, idle

FIXED_GAP = types.Needs(fixed_proximal=True, behaviour=True)


def _fixed_gap(r: types.Rollout):
    return weight.gap(types.Loss(), r, types.Scores())


@define.weight(needs=lambda a: define.reads(extra=(a["name"],)))
def given(loss, r, s, name: str) -> types.Array:
    """Multiply by weights computed elsewhere: ``rollout.extra[name]``, [B, T], or [B] for one number a row."""
    number = ops.extra(r, name)
    return jnp.where(r.mask > 0, number if number.ndim == 2 else number[:, None], 0.0)


@define.weight(needs=weight.GAP)
@idle.until("sampler", low=types.Range(0, 1), high=idle.FROM_1)
def sequence_masked_importance(loss, r, s, low: types.NonNegative = 0.999, high: types.Positive = 1.002) -> types.Array:
    """Keep a row iff its geometric-mean weight is in [low, high]; weigh its tokens by exp(x), untruncated.

    The seq-mask-TIS of OpenRLHF and NeMo-RL.
    """
    x = weight.gap(loss, r, s)
    row = weight.importance(x, r.mask, "geometric")
    return jnp.where((row >= low) & (row <= high), weight.importance(x, r.mask), 0.0)


def _normalised(r: types.Rollout, s: types.Scores, cap):
    w = jnp.minimum(weight.importance(_fixed_gap(r), r.mask), cap)
    return w / jnp.maximum(ops.masked_mean(w, r.mask), 1e-6)


@define.weight(statistics=lambda a: (weight.on_minibatch("normalised", _normalised, a, FIXED_GAP),))
@idle.until("sampler", cap=idle.FROM_1)
def normalised_importance(loss, r, s, cap: types.Cap = 2.0) -> types.Array:
    """Truncate w = min(exp(x), cap), then divide by its mean over the minibatch's tokens (verl).

    x is of the stored proximal policy, after ``ratio.interpolated`` too.
    """
    return r.extra["normalised"]


@define.weight(needs=weight.GAP)
@idle.until("sampler", low=types.Range(float("-inf"), 0), high=idle.FROM_0, estimator=None, level=None)
def reject(
    loss,
    r,
    s,
    estimator: types.Estimator = "k3",
    low: types.Bound = float("-inf"),
    high: types.Bound = 0.5,
    level: types.RejectLevel = "token",
) -> types.Array:
    """Keep the policy term where low <= k(-x) <= high, of the token or its row; see ``prepare.reject``.

    Denominators count the rejected, as in AReaL and slime.

    Args:
      estimator: a name of ``ops.kl_estimate``.
      low: lower bound, nats.
      high: upper bound, nats.
      level: "token", or how a row's tokens are combined.
    """
    within = prepare.divergence_within(r, weight.proximal(loss, r, s), estimator, low, high, level)
    return within.astype(r.mask.dtype)


@define.weight(needs=types.Needs(behaviour=True))
@idle.until("steps", "sampler", delta=idle.ABOVE_0)
def off_policy_sequence_mask(loss, r, s, delta: types.Positive = 0.5) -> types.Array:
    """Drop rows of negative advantage whose mean log(behaviour / pi) exceeds delta, pi the live policy.

    Source: DeepSeek-V3.2 (arXiv 2512.02556, section 3.1).
    """
    behaviour = ops.given(r.behaviour_logp, "weight: the rollout has no behaviour_logp")
    drift = ops.row_mean(behaviour - ops.live_logp(r, s), r.mask)
    return jnp.where(transforms.PREDICATES["negative"](r) & (drift > delta), 0.0, 1.0)


def _moment_kept(r: types.Rollout, s: types.Scores, tau):
    square = jnp.where(r.mask > 0, _fixed_gap(r) ** 2, jnp.inf)
    ordered = jnp.sort(square.reshape(-1))
    real, rank = jnp.isfinite(ordered), jnp.argsort(jnp.argsort(square.reshape(-1))).reshape(square.shape)
    mean = jnp.cumsum(jnp.where(real, ordered, 0.0)) / jnp.arange(1, ordered.size + 1, dtype=ordered.dtype)
    kept = jnp.sum((mean < tau) & real)  # means of ever larger values never fall
    return (rank < kept).astype(r.mask.dtype)


@define.weight(statistics=lambda a: (weight.on_minibatch("moment_kept", _moment_kept, a, FIXED_GAP),))
@idle.until("sampler", tau=idle.ABOVE_0)
def second_moment_mask(loss, r, s, tau: types.Positive = 0.04) -> types.Array:
    """Drop tokens in descending x^2 until the mean of x^2 over the rest of the minibatch is below tau.

    Source: M2PO (arXiv 2510.01161). If the mean is below tau already, nothing is dropped. x is of the stored proximal
    policy, after ``ratio.interpolated`` too.
    """
    return r.extra["moment_kept"]


@define.weight(needs=weight.GAP)
@idle.until("sampler", bound=idle.ABOVE_0)
def bernoulli_kl_mask(loss, r, s, bound: types.Positive = 2.0) -> types.Array:
    """Drop tokens where the larger Bernoulli KL between proximal and behaviour exceeds ``bound`` (KPop)."""
    behaviour = jnp.where(r.mask > 0, ops.given(r.behaviour_logp, "weight: the rollout has no behaviour_logp"), 0.0)
    b, q = jnp.exp(behaviour), jnp.exp(behaviour + weight.gap(loss, r, s))
    return jnp.where(jnp.maximum(ops.bernoulli_kl(q, b), ops.bernoulli_kl(b, q)) > bound, 0.0, 1.0)


@define.weight(needs=weight.GAP)
@idle.until("sampler", bound=idle.ABOVE_0)
def row_tv_mask(loss, r, s, bound: types.Positive = 0.1) -> types.Array:
    """Drop tokens that have moved in the direction of A, in rows whose mean |exp(x) - 1| exceeds ``bound``.

    VACO, as in open-instruct: sign(x) A > 0.
    """
    x = weight.gap(loss, r, s)
    far = ops.row_mean(jnp.abs(jnp.expm1(x)), r.mask) > bound
    toward = jnp.sign(x) * ops.given(r.advantage, "weight: the rollout has no advantage") > 0
    return jnp.where(far & toward, 0.0, 1.0)


def _drawn(a) -> tuple[types.PrepareTransform, ...]:
    """Draw the tokens that ``covariance_mask`` drops."""

    def apply(rollout: types.Rollout, scores: types.Scores, state: types.State, key: types.Key):
        covariance, count = covariances(rollout, scores)
        low, high = a["bounds"]
        inside = (covariance > low) & (covariance < high) & (rollout.mask > 0)
        draw = jnp.where(inside, jax.random.uniform(key, inside.shape), -1.0).reshape(-1)
        place = jnp.argsort(jnp.argsort(-draw)).reshape(inside.shape)
        dropped = inside & (place < at_least_one(a["share"] * count))
        return extras.put(rollout, {"covariant": dropped.astype(rollout.mask.dtype)}), state

    return (types.PrepareTransform(apply, needs=types.Needs(live=True)),)


@define.weight(statistics=_drawn)
def covariance_mask(loss, r, s, share: types.Fraction = 2e-4, bounds: tuple[float, float] = (1.0, 5.0)) -> types.Array:
    """Drop a random ``share`` of the minibatch's tokens, among tokens whose covariance is within ``bounds``.

    cov = (A - mean A)(logp - mean logp); at least one token is drawn, and one that is clipped already is
    unchanged. Source: Clip-Cov (arXiv 2505.22617).
    """
    unclipped = 1.0 - loss.metrics.get("clipped", jnp.zeros_like(r.mask))
    return 1.0 - r.extra["covariant"] * unclipped


def at_least_one(count) -> types.Array:
    """Return a number of tokens: ``count`` rounded down, and at least 1."""
    return jnp.maximum(jnp.floor(count), 1.0).astype(jnp.int32)


def covariances(rollout: types.Rollout, scores: types.Scores) -> tuple[types.Array, types.Array]:
    """Return (A - mean A)(logp - mean logp) over the minibatch's tokens [B, T], and their number."""
    a = ops.given(rollout.advantage, "covariance: the rollout has no advantage")
    live = ops.live_logp(rollout, scores)
    return (a - ops.masked_mean(a, rollout.mask)) * (live - ops.masked_mean(live, rollout.mask)), jnp.sum(rollout.mask)


@define.weight
def mastered_token_mask(
    loss, r, s, entropy: types.NonNegative = 0.2, probability: types.Fraction = 0.99
) -> types.Array:
    """Drop tokens of at least ``probability`` in right rows whose mean entropy at sampling is below ``entropy``.

    DMMPT of UloRL (arXiv 2507.19766). Entropy 0 is the identity.
    """
    sampled = ops.given(r.entropy, "weight.mastered_token_mask: the rollout has no entropy")
    sharp = ops.row_mean(sampled, r.mask) < entropy
    known = jnp.exp(ops.live_logp(r, s)) >= probability
    return jnp.where(transforms.PREDICATES["correct"](r) & sharp & known, 0.0, 1.0)


@define.weight
def by_sign(
    loss,
    r,
    s,
    positive: types.NonNegative = 1.0,
    negative: types.NonNegative = 1.0,
    of: Literal["advantage", "reward"] = "advantage",
) -> types.Array:
    """Multiply the loss of positive tokens by ``positive``, of the others by ``negative``; both may be schedules.

    The sign is taken from the token's advantage or from the row's reward. They agree for 0/1 rewards under a group
    baseline, and differ with shaped rewards (a right row below its group's mean is negative), with critics, and
    where the baseline is 0: then a reward of 0 is "not positive" though its advantage is 0. Source: the sample weights
    of arXiv 2506.01347's release (reward), OREAL (arXiv 2502.06781, reward).

    Args:
      positive: factor of positive tokens.
      negative: factor of the others.
      of: whose sign: the token's advantage or the row's reward.
    """
    return jnp.where(transforms.PREDICATES["positive" if of == "advantage" else "correct"](r), positive, negative)


@define.weight(needs=types.Needs(agents=True))
def by_role(loss, r, s, weights: tuple[float, ...]) -> types.Array:
    """Multiply by the weight of the row's agent; without one the loss is nan. Source: Evolving-RL."""
    agent = ops.given(r.agent, "weight.by_role: the rollout has no agent")
    return jnp.take(jnp.asarray(weights, r.mask.dtype), agent, mode="fill", fill_value=jnp.nan)[:, None]


@define.weight(needs=types.Needs(domains=True))
def by_domain(loss, r, s, weights: tuple[types.NonNegative, ...]) -> types.Array:
    """Multiply by the weight of the row's domain, such as how far a source of data is trusted.

    Each may be a schedule. H2O (arXiv 2206.13464) trusts a single transition, from two discriminators of
    simulated and real data; here it is a number of each domain. Differs from ``by_role``, which reads the agent.

    Args:
      weights: one of each domain; rows of a domain without one make the loss nan, and the step is refused.
    """
    return trajectories.of_domain(r, weights)[:, None]


@define.weight(statistics=(prepare.solve_rate(),))
def by_difficulty(loss, r, s, kind: Literal["easy", "medium", "hard"] = "medium") -> types.Array:
    """Weigh a prompt by its success rate p: 1 on the side ``kind`` names, cos(pi (p - 1/2)) elsewhere.

    "easy": 1 for p > 1/2; "hard": 1 for 0 < p <= 1/2, 0.25 at p = 0; "medium": the cosine everywhere. Source: the
    difficulty weight of VL-Cogito (arXiv 2507.22607).
    """
    p = r.extra["solve_rate"][:, None]
    side = {"easy": p > 0.5, "medium": jnp.zeros_like(p, bool), "hard": p <= 0.5}[kind]
    weight = jnp.where(side, 1.0, jnp.cos(jnp.pi * (p - 0.5)))
    return jnp.where(p <= 0, 0.25 if kind == "hard" else 0.0, weight)


def _solve_rate_weight(r: types.Rollout, s: types.Scores, gamma, alpha):
    valid, reward = trajectories.once(r), trajectories.total(r)
    domain = ops.given(r.domain, "weight.by_solve_rate: the rollout has no domain")
    bar = alpha * ops.segment_mean(reward, r.group, valid)
    bar = bar + (1.0 - alpha) * ops.segment_mean(reward, domain, valid)
    above = ops.segment_mean((reward > bar).astype(r.mask.dtype), r.group, valid)
    lift = gamma * (0.5 - above[:, None])
    return jnp.exp(jnp.where(transforms.PREDICATES["positive"](r), lift, -lift))


@define.weight(
    statistics=lambda a: (weight.on_minibatch("solve_rate_weight", _solve_rate_weight, a, types.Needs(domains=True)),)
)
def by_solve_rate(loss, r, s, gamma: types.Number = 1.0, alpha: types.Fraction = 0.8) -> types.Array:
    """Weigh successes on hard prompts and failures on easy ones: exp(gamma (1/2 - p)) if A > 0, else its inverse.

    p is the share of the group above alpha mean(group) + (1 - alpha) mean(domain). Source: GoLongRL.
    """
    return r.extra["solve_rate_weight"]


@define.weight
def exploration_focus(loss, r, s, power: types.NonNegative = 0.5) -> types.Array:
    """Weigh tokens the policy finds unlikely: (1 - pi)^power. Source: RL-PLUS (arXiv 2508.00222)."""
    return jnp.maximum(-jnp.expm1(ops.live_logp(r, s)), 0.0) ** power


@define.weight
def probability(loss, r, s) -> types.Array:
    """Weigh tokens by the policy's probability pi. Source: dynamic fine-tuning (arXiv 2508.05629)."""
    return jnp.exp(ops.live_logp(r, s))


@define.weight(needs=types.Needs(entropy=True))
def entropy_exponential(loss, r, s, scale: types.Number = 1.0, power: types.Number = -1.0) -> types.Array:
    """Weigh by scale exp(power H), H the token's live entropy. Source: SRFT (arXiv 2506.19767)."""
    entropy = ops.given(s.entropy, "weight.entropy_exponential: the scores have no entropy")
    return scale * jnp.exp(power * jnp.where(r.mask > 0, entropy, 0.0))


@define.weight(needs=lambda a: types.Needs(parts=frozenset({a["name"]})))
def by_part(loss, r, s, name: str) -> types.Array:
    """Multiply by a part of the verdict, one number of each row.

    For weights that come with the data, such as GUI-G1's difficulty of a prompt (arXiv 2505.15810). Differs from
    ``by_difficulty``, which computes a weight from the group's success rate.
    """
    return ops.part(r, name)[:, None]


@define.weight(needs=credit.TURNS)
def turn_end(loss, r, s, count: types.Number = 1.0) -> types.Array:
    """Keep the policy term on the last ``count`` trained tokens of each turn.

    With a position for each denoising step: diffusion policy policy optimization trains the last steps alone (arXiv
    2409.00588), and B2-DiffuRL (arXiv 2503.11240) an interval at the end that grows by a schedule.
    """
    return (credit.behind_in_turn(r) < count).astype(r.mask.dtype)
