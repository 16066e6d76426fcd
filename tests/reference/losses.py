"""The table's losses in float64 NumPy loops.

Each takes ``d``, a dict of arrays: mask, logp, proximal, ref, value, returns-free inputs [B, T]; reward,
group, valid [B]; and returns the scalar loss of the policy objective.
"""

import numpy as np


def rows(d):
    """Yield (row, its trained positions) for rows that count."""
    for i in range(len(d["reward"])):
        if d["valid"][i] > 0:
            yield i, [t for t in range(d["mask"].shape[1]) if d["mask"][i, t] > 0]


def group(d, i):
    return [j for j in range(len(d["reward"])) if d["group"][j] == d["group"][i] and d["valid"][j] > 0]


def centred(d):
    return {i: d["reward"][i] - np.mean([d["reward"][j] for j in group(d, i)]) for i, _ in rows(d)}


def zscore(d, epsilon=1e-6):
    out = {}
    for i, a in centred(d).items():
        rewards = [d["reward"][j] for j in group(d, i)]
        std = np.std(rewards, ddof=1) if len(rewards) > 1 else 0.0
        out[i] = a / (std + epsilon)
    return out


def leave_one_out(d):
    out = {}
    for i, _ in rows(d):
        others = [d["reward"][j] for j in group(d, i) if j != i]
        out[i] = d["reward"][i] - np.mean(others) if others else 0.0
    return out


def clip_term(d, i, t, a, low, high, ratio=None):
    rho = np.exp(d["logp"][i, t] - d["proximal"][i, t]) if ratio is None else ratio
    return -min(a * rho, a * min(max(rho, 1 - low), 1 + high))


def k3(d, i, t):
    x = d["ref"][i, t] - d["logp"][i, t]
    return np.exp(x) - x - 1


def token_mean(d, term):
    values = [term(i, t) for i, ts in rows(d) for t in ts]
    return np.sum(values) / len(values)


def row_mean(d, term):
    return np.mean([np.mean([term(i, t) for t in ts]) for i, ts in rows(d) if ts])


def row_sum_mean(d, term):
    return np.mean([np.sum([term(i, t) for t in ts]) for i, ts in rows(d) if ts])


def reinforce(d):
    return row_sum_mean(d, lambda i, t: -d["reward"][i] * d["logp"][i, t])


def rloo(d):
    a = leave_one_out(d)
    return row_sum_mean(d, lambda i, t: -a[i] * d["logp"][i, t])


def grpo(d):
    a = zscore(d)
    return row_mean(d, lambda i, t: clip_term(d, i, t, a[i], 0.2, 0.2) + 0.04 * k3(d, i, t))


def dr_grpo(d):
    a = centred(d)
    return row_sum_mean(d, lambda i, t: clip_term(d, i, t, a[i], 0.2, 0.2)) / 6  # dr_grpo(length=6)


def dapo(d):
    a = zscore(d)
    return token_mean(d, lambda i, t: clip_term(d, i, t, a[i], 0.2, 0.28))


def gspo(d):
    a = zscore(d)
    s = {i: np.exp(np.mean([d["logp"][i, t] - d["proximal"][i, t] for t in ts])) for i, ts in rows(d) if ts}
    return row_mean(d, lambda i, t: clip_term(d, i, t, a[i], 3e-4, 4e-4, s[i]))


def ppo_clip(d):
    a = centred(d)
    tokens = [a[i] for i, ts in rows(d) for _ in ts]
    mean, std = np.mean(tokens), np.std(tokens, ddof=1)
    return token_mean(d, lambda i, t: clip_term(d, i, t, (a[i] - mean) / np.sqrt(std**2 + 1e-8), 0.2, 0.2))


def gae(d, gamma, lam):
    """Advantages by the definition: a sum over the later deltas of the row's own tokens."""
    out = {}
    for i, ts in rows(d):
        r = [(d["reward"][i] if n == len(ts) - 1 else 0.0) + d["token_reward"][i, t] for n, t in enumerate(ts)]
        v = [d["value"][i, t] for t in ts] + [0.0]
        delta = [r[n] + gamma * v[n + 1] - v[n] for n in range(len(ts))]
        for n, t in enumerate(ts):
            out[i, t] = sum((gamma * lam) ** (k - n) * delta[k] for k in range(n, len(ts)))
    return out


def ppo(d):
    charged = {**d, "token_reward": -0.05 * (d["raw"] - d["ref"])}
    a = gae(charged, 1.0, 0.95)
    mean, std = np.mean(list(a.values())), np.std(list(a.values()), ddof=1)
    return token_mean(d, lambda i, t: clip_term(d, i, t, (a[i, t] - mean) / np.sqrt(std**2 + 1e-8), 0.2, 0.2))


def signed(d, positive, negative, kept):
    d = {**d, "valid": d["valid"] * np.array([kept(r) for r in d["reward"]])}
    a = {i: positive if d["reward"][i] == 1 else -negative for i, _ in rows(d)}
    return token_mean(d, lambda i, t: clip_term(d, i, t, a[i], 0.2, 0.2) - 1e-3 * d["entropy"][i, t])


def w_reinforce(d):
    return signed(d, 0.1, 1.0, lambda r: True)


def psr(d):
    return signed(d, 1.0, 0.0, lambda r: r == 1)


def nsr(d):
    return signed(d, 0.0, 1.0, lambda r: r == 0)


def sft(d):
    return token_mean(d, lambda i, t: -d["logp"][i, t])
