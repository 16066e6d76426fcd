"""Reference losses of the recipes that train a reward model, written from the papers' formulas in plain loops."""

from tests.support.reference import parts
from tests.support.reference.dual import log, sigmoid
from tests.support.reference.policy_gradient import clip_loss


def _counted(d):
    return [i for i, ts in parts.rows(d) if ts]


def bradley_terry(d, margin=0.0, ties=None, center=0.0, learned=None):
    """The mean over a group's pairs, then over groups with one by rows. 2203.02155, eq. 1; 2410.05328; 2312.09244."""
    learned = d["learned"] if learned is None else learned
    counted, result, rows = _counted(d), 0.0, 0
    for name in sorted({d["group"][i] for i in counted}):
        members, losses = [i for i in counted if d["group"][i] == name], []
        for i in members:
            for j in members:
                gap, x = parts.total(d, i) - parts.total(d, j), learned[i] - learned[j]
                extra = center * (learned[i] + learned[j]) ** 2.0
                if gap > 0:
                    losses.append(extra - log(sigmoid(x - margin * gap - (ties or 0.0))))
                elif gap == 0 and i < j and ties is not None:
                    losses.append(extra - log(1.0 - sigmoid(x - ties) - sigmoid(-x - ties)))
        if losses:
            result, rows = result + parts.mean(losses) * len(members), rows + len(members)
    return result * (1.0 / max(rows, 1))


def implicit_bradley_terry(d, beta=1.0, margin=0.0, ties=None, center=0.0):
    """The same with the reward that DPO implies, beta times the sum of log-ratios. 2305.18290, eq. 7."""
    learned = {i: beta * sum((d["logp"][i, t] - d["ref"][i, t] for t in ts), 0.0) for i, ts in parts.rows(d)}
    return bradley_terry(d, margin, ties, center, learned)


def reward_regression(d):
    """Half the squared error."""
    return parts.mean(0.5 * (d["learned"][i] - parts.total(d, i)) ** 2.0 for i in _counted(d))


def reward_classifier(d, levels=(0.5,), cuts=None):
    """The sum over levels of the cross-entropy of "the reward is above the level". 2110.14168."""
    cuts = range(len(levels)) if cuts is None else cuts

    def term(i):
        sign = [1.0 if parts.total(d, i) > level else -1.0 for level in levels]
        return sum((-log(sigmoid((d["learned"][i] - cut) * s)) for s, cut in zip(sign, cuts, strict=True)), 0.0)

    return parts.mean(term(i) for i in _counted(d))


def process_reward_model(d, labels=None):
    """The cross-entropy of "the step is right" over labelled places, each as often as another. 2305.20050."""
    labels = d["token_reward"] if labels is None else labels
    places = [(i, t) for i, ts in parts.rows(d) for t in ts if labels[i, t] != 0]
    return parts.mean(-log(sigmoid(d["live_stepwise"][i, t] * (1.0 if labels[i, t] > 0 else -1.0))) for i, t in places)


def math_shepherd(d, threshold=0.0):
    """The same, a step right if more than a share of the rows that begin alike is. 2312.08935, hard estimation."""
    labels = {}
    for i, ts in parts.rows(d):
        for t in ts:
            alike = [j for j in parts.group(d, i) if max(parts.trained(d, j), default=-1) >= t]
            alike = [j for j in alike if list(d["token"][j, : t + 1]) == list(d["token"][i, : t + 1])]
            share = sum(d["outcome"][j] == 1 for j in alike) / len(alike)
            labels[i, t] = float(d["token_reward"][i, t] != 0) * (1.0 if share > threshold else -1.0)
    return process_reward_model(d, labels)


def _others(d, values, i):
    members = [j for j in parts.group(d, i) if j != i and d["agent"][j] == d["agent"][i]]
    return sum(values[j] for j in members) / len(members) if members else values[i]


def prime(d, beta=0.05, gamma=1.0):
    """Process rewards beta log(prm / ref), less the others' mean per token, to go; and leave-one-out. 2502.01456."""
    paid, a = beta * (d["prm"] - d["ref"]), {}
    mean = {i: sum(paid[i, t] for t in ts) / max(len(ts), 1) for i, ts in parts.rows(d)}
    for i, ts in parts.rows(d):
        base, outcome = _others(d, mean, i), d["reward"][i] - _others(d, d["reward"], i)
        for n, t in enumerate(ts):
            a[i, t] = outcome + sum(gamma**k * (paid[i, s] - base) for k, s in enumerate(ts[n:]))
    return parts.token_mean(d, clip_loss(d, a))


def prime_model(d, beta=0.05):
    """The cross-entropy of "the row is right" and beta times the sum of log-ratios to the reference."""

    def term(i, ts):
        learned = sum((d["logp"][i, t] - d["ref"][i, t] for t in ts), 0.0) * beta
        return -log(sigmoid(learned if d["outcome"][i] == 1 else -learned))

    return parts.mean(term(i, ts) for i, ts in parts.rows(d) if ts)
