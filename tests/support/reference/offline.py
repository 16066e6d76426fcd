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
