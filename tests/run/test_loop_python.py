"""The loop as a person meets it: from Python."""

import dataclasses
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.config import schema
from rljax.data import tokenizers
from rljax.models.checkpoints import tensors, weights
from rljax.run import loop
from rljax.run.evaluation import loading, sample
from rljax.run.members import alone
from rljax.run.records import checkpoints
from tests.run.loop_cases import ONE
from tests.support import tiny


@pytest.mark.full
def test_train_in_memory_and_use_what_it_returns():
    result = rljax.train(tiny.config(phase__main__evaluate="result"), progress=False, devices=ONE)
    assert [r["step"] for r in result.history] == [1, 2]
    assert [e["name"] for e in result.evaluations] == ["result"]
    completions = sample.complete(result.program, result.params, "3+4=", samples=2)
    assert len(completions) == 2 and all(c["logp"] < 0 for c in completions)
    assert result.learning_curve() is not None and result.passk() is not None
    with pytest.raises(ValueError, match="prompt_length"):
        sample.complete(result.program, result.params, "3+4=" * 9)
    with pytest.raises(ValueError, match="unknown to the tokenizer"):
        sample.complete(result.program, result.params, "3+x=")


@pytest.mark.full
def test_an_evaluation_before_a_phase_is_of_what_it_starts_with(tmp_path):
    config = tiny.phases(phase__main__before="start")
    base, start, end = loop.train(config, tmp_path, progress=False, devices=ONE).final
    assert {**start, "name": "base"} == base and (end["name"], end["step"]) == ("result", 4)
    for step in (3, 4):
        shutil.rmtree(tmp_path / "checkpoints" / str(step))
    again = loop.train(config, tmp_path, progress=False, devices=ONE)  # goes on behind the evaluation, which it has
    assert again.evaluations == [base, start, end]


@pytest.mark.full
def test_two_phases_may_have_an_evaluation_of_one_name_before_them(tmp_path):
    config = tiny.phases(phase__warm__before="start", phase__main__before="start")
    evaluations = loop.train(config, tmp_path, progress=False, devices=ONE).evaluations
    assert [(e["name"], e["step"]) for e in evaluations] == [("start", 0), ("base", 2), ("start", 2), ("result", 4)]


@pytest.mark.full
def test_a_run_from_weights_with_a_digest_is_loaded_without_them(tmp_path):
    program, folder = tiny.program(), tmp_path / "weights"
    files = tokenizers.files(program.tokenizer)
    weights.save(str(folder), program.policy.architecture, program.policy.init(program.key), tokenizer=files)
    start = {"weights": str(folder), "digest": tensors.digest(str(folder))}
    config = tiny.config("ppo()", phase__main__steps=1)
    config.model.update(start)
    config.module.value = rljax.module(**start)
    result = loop.train(config, tmp_path / "run", progress=False, devices=ONE)
    shutil.rmtree(folder)
    jax.tree.map(np.testing.assert_array_equal, loading.load(str(tmp_path / "run"))[1], result.params)


@pytest.mark.full
def test_too_many_non_finite_updates_stop_the_run_with_step_and_metric(tmp_path):
    config = tiny.config("reinforce()", learner__max_skipped=2, phase__main__steps=9)
    config.seam.reward = "affine(3e38, 3e38)"  # infinity in float32
    with pytest.raises(loop.NonFinite, match=r"phase 'main'.*max_skipped=2") as error:
        loop.train(config, tmp_path, progress=False, devices=ONE)
    assert "loss" in str(error.value)


@pytest.mark.full
def test_a_learning_rate_that_becomes_nan_stops_the_run_with_the_parameters_before(tmp_path):
    # 0 * 1e30 ** 2 is 0 * inf in float32: the third step of the optimizer is the first that is not finite.
    optimizer = "scale_by_adam() | add_decayed_weights(0.1) | scale_by_learning_rate(exponential_decay(0.0, 1, 1e30))"
    config = tiny.config(phase__main__steps=9, learner__max_skipped=1, phase__main__optimizer=optimizer)
    with pytest.raises(loop.NonFinite, match=r"step 4 .*Not finite in this step: the update") as error:
        loop.train(config, tmp_path, progress=False, devices=ONE)
    assert "A skipped update changes neither parameters nor optimizer state" in str(error.value)
    program, params, step = loading.load(str(tmp_path))
    assert step == 3
    jax.tree.map(np.testing.assert_array_equal, params, program.steps[0].begin(None, program.key).params["policy"])


@pytest.mark.full
def test_phases_hand_over_parameters_and_references(tmp_path):
    config = tiny.phases("grpo()", phase__warm__evaluate="", phase__main__evaluate="", seed=1)
    config.phases = ("warm", "main", "again")
    config.phase.again = schema.phase(steps=1, reference="keep", reset_optimizer=False, warmup=1)
    result = loop.train(config, tmp_path, progress=False, devices=ONE)
    assert int(result.state.step) == 5
    reference, policy = result.state.reference["embedding"], result.params["embedding"]
    saved = checkpoints.Checkpointer(tmp_path / "checkpoints")
    warm, main = (saved.restore(result.program.steps[i].shape, 2 * i + 2)[0] for i in range(2))
    np.testing.assert_array_equal(main.reference["embedding"], warm.params["policy"]["embedding"])
    np.testing.assert_array_equal(reference, main.reference["embedding"])  # that of the phase before
    assert np.any(np.asarray(reference) != np.asarray(policy))
    counts = {int(x) for x in jax.tree.leaves(result.state.opt_state) if x.ndim == 0}
    assert counts == {3}  # the optimizer went on counting


@pytest.mark.full
def test_a_failed_run_ends_although_a_thread_of_a_library_waits(tmp_path):
    text = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    (tmp_path / "waits.py").write_text(text + "def get_config(argument=''):\n    raise ValueError('too little')\n")
    command = [sys.executable, "-m", "rljax", "--config", str(tmp_path / "waits.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "too little" in done.stderr


def test_a_program_compiled_twice_stops_the_run():
    @dataclasses.dataclass
    class Two:
        fused: object
        update: object

    step = Two(jax.jit(lambda x: x + 1), jax.jit(lambda x: x * 2))
    step.fused(1.0), step.fused(2.0), step.update(jnp.zeros(2))
    alone.check_compiled(step)
    step.update(jnp.zeros(3))
    with pytest.raises(loop.Recompiled, match="'update' was compiled 2 times"):
        alone.check_compiled(step)
