"""Runs of control worlds: devices, micro-batches, members, kill and resume, evaluations, commands."""

import re
import shutil

import jax
import numpy as np
import pytest

import rljax
from rljax.run import convert, loop, sharding
from rljax.run.evaluation import evaluate, loading
from rljax.run.reports.comparison import quantities
from tests.run.members import test_many
from tests.support import control, tiny

ONE = jax.devices()[:1]
CART = {"task": "cartpole(horizon=25)", "algorithm": "ppo(kl=0.0)", "seam__source": "unrolled(8)"}
PENDULUM = {"task": "pendulum(horizon=12)", "algorithm": "ppo(kl=0.0, value_clip=None)", "seam__source": "unrolled(5)"}
PENDULUM |= {"model__mlp__normalise": True, "model__mlp__squash": True, "seam__reward": "scale(0.1)"}
CHAIN = {"task": "pendulum(horizon=10)", "algorithm": "diffusion_ppo(last=2)", "seam__source": "unrolled(4)"}
CHAIN |= {"model__denoising__steps": 3, "model__denoising__noise": "sde", "model__denoising__positions": "step"}
CHAIN |= {"model__denoising__first": 1, "model__denoising__shared": 2}
STEPS = {"learner__epochs": 2, "learner__minibatches": 2, "batch__prompts": 16, "phase__main__steps": 5}
RUNS = pytest.mark.parametrize(
    "fields", [CART | STEPS, PENDULUM | STEPS, CHAIN | STEPS], ids=["cart", "pendulum", "chain"]
)


def close(one, two, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), *map(jax.device_get, (one, two)))


# --- devices and micro-batches --------------------------------------------------------------------------


@pytest.mark.full
@RUNS
def test_eight_devices_have_the_rows_and_the_update_of_one(fields):
    results = []
    for devices in (1, 8):
        program, step, state = control.started(**fields, mesh__data=devices)
        state, _ = step.fused(state, program.key)  # windows go on in the second step
        params = jax.device_get(state.params)
        if results:  # from the same parameters, so that no rounding grows into another action
            state = state.replace(params=jax.device_put(results[0][0], step.sharding.params))
            close(params, results[0][0])
        rows = step.rollout(state, program.key)
        sampled = jax.device_get(rows)
        state, metrics = step.update(state, rows, program.key)
        results.append((params, sampled, jax.device_get(state.params), float(metrics["loss"])))
    (_, rows, params, loss), (_, rows_8, params_8, loss_8) = results
    assert 0 < rows.mask.sum() and np.any(rows.turn[:, 0] > 0)
    for name in ("mask", "turn", "finish", "outcome", "group", "index", "valid"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(rows_8, name), name)
    close((rows.motion.observation, rows.motion.taken, rows.token_reward),
          (rows_8.motion.observation, rows_8.motion.taken, rows_8.token_reward), atol=1e-4)  # fmt: skip
    close(params, params_8, atol=1e-4)
    assert loss == pytest.approx(loss_8, abs=1e-4)


@RUNS
@pytest.mark.full
def test_micro_batches_add(fields):
    one = fields | {"learner__epochs": 1, "phase__main__optimizer": "sgd(learning_rate=0.1)"}
    program, step, state = control.started(**one)
    _, parts, same = control.started(**one, learner__microbatches=4)
    rows = step.rollout(state, program.key)
    copied = jax.tree.map(lambda x: x.copy(), rows)
    (whole, metrics), (cut, metrics_4) = step.update(state, rows, program.key), parts.update(same, copied, program.key)
    close(whole.params, cut.params)
    for name in ("loss", "value/loss", "gradient_norm", "sampler_gap"):
        np.testing.assert_allclose(metrics[name], metrics_4[name], rtol=1e-4, atol=1e-5)


# --- runs -----------------------------------------------------------------------------------------------


@RUNS
@pytest.mark.full
def test_members_are_runs_alone(fields):
    c = control.config(**fields | {"log__rollouts": 0, "phase__main__steps": 3})
    out = rljax.train_many(c, {"seed": [0, 1], "algorithm.lam": [0.8, 0.95]}, progress=False, devices=ONE)
    for member in out[1:3]:
        alone = test_many.alone(member, c)
        assert test_many.distance(alone, member.result) <= 1e-5 < test_many.distance(member.result, out[0].result)
        assert alone.history[-1]["loss"] == pytest.approx(member.result.history[-1]["loss"], abs=1e-4)


@RUNS
@pytest.mark.full
def test_a_run_resumes_bit_for_bit(fields, tmp_path):
    c = control.config(**fields, log__rollouts=2)
    whole = loop.train(c, str(tmp_path / "whole"), progress=False, devices=ONE)
    assert float(whole.history[1]["carried"]) > 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for step in (3, 4, 5):  # as if killed after the logs of step 5 and before the checkpoint of step 3
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / str(step), ignore_errors=True)
    again = loop.train(c, str(tmp_path / "cut"), progress=False, devices=ONE)
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get(run.state) for run in (whole, again)))


# --- evaluations and commands ---------------------------------------------------------------------------


def test_an_evaluation_has_the_returns_of_whole_episodes():
    """The mean is near the exact expected return, and the greedy mean is the return of the most probable actions."""
    program, _, state = control.started(seam__source="unrolled(2)")
    assert sharding.page(program).count("resident") == 0  # the weights of rollouts are those of updates
    params = jax.tree.map(
        lambda x: x + 0.5 * jax.random.normal(jax.random.key(x.size), x.shape), state.params["policy"]
    )
    record = evaluate.evaluate(program, params, name="now", step=0, prompts=8, samples=64, ks=[1])
    z = control.network(jax.device_get(params), np.eye(4)[:, :3])
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    rows = control.enumerated()
    chance = np.prod(np.where(rows[3] > 0, p[rows[0][:, :-1], rows[1]], 1.0), axis=1)
    total, length = rows[2].sum(axis=1), rows[3].sum(axis=1)
    mean, low, high, greedy = record["returns"]
    for value, of in ((mean, total), (record["length"], length), (record["pass_at_k"]["1"][0], total > 1)):
        expected = chance @ of
        assert value == pytest.approx(expected, abs=5 * np.sqrt(chance @ (of - expected) ** 2 / 512))
    assert low <= mean <= high
    for name, value in (("return", mean), ("greedy return", greedy)):
        compared = quantities.evaluated(record, name)
        assert compared.mean == pytest.approx(value) and compared.values.shape == (8,)
    place, best = 0, 0.0
    for _ in range(control.HORIZON):
        action = int(p[place].argmax())
        place, best = int(control.NEXT[place, action]), best + control.PAID[place, action]
    assert greedy == pytest.approx(best) and record["greedy"][0] == float(best > 1)
    assert record["unjudged"] == 0 and len(record["correct"]) == 8
    assert re.fullmatch(r"  \d steps, twos \d", record["examples"][0]["completion"])


@pytest.mark.full
def test_a_run_is_evaluated_loaded_and_not_converted(tmp_path):
    c = control.config(phase__main__evaluate="result", seam__source="unrolled(2)", phase__main__steps=1)
    result = loop.train(c, str(tmp_path / "run"), progress=False, devices=ONE)
    final = result.final[-1]
    assert final["returns"][1] <= final["returns"][0] <= final["returns"][2] and len(final["examples"]) == 4
    program, params, step = loading.load(str(tmp_path / "run"), allow_code=["tests"])
    assert step == 1 and tiny.equal(params, result.state.params["policy"])
    again = evaluate.evaluate(program, params, name="result", step=1, prompts=8, samples=4)
    assert again["returns"] == final["returns"]
    with pytest.raises(ValueError, match="a run of a control world, whose network has no public form"):
        convert._read(str(tmp_path / "run"), None, "", ["tests"])
