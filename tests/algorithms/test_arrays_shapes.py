"""Losses of arrays in hand: ids, shapes, seams, weights, penalties; names of other systems; the command."""

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
from rljax import algorithms, transforms
from rljax.algorithms import __main__ as command
from rljax.config import files, schema
from rljax.environments.questions import published
from rljax.language import foreign
from rljax.training.learning import optimizers
from tests.algorithms.arrays_cases import GROUP, MASK, REWARD, build, rollout

# --- ids, shapes, seams, weights, penalties -------------------------------------------


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


# --- names of other systems -----------------------------------------------------------


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
    functions += [*optimizers.functions().values(), published.gsm8k]
    arguments = {argument for function in functions for argument in inspect.signature(function).parameters}
    fields = {field.rpartition(".")[2] for field in files.flatten(schema.default())}
    fields |= {field.rpartition(".")[2] for field in files.flatten(schema.phase())}
    for name, ours in foreign.SAME.items():
        assert {*ours} <= {*algorithms.TABLE, *arguments, *fields}, (name, ours)


# --- the command ----------------------------------------------------------------------


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
        "rljax.algorithms.grpo, rljax.algorithms.arrays, rljax.algorithms.seams\n"
        "rljax.config.schema.default, rljax.transform, rljax.penalty_terms\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
