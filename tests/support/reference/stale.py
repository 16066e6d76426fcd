"""Losses for stale tokens, token by token. IDs such as WT-02 are entries of the catalogue of methods.

Keywords are the settings a test may tighten until a bound binds.
"""

import numpy as np

from tests.support.reference import parts
from tests.support.reference.clipped import bernoulli_kl, importance, is_fresh, surrogate, tokens, trusted
from tests.support.reference.dual import clip, exp, value


def lag_weight(d, i, t):
    """Return exp(proximal - behaviour)."""
    return np.exp(d["proximal"][i, t] - d["behaviour"][i, t])


def weighed(d, weight, low=0.2, high=0.2):
    """Clip times weight(i, t), token mean; A the group's z-score."""
    policy = surrogate(d, parts.zscore(d), low, high)
    return parts.token_mean(d, lambda i, t: weight(i, t) * policy(i, t))


# --- the ratio in the clip, the sampler's lag in a weight ---


def areal(d, cap=5.0):
    """Clip times w = exp(proximal - behaviour), 0 above ``cap``; token mean; A the whitened z-score."""
    a = parts.whiten(d, parts.spread_out(d, parts.zscore(d)))

    def term(i, t):
        w = lag_weight(d, i, t)
        return parts.clipped(parts.ratio(d, i, t), a[i, t], 0.2, 0.2) * (w if w <= cap else 0.0)

    return parts.token_mean(d, term)


def a_3po(d, cap=5.0):
    """``areal`` on proximal = b + a (sg(logp) - b), a = (v - 1 - v_b) / (v - v_b) held to [0, 1] (RA-06)."""
    newest = max(d["version"][k] for k in tokens(d))
    proximal = d["behaviour"].copy()
    for k in tokens(d):
        age = newest - d["version"][k]
        share = min(max((age - 1) / age, 0.0), 1.0) if age > 0 else 0.0
        proximal[k] += share * (value(d["logp"][k]) - d["behaviour"][k])
    return areal({**d, "proximal": proximal}, cap)


def tis(d, cap=2.0):
    """Clip times min(w, cap)."""
    return weighed(d, lambda i, t: min(lag_weight(d, i, t), cap))


def icepop(d, bounds=(0.5, 5.0)):
    """Clip times w, 0 where w leaves the bounds."""

    def weight(i, t):
        w = lag_weight(d, i, t)
        return w if bounds[0] <= w <= bounds[1] else 0.0

    return weighed(d, weight)


def seq_mask_tis(d, bounds=(0.999, 1.002)):
    """Clip times w on rows whose geometric mean of w is within bounds, 0 on the others (WT-05)."""

    def kept(i):
        drift = np.mean([d["proximal"][i, t] - d["behaviour"][i, t] for t in parts.trained(d, i)])
        return bounds[0] <= np.exp(drift) <= bounds[1]

    return weighed(d, lambda i, t: lag_weight(d, i, t) if kept(i) else 0.0)


def m2po(d, tau=0.04):
    """Clip on what is left when the largest (behaviour - proximal)^2 are dropped until their mean is below tau."""
    square = {k: (d["behaviour"][k] - d["proximal"][k]) ** 2 for k in tokens(d)}
    left = sorted(square, key=square.get)
    while left and np.mean([square[k] for k in left]) >= tau:
        left.pop()
    return weighed(d, lambda i, t: 1.0 if (i, t) in left else 0.0)


def kpop(d, bound=2.0):
    """Clip on tokens where both Bernoulli KLs between trainer and sampler are at most ``bound`` (WT-09)."""

    def weight(i, t):
        p, q = np.exp(d["proximal"][i, t]), np.exp(d["behaviour"][i, t])
        return 0.0 if max(bernoulli_kl(p, q), bernoulli_kl(q, p)) > bound else 1.0

    return weighed(d, weight)


# --- the ratio to the sampler itself ---


def aipo(d, cap=4.0):
    """-sg(min(pi / b, cap)) A logp, token mean."""
    a = parts.zscore(d)
    return parts.token_mean(
        d, lambda i, t: importance(d, i, t, a[i], min(value(parts.ratio(d, i, t, "behaviour")), cap))
    )


def rollout_is(d, low=0.2, high=0.2):
    """-sg(pi / b) A logp where 1 - low < pi / b < 1 + high, token mean (SU-08)."""
    a = parts.zscore(d)

    def term(i, t):
        rho = value(parts.ratio(d, i, t, "behaviour"))
        return importance(d, i, t, a[i], rho if 1 - low < rho < 1 + high else 0.0)

    return parts.token_mean(d, term)


def prime_rl(d, low=0.2, high=0.2, kl_tau=1e-3, lag=8):
    """DPPO's term on fresh tokens with A = r - group mean, + kl_tau (logp - b)^2 on all tokens, token mean."""
    a = parts.centred(d)

    def term(i, t):
        policy = 0.0
        if is_fresh(d, i, t, lag) and trusted(d, i, t, a[i], low, high, "tv"):
            policy = importance(d, i, t, a[i], parts.ratio(d, i, t, "behaviour"))
        return policy + kl_tau * (d["logp"][i, t] - d["behaviour"][i, t]) ** 2

    return parts.token_mean(d, term)


def ulorl(d, entropy=0.2, probability=0.99):
    """-A exp(logp - sg(logp)), 0 on mastered tokens of right rows whose mean entropy is low (WT-14), token mean."""
    a = parts.zscore(d)

    def mastered(i, t):
        sure = np.mean([d["sampled_entropy"][i, s] for s in parts.trained(d, i)]) < entropy
        return d["reward"][i] > 0 and sure and np.exp(value(d["logp"][i, t])) >= probability

    def term(i, t):
        x = d["logp"][i, t]
        return 0.0 if mastered(i, t) else parts.clipped(exp(x - value(x)), a[i], 0.2, 0.28)

    return parts.token_mean(d, term)


def remix(d, epsilon=0.2, kl=1e-3, entropy=1e-3, base=1.0):
    """Clip of pi / b around exp(proximal - b) (SU-21), + kl (base k3(ref) + (1 - base) k3(pi_{k-1})) - entropy H."""
    a = parts.zscore(d)
    previous = {**d, "ref": d["extra"]["previous_logp"]}

    def term(i, t):
        rho, centre = parts.ratio(d, i, t, "behaviour"), lag_weight(d, i, t)
        policy = max(-a[i] * rho, -a[i] * clip(rho, centre - epsilon, centre + epsilon))
        divergence = base * parts.k3(d, i, t) + (1 - base) * parts.k3(previous, i, t)
        return policy + kl * divergence - entropy * d["entropy"][i, t]

    return parts.token_mean(d, term)
