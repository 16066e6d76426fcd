"""Surrogates of single tokens."""

from typing import Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.methods import prepare
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.frame import idle
from rljax.transforms.surrogate import token

Pair = tuple[float, float]


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
) -> tuple[types.Array, types.Metrics]:
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
    value, outside = token.clipped(
        token.advantage(r), jnp.exp(token.log_ratio(loss)), low, high + (widest - high) * share
    )
    return value, {"clipped": outside.astype(value.dtype)}


@define.surrogate(needs=types.Needs(proximal=True, behaviour=True))
@idle.until("steps", epsilon=idle.ABOVE_0)  # on a ratio to the sampler
def centred_clip(loss, r, s, epsilon: types.NonNegative = 0.2) -> types.Array:
    """Clip the ratio around where the update started: [c - epsilon, c + epsilon], c = exp(proximal - behaviour).

    Source: Mix-PPG of ReMix (arXiv 2507.06892), for a ratio anchored on the sampler. c = 1 is ``clip``.
    """
    a, rho = token.advantage(r), jnp.exp(token.log_ratio(loss))
    behaviour = ops.given(r.behaviour_logp, "surrogate.centred_clip: the rollout has no behaviour_logp")
    centre = jnp.exp(jnp.where(r.mask > 0, ops.proximal_logp(r, s) - behaviour, 0.0))
    return jnp.maximum(-a * rho, -a * jnp.clip(rho, centre - epsilon, centre + epsilon))


@define.surrogate
@idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0)
def banded_importance(loss, r, s, low: types.NonNegative = 0.2, high: types.Limit = 0.2) -> types.Array:
    """Weigh REINFORCE by sg(rho) inside (1 - low, 1 + high), by 0 outside (SkyRL).

    Differs from ``clipped_importance`` by dropping what is outside.
    """
    rho = token.sg(jnp.exp(token.log_ratio(loss)))
    return -jnp.where((rho > 1.0 - low) & (rho < 1.0 + high), rho, 0.0) * token.advantage(r) * ops.live_logp(r, s)


@define.surrogate
@idle.until("ratio", positive=None, negative=None)
def soft_gate(loss, r, s, positive: types.Positive = 1.0, negative: types.Positive = 1.05) -> types.Array:
    """Pass the ratio through a sigmoid: -A (4 / tau) sigmoid(tau (rho - 1)), tau by the sign of A.

    The gate's slope at rho = 1 is 1. Source: SAPO (arXiv 2511.20347). Differs from ``clip`` by having no edge.
    """
    a = token.advantage(r)
    tau = jnp.where(a > 0, positive, negative)
    return -a * 4.0 / tau * jax.nn.sigmoid(tau * jnp.expm1(token.log_ratio(loss)))


@define.surrogate
@idle.until("ratio", positive=None, negative=None)
def gamma_weight(loss, r, s, positive: Pair = (2.0, 3.0), negative: Pair = (3.0, 2.0)) -> types.Array:
    """Weigh REINFORCE by sg(W^k exp(lambda (1 - W))), W the ratio: largest at W = k / lambda, 1 at W = 1.

    Source: VESPO (arXiv 2602.10693); pairs are (k, lambda) for A >= 0 and A < 0.
    """
    a, d = token.advantage(r), token.sg(token.log_ratio(loss))
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
) -> tuple[types.Array, types.Metrics]:
    """Weigh REINFORCE by sg(min(rho, cap)), dropping tokens that have moved too far in the direction of A.

    Drop A > 0 where pi > pi_b by more than ``high``, A < 0 where pi < pi_b by more than ``low``; moved by pi - pi_b
    ("tv") or by the Bernoulli KL(pi_b || pi) of the token ("kl"). Source: DPPO (arXiv 2602.04879).

    Args:
      measure: "tv", the change of the token's probability, or "kl", its Bernoulli KL in nats.
      low: largest move where A < 0.
      high: largest move where A > 0.
      cap: upper bound of the ratio.
    """
    a, d, live = token.advantage(r), token.sg(token.log_ratio(loss)), token.sg(ops.live_logp(r, s))
    p, p_anchor = jnp.exp(live), jnp.exp(live - d)
    moved = jnp.abs(p - p_anchor) if measure == "tv" else ops.bernoulli_kl(p_anchor, p)
    drop = jnp.where(a > 0, (p > p_anchor) & (moved > high), (p < p_anchor) & (moved > low))
    weight = jnp.where(drop, 0.0, jnp.minimum(jnp.exp(d), cap))
    return -weight * a * ops.live_logp(r, s), {"clipped": drop.astype(a.dtype)}


@define.surrogate
@idle.until("ratio", beta=None)
def quadratic(loss, r, s, beta: types.Positive) -> types.Array:
    """Penalize the squared log-ratio of each token: -(A logp - beta / 2 (log rho)^2).

    Source: Direct Reward Optimisation (arXiv 2405.19107). At rho = 1 the gradient is ``reinforce``'s.
    """
    return -token.advantage(r) * ops.live_logp(r, s) + 0.5 * beta * token.log_ratio(loss) ** 2


@define.surrogate(statistics=(prepare.solve_rate(),))
def implicit_negative(
    loss, r, s, prompt_weight: types.PromptWeight = "failure", floor: types.Positive = 1.0
) -> types.Array:
    """Fit right rows, and wrong ones through the policy they imply: -log R and -log((1 - p R) / (1 - p)).

    R the ratio, p the group's success rate clamped to [0.02, 0.98]. ``floor`` bounds the second argument from below,
    straight-through: its gradient stays. Source: NFT (arXiv 2505.18116, eq. 8-10).
    """
    d, p = token.log_ratio(loss), jnp.clip(r.extra["solve_rate"], 0.02, 0.98)[:, None]
    implied = (1.0 - p * jnp.exp(d)) / (1.0 - p)
    # exactly floor, also where implied is huge
    implied = jnp.maximum(token.sg(implied), floor) + (implied - token.sg(implied))
    weight = {"uniform": jnp.ones_like(p), "failure": 1.0 - p, "spread": jnp.sqrt((1.0 - p) / p)}[prompt_weight]
    return weight * jnp.where(trajectories.correct(r)[:, None], -d, -jnp.log(implied))


def _least(a) -> types.Needs:
    return types.Needs(
        divergence=frozenset({modules.divergence(modules.LEAST, *modules.named("least_q", a["module"]))})
    )


@define.surrogate(needs=_least)
def least_q(loss, r, s, module: tuple[str, ...] = ("q", "q_2")) -> types.Array:
    """Maximize E_{a ~ pi} min_i Q_i(s, a), differentiated through the actions; the critics are constants.

    The policy term of SAC beside ``penalty.entropy(alpha)`` (arXiv 1812.05905, eq. 7 to 9): exact where actions can be
    counted (1910.07207), and at one reparameterised action where they are numbers. It reads no advantage.

    Args:
      module: names of ``config.module``, networks with logits, which are Q.
    """
    name = modules.divergence(modules.LEAST, *module)
    return -ops.given(s.divergence.get(name), f"surrogate.least_q: the scores have no {name!r}")


def _q_needs(a) -> types.Needs:
    return types.Needs(process=True) if a["per"] == "turn" else types.Needs(log_normaliser=True)


@define.surrogate(needs=_q_needs, term="value")
def q_error(loss, r, s, per: Literal["token", "turn"] = "token") -> tuple[types.Array, types.Metrics]:
    """Regress Q of the module that is trained: (Q(s, a) - y)^2, y = extra["q_returns"], a constant.

    Of a token Q is its logit, logp + log sum exp of the logits (``advantage.q_returns`` writes y); with it
    ``penalty.nll(alpha)`` is alpha (log sum_a exp Q(s, a) - Q(s, a_t)), the conservative penalty CQL(H) of arXiv
    2006.04779, eq. 4. Of a turn it is the scalar behind its last token (``advantage.turn_q_values``,
    ``prepare.turn_ends``). Differs from ``value_error`` by what is regressed, and by having no half.

    Args:
      per: what has a Q.
    """
    q = ops.given(s.process, "q_error: the scores have no process") if per == "turn" else modules.logit(s)
    q = jnp.where(r.mask > 0, q, 0.0)
    return (q - token.sg(ops.extra(r, "q_returns"))) ** 2, {"q": q}


@define.surrogate(needs=types.Needs(value=True), term="value")
def dual_value_error(
    loss, r, s, weight: types.Fraction = 0.7, divergence: Literal["chi_square", "total_variation"] = "chi_square"
) -> types.Array:
    """Fit V to an implicit maximum of Q: (1 - weight) (V - Q) + weight f*(Q - V), Q = ``returns``, a constant.

    f* of the chi-square divergence is x + x^2 / 4, of total variation x, both for x > 0 and else 0. Source: f-DVL
    (arXiv 2302.08560); its release clips x + x^2 / 4 at 0, which is equal above -4. With total variation V is the
    quantile of Q that a share (1 - weight) / weight exceeds. Differs from ``value_error(None, expectile)`` by f*.

    Args:
      weight: lambda, above 1/2 where V is to exceed the mean of Q.
      divergence: f.
    """
    q = ops.given(r.returns, "surrogate.dual_value_error: the rollout has no returns")
    x = token.sg(q) - ops.given(s.value, "surrogate.dual_value_error: the scores have no value")
    conjugate = jnp.maximum(x, 0.0)
    if divergence == "chi_square":
        conjugate += conjugate**2 / 4
    return weight * conjugate - (1.0 - weight) * x


def _greatest(a) -> types.Needs:
    divergence = modules.divergence(ops.MODES[0], a["base"])
    return types.Needs(divergence=frozenset({divergence}))


@define.surrogate(needs=_greatest, term="value")
def dueling_error(loss, r, s, scale: types.Positive = 1.0, base: str = "base") -> tuple[types.Array, types.Metrics]:
    """Regress Q(s, a) = scale (log pi(a | s) - max log pi) + V(s): (Q - y)^2, y = extra["q_returns"]; V and y constant.

    ``advantage.dueling_q_returns`` writes y. Source: B-Coder (arXiv 2310.03173, from memory), whose policy's logits are
    the advantage. Differs from ``q_error`` by reading Q from log-probs and V from the critic.

    Args:
      scale: of the log-probs, in units of the return.
      base: the module of ``dueling_q_returns``.
    """
    name = modules.divergence(ops.MODES[0], base)
    top = ops.given(s.divergence.get(name), f"surrogate.dueling_error: the scores have no {name!r}")
    value = ops.given(r.value, "surrogate.dueling_error: the rollout has no value")
    q = jnp.where(r.mask > 0, scale * (ops.live_logp(r, s) - top) + value, 0.0)
    return (q - token.sg(ops.extra(r, "q_returns"))) ** 2, {"q": token.sg(q)}
