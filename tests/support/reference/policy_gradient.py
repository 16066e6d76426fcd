"""Reference losses of ``rljax.algorithms.policy_gradient``: each the paper's formula, in loops."""

import math

import numpy as np

from tests.support.reference import parts
from tests.support.reference.dual import clip


def likelihood(d):
    """Return the term -log pi."""
    return lambda i, t: -d["logp"][i, t]


def policy_gradient(d, a):
    """Return the term -A log pi, ``a`` being {(i, t): A}."""
    return lambda i, t: -float(a[i, t]) * d["logp"][i, t]


def clip_loss(d, a, low=0.2, high=0.2, dual=None):
    """Return PPO's clipped term; where A < 0 it is at most -A * ``dual``."""

    def term(i, t):
        adv, rho = float(a[i, t]), parts.ratio(d, i, t)
        loss = max(-adv * rho, -adv * clip(rho, 1 - low, 1 + high))
        return min(loss, -adv * dual) if dual is not None and adv < 0 else loss

    return term


def returns(d):
    """Return {(i, t): sum of what is paid from t on}."""
    return {(i, t): g for i, _ in parts.rows(d) for t, g in parts.to_go(d, i).items()}


def charged(d, kl):
    """Return the batch with kl (log pi - log ref) taken off the reward of each token, by the sampler's numbers."""
    cost = kl * (d["raw"] - d["ref"]) * d["mask"]
    return {**d, "token_reward": d.get("token_reward", 0.0) - cost}


def keep(d, rows):
    """Return the batch without the trained tokens of rows where ``rows`` is false."""
    return {**d, "mask": d["mask"] * np.asarray(rows, np.float64)[:, None]}


def rewards(d, i):
    """Return the rewards of row i's group."""
    return [d["reward"][j] for j in parts.group(d, i)]


# --- likelihood and plain policy gradients -------------------------------------------------------


def reinforce(d):
    return parts.row_sum_mean(d, policy_gradient(d, returns(d)))


def rloo(d):
    return parts.row_sum_mean(d, policy_gradient(d, parts.spread_out(d, parts.leave_one_out(d))))


def remax(d):
    a = {(i, t): g - d["parts"]["greedy_reward"][i] for (i, t), g in returns(d).items()}
    return parts.row_sum_mean(d, policy_gradient(d, a))


def reinforce_plus_plus(d):
    return parts.token_mean(d, clip_loss(d, parts.whiten(d, returns(charged(d, 1e-3)))))


def reinforce_plus_plus_baseline(d):
    surrogate = clip_loss(d, parts.whiten(d, parts.spread_out(d, parts.centred(d))))
    return parts.token_mean(d, lambda i, t: surrogate(i, t) + 1e-3 * parts.k2(d, i, t))


def opo(d):
    a = {}
    for i, ts in parts.rows(d):
        length = {j: len(parts.trained(d, j)) for j in parts.group(d, i)}
        if ts:
            a[i] = d["reward"][i] - sum(n * d["reward"][j] for j, n in length.items()) / sum(length.values())
    return parts.token_mean(d, lambda i, t: -float(a[i]) * d["logp"][i, t])


def otb(d, policy="raw"):
    """The squared norm of a token's logit gradient is 1 - 2 pi + sum pi^2, all of one distribution: ``policy``."""
    g, w, a = returns(d), {}, {}
    for i, ts in parts.rows(d):
        for n, t in enumerate(ts):
            w[i, t] = sum(1 - 2 * math.exp(d[policy][i, s]) + d["square_prob"][i, s] for s in ts[: n + 1])
    for i, ts in parts.rows(d):
        others = [parts.trained(d, j) for j in parts.group(d, i) if j != i]
        last = max((t for other in others for t in other), default=-1)
        for t in ts:
            here = [j for j in parts.group(d, i) if t in parts.trained(d, j)]
            b = sum(g[j, t] * w[j, t] for j in here) / (sum(w[j, t] for j in here) + 1e-8)
            a[i, t] = g[i, t] - (b if t <= last else 0.0)  # no baseline where all other rows have ended
        if not others:
            a.update({(i, t): 0.0 for t in ts})
    return parts.token_mean(d, policy_gradient(d, a))


def gpg(d):
    groups = {d["group"][i]: rewards(d, i) for i, _ in parts.rows(d)}
    share = np.mean([max(r) > min(r) for r in groups.values()])
    a = {i: x / max(share, 0.5) for i, x in parts.centred(d).items()}
    return parts.token_mean(d, policy_gradient(d, parts.spread_out(d, a)))


def t1(d):
    surrogate = policy_gradient(d, parts.spread_out(d, parts.leave_one_out(d)))
    return parts.row_sum_mean(d, lambda i, t: surrogate(i, t) + 1e-3 * parts.k2(d, i, t) - 1e-3 * d["entropy"][i, t])


def on_policy_distillation(d):
    return parts.token_mean(d, lambda i, t: -float(d["ref"][i, t] - d["raw"][i, t]) * parts.ratio(d, i, t))


# --- another scale or baseline, clipped ----------------------------------------------------------


def max_rl(d):
    mean = {i: np.mean(rewards(d, i)) for i, _ in parts.rows(d)}
    a = {i: x / mean[i] if mean[i] > 0 else 0.0 for i, x in parts.centred(d).items()}
    return parts.token_mean(d, clip_loss(d, parts.spread_out(d, a)))


def decoupled(d, weights):
    """Return {i: weighted sum of the z-scores of the parts of the reward}."""
    scores = [(w, parts.zscore({**d, "reward": d["parts"][name]})) for name, w in weights]
    return {i: sum(w * z[i] for w, z in scores) for i, _ in parts.rows(d)}


def gdpo(d, weights=(("format", 1.0), ("exploration", 0.5))):
    r = decoupled(d, weights)
    mean, deviation = np.mean(list(r.values())), parts.std(list(r.values()))
    a = {i: (x - mean) / (deviation + 1e-6) for i, x in r.items()}
    return parts.token_mean(d, clip_loss(d, parts.spread_out(d, a)))


def longwriter_zero(d, weights=(("format", 1.0), ("exploration", 0.5))):
    return parts.row_mean(d, clip_loss(d, parts.spread_out(d, decoupled(d, weights))))


def spo(d, rate=0.5):
    """The tracker's rate before any reward is seen is ``rate`` for every prompt; rows of no token are no samples."""
    a = {i: d["reward"][i] - rate for i, ts in parts.rows(d) if ts}
    mean, deviation = np.mean(list(a.values())), parts.std(list(a.values()))
    a = {i: (a[i] - mean) / (deviation + 1e-6) if ts else 0.0 for i, ts in parts.rows(d)}
    return parts.token_mean(d, clip_loss(d, parts.spread_out(d, a)))


def signed(d, positive, negative):
    """Return the clipped term of A = positive 1[r = 1] - negative 1[r = 0], less 1e-3 of the entropy."""
    a = {i: {1.0: positive, 0.0: -negative}.get(d["reward"][i], 0.0) for i, _ in parts.rows(d)}
    surrogate = clip_loss(d, parts.spread_out(d, a))
    return lambda i, t: surrogate(i, t) - 1e-3 * d["entropy"][i, t]


def w_reinforce(d):
    return parts.token_mean(d, signed(d, 0.1, 1.0))


def psr(d):
    return parts.token_mean(keep(d, d["reward"] > 0), signed(d, 1.0, 0.0))


def nsr(d):
    return parts.token_mean(keep(d, d["reward"] <= 0), signed(d, 0.0, 1.0))


def rl_zvp(d, alpha=0.1):
    z, h, a = parts.zscore(d), d["sampled_entropy"], {}
    for i, ts in parts.rows(d):
        right = [r > 0 for r in rewards(d, i)]
        for t in ts:
            if all(right):
                a[i, t] = alpha * h[i, t]
            elif not any(right):
                a[i, t] = -alpha * (max(h[i, s] for s in ts) - h[i, t])
            else:
                a[i, t] = z[i]
    return parts.row_mean(d, clip_loss(d, a))


def confidence_penalty(d):
    """Return the rewards r - (1 - r) c / (D - c) / G, c the geometric mean probability of a row's tokens."""
    c = {i: math.exp(np.mean([d["behaviour"][i, t] for t in ts])) for i, ts in parts.rows(d) if ts}
    out = d["reward"].copy()
    for i in c:
        g, r = parts.group(d, i), d["reward"]
        bound = 2 * max(c[j] for j in g if j in c)
        odds = sum(r[j] / c[j] for j in g if j in c) / len(g)
        if odds > 0:
            bound = max(bound, 1 / odds)
        out[i] = r[i] - (1 - r[i]) * c[i] / (bound - c[i]) / len(g)
    return out


def lens(d, all_wrong=0.25):
    d = {**d, "reward": confidence_penalty(d)}
    z, centred = parts.zscore(d), parts.centred(d)
    a = {i: z[i] if any(r > 0 for r in rewards(d, i)) else all_wrong * centred[i] for i in z}
    return parts.row_mean(d, clip_loss(d, parts.spread_out(d, a)))


def pass_at_k(d, k=2):
    a = {}
    for i, _ in parts.rows(d):
        n = len(parts.group(d, i))
        wrong = sum(r <= 0 for r in rewards(d, i))
        mean = 1 - math.comb(wrong, k) / math.comb(n, k)  # of the best of k rows drawn from the n
        scale = math.sqrt(mean * (1 - mean)) + 1e-6
        # a wrong row's reward: that of the k - 1 rows drawn with it
        paid = 1.0 if d["reward"][i] > 0 else 1 - math.comb(wrong - 1, k - 1) / math.comb(n - 1, k - 1)
        a[i] = (paid - mean) / scale
    return parts.token_mean(d, clip_loss(d, parts.spread_out(d, a), 0.2, 0.28))


def best_minus_second(d):
    a = {}
    for i, _ in parts.rows(d):
        others = [d["reward"][j] for j in parts.group(d, i) if j != i]
        a[i] = max(0.0, d["reward"][i] - max(others)) if others else 0.0
    return parts.row_mean(d, clip_loss(d, parts.spread_out(d, a)))


def brpo_pairwise(d, limit=0.6):
    beats, a = d["parts"]["beats_reference"], {}
    for i, _ in parts.rows(d):
        g = parts.group(d, i)
        a[i] = beats[i] if abs(sum(beats[j] for j in g)) / len(g) <= limit else 0.0
    return parts.row_mean(d, clip_loss(d, parts.spread_out(d, a)))


def brpo_budget(d, length=6):
    """A stretch s earns the rewards of the cuts from s on, with the cuts as likely as one another."""
    scores = d["extra"]["cut_reward"]
    cuts, a = scores.shape[1], {}
    for i, ts in parts.rows(d):
        g = parts.group(d, i)
        for t in ts:
            s = int(d["extra"]["segment"][i, t])
            ahead = {j: sum(scores[j, s:]) / cuts for j in g}
            past = sum(2**j * scores[i, j] for j in range(s)) / max(sum(2**j for j in range(s)), 1)
            earlier, siblings = past * (cuts - s) / cuts, np.mean(list(ahead.values()))
            a[i, t] = ahead[i] - (s / cuts * earlier + (cuts - s) / cuts * siblings)
    term = clip_loss(d, a)
    return parts.row_sum_mean(d, term) * (1 / length)


def reinforce_ada(d):
    a = parts.spread_out(d, parts.centred(d))  # of all the rows drawn
    return parts.token_mean(keep(d, d["parts"]["kept"] > 0), clip_loss(d, a, high=0.28))


def golongrl(d, gamma=1.0, alpha=0.8):
    a, weight = {}, {}
    centred = parts.centred(d)
    for i, _ in parts.rows(d):
        task = [j for j, _ in parts.rows(d) if d["domain"][j] == d["domain"][i]]
        prompts = {d["group"][j]: rewards(d, j) for j in task}
        a[i] = centred[i] / (math.sqrt(np.mean([parts.std(r) ** 2 for r in prompts.values()])) + 1e-6)
        bar = alpha * np.mean(rewards(d, i)) + (1 - alpha) * np.mean([d["reward"][j] for j in task])
        p = np.mean([r > bar for r in rewards(d, i)])
        weight[i] = math.exp(gamma * (0.5 - p) if a[i] > 0 else gamma * (p - 0.5))
    surrogate = clip_loss(d, parts.spread_out(d, a), 0.2, 0.28, 3.0)
    return parts.token_mean(d, lambda i, t: weight[i] * surrogate(i, t))


# --- trees ---------------------------------------------------------------------------------------


def ends(d):
    """Return {i: where the row's text ends}, after its last trained token."""
    return {i: max(ts) + 1 if ts else 0 for i, ts in parts.rows(d)}


def vine_ppo(d, kl=1e-4):
    """A segment's credit is the rise from its value to the next one's: others' mean, cuts, own reward; token mean."""
    a = {}
    for i, ts in parts.rows(d):
        peers = [j for j in parts.group(d, i) if d["agent"][j] == d["agent"][i]]
        others = [d["reward"][j] for j in peers if j != i] or [d["reward"][i]]
        value = [np.mean(others), *d["extra"]["cut_reward"][i], d["reward"][i]]
        a |= {(i, t): value[s + 1] - value[s] for t in ts for s in [int(d["extra"]["segment"][i, t])]}
    term = clip_loss(d, a)
    return parts.token_mean(d, lambda i, t: term(i, t) + kl * parts.k3(d, i, t))


def leaves(d, i, n, end):
    """Return the rows of i's group that begin with the first n tokens of row i, tool output among them."""
    same = [j for j in parts.group(d, i) if end[j] >= n]
    return [j for j in same if all(d["token"][j, :n] == d["token"][i, :n])]


def tempo(d, epsilon=1e-6):
    """V of a state is the mean reward of its leaves."""
    a, end = {}, ends(d)
    for i, ts in parts.rows(d):
        value = [np.mean([d["reward"][j] for j in leaves(d, i, n, end)]) for n in range(end[i] + 1)]
        for t in ts:
            rise = value[t + 1] - value[t]
            a[i, t] = (d["reward"][i] - np.mean(rewards(d, i)) + rise) / (parts.std(rewards(d, i)) + epsilon)
    return parts.row_mean(d, clip_loss(d, a))


def attn_rl(d):
    """A node is the tokens with the same leaves; the parent is the last node before it, or the root."""
    a, end = {}, ends(d)
    for i, ts in parts.rows(d):
        node = [leaves(d, i, n + 1, end) for n in range(end[i])]
        for t in ts:
            above = [x for x in node[:t] if x != node[t]]
            root = parts.group(d, i)
            v, above, top = (np.mean([d["reward"][j] for j in x]) for x in (node[t], [root, *above][-1], root))
            a[i, t] = (v - top + v - above) / math.sqrt(len(node[t]))
    return parts.token_mean(d, clip_loss(d, a))
