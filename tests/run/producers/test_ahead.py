"""Rollouts ahead of updates: the schedule, against a loop that keeps the last states; checkpoints; two meshes."""

import json
import os
import random
import shutil
import signal
import time

import jax
import jax.numpy as jnp
import pytest

from rljax.config import resolve
from rljax.environments.workers import pool
from rljax.run import loop, producers, programs
from tests.run import kills
from tests.support import tiny

STEPS, LAG = 6, 2
ONE, TWO = jax.devices()[:1], jax.devices()[:2]
WORLD = (
    "world('tests.support.talking:Guess', {'secrets': [7, 1, 4, 4, 9, 0, 3, 5], 'turns': 3}, max_turns=3, "
    "turn_length=4, reply_length=1, prompt_length=5, examples=8)"
)
# The most that the verifier sleeps; the call that stops the run; the first one that fails.
MOOD = {"seconds": 0.0, "calls": 0, "stop": 0, "die": 1_000_000}


def lazy(completion: str, reference: str) -> float:
    """Return a reward after a time that nobody can foresee."""
    MOOD["calls"] += 1
    time.sleep(random.random() * MOOD["seconds"])
    if MOOD["calls"] == MOOD["stop"]:
        os.kill(os.getpid(), signal.SIGTERM)
    if MOOD["calls"] >= MOOD["die"]:
        raise RuntimeError("gone")
    return float(len(completion) % 2)


def config(**fields):
    """Return the config of STEPS steps, checkpointed at each."""
    sizes = {"batch__prompts": 4, "batch__samples": 2, "verifier__workers": 0, "phase__main__steps": STEPS}
    sizes["seam__penalty"] = "+ entropy(0.1)"  # every update changes the policy, whatever it is paid
    return tiny.config(fields.pop("algorithm", "grpo(kl=0.01)"), **{**sizes, **fields})


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Return a task whose verifier is ``lazy``."""
    path = tmp_path_factory.mktemp("ahead") / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i:02}?", "answer": "1"}) + "\n" for i in range(64)))
    return f"jsonl({str(path)!r}, reward='{__name__}:lazy', heldout=0.1, prompt_length=8, completion_length=6)"


def train(c, workdir=None, devices=ONE):
    return loop.train(c, workdir, progress=False, devices=devices)


def oracle(program, lag):
    """Return the states and metrics of a loop that keeps every state, and samples from that of the right version."""
    step, key = program.steps[0], program.key
    states, history = [step.begin(None, key, {})], []
    with producers.workers(step.setup) as workers:
        producer = producers.make(program, step, workers, None, states[0]) or (lambda state: step.rollout(state, key))
        for k in range(STEPS):
            old = states[max(0, k - lag)]
            ahead = jnp.int32(k - max(0, k - lag))
            cursor = old.cursor + ahead * step.setup.drawn
            rows = producer(old.replace(step=jnp.int32(k), cursor=cursor))
            rows = rows.replace(version=rows.version - ahead)
            state, metrics = step.update(jax.tree.map(jnp.copy, states[-1]), rows, key)
            states, history = [*states, state], [*history, metrics]
    return states[-1], history


def check(result, lag, program=None):
    """Compare a run with the oracle, bit for bit; the program of another config with its rollouts has other metrics."""
    state, history = oracle(program or result.program, lag)
    assert tiny.equal(result.state, state)
    for mine, other in zip(result.history, history, strict=True):
        names = {*mine} & {*other} - ({"slot_utilisation"} if program else set())
        assert len(names) > 20 and all(mine[n] == float(other[n]) for n in names)
    assert all(h["gradient_norm"] > 0 for h in result.history)
    assert [h["age"] for h in result.history] == [min(k, lag) for k in range(STEPS)]
    assert all(0 < h["slot_utilisation"] <= 1 for h in result.history if "slot_utilisation" in h)


@pytest.mark.full
@pytest.mark.parametrize("lag", [1, 4])
def test_a_rollout_is_sampled_by_the_policy_of_its_version(lag):
    check(train(config(run__lag=lag)), lag, programs.build(config(), devices=ONE) if lag > 1 else None)


@pytest.mark.full
@pytest.mark.parametrize(
    "fields",
    [
        {"seam__source": "mopps()"},  # chooses by statistics of the trainer
        {"seam__source": "guide()", "task": "arithmetic(operands=2, digits=1)"},  # a second pass
        {
            "task": "game('kuhn_poker')",
            "algorithm": "reinforce()",
            "world__players": ("policy", "snapshot"),
            "world__refresh": 2,
        },
        {"model__adapter_rank": 2},
        {
            "task": "world('tests.support.relay:Relay', max_turns=4, turn_length=3, reply_length=2, prompt_length=3)",
            "algorithm": "reinforce()",
            "world__players": ("policy", "snapshot"),
            "world__refresh": 2,
            "model__adapter_rank": 2,
        },
    ],
    ids=["statistics", "again", "seats", "adapters", "seats on the host"],
)
def test_whatever_a_rollout_reads_is_of_its_version(fields):
    check(train(config(run__lag=LAG, **fields)), LAG)


@pytest.mark.full
@pytest.mark.parametrize("where", ["verifier", "world"])
def test_times_of_the_host_change_nothing(where, task, monkeypatch):
    fields = {"task": task if where == "verifier" else WORLD, "algorithm": "grpo(kl=0.01)"}
    monkeypatch.setitem(MOOD, "seconds", 0.03)
    result = train(config(run__lag=LAG, **fields))
    monkeypatch.setitem(MOOD, "seconds", 0.0)
    check(result, LAG)


@pytest.mark.full
def test_two_meshes_of_one_device_each_are_equal_to_one():
    one, two = train(config(run__lag=1)), train(config(run__lag=1, mesh__rollout=1), devices=TWO)
    assert tiny.equal(one.state, two.state) and one.history == two.history
    assert two.program.mesh.devices.flat[0] == TWO[1] and two.program.sampler.mesh.devices.flat[0] == TWO[0]


def cut(workdir, step):
    """Leave a work directory as a kill does after the checkpoint of a step: its logs go on."""
    for folder in (workdir / "checkpoints").iterdir():
        if folder.name.isdigit() and int(folder.name) > step:
            shutil.rmtree(folder)


@pytest.mark.full
def test_a_run_resumes_with_rows_in_flight(tmp_path):
    c = config(run__lag=LAG, mesh__rollout=1, checkpoint__max_to_keep=9)
    whole = train(c, tmp_path / "run", TWO)
    logs = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    saved = kills.leaves(tmp_path / "run", 3)
    assert {name.split("/")[1] for name in saved if name.startswith("ahead/")} == {"0", "1"}
    assert not any(name.startswith("ahead/") for name in kills.leaves(tmp_path / "run", STEPS))
    cut(tmp_path / "run", 3)
    again = train(c, tmp_path / "run", TWO)
    assert tiny.equal(whole.state, again.state) and logs == (tmp_path / "run" / "metrics.jsonl").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize(("how", "error"), [("stop", loop.Interrupted), ("die", pool.VerifierError)])
def test_a_run_that_its_verifier_ends_is_saved_with_what_it_samples_from(how, error, task, tmp_path, monkeypatch):
    c = config(run__lag=LAG, task=task, checkpoint__every=100)
    monkeypatch.setitem(MOOD, "calls", 0)
    whole, rows = train(c), 4 * 2
    monkeypatch.setitem(MOOD, how, MOOD["calls"] - 2 * rows + 1)  # in the rollout of step 5
    monkeypatch.setitem(MOOD, "calls", 0)
    monkeypatch.setitem(MOOD, "seconds", 0.1)
    with pytest.raises(error) as raised:
        train(c, tmp_path / "run")
    (step,) = (int(f.name) for f in (tmp_path / "run" / "checkpoints").iterdir())
    saved = [name for name in kills.leaves(tmp_path / "run", step) if name.startswith("ahead/")]
    assert 2 <= step < STEPS and any("params/policy" in name for name in saved)
    if how == "die":
        assert "rows of step 5" in str(raised.value) and step == 4
    monkeypatch.setitem(MOOD, how, 1_000_000)
    monkeypatch.setitem(MOOD, "seconds", 0.0)
    again = train(c, tmp_path / "run")
    assert tiny.equal(whole.state, again.state) and [h["step"] for h in again.history] == [*range(1, STEPS + 1)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run__lag": -1}, "config.run.lag=-1: must be a whole number in"),
        ({"run__lag": 1, "seam__source": "partial(segment=2, oversample=2)"}, "continues the rows of the step before"),
    ],
)
def test_a_lag_that_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.run(config(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mesh__rollout": 2}, "config.mesh.rollout=2: must be below the number of devices, 2"),
        ({"mesh__rollout": 1, "mesh__data": 2}, "mesh data=2, .* does not fit 1 devices"),
        ({"mesh__rollout": 1, "mesh__data": -1, "mesh__fsdp": 2}, "mesh data=-1, .* does not fit 1 devices"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        programs.build(config(**fields), devices=TWO)


def test_a_lag_of_the_host_on_several_devices_is_refused(task):
    with pytest.raises(ValueError, match="2 devices could begin rollout and update in different orders"):
        train(config(run__lag=1, task=task), devices=TWO)


def test_a_lag_without_rollouts_is_told():
    c = tiny.config("sft()", run__lag=1)
    assert any("config.run.lag=1 has no effect: no phase samples rows" in w for w in resolve.run(c).phases[0].warnings)
