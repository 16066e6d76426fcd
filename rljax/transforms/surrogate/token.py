"""Surrogates of single tokens."""

from typing import Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.language import errors
from rljax.transforms import define, idle, ops, prepare, trajectories

sg = jax.lax.stop_gradient


def advantage(r: types.Rollout):
    """Return the advantage as a constant, [B, T]."""
    return sg(ops.given(r.advantage, "surrogate: the rollout has no advantage; give the recipe an advantage piece"))


def log_ratio(loss: types.Loss):
    """Return log rho, [B, T]."""
    return ops.given(loss.log_ratio, "surrogate: no ratio; put a ratio piece before it, such as ratio.token()")


@define.surrogate
def reinforce(loss, r, s):
    """Follow the score function: -A logp (Williams 1992). The baseline of comparison for the others."""
    return -advantage(r) * ops.live_logp(r, s)


@define.surrogate
def unclipped(loss, r, s):
    """Weigh by the plain ratio: -A rho. On-policy its gradient is ``reinforce``'s."""
    return -advantage(r) * jnp.exp(log_ratio(loss))


@define.surrogate
@idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0, dual=idle.ABOVE_1)
def clip(loss, r, s, low: types.NonNegative = 0.2, high: types.Limit = 0.2, dual: types.Positive | None = None):
    """Return the larger loss of -A rho and -A rho', where rho' is rho clamped to [1 - low, 1 + high].

    Tokens beyond the bound in the direction of A have no gradient. ``dual`` > 1 bounds the loss of negative
    advantages by -dual A (arXiv 1912.09729, eq. 5); None leaves it out. Source: PPO (arXiv 1707.06347, eq. 7);
    separate bounds: DAPO (arXiv 2503.14476, eq. 10).

    Args:
      low: distance of the lower bound from 1.
      high: distance of the upper bound from 1.
      dual: bound of the loss of negative advantages, in units of -A; None: no bound.
    """
    a, rho = advantage(r), jnp.exp(log_ratio(loss))
    value, outside = _clipped(a, rho, low, high)
    if dual is not None:
        value = jnp.where(a < 0, jnp.minimum(value, -dual * a), value)
    return value, {"clipped": outside.astype(value.dtype)}


def _clipped(a, rho, low, high):
    """Return PPO's clipped loss, and where it has no gradient."""
    value = jnp.maximum(-a * rho, -a * jnp.clip(rho, 1.0 - low, 1.0 + high))
    return value, jnp.where(a >= 0, rho > 1.0 + high, rho < 1.0 - low)


@define.surrogate
@idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0, widest=idle.ABOVE_0, scale=None)
def entropy_clip(
    loss,
    r,
    s,
    low: types.NonNegative = 0.2,
    high: types.NonNegative = 0.2,
    widest: types.NonNegative = 0.4,
    scale: types.Positive = 1.0,
):
    """Clip as ``clip`` does, with an upper bound that is wider for rows of high entropy: 1 + e, e in [high, widest].

    e = high + (widest - high) min(H / scale, 1), H the row's mean entropy at sampling. ``widest`` = ``high`` is
    ``clip``. Source: the entropy-aware adaptive upper clip of EAG-RL (arXiv 2508.13579), which averages over the tokens
    of features that an expert names. Its map from entropy to [0.2, 0.4] is not published; this one is linear.

    Args:
      low: distance of the lower bound from 1.
      high: distance of the upper bound from 1 at entropy 0.
      widest: the same at a mean entropy of ``scale`` or more.
      scale: nats a token.
    """
    entropy = ops.given(r.entropy, "surrogate.entropy_clip: the rollout has no entropy")
    share = jnp.minimum(ops.row_mean(entropy, r.mask) / scale, 1.0)
    value, outside = _clipped(advantage(r), jnp.exp(log_ratio(loss)), low, high + (widest - high) * share)
    return value, {"clipped": outside.astype(value.dtype)}


@define.surrogate(needs=types.Needs(proximal=True, behaviour=True))
@idle.until("steps", epsilon=idle.ABOVE_0)  # on a ratio to the sampler
def centred_clip(loss, r, s, epsilon: types.NonNegative = 0.2):
    """Clip the ratio around where the update started: [c - epsilon, c + epsilon], c = exp(proximal - behaviour).

    Source: Mix-PPG of ReMix (arXiv 2507.06892), for a ratio anchored on the sampler. c = 1 is ``clip``.
    """
    a, rho = advantage(r), jnp.exp(log_ratio(loss))
    behaviour = ops.given(r.behaviour_logp, "surrogate.centred_clip: the rollout has no behaviour_logp")
    centre = jnp.exp(jnp.where(r.mask > 0, ops.proximal_logp(r, s) - behaviour, 0.0))
    return jnp.maximum(-a * rho, -a * jnp.clip(rho, centre - epsilon, centre + epsilon))


@define.surrogate
@idle.until("ratio", low=idle.FROM_0, high=idle.FROM_0)
def clipped_importance(loss, r, s, low: types.Limit = float("inf"), high: types.Number = 4.0):
    """Weigh REINFORCE by a clipped constant: -sg(clip(rho, 1 - low, 1 + high)) A logp.

    Every token keeps its gradient. Source: CISPO (arXiv 2506.13585, eq. 4); ``low`` infinite is the canonical form,
    and AIPO's (arXiv 2505.24034) with the ratio anchored on the sampler.
    """
    return -sg(jnp.clip(jnp.exp(log_ratio(loss)), 1.0 - low, 1.0 + high)) * advantage(r) * ops.live_logp(r, s)


@define.surrogate
@idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0)
def banded_importance(loss, r, s, low: types.NonNegative = 0.2, high: types.Limit = 0.2):
    """Weigh REINFORCE by sg(rho) inside (1 - low, 1 + high), by 0 outside (SkyRL).

    Differs from ``clipped_importance`` by dropping what is outside.
    """
    rho = sg(jnp.exp(log_ratio(loss)))
    return -jnp.where((rho > 1.0 - low) & (rho < 1.0 + high), rho, 0.0) * advantage(r) * ops.live_logp(r, s)


@define.surrogate
@idle.until("ratio", positive=None, negative=None)
def soft_gate(loss, r, s, positive: types.Positive = 1.0, negative: types.Positive = 1.05):
    """Pass the ratio through a sigmoid: -A (4 / tau) sigmoid(tau (rho - 1)), tau by the sign of A.

    The gate's slope at rho = 1 is 1. Source: SAPO (arXiv 2511.20347). Differs from ``clip`` by having no edge.
    """
    a = advantage(r)
    tau = jnp.where(a > 0, positive, negative)
    return -a * 4.0 / tau * jax.nn.sigmoid(tau * jnp.expm1(log_ratio(loss)))


Pair = tuple[float, float]


@define.surrogate
@idle.until("ratio", positive=None, negative=None)
def gamma_weight(loss, r, s, positive: Pair = (2.0, 3.0), negative: Pair = (3.0, 2.0)):
    """Weigh REINFORCE by sg(W^k exp(lambda (1 - W))), W the ratio: largest at W = k / lambda, 1 at W = 1.

    Source: VESPO (arXiv 2602.10693); pairs are (k, lambda) for A >= 0 and A < 0.
    """
    a, d = advantage(r), sg(log_ratio(loss))
    k, lam = (jnp.where(a >= 0, p, n) for p, n in zip(positive, negative, strict=True))
    return -jnp.exp(k * d - lam * jnp.expm1(d)) * a * ops.live_logp(r, s)


@define.surrogate
@idle.until("ratio", measure=None, low=idle.FROM_0, high=idle.FROM_0, cap=idle.FROM_1)
def divergence_mask(
    loss,
    r,
    s,
    measure: Literal["tv", "kl"] = "tv",
    low: types.NonNegative = 0.15,
    high: types.NonNegative = 0.15,
    cap: types.Positive = 20.0,
):
    """Weigh REINFORCE by sg(min(rho, cap)), dropping tokens that have moved too far in the direction of A.

    Drop A > 0 where pi > pi_b by more than ``high``, A < 0 where pi < pi_b by more than ``low``; moved by pi - pi_b
    ("tv") or by the Bernoulli KL(pi_b || pi) of the token ("kl"). Source: DPPO (arXiv 2602.04879).

    Args:
      measure: "tv", the change of the token's probability, or "kl", its Bernoulli KL in nats.
      low: largest move where A < 0.
      high: largest move where A > 0.
      cap: upper bound of the ratio.
    """
    a, d, live = advantage(r), sg(log_ratio(loss)), sg(ops.live_logp(r, s))
    p, p_anchor = jnp.exp(live), jnp.exp(live - d)
    moved = jnp.abs(p - p_anchor) if measure == "tv" else ops.bernoulli_kl(p_anchor, p)
    drop = jnp.where(a > 0, (p > p_anchor) & (moved > high), (p < p_anchor) & (moved > low))
    weight = jnp.where(drop, 0.0, jnp.minimum(jnp.exp(d), cap))
    return -weight * a * ops.live_logp(r, s), {"clipped": drop.astype(a.dtype)}


@define.surrogate
@idle.until("ratio", beta=None)
def quadratic(loss, r, s, beta: types.Positive):
    """Penalize the squared log-ratio of each token: -(A logp - beta / 2 (log rho)^2).

    Source: Direct Reward Optimisation (arXiv 2405.19107). At rho = 1 the gradient is ``reinforce``'s.
    """
    return -advantage(r) * ops.live_logp(r, s) + 0.5 * beta * log_ratio(loss) ** 2


@define.surrogate(statistics=(prepare.solve_rate(),))
def implicit_negative(loss, r, s, prompt_weight: types.PromptWeight = "failure", floor: types.Positive = 1.0):
    """Fit right rows, and wrong ones through the policy they imply: -log R and -log((1 - p R) / (1 - p)).

    R the ratio, p the group's success rate clamped to [0.02, 0.98]. ``floor`` bounds the second argument from below,
    straight-through: its gradient stays. Source: NFT (arXiv 2505.18116, eq. 8-10).
    """
    d, p = log_ratio(loss), jnp.clip(r.extra["solve_rate"], 0.02, 0.98)[:, None]
    implied = (1.0 - p * jnp.exp(d)) / (1.0 - p)
    implied = jnp.maximum(sg(implied), floor) + (implied - sg(implied))  # exactly floor, also where implied is huge
    weight = {"uniform": jnp.ones_like(p), "failure": 1.0 - p, "spread": jnp.sqrt((1.0 - p) / p)}[prompt_weight]
    return weight * jnp.where(trajectories.correct(r)[:, None], -d, -jnp.log(implied))


@define.surrogate
def likelihood(loss, r, s):
    """Fit the rows as they are: -logp. The surrogate of supervised fine-tuning; reads no advantage."""
    return -ops.live_logp(r, s)


@define.surrogate(needs=types.Needs(value=True), term="value")
@idle.until("steps", clip=idle.ABOVE_0)
def value_error(loss, r, s, clip: types.Positive | None = 0.2, expectile: types.Fraction = 0.5):
    """Regress the critic: max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2.

    Source: the PPO implementation of value clipping (arXiv 2005.12729, section 3); ``clip`` None is plain squared
    error. ``returns`` and V_old are constants. ``expectile`` = tau weighs errors with R >= V by 2 tau and the others by
    2 (1 - tau), so that V is the tau-expectile of the returns; 0.5 is their mean (IQL, arXiv 2110.06169, eq. 5).
    """
    if s.value is None or r.returns is None or r.value is None:
        raise errors.Absent("it needs scores.value, rollout.value and rollout.returns, as the critic of ppo() has them")
    error = (s.value - r.returns) ** 2
    if clip is not None:
        near = r.value + jnp.clip(s.value - r.value, -clip, clip)
        error = jnp.maximum(error, (near - r.returns) ** 2)
    return jnp.where(r.returns >= s.value, expectile, 1.0 - expectile) * error


def _binned(a) -> types.Needs:
    (low, high), bins = a["over"], a["bins"]
    if not low < high or bins < 2:
        raise ValueError(f"value_histogram: over={a['over']} must be increasing, and bins={bins} at least 2")
    return types.Needs(value=True, value_logits=frozenset({(float(low), float(high), bins)}))


@define.surrogate(needs=_binned, term="value")
def value_histogram(loss, r, s, over: tuple[float, float], bins: types.Count = 51, sigma: types.NonNegative = 0.75):
    """Classify the return: -sum_k p_k(R) log q_k, q the critic's distribution over bins, whose mean is V.

    p_k is the mass that a Gaussian about R, cut to the range of the bins, has in bin k (HL-Gauss, arXiv 2403.03950,
    section 3.1, from memory; Imani and White, arXiv 1806.04613). With ``sigma`` 0 it is two-hot: R lies between two
    centers and each has a share, so that the mean of p is R. A Gaussian's mean is R up to 1e-4 of a bin where R is at
    least 3 ``sigma`` from both ends of the range. R beyond the first or last center counts as that center. The head of
    the critic has one logit for each bin. Differs from ``value_error`` by a gradient in the logits of at most 1.

    Args:
      over: the first and the last center, in the unit of the return; the bins between are equal.
      bins: their number.
      sigma: standard deviation of the Gaussian, in widths of a bin; 0: two-hot.
    """
    if s.value_logits is None or r.returns is None:
        raise errors.Absent("it needs scores.value_logits and rollout.returns, as the critic of ppo(value_range=...)")
    center = jnp.linspace(*over, bins, dtype=r.mask.dtype)[None, None, :]
    width = (over[1] - over[0]) / (bins - 1)
    target = jnp.clip(r.returns, *over)[..., None]
    spread = jnp.maximum(sigma, 1e-6) * width * 2.0**0.5
    edge = jnp.append(center - width / 2, center[..., -1:] + width / 2, axis=-1)
    below = jax.scipy.special.erf((edge - target) / spread)
    smooth = jnp.diff(below) / (below[..., -1:] - below[..., :1])
    p = jnp.where(sigma > 0, smooth, jnp.maximum(1.0 - jnp.abs(target - center) / width, 0.0))
    outside = (r.returns < over[0]) | (r.returns > over[1])
    return -jnp.sum(p * jax.nn.log_softmax(s.value_logits), axis=-1), {"outside": outside.astype(r.mask.dtype)}
