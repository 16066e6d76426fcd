"""Reference losses of the recipes that differ in their reward, each from its formula in plain loops."""

import math

import numpy as np

from tests.support.reference import parts
from tests.support.reference.dual import exp, sigmoid, value


def shaped(d, rewards):
    """Return the batch with rewards {i: r}."""
    reward = np.array(d["reward"], np.float64)
    for i, r in rewards.items():
        reward[i] = r
    return {k: v for k, v in d.items() if k != "token_reward"} | {"reward": reward}


def lengths(d):
    """Return {i: number of trained tokens}."""
    return {i: len(ts) for i, ts in parts.rows(d)}


def standardised(x, values):
    """Return (x - mean) / std with ddof 0; 0 where the values do not vary."""
    deviation = parts.std(values, 0)
    return (x - float(np.mean(values))) / deviation if deviation > 0 else 0.0


def solved(d, i):
    """Return the share of the group's rows with reward above 0."""
    return float(np.mean([d["reward"][j] > 0 for j in parts.group(d, i)]))


def clip_loss(d, a, low=0.2, high=0.2, weights=None):
    """Return term(i, t): PPO's clipped loss of advantages {i: A}, times {i: w}."""

    def term(i, t):
        w = 1.0 if weights is None else float(weights[i])
        return w * parts.clipped(parts.ratio(d, i, t), float(a[i]), low, high)

    return term


def grpo(d, rewards, low=0.2, high=0.2, kl=0.0):
    """Return GRPO's loss on rewards {i: r}: z-score, clip, row mean, k3."""
    loss = parts.row_mean(d, clip_loss(d, parts.zscore(shaped(d, rewards)), low, high))
    return loss + kl * parts.row_mean(d, lambda i, t: parts.k3(d, i, t)) if kl else loss


def grpo_lambda(d, share=0.2, alpha=0.5):
    """1 - alpha sigmoid(z(len)) on right rows and 0 on wrong rows of the groups solved best (RW-05)."""
    rates, size = {}, lengths(d)
    for i, _ in parts.rows(d):
        rates.setdefault(d["group"][i], solved(d, i))
    best = sorted(rates, key=lambda g: -rates[g])[: math.ceil(share * len(rates))]  # a stable sort keeps row order
    rewards = {}
    for i, _ in parts.rows(d):
        rewards[i] = d["reward"][i]
        if d["group"][i] in best:
            right = [size[j] for j in parts.group(d, i) if d["reward"][j] > 0]
            rewards[i] = 1 - alpha * sigmoid(standardised(size[i], right)) if d["reward"][i] > 0 else 0.0
    return grpo(d, rewards)


def cosine_grpo(d, limit=6, correct=(0.5, 1.0), wrong=(-1.0, -0.5)):
    """Half a cosine from the value at length 0 to that at the limit; wrong rows run upwards (RW-03)."""
    rewards = {}
    for i, n in lengths(d).items():
        start, end = (correct[1], correct[0]) if d["reward"][i] > 0 else (wrong[0], wrong[1])
        rewards[i] = end + 0.5 * (start - end) * (1 + math.cos(math.pi * n / limit))
    return grpo(d, rewards)


def repetition(tokens, n=3):
    """Return -(1 - unique / total) over the n-grams; 0 where there is none (RW-13)."""
    grams = [tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1)]
    return -(1 - len(set(grams)) / len(grams)) if grams else 0.0


def sibling_rewards(d, limit):
    """Return {i: r} of the correct-sibling cosine and the repetition penalty on wrong rows (RW-07)."""
    size, rewards = lengths(d), {}
    for i, ts in parts.rows(d):
        rewards[i] = d["reward"][i]
        if rewards[i] <= 0:
            right = [size[j] for j in parts.group(d, i) if d["reward"][j] > 0]
            target = float(np.mean(right)) if right else float(limit)
            n = min(size[i], 2 * target)
            rewards[i] += -0.5 * 0.5 * (1 + math.cos(math.pi * n / target))
        if rewards[i] <= 0:
            rewards[i] += repetition([int(d["token"][i, t]) for t in ts])
    return rewards


def difficulty(d, i, kind):
    """Return w(p), p the group's solve rate (WT-17)."""
    p = solved(d, i)
    if p == 0:
        return 0.25 if kind == "hard" else 0.0
    return 1.0 if kind == "hard" and p <= 0.5 else math.cos(math.pi * (p - 0.5))


def vl_cogito(d, limit=4):
    """Row mean of clipped losses times the hard stage's difficulty weight."""
    s = shaped(d, sibling_rewards(d, limit))
    weights = {i: difficulty(s, i, "hard") for i, _ in parts.rows(s)}
    return parts.row_mean(d, clip_loss(d, parts.zscore(s), weights=weights))


def tag_rewards(d):
    """Return {i: r}: +-1, the tag, and 1 - (1 - cos(pi len / L_max)) / 2 on right rows tagged easy (RW-08)."""
    size, rewards = lengths(d), {}
    for i, _ in parts.rows(d):
        right = d["reward"][i] > 0
        rewards[i] = (1.0 if right else -1.0) + d["parts"]["tag"][i]
        if right and d["parts"]["easy"][i] > 0:
            longest = max(size[j] for j in parts.group(d, i))
            rewards[i] += 1 - 0.5 * (1 - math.cos(math.pi * size[i] / longest)) if longest else 1.0
    return rewards


def ada_ctrl(d):
    """GRPO on outcome, tag and easy brevity."""
    return grpo(d, tag_rewards(d))


def mode_rewards(d, alpha, beta):
    """Return {i: r}: think +1 / 0, no-think +2 / -1; then e^-az - 1 right, 1 - e^-bz wrong (RW-09)."""
    size, rewards = lengths(d), {}
    for i, _ in parts.rows(d):
        right, think = d["reward"][i] > 0, d["parts"]["think"][i] > 0
        r = (1.0 if right else 0.0) if think else (2.0 if right else -1.0)
        z = standardised(size[i], [size[j] for j in parts.group(d, i)])
        rewards[i] = r + (math.exp(-alpha * z) - 1 if r > 0 else 1 - math.exp(-beta * z))
    return rewards


def auto_think(d, alpha=0.05, beta=0.05):
    """GRPO on mode and length; a limit of 1 leaves the mode's balance out."""
    return grpo(d, mode_rewards(d, alpha, beta))


def train_long_think_short(d, budget=4.0, decay=0.9, every=100, correct=1.0, length=0.5, step=0):
    """GRPO on the outcome plus a triangle around B = max(1, budget decay^floor(step / every)) (RW-10)."""
    top = max(1.0, budget * decay ** (step // every))
    size = lengths(d)
    return grpo(d, {i: correct * d["reward"][i] + length * max(0.0, 1 - abs(n - top) / top) for i, n in size.items()})


def looping(tokens, longest=8):
    """Say whether the last p tokens equal the p before them, for some p up to ``longest``."""
    n = len(tokens)
    return any(tokens[n - p :] == tokens[n - 2 * p : n - p] for p in range(1, longest + 1) if 2 * p <= n)


def campo(d, penalty=0.2, low=0.2, high=0.2):
    """Token mean of clipped losses; truncated rows with a looping tail pay a constant (RW-13)."""
    rewards = {}
    for i, ts in parts.rows(d):
        loops = d["finish"][i] == 0 and looping([int(d["token"][i, t]) for t in ts])
        rewards[i] = d["reward"][i] - (penalty if loops else 0.0)
    return parts.token_mean(d, clip_loss(d, parts.zscore(shaped(d, rewards)), low, high))


def grpo_tcr(d, limit=5, cache=3, low=0.2, high=0.28):
    """Token mean of clipped losses; r + min(0, -(len - (limit - cache)) / cache), no less than -1 (RW-02)."""
    rewards = {i: d["reward"][i] - min(max((n - (limit - cache)) / cache, 0.0), 1.0) for i, n in lengths(d).items()}
    return parts.token_mean(d, clip_loss(d, parts.zscore(shaped(d, rewards)), low, high))


def rlsp(d, alpha=0.8):
    """Reward: alpha r + (1 - alpha) exploration (RW-23)."""
    explored = d["parts"]["exploration"]
    return grpo(d, {i: alpha * d["reward"][i] + (1 - alpha) * explored[i] for i, _ in parts.rows(d)})


def counts(answers):
    """Return {answer: how often}."""
    return {a: answers.count(a) for a in answers}


def first_best(score):
    """Return the smallest key among those of the highest score."""
    return min(score, key=lambda a: (-score[a], a))


def readable(d, rows):
    """Return the rows whose answer could be read."""
    return [i for i in rows if d["outcome"][i] != 2]


def mm_upt(d):
    """1[answer = the group's majority], the smallest id among equals (RW-18); unreadable rows: no vote, no reward."""
    answer, rewards = d["parts"]["answer"], {}
    for i, _ in parts.rows(d):
        votes = counts([answer[j] for j in readable(d, parts.group(d, i))])
        rewards[i] = float(i in readable(d, [i]) and answer[i] == first_best(votes))
    return grpo(d, rewards)


def rlccf(d, models=2):
    """1[answer = argmax_a sum_m SC_m n_m(a)], SC_m the share of model m's own majority (RW-18)."""
    answer, rewards = d["parts"]["answer"], {}
    for i, _ in parts.rows(d):
        score = {}
        for m in range(models):
            votes = counts([answer[j] for j in readable(d, parts.group(d, i)) if d["agent"][j] == m])
            for a, n in votes.items():
                score[a] = score.get(a, 0.0) + max(votes.values()) / sum(votes.values()) * n
        rewards[i] = float(i in readable(d, [i]) and answer[i] == first_best(score))
    return grpo(d, rewards)


def general_reasoner(d, weight=0.05, limit=10.0):
    """Right: 1 - weight min(limit, |gap|); wrong: 0; unparseable: -0.5 (RW-12)."""
    rewards = {}
    for i, _ in parts.rows(d):
        gap = abs(d["parts"]["length_gap"][i])
        rewards[i] = 1.0 - weight * min(limit, gap) if d["reward"][i] > 0 else 0.0
        if d["outcome"][i] == 2:
            rewards[i] = -0.5
    return grpo(d, rewards)


def student_rewards(d):
    """Return {i: r}: mean + 0.01 min of the student on the solution - (3 mean + 0.03 max) of the gap (RW-21)."""
    rewards = {}
    for i, ts in parts.rows(d):
        solution = list(d["after"][i])
        gap = [d["raw"][i, t] - d["student"][i, t] for t in ts]
        understood = np.mean(solution) + 0.01 * min(solution)
        followed = 3 * np.mean(gap) + 0.03 * max(gap) if gap else 0.0
        rewards[i] = -1.0 if d["outcome"][i] == 2 else float(understood - followed)
    return rewards


def rlt(d, kl=0.04):
    """GRPO with k3 on the student's likelihood."""
    return grpo(d, student_rewards(d), kl=kl)


def gated_reward(d, threshold=1.0, low=0.2, high=0.2):
    """R + 1[R >= threshold] sum_t r_t, one reward for the row (RW-15)."""
    rewards = {}
    for i, ts in parts.rows(d):
        dense = sum(d["token_reward"][i, t] for t in ts)
        rewards[i] = d["reward"][i] + (dense if d["reward"][i] >= threshold else 0.0)
    return grpo(d, rewards, low, high)


def gui_g1(d, alpha=0.25, beta=0.125, length=64.0):
    """Sum over tokens / (rows * length) of the row's rate times the clipped loss of centred r + alpha IoU + beta box.

    The release: loss = mean over rows of sum_t(clipped loss) * rate / 64; the rate comes with the prompt.
    """
    part = d["parts"]
    s = shaped(d, {i: d["reward"][i] + alpha * part["iou"][i] + beta * part["box"][i] for i, _ in parts.rows(d)})
    weights = {i: part["rate"][i] for i, _ in parts.rows(d)}
    return parts.row_sum_mean(d, clip_loss(d, parts.centred(s), weights=weights)) * (1.0 / length)


def vlm_r1(d, kl=0.04):
    """Z-score of IoU + format (RW-28), clip, row mean, 0.04 k3."""
    part = d["parts"]
    return grpo(d, {i: part["iou"][i] + part["format"][i] for i, _ in parts.rows(d)}, kl=kl)


def r1_sgg(d, kl=0.04):
    """Z-score of 2 node + 2 box + 5 edge + format, the weights of the release."""
    weights = {"node": 2.0, "box": 2.0, "edge": 5.0, "format": 1.0}
    rewards = {i: sum(w * d["parts"][name][i] for name, w in weights.items()) for i, _ in parts.rows(d)}
    return grpo(d, rewards, kl=kl)


def cls_rl(d, kl=0.04):
    """Z-score of accuracy + format (RW-01)."""
    return grpo(d, {i: d["reward"][i] + d["parts"]["format"][i] for i, _ in parts.rows(d)}, kl=kl)


def msrl(d, first=100, visual=0.5, low=0.2, high=0.2, step=0):
    """Structure in the first stage, then a mean of structure and ssim."""
    share, part = visual * (step >= first), d["parts"]
    mixed = {i: (1 - share) * part["structure"][i] + share * part["ssim"][i] for i, _ in parts.rows(d)}
    return grpo(d, mixed, low, high)


def rrvf(d, format=0.1, low=0.2, high=0.2):
    """The ssim of the rendered picture, and its format."""
    part = d["parts"]
    return grpo(d, {i: part["ssim"][i] + format * part["format"][i] for i, _ in parts.rows(d)}, low, high)


def absolute_zero(d, low=0.2, high=0.2):
    """Token mean; agent 0 gets 1 - s where s > 0 else -0.5, -1 malformed; whitened over tokens of a (domain, agent)."""
    rewards = {}
    for i, _ in parts.rows(d):
        s = d["parts"]["solver_success"][i]
        rewards[i] = -1.0 if d["outcome"][i] == 2 else (1 - s if s > 0 else -0.5)
        if d["agent"][i] > 0:
            rewards[i] = d["reward"][i]
    by_key = {}
    for (i, t), a in parts.spread_out(d, rewards).items():
        by_key.setdefault((d["domain"][i], d["agent"][i]), {})[i, t] = a
    white = {}
    for tokens in by_key.values():
        white |= parts.whiten(d, tokens)
    return parts.token_mean(d, lambda i, t: parts.clipped(parts.ratio(d, i, t), float(white[i, t]), low, high))


def prime_rl_length(d, output=0.1, low=0.2):
    """Token mean of -A sg(rho) logp, without tokens whose probability moved by ``low`` with A (RW-11, SU-11)."""
    size, rewards = lengths(d), {}
    for i, _ in parts.rows(d):
        others = parts.group(d, i)
        longest = max(size[j] for j in others)
        share = size[i] / longest if longest else 0.0
        rewards[i] = d["reward"][i] - float(np.mean([d["reward"][j] for j in others])) * output * share
    a = parts.centred(shaped(d, rewards))

    def term(i, t):
        moved = math.exp(value(d["logp"][i, t])) - math.exp(d["behaviour"][i, t])
        kept = not ((a[i] > 0 and moved > low) or (a[i] < 0 and -moved > low))
        return -float(a[i]) * value(exp(d["logp"][i, t] - d["behaviour"][i, t])) * kept * d["logp"][i, t]

    return parts.token_mean(d, term)
