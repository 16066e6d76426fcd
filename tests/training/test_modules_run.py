"""Modules beside the policy: in a run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.data import tokenizers
from rljax.models.checkpoints import weights
from rljax.run import loop, programs
from rljax.run.evaluation import ranking
from tests.support import tiny
from tests.support.tiny import equal, leaves
from tests.training.modules_cases import ONE, with_modules


@pytest.mark.full
def test_a_reward_model_is_trained_then_frozen_and_pays(tmp_path):
    """Rows of both phases; the model moves in its phase alone, the policy in the other; resume is bit for bit.

    The other phase trains a second model, which is implied by a language model, and pays by it too.
    """
    seam = "learned(verified=1.0) | implicit_steps()"
    c = with_modules("prime()", reward=rljax.module(width=16), seam=seam)
    c.checkpoint.max_to_keep = 9
    whole = loop.train(c, tmp_path / "whole", progress=False, devices=ONE)
    program = whole.program
    first, second = program.steps
    start = first.begin(None, program.key)
    # rewards that differ within groups, whatever the policy can do
    rows = with_rewards(first.rollout(start, program.key))
    state, metrics = first.update(jax.tree.map(jnp.copy, start), rows, program.key)
    assert equal(state.params["policy"], start.params["policy"])
    assert not equal(state.params["reward"], start.params["reward"]) and metrics["reward/loss"] > 0
    held = second.begin(state, program.key)
    assert {*held.params} == {"policy", "prm"} and {*held.frozen} == {"reward"}
    assert {x.shape for x in leaves(held.opt_state)} == {(), *(x.shape for x in leaves(held.params))}
    kept = jax.device_get((held.frozen, held.params))
    assert [ranking.models(step) for step in program.steps] == [("reward",), ("prm", "reward")]
    np.testing.assert_allclose(ranking.implied(second, held, rows, "prm"), 0, atol=1e-5)  # it starts as the reference
    after, metrics = second.fused(held, program.key)
    assert np.all(np.abs(ranking.implied(second, after, rows, "prm")) > 1e-4)
    assert equal(after.frozen, kept[0])
    assert not any(equal(after.params[name], kept[1][name]) for name in ("policy", "prm"))
    c.phase.main.steps = 1
    loop.train(c, tmp_path / "cut", progress=False, devices=ONE, allow_config_change=True)
    c.phase.main.steps = 2
    resumed = loop.train(c, tmp_path / "cut", progress=False, devices=ONE, allow_config_change=True)
    assert equal(resumed.state, whole.state)


def with_rewards(rollout):
    return rollout.replace(reward=(jnp.arange(rollout.reward.shape[0]) % 3 == 0) * 1.0)


@pytest.mark.full
def test_a_learned_reward_is_the_score_of_the_row(tmp_path):
    """The step's reward is that of the network applied to the row's own tokens, and starts from a folder."""
    c = with_modules(reward=rljax.module(width=16))
    program = programs.build(c, devices=ONE)
    network = program.model("reward")
    params = network.init(jax.random.key(3))
    params["scalar"] = jax.random.normal(jax.random.key(4), params["scalar"].shape)
    weights.save(str(tmp_path / "model"), network.architecture, params)
    c.module.reward = rljax.module(weights=str(tmp_path / "model"))
    c.phases = ("main",)
    program = programs.build(c, devices=ONE)
    step = program.steps[0]
    state = program.begin()
    assert equal(state.frozen["reward"], params)
    rollout = step.rollout(state, program.key)
    got = step.score("reward", state.frozen["reward"], rollout, types.Needs(reward=True)).reward
    for i in range(4):
        prompt = np.asarray(rollout.context.token[i])[np.asarray(rollout.context.mask[i]) > 0]
        token = np.concatenate([prompt, np.asarray(rollout.action.token[i])[: int(rollout.mask[i].sum())]])
        hidden = network.apply(params, jnp.asarray(token)[None], jnp.ones((1, token.size)))
        np.testing.assert_allclose(network.scalar(params, hidden)[0, -1], got[i], rtol=1e-4, atol=1e-5)
    _, metrics = step.update(state, rollout, program.key)
    np.testing.assert_allclose(metrics["reward"], np.mean(got), rtol=1e-4, atol=1e-6)
    headless = dict(params)
    del headless["scalar"]
    bare = dataclasses.replace(network.architecture, output="logits")
    weights.save(str(tmp_path / "bare"), bare, headless)
    c.module.reward = rljax.module(weights=str(tmp_path / "bare"))
    with pytest.raises(ValueError, match=r"the folder has no head \(score.weight\), and phase 'main' reads"):
        programs.build(c, devices=ONE)
    (tmp_path / "model" / "tokenizer.model").write_bytes(tokenizers.make("bytes", ()).serialized)
    c.module.reward = rljax.module(weights=str(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"its tokenizer differs from the run's: id \d+ is"):
        programs.build(c, devices=ONE)


@pytest.mark.full
def test_a_process_reward_model_learns_from_labels_and_pays_alone():
    """Its loss and its reward are those of the network's logits where the task says that a step ends."""
    c = tiny.config(task="arithmetic(operands=2, digits=1, noise=0.3, step_reward=0.5)")
    c.phases = ("steps", "main")
    c.phase.steps = rljax.phase(algorithm="process_reward_model()", steps=2, warmup=1)
    c.phase.main.seam.reward = "process_steps()"
    program = programs.build(c, devices=ONE)
    first, second = program.steps
    state = jax.tree.map(jnp.copy, first.begin(None, program.key))
    state.params["prm"]["scalar"] = jax.random.normal(jax.random.key(4), state.params["prm"]["scalar"].shape)
    rows, start = first.rollout(state, program.key), jax.device_get(state.params)

    def logits():
        scored = first.score("prm", state.params["prm"], rows, types.Needs(process=True)).process
        return np.asarray(scored, np.float64), np.asarray(rows.token_reward)

    logit, label = logits()
    want = np.mean(np.log1p(np.exp(-2 * label * logit))[label != 0])
    state, metrics = first.update(state, rows, program.key)
    np.testing.assert_allclose(metrics["prm/loss"], want, rtol=1e-5)
    np.testing.assert_allclose(metrics["prm/classified"], np.mean((label * logit > 0)[label != 0]), rtol=1e-5)
    assert equal(state.params["policy"], start["policy"]) and not equal(state.params["prm"], start["prm"])
    logit, _ = logits()
    assert ranking.of_steps(first) == ranking.of_steps(second) == ("prm",)
    held = second.begin(state, program.key)
    kept = jax.device_get(held.frozen)
    held, metrics = second.update(held, rows, program.key)
    want = np.mean(np.sum((label != 0) / (1 + np.exp(-logit)), axis=1))
    np.testing.assert_allclose(metrics["reward"], want, rtol=1e-5)
    assert equal(held.frozen, kept) and not equal(held.params["policy"], start["policy"])


@pytest.mark.full
def test_held_out_rows_are_scored_whatever_prompts_lie_side_by_side():
    """The order of rows changes nothing, though a step reads the prompt of adjacent rows once."""
    program = tiny.program("grpo(kl=0.0)")
    (step,), task = program.steps, program.tasks[0]
    params = step.begin(None, program.key).params["policy"]
    index, r = jnp.arange(8, dtype=jnp.int32), np.random.default_rng(0)
    prompts, width = task.prompts(index, "heldout"), task.completion_length
    token = jnp.asarray(r.integers(0, program.tokenizer.vocabulary, (8, width)), jnp.int32)
    rows = types.Rollout(jnp.ones((8, width)), jnp.zeros(8), index, types.Context(prompts.token, prompts.mask))
    rows = rows.replace(action=types.Action(token), index=index)
    order = r.permutation(8)
    one = step.score("policy", params, rows, types.Needs()).logp
    other = step.score("policy", params, jax.tree.map(lambda x: x[order], rows), types.Needs()).logp
    np.testing.assert_allclose(one[order], other, rtol=1e-5, atol=1e-6)
