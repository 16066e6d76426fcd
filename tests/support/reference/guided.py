"""Reference losses of the recipes with demonstrations or off-policy rows, from the papers' formulas in plain loops."""

import math

import numpy as np

from tests.support.reference import parts
from tests.support.reference.dual import exp, log, sigmoid, value


def _sampled(d, i):
    """Return whether the policy sampled the row."""
    return d["on_policy"][i] > 0


def _pi(d, i, t):
    """Return the token's probability, a Dual."""
    return exp(d["logp"][i, t])


def _shaped(x, gamma):
    """Return x / (x + gamma)."""
    return x / (x + gamma)


def _fixed_length(d, term, length):
    """Sum term(i, t) over all tokens, divided by (rows with a trained token) * length."""
    return parts.row_sum_mean(d, term) * (1.0 / length)


def _by_on_policy_rows(d, scale, epsilon=1e-6):
    """Return {i: r minus the mean of the group's on-policy rows}, divided by their std + epsilon where ``scale``."""
    out = {}
    for i, _ in parts.rows(d):
        sampled = [float(d["reward"][j]) for j in parts.group(d, i) if _sampled(d, j)]
        out[i] = float(d["reward"][i]) - float(np.mean(sampled))
        if scale:
            out[i] /= parts.std(sampled) + epsilon
    return out


def sft(d):
    """-logp, averaged over all tokens."""
    return parts.token_mean(d, lambda i, t: -d["logp"][i, t])


def dft(d):
    """-sg(pi) logp, averaged over all tokens. 2508.05629."""
    return parts.token_mean(d, lambda i, t: -np.exp(value(d["logp"][i, t])) * d["logp"][i, t])


def gkd(d):
    """The mean over rows of each row's mean divergence. 2306.13649."""
    return parts.row_mean(d, lambda i, t: float(d["js"][i, t]))


def luffy(d, gamma=0.1, entropy=1e-3, length=6):
    """Own -A rho, expert -A pi / (pi + gamma), A = r - mean over the union; minus c H. 2504.14945."""
    a = parts.centred(d)

    def term(i, t):
        ratio = parts.ratio(d, i, t) if _sampled(d, i) else _shaped(_pi(d, i, t), gamma)
        return -a[i] * ratio - entropy * d["entropy"][i, t]

    return _fixed_length(d, term, length)


def rl_plus(d, entropy=1e-3, power=0.5, length=6):
    """On-policy -A rho; external -A sg(1 - pi)^power 2 pi / (1.5 old + 0.5); A by on-policy rows; - c H. 2508.00222."""
    a = _by_on_policy_rows(d, scale=False)

    def term(i, t):
        if _sampled(d, i):
            ratio = parts.ratio(d, i, t)
        else:
            old = math.exp(d["proximal"][i, t])
            focus = (1 - value(_pi(d, i, t))) ** power
            ratio = focus * (2.0 * _pi(d, i, t) / (old + 0.5 * (old + 1)))
        return -a[i] * ratio - entropy * d["entropy"][i, t]

    return _fixed_length(d, term, length)


def srft(d, sft=0.5, rl=0.1):
    """Token mean of four terms. 2506.19767.

    Demonstrations: -sft e^-H logp - A pi, A the group's z-score; correct: -rl e^H logp; wrong: +logp.
    """
    a = parts.zscore(d)

    def term(i, t):
        x, h = d["logp"][i, t], value(d["entropy"][i, t])
        if not _sampled(d, i):
            return -sft * math.exp(-h) * x - a[i] * exp(x)
        return -rl * math.exp(h) * x if d["reward"][i] > 0 else x

    return parts.token_mean(d, term)


def relift(d, entropy=1e-3, length=6, sft=1.0):
    """Own -A rho, all - c H, by a constant length; plus the demonstrations' token mean of -logp. 2506.07527."""
    a = parts.centred(d)

    def term(i, t):
        policy = -a[i] * parts.ratio(d, i, t) if _sampled(d, i) else 0.0
        return policy - entropy * d["entropy"][i, t]

    return _fixed_length(d, term, length) + sft * _fit_others(d)


def oreal(d, positive=1.0, negative=0.5, kl=0.01, module=""):
    """Correct -A logp, wrong -0.5 A rho + kl k3, A leave-one-out, each side over its token count. 2502.06781.

    With a token reward model the two losses of a token are weighed by how sure it is of the outcome so far.
    """
    a = parts.leave_one_out(d)
    right, wrong = [], []
    for i, ts in parts.rows(d):
        so_far = []
        for t in ts:
            weight = 1.0
            if module:
                so_far.append(d[module][i, t])
                q = 1 / (1 + math.exp(-sum(so_far) / len(so_far)))
                weight = min(max((q if d["reward"][i] > 0 else 1 - q) * 2 - 1, 0.0), 1.0)
            if d["reward"][i] > 0:
                right.append(-positive * weight * a[i] * d["logp"][i, t])
            else:
                wrong.append(-negative * weight * a[i] * parts.ratio(d, i, t) + kl * parts.k3(d, i, t))
    return parts.mean(right) + parts.mean(wrong)


def oreal_model(d):
    """The cross-entropy of "the row is right" and the mean of its tokens' scores, over rows."""

    def term(i, ts):
        mean = sum((d["live_value"][i, t] for t in ts), 0.0) * (1 / len(ts))
        return -log(sigmoid(mean if d["outcome"][i] == 1 else -mean))

    return parts.mean(term(i, ts) for i, ts in parts.rows(d) if ts)


def dph_rl(d, coefficient=0.02, low=0.2, high=0.2):
    """Fresh rows by PPO's clip, stored ones by c (u - 1 - log u), u = pi / ref; token mean. 2509.07430."""
    a = _by_on_policy_rows(d, scale=True)

    def term(i, t):
        if _sampled(d, i):
            return parts.clipped(parts.ratio(d, i, t), a[i], low, high)
        log_u = d["logp"][i, t] - d["ref"][i, t]
        return coefficient * (exp(log_u) - 1.0 - log_u)

    return parts.token_mean(d, term)


def ghpo(d, format=0.5, low=0.2, high=0.2):
    """PPO's clip on the z-score of r + format * parts[format]; row mean. 2507.10628."""
    a = parts.zscore({**d, "reward": d["reward"] + format * d["parts"]["format"]})
    return parts.row_mean(d, lambda i, t: parts.clipped(parts.ratio(d, i, t), a[i], low, high))


def guide_grpo(d, gamma=1.0, low=0.2, high=0.2):
    """Own rows by PPO's clip; hinted -A rho / (rho + gamma), rho = pi / behaviour; row mean. 2506.13923."""
    a = parts.zscore(d)

    def term(i, t):
        if _sampled(d, i):
            return parts.clipped(parts.ratio(d, i, t), a[i], low, high)
        return -a[i] * _shaped(parts.ratio(d, i, t, "behaviour"), gamma)

    return parts.row_mean(d, term)


def critique_grpo(d, gamma=0.1, length=6):
    """Own -A rho, refined -A pi / (pi + gamma), A = r - mean over the union. 2506.03106."""
    return luffy(d, gamma, 0.0, length)


def rex_rag(d, alpha=0.1, low=0.2, high=0.2):
    """PPO's clip of pi / ((1 - alpha) old + alpha mu), mu the probe's probability; row mean. 2508.08149."""
    a = parts.zscore(d)

    def term(i, t):
        old, mu = math.exp(d["proximal"][i, t]), math.exp(d["extra"]["probe_logp"][i, t])
        return parts.clipped(_pi(d, i, t) / ((1 - alpha) * old + alpha * mu), a[i], low, high)

    return parts.row_mean(d, term)


def _clipped_sampled(d, low, high):
    """Return term(i, t): PPO's clip by statistics of the on-policy rows, 0 on the others."""
    a = _by_on_policy_rows(d, scale=True)
    return lambda i, t: parts.clipped(parts.ratio(d, i, t), a[i], low, high) if _sampled(d, i) else 0.0


def _fit_others(d):
    """-logp averaged over the tokens of off-policy rows."""
    return parts.mean(-d["logp"][i, t] for i, ts in parts.rows(d) if not _sampled(d, i) for t in ts)


def exp_grpo(d, beta=0.1, low=0.2, high=0.2):
    """Row mean of PPO's clip on on-policy rows, plus beta times the explanations' token mean of -logp. 2507.02834."""
    return parts.row_mean(d, _clipped_sampled(d, low, high)) + beta * _fit_others(d)


def cog_rethinker(d, coefficient=0.1, low=0.2, high=0.28):
    """Token mean of PPO's clip on on-policy rows, plus the rescued rows' token mean of -logp. Cog-Rethinker."""
    return parts.token_mean(d, _clipped_sampled(d, low, high)) + coefficient * _fit_others(d)


def verifree(d):
    """-A logp(thought) - R logp(answer), R = exp(sum raw(answer)), A = R leave-one-out. 2505.21493."""
    answer = d["extra"]["reference_answer"]
    r = {
        i: math.exp(sum(d["raw"][i, t] for t in ts if answer[i, t] > 0)) if any(answer[i, t] > 0 for t in ts) else 0.0
        for i, ts in parts.rows(d)
    }
    a = parts.leave_one_out({**d, "reward": np.array([r.get(i, 0.0) for i in range(len(d["reward"]))])})
    return parts.row_sum_mean(d, lambda i, t: -(r[i] if answer[i, t] > 0 else a[i]) * d["logp"][i, t])
