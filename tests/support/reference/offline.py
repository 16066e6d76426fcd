"""Reference losses of the recipes of stored rows, written from the papers' formulas in plain loops."""

import math

from tests.support.reference import parts
from tests.support.reference.dual import exp, log, sigmoid, value
from tests.support.reference.regression import _pairs


def _delta(d, i):
    return sum((d["logp"][i, t] - d["ref"][i, t] for t in parts.trained(d, i)), 0.0)


def _mean_logp(d, i):
    ts = parts.trained(d, i)
    return sum((d["logp"][i, t] for t in ts), 0.0) * (1.0 / len(ts))


def kto(d, beta=0.1, desirable=1.0, undesirable=1.0, threshold=0.0):
    """1 - sigmoid(+-beta (Delta - z)), z = max(0, mean Delta of the other kind). 2402.01306."""
    good = {i: parts.total(d, i) > threshold for i, ts in parts.rows(d) if ts}

    def shift(i):
        others = [value(_delta(d, j)) for j in good if good[j] != good[i]]
        return max(0.0, sum(others) / len(others)) if others else 0.0

    def term(i):
        gap = beta * (_delta(d, i) - shift(i))
        return desirable * (1.0 - sigmoid(gap)) if good[i] else undesirable * (1.0 - sigmoid(-gap))

    return parts.mean(term(i) for i in good)


def simpo(d, beta=2.0, margin=1.0):
    """-log sigmoid(beta (m_w - m_l) - margin), m the mean logp. 2405.14734."""
    return parts.mean(-log(sigmoid(beta * (_mean_logp(d, w) - _mean_logp(d, x)) - margin)) for w, x in _pairs(d))


def orpo(d, coefficient=0.1):
    """-m_w - coefficient log sigmoid(log odds_w - log odds_l). 2403.07691."""

    def odds(i):
        p = exp(_mean_logp(d, i))
        return p / (1.0 - p)

    def term(w, x):
        return -_mean_logp(d, w) - coefficient * log(sigmoid(log(odds(w) / odds(x))))

    return parts.mean(term(*pair) for pair in _pairs(d))


def awr(d, beta=1.0, cap=20.0):
    """-min(exp((r - mean) / beta), cap) logp, averaged over tokens. 1910.00177."""
    a = parts.centred(d)
    return parts.token_mean(d, lambda i, t: -min(math.exp(a[i] / beta), cap) * d["logp"][i, t])


def awac(d, beta=1.0):
    """-N softmax((r - mean) / beta) times the row's mean logp, averaged over rows. 2006.09359."""
    a = {i: x for i, x in parts.centred(d).items() if parts.trained(d, i)}
    total = sum(math.exp(x / beta) for x in a.values())
    return parts.mean(-len(a) * math.exp(a[i] / beta) / total * _mean_logp(d, i) for i in a)


# --- state-action values -------------------------------------------------------------------------


def least_q(d):
    """Return {(i, t): the lower of two critics' Q of the token}."""
    return {(i, t): min(d["q_target"][i, t], d["q_2_target"][i, t]) for i, ts in parts.rows(d) for t in ts}


def q_target(d, gamma=0.99, lam=0.0, steps=1):
    """Return {(i, t): sum_n (1 - lam) lam^(n-1) G^(n)}, G^(n) n rewards and then V; n counts from ``steps``."""
    out = {}
    for i, ts in parts.rows(d):
        paid = [parts.to_go(d, i, 0.0)[t] for t in ts]

        def bootstrapped(n, k, i=i, ts=ts, paid=paid):
            end = min(n + k, len(ts))
            rest = gamma**k * value(d["value"][i, ts[n + k]]) if n + k < len(ts) else 0.0
            return sum(gamma ** (m - n) * paid[m] for m in range(n, end)) + rest

        for n, t in enumerate(ts):
            left = len(ts) - n  # from here on G^(k) is the whole return
            out[i, t] = sum((1 - lam) * lam ** (k - 1) * bootstrapped(n, k + steps - 1) for k in range(1, left))
            out[i, t] += lam ** (left - 1) * bootstrapped(n, left + steps - 1)
    return out


def iql(d, beta=1 / 3, cap=100.0, gamma=0.99, lam=0.0, steps=1):
    """-min(exp((Q - V) / beta), cap) logp, averaged over tokens. 2110.06169, eq. 7."""
    del gamma, lam, steps  # only the fit of Q reads them
    q = least_q(d)

    def term(i, t):
        return -min(math.exp((q[i, t] - value(d["value"][i, t])) / beta), cap) * d["logp"][i, t]

    return parts.token_mean(d, term)


def iql_critic(d, expectile=0.7):
    """|tau - [Q < V]| (Q - V)^2 of the lower target Q. 2110.06169, eq. 5."""
    q = least_q(d)

    def term(i, t):
        v = d["live_value"][i, t]
        return (expectile if q[i, t] >= value(v) else 1 - expectile) * (v - q[i, t]) ** 2.0

    return parts.token_mean(d, term)


def f_dvl(d, weight=0.7, beta=1 / 3, cap=100.0, gamma=0.99, divergence="chi_square"):
    """As iql."""
    del weight, gamma, divergence  # only the fits of the critics read them
    return iql(d, beta, cap)


def f_dvl_critic(d, weight=0.7, divergence="chi_square"):
    """(1 - lambda) V + lambda f*(Q - V), up to a constant; f* x + x^2 / 4, or x, above 0. 2302.08560."""
    q = least_q(d)

    def term(i, t):
        x = q[i, t] - d["live_value"][i, t]
        conjugate = (x + x**2.0 / 4 if divergence == "chi_square" else x) if value(x) > 0 else 0.0
        return weight * conjugate - (1 - weight) * x

    return parts.token_mean(d, term)


def f_dvl_model(d, gamma=0.99):
    return iql_model(d, gamma)


def q_critics(d, expectile=0.7, alpha=0.0):
    del alpha
    return iql_critic(d, expectile)


def q_critics_model(d, alpha=0.0):
    return iql_model(d, alpha=alpha)


def iql_model(d, gamma=0.99, lam=0.0, steps=1, alpha=0.0):
    """(Q - y)^2 + alpha (log sum exp Q - Q), Q = logp + normaliser. 2110.06169, eq. 6; 2006.04779, eq. 4."""
    y = q_target(d, gamma, lam, steps)

    def term(i, t):
        q = d["logp"][i, t] + d["normaliser"][i, t]
        return (q - y[i, t]) ** 2.0 + alpha * (d["normaliser"][i, t] - q)

    return parts.token_mean(d, term)


def ilql(d, beta=4.0):
    """KL(pi || ref exp(beta Q)): KL(pi || ref) + beta mean_k KL(pi || exp Q_k) + beta H. 2206.11871.

    The batch's exact divergences are multiples of d["js"]: 2 from the reference, 3 and 4 from both Q.
    """
    return parts.token_mean(d, lambda i, t: (2 + beta * 3.5) * d["js"][i, t] + beta * d["entropy"][i, t])


def ilql_critic(d):
    return iql_critic(d)


def ilql_model(d):
    return iql_model(d, alpha=0.01)


def dueling(d, scale, gamma, lam):
    """Return y of Q(s, b') = V + scale (log pi(b') - max log pi); the batch has these two as prm and stepwise."""
    return q_target({**d, "value": d["value"] + scale * (d["prm"] - d["stepwise"])}, gamma, lam)


def b_coder(d, scale=1.0, gamma=1.0, lam=0.0):
    """(scale (logp - max logp) + V - y)^2; the live max logp of the batch is 7 d["js"]. 2310.03173."""
    y = dueling(d, scale, gamma, lam)

    def term(i, t):
        return (scale * (d["logp"][i, t] - 7 * d["js"][i, t]) + d["value"][i, t] - y[i, t]) ** 2.0

    return parts.token_mean(d, term)


def b_coder_critic(d, scale=1.0, gamma=1.0, lam=0.0):
    """(V - y + scale (logp - max logp))^2 / 2 of the policy before the update."""
    y = dueling(d, scale, gamma, lam)

    def term(i, t):
        return 0.5 * (d["live_value"][i, t] - y[i, t] + scale * (d["raw"][i, t] - d["stepwise"][i, t])) ** 2.0

    return parts.token_mean(d, term)


def b_coder_values(d, scale=1.0, gamma=1.0, lam=0.0):
    return b_coder_critic(d, scale, gamma, lam)
