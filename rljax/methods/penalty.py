"""Penalties: named terms beside the policy term."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.methods import weight
from rljax.transforms import define, modules, ops, penalty, ratio
from rljax.transforms.frame import idle


@define.penalty(name="kl", needs=ratio.anchor_needs("reference", "proximal"))
@idle.until(lambda a: None if a["estimator"] == "k1" else penalty.UNTIL["reference"], coefficient=None)
def convex_kl(
    loss,
    r,
    s,
    estimator: types.Estimator = "k3",
    coefficient: types.NonNegative = 1e-3,
    share: types.Fraction = 1.0,
    reduce: penalty.Reduction = None,
) -> tuple[types.Array, types.Array]:
    """Penalize share KL(pi || ref) + (1 - share) KL(pi || proximal). ``share`` 1 is ``kl``.

    After KL-Convex of ReMix (arXiv 2507.06892), which is ``previous_convex_kl``.

    Args:
      estimator: a name of ``ops.kl_estimate``.
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      share: share of the reference.
      reduce: reduction of this term; None: the common one.
    """
    base, recent = (ops.kl_estimate(estimator, penalty.log_ratio(r, s, of)) for of in ("reference", "proximal"))
    return share * base + (1.0 - share) * recent, base


def _most_covariant(a: Mapping[str, Any]) -> tuple[types.PrepareTransform, ...]:
    def pick(r: types.Rollout, s: types.Scores) -> types.Array:
        covariance, count = weight.covariances(r, s)
        order = jnp.argsort(jnp.argsort(-jnp.where(r.mask > 0, covariance, -jnp.inf).reshape(-1)))
        chosen = order.reshape(r.mask.shape) < weight.at_least_one(a["share"] * count)
        return jnp.where(chosen, r.mask, 0.0)

    return (define.statistic("charged", pick, types.Needs(live=True)),)


@define.penalty(needs=ratio.anchor_needs("proximal"), statistics=_most_covariant)
@idle.until("steps", share=None, coefficient=None)
def covariance_kl(
    loss, r, s, share: types.Fraction = 2e-4, coefficient: types.NonNegative = 1.0, reduce: penalty.Reduction = None
) -> tuple[types.Array, types.Array]:
    """Charge |logp - proximal| to the ``share`` of tokens with the highest covariance of A and logp; at least one.

    Source: KL-Cov (arXiv 2505.22617, eq. 12), beside ``surrogate.unclipped``.

    Args:
      share: share of the minibatch's tokens that is charged.
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      reduce: reduction of this term; None: the common one.
    """
    value = ops.kl_estimate("abs", penalty.log_ratio(r, s, "proximal"))
    return value * r.extra["charged"], value


@define.penalty(needs=ratio.anchor_needs("behaviour"))
@idle.until("steps", "sampler", coefficient=None)
def squared_log_ratio(
    loss, r, s, coefficient: types.NonNegative = 1e-3, reduce: penalty.Reduction = None
) -> types.Array:
    """Penalize the distance from the sampler: coefficient (logp - behaviour)^2 on all tokens (prime-rl).

    Twice ``kl("k2", against="behaviour")``.
    """
    value = penalty.log_ratio(r, s, "behaviour") ** 2
    return value


def _covariant_weight(a: Mapping[str, Any]) -> tuple[types.PrepareTransform, ...]:
    def weigh(r: types.Rollout, s: types.Scores, tau, cap) -> types.Array:
        covariance, count = weight.covariances(r, s)
        total = jax.nn.logsumexp(covariance / tau, where=r.mask > 0)
        return jnp.where(r.mask > 0, jnp.minimum(count * jnp.exp(covariance / tau - total), cap), 0.0)

    return (define.statistic("protected", lambda r, s: weigh(r, s, a["tau"], a["cap"]), types.Needs(live=True)),)


@define.penalty(name="live_entropy", needs=types.Needs(entropy=True), statistics=_covariant_weight)
def covariant_entropy(
    loss,
    r,
    s,
    coefficient: types.Number = 0.05,
    tau: types.Positive = 1.0,
    cap: types.Cap = 100.0,
    reduce: penalty.Reduction = None,
) -> tuple[types.Array, types.Array]:
    """Reward entropy where confidence goes with success: -coefficient N min(softmax(cov / tau), cap / N) H.

    cov = (A - mean A)(logp - mean logp) over the N tokens of the minibatch, a constant. The weights are relative to
    equal ones: tau to infinity is ``entropy``. Source: TEA-RL of Light-IF (arXiv 2508.03178), from an implementation of
    others, whose numbers are the defaults. Differs from ``covariance_kl`` by what is charged, and by soft weights.

    Args:
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      tau: temperature of the softmax, in the unit of A times nats.
      cap: the largest weight of a token, where equal weights are 1.
      reduce: reduction of this term; None: the common one.
    """
    value = ops.given(s.entropy, "penalty.covariant_entropy: the scores have no entropy")
    return -r.extra["protected"] * value, value


@define.penalty
def nll(
    loss,
    r,
    s,
    coefficient: types.NonNegative = 0.1,
    only: types.Predicate | None = None,
    reduce: penalty.Reduction = None,
) -> types.Array:
    """Fit some rows beside the policy term: -coefficient logp, as VAPO does its right ones (arXiv 2504.05118).

    Args:
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      only: the predicate of the rows or tokens that are charged; None: all.
      reduce: reduction of this term; None: the common one.
    """
    live = ops.given(s.logp, "penalty.nll: the scores have no logp")
    value = -jnp.where(r.mask > 0, live, 0.0)
    return value


def _on_hints(a: Mapping[str, Any]) -> tuple[types.PrepareTransform, ...]:

    def weigh(r: types.Rollout, s: types.Scores | None, state: types.State, key: types.Key):
        valid = ops.valid_rows(r)
        share = ops.extra(r, "head") * (valid / jnp.maximum(jnp.sum(valid), 1.0))[:, None]
        return r.replace(coefficient={**r.coefficient, "hint_nll": share}), state

    return (types.PrepareTransform(weigh),)


@define.penalty(needs=define.reads(extra=("head",)), statistics=_on_hints)
def hint_nll(loss, r, s, coefficient: types.NonNegative = 1e-3) -> tuple[types.Array, types.Array]:
    """Fit the tokens that a completion was given: -coefficient sum of logp over its head, averaged over valid rows.

    extra["head"] [B, T] is 1 on these tokens, which no other term touches. Source: UFT (arXiv 2505.16984), whose KL
    has the same coefficient. Differs from ``nll`` by the tokens.

    Args:
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
    """
    live = ops.given(s.logp, "penalty.hint_nll: the scores have no logp")
    head = ops.extra(r, "head")
    value = -jnp.where(head > 0, live, 0.0)
    mean = jnp.sum(value, axis=1, keepdims=True) / jnp.maximum(jnp.sum(head, axis=1, keepdims=True), 1.0)
    return value, mean * jnp.ones_like(value)  # no head is among the tokens that a metric averages


@define.penalty(name="kl", needs=types.Needs(reference=True, extra=frozenset({"previous_logp"})))
def previous_convex_kl(
    loss,
    r,
    s,
    estimator: types.Estimator = "k3",
    coefficient: types.NonNegative = 1e-3,
    share: types.Fraction = 1.0,
    reduce: penalty.Reduction = None,
) -> tuple[types.Array, types.Array]:
    """Penalize share KL(pi || ref) + (1 - share) KL(pi || pi_{k-1}), pi_{k-1} the policy one step before this one.

    extra["previous_logp"] [B, T] holds log pi_{k-1} of the sampled tokens, unfiltered; a run computes it. Source:
    KL-Convex of ReMix (arXiv 2507.06892). Differs from ``convex_kl`` by the second policy: there it is the one at the
    start of this update.

    Args:
      estimator: a name of ``ops.kl_estimate``.
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      share: share of the reference.
      reduce: reduction of this term; None: the common one.
    """
    base = ops.kl_estimate(estimator, penalty.log_ratio(r, s, "reference"))
    previous = jax.lax.stop_gradient(ops.extra(r, "previous_logp"))
    recent = ops.kl_estimate(estimator, jnp.where(r.mask > 0, penalty.live_logp(s) - previous, 0.0))
    return share * base + (1.0 - share) * recent, base


def _every(a: Mapping[str, Any]) -> str:
    return modules.divergence(f"{modules.EVERY}_{a['samples']}", *modules.named("conservative", a["policy"]))


@define.penalty(needs=lambda a: types.Needs(log_normaliser=True, divergence=frozenset({_every(a)})))
def conservative(
    loss,
    r,
    s,
    coefficient: types.NonNegative = 5.0,
    samples: types.Count = 10,
    policy: str = "policy",
    reduce: penalty.Reduction = None,
) -> types.Array:
    """Push Q down where it is large and up at the actions of the rows: log int exp Q(s, a) da - Q(s, a_t).

    CQL(H) (arXiv 2006.04779, eq. 4): the sum over actions that can be counted is exact, and it is then ``nll`` of the
    critic; of actions tanh(u) the integral is estimated from ``samples`` uniform ones and as many of the policy
    (appendix F), which the gradient does not enter.

    Args:
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      samples: N; not read where actions can be counted.
      policy: name of the module whose actions are drawn.
      reduce: reduction of this term; None: the common one.
    """
    name = _every({"samples": samples, "policy": policy})
    whole = ops.given(s.divergence.get(name), f"penalty.conservative: the scores have no {name!r}")
    return whole - modules.logit(s)
