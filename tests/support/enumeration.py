"""A world small enough to enumerate: three tokens, three steps, all 27 sequences, all 729 groups of two.

One batch holds each group once; its gradient, weighed by the probability of each group, is the expectation that
sampling estimates. ``test_enumeration`` says what it must be.
"""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np

from rljax import algorithms
from rljax.transforms import ops
from tests.algorithms import test_algorithms as battery
from tests.support import batch

SEQUENCE = np.array(list(itertools.product(range(3), repeat=3)))  # 27 sequences of 3 tokens
STATE = np.stack([np.zeros(27, int), 1 + SEQUENCE[:, 0], 4 + 3 * SEQUENCE[:, 0] + SEQUENCE[:, 1]], 1)  # 13 prefixes
LEFT, RIGHT = np.divmod(np.arange(729), 27)
ROW = np.stack([LEFT, RIGHT], 1).reshape(-1)  # the sequence of each row
N, M = 1458, 3 * 1458  # rows, tokens
LOGITS, REF_LOGITS = np.random.default_rng(5).normal(size=(2, 13, 3)) * 0.7
FULL, ENDED = np.ones((27, 3)), np.cumprod(np.pad(SEQUENCE[:, :2] != 2, ((0, 0), (1, 0)), constant_values=1), axis=1)
REWARD = (SEQUENCE @ [1, 2, 1] % 5 < 2) * 1.0
H = 0.7  # entropy, the same everywhere


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def logp_of(logits):
    return log_softmax(logits)[STATE, SEQUENCE]


def probability(logits, mask=FULL):
    """Return P(y) of each row of SEQUENCE; where sequences end early, shared among those that begin so."""
    return np.exp((logp_of(logits) * mask).sum(axis=1)) / 3.0 ** (3 - mask.sum(axis=1))


LOGP, REF = logp_of(LOGITS), logp_of(REF_LOGITS)
PI, P = np.exp(log_softmax(LOGITS)), probability(LOGITS)


def contract(weight, pi=PI):
    """Return sum over sequences and tokens of weight [27, 3] times the gradient of logp in the logits, [13, 3]."""
    out = np.zeros((13, 3))
    np.add.at(out, (STATE, SEQUENCE), weight)
    np.add.at(out, STATE, -weight[:, :, None] * pi[STATE])
    return out


def gradient_of(f):
    """Return the gradient of E f(y), f not differentiated."""
    return contract((P * f)[:, None] * FULL)


def advantages(a):
    """Return E of A(y1, y2)_t times the score: a is [27, 27] or [27, 27, 3]."""
    a = a[:, :, None] if a.ndim == 2 else a
    return contract(P[:, None] * np.sum(P[:, None] * a, axis=1) * FULL)


def state_values(reward):
    """Return V(s) = E[r | s] of the 13 prefixes."""
    total, visits = np.zeros(13), np.zeros(13)
    np.add.at(total, STATE, (P * reward)[:, None])
    np.add.at(visits, STATE, P[:, None])
    return total / visits


# --- the batch --------------------------------------------------------------------------------------


def arrays(reward=REWARD, mask=FULL, live=LOGP):
    tokens, rows = np.ones((N, 3)), np.ones(N)
    r, logp = reward[ROW], LOGP[ROW]
    named = ("format", "exploration", "votes", "verdict", "closing", "node", "edge", "ssim", "structure")
    parts = dict.fromkeys(named, r)
    parts |= dict.fromkeys(("greedy_reward", "optimal_value", "prompt_value"), 0.25 * rows)
    parts |= dict.fromkeys(
        ("flow", "unclosed", "iou", "box", "kept", "think", "easy", "tag", "length_gap", "recall"), rows
    )
    parts |= {"beats_reference": 2 * r - 1, "answer": 1 - r, "solver_success": 0.75 - 0.5 * r, "next_value": 0.3 * r}
    parts |= {"drift": 0 * rows, "rate": rows}
    extra = {"tag": np.zeros((N, 3), int)}
    extra |= {"segment": np.zeros((N, 3), int), "cut_reward": r[:, None], "used": 0 * tokens, "probe_logp": logp}
    extra |= {"reference_answer": tokens * [0, 0, 1], "match": tokens, "token_score": tokens}
    extra |= {"previous_logp": logp}
    return {
        **{"mask": mask[ROW] * 1.0, "reward": r, "group": np.arange(N) // 2, "valid": rows, "token": SEQUENCE[ROW]},
        **{"logp": live[ROW], "proximal": logp, "behaviour": logp, "raw": logp, "ref": REF[ROW], "entropy": H * tokens},
        **{"sampled_entropy": H * tokens, "square_prob": 2 * np.exp(logp)},  # equal token weights in otb
        **{"js": tokens, "scored": r, "learned": r, "prm": REF[ROW], "after": -np.ones((len(r), 3))},
        **{
            "normaliser": tokens,
            "least": tokens,
            **dict.fromkeys(("q_target", "q_2_target"), state_values(reward)[STATE][ROW] + 1.0),
        },
        **{"student": logp - (1 - r[:, None]) * tokens, "stepwise": tokens, "live_stepwise": tokens},
        **dict.fromkeys(("value", "value_2"), state_values(reward)[STATE][ROW]),
        **{"live_value": tokens, "turn": np.zeros((N, 3), int)},
        **{"version": np.zeros((N, 3), int), "episode": np.arange(N), "agent": np.zeros(N, int)},
        **{"domain": np.zeros(N, int), "on_policy": rows, "finish": rows, "outcome": r, "parts": parts, "extra": extra},
    }


CALLS = {name: calls[0] for name, calls in battery.CALLS.items()}
CALLS |= {
    "gpg": {"floor": 0.1},
    "oreal": {"kl": 0.0},
    "pass_at_k": {"k": 1},
    "ppo": {"kl": 0.0},
    "vine_ppo": {"kl": 0.0},
    "twin_critics": {"kl": 0.0},
}
CALLS |= {"rlccf": {"models": 1}, "spo": {"prompts": 729}, "clip_cov": {"bounds": (100.0, 200.0)}}  # nothing inside
PAID = {"ui_s1", "rlvmr", "istar", "tango"}  # steps are paid the row's reward once more
UNPAID = {"clip_delta", "gated_reward", "mars", "score", "score_initial"}  # token rewards of 0
UNPAID |= {"process_reward_model", "math_shepherd"}


def adapted(name, rollout):
    """Return the rollout with what this recipe needs to be more than trivial."""
    if name in PAID | UNPAID:
        rollout = rollout.replace(token_reward=rollout.reward[:, None] * ops.last_token(rollout.mask) * (name in PAID))
    if name == "process_grpo":  # a step that is right or wrong
        rollout = rollout.replace(token_reward=(2 * rollout.reward - 1)[:, None] * ops.last_token(rollout.mask))
    if name == "vine_ppo":  # true values of the states before the second and the third token
        cuts = {"cut_reward": rollout.value[:, 1:], "segment": jnp.broadcast_to(jnp.arange(3)[None], (N, 3))}
        rollout = rollout.replace(extra={**rollout.extra, **cuts})
    if name == "vision_zero":
        rollout = rollout.replace(agent=jnp.arange(N) % 2, episode=jnp.arange(N) // 2)
    if name == "score_initial":
        rollout = rollout.replace(turn=jnp.minimum(jnp.arange(3), 1)[None] + 0 * rollout.turn)
    return rollout


def scale(o):
    """Return what undoes the reduction: the loss becomes a sum over rows and tokens of single token terms."""
    name, number = re.match(r"(\w+)\((?:\w+=([\d.]+))?", o.reduce.spec).groups()
    return {"mean_over_rows_of_sums": N, "fixed_length": N * float(number or 3), "sum_over_tokens": number}.get(name, M)


def ascent(names, d, calls=CALLS, pi=PI):
    """Return the expected direction of ascent of each recipe, [13, 3]: minus the gradient, per row."""
    built = {name: algorithms.TABLE[name](**calls.get(name, {})) for name in names}

    def run(rollout, scores):
        def policy(logp, name):
            return battery.total(built[name], adapted(name, rollout), scores.replace(logp=logp))[0]

        return {name: jax.grad(policy)(scores.logp, name) for name in names}

    with jax.enable_x64(True), jax.disable_jit():  # operations are compiled once for all recipes
        gradients = run(*batch.records(d, jnp.float64))
    out, group = {}, (P[LEFT] * P[RIGHT])[:, None, None]
    for name, g in gradients.items():
        weight, per_row = np.zeros((27, 3)), np.asarray(g).reshape(729, 2, 3) * group / 2
        np.add.at(weight, LEFT, per_row[:, 0])
        np.add.at(weight, RIGHT, per_row[:, 1])
        out[name] = -contract(weight, pi) * float(scale(built[name].objectives[0]))
    return out


# --- the truth ------------------------------------------------------------------------------

p, k = P @ REWARD, REWARD.mean()  # success of the policy; share of right rows in the batch
q, m = 1 - p, 2 * k * (1 - k)  # m: the share of mixed groups in the batch
S = np.sqrt(k * (1 - k) * N / (N - 1))  # deviation of the batch's rewards; S_TOKENS over tokens
S_TOKENS = np.sqrt(k * (1 - k) * M / (M - 1))
Z = np.sqrt(0.5)  # z-score of a mixed pair: +-1/2 over sqrt(1/2); E A(1, .) - E A(0, .) = Z q + Z p
DELTA = (LOGP - REF).sum(axis=1)
VISITS = np.bincount(STATE.reshape(-1), np.repeat(P, 3))[:, None]
GAP = log_softmax(LOGITS) - log_softmax(REF_LOGITS)
J, KL = gradient_of(REWARD), gradient_of(DELTA)  # of the success rate; of the reverse KL of sequences
K2 = VISITS * PI * (GAP - (PI * GAP).sum(axis=1, keepdims=True))  # reverse KL, state by state, at fixed visits
K3 = VISITS * (PI - np.exp(log_softmax(REF_LOGITS)))  # forward KL, state by state
FIRST = (np.arange(13) == 0)[:, None]  # the root alone
TO_GO = np.cumsum((LOGP - REF)[:, ::-1], axis=1)[:, ::-1]
V = np.stack(
    [[P[STATE[:, t] == s] @ REWARD[STATE[:, t] == s] / VISITS[s, 0] for s in STATE[:, t]] for t in range(3)], 1
)


def spread(a):
    """Return the deviation over the batch's tokens, every sequence as often as any other."""
    return np.sqrt(np.var(a) * M / (M - 1))


def gae(lam, reward=REWARD):
    rise = np.diff(np.concatenate([V, reward[:, None]], axis=1), axis=1)
    return rise @ np.tril(lam ** np.maximum(np.subtract.outer(np.arange(3), np.arange(3)), 0.0))


def pairs(slope):
    """Return 3 / m times E of slope(h)(grad right - grad wrong), h the pair's difference of log-ratios.

    The mean over the batch's mixed groups (1 / m), a loss of rows counted at each of 3 tokens.
    """
    better = (REWARD[:, None] > REWARD[None]) * slope(DELTA[:, None] - DELTA[None])
    return 3 / m * 2 * advantages(better - better.T)  # a pair stands in two groups


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
