"""Ratio 1, constants under differentiation, traced numbers, packing, devices; the page of the table.

Many recipes share a program, compiled without care for its speed: what they have in common is compiled once.
"""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rljax import algorithms, types
from rljax.algorithms import __main__ as table
from rljax.algorithms import coverage, inputs, interpreter
from rljax.training import sharding
from rljax.transforms import prepare, reduce, surrogate
from tests.algorithms import test_algorithms as battery
from tests.support import batch
from tests.support.batch import B

KEY = jax.random.key(0)
TABLE = algorithms.TABLE
program = jax.jit
BUILT = {name: battery.recipe(name) for name in TABLE}


def close(a, b, **tolerance):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), **{"rtol": 2e-4, "atol": 2e-6, **tolerance})


def policy_loss(algorithm, rollout, scores):
    return battery.total(algorithm, rollout, scores)[0]


def slope(algorithm, rollout, scores):
    """Return the gradient of the policy's loss in logp."""
    return jax.grad(lambda x: policy_loss(algorithm, rollout, scores.replace(logp=x)))(scores.logp)


def unpaid(rollout):
    return rollout.replace(token_reward=None)


# --- at ratio 1 ---------------------------------------------------------------------------------------

RATIO_FREE = {"likelihood", "implicit_negative", "mirror_descent", "preference", "squared_preference", "pairwise_clip"}
RATIO_FREE |= {
    "kahneman_tversky",
    "length_normalised_preference",
    "odds_ratio",
    "reference_regression",
    "group_variance",
    "trajectory_balance",
    "reward_difference",
    "where",
    "chain",
    "least_q",  # reads no advantage
    "q_error",
    "dueling_error",
}
IDENTITIES = {"truncated_importance", "masked_importance", "sequence_masked_importance", "second_moment_mask"}
IDENTITIES |= {"bernoulli_kl_mask", "off_policy_sequence_mask"}


def called(piece):
    return piece.spec.partition("(")[0]


def chains():
    """Return the distinct (ratio, surrogate, weights against a sampler) of the table, by what they reduce with."""
    results = {}
    for built in BUILT.values():
        o = built.objectives[0]
        of = {seam: [p for p in o.loss if p.seam == seam] for seam in ("ratio", "surrogate", "weight")}
        weights = [p for p in of["weight"] if called(p) in IDENTITIES]
        if o.module == "policy" and len(of["surrogate"]) == 1 and called(of["surrogate"][0]) not in RATIO_FREE:
            loss = (*of["ratio"], *of["surrogate"], *weights)
            if "reference" not in loss[0].spec:
                results[" ".join(p.spec for p in (*loss, o.reduce))] = types.Objective(loss=loss, reduce=o.reduce)
    return results


@pytest.mark.full
def test_at_ratio_one_every_surrogate_follows_reinforce_and_weights_are_the_identity():
    d, r = batch.arrays(), np.random.default_rng(4)
    d["extra"]["probe_logp"] = d["logp"]
    rollout, scores = batch.records(d | {"proximal": d["logp"], "behaviour": d["logp"]})
    rollout = rollout.replace(advantage=jnp.asarray(r.normal(size=(B, 1)) * d["mask"], jnp.float32))

    @program
    def run(rollout, scores):
        def gradient(o):
            return slope(types.Algorithm((o,)), rollout, scores)

        plain = (surrogate.reinforce(),)
        return {n: (gradient(o), gradient(types.Objective(plain, o.reduce))) for n, o in chains().items()}

    out = run(rollout, scores)
    assert len({name.partition(" ")[0] for name in out}) > 8 and len(out) > 35
    for name, (got, want) in out.items():
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7, err_msg=name)


# --- constants, traced numbers, packing, devices --------------------------------------------------------


@pytest.mark.default_tier("stale")
@pytest.mark.parametrize("family", algorithms.FAMILIES)
def test_nothing_of_the_rollout_is_differentiated(family):
    members = [n for n in TABLE if TABLE[n].__module__.endswith(family)]

    def run(rollout, scores):
        results = {}
        for name in members:

            def loss(r, name=name):
                return sum(battery.total(BUILT[name], r, scores))

            by_field = jax.grad(loss, allow_int=True)(rollout if name in batch.PAID_AT_TOKENS else unpaid(rollout))
            results[name] = [x for x in jax.tree.leaves(by_field) if jnp.issubdtype(x.dtype, jnp.floating)]
        return results

    for name, results in program(run)(*batch.records(batch.arrays(name="mars"))).items():
        assert len(results) > 40 and all(np.all(np.asarray(x) == 0) for x in results), name


TRACED = [
    *(("grpo", "low"), ("grpo", "kl"), ("w_reinforce", "positive"), ("rl_zvp", "alpha"), ("ppo", "lam")),
    *(("ppo", "kl"), ("kimi_k15", "tau"), ("dpo", "beta"), ("tis", "cap"), ("m2po", "tau"), ("luffy", "gamma")),
    *(("dph_rl", "coefficient"), ("grpo_lambda", "alpha"), ("rlsp", "alpha"), ("score", "alpha"), ("ui_s1", "gamma")),
]


@pytest.mark.full
def test_numbers_may_be_traced():
    values = (0.004, 0.5)

    @program
    def run(rollout, scores, numbers):
        def at(name, argument, x):
            rows = rollout if name in batch.PAID_AT_TOKENS else unpaid(rollout)
            built = TABLE[name](**(battery.CALLS[name][0] | {argument: x}))
            return sum(battery.total(built, rows, scores))

        return {(n, a): (jax.vmap(functools.partial(at, n, a))(numbers), at(n, a, values[0])) for n, a in TRACED}

    results = run(*batch.records(batch.arrays(name="mars")), jnp.asarray(values))
    for which, (mapped, apart) in results.items():
        np.testing.assert_allclose(mapped[0], apart, rtol=1e-5, atol=1e-6, err_msg=str(which))
        assert mapped[0] != mapped[1], which


# statistics of the whole batch, or of its newest version
OF_THE_BATCH = {"whiten", "scale_by_batch", "decoupled", "standardise_rows", "scale_by_informative_share", "fresh"}
OF_THE_BATCH |= {"scale_by_task", "interpolated", "covariance_mask", "covariance_kl", "high_entropy", "drop_outliers"}
OF_THE_BATCH |= {"second_moment_mask", "solve_rate_length", "kahneman_tversky", "boltzmann"}


def alone():
    """Return the distinct chains of the table without such statistics, summed over tokens."""
    results = {}
    for built in BUILT.values():
        o, token = built.objectives[0], "token_reward" if built.spec.partition("(")[0] in batch.PAID_AT_TOKENS else ""
        pieces = (*built.transforms, *o.prepare, *(p for p in o.loss if p.statistics or p.needs.whole == "group"))
        reducing = [p for p in o.loss if any(q.seam == "reduce" for q in p.statistics)]  # a mean that differs
        if not reducing and not any(called(p) in OF_THE_BATCH for p in (*pieces, *o.loss)):
            summing = types.Objective(loss=o.loss, reduce=reduce.sum_over_tokens(), prepare=o.prepare)
            key = " ".join([token, *(p.spec for p in pieces)])
            results[key] = types.Algorithm((summing,), built.transforms), bool(token)
    return results


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("part", range(3))
def test_groups_in_one_batch_do_not_see_each_other(part):
    """Two batches of three groups exchange one: the losses of all four add up."""
    group = np.arange(B) // 4
    batches = [batch.arrays(seed, "mars") for seed in (0, 1)]
    for d in batches:
        d["group"] = group

    def exchanged(one, other):
        return jax.tree.map(lambda a, b: np.concatenate([a[:4], b[4:8], a[8:]]), one, other)

    four = [*batches, exchanged(*batches), exchanged(*batches[::-1])]
    chosen = list(alone().items())[part * 20 : (part + 1) * 20]
    assert len(chosen) > 10

    @program
    def run(rollout, scores):
        return {n: policy_loss(a, rollout if paid else unpaid(rollout), scores) for n, (a, paid) in chosen}

    a, b, c, d = (run(*batch.records(x)) for x in four)
    for name in a:
        np.testing.assert_allclose(a[name] + b[name], c[name] + d[name], rtol=2e-5, atol=2e-5, err_msg=name)


def on_devices(names):
    """Return the gradients of recipes on one device and with the rows over eight."""
    twice = [batch.arrays(seed, "mars") for seed in (0, 1)]
    twice[1] |= {"group": twice[1]["group"] + 20, "episode": twice[1]["episode"] + 20}
    records = batch.records(jax.tree.map(lambda *x: np.concatenate(x), *twice))
    mesh = sharding.make_mesh({"data": 2, "fsdp": 4})

    def run(rollout, scores):
        plain = unpaid(rollout)
        return {n: slope(BUILT[n], rollout if n in batch.PAID_AT_TOKENS else plain, scores) for n in names}

    split = jax.device_put(records, sharding.batch_sharding(mesh))
    assert len(split[0].mask.sharding.device_set) == 8
    out = program(run, out_shardings=NamedSharding(mesh, PartitionSpec()))(*split)
    return program(run)(*records), out


def agree(names):
    one, eight = on_devices(names)
    for name in names:
        np.testing.assert_allclose(eight[name], one[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_rows_over_eight_devices():
    # statistics over groups, batches, turns and trees; sorts, sums within a row, a critic, rows of two policies
    names = ["grpo", "ppo", "tempo", "m2po", "webagent_r1", "reinforce_plus_plus", "dpo", "luffy"]
    agree(names)


def test_the_reference_of_rlt_moves_every_32_steps():
    """After 32 steps 0.9 policy + 0.1 reference, and not in between. By hand: 1 -> 0.9 * 2 + 0.1 * 1 = 1.9."""
    algorithm = algorithms.TABLE["rlt"]()
    state, reference, params = interpreter.init(algorithm), {"w": jnp.ones(2)}, {"w": 2 * jnp.ones(2)}
    step = jax.jit(lambda ref, s: interpreter.after(algorithm, ref, params, {}, s, KEY))
    values = []
    for _ in range(64):
        reference, state = step(reference, state)
        values.append(float(reference["w"][0]))
    np.testing.assert_allclose(values, [1.0] * 31 + [1.9] * 32 + [1.99], rtol=1e-6)
    assert not algorithms.TABLE["rlt"](kl=0.0).after  # no reference is kept for nothing


def test_the_page_of_the_table_is_what_the_code_prints():
    path = pathlib.Path(algorithms.__file__).parent / "README.md"
    assert path.read_text() == table.page(), "run: python -m rljax algorithms --page > rljax/algorithms/README.md"


def test_the_page_of_coverage_is_what_the_code_prints_and_names_recipes():
    path = pathlib.Path(algorithms.__file__).parent / "COVERAGE.md"
    assert path.read_text() == coverage.page(), (
        "run: python -m rljax algorithms --coverage > rljax/algorithms/COVERAGE.md"
    )
    assert coverage.RECIPES.keys() <= algorithms.TABLE.keys()
    assert sum(map(len, coverage.GROUPS.values())) == len(coverage.settings())  # no method is in two groups


def test_every_need_that_is_a_flag_is_on_the_page():
    flags = {f.name for f in dataclasses.fields(types.Needs) if isinstance(f.default, bool)}
    assert {*table.READS} == flags - {"follows"} and {*inputs.SUPPLIED} <= flags


def test_a_source_that_supplies_ids_is_enough():
    algorithm = algorithms.example("webagent_r1")
    assert len(inputs.unsupplied(algorithm)) == 1
    supplied = dataclasses.replace(algorithm.source, supplies=frozenset({"turns"}))
    assert inputs.unsupplied(dataclasses.replace(algorithm, source=supplied)) == ()
    assert inputs.unsupplied(algorithms.TABLE["remix"]()) == ()  # the run computes what it reads
    assert inputs.unsupplied(algorithms.example("t_ppo")) == ()
    bare = dataclasses.replace(algorithms.example("t_ppo"), source=types.Source())
    assert inputs.unsupplied(bare) == ("extra['used']",)


@pytest.mark.full
def test_every_pair_of_a_group_is_drawn_equally_often():
    d = batch.arrays()
    rollout, _ = batch.records(d)
    piece = prepare.random_pair()
    draw = jax.jit(jax.vmap(lambda key: piece.apply(rollout, None, (), key)[0].extra["preference"]))
    chosen = np.asarray(draw(jax.random.split(KEY, 6000))) != 0
    able = [0, 1, 2, 3]  # of group 7; row 4 is empty
    for j in able:
        for k in range(j):
            share = np.mean(chosen[:, j] & chosen[:, k])
            assert abs(share - 1 / 6) < 5 * np.sqrt(5 / 36 / 6000)  # five standard errors
