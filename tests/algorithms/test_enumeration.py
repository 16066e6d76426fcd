"""The exact expected gradient of every recipe, against what it must be, written by hand.

In the world of ``enumeration``. Epsilons of 1e-6 are left out of the formulas.
"""

import functools

import numpy as np
import pytest

from rljax import algorithms

from tests.support.enumeration import (  # isort: skip
    DELTA, ENDED, FIRST, FULL, H, J, K2, K3, KL, LOGITS, LOGP, M, N, P, PI, REF, REWARD, ROW, S, S_TOKENS,
    SEQUENCE, STATE, TO_GO, V, VISITS, Z, advantages, arrays, ascent, contract, gae, k, log_softmax, logp_of, m, p,
    pairs, probability, q, sigmoid, spread,
)  # fmt: skip


@functools.cache
def family(name):
    return ascent([n for n, f in algorithms.TABLE.items() if f.__module__.endswith(name)], arrays())


def lens():
    c, r = np.exp(LOGP.mean(axis=1)), REWARD
    first, second = np.broadcast_arrays(c[:, None], c[None])
    wrong = -0.5 * first / (2 * np.maximum(first, second) - first)  # the pair all wrong, D = 2 max c
    both = (r[:, None] == 0) & (r[None] == 0)
    return advantages(np.where(both, 0.25 * (wrong - wrong.T) / 2, Z * (r[:, None] - r[None])))


def tempo():
    same = np.cumprod(SEQUENCE[:, None] == SEQUENCE[None], axis=2)
    half = (REWARD[:, None] - REWARD[None])[:, :, None] / 2
    known = 1 - np.concatenate([np.ones((27, 27, 1)), same], axis=2)  # V = r once the row is alone, else the mean
    return advantages((half + half * np.diff(known, axis=2)) / Z)


def verifree():
    r = np.exp(LOGP[:, 2])
    centred = np.broadcast_to((r[:, None] - r[None])[:, :, None], (27, 27, 3))
    return advantages(np.where(np.arange(3) == 2, r[:, None, None], centred))


SHARED = gae(0.95, np.ones(27))
HALF = (REWARD[:, None] - REWARD[None]) / 2
MORE = (REWARD[:, None] > REWARD[None]) * 1.0
TOTAL = LOGP.sum(axis=1)
GAP = TOTAL[:, None] - TOTAL[None]


def antisymmetric(x):
    return x - x.T


def kto(beta):
    """3 times E of the slope; z is the batch's mean Delta of the other kind, each sequence as often as another."""
    z = [max(0.0, DELTA[REWARD == kind].mean()) for kind in (0.0, 1.0)]
    x = sigmoid(beta * (DELTA - np.where(REWARD > 0, z[0], z[1])))
    return 3 * contract((P * np.where(REWARD > 0, 1, -1) * beta * x * (1 - x))[:, None] * FULL)


def orpo(coefficient):
    """3 / m times E of grad m_w + coefficient sigmoid(-g) (grad m_w / (1 - e^m_w) - grad m_l / (1 - e^m_l))."""
    mean = TOTAL / 3
    odds, slope = mean - np.log(1 - np.exp(mean)), 1 / (1 - np.exp(mean))
    pull = coefficient * MORE * sigmoid(odds[None] - odds[:, None])
    return 3 / m * 2 * advantages((MORE + pull * slope[:, None] - (pull * slope[None]).T) / 3)


def same(direction, *names):
    return dict.fromkeys(names, direction)


def arsq():
    """Return the direction of -(Q - y)^2 / alpha^2, alpha 0.1: Q / alpha = logp + 1, V = alpha (V(s) + 1 - ref)."""
    y = np.zeros((27, 3))
    y[:, :2] = 0.99 * 0.1 * (V + 1 - REF)[:, 1:]
    y[:, 2] = REWARD
    return contract(P[:, None] * 2 * (y / 0.1 - LOGP - 1) * FULL)


def b_coder():
    """Return the direction of -(logp - 7 + V - y)^2, y = r + V' + ref' - 1: ref is log pi(b'), 1 the largest."""
    y = np.zeros((27, 3))
    y[:, :2] = (V + REF - 1)[:, 1:]
    y[:, 2] = REWARD
    return contract(P[:, None] * 2 * (y - LOGP + 7 - V) * FULL)


def hnpg():
    """Return the direction of A_t = sum_k (0.99 * 0.95)^k delta, V = 1 everywhere."""
    a = np.zeros((27, 4))
    for t in (2, 1, 0):
        a[:, t] = (REWARD if t == 2 else 0.99) - 1 + 0.99 * 0.95 * a[:, t + 1]
    return contract(P[:, None] * a[:, :3] * FULL)


EXPECTED = {
    # A = r - b with b constant, or of the other row alone: E A(1, .) - E A(0, .) = 1
    **same(J, "reinforce", "rloo", "remax", "filtered_cloning", "score_initial", "digirl", "prime", "vine_ppo"),
    # A = r - mean = (r1 - r2) / 2
    **same(J / 2, "dr_grpo", "opo", "otb", "brpo_budget", "reinforce_ada", "luffy", "rl_plus", "relift", "gui_g1"),
    **same(J / 2, "critique_grpo", "direct_reward_optimisation", "prime_rl", "prime_rl_length"),
    # the z-score of a mixed pair, nothing for others; whatever shapes the reward without swapping the pair
    **same(Z * J, "dapo", "dapo_filter", "gspo", "gspo_token", "luspo", "gmpo", "cispo", "sapo", "vespo", "dppo"),
    **same(Z * J, "dppo_kl", "clip_cov", "kl_cov", "forking_tokens", "skywork_or1", "stable_reinforce", "aipo"),
    **same(Z * J, "rollout_is", "tis", "icepop", "seq_mask_tis", "m2po", "kpop", "ulorl", "delethink", "mem_searcher"),
    **same(Z * J, "supo", "webagent_r1", "agent_lightning", "dr_mas", "tango", "paravt", "dph_rl", "guide_grpo"),
    **same(Z * J, "rex_rag", "exp_grpo", "cog_rethinker", "grpo_lambda", "cosine_grpo", "vl_cogito", "ada_ctrl"),
    **same(Z * J, "auto_think", "train_long_think_short", "campo", "grpo_tcr", "rlsp", "mm_upt", "rlccf"),
    **same(Z * J, "general_reasoner", "gated_reward", "ghpo", "msrl", "rrvf"),
    # other scales of a pair
    "max_rl": J,  # +-(1/2) / (1/2) on mixed pairs: q + p
    "pass_at_k": J,  # k = 1: +-(1/2) / (1/2), the population deviation
    "brpo_pairwise": J,  # +-1 on mixed pairs, lopsided ones dropped
    "attn_rl": J,  # a leaf under the root: 2 (r - mean)
    "best_minus_second": q * J,  # 1 where alone right: E A(1, .) = q, E A(0, .) = 0
    "gpg": J / 2 / m,  # over the share of mixed groups
    "rl_zvp": (Z + 0.1 * H * p) * J,  # and alpha H on pairs both right, 0 on pairs both wrong
    "longwriter_zero": 1.5 * Z * J,  # two parts equal to r, weights 1 and 1/2
    "evolving_rl": 0.2 * Z * J,
    "ui_s1": J,  # one step: twice the centred reward
    "rlvmr": J,
    "istar": 2 * Z * J,
    "critique_rl": 1.2 * J - 0.01 * K2,  # r + 0.2 r, leave-one-out
    "vision_zero": -0.1 * J,  # votes r are bad for their row: -+ beta (v1 - v2) for spy and civilian
    # signs: lambda p-side plus wrong side; the mean over kept rows is one over their share
    "w_reinforce": 1.1 * J,
    "psr": J / k,
    "nsr": J / (1 - k),
    "spiral": J / k,  # first step: b = 0, and A = 0 is dropped
    "oreal": (q / k + 0.5 * p / (1 - k)) * J,  # each side by its own tokens
    "srft": (0.1 * np.exp(H) + 1) * J,  # own rows: rl e^H right, -1 wrong
    "a_lol_reference_free": 0.75 * J,  # relu(r - 1/4)
    "a_lol": contract((P * 0.75 * REWARD * np.clip(np.exp(DELTA), 0.1, 1.9))[:, None] * FULL),
    "a_lol_token": contract((P * 0.75 * REWARD)[:, None] * np.clip(np.exp(LOGP - REF), 0.1, 1.9)),
    # batch statistics of the enumerated batch, where a sequence is as likely as any other
    **same(J / 2 / np.sqrt(m / 4 * M / (M - 1)), "ppo_clip"),
    "reinforce_plus_plus_baseline": J / 2 / np.sqrt(m / 4 * M / (M - 1)) - 1e-3 * K2,
    **same(J / np.sqrt(m * M / (M - 1)), "areal", "a_3po"),
    "gdpo": J / np.sqrt(m * N / (N - 1)),
    "lite_ppo": J / 2 / (S + 1e-4),
    "scale_rl": J / 2 / (S + 1e-4) / m,  # averaged over mixed groups
    "golongrl": J / 2 / np.sqrt(m / 2),  # mean variance of groups; solve rate 1/2 weighs 1
    "spo": J / S,
    **same(J / S_TOKENS, "mars", "absolute_zero"),
    "reinforce_plus_plus": (J - 1e-3 * KL) / spread(REWARD[:, None] - 1e-3 * TO_GO),  # k1 in the reward: exact KL
    # critics: a true value function leaves the gradient alone at any lambda, any function of the state at lambda 1
    **same(J / spread(gae(0.95)), "ppo", "vc_ppo", "twin_critics"),  # both critics are true
    **same(J / spread(REWARD[:, None] - V), "orz", "t_ppo", "clip_delta"),
    "vapo": J / spread(gae(0.0)) + 0.1 / k * J,  # |y| = 3: lambda 0; the likelihood of right rows
    "tulu_3": (10 * J - 0.05 * KL) / spread(10 * REWARD[:, None] - V - 0.05 * TO_GO),
    "spa": contract(P[:, None] * SHARED * FULL) / spread(SHARED),  # the last token is paid 1, whatever the outcome
    "turn_ppo": J / S_TOKENS,  # a bandit: r - V_0
    "diffusion_ppo": contract((P * REWARD)[:, None] * 0.99 ** np.array([2.0, 1.0, 0.0])) / S_TOKENS,
    # k3 in the loss adds forward KL; k2, and k3 with the ratio, reverse KL; state by state
    **same(Z * J - 0.04 * K3, "grpo", "rlt", "vlm_r1", "r1_sgg", "cls_rl", "process_grpo"),
    **same(Z * J - 1e-3 * K3, "r1_zero", "prorl", "intellect_2", "remix"),
    "simplerl_zoo": Z * J - 1e-4 * K3,
    "mgpo": Z * J - 0.01 * K3,
    "deepseek_v32": Z * J - 1e-3 * K2,
    "t1": J - 1e-3 * K2,
    "score": J - 0.01 * K2,
    "on_policy_distillation": -K2,  # A_t = log ref - log pi
    "gkd": 0 * J,  # its gradient is not in the log-probs of the sampled tokens: test_distillation
    # likelihoods: a constant advantage has no expected gradient; weighed by pi, half that of sum pi^2 at each state
    "sft": 0 * J,
    "dft": VISITS * PI * (PI - (PI**2).sum(axis=1, keepdims=True)),
    "nft": J / 2,  # mixed pairs: (1 - p) / (1 - p R) = 1/2 each side at p = 1/2
    # losses of rows, each of 3 tokens: 3 times the slope in Delta
    "kimi_k15": 3 * 2 * 0.1 * J / 2,  # 2 tau (r - mean)
    **same(J, "pmd_mean", "pmd_partition"),  # scaled to REINFORCE; r1 - r2 of two rows
    "a_star_po": 3 * 2e-3 * (J - 1e-3 * KL),  # 2 beta (r - V* - beta Delta)
    "gvpo": 3 * 0.1 * J,  # beta A G / (G - 1)
    "webrl": 3 * 2 * (2 * J - KL),  # one turn: A = 2 r - V - cost
    "flow_rl": 3 * 2 / 3 * (15 * Z * J - KL / 3),  # target per token
    "dpo": pairs(lambda h: 0.1 * sigmoid(-0.1 * h)),
    "spin": 0 * J,  # no row is a demonstration
    "dpo_length_normalised": pairs(lambda h: 5 / 3 * sigmoid(-5 / 3 * h)),
    "implicit_bradley_terry": pairs(lambda h: sigmoid(-h)),
    "step_apo": pairs(lambda h: 0.1 * sigmoid(0.3 - 0.1 * h)),  # V' = 0.3 r
    "ipo": pairs(lambda h: 2 * (5 - h)),
    # stored rows: weights exp(+-1/2) of a mixed pair, 1 of others; kto: slope beta sigmoid'(beta (Delta - z))
    "awr": advantages(np.exp(HALF)),
    **same(advantages(np.full((27, 27), np.exp(3.0))), "iql", "f_dvl"),  # Q - V is 1 at every token
    **same(0 * J, "ilql", "sac", "cql"),  # as gkd's
    "archer": contract(P[:, None] * (V[:, 2:] + 1 - V[:, :1]) * FULL),  # one turn: Q behind it, V before it
    **{"arsq": arsq(), "b_coder": b_coder(), "hnpg": hnpg()},
    "awac": advantages(np.exp(HALF) / np.exp(HALF).mean()),
    "kto": kto(0.1),
    "simpo": 3 / m * 2 * advantages(antisymmetric(MORE * 2 / 3 * sigmoid(1 - 2 / 3 * GAP))),
    "orpo": orpo(0.1),
    # the policy is not trained
    **same(
        0 * J, "bradley_terry", "reward_regression", "reward_classifier", "critic_warmup", "q_critics", "b_coder_values"
    ),
    **same(0 * J, "process_reward_model", "math_shepherd"),
    "p3o": 3 * (J - 0.05 * KL),  # a loss of rows: 3 times (r1 - r2) grad(logp1 - logp2) / 2
    # by definition
    **{"lens": lens(), "tempo": tempo(), "verifree": verifree()},
}
EXPECTED["score_initial"] = J - 0.1 * FIRST * K2  # the second turn is paid, the first is held


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max() + 1e-12)


def test_every_recipe_is_accounted_for():
    assert set(EXPECTED) == set(algorithms.TABLE)


@pytest.mark.default_tier("sft", "ppo")
@pytest.mark.parametrize("name", algorithms.TABLE)
def test_the_expected_gradient(name):
    close(family(algorithms.TABLE[name].__module__)[name], EXPECTED[name])


def difference(f, at=LOGITS, h=1e-5):
    """Return the numerical gradient in the logits, [13, 3]."""
    return np.array([(f(at + h * e) - f(at - h * e)) / (2 * h) for e in np.eye(39).reshape(39, 13, 3)]).reshape(13, 3)


def test_the_truth_is_the_slope_of_the_success_rate():
    np.testing.assert_allclose(difference(lambda x: probability(x) @ REWARD), J, atol=1e-9)
    kl = difference(lambda x: probability(x) @ (logp_of(x) - REF).sum(axis=1))
    np.testing.assert_allclose(kl, KL, atol=1e-9)
    together = np.stack([J, KL, K2, K3]).reshape(4, -1)
    assert np.linalg.svd(together)[1].min() > 0.02  # none is a mixture of the others


@pytest.mark.full
def test_sequences_of_different_lengths():
    """Token 2 ends a sequence. A mean over the row's tokens follows r / |y|, centred by p / |y|; sums do not."""
    last = np.where(ENDED > 0, SEQUENCE, 0)
    reward = ((last.sum(axis=1) + ENDED.sum(axis=1)) % 2 == 0) * 1.0
    inverse, d = 1 / ENDED.sum(axis=1), arrays(reward, ENDED)
    calls = {"grpo": {"kl": 0.0}, "dr_grpo": {"length": 6}, "rloo": {}}
    gradients = ascent(["reinforce", "rloo", "dr_grpo", "dapo", "grpo", "pmd_mean", "opo"], d, calls)
    truth = difference(lambda x: probability(x, ENDED) @ reward)
    short = difference(lambda x: probability(x, ENDED) @ (reward * inverse))
    short = short - (P @ reward) * difference(lambda x: probability(x, ENDED) @ inverse)
    tokens, longest = ENDED[ROW].sum() / N, np.abs(truth).max()
    assert len(set(inverse)) == 3 and np.abs(short - truth / 3).max() > 0.1 * longest
    close(gradients["reinforce"], truth)
    close(gradients["rloo"], truth)
    close(gradients["dr_grpo"], truth / 2)
    close(gradients["dapo"], Z * truth * 3 / tokens)  # one denominator for all
    close(gradients["grpo"], 3 * Z * short)
    close(gradients["pmd_mean"], 3 * short)
    length = ENDED.sum(axis=1)  # b = sum |y| r / sum |y|: own share of b is not a constant
    share = length[None] / (length[:, None] + length[None])
    a = (reward[:, None] - reward[None]) * share
    close(gradients["opo"], contract((P * (a @ P))[:, None] * ENDED) * 3 / tokens)


@pytest.mark.full
def test_away_from_the_sampler_the_clip_has_the_gradient_of_its_definition():
    """Rows of the sampler, another live policy: E over the sampler of min(A rho, A clip(rho))."""
    moved = LOGITS + 0.4 * np.random.default_rng(8).normal(size=(13, 3))
    calls = {"dr_grpo": {"low": 0.1, "high": 0.2, "length": 6}, "gspo": {"low": 0.05, "high": 0.1}}
    calls |= {"cispo": {"high": 0.1}, "aipo": {"cap": 100.0}}
    live = log_softmax(moved)[STATE, SEQUENCE]
    gradients = ascent(list(calls), arrays(live=live), calls, np.exp(log_softmax(moved)))
    centred = (REWARD - p) / 2  # E over the sibling of (r - r2) / 2
    rho, both = np.exp(live - LOGP), [(1.0, 1, 0), (-1.0, 0, 1)]

    def clipped(logits, ratio, low, high, scale):
        """Return E min(A rho, A clip rho); mixed pairs alone have A, of either sign."""
        r = ratio(logp_of(logits) - LOGP)
        total = 0.0
        for sign, mine, other in both:
            worth = np.minimum(sign * r, sign * np.clip(r, 1 - low, 1 + high)).sum(axis=1)
            total += (P * (REWARD == mine)) @ worth * (P @ (REWARD == other))
        return scale * total

    def row(d):
        return np.exp(d.mean(axis=1, keepdims=True) + 0 * d)

    close(gradients["dr_grpo"], difference(lambda x: clipped(x, np.exp, 0.1, 0.2, 0.5), at=moved))
    close(gradients["gspo"], difference(lambda x: clipped(x, row, 0.05, 0.1, Z), at=moved))
    assert np.mean(rho > 1.2) > 0.1 and np.mean(rho < 0.9) > 0.1
    pi = np.exp(log_softmax(moved))
    weight = (2 * Z * P * centred)[:, None]
    close(gradients["cispo"], contract(weight * np.minimum(rho, 1.1), pi))
    close(gradients["aipo"], contract(weight * rho, pi))
