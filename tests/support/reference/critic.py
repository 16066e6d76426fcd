"""Reference losses of ``rljax.algorithms.critic``: the policy's, and as ``<recipe>_critic`` the critic's."""

import numpy as np

from tests.support.reference import offline, parts
from tests.support.reference.dual import clip, exp, log, value
from tests.support.reference.policy_gradient import charged, clip_loss, policy_gradient, returns


def whitened(d, a, low=0.2, high=0.2):
    """Return the clipped loss, token mean, of whitened advantages {(i, t): A}."""
    return parts.token_mean(d, clip_loss(d, parts.whiten(d, a), low, high))


def value_loss(d, target, bound=0.2):
    """Return half the worse squared error of V and of V held within ``bound`` of the old value, token mean."""

    def term(i, t):
        v, old = d["live_value"][i, t], float(d["value"][i, t])
        error = (v - target[i, t]) ** 2
        if bound is not None:
            error = max(error, (clip(v, old - bound, old + bound) - target[i, t]) ** 2)
        return 0.5 * error

    return parts.token_mean(d, term)


def above_value(d, a):
    """Return the critic's target {(i, t): A + V}."""
    return {(i, t): x + d["value"][i, t] for (i, t), x in a.items()}


def below_returns(d):
    """Return {(i, t): what is still paid, minus V}: GAE with gamma = lambda = 1."""
    return {(i, t): g - d["value"][i, t] for (i, t), g in returns(d).items()}


# --- token steps ---------------------------------------------------------------------------------


def ppo(d):
    return whitened(d, parts.gae(charged(d, 0.05), 1.0, 0.95))


def ppo_critic(d):
    return value_loss(d, above_value(d, parts.gae(charged(d, 0.05), 1.0, 0.95)))


def least(d):
    """Return the batch whose critic gives, at each token, the lower of two critics' values."""
    v = d["value"].copy()
    for i, ts in parts.rows(d):
        for t in ts:
            v[i, t] = min(d["value"][i, t], d["value_2"][i, t])
    return {**d, "value": v}


def twin_critics(d, combine="min"):
    return whitened(d, twin_advantage(d, combine))


def twin_advantage(d, combine="min"):
    d = least(d) if combine == "min" else {**d, "value": (d["value"] + d["value_2"]) / 2}
    return parts.gae(charged(d, 0.05), 1.0, 0.95)


def twin_critics_critic(d):
    d = least(d)
    return value_loss(d, above_value(d, parts.gae(charged(d, 0.05), 1.0, 0.95)), None)


def critic_warmup(d, lam=1.0, expectile=0.5):
    """The expectile's loss, 2 |tau - [R < V]| (V - R)^2 / 2, of the lambda-returns. 2110.06169, eq. 5."""
    target = above_value(d, parts.gae(d, 1.0, lam))

    def term(i, t):
        v, r = d["live_value"][i, t], target[i, t]
        return (expectile if r >= value(v) else 1 - expectile) * (v - r) ** 2.0

    return parts.token_mean(d, term)


def orz(d):
    return whitened(d, below_returns(d))


def orz_critic(d):
    return value_loss(d, returns(d), None)


def vc_ppo(d):
    return whitened(d, parts.gae(d, 1.0, 0.95))


def vc_ppo_critic(d):
    return value_loss(d, returns(d))


def vapo(d, alpha=0.05, likelihood=0.1):
    a = {}
    for i, ts in parts.rows(d):
        lam = min(max(1 - 1 / (alpha * len(ts)), 0.0), 1.0) if ts else 0.0
        row = parts.gae(d, 1.0, lam)
        a.update({(i, t): row[i, t] for t in ts})
    right = [-d["logp"][i, t] for i, ts in parts.rows(d) if d["reward"][i] > 0 for t in ts]
    return whitened(d, a, 0.2, 0.28) + likelihood * parts.mean(right)


def vapo_critic(d):
    return value_loss(d, returns(d))


def truncated(d):
    """Return {(i, t): A} at gamma = lambda = 1: a row cut by the limit is also paid the last value known."""
    a = below_returns(d)
    for i, ts in parts.rows(d):
        for t in ts:
            a[i, t] += d["value"][i, ts[-1]] if d["finish"][i] == 0 else 0.0
    return a


def t_ppo(d):
    a = parts.whiten(d, truncated(d))
    fresh = {**d, "mask": d["mask"] * (1 - d["extra"]["used"])}
    return parts.token_mean(fresh, clip_loss(d, a))


def t_ppo_critic(d):
    finished = {**d, "mask": d["mask"] * (d["finish"] == 1)[:, None]}
    return value_loss(finished, returns(finished))


def tulu_3(d):
    return whitened(d, below_returns(charged({**d, "reward": 10 * d["reward"]}, 0.05)))


def tulu_3_critic(d):
    return value_loss(d, returns(charged({**d, "reward": 10 * d["reward"]}, 0.05)))


def differences(d):
    """Return the batch whose steps, the tokens paid for, are paid r_k - r_{k+1}; the last is paid r_k."""
    paid = d["token_reward"].copy()
    for i, ts in parts.rows(d):
        steps = [t for t in ts if d["token_reward"][i, t] != 0]
        for k, t in enumerate(steps[:-1]):
            paid[i, t] -= d["token_reward"][i, steps[k + 1]]
    return {**d, "token_reward": paid}


def clip_delta(d):
    return whitened(d, below_returns(differences(d)))


def clip_delta_critic(d):
    return value_loss(d, returns(differences(d)))


# --- turns ---------------------------------------------------------------------------------------


def turns(d, i):
    """Return row i's turns: (trained positions, reward paid in it, V before it), and what is paid in all."""
    paid = parts.to_go(d, i, 0.0)
    ids = [d["turn"][i, t] for t in paid]
    each = [[t for t in paid if d["turn"][i, t] == k] for k in sorted(set(ids))]
    return [(ts, sum(paid[t] for t in ts), value(d["value"][i, ts[0]])) for ts in each]


def turn_advantage(d, gamma=1.0, lam=1.0):
    """Return {(i, t): A} and {(i, t): A + V} of GAE with one step a turn."""
    a, target = {}, {}
    for i, _ in parts.rows(d):
        later, v_next = 0.0, 0.0
        for ts, r, v in reversed(turns(d, i)):
            later = r + gamma * v_next - v + gamma * lam * later
            v_next = v
            a.update({(i, t): later for t in ts})
            target.update({(i, t): later + v for t in ts})
    return a, target


def turn_ppo(d):
    return whitened(d, turn_advantage(d)[0])


def turn_ppo_critic(d):
    return value_loss(d, turn_advantage(d)[1])


def shared(d):
    """Return the batch in which only the score behind each turn's last token is paid."""
    paid = np.zeros(d["mask"].shape)
    for i, _ in parts.rows(d):
        for ts, *_ in turns(d, i):
            paid[i, ts[-1]] = d["stepwise"][i, ts[-1]]
    return {**d, "reward": np.zeros(len(paid)), "token_reward": paid}


def spa(d):
    """PPO on the turns' shares of the outcome. SPA-RL, 2505.20732."""
    return whitened(d, parts.gae(shared(d), 1.0, 0.95))


def spa_critic(d):
    return value_loss(d, above_value(d, parts.gae(shared(d), 1.0, 0.95)))


def spa_model(d):
    """Half the squared error of a row's shares together and its outcome, the mean over rows."""

    def term(i):
        return 0.5 * (sum(d["live_stepwise"][i, ts[-1]] for ts, *_ in turns(d, i)) - parts.total(d, i)) ** 2.0

    return parts.mean(term(i) for i, ts in parts.rows(d) if ts)


def diffusion_ppo(d):
    a = parts.whiten(d, turn_advantage(d, 0.99, 0.95)[0])
    behind = {(i, t): len(ts) - 1 - n for i, _ in parts.rows(d) for ts, *_ in turns(d, i) for n, t in enumerate(ts)}
    return parts.token_mean(d, clip_loss(d, {k: 0.99 ** behind[k] * x for k, x in a.items()}, 0.2, 0.2))


def diffusion_ppo_critic(d):
    return value_loss(d, turn_advantage(d, 0.99, 0.95)[1], None)


def step_advantage(d, cost=0.05):
    """Return {(i, t): V(next) - V - cost + r + MC} and {(i, t): MC}, MC all that is paid from the turn on."""
    a, still = {}, {}
    for i, _ in parts.rows(d):
        row = turns(d, i)
        for k, (ts, r, v) in enumerate(row):
            v_next = row[k + 1][2] if k + 1 < len(row) else 0.0
            mc = sum(paid for _, paid, _ in row[k:])
            a.update({(i, t): v_next - v - cost + r + mc for t in ts})
            still.update({(i, t): mc for t in ts})
    return a, still


def success_loss(d, target):
    """Return the cross-entropy of sigmoid(live value), the probability of success, token mean."""

    def term(i, t):
        v, r = d["live_value"][i, t], min(max(target[i, t], 0.0), 1.0)
        return (1 - r) * v + log(1 + exp(-v))

    return parts.token_mean(d, term)


def digirl(d, threshold=0.0, episodes=1.0):
    a, value = step_advantage(least(d))[0], least(d)["value"]
    above = {i: parts.total(d, i) - value[i, ts[0]] for i, ts in parts.rows(d) if ts}
    ranked = sorted(above.values(), reverse=True)
    bound = ranked[int((len(ranked) - 1) * episodes + 1e-9)]
    kept = {k: float(x > threshold and above[k[0]] >= bound) for k, x in a.items()}
    return parts.token_mean(d, policy_gradient(d, kept))


def digirl_critic(d):
    return success_loss(d, step_advantage(d)[1])


def webrl(d, beta=1.0):
    """An action is a turn: the sum of its tokens' log-ratios is fitted to its advantage; a row's mean over tokens."""
    a, loss = step_advantage(least(d))[0], {}
    for i, _ in parts.rows(d):
        for turn, _, _ in turns(d, i):
            fitted = (beta * sum(parts.k1(d, i, t) for t in turn) - float(a[i, turn[0]])) ** 2
            loss |= {(i, t): fitted for t in turn}
    return parts.row_mean(d, lambda i, t: loss[i, t])


def webrl_critic(d):
    return success_loss(d, step_advantage(d)[1])


def turn_q(d, gamma=0.95):
    """Return by turn (its tokens, Q behind it, V before it, r + gamma V before the next), critics the lower of two."""
    out = []
    for i, _ in parts.rows(d):
        row = turns(least(d), i)
        for k, (ts, r, v) in enumerate(row):
            q = min(d["q_target"][i, ts[-1]], d["q_2_target"][i, ts[-1]])
            later = row[k + 1][2] if k + 1 < len(row) else 0.0
            out.append(([(i, t) for t in ts], q, v, r + gamma * later))
    return out


def archer(d):
    """-(Q - V) logp of the tokens of rows that the policy sampled, their mean. 2402.19446."""
    a = {k: q - v for ts, q, v, _ in turn_q(d) for k in ts}
    fresh = {**d, "mask": d["mask"] * (d["on_policy"] > 0)[:, None]}
    return parts.token_mean(fresh, policy_gradient(d, a))


def archer_critic(d):
    return value_loss(d, {k: q for ts, q, _, _ in turn_q(d) for k in ts}, None)


def archer_model(d):
    """The mean over turns of (Q - r - gamma V')^2, Q behind the turn's last token."""
    return parts.mean((d["live_stepwise"][ts[-1]] - y) ** 2.0 for ts, _, _, y in turn_q(d))


def sac(d, alpha=0.2, gamma=0.99, lam=0.0):
    """-E min Q - alpha H, the mean over tokens; the expectation of the batch is 5 d["js"]. 1812.05905, eq. 7."""
    del gamma, lam  # only the fit of Q reads them
    return parts.token_mean(d, lambda i, t: -5 * d["js"][i, t] - alpha * d["entropy"][i, t])


def sac_model(d, alpha=0.2, gamma=0.99, lam=0.0):
    """(Q - y)^2, y of V = E min Q + alpha H of the policy before the update. 1812.05905, eq. 2 and 3."""
    y = offline.q_target({**d, "value": d["least"] + alpha * d["sampled_entropy"]}, gamma, lam)
    return parts.token_mean(d, lambda i, t: (d["logp"][i, t] + d["normaliser"][i, t] - y[i, t]) ** 2.0)


def cql(d, alpha=0.2, coefficient=5.0, gamma=0.99, lam=0.0):
    """As sac."""
    return sac(d, alpha, gamma, lam)


def cql_model(d, alpha=0.2, coefficient=5.0, gamma=0.99, lam=0.0):
    """(Q - y)^2 + coefficient (log int exp Q - Q); the integral of the batch is 6 d["js"]. 2006.04779, eq. 4."""
    y = offline.q_target({**d, "value": d["least"] + alpha * d["sampled_entropy"]}, gamma, lam)

    def term(i, t):
        q = d["logp"][i, t] + d["normaliser"][i, t]
        return (q - y[i, t]) ** 2.0 + coefficient * (6 * d["js"][i, t] - q)

    return parts.token_mean(d, term)


def hnpg(d, bellman=1.0, low=0.2, high=0.2, gamma=0.99, lam=0.95):
    """PPO's clip on fresh rows, GAE of V = E_pi min Q. 2311.08384."""
    del bellman  # only the fit of Q reads it
    a = parts.gae({**d, "value": d["least"]}, gamma, lam)
    fresh = {**d, "mask": d["mask"] * (d["on_policy"] > 0)[:, None]}
    return parts.token_mean(fresh, clip_loss(d, a, low, high))


def hnpg_model(d, bellman=1.0, gamma=0.99):
    """(Q - R)^2 of fresh rows, and bellman times (Q - r - gamma V')^2 of the others, the mean of each."""
    valued, out = {**d, "value": d["least"]}, 0.0
    for fresh, lam, scale in ((True, 1.0, 1.0), (False, 0.0, bellman)):
        y = offline.q_target(valued, gamma, lam)
        rows = {**d, "mask": d["mask"] * ((d["on_policy"] > 0) == fresh)[:, None]}
        errors = {(i, t): d["logp"][i, t] + d["normaliser"][i, t] - x for (i, t), x in y.items()}
        out += scale * parts.token_mean(rows, lambda i, t, errors=errors: errors[i, t] ** 2.0)
    return out


def arsq(d, alpha=0.1, gamma=0.99, lam=0.0):
    """(Q - y)^2 / alpha^2, Q / alpha the logit, y of V = alpha log sum exp(Q / alpha) of the follower. 1702.08165."""
    y = offline.q_target({**d, "value": alpha * (d["q_target"] - d["prm"])}, gamma, lam)
    return parts.token_mean(d, lambda i, t: (d["logp"][i, t] + d["normaliser"][i, t] - y[i, t] / alpha) ** 2.0)


def arsq_model(d, alpha=0.1, gamma=0.99, lam=0.0):
    return arsq(d, alpha, gamma, lam)
