"""Losses of the clipped family, token by token. IDs such as SU-03 are entries of the catalogue of methods.

Keywords are the settings a test may tighten until a bound binds.
"""

import numpy as np

from tests.support.reference import parts
from tests.support.reference.dual import clip, exp, sigmoid, value

# --- shared with the family of stale tokens ---


def tokens(d):
    """Return all trained (row, position)."""
    return [(i, t) for i, ts in parts.rows(d) for t in ts]


def surrogate(d, a, low, high):
    """Return term(i, t): the clipped surrogate of the token ratio to the proximal policy (SU-03)."""
    return lambda i, t: parts.clipped(parts.ratio(d, i, t), a[i], low, high)


def batch_scaled(d, epsilon=1e-4):
    """Return {i: (r - group mean) / (std of all rewards + epsilon)} (AD-05)."""
    spread = parts.std([d["reward"][i] for i, _ in parts.rows(d)])
    return {i: a / (spread + epsilon) for i, a in parts.centred(d).items()}


def is_fresh(d, i, t, lag):
    """Whether a token is at most ``lag`` versions behind the newest one (AS-02)."""
    return max(d["version"][k] for k in tokens(d)) - d["version"][i, t] <= lag


def without(d, dropped):
    """Return the batch with the rows for which dropped(i) holds taken out of the mask."""
    mask = d["mask"].copy()
    for i in range(len(mask)):
        if dropped(i):
            mask[i] = 0
    return {**d, "mask": mask}


def bernoulli_kl(p, q):
    """Return the KL of a coin of probability p to one of q."""
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


def trusted(d, i, t, a, low, high, measure):
    """Whether DPPO keeps a token: the probability has not moved too far the way ``a`` pushes (SU-11)."""
    now, then = np.exp(value(d["logp"][i, t])), np.exp(d["behaviour"][i, t])
    far = abs(now - then) if measure == "tv" else bernoulli_kl(then, now)
    return not ((a > 0 and now > then and far > high) or (a < 0 and now < then and far > low))


def importance(d, i, t, a, weight):
    """Return -sg(weight) A logp."""
    return -value(weight) * a * d["logp"][i, t]


# --- clip, and who counts how much ---


def grpo(d, low=0.2, high=0.2, kl=0.04):
    """max(-A rho, -A clip(rho)) + kl k3, row mean; A the group's z-score."""
    policy = surrogate(d, parts.zscore(d), low, high)
    return parts.row_mean(d, lambda i, t: policy(i, t) + kl * parts.k3(d, i, t))


def r1_zero(d):
    """GRPO, clip 10 on both sides, k3 at 1e-3."""
    return grpo(d, 10.0, 10.0, 1e-3)


def dr_grpo(d, low=0.2, high=0.2, length=6):
    """sum_t / length, row mean; A = r - group mean."""
    policy = surrogate(d, parts.centred(d), low, high)
    return parts.row_sum_mean(d, lambda i, t: policy(i, t) / length)


def dapo(d, low=0.2, high=0.28):
    """Clip 0.2 / 0.28, token mean."""
    return parts.token_mean(d, surrogate(d, parts.zscore(d), low, high))


def dapo_filter(d):
    """DAPO on the rows that stopped by themselves; cut rows stay in their group's statistics."""
    a = parts.zscore(d)
    kept = without(d, lambda i: d["finish"][i] == 0)
    return parts.token_mean(kept, surrogate(kept, a, 0.2, 0.28))


def ppo_clip(d, low=0.2, high=0.2):
    """Clip, token mean; A = r - group mean, whitened over tokens."""
    a = parts.whiten(d, parts.spread_out(d, parts.centred(d)))
    return parts.token_mean(d, lambda i, t: parts.clipped(parts.ratio(d, i, t), a[i, t], low, high))


def lite_ppo(d, low=0.2, high=0.2):
    """Clip, token mean; A = (r - group mean) / (batch std + 1e-4)."""
    return parts.token_mean(d, surrogate(d, batch_scaled(d), low, high))


def prorl(d):
    """Clip 0.2 / 0.4 + 1e-3 k3, token mean."""
    policy = surrogate(d, parts.zscore(d), 0.2, 0.4)
    return parts.token_mean(d, lambda i, t: policy(i, t) + 1e-3 * parts.k3(d, i, t))


def simplerl_zoo(d):
    """Clip + 1e-4 k3 - 1e-3 H, row mean."""
    policy = surrogate(d, parts.zscore(d), 0.2, 0.2)
    return parts.row_mean(d, lambda i, t: policy(i, t) + 1e-4 * parts.k3(d, i, t) - 1e-3 * d["entropy"][i, t])


def skywork_or1(d, coefficient=0.01):
    """Clip - coefficient H, token mean."""
    policy = surrogate(d, parts.zscore(d), 0.2, 0.2)
    return parts.token_mean(d, lambda i, t: policy(i, t) - coefficient * d["entropy"][i, t])


def intellect_2(d, dual=4.0, kl=1e-3):
    """Clip, where A < 0 at most -dual A (SU-04), + 1e-3 k3, token mean."""
    a = parts.zscore(d)

    def term(i, t):
        loss = parts.clipped(parts.ratio(d, i, t), a[i], 0.2, 0.2)
        if a[i] < 0:
            loss = min(loss, -dual * a[i])
        return loss + kl * parts.k3(d, i, t)

    return parts.token_mean(d, term)


def stable_reinforce(d, sigmas=3.0, limit=6.907755):
    """Clip of exp(clip(log rho)), row mean; A = 0 where it is more than ``sigmas`` std from the tokens' mean."""
    a = parts.spread_out(d, parts.zscore(d))
    mean, spread = np.mean(list(a.values())), parts.std(list(a.values()))

    def term(i, t):
        rho = exp(clip(d["logp"][i, t] - d["proximal"][i, t], -limit, limit))
        return parts.clipped(rho, 0.0 if abs(a[i, t] - mean) > sigmas * spread else a[i, t], 0.2, 0.2)

    return parts.row_mean(d, term)


def deepseek_v32(d, delta=0.5, kl=1e-3):
    """Clip, 0 on rows with A < 0 and mean(b - logp) > delta (WT-07), + kl (pi / b) k3 (PE-05), row mean."""
    a = parts.zscore(d)

    def off(i):
        drift = [d["behaviour"][i, t] - value(d["logp"][i, t]) for t in parts.trained(d, i)]
        return a[i] < 0 and np.mean(drift) > delta

    def term(i, t):
        policy = 0.0 if off(i) else parts.clipped(parts.ratio(d, i, t), a[i], 0.2, 0.2)
        return policy + kl * parts.ratio(d, i, t, "behaviour") * parts.k3(d, i, t)

    return parts.row_mean(d, term)


# --- one ratio for the row ---


def sequence_log_ratio(d, i):
    """Return mean_t (logp - proximal)."""
    return parts.mean(d["logp"][i, t] - d["proximal"][i, t] for t in parts.trained(d, i))


def gspo(d, low=3e-4, high=4e-4):
    """Clip of s = exp(mean_t log rho_t), one for the row."""
    a = parts.zscore(d)
    rows = [i for i, ts in parts.rows(d) if ts]
    return parts.mean(parts.clipped(exp(sequence_log_ratio(d, i)), a[i], low, high) for i in rows)


def gspo_token(d, low=3e-4, high=4e-4, limit=10.0):
    """Clip of sg(s) exp(logp - sg(logp)) at each token, row mean (RA-03)."""
    a = parts.zscore(d)

    def term(i, t):
        x = d["logp"][i, t]
        whole = np.exp(min(value(sequence_log_ratio(d, i)), limit))
        return parts.clipped(whole * exp(x - value(x)), a[i], low, high)

    return parts.row_mean(d, term)


def luspo(d, low=2e-3, high=2.5e-3):
    """GSPO with each row's loss times its number of tokens (RE-09)."""
    a = parts.zscore(d)
    rows = [(i, len(ts)) for i, ts in parts.rows(d) if ts]
    return parts.mean(n * parts.clipped(exp(sequence_log_ratio(d, i)), a[i], low, high) for i, n in rows)


def gmpo(d, epsilon=0.4):
    """-A exp(mean_t x_t), x = log rho, held on the side A pushes to (SU-05), row mean."""
    a = parts.zscore(d)

    def held(i, t):
        sign = np.sign(a[i])
        x = d["logp"][i, t] - d["proximal"][i, t]
        return sign * min(sign * x, sign * clip(x, -epsilon, epsilon))

    return parts.mean(-a[i] * exp(parts.mean(held(i, t) for t in ts)) for i, ts in parts.rows(d) if ts)


# --- other gates than the clip ---


def cispo(d, high=4.0):
    """-sg(min(rho, 1 + high)) A logp, token mean."""
    cap = 1.0 + high
    a = parts.zscore(d)
    return parts.token_mean(d, lambda i, t: importance(d, i, t, a[i], min(value(parts.ratio(d, i, t)), cap)))


def scale_rl(d, high=4.0, lag=8):
    """CISPO on fresh tokens of groups with spread, A scaled by the batch; mean over prompts of their token means."""
    a = batch_scaled(d)
    kept = without(d, lambda i: len({d["reward"][j] for j in parts.group(d, i)}) < 2)

    def term(i, t):
        rho = min(value(parts.ratio(d, i, t)), 1.0 + high)
        return importance(d, i, t, a[i], rho) if is_fresh(d, i, t, lag) else 0.0

    prompts = {}
    for i, t in tokens(kept):
        prompts.setdefault(d["group"][i], []).append(term(i, t))
    return parts.mean(parts.mean(terms) for terms in prompts.values())


def sapo(d, positive=1.0, negative=1.05):
    """-A (4 / tau) sigmoid(tau (rho - 1)), tau by the sign of A, row mean."""
    a = parts.zscore(d)

    def term(i, t):
        tau = positive if a[i] > 0 else negative
        return -a[i] * (4.0 / tau) * sigmoid(tau * (parts.ratio(d, i, t) - 1.0))

    return parts.row_mean(d, term)


def vespo(d, positive=(2.0, 3.0), negative=(3.0, 2.0)):
    """-sg(W^k exp(lambda (1 - W))) A logp, W = prod_t pi / b, token mean."""
    a = parts.zscore(d)

    def term(i, t):
        log_w = sum(value(d["logp"][i, s]) - d["behaviour"][i, s] for s in parts.trained(d, i))
        w = np.exp(min(max(log_w, np.log(1e-8)), 20.0))
        k, lam = positive if a[i] >= 0 else negative
        return importance(d, i, t, a[i], w**k * np.exp(lam * (1 - w)))

    return parts.token_mean(d, term)


def dppo(d, low=0.15, high=0.15, cap=20.0, measure="tv"):
    """-sg(min(pi / b, cap)) A logp where trusted, token mean."""
    a = parts.zscore(d)

    def term(i, t):
        rho = min(value(parts.ratio(d, i, t, "behaviour")), cap)
        return importance(d, i, t, a[i], rho) if trusted(d, i, t, a[i], low, high, measure) else 0.0

    return parts.token_mean(d, term)


def dppo_kl(d, low=0.05, high=0.05):
    """DPPO that measures by the Bernoulli KL, sampler first."""
    return dppo(d, low, high, measure="kl")


# --- tokens picked from the whole batch ---


def covariance(d, a):
    """Return {(i, t): (A - mean)(logp - mean)}, means over trained tokens."""
    every = tokens(d)
    mean_a = np.mean([a[i] for i, _ in every])
    mean_logp = np.mean([value(d["logp"][k]) for k in every])
    return {(i, t): (a[i] - mean_a) * (value(d["logp"][i, t]) - mean_logp) for i, t in every}


def picked(d, share):
    """Return how many tokens a share is: rounded down, at least one."""
    return max(int(share * len(tokens(d))), 1)


def clip_cov_candidates(d, share=0.1, low=1.0, high=1.0, bounds=(-10.0, 10.0)):
    """Return the unclipped tokens with covariance strictly within ``bounds``, and how many of them to drop."""
    a = parts.zscore(d)

    def unclipped(i, t):
        rho = value(parts.ratio(d, i, t))
        return -a[i] * min(max(rho, 1 - low), 1 + high) <= -a[i] * rho

    candidates = {k for k, c in covariance(d, a).items() if bounds[0] < c < bounds[1] and unclipped(*k)}
    return candidates, min(picked(d, share), len(candidates))


def clip_cov(d, dropped, low=1.0, high=1.0):
    """Clip 1 / 1, 0 on the ``dropped`` [B, T] tokens, token mean."""
    policy = surrogate(d, parts.zscore(d), low, high)
    return parts.token_mean(d, lambda i, t: 0.0 if dropped[i, t] else policy(i, t))


def kl_cov(d, share=0.1, coefficient=1.0):
    """-A rho, + coefficient |logp - proximal| on the tokens of highest covariance, token mean."""
    a = parts.zscore(d)
    cov = covariance(d, a)
    top = sorted(cov, key=cov.get, reverse=True)[: picked(d, share)]

    def term(i, t):
        charge = coefficient * abs(d["logp"][i, t] - d["proximal"][i, t]) if (i, t) in top else 0.0
        return -a[i] * parts.ratio(d, i, t) + charge

    return parts.token_mean(d, term)


def forking_tokens(d, share=0.3):
    """DAPO on the tokens at or above the (1 - share) quantile of entropy; all tokens in the denominator (WT-12)."""
    policy = surrogate(d, parts.zscore(d), 0.2, 0.28)
    threshold = np.quantile([d["sampled_entropy"][k] for k in tokens(d)], 1 - share)
    return parts.token_mean(d, lambda i, t: policy(i, t) if d["sampled_entropy"][i, t] >= threshold else 0.0)
