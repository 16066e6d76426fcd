"""Penalties: add named terms beside the policy term.

``KL.md`` in this folder has the bias and the variance of every KL here, of its value and of its gradient. A coefficient
may be a number, a schedule or an adaptive controller; the reference may be frozen, or updated by ``transforms.after``.
``only`` names the rows or tokens that are charged (``transforms.where``); ``reduce`` None is the common reduction.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, modules, ops, ratio
from rljax.transforms.frame import idle

Reduction = types.PrepareTransform | None
Correction = Literal["on_policy", "proximal", "behaviour"]


def live_logp(s: types.Scores) -> types.Array:
    """Return the live log-probs of the unfiltered policy."""
    return ops.given(s.logp if s.raw_logp is None else s.raw_logp, "penalty: the scores have no logp")


def log_ratio(r: types.Rollout, s: types.Scores, against: types.Anchor) -> types.Array:
    """Return log pi - log of the other policy, 0 on masked tokens; unfiltered against the reference."""
    if against == "reference":
        ops.given(r.ref_logp, "penalty: the rollout has no ref_logp")
    return ratio.difference(r, s, against)


UNTIL = {"reference": ("steps", "reference"), "proximal": ("steps",), "behaviour": ("steps", "sampler")}


@define.penalty(needs=lambda a: ratio.anchor_needs(a["against"], a["correction"]))
@idle.until(lambda a: None if a["estimator"] == "k1" else UNTIL[a["against"]], coefficient=None)
def kl(
    loss,
    r,
    s,
    estimator: types.Estimator = "k3",
    coefficient: types.NonNegative = 1e-3,
    reduce: Reduction = None,
    against: Literal["reference", "behaviour", "proximal"] = "reference",
    correction: Correction | None = None,
    only: types.Predicate | None = None,
) -> tuple[types.Array, types.Array] | types.Array:
    """Penalize divergence, estimated on the sampled tokens: coefficient k(d), d = logp - ref_logp, unfiltered.

    ``ops.kl_estimate`` has the estimators; in the loss, k1 has no expected gradient, k2 and the straight-through "k1+"
    and "k3+" the gradient of reverse KL, k3 of forward KL. ``correction`` multiplies by a differentiated ratio: to the
    policy itself ("on_policy", value 1), to the proximal one or to the sampler; then k1 and k3, and no others, have
    the gradient of reverse KL (DeepSeek-V3.2, arXiv 2512.02556, eq. 7). Source: GRPO (arXiv 2402.03300, eq. 4) for k3.

    Args:
      estimator: a name of ``ops.kl_estimate``.
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      reduce: reduction of this term; None: the common one.
      against: the policy that the divergence is from.
      correction: the anchor of the ratio that multiplies the estimate; None: no ratio.
      only: the predicate of the rows or tokens that are charged; None: all.
    """
    value = ops.kl_estimate(estimator, log_ratio(r, s, against))
    if correction is None:
        return value
    live = jnp.where(r.mask > 0, live_logp(s), 0.0)
    d = live - jax.lax.stop_gradient(live) if correction == "on_policy" else log_ratio(r, s, correction)
    return value * jnp.exp(d), value


def _alpha_idle(a: Mapping[str, Any]) -> tuple[str, ...] | None:
    return None if a["divergence"] == "alpha" else ("divergence='alpha'",)


def _exact(a: Mapping[str, Any]) -> str:
    return f"alpha_{a['alpha']:g}" if a["divergence"] == "alpha" else a["divergence"]


@define.penalty(name="kl", needs=lambda a: types.Needs(divergence=frozenset({_exact(a)})))
@idle.until("steps", "reference", coefficient=None)
@idle.until(_alpha_idle, alpha=None)
def exact_kl(
    loss,
    r,
    s,
    divergence: Literal["reverse_kl", "forward_kl", "js", "hellinger", "total_variation", "alpha"] = "reverse_kl",
    coefficient: types.NonNegative = 1e-3,
    alpha: float = 0.5,
    reduce: Reduction = None,
    only: types.Predicate | None = None,
) -> types.Array:
    """Penalize an exact divergence from the reference, summed over the vocabulary at each state: no variance.

    reverse_kl = sum pi log(pi / ref), forward_kl = sum ref log(ref / pi), js their mean about the mixture, hellinger =
    1 - sum sqrt(pi ref), total_variation = sum |pi - ref| / 2, alpha = (1 - sum pi^a ref^(1-a)) / (a (1 - a)), which
    goes to reverse KL as a goes to 1 and to forward KL as a goes to 0. The metric is also called ``kl``.

    Args:
      divergence: the divergence.
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      alpha: a of the alpha divergence; read only there.
      reduce: reduction of this term; None: the common one.
      only: the predicate of the rows or tokens that are charged; None: all.
    """
    name = _exact({"divergence": divergence, "alpha": alpha})
    return ops.given(s.divergence.get(name), f"penalty.exact_kl: the scores have no divergence {name!r}")


def _taught(a: Mapping[str, Any]) -> str:
    name = f"js_{a['beta']:g}" if a["divergence"] == "js" and a["beta"] != 0.5 else a["divergence"]
    return modules.divergence(name, *a["teachers"], sampling=a["prompt"] == "sampling", top=a["top"])


@define.penalty(name="distillation", needs=lambda a: modules.divergence_needs(_taught(a)))
@idle.until(lambda a: None if a["teachers"] or a["prompt"] != "training" else UNTIL["reference"], coefficient=None)
@idle.until(lambda a: None if a["divergence"] == "js" else ("divergence='js'",), beta=None)
def distillation(
    loss,
    r,
    s,
    teachers: tuple[str, ...] = (),
    divergence: Literal["reverse_kl", "forward_kl", "js"] = "reverse_kl",
    coefficient: types.NonNegative = 1.0,
    beta: Annotated[float, types.Range(1e-6, 1 - 1e-6)] = 0.5,
    prompt: Literal["training", "sampling"] = "training",
    top: Annotated[int, types.Range(0, 1e9)] = 0,
    reduce: Reduction = None,
    only: types.Predicate | None = None,
) -> types.Array:
    """Pull the policy to a teacher, token by token: an exact divergence over the vocabulary, differentiated.

    With p the policy and q the teacher, at one temperature: reverse_kl = KL(p || q), forward_kl = KL(q || p), js = beta
    KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p. Small beta weighs as forward KL, beta near 1 as
    reverse KL. q is the mean of the teachers' distributions. Source: GKD (arXiv 2306.13649, eq. 1 and 2). The expected
    gradient of ``advantage.distillation`` is the gradient of reverse_kl; here it has no variance given the states. A
    teacher that reads the sampling prompt, of a source that trains under another, is context distillation (arXiv
    2209.15189).

    Args:
      teachers: names of ``config.module``; none: the reference.
      divergence: the divergence.
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      beta: weight of the teacher in the mixture; read only for js.
      prompt: what the teacher reads: the prompt that rows are trained under, or that they were sampled under.
      top: number k of the teacher's most probable tokens, stored once for a rollout; all others count as one token, so
        that it is at most the divergence over the vocabulary, which 0 is.
      reduce: reduction of this term; None: the common one.
      only: the predicate of the rows or tokens that are charged; None: all.
    """
    name = _taught({"teachers": teachers, "divergence": divergence, "beta": beta, "prompt": prompt, "top": top})
    return ops.given(s.divergence.get(name), f"penalty.distillation: the scores have no divergence {name!r}")


@define.penalty(needs=ratio.anchor_needs("reference"))
@idle.until("steps", "reference", coefficient=None)
@idle.until(_alpha_idle, alpha=None)
def f_divergence(
    loss,
    r,
    s,
    divergence: Literal["forward_kl", "js", "alpha"] = "forward_kl",
    coefficient: types.NonNegative = 0.02,
    alpha: float = 0.2,
    limit: types.Positive = 10.0,
    reduce: Reduction = None,
    only: types.Predicate | None = None,
) -> types.Array:
    """Penalize f(u), u = pi / ref on rows the reference wrote: a divergence that preserves what the reference knows.

    forward_kl: u - 1 - log u; js: u log u - (u + 1) log((u + 1) / 2); alpha: (u^(1-a) - (1 - a) u - a) / (a (a - 1)).
    f(1) = 0; at a = 0 and 1 it is the limit, u log u - u + 1 and forward_kl. log u is clamped to [-limit, limit].
    Source: DPH-RL (arXiv 2509.07430), whose release has no such bound.

    Args:
      divergence: the function f.
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      alpha: a of the alpha divergence; read only there.
      limit: bound of |log u|.
      reduce: reduction of this term; None: the common one.
      only: the predicate of the rows or tokens that are charged; None: all.
    """
    log_u = jnp.clip(log_ratio(r, s, "reference"), -limit, limit)
    u = jnp.exp(log_u)
    if divergence == "forward_kl" or (divergence == "alpha" and alpha == 1):
        return jnp.expm1(log_u) - log_u
    if divergence == "js":
        return u * log_u - (u + 1.0) * jnp.log(0.5 * (u + 1.0))
    if alpha == 0:
        return u * log_u - u + 1.0
    return (jnp.exp((1.0 - alpha) * log_u) - (1.0 - alpha) * u - alpha) / (alpha * (alpha - 1.0))


@define.penalty(name="live_entropy", needs=types.Needs(entropy=True))
def entropy(
    loss, r, s, coefficient: types.Number = 1e-3, reduce: Reduction = None, only: types.Predicate | None = None
) -> tuple[types.Array, types.Array]:
    """Reward entropy: -coefficient H, the full-vocabulary entropy in nats.

    Args:
      coefficient: factor of the term; a number, a schedule or an adaptive coefficient.
      reduce: reduction of this term; None: the common one.
      only: the predicate of the rows or tokens that are charged; None: all.
    """
    value = ops.given(s.entropy, "penalty.entropy: the scores have no entropy")
    return -value, value


def __getattr__(name: str) -> Any:
    return transforms.piece("penalty", name)
