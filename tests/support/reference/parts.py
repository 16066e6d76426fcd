"""What the reference losses share: rows, groups, statistics and reductions, in loops over plain numbers.

A batch is a dict ``d`` of arrays; see ``tests/support/batch.py`` for its fields. Rows with ``valid`` 0 count nowhere.
Rows whose mask is 0 everywhere count in their group's statistics, and in no mean of the loss.
"""

import numpy as np

from tests.support.reference.dual import clip, exp, value


def rows(d):
    """Yield (row, its trained positions) for rows that count."""
    for i in range(len(d["reward"])):
        if d["valid"][i] > 0:
            yield i, trained(d, i)


def trained(d, i):
    """Return the positions of row i with mask 1."""
    return [t for t in range(d["mask"].shape[1]) if d["mask"][i, t] > 0]


def group(d, i):
    """Return the valid rows of row i's group, itself included."""
    return [j for j in range(len(d["reward"])) if d["group"][j] == d["group"][i] and d["valid"][j] > 0]


def total(d, i):
    """Return a row's reward and all its token rewards."""
    paid = sum(d["token_reward"][i, t] for t in trained(d, i)) if "token_reward" in d else 0.0
    return d["reward"][i] + paid


def to_go(d, i, gamma=1.0):
    """Return {t: discounted reward from t on}: token rewards where paid, the row's reward at its last token."""
    ts = trained(d, i)
    paid = {t: d["token_reward"][i, t] if "token_reward" in d else 0.0 for t in ts}
    if ts:
        paid[ts[-1]] += d["reward"][i]
    return {t: sum(gamma**k * paid[s] for k, s in enumerate(ts[n:])) for n, t in enumerate(ts)}


def centred(d):
    """Return {i: reward minus the group's mean}."""
    return {i: d["reward"][i] - np.mean([d["reward"][j] for j in group(d, i)]) for i, _ in rows(d)}


def std(values, ddof=1):
    """Return the standard deviation; 0 for a single value."""
    return float(np.std(values, ddof=ddof)) if len(values) > ddof else 0.0


def zscore(d, epsilon=1e-6, ddof=1):
    """Return {i: (reward - mean) / (std + epsilon)} over the group."""
    spread = {i: std([d["reward"][j] for j in group(d, i)], ddof) for i, _ in rows(d)}
    return {i: a / (spread[i] + epsilon) for i, a in centred(d).items()}


def leave_one_out(d):
    """Return {i: reward minus the mean of the group's other rows by the same agent}; 0 without others."""
    out = {}
    for i, _ in rows(d):
        others = [d["reward"][j] for j in group(d, i) if j != i and d["agent"][j] == d["agent"][i]]
        out[i] = d["reward"][i] - np.mean(others) if others else 0.0
    return out


def whiten(d, a, epsilon=1e-8):
    """Standardise {(i, t): A} over all tokens: (A - mean) / sqrt(var + epsilon), var with ddof 1."""
    mean, deviation = np.mean(list(a.values())), std(list(a.values()))
    return {k: (v - mean) / np.sqrt(deviation**2 + epsilon) for k, v in a.items()}


def spread_out(d, a):
    """Turn {i: A} into {(i, t): A}."""
    return {(i, t): a[i] for i, ts in rows(d) for t in ts}


def ratio(d, i, t, anchor="proximal"):
    """Return rho_t = exp(logp - anchor), a Dual."""
    return exp(d["logp"][i, t] - d[anchor][i, t])


def clipped(rho, a, low, high):
    """Return PPO's clipped loss of one token."""
    return max(-a * rho, -a * clip(rho, 1 - low, 1 + high))


def k1(d, i, t):
    """Return logp - ref."""
    return d["logp"][i, t] - d["ref"][i, t]


def k2(d, i, t):
    """Return (logp - ref)^2 / 2."""
    return 0.5 * k1(d, i, t) ** 2


def k3(d, i, t):
    """Return exp(-d) - 1 + d, d = logp - ref."""
    x = -k1(d, i, t)
    return exp(x) - x - 1.0


def mean(values):
    """Return the mean of Duals or numbers; 0.0 of nothing."""
    values = list(values)
    return sum(values, 0.0) * (1.0 / len(values)) if values else 0.0


def token_mean(d, term):
    """Average term(i, t) over all trained tokens."""
    return mean(term(i, t) for i, ts in rows(d) for t in ts)


def row_mean(d, term):
    """Average over rows with a trained token of the row's token mean."""
    return mean(mean(term(i, t) for t in ts) for i, ts in rows(d) if ts)


def row_sum_mean(d, term):
    """Average over rows with a trained token of the row's token sum."""
    return mean(sum((term(i, t) for t in ts), 0.0) for i, ts in rows(d) if ts)


def gae(d, gamma, lam):
    """Return {(i, t): A} by the definition: a sum over the later deltas of the row's own tokens."""
    out = {}
    for i, ts in rows(d):
        paid = to_go(d, i, 0.0)
        v = [value(d["value"][i, t]) for t in ts] + [0.0]
        delta = [paid[t] + gamma * v[n + 1] - v[n] for n, t in enumerate(ts)]
        for n, t in enumerate(ts):
            out[i, t] = sum((gamma * lam) ** (k - n) * delta[k] for k in range(n, len(ts)))
    return out
