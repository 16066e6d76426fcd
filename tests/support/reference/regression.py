"""Reference losses of the recipes that fit a target, written from the papers' formulas in plain loops."""

import math

import numpy as np

from tests.support.reference import parts
from tests.support.reference.dual import clip, exp, log, sigmoid, value


def _delta(d, i, anchor="proximal"):
    """Return the row's log-ratio: sum_t (logp - anchor), a Dual."""
    return sum((d["logp"][i, t] - d[anchor][i, t] for t in parts.trained(d, i)), 0.0)


def _per_row(d, term):
    """Average term(i, trained positions) over rows with a trained token."""
    return parts.mean(term(i, ts) for i, ts in parts.rows(d) if ts)


def _pairs(d, reward=None):
    """Return (best, worst) of each group among its rows with a trained token; none where their rewards are equal."""
    reward = {i: parts.total(d, i) for i, _ in parts.rows(d)} if reward is None else reward
    out = []
    for g in dict.fromkeys(d["group"].tolist()):
        members = [i for i, ts in parts.rows(d) if ts and d["group"][i] == g]
        if not members:
            continue
        best, worst = members[0], members[0]
        for i in members:  # the first row stays among equals
            best = i if reward[i] > reward[best] else best
            worst = i if reward[i] < reward[worst] else worst
        if reward[best] > reward[worst]:
            out.append((best, worst))
    return out


def kimi_k15(d, tau=0.1):
    """(r - mean r - tau Delta)^2, averaged over rows. 2501.12599."""
    a = parts.centred(d)
    return _per_row(d, lambda i, ts: (a[i] - tau * _delta(d, i)) ** 2)


def pmd_mean(d, tau=0.01):
    """Return tau / 2 (A / tau - Delta)^2 / |y|, A leave-one-out. OpenKimi."""
    a = parts.leave_one_out(d)
    return _per_row(d, lambda i, ts: 0.5 * tau * (a[i] / tau - _delta(d, i)) ** 2 / len(ts))


def pmd_partition(d, tau=0.01):
    """``pmd_mean`` with A = r_i - tau log mean_{j != i} exp(r_j / tau). OpenKimi."""
    a = {}
    for i, _ in parts.rows(d):
        others = [d["reward"][j] for j in parts.group(d, i) if j != i and d["agent"][j] == d["agent"][i]]
        top = max(others, default=0.0)  # taken out of the exponent, so that a small tau does not overflow
        total = sum(math.exp((r - top) / tau) for r in others)
        a[i] = d["reward"][i] - top - tau * math.log(total / len(others)) if others else 0.0
    return _per_row(d, lambda i, ts: 0.5 * tau * (a[i] / tau - _delta(d, i)) ** 2 / len(ts))


def a_star_po(d, beta=1e-3):
    """(beta sum log(pi / ref) - (r - V*))^2. 2505.20686."""
    v = d["parts"]["optimal_value"]
    return _per_row(d, lambda i, ts: (beta * _delta(d, i, "ref") - (d["reward"][i] - v[i])) ** 2)


def direct_reward_optimisation(d, beta=0.5):
    """-(A logp - beta / 2 (logp - proximal)^2), token mean, A = r - mean r. 2405.19107."""
    a = parts.centred(d)

    def term(i, t):
        x = d["logp"][i, t]
        return -(a[i] * x - 0.5 * beta * (x - d["proximal"][i, t]) ** 2)

    return parts.token_mean(d, term)


def gvpo(d, beta=0.1):
    """(beta (Delta_i - mean Delta) - (r_i - mean r))^2 / 2, times G / (G - 1), averaged over rows. 2504.19599.

    G and mean Delta are of the group's rows with a trained token; mean r of all its valid rows.
    """
    a = parts.centred(d)

    def term(i, ts):
        members = [j for j in parts.group(d, i) if parts.trained(d, j)]
        if len(members) == 1:
            return 0.0
        centred = _delta(d, i) - parts.mean(_delta(d, j) for j in members)
        return 0.5 * (beta * centred - a[i]) ** 2 * (len(members) / (len(members) - 1))

    return _per_row(d, term)


def flow_rl(d, beta=15.0, cap=10.0):
    """Return w (log Z + mean logp - beta A - mean ref)^2, w = min(exp Delta, cap), A z-scored. 2509.15207."""
    a = parts.zscore(d)

    def term(i, ts):
        w = min(math.exp(value(_delta(d, i))), cap)
        log_z = float(d["value"][i, ts[0]])
        gap = parts.mean(d["logp"][i, t] for t in ts) - parts.mean(d["ref"][i, t] for t in ts)
        return w * (gap + log_z - beta * a[i]) ** 2

    return _per_row(d, term)


def flow_rl_critic(d, beta=15.0):
    """Return (log Z - target)^2 / 2 at the first token, target = beta A + mean ref - mean logp at sampling."""
    a = parts.zscore(d)

    def term(i, ts):
        target = beta * a[i] + np.mean([d["ref"][i, t] - d["raw"][i, t] for t in ts])
        return 0.5 * (d["live_value"][i, ts[0]] - target) ** 2

    return _per_row(d, term)


def nft(d, floor=1.0, length=1000.0):
    """Right: -log R; wrong: -log((1 - p R) / (1 - p)) floored straight-through; times 1 - p. 2505.18116.

    Groups that are all right or all wrong are dropped; the tokens' sum is divided by 1000.
    """
    loss = 0.0
    for i, ts in parts.rows(d):
        right = [d["reward"][j] > 0 for j in parts.group(d, i)]
        if all(right) or not any(right):
            continue
        p = min(max(sum(right) / len(right), 0.02), 0.98)
        for t in ts:
            ratio = exp(min(d["logp"][i, t] - d["proximal"][i, t], 10.0))
            if d["reward"][i] > 0:
                loss = loss - (1 - p) * log(ratio)
                continue
            implied = (1.0 - p * ratio) / (1 - p)
            # the value is the floored one, the slope that of the unfloored
            floored = implied + (max(value(implied), floor) - value(implied))
            loss = loss - (1 - p) * log(floored)
    return loss * (1.0 / length)


def _better_than_prompt(d):
    """Return {i: relu(R - V(x))}."""
    return {i: max(d["reward"][i] - d["parts"]["prompt_value"][i], 0.0) for i, _ in parts.rows(d)}


def a_lol(d, low=0.9, high=0.9):
    """-relu(R - V) sg(clip(prod pi / ref, 1 - low, 1 + high)) sum logp. 2305.14718."""
    a = _better_than_prompt(d)

    def term(i, ts):
        weight = clip(math.exp(value(_delta(d, i, "ref"))), 1 - low, 1 + high)
        return -a[i] * weight * sum((d["logp"][i, t] for t in ts), 0.0)

    return _per_row(d, term)


def a_lol_token(d, low=0.9, high=0.9):
    """-relu(R - V) sum_t sg(clip(pi_t / ref_t, 1 - low, 1 + high)) logp_t. 2305.14718."""
    a = _better_than_prompt(d)

    def term(i, t):
        weight = clip(value(parts.ratio(d, i, t, "ref")), 1 - low, 1 + high)
        return -a[i] * weight * d["logp"][i, t]

    return parts.row_sum_mean(d, term)


def a_lol_reference_free(d):
    """-relu(R - V) sum logp. 2305.14718."""
    a = _better_than_prompt(d)
    return parts.row_sum_mean(d, lambda i, t: -a[i] * d["logp"][i, t])


def filtered_cloning(d, threshold=0.0):
    """-1[R > threshold] logp, averaged over all tokens."""
    return parts.token_mean(d, lambda i, t: -float(parts.total(d, i) > threshold) * d["logp"][i, t])


def _sigmoid_loss(x, smoothing=0.0):
    """-(1 - e) log sigmoid(x) - e log sigmoid(-x)."""
    return -(1 - smoothing) * log(sigmoid(x)) - smoothing * log(sigmoid(-x))


def _margin(d, best, worst):
    """Return h: sum log(pi / ref) of the best row less that of the worst."""
    return _delta(d, best, "ref") - _delta(d, worst, "ref")


def dpo(d, beta=0.1, smoothing=0.0):
    """-log sigmoid(beta h). 2305.18290."""
    return parts.mean(_sigmoid_loss(beta * _margin(d, *pair), smoothing) for pair in _pairs(d))


def spin(d, beta=0.1):
    """-log sigmoid(beta h), h of a demonstration less that of a sample. 2401.01335."""
    pairs = []
    for g in dict.fromkeys(d["group"].tolist()):
        members = [i for i, ts in parts.rows(d) if ts and d["group"][i] == g]
        kinds = [[i for i in members if d["on_policy"][i] == own] for own in (0, 1)]
        pairs += [(kinds[0][0], kinds[1][0])] if all(kinds) else []
    return parts.mean(_sigmoid_loss(beta * _margin(d, *pair)) for pair in pairs)


def dpo_length_normalised(d, beta=5.0, smoothing=0.0):
    """-log sigmoid(beta h), h the difference of the rows' token means. 2411.15124."""

    def per_token(i):
        return _delta(d, i, "ref") / len(parts.trained(d, i))

    return parts.mean(_sigmoid_loss(beta * (per_token(b) - per_token(w)), smoothing) for b, w in _pairs(d))


def ipo(d, beta=0.1):
    """(h - 1 / (2 beta))^2. 2310.12036."""
    return parts.mean((_margin(d, *pair) - 1 / (2 * beta)) ** 2 for pair in _pairs(d))


def step_apo(d, beta=0.1):
    """-log sigmoid(beta h - V(s'_best) + V(s'_worst)). CPL."""
    v = d["parts"]["next_value"]
    return parts.mean(_sigmoid_loss(beta * _margin(d, b, w) - float(v[b]) + float(v[w])) for b, w in _pairs(d))


def p3o(d, pairs, kl=0.05, low=0.2, high=0.2):
    """Both rows of a pair by PPO's clip of their product ratios, A = +-(r1 - r2) / 2. 2310.00212, V1.

    The rewards are charged kl sum(raw - ref). ``pairs`` [(row, row)] are the two rows drawn of each group.
    """
    reward = {i: parts.total(d, i) - kl * sum(d["raw"][i, t] - d["ref"][i, t] for t in ts) for i, ts in parts.rows(d)}

    def term(one, two):
        a = float(reward[one] - reward[two]) / 2
        return sum(parts.clipped(exp(_delta(d, i)), x, low, high) for i, x in ((one, a), (two, -a)))

    return parts.mean(term(*pair) for pair in pairs)
