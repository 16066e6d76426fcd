"""Losses of arrays in hand: rollout_from_arrays, objective, advantages, and the command that prints the table."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import algorithms
from rljax.algorithms import __main__ as command
from rljax.algorithms import interpreter, seams
from tests import batch

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


def test_a_key_decides_what_is_drawn():
    rollout, scores = batch.records(batch.arrays())
    call = "clip_cov(share=0.1, bounds=(-10.0, 10.0))"
    values = [float(rljax.objective(call, rollout, scores, key=jax.random.key(k))[0]) for k in (0, 0, 1, 2)]
    assert values[0] == values[1] and len(set(values)) > 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ref_logp": np.zeros((4, 2))}, r"ref_logp has shape \(4, 2\): expected \(4, 3\)"),
        ({"valid": np.zeros((4, 3))}, r"valid has shape \(4, 3\): expected \(4,\)"),
        ({"parts": {"format": [1, 2]}}, r"format has shape \(2,\): expected \(4,\)"),
        ({"extra": {"node": np.zeros((3, 3))}}, r"extra\['node'\] has shape \(3, 3\): expected 4 rows"),
        ({"ref_logprob": np.zeros((4, 3))}, r"'ref_logprob' is no field of a rollout\. Did you mean 'ref_logp'"),
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
