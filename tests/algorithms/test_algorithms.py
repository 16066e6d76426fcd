"""The battery: every recipe of the table against its oracle and the invariances that a loss must have.

Each call runs in float32 on the batch, and in float64 on the same batch with more columns and garbage in everything
that is masked. Both must equal one oracle, written in float64 loops from the paper.
"""

import functools
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms
from rljax.algorithms import interpreter
from rljax.algorithms.battery import edges
from rljax.language import parse
from tests.support import batch
from tests.support.batch import B, T
from tests.support.reference import dual

KEY = jax.random.key(0)
WEIGHTS = {"weights": (("format", 1.0), ("exploration", 0.5))}

# A recipe needs a line here where it has arguments without defaults; further calls make caps and masks bind.
# A recipe of a study is named by its dotted path; its oracle is in oracle.py beside it.
CALLS: dict[str, tuple[dict, ...]] = {name: ({},) for name in algorithms.TABLE} | {
    "experiments.example_pieces.pieces.tapered_rloo": ({"power": 0.5},),
    "a_3po": ({}, {"cap": 1.1}),
    "aipo": ({}, {"cap": 1.1}),
    "areal": ({}, {"cap": 1.1}),
    "arsq": ({}, {"alpha": 0.5, "lam": 0.6}),
    "brpo_budget": ({"length": 6},),
    "b_coder": ({}, {"scale": 0.5, "gamma": 0.9, "lam": 0.6}),
    "bradley_terry": ({}, {"margin": 0.5}, {"ties": 0.4, "center": 0.1}),
    "cispo": ({}, {"high": 0.05}),
    "clip_cov": ({"share": 0.1, "bounds": (-10.0, 10.0)},),
    "cosine_grpo": ({"limit": 6},),
    "critique_grpo": ({"length": 6},),
    "deepseek_v32": ({}, {"delta": 0.03}),
    "critic_warmup": ({}, {"lam": 0.7, "expectile": 0.8}),
    "delethink": ({}, {"cap": 1.05}),
    "digirl": ({}, {"episodes": 0.3}),
    "direct_reward_optimisation": ({"beta": 0.5},),
    "dppo": ({}, {"low": 0.03, "high": 0.03}),
    "dppo_kl": ({}, {"low": 0.002, "high": 0.002}),
    "dr_grpo": ({"length": 6},),
    "forking_tokens": ({"share": 0.3},),
    "gdpo": (WEIGHTS,),
    "gmpo": ({}, {"epsilon": 0.1}),
    "grpo_tcr": ({"limit": 5, "cache": 3},),
    "icepop": ({}, {"bounds": (0.95, 1.1)}),
    "hnpg": ({}, {"bellman": 0.3, "lam": 0.6}),
    "intellect_2": ({}, {"dual": 1.1}),
    "implicit_bradley_terry": ({}, {"beta": 0.3, "margin": 0.5}, {"ties": 0.4, "center": 0.1}),
    "f_dvl": ({}, {"beta": 2.0, "cap": 1.1, "gamma": 0.5}),
    "ilql": ({}, {"beta": 0.5}),
    "iql": ({}, {"beta": 2.0, "cap": 1.1, "lam": 0.6}, {"steps": 2, "gamma": 0.9}),
    "kl_cov": ({"share": 0.1},),
    "kpop": ({}, {"bound": 0.005}),
    "kto": ({}, {"beta": 0.5, "desirable": 1.3, "undesirable": 0.7, "threshold": 0.3}),
    "longwriter_zero": (WEIGHTS,),
    "luffy": ({"length": 6},),
    "m2po": ({}, {"tau": 0.005}),
    "math_shepherd": ({}, {"threshold": 0.4}),
    "msrl": ({}, {"first": 0, "visual": 0.3}),
    "oreal": ({}, {"module": "value_2"}),
    "pass_at_k": ({"k": 2},),
    "prime": ({}, {"beta": 0.5, "gamma": 0.9}),
    "prime_rl": ({}, {"low": 0.03, "high": 0.03}),
    "q_critics": ({}, {"expectile": 0.9, "alpha": 0.2}),
    "relift": ({"length": 6},),
    "reward_classifier": ({}, {"levels": (-0.1, 0.5), "cuts": (-0.3, 0.2)}),
    "remix": ({}, {"base": 0.6}),
    "rl_plus": ({"length": 6},),
    "rlccf": ({"models": 2},),
    "sac": ({}, {"alpha": 0.5, "lam": 0.6}),
    "cql": ({}, {"alpha": 0.5, "lam": 0.6, "coefficient": 0.3}),
    "seq_mask_tis": ({"bounds": (0.96, 1.03)},),
    "spo": ({"prompts": 16},),
    "stable_reinforce": ({}, {"sigmas": 1.0}),
    "tis": ({}, {"cap": 1.05}),
    "train_long_think_short": ({"budget": 4.0},),
    "twin_critics": ({}, {"combine": "mean"}),
    "awac": ({}, {"beta": 0.4}),
    "awr": ({}, {"beta": 0.2, "cap": 2.0}),
    "ulorl": ({}, {"entropy": 2.0}),
    "vapo": ({}, {"alpha": 1.0}),
    "vl_cogito": ({"limit": 4},),
}
CASES = [(name, i) for name, calls in CALLS.items() for i in range(len(calls))]


def label(case):
    return f"{case[0]}-{case[1]}"


@pytest.fixture(scope="module", params=CASES, ids=label)
def case(request):
    """Give each call in turn to all tests."""
    return request.param


# The default tier holds every recipe against its oracle in float64; these recipes also in float32 and with the
# invariances: each kind of batch, and the recipe whose draws depend on the batch's width.
FEW = ("grpo-0", "clip_cov-0", "ppo-0", "dpo-0", "m2po-0", "webagent_r1-0", "turn_ppo-0", "p3o-0")
few = pytest.mark.default_tier(*FEW)

# recipes that pick the first of equal rows, or draw at random: their result depends on the order of rows
ORDERED = {"simpo", "orpo", "dpo", "spin", "dpo_length_normalised", "ipo", "step_apo", "p3o", "grpo_lambda", "clip_cov"}


# other ids of each kind, for the battery's batch: every row and token moves to another place
OTHER_IDS = {
    "turns": {"turn": np.array([[0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 3]] * (B // 3))},
    "agents": {"agent": np.array([0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1])},
    "episodes": {"episode": np.array([0, 1, 1, 1, 2, 4, 4, 5, 6, 7, 7, 8])},
    "domains": {"domain": np.array([0] * 5 + [1] * 7)},
}
ORDER = np.random.default_rng(1).permutation(B)


def changes(d):
    """Return batches that differ from one in the order of rows and the names of groups, or in ids of one kind."""
    batches = {"": d}
    for change, order in (("renamed", np.arange(B)), ("shuffled", ORDER)):
        rows = batch.select(d, order)
        batches[change] = rows | {"group": rows["group"] * 100 - 3, "episode": 50 - rows["episode"]}
    batches["shuffled, groups kept"] = batches["shuffled"] | {"group": d["group"][ORDER]}
    batches |= {need: d | ids for need, ids in OTHER_IDS.items()}
    batches["same agents"] = d | {"agent": (d["agent"] + 1) % 2}  # still one for each row of an episode, or for all
    batches["same episodes"] = d | {"episode": 50 - 7 * d["episode"]}  # the same rows share one
    return batches


@functools.cache
def recipe(name, i=0):
    return parse.lookup(name, parse.Registry("recipe", algorithms.TABLE), "battery")(**CALLS[name][i])


@functools.cache
def oracle(name):
    module, _, function = name.rpartition(".")
    if module:
        return getattr(importlib.import_module(f"{module.rpartition('.')[0]}.oracle"), function)
    for family in algorithms.FAMILIES:
        written = getattr(importlib.import_module(f"tests.support.reference.{family}"), name, None)
        if written is not None:
            return written
    raise AssertionError(f"{name} has no oracle")


def prepared(algorithm, rollout, scores):
    """Return ([(objective, its minibatch, its state)], state of the rollout transforms); the batch is one minibatch."""
    rollout, state = interpreter.transform(algorithm, rollout, interpreter.init(algorithm), KEY)
    pairs = zip(algorithm.objectives, state["objectives"], strict=True)
    return [(o, *interpreter.prepare_minibatch(o, rollout, scores, s, KEY)) for o, s in pairs], state["transforms"]


def total(algorithm, rollout, scores):
    """Return the loss of each objective on the whole batch, as the step computes it."""
    minibatches, _ = prepared(algorithm, rollout, scores)
    return [interpreter.loss(o, rows, scores, state, KEY)[0] for o, rows, state in minibatches]


def evaluated(algorithm, rollout, scores):
    """Return ([loss, metrics, gradient in the scores, micro-batches, rows], state of the rollout transforms).

    The list has one entry for each objective.
    """
    results = []
    minibatches, state = prepared(algorithm, rollout, scores)
    for o, rows, inner in minibatches:
        f = functools.partial(interpreter.loss, o, state=inner, key=KEY)
        (value, metrics), gradient = jax.value_and_grad(lambda s, f=f, r=rows: f(r, s), has_aux=True)(scores)
        cuts = ((0, 5), (5, 9), (9, 12)) if interpreter.objective_needs(o).whole == "group" else ((0, 1), (1, 12))
        parts = [f(*jax.tree.map(lambda x, a=a, b=b: x[a:b], (rows, scores))) for a, b in cuts]
        results.append((value, metrics, gradient, parts, rows))
    return results, state


def compiled_with(name, i):
    """Return the cases that share a program: those of a family and batch, or one of the default tier alone."""
    if label((name, i)) in FEW:
        return ((name, i),)
    alike = [c for c in CASES if (family_of(c[0]), batch.kind(c[0])) == (family_of(name), batch.kind(name))]
    return tuple(c for c in alike if label(c) not in FEW)


@functools.cache
def outcomes(cases):
    """Return {what is changed in the batch: {case: what ``evaluated`` returns}} in float32."""
    program = jax.jit(lambda rollout, scores: {c: evaluated(recipe(*c), rollout, scores) for c in cases})
    changed = changes(batch.arrays(name=cases[0][0]))
    return {change: jax.device_get(program(*batch.records(d))) for change, d in changed.items()}


def results(name, i, change=""):
    """Return the float32 results of each objective."""
    return outcomes(compiled_with(name, i))[change][name, i][0]


@functools.cache
def wide(family, kind):
    """Return float64 {case: [(value, gradients) by objective]} on the dirty batch, for all of a family and batch."""
    cases = [c for c in CASES if (family_of(c[0]), batch.kind(c[0])) == (family, kind)]

    def run(rollout, scores):
        def objective(c, number):
            return jax.value_and_grad(lambda s: total(recipe(*c), rollout, s)[number])(scores)

        return {c: [objective(c, number) for number in range(len(recipe(*c).objectives))] for c in cases}

    with jax.enable_x64(True):
        rows = batch.records(edges.padded(batch.arrays(name=cases[0][0])), jnp.float64)
        return jax.device_get(jax.jit(run)(*rows))


def family_of(name):
    return getattr(algorithms.TABLE.get(name), "__module__", name)


def evaluate(name, i, change=""):
    """Return float32 (value, gradients) of the policy objective."""
    value, _, gradient, _, _ = results(name, i, change)[0]
    return float(value), gradient


def reference(name, i, d):
    """Return the oracle's (value, gradient in logp, gradient in entropy)."""
    f, call = oracle(name), CALLS[name][i]
    d = dict(d)
    d["logp"], d["entropy"] = dual.variables(d["logp"], d["entropy"])
    taken = {k: v for k, v in call.items() if k in inspect.signature(f).parameters}
    if name == "clip_cov":
        taken = {"dropped": _dropped(name, i, batch.arrays(name=name))}
    if name == "p3o":
        taken = {"pairs": _drawn(i, batch.arrays(name=name))}
    assert i == 0 or taken == call, f"the oracle of {name} does not know {call}"
    loss = f(d, **taken)
    gradient = loss.gradient.reshape(2, B, T) if isinstance(loss, dual.Dual) else np.zeros((2, B, T))
    return dual.value(loss), *gradient


def _dropped(name, i, d):
    """Return the tokens that were drawn, which an oracle cannot know."""
    rows = results(name, i)[0][-1]
    dropped = np.asarray(rows.extra["covariant"])
    candidates, count = importlib.import_module("tests.support.reference.clipped").clip_cov_candidates(d)
    assert dropped.sum() == count and all((int(a), int(b)) in candidates for a, b in np.argwhere(dropped))
    return dropped


def _drawn(i, d):
    """Return the rows that were drawn of each group, and check that they may be."""
    chosen = np.flatnonzero(np.asarray(results("p3o", i)[0][-1].extra["preference"]))
    able = [j for j in range(B) if d["valid"][j] > 0 and d["mask"][j].any()]
    pairs = [tuple(int(j) for j in chosen if d["group"][j] == g) for g in np.unique(d["group"])]
    assert {*chosen} <= {*able} and all(len(pair) == 2 for pair in pairs)  # every group of the batch has two
    return pairs


@few
def test_float32_equals_the_oracle_in_value_and_gradient(case):
    name, i = case
    d = batch.arrays(name=name)
    want, by_logp, by_entropy = reference(name, i, d)
    value, gradient = evaluate(name, i)
    np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient.logp, by_logp, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient.entropy, by_entropy, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_float64_equals_the_oracle_whatever_the_padding_holds(case):
    name, i = case
    if name == "clip_cov":
        return  # draws other tokens in a batch of another width
    d = batch.arrays(name=name)
    want, by_logp, by_entropy = reference(name, i, d)
    value, gradient = wide(family_of(name), batch.kind(name))[case][0]
    np.testing.assert_allclose(value, want, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(gradient.logp[:, :T], by_logp, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(gradient.entropy[:, :T], by_entropy, rtol=1e-9, atol=1e-9)
    assert np.all(gradient.logp[:, T:] == 0)


@few
def test_masked_and_invalid_tokens_have_exactly_no_gradient(case):
    name, i = case
    d = batch.arrays(name=name)
    for _, _, gradient, _, _ in results(name, i):
        masked = (d["mask"] == 0) | (d["valid"][:, None] == 0)
        for leaf in jax.tree.leaves(gradient):
            assert np.all(np.asarray(leaf)[masked if leaf.ndim == 2 else masked.all(axis=1)] == 0)


@few
def test_row_order_and_group_names_do_not_matter(case):
    name, i = case
    change, order = ("renamed", np.arange(B)) if name in ORDERED else ("shuffled", ORDER)
    if name == "spo":  # its prompts are remembered by index, which the batch takes from the group
        change = "shuffled, groups kept"
    (one, g), (other, h) = evaluate(name, i), evaluate(name, i, change)
    np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h.logp, g.logp[order], rtol=1e-4, atol=1e-6)


@few
def test_micro_batches_only_add(case):
    name, i = case
    for value, metrics, _, parts, _ in results(name, i):
        np.testing.assert_allclose(sum(p[0] for p in parts), value, rtol=1e-5, atol=1e-6)
        for k, v in metrics.items():
            np.testing.assert_allclose(sum(p[1][k] for p in parts), v, rtol=1e-5, atol=2e-6)


@few
def test_ids_matter_to_exactly_the_recipes_that_say_so(case):
    name, i = case
    needs, results_of = interpreter.needs(recipe(name, i)), outcomes(compiled_with(name, i))

    def outcome(change):
        objectives, state = results_of[change][name, i]
        return jax.tree.leaves(([(value, gradient) for value, _, gradient, _, _ in objectives], state))

    start = outcome("")
    for need in OTHER_IDS:
        same = need in ("agents", "episodes") and not getattr(needs, need)
        pairs = zip(start, outcome(f"same {need}" if same else need), strict=True)
        moved = any(np.any(np.abs(x - y) > 1e-6) for x, y in pairs)
        assert moved == getattr(needs, need), (name, need)


OTHER_MODULES = [case for case in CASES if recipe(*case).objectives[0].module != "policy"]


@pytest.mark.parametrize("case", OTHER_MODULES, ids=label)
def test_float64_other_modules_equal_their_oracle_whatever_the_padding_holds(case):
    name, i = case
    objective = recipe(*case).objectives[0]
    needs = interpreter.objective_needs(objective)
    fields = {"reward": "learned", "value": "live_value", "process": "live_stepwise"}
    score = next((name for name in fields if getattr(needs, name)), "logp")  # logp: of a language model
    field = fields.get(score, "logp")
    live = batch.arrays(name=name)
    live[field] = dual.variables(live[field])[0]
    want = oracle(name)(live, **CALLS[name][i])
    value, gradient = wide(family_of(name), batch.kind(name))[case][0]
    np.testing.assert_allclose(value, want.value, rtol=1e-9, atol=1e-11)
    got = getattr(gradient, score)
    np.testing.assert_allclose(got[:, :T] if got.ndim == 2 else got, want.gradient.reshape(B, -1).squeeze(), atol=1e-11)
    assert np.count_nonzero(got) > 5 and (score == "logp" or np.all(gradient.logp == 0))


Q = ("logp", "log_normaliser")  # the Q of a token is a logit, their sum
MODELS = [
    ("prime", 0, 1, ("logp",)),
    ("spa", 0, 2, ("process",)),
    ("oreal", 1, 1, ("value",)),
    ("archer", 0, 3, ("process",)),
]
MODELS += [("iql", 0, 2, Q), ("iql", 1, 2, Q), ("iql", 2, 2, Q), ("ilql", 0, 2, Q), ("q_critics", 1, 1, Q)]
MODELS += [("f_dvl", 0, 2, Q), ("f_dvl", 1, 2, Q), ("hnpg", 0, 1, Q), ("hnpg", 1, 1, Q), ("arsq", 1, 0, Q)]
MODELS += [("sac", 0, 1, Q), ("sac", 1, 1, Q), ("cql", 0, 1, Q), ("cql", 1, 1, Q)]


@pytest.mark.parametrize(("name", "case", "first", "fields"), MODELS)
def test_float64_models_beside_the_policy_equal_their_oracle(name, case, first, fields):
    """The models from objective ``first`` on learn the same, by these fields of the scores alone."""
    live, written, arrays = batch.arrays(name=name), oracle(f"{name}_model"), [edges.batch.LIVE[x] for x in fields]
    live |= dict(zip(arrays, dual.variables(*(live[x] for x in arrays)), strict=True))
    call = {k: v for k, v in CALLS[name][case].items() if k in inspect.signature(written).parameters}
    want = written(live, **call)
    for value, gradient in wide(family_of(name), batch.kind(name))[name, case][first:]:
        np.testing.assert_allclose(value, want.value, rtol=1e-9)
        out = np.stack([getattr(gradient, field) for field in fields])
        np.testing.assert_allclose(out[..., :T], want.gradient.reshape(-1, B, T), atol=1e-11)
        assert np.all(out[..., T:] == 0) and ("logp" in fields or np.all(gradient.logp == 0))


TWO_OBJECTIVES = [n for n in algorithms.TABLE if "value" in [o.module for o in algorithms.example(n).objectives[1:]]]


@pytest.mark.parametrize("name", TWO_OBJECTIVES)
def test_float64_critics_equal_their_oracle_whatever_the_padding_holds(name):
    live = batch.arrays(name=name)
    live["live_value"] = dual.variables(live["live_value"])[0]
    want = oracle(f"{name}_critic")(live)
    value, gradient = wide(family_of(name), batch.kind(name))[name, 0][1]
    np.testing.assert_allclose(value, want.value, rtol=1e-9, atol=1e-11)
    by_value = gradient.value + gradient.value_logits[..., 1]  # a critic of one number, or of two bins
    np.testing.assert_allclose(by_value[:, :T], want.gradient.reshape(B, T), rtol=1e-9, atol=1e-9)
    assert np.all(by_value[:, T:] == 0) and np.all(gradient.logp == 0)


@pytest.mark.full
@pytest.mark.parametrize("name", TWO_OBJECTIVES)
def test_a_critic_equals_its_oracle(name):
    d = batch.arrays(name=name)
    (value, _, gradient, _, _), live = results(name, 0)[1], dict(d)
    live["live_value"] = dual.variables(d["live_value"])[0]
    want = oracle(f"{name}_critic")(live)
    np.testing.assert_allclose(value, want.value, rtol=1e-5, atol=1e-6)
    by_value = gradient.value + gradient.value_logits[..., 1]
    np.testing.assert_allclose(by_value, want.gradient.reshape(B, T), rtol=1e-4, atol=1e-6)
    assert np.all(np.asarray(gradient.logp) == 0)
