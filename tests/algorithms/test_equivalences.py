"""Recipes that are others in a special case: one of each pair has the gradient of the other."""

import functools
import math

import jax
import numpy as np
import pytest

from rljax import algorithms
from rljax.algorithms import interpreter
from rljax.transforms import advantage, prepare, ratio, reduce, schedule, surrogate, weight
from tests.algorithms.test_properties import KEY, close, policy_loss, program, slope
from tests.support import batch
from tests.support.batch import B, T

TABLE, compose = algorithms.TABLE, algorithms.compose


def grpo(*loss, scale=None, aggregate=None):
    loss, scale = loss or (ratio.token(), surrogate.clip()), scale or [advantage.scale_by_group()]
    return compose(advantage=[advantage.center_by_group(), *scale], loss=loss, reduce=aggregate or ROWS)


def with_(d, **changes):
    deep = {k: d[k] | changes.pop(k) for k in ("parts", "extra") if k in changes}
    return d | deep | {k: np.asarray(v) for k, v in changes.items()}


ROWS, TOKENS, SUMS = reduce.mean_over_rows(), reduce.mean_over_tokens(), reduce.mean_over_rows_of_sums()
D = batch.arrays()
FRESH = with_(D, proximal=D["logp"], behaviour=D["logp"])
SAME = with_(D, behaviour=D["proximal"])
OWN = with_(D, on_policy=np.ones(B))
MIXED = with_(D, reward=np.where(np.arange(B) == 9, 1, D["reward"]))
PLAIN = with_(SAME, episode=np.arange(B), turn=np.zeros((B, T), int), agent=np.zeros(B, int), finish=np.ones(B, int))
SHORT = with_(D, mask=D["mask"] * (np.arange(T) == 0))
FOURS = with_(
    D, group=np.arange(B) // 4, valid=np.ones(B), mask=np.ones((B, T)), agent=np.zeros(B, int), episode=np.arange(B)
)
PAID = with_(PLAIN, token_reward=np.zeros((B, T)))
MEAN = np.array([D["reward"][(D["group"] == g) & (D["valid"] > 0)].mean() for g in D["group"]])
FORMAT = D["parts"]["format"]
SHIFT = np.array([0.7 if g == 7 else -0.4 for g in D["group"]])
CLIP = (ratio.token(), surrogate.clip())
REINFORCE = (surrogate.reinforce(),)
CENTRED = [advantage.center_by_group()]
FAR, NONE = 1e9, float("inf")
LOG_12 = math.log(1.2)


def summed(a, kept=()):
    return compose(advantage=[a], prepare=kept, loss=CLIP, reduce=reduce.sum_over_tokens())


def call(name, **arguments):
    return TABLE[name](**arguments)


# what, left, right, batch (or two: one for each), factor
EQUAL = [
    ("pass@1", call("pass_at_k", k=1, high=0.2), grpo(scale=[advantage.scale_by_group(ddof=0)], aggregate=TOKENS), D),
    ("gspo on one token", call("gspo", low=0.2, high=0.2), grpo(), SHORT),
    ("gmpo on one token", call("gmpo", epsilon=LOG_12), grpo(ratio.token(), surrogate.clip(1 - 1 / 1.2, 0.2)), SHORT),
    ("gspo-token", call("gspo_token", low=FAR, high=FAR), call("gspo", low=FAR, high=FAR), D),
    ("areal", call("areal"), grpo(scale=[advantage.scale_by_group(), advantage.whiten()], aggregate=TOKENS), SAME),
    (
        *("a-3po at lag 1", call("a_3po"), call("areal")),
        (with_(D, version=np.full((B, T), 100)), with_(D, proximal=D["behaviour"])),
    ),
    ("tis", call("tis"), call("dapo", high=0.2), SAME),
    ("icepop", call("icepop", bounds=(0.0, FAR)), call("tis", cap=FAR), D),
    ("seq-mask-tis", call("seq_mask_tis", bounds=(0.0, FAR)), call("tis", cap=FAR), D),
    ("m2po", call("m2po", tau=FAR), call("dapo", high=0.2), D),
    ("kpop", call("kpop", bound=FAR), call("dapo", high=0.2), D),
    ("rejection", grpo(*CLIP, weight.reject(high=NONE)), grpo(), D),
    ("stale", grpo(*CLIP, weight.fresh(99)), grpo(), D),
    ("clip", grpo(ratio.token(), surrogate.clip(NONE, NONE)), grpo(ratio.token(), surrogate.unclipped()), D),
    ("dual clip", call("dapo", dual=FAR), call("dapo"), D),
    ("mastered tokens", call("ulorl", entropy=0.0), call("dapo", high=0.28), (D, FRESH)),
    ("v3.2", call("deepseek_v32", delta=FAR, kl=0.0), grpo(), D),
    ("aipo", call("aipo", cap=FAR), grpo(*REINFORCE, aggregate=TOKENS), FRESH),
    ("cispo", call("cispo", high=FAR), grpo(ratio.token(), surrogate.unclipped(), aggregate=TOKENS), D),
    ("one cut", call("brpo_budget"), call("dr_grpo"), with_(D, extra={"cut_reward": D["reward"][:, None]})),
    ("one turn", call("webagent_r1"), grpo(), PLAIN),
    ("one chunk", call("delethink", high=0.2), grpo(), PLAIN),
    ("one memory", call("mem_searcher"), grpo(), PLAIN),
    ("one context", call("supo"), call("dapo", high=0.2), PLAIN),
    ("one agent", call("dr_mas"), grpo(), PLAIN),
    ("one call", call("agent_lightning"), grpo(), PLAIN),
    (
        *("one player", call("mars")),
        *(compose(advantage=[advantage.returns(), advantage.whiten()], loss=CLIP, reduce=TOKENS), PAID),
    ),
    ("luffy", call("luffy"), call("relift"), OWN),
    ("rl-plus", call("rl_plus"), call("relift"), OWN),
    ("critique-grpo", call("critique_grpo"), call("luffy", entropy=0.0), D),
    ("guide", call("guide_grpo"), grpo(), OWN),
    ("ghpo", call("ghpo", format=0.0), grpo(), OWN),
    ("expo", call("exp_grpo"), grpo(), OWN),
    ("cog-rethinker", call("cog_rethinker"), call("dapo"), OWN),
    ("dph-rl", call("dph_rl"), call("dapo", high=0.2), OWN),
    ("rex-rag", call("rex_rag", alpha=0.0), grpo(), D),
    ("rl-zvp", call("rl_zvp"), grpo(), MIXED),
    ("lens, all equally sure", call("lens"), grpo(), with_(MIXED, behaviour=-FOURS["mask"], mask=FOURS["mask"])),
    ("grpo-lambda", call("grpo_lambda", share=0.0), grpo(), D),
    ("one model", call("rlccf", models=1), call("mm_upt"), D),
    ("one part", call("longwriter_zero", weights=(("format", 1.0),)), grpo(), (D, D | {"reward": FORMAT})),
    ("one prompt a task", call("golongrl", gamma=0.0, dual=FAR), call("dapo"), with_(D, domain=D["group"])),
    ("remix", call("remix", kl=0.0, entropy=0.0), call("dapo", high=0.2), SAME),
    ("spo", call("spo", prompts=16), compose(
        advantage=[advantage.returns(), advantage.standardise_rows()], loss=CLIP, reduce=TOKENS), D),
    ("critic of group means", compose(advantage=[advantage.gae()], loss=REINFORCE, reduce=SUMS),
     compose(advantage=CENTRED, loss=REINFORCE, reduce=SUMS), with_(D, value=MEAN[:, None] * np.ones((B, T)))),
    ("uncut", call("t_ppo"), call("orz"), with_(D, finish=np.ones(B, int), extra={"used": np.zeros((B, T))})),
    ("vc-ppo", call("vc_ppo"), call("ppo", kl=0.0), D),
    ("vapo", call("vapo", alpha=FAR, likelihood=0.0, high=0.2), call("orz"), D),
    ("a-lol", call("a_lol"), call("a_lol_reference_free"), with_(D, ref=D["logp"])),
    ("a-lol by token", call("a_lol_token"), call("a_lol_reference_free"), with_(D, ref=D["logp"])),
    ("critique", call("critique_rl", bonus=0.0, kl=0.0), call("rloo"), D),
    ("t1", call("t1", kl=0.0, entropy=0.0), call("rloo"), D),
    ("no improvement", call("score", alpha=0.0, kl=0.0), call("reinforce"), PAID),
    ("opo of equal lengths", call("opo"), compose(advantage=CENTRED, loss=REINFORCE, reduce=TOKENS), FOURS),
    ("rloo", call("rloo"), compose(advantage=CENTRED, loss=REINFORCE, reduce=SUMS), FOURS, 4 / 3),
    ("kimi", call("kimi_k15", tau=0.3), compose(advantage=CENTRED, loss=REINFORCE, reduce=SUMS), FRESH, 0.6),
    ("pmd", call("pmd_mean", tau=0.3),
     compose(advantage=[advantage.leave_one_out()], loss=REINFORCE, reduce=ROWS), FRESH),
    ("gvpo, rewards shifted", call("gvpo"), call("gvpo"), (D, with_(D, reward=D["reward"] + SHIFT))),
    ("gvpo, log-ratios shifted", call("gvpo"), call("gvpo"),
     (D, with_(D, proximal=D["proximal"] + (SHIFT / np.maximum(D["mask"].sum(axis=1), 1))[:, None]))),
    ("p3o", call("p3o"), call("p3o"), (D, with_(D, reward=D["reward"] + SHIFT))),
    ("a flat group more", summed(CENTRED[0]), summed(CENTRED[0]), (D, with_(D, valid=D["valid"] * (D["group"] != 9)))),
]  # fmt: skip


@functools.cache
def both_sides(first):
    """Return the gradients of both sides of twelve pairs."""
    pairs = [(e, e[3] if isinstance(e[3], tuple) else (e[3], e[3])) for e in EQUAL[first : first + 12]]
    unique = {id(d): d for _, pair in pairs for d in pair}

    records = {key: batch.records(d) for key, d in unique.items()}
    with jax.disable_jit():
        return [(slope(e[1], *records[id(a)]), slope(e[2], *records[id(b)])) for e, (a, b) in pairs]


@pytest.mark.full
@pytest.mark.parametrize("i", range(len(EQUAL)), ids=[e[0] for e in EQUAL])
def test_recipes_that_are_one(i):
    left, right = both_sides(i // 12 * 12)[i % 12]
    assert np.abs(right).max() > 1e-4
    close(left, np.asarray(right) * (EQUAL[i][4] if len(EQUAL[i]) > 4 else 1.0))


def test_positive_and_negative_samples_add_up():
    parts = [
        summed(advantage.sign_weighted(1.0, 0.0), [prepare.keep("correct")]),
        summed(advantage.sign_weighted(0.0, 1.0), [prepare.keep("wrong")]),
        summed(advantage.sign_weighted(1.0, 1.0)),
    ]
    psr, nsr, whole = program(lambda r, s: [slope(a, r, s) for a in parts])(*batch.records(D))
    close(psr + nsr, whole)
    assert np.abs(psr).max() > 0.1 and np.abs(nsr).max() > 0.1


def test_a_policy_that_is_its_reference_is_indifferent_between_two_answers():
    d = with_(D, ref=D["logp"])
    run = program(lambda r, s: (policy_loss(call("dpo", beta=0.4), r, s), slope(call("dpo", beta=0.4), r, s)))
    value, gradient = run(*batch.records(d))
    close(value, np.log(2))  # and beta / 2 on each side, over two pairs: rows 0 and 1, 5 and 7
    want = np.zeros((B, T))
    for better, worse in ((0, 1), (5, 7)):
        want[better], want[worse] = -0.4 / 2 / 2, 0.4 / 2 / 2
    close(gradient, want * d["mask"])


def test_signs_of_reward_and_of_advantage_differ_where_a_right_row_is_below_its_group():
    up = schedule.linear(1.0, 3.0, 2)
    d = with_(D, reward=[3.0, 1, 0, 2, 0, 0, 0, 0, 0, -4, -1, 1])  # right: 0 1 3 11; above their mean: 0 3 10 11
    d = with_(d, valid=np.ones(B), mask=np.ones((B, T)), agent=np.zeros(B, int), episode=np.arange(B))
    both = [
        compose(
            advantage=CENTRED,
            loss=[surrogate.reinforce(), weight.by_sign(up, 0.5, of=of)],
            reduce=reduce.sum_over_tokens(),
        )
        for of in ("advantage", "reward")
    ]
    plain = compose(advantage=CENTRED, loss=REINFORCE, reduce=reduce.sum_over_tokens())

    @jax.jit
    def run(states, r, s):
        def of(a, state):
            r2, inner = interpreter.transform(a, r, state, KEY)
            rows, inner = interpreter.prepare_minibatch(a.objectives[0], r2, s, inner["objectives"][0], KEY)
            return jax.grad(lambda x: interpreter.loss(a.objectives[0], rows, s.replace(logp=x), inner, KEY)[0])(s.logp)

        return [of(a, state) for a, state in zip((*both, plain), states, strict=True)]

    states = [interpreter.init(a) for a in (*both, plain)]
    above, right = np.isin(np.arange(B), (0, 3, 10, 11))[:, None], np.isin(np.arange(B), (0, 1, 3, 11))[:, None]
    for step in range(4):
        by_advantage, by_reward, unweighted = run(states, *batch.records(d))
        high = (1.0, 2.0, 3.0, 3.0)[step]
        close(by_advantage, unweighted * np.where(above, high, 0.5))
        close(by_reward, unweighted * np.where(right, high, 0.5))
        states = [interpreter.observe(a, state, {}) for a, state in zip((*both, plain), states, strict=True)]
