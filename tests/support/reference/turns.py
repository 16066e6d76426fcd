"""Reference losses of the recipes for turns, agents and rollouts of several rows, each from its formula."""

import math

import numpy as np

from tests.support.reference import parts


def by_step(d, i, ids="turn"):
    """Return {id: trained positions of row i} in the order of the row; ids are turns or an entry of extra."""
    table, out = d["turn"] if ids == "turn" else d["extra"][ids], {}
    for t in parts.trained(d, i):
        out.setdefault(int(table[i, t]), []).append(t)
    return out


def step_rewards(d, ids="turn"):
    """Return {(i, id): sum of the token rewards of row i's step}; the row's reward is in none."""
    return {
        (i, k): float(sum(d["token_reward"][i, t] for t in ts))
        for i, _ in parts.rows(d)
        for k, ts in by_step(d, i, ids).items()
    }


def paid_at_ends(d, rewards, ids="turn"):
    """Return the batch whose token rewards are the steps' {(i, id): r}, each at the step's last trained token."""
    paid = np.zeros(d["mask"].shape)
    for (i, k), r in rewards.items():
        paid[i, by_step(d, i, ids)[k][-1]] = r
    return d | {"token_reward": paid}


def returns(d, gamma=1.0):
    """Return {(i, t): reward from t on}."""
    return {(i, t): a for i, _ in parts.rows(d) for t, a in parts.to_go(d, i, gamma).items()}


def clip_loss(d, a, low=0.2, high=0.2, weights=None):
    """Return term(i, t): PPO's clipped loss of advantages {(i, t): A}, times {(i, t): w}."""

    def term(i, t):
        w = 1.0 if weights is None else float(weights[i, t])
        return w * parts.clipped(parts.ratio(d, i, t), float(a[i, t]), low, high)

    return term


def reinforce(d, a):
    """Return term(i, t) = -A logp."""
    return lambda i, t: -float(a[i, t]) * d["logp"][i, t]


def truncated_weights(d, cap):
    """Return {(i, t): min(exp(proximal - behaviour), cap)} (WT-02)."""
    return {
        (i, t): min(math.exp(d["proximal"][i, t] - d["behaviour"][i, t]), cap) for i, ts in parts.rows(d) for t in ts
    }


# Rollouts of several rows


def rollout_advantages(d, epsilon=1e-6):
    """Return {(i, t): A}: the z-score over the group's rollouts, each counted once by its rows' mean (AD-32)."""
    a = {}
    for i, _ in parts.rows(d):
        rewards = {}
        for j in parts.group(d, i):
            rewards.setdefault(d["episode"][j], []).append(d["reward"][j])
        once = [float(np.mean(r)) for r in rewards.values()]
        a[i] = (d["reward"][i] - np.mean(once)) / (parts.std(once) + epsilon)
    return parts.spread_out(d, a)


def rollout_means(d, term):
    """Return each rollout's token mean, for rollouts with a trained token (RE-06)."""
    losses = {}
    for i, ts in parts.rows(d):
        for t in ts:
            losses.setdefault(d["episode"][i], []).append(term(i, t))
    return [parts.mean(x) for x in losses.values()]


def delethink(d, low=0.2, high=0.26, cap=2.0):
    """Mean over rollouts of the token mean of a rollout's rows."""
    return parts.mean(rollout_means(d, clip_loss(d, rollout_advantages(d), low, high, truncated_weights(d, cap))))


def agent_lightning(d, low=0.2, high=0.2, cap=2.0):
    """Sum over rollouts of the token mean of a rollout's rows, by the number of rows."""
    term = clip_loss(d, rollout_advantages(d), low, high, truncated_weights(d, cap))
    return sum(rollout_means(d, term), 0.0) * (1.0 / sum(bool(ts) for _, ts in parts.rows(d)))


def mem_searcher(d, low=0.2, high=0.2):
    """Row mean of clipped losses."""
    return parts.row_mean(d, clip_loss(d, rollout_advantages(d), low, high))


def supo(d, low=0.2, high=0.2):
    """Token mean of clipped losses over rollouts none of whose rows was cut; statistics over all."""
    term = clip_loss(d, rollout_advantages(d), low, high)
    cut = {d["episode"][i] for i, _ in parts.rows(d) if d["finish"][i] == 0}
    return parts.mean(term(i, t) for i, ts in parts.rows(d) if d["episode"][i] not in cut for t in ts)


def webagent_r1(d, low=0.2, high=0.2):
    """Mean over tokens of a turn, turns of a rollout, rollouts (RE-07)."""
    term = clip_loss(d, rollout_advantages(d), low, high)
    rollouts = {}
    for i, _ in parts.rows(d):
        for k, ts in by_step(d, i).items():
            rollouts.setdefault(d["episode"][i], {}).setdefault(k, []).extend(term(i, t) for t in ts)
    return parts.mean(parts.mean(parts.mean(losses) for losses in turns.values()) for turns in rollouts.values())


def mgpo(d, kl=0.01, low=0.2, high=0.2):
    """Token mean of the clipped loss with the rollout's advantage, and of k3."""
    term = clip_loss(d, rollout_advantages(d), low, high)
    return parts.token_mean(d, lambda i, t: term(i, t) + kl * parts.k3(d, i, t))


# Agents


def distinct(values, tolerance=1e-6):
    """Return the values in order without those that differ by less than the tolerance from the one before."""
    out = []
    for v in sorted(values):
        if not out or v - out[-1] >= tolerance:
            out.append(v)
    return out


def mars(d, gamma=1.0, low=0.2, high=0.2):
    """Token mean; turn rewards centred by player, returns, distinct returns centred by player, whitened (AD-31)."""
    turns = step_rewards(d)
    centred = {}
    for (i, k), r in turns.items():
        centred[i, k] = r - np.mean([x for (j, _), x in turns.items() if d["agent"][j] == d["agent"][i]])
    a = returns(paid_at_ends(d, centred), gamma)
    baseline = {
        p: np.mean(distinct([x for (j, _), x in a.items() if d["agent"][j] == p]))
        for p in {d["agent"][i] for i, _ in a}
    }
    white = parts.whiten(d, {(i, t): x - baseline[d["agent"][i]] for (i, t), x in a.items()})
    return parts.token_mean(d, clip_loss(d, white, low, high))


def spiral(d, baseline=(0.0, 0.0)):
    """REINFORCE with A = R - b_role over the tokens with A other than 0 (AD-20)."""
    a = parts.spread_out(d, {i: d["reward"][i] - baseline[d["agent"][i]] for i, _ in parts.rows(d)})
    term = reinforce(d, a)
    return parts.mean(term(i, t) for (i, t), x in a.items() if x != 0)


def vote_rewards(d, beta, lam):
    """Return {i: r} of the voting game: spy -beta Psi, civilian its share less lam (votes - mean votes) (RW-27)."""
    votes, rewards = d["parts"]["votes"], {}
    for i, _ in parts.rows(d):
        game = [j for j, _ in parts.rows(d) if d["episode"][j] == d["episode"][i]]
        spies = [votes[j] for j in game if d["agent"][j] == 0]
        civilians = [votes[j] for j in game if d["agent"][j] != 0]
        psi = float(np.mean(spies) - np.mean(civilians)) if spies and civilians else 0.0
        if d["agent"][i] == 0:
            rewards[i] = -beta * psi
        else:
            rewards[i] = beta * psi * len(spies) / len(civilians) - lam * float(votes[i] - np.mean(civilians))
    return rewards


def vision_zero(d, beta=0.1, lam=0.1):
    """Token mean of REINFORCE on the votes, the roles' baselines being 0."""
    return parts.token_mean(d, reinforce(d, parts.spread_out(d, vote_rewards(d, beta, lam))))


def agent_advantages(d, epsilon=1e-6):
    """Return {(i, t): A}: the z-score over rows of the same group and agent (AD-07)."""
    a = {}
    for i, _ in parts.rows(d):
        calls = [d["reward"][j] for j in parts.group(d, i) if d["agent"][j] == d["agent"][i]]
        a[i] = (d["reward"][i] - np.mean(calls)) / (parts.std(calls) + epsilon)
    return parts.spread_out(d, a)


def dr_mas(d, low=0.2, high=0.2, epsilon=1e-6):
    """Row mean of clipped losses."""
    return parts.row_mean(d, clip_loss(d, agent_advantages(d, epsilon), low, high))


def evolving_rl(d, weights=(0.2, 1.0), low=0.2, high=0.2):
    """Token mean of clipped losses times the role's weight (WT-19)."""
    a = agent_advantages(d)
    role = {(i, t): weights[d["agent"][i]] for i, t in a}
    return parts.token_mean(d, clip_loss(d, a, low, high, role))


# Attempts


def score_initial(d, kl=0.1):
    """Sum over tokens, mean over rows: REINFORCE on what is paid in turn 1, k2 on turn 0 (PE-12)."""
    paid, reward = np.zeros(d["mask"].shape), np.zeros(len(d["reward"]))
    for i, ts in parts.rows(d):
        for t in ts:
            paid[i, t] = d["token_reward"][i, t] if d["turn"][i, t] == 1 else 0.0
        if ts and d["turn"][i, ts[-1]] == 1:  # the row's reward lies at its last trained token
            reward[i] = d["reward"][i]
    a = returns(d | {"token_reward": paid, "reward": reward})
    held = parts.row_sum_mean(d, lambda i, t: parts.k2(d, i, t) if d["turn"][i, t] == 0 else 0.0)
    return parts.row_sum_mean(d, reinforce(d, a)) + kl * held


def score(d, alpha=10.0, kl=0.01):
    """Sum over tokens, mean over rows: REINFORCE with r2 + alpha (r2 - r1) on turn 1, k2 everywhere (RW-16)."""
    totals, paid = step_rewards(d), np.array(d["token_reward"], np.float64)
    for i, _ in parts.rows(d):
        if (i, 0) in totals and (i, 1) in totals:
            paid[i, by_step(d, i)[1][-1]] += alpha * (totals[i, 1] - totals[i, 0])
    a = returns(d | {"token_reward": paid})
    return parts.row_sum_mean(d, reinforce(d, a)) + kl * parts.row_sum_mean(d, lambda i, t: parts.k2(d, i, t))


def critique_rl(d, bonus=0.2, kl=0.01):
    """Sum over tokens, mean over rows: leave-one-out REINFORCE on r + bonus verdict, k2 (RW-17)."""
    a = parts.spread_out(d, parts.leave_one_out(d | {"reward": d["reward"] + bonus * d["parts"]["verdict"]}))
    return parts.row_sum_mean(d, reinforce(d, a)) + kl * parts.row_sum_mean(d, lambda i, t: parts.k2(d, i, t))


# Steps


def step_advantages(d, rewards, key, ids="turn", z=False):
    """Return {(i, t): A}: the step's reward centred (or its z-score) over the steps of equal key(i, id)."""
    out = {}
    for (i, k), r in rewards.items():
        same = [x for (j, m), x in rewards.items() if key(j, m) == key(i, k)]
        a = (r - np.mean(same)) / ((parts.std(same) + 1e-6) if z else 1.0)
        out |= {(i, t): a for t in by_step(d, i, ids)[k]}
    return out


def mixed(d, episode, steps, episode_weight=1.0, step_weight=1.0):
    """Return {(i, t): episode_weight A_i + step_weight A_t} (AD-30)."""
    return {(i, t): episode_weight * episode[i] + step_weight * a for (i, t), a in steps.items()}


def turn_returns(d, gamma):
    """Return {(i, turn): R}, R = r + gamma R of the next turn where every token matches, else r (RW-31)."""
    out, totals = {}, step_rewards(d)
    for i, _ in parts.rows(d):
        later = 0.0
        for k, ts in reversed(list(by_step(d, i).items())):
            match = all(d["extra"]["match"][i, t] > 0 for t in ts)
            later = totals[i, k] + (gamma * later if match else 0.0)
            out[i, k] = later
    return out


def ui_s1(d, gamma=0.5, episode=1.0, step=1.0):
    """Token mean; centred row rewards plus the turns' returns centred over (group, turn)."""
    steps = step_advantages(d, turn_returns(d, gamma), lambda i, k: (d["group"][i], k))
    return parts.token_mean(d, clip_loss(d, mixed(d, parts.centred(d), steps, episode, step)))


def rlvmr(d, step=1.0, low=0.2, high=0.2):
    """Token mean; centred row rewards plus the tagged steps' rewards centred over (group, tag)."""
    steps = step_advantages(d, step_rewards(d, "tag"), lambda i, k: (d["group"][i], k), "tag")
    return parts.token_mean(d, clip_loss(d, mixed(d, parts.centred(d), steps, 1.0, step), low, high))


def istar(d, alpha=1.0, low=0.2, high=0.2):
    """Token mean; the row's z-score plus alpha times the z-score of the turns' rewards in the group."""
    steps = step_advantages(d, step_rewards(d), lambda i, k: d["group"][i], z=True)
    return parts.token_mean(d, clip_loss(d, mixed(d, parts.zscore(d), steps, 1.0, alpha), low, high))


def process_grpo(d, low=0.2, high=0.2, kl=0.04):
    """Row mean; the sum of the later steps' rewards, each less the mean of the group's steps and over their spread."""
    paid = {i: [(t, d["token_reward"][i, t]) for t in ts if d["token_reward"][i, t] != 0] for i, ts in parts.rows(d)}
    a = {}
    for i, ts in parts.rows(d):
        among = [p for j in parts.group(d, i) for _, p in paid[j]]
        mean, spread = np.mean(among or [0.0]), parts.std(among) + 1e-6
        a |= {(i, t): sum((p - mean) / spread for s, p in paid[i] if s >= t) for t in ts}
    return parts.row_mean(d, clip_loss(d, a, low, high)) + parts.row_mean(d, lambda i, t: kl * parts.k3(d, i, t))


def tango(d, alpha=0.5):
    """Token mean; (1 - alpha) of the row's z-score plus alpha of its steps', alpha being that of the first step."""
    steps = step_advantages(d, step_rewards(d), lambda i, k: d["group"][i], z=True)
    return parts.token_mean(d, clip_loss(d, mixed(d, parts.zscore(d), steps, 1 - alpha, alpha)))


def paravt(d, success=0.4, flow=0.3, unclosed=-0.3, scale=0.5):
    """Row mean; GRPO on r + scale (success closing + flow flow + unclosed unclosed) (RW-28)."""
    part = d["parts"]
    paid = scale * (success * part["closing"] + flow * part["flow"] + unclosed * part["unclosed"])
    return parts.row_mean(d, clip_loss(d, parts.spread_out(d, parts.zscore(d | {"reward": d["reward"] + paid}))))
