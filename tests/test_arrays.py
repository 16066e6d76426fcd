"""Losses of arrays in hand: rollout_from_arrays, objective, advantages, and the command that prints the table."""

import functools
import inspect
import re
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import algorithms, transforms, types
from rljax.algorithms import __main__ as command
from rljax.algorithms import interpreter, seams
from rljax.config import files, schema
from rljax.environments import gsm8k
from rljax.language import foreign
from rljax.training import optimizers
from tests import batch, jaxprs

MASK = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
REWARD, GROUP = [1, 0, 0, 1], [7, 7, 3, 3]


def build(call):
    return seams.algorithm(call, "algorithm")


def rollout(**fields):
    return rljax.rollout_from_arrays(mask=MASK, reward=REWARD, group=GROUP, **fields)


def test_mask_reward_and_group_are_enough():
    # each group has rewards 1 and 0: centred +-1/2, over std (ddof 1) sqrt(1/2)
    got = rljax.advantages("grpo()", rollout())
    np.testing.assert_allclose(got, np.sqrt(0.5) * np.array([1, -1, -1, 1])[:, None] * MASK, rtol=1e-5)
    np.testing.assert_allclose(rljax.advantages("rloo()", rollout()), np.array([1, -1, -1, 1])[:, None] * MASK)
    logp = np.full((4, 3), -1.0, np.float32)
    loss, metrics = rljax.objective("rloo()", rollout(), rljax.Scores(logp=jnp.asarray(logp)))
    np.testing.assert_allclose(loss, (2 - 3 - 1 + 2) / 4)  # -A logp, token sums, mean over rows
    np.testing.assert_allclose(metrics["loss/policy"], loss)


@pytest.mark.parametrize("call", ["bradley_terry()", "bradley_terry(ties=0.5)", "implicit_bradley_terry()", "dpo()"])
def test_groups_without_a_pair_do_not_change_the_loss_of_pairs(call):
    """A pair alone, and beside a group that has none: one of equal rewards, or with ties one of a single row."""

    def loss(rows, shift):
        mask, reward, group = np.ones((rows, 2)), [1.0, 0.0, 1.0, 1.0][:rows], [0, 0, 1, 1][:rows]
        r = rljax.rollout_from_arrays(mask=mask, reward=reward, group=group, ref_logp=-mask)
        logp = -1.0 + shift * jnp.array([[1.0], [-1.0], [0.5], [2.0]])[:rows] * mask
        return rljax.objective(call, r, rljax.Scores(logp=logp, reward=logp[:, 0]))[0]

    slopes = [jax.grad(lambda x, rows=rows: loss(rows, x))(0.3) for rows in (2, 3 if "ties" in call else 4)]
    assert abs(slopes[0]) > 0.01
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-5)


def test_the_objective_is_differentiable_in_every_score_it_reads():
    fields = {"behaviour_logp": np.full((4, 3), -1.0), "ref_logp": np.full((4, 3), -1.1), "value": np.zeros((4, 3))}
    r = rollout(**fields)
    scores = rljax.Scores(logp=jnp.full((4, 3), -0.9), value=jnp.full((4, 3), 0.3), entropy=jnp.ones((4, 3)))

    def loss(call, scores):
        return rljax.objective(call, r, scores)[0]

    by = jax.grad(lambda s: loss("ppo(value_clip=None, kl=0.0)", s))(scores)
    counted = np.where(MASK > 0, by.logp, 1.0)
    assert np.all(counted != 0) and np.all(np.where(MASK == 0, by.logp, 0) == 0)
    # returns are A + V_old = the row's reward (gamma 1, lambda .95, V_old 0: the reward discounted by .95 a token)
    last = np.array([2, 3, 1, 2])[:, None] - 1 - np.arange(3)[None]
    returns = np.array(REWARD)[:, None] * 0.95**last
    np.testing.assert_allclose(by.value, (0.3 - returns) * MASK / MASK.sum(), rtol=1e-5, atol=1e-8)
    by = jax.grad(lambda s: loss("w_reinforce(entropy=0.5)", s))(scores)
    np.testing.assert_allclose(by.entropy, -0.5 * MASK / MASK.sum(), rtol=1e-6)


def test_without_a_value_the_critic_is_left_out():
    r = rollout(value=np.zeros((4, 3)), ref_logp=np.zeros((4, 3)), raw_logp=np.zeros((4, 3)))
    logp = jnp.full((4, 3), -1.0)
    policy, metrics = rljax.objective("ppo()", r, rljax.Scores(logp=logp))
    both, more = rljax.objective("ppo()", r, rljax.Scores(logp=logp, value=jnp.ones((4, 3))))
    assert "loss/value" not in metrics
    np.testing.assert_allclose(both - policy, more["loss/value"], rtol=1e-6)
    with pytest.raises(ValueError, match=r"scores have none of policy, value"):
        rljax.objective("ppo()", r, rljax.Scores())


def test_a_state_moves_what_is_scheduled():
    call, r, scores = (
        "w_reinforce(entropy=linear(1.0, 0.0, 2))",
        rollout(),
        rljax.Scores(logp=jnp.zeros((4, 3)), entropy=jnp.ones((4, 3))),
    )
    algorithm = build(call)
    state = interpreter.init(algorithm)
    seen = []
    for _ in range(3):
        _, metrics = rljax.objective(algorithm, r, scores, state=state)
        seen.append(float(metrics["loss/live_entropy"]))
        state = interpreter.observe(algorithm, state, metrics)
    np.testing.assert_allclose(seen, [-1, -0.5, 0])


@pytest.mark.full
def test_a_key_decides_what_is_drawn():
    rollout, scores = batch.records(batch.arrays())
    call = "clip_cov(share=0.1, bounds=(-10.0, 10.0))"
    loss = jax.jit(lambda key: rljax.objective(call, rollout, scores, key=key)[0])
    values = [float(loss(jax.random.key(k))) for k in (0, 0, 1, 2)]
    assert values[0] == values[1] and len(set(values)) > 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ref_logp": np.zeros((4, 2))}, r"ref_logp has shape \(4, 2\): expected \(4, 3\)"),
        ({"valid": np.zeros((4, 3))}, r"valid has shape \(4, 3\): expected \(4,\)"),
        ({"parts": {"format": [1, 2]}}, r"parts\['format'\] has shape \(2,\): expected \(4,\)"),
        ({"extra": {"node": np.zeros((3, 3))}}, r"extra\['node'\] has shape \(3, 3\): expected \(4, \.\.\.\)"),
        ({"ref_logprob": np.zeros((4, 3))}, r"unknown field 'ref_logprob'\. Did you mean 'ref_logp'"),
    ],
)
def test_a_wrong_array_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        rollout(**fields)


def test_what_a_recipe_reads_and_the_rollout_lacks_is_named():
    scores = rljax.Scores(logp=jnp.zeros((4, 3)))
    for call, message in (
        ("remax()", "the rollout has no part 'greedy_reward'; it has none"),
        ("attn_rl()", "the rollout has no extra 'node'; it has none"),
        ("aipo()", "anchor='behaviour', but the rollout has no such log-prob"),
        ("grpo()", "penalty: the rollout has no ref_logp"),
        ("gropo()", r"algorithm: unknown name 'gropo'\. Did you mean 'grpo'"),
    ):
        with pytest.raises(ValueError, match=message):
            rljax.objective(call, rollout(), scores)
    with pytest.raises(ValueError, match="has no advantage piece"):
        rljax.advantages("sft()", rollout())


def test_presets_fill_in_and_give_way():
    verl = algorithms.grpo(like="verl")
    assert "dual=3.0" in verl.spec and "aggregate=mean_over_tokens" in verl.spec and "like" not in verl.spec
    assert "dual=5.0" in algorithms.grpo(like="verl", dual=5.0).spec
    assert "low=0.1" in algorithms.grpo(0.1, like="verl").spec
    assert build("grpo(like='verl')").spec == verl.spec
    assert build(verl.spec).spec == verl.spec  # what is printed builds it again
    for call in ("grpo(like='verrl')", "gspo(like='verl')"):
        with pytest.raises(ValueError, match=r"like"):
            build(call)


# --- which log-probs a ratio reads --------------------------------------------------------------

LOGPS = ("behaviour_logp", "proximal_logp")
KEY = jax.random.key(0)


zero = functools.cache(jnp.zeros)


def zeros(tree):
    return jax.tree.map(lambda x: zero(x.shape, x.dtype), tree)


def trace(apply, record):
    """Return which of the two log-probs a piece reads, and its result with zeros for the values."""
    given = {name: getattr(record, name) for name in LOGPS}

    def changed(**arrays):
        out = apply(record.replace(**arrays))
        return out.replace(behaviour_logp=None, proximal_logp=None) if isinstance(out, types.Rollout) else out

    read, out = jaxprs.reads(changed, **given)
    out = zeros(out)
    return read, out.replace(**given) if isinstance(out, types.Rollout) else out


def what_pieces_read(algorithm, rows, scores):
    """Return, for each piece that ``objective`` runs, which log-probs it reads; zeros stand for what comes before."""
    state, read = interpreter.init(algorithm), []
    for p, inner in zip(algorithm.transforms, state["transforms"], strict=True):
        names, rows = trace(lambda r, p=p, inner=inner: p.apply(r, inner, KEY)[0], rows)
        read.append(names)
    for o, inner in zip(algorithm.objectives, state["objectives"], strict=True):
        statistics = [q for p in o.loss for q in p.statistics]
        for p in (*o.prepare, *statistics, o.reduce):
            read.append(trace(lambda r, p=p: p.apply(r, scores, p.init(), KEY)[0], rows)[0])
        shapes = jax.eval_shape(lambda r, o=o, s=inner: interpreter.prepare_minibatch(o, r, scores, s, KEY)[0], rows)
        minibatch, loss = zeros(shapes), types.Loss()
        for p in o.loss:
            names, loss = trace(lambda r, p=p, loss=loss: p.apply(loss, r, scores, p.init(), KEY), minibatch)
            read.append(names)
    return read


@pytest.mark.full
@pytest.mark.parametrize("family", algorithms.FAMILIES)
def test_the_proximal_policy_is_the_sampler_only_where_no_piece_compares_them(family):
    names = [n for n, f in algorithms.TABLE.items() if f.__module__ == f"rljax.algorithms.{family}"]
    assert names
    for name in names:
        algorithm = algorithms.example(name)
        rows, scores = batch.records(batch.arrays(0, name))
        parts = dict.fromkeys(interpreter.needs(algorithm).parts, rows.reward)
        rows = rows.replace(parts={**parts, **rows.parts})
        read = what_pieces_read(algorithm, rows, scores)
        only = rows.replace(proximal_logp=None)

        def loss(behaviour_logp, rows=only, algorithm=algorithm, scores=scores):
            return rljax.objective(algorithm, rows.replace(behaviour_logp=behaviour_logp), scores)[0]

        needs = interpreter.needs(algorithm)
        assert needs.behaviour == any("behaviour_logp" in r for r in read), name
        # a proximal policy that a ratio puts in the place of the rollout's is not read from the rollout
        if "interpolated()" not in algorithms.describe(algorithm):
            assert (needs.proximal or needs.fixed_proximal) == any("proximal_logp" in r for r in read), name
        if set(LOGPS) in read:
            with pytest.raises(ValueError, match="no proximal_logp"):
                jax.eval_shape(loss, only.behaviour_logp)
        elif set(LOGPS) & set().union(*read) and "interpolated()" not in algorithms.describe(algorithm):
            read, _ = jaxprs.reads(loss, behaviour_logp=only.behaviour_logp)
            assert read == {"behaviour_logp"}, name


def test_a_ratio_to_the_sampler_is_not_one():
    logp = np.full((4, 3), -1.0)
    scores = rljax.Scores(logp=jnp.full((4, 3), -0.9))
    for call in ("grpo(kl=0.0)", "deepseek_v32(kl=0.0)"):
        for r in (rollout(behaviour_logp=logp), rollout(behaviour_logp=logp, proximal_logp=logp)):
            _, metrics = rljax.objective(call, r, scores)
            np.testing.assert_allclose(metrics["ratio"], np.exp(0.1), rtol=1e-6)
    _, metrics = rljax.objective("grpo(kl=0.0)", rollout(), scores)
    np.testing.assert_allclose(metrics["ratio"], 1.0)  # without either, the current policy sampled the rows


# --- rows with an advantage ---------------------------------------------------------------------


def test_a_given_advantage_is_used_as_it_is():
    a = np.array([[3.0, -2.0, 0.0], [1.0, 1.0, 5.0], [-1.0, 0.0, 0.0], [0.5, 0.25, 0.0]])
    r = rollout(advantage=a)
    scores = rljax.Scores(logp=jnp.zeros((4, 3)))
    gradient = jax.grad(lambda x: rljax.objective("dapo(overlong=(2, 1))", r, scores.replace(logp=x))[0])(scores.logp)
    np.testing.assert_allclose(gradient, -a * MASK / MASK.sum(), rtol=1e-6)  # ratio 1, mean over tokens
    for call in (rljax.advantages, rljax.transform):
        with pytest.raises(ValueError, match="already has an advantage"):
            call("grpo()", r)
    with pytest.raises(ValueError, match=r"seam\['advantage'\] has no effect"):
        rljax.objective("grpo(kl=0.0)", r, scores, seam={"advantage": "+ whiten()"})


@pytest.mark.parametrize("call", ["grpo()", "dapo(overlong=(4, 2))", "ppo()", "ui_s1()", "best_minus_second()"])
def test_transformed_rows_have_the_same_loss(call):
    rows, scores = batch.records(batch.arrays(0, call.partition("(")[0]))
    both = [rljax.objective(call, r, scores)[0] for r in (rows, rljax.transform(call, rows))]
    np.testing.assert_array_equal(*both)


def test_transform_returns_rewards_advantages_and_returns():
    rows, _ = batch.records(batch.arrays())
    out = rljax.transform("ppo()", rows, seam={"reward": "affine(2.0)"})  # in place of the KL
    np.testing.assert_array_equal(out.reward, 2 * rows.reward)
    np.testing.assert_array_equal(out.advantage, rljax.advantages("ppo(kl=0.0)", rows.replace(reward=2 * rows.reward)))
    assert out.returns.shape == rows.mask.shape
    with pytest.raises(ValueError, match=r"seam\['penalty'\] has no effect here. Valid: advantage, reward"):
        rljax.transform("ppo()", rows, seam={"penalty": "none"})


def test_the_reward_may_be_left_out_beside_an_advantage():
    scores = rljax.Scores(logp=jnp.zeros((4, 3)))
    fields = {"mask": MASK, "group": GROUP}
    r = rljax.rollout_from_arrays(**fields, advantage=MASK)
    np.testing.assert_array_equal(
        rljax.objective("grpo(kl=0.0)", r, scores)[0],
        rljax.objective("grpo(kl=0.0)", rollout(advantage=MASK), scores)[0],
    )
    with pytest.raises(ValueError, match="reward is missing"):
        rljax.rollout_from_arrays(**fields)
    for seam in ({"prepare": "drop_flat_groups()"}, {"prepare": "keep('correct')"}, {"weight": "by_difficulty()"}):
        with pytest.raises(ValueError, match="the rollout has no reward"):
            rljax.objective("grpo(kl=0.0)", r, scores, seam=seam)


# --- ids, shapes, seams, weights, penalties -----------------------------------------------------


@pytest.mark.parametrize(
    "group", [[0.1, 0.1, 0.2, 0.2], ["b", "b", "a", "a"], [2**32 + 1, 2**32 + 1, 1, 1], [7.0] * 2 + [3.0] * 2]
)
def test_rows_of_a_group_are_those_with_equal_ids(group):
    r = rljax.rollout_from_arrays(mask=MASK, reward=REWARD, group=group, episode=group)
    assert r.group.dtype == r.episode.dtype == jnp.int32
    np.testing.assert_array_equal(
        rljax.advantages("grpo()", r.replace(episode=None)), rljax.advantages("grpo()", rollout())
    )


def test_whole_ids_keep_their_value_and_traced_ones_are_int32():
    np.testing.assert_array_equal(rollout(agent=np.array([2.0, 0.0, 1.0, 2.0])).agent, [2, 0, 1, 2])

    def total(group):
        return rljax.advantages("grpo()", rljax.rollout_from_arrays(mask=MASK, reward=REWARD, group=group))

    chex.assert_trees_all_equal(jax.jit(total)(np.array(GROUP)), total(GROUP))
    with pytest.raises(ValueError, match="group is traced with type float32: expected int32"):
        jax.jit(total)(np.array(GROUP, np.float32))
    for name, x in (
        ("group", [0.0, np.nan, 1, 1]),
        ("turn", MASK * 0.5),
        ("version", MASK * 2.0**40),
        ("value", MASK.astype(str)),
    ):
        with pytest.raises(ValueError, match=f"^{name} has"):
            rljax.rollout_from_arrays(**{"mask": MASK, "reward": REWARD, "group": GROUP, name: x})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"logp": np.zeros((4, 1))}, r"scores\.logp has shape \(4, 1\): expected \(4, 3\)"),
        ({"logp": np.zeros(())}, r"scores\.logp has shape \(\)"),
        ({"entropy": np.zeros(3)}, r"scores\.entropy has shape \(3,\)"),
        ({"value": np.zeros((1, 3))}, r"scores\.value has shape"),
        ({"divergence": {"js": np.zeros(4)}}, r"scores\.divergence\['js'\] has shape"),
        ({"reward": np.zeros((4, 1))}, r"scores\.reward has shape \(4, 1\): expected \(4,\)"),
        ({"logp": np.zeros((4, 3), int)}, r"scores\.logp has type int.*: expected floats"),
    ],
)
def test_scores_are_those_of_the_rows(scores, message):
    with pytest.raises(ValueError, match=message):
        rljax.objective("grpo(kl=0.0)", rollout(), rljax.Scores(**{"logp": np.zeros((4, 3)), **scores}))


def test_a_record_built_by_hand_is_checked_too():
    r = rollout()
    for field, x in {"group": r.mask[:, 0], "advantage": r.reward, "valid": r.mask}.items():
        with pytest.raises(ValueError, match=f"{field} has"):
            rljax.objective("grpo(kl=0.0)", r.replace(**{field: x}), rljax.Scores(logp=r.mask))


def test_weights_computed_elsewhere_multiply_the_policy_term():
    w = np.array([[0.5, 2.0, np.nan], [1.0, 0.0, 3.0], [4.0, np.inf, np.nan], [1.0, 1.5, np.nan]])
    logp = jnp.full((4, 3), -1.0)

    def gradient(call, extra, **options):
        r = rollout(ref_logp=np.full((4, 3), -1.2), extra=extra)
        return jax.grad(lambda x: rljax.objective(call, r, rljax.Scores(logp=x), **options)[0])(logp)

    for given, per_token in ((w, w), (w[:, 0], w[:, :1])):
        got = gradient("grpo(kl=0.0)", {"mine": given}, seam={"weight": "given('mine')"})
        np.testing.assert_allclose(got, np.where(MASK > 0, gradient("grpo(kl=0.0)", {}) * per_token, 0.0), rtol=1e-6)
    # the KL is not weighed
    charged = gradient("grpo(kl=0.1)", {"mine": np.zeros(4)}, seam={"weight": "given('mine')"})
    np.testing.assert_allclose(charged, gradient("grpo(kl=0.1)", {}) - gradient("grpo(kl=0.0)", {}), atol=1e-7)
    for seam, message in (
        ({"weight": "kl('k3')"}, r"seam\.weight: unknown name 'kl'"),
        ({"source": "dynamic()"}, r"seam\['source'\] has no effect here"),
        ({"weights": "fresh()"}, r"seam\['weights'\] has no effect here. Did you mean 'weight'"),
    ):
        with pytest.raises(ValueError, match=message):
            rljax.objective("grpo(kl=0.0)", rollout(), rljax.Scores(logp=logp), seam=seam)


def test_penalties_are_returned_per_token():
    r = rollout(ref_logp=np.full((4, 3), -1.2))
    scores = rljax.Scores(logp=jnp.full((4, 3), -1.0), entropy=jnp.full((4, 3), 0.7))
    terms = rljax.penalty_terms("kl('k2', 0.5) | kl('k2', 0.25) | entropy(0.1)", r, scores)
    np.testing.assert_allclose(terms["kl"], 0.75 * 0.5 * 0.2**2 * MASK, rtol=1e-5)  # k2 = d^2 / 2, d = 0.2
    np.testing.assert_allclose(terms["live_entropy"], -0.07 * MASK, rtol=1e-6)
    _, metrics = rljax.objective(
        "reinforce()", r, scores, seam={"penalty": "kl('k2', 0.75)", "reduce": "sum_over_tokens()"}
    )
    np.testing.assert_allclose(np.sum(terms["kl"]), metrics["loss/kl"], rtol=1e-6)
    with pytest.raises(ValueError, match=r"penalties: unknown name 'clip'"):
        rljax.penalty_terms("clip()", r, scores)


# --- names of other systems ---------------------------------------------------------------------


def test_names_of_other_systems_lead_to_ours():
    for fields, message in (
        ({"old_" + "log_probs": MASK}, r"Here that is proximal_logp \(.*\) or behaviour_logp"),
        ({"response_mask": MASK}, "Here that is mask"),
        ({"token_level_rewards": MASK}, "Here that is token_reward"),
        ({"is_weights": MASK}, r"Here that is weight\.given"),
    ):
        with pytest.raises(ValueError, match=message):
            rollout(**fields)
    for call, message in (
        ("dro()", "Here that is the recipe direct_reward_optimisation"),
        ("geo_mean()", "Here that is the recipe gmpo"),
        ("grpo_passk()", "Here that is the recipe best_minus_second"),
        ("grpo(loss_agg_mode='token-mean')", "Here that is the seam reduce: mean_over_tokens"),
        ("grpo(clip_ratio_high=0.28)", "Here it is 'high'"),
        ("grpo(beta=0.1)", "Here it is 'kl'"),
        ("ppo(lambda=0.9)", "Here it is 'lam'"),
        ("reinforce++()", "Here it is 'reinforce_plus_plus'"),
        ("drgrpo()", "Here it is 'dr_grpo'"),
        ("grpo(kl_coef=0.1)", "Here it is 'kl'"),
    ):
        with pytest.raises(ValueError, match=message):
            build(call)


def test_what_a_foreign_name_leads_to_exists():
    pieces = {f"{seam}.{name}" for seam in transforms.SEAMS for name in transforms.pieces(seam)}
    for name, ours in foreign.FOREIGN.items():
        for dotted in re.findall(r"\b(?:advantage|reward|weight|penalty|surrogate)\.\w+", ours):
            assert dotted in pieces, (name, dotted)
        for recipe in re.findall(r"the recipe (\w+)", ours):
            assert recipe in algorithms.TABLE, (name, recipe)
    functions = [
        *algorithms.TABLE.values(),
        *(f for seam in transforms.SEAMS for f in transforms.pieces(seam).values()),
    ]
    functions += [*optimizers.functions().values(), gsm8k.gsm8k]
    arguments = {argument for function in functions for argument in inspect.signature(function).parameters}
    fields = {field.rpartition(".")[2] for field in files.flatten(schema.default())}
    fields |= {field.rpartition(".")[2] for field in files.flatten(schema.phase())}
    for name, ours in foreign.SAME.items():
        assert {*ours} <= {*algorithms.TABLE, *arguments, *fields}, (name, ours)


# --- the command --------------------------------------------------------------------------------


def printed(capsys, *arguments):
    command.main(["algorithms", *arguments])
    return capsys.readouterr().out


def test_the_table_has_a_line_for_every_recipe(capsys):
    out = printed(capsys)
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert set(algorithms.TABLE) <= set(lines)
    assert "2503.14476" in lines["dapo"] and "dynamic" in lines["dapo"]
    assert "part greedy_reward" in lines["remax"]


def test_one_recipe_is_printed_as_the_expression_it_stands_for(capsys):
    out = printed(capsys, "dapo(high=0.3)")
    assert "arXiv 2503.14476" in out and "surrogate clip(low=0.2, high=0.3, dual=None)" in out


def test_two_recipes_differ_seam_by_seam(capsys):
    out = printed(capsys, "dapo", "gspo")
    mark = {line.split()[0]: line.split()[1] for line in out.splitlines() if len(line.split()) > 2}
    assert mark["advantage"] == "=" and mark["ratio"] == mark["surrogate"] == mark["reduce"] == mark["source"] == "≠"
    assert "≠" not in printed(capsys, "dapo", "dapo")


def test_a_mistake_is_one_line_and_exit_2():
    done = subprocess.run([sys.executable, "-m", "rljax", "algorithms", "gspoo"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Did you mean 'gspo'" in done.stderr


def test_importing_rljax_is_enough():
    code = (
        "import rljax\n"
        "rljax.transforms.advantage.whiten, rljax.transforms.penalty.kl, rljax.transforms.define.surrogate\n"
        "rljax.transforms.reduce.mean_over_rows, rljax.transforms.ops.gae, rljax.transforms.schedule.linear\n"
        "rljax.algorithms.clipped.grpo, rljax.algorithms.grpo, rljax.algorithms.arrays, rljax.algorithms.seams\n"
        "rljax.config.schema.default, rljax.transform, rljax.penalty_terms\n"
        "try: rljax.transforms.piece\n"
        "except AttributeError as error: assert 'it is now rljax.transforms.define.constructor' in str(error)\n"
        "else: raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
