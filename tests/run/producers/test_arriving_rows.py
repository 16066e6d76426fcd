"""Training on rows that others write into a folder during the run."""

import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from rljax.config import resolve
from rljax.data import stored_groups, tokenizers
from rljax.environments.workers import pool
from rljax.models.checkpoints import weights
from rljax.run import loop, programs
from rljax.run.members import sweep
from rljax.transforms import source
from rljax.transforms.source import chain
from tests.run.producers.stored_rows_cases import BYTES, reader, write
from tests.support import tiny

ROW = {"prompt": "1+1=", "token": [*BYTES.encode("2"), BYTES.eos], "reward": 1.0, "behaviour_logp": [-1.0, -0.5]}
STEPS, ALGORITHM = 3, "areal()"
SMALL = {"batch__prompts": 4, "batch__samples": 2, "mesh__data": 1, "phase__main__steps": STEPS, "log__rollouts": 0}
ONE = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # one device
SMALL |= {"model__width": 8, "model__heads": 1, "model__hidden": 8}


def config(folder, more="", **fields):
    call = {"seam__source": f"arriving({str(folder)!r}{more})"} if folder else {}
    return tiny.config(ALGORITHM, **{**SMALL, **call, **fields})


def train(folder, work=None, more="", allow=False, log_gap=False, **fields):
    given = {"allow_config_change": allow, "allow_log_gap": log_gap, "progress": False, "devices": jax.devices()[:1]}
    return loop.train(config(folder, more, **fields), work, **given)


def rows_of(program, rollout, version):
    """Return what an outside sampler would write of rows of the policy."""
    rows, decode = jax.device_get(rollout), program.tokenizer.decode
    return [
        {
            "prompt": decode(rows.context.token[i][rows.context.mask[i] > 0].tolist()),
            "token": rows.action.token[i][rows.mask[i] > 0].tolist(),
            "behaviour_logp": rows.behaviour_logp[i][rows.mask[i] > 0].tolist(),
            "reward": float(rows.reward[i]),
            "version": version,
            "tokenizer": stored_groups.fingerprint(program.tokenizer),
        }
        for i in range(rows.mask.shape[0])
    ]


@functools.cache
def recorded():
    """Return rows of each step of a run that samples in its program, and its parameters at the end."""
    program = programs.build(config(None), devices=jax.devices()[:1])
    step, key = program.steps[0], program.key
    state, out = step.begin(None, key), []
    for version in range(STEPS):
        rollout = step.rollout(state, key)
        out.append(rows_of(program, rollout, version))
        state, _ = step.update(state, rollout, key)
    return out, jax.device_get(state.params["policy"])


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the rows of the recorded run, a file for each step."""
    place = tmp_path / "rows"
    place.mkdir()
    for n, rows in enumerate(recorded()[0]):
        write(place / f"{n}.jsonl", rows)
    return place


@pytest.mark.full
def test_recorded_rows_make_the_updates_of_the_run_that_sampled_them(folder):
    (folder / ".late.jsonl").write_text("not finished")
    (folder / "0.jsonl.tmp").write_text("not finished")
    result = train(folder)
    for a, b in zip(tiny.leaves(result.params), tiny.leaves(recorded()[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert [h["age"] for h in result.history] == [h["late"] for h in result.history] == [0.0] * STEPS


BAD = {
    "newer": ({"version": 3}, "'version' is 3, expected .* at most the 2 of this run"),
    "without a version": ({}, "'version' is None"),
    "without log-probs": ({"version": 1, "behaviour_logp": None}, "no value in column 'behaviour_logp'"),
    "vocabulary": ({"version": 1, "token": [9999, 1]}, r"'token' has 9999, expected ids from 0 to"),
    "tokenizer": ({"version": 1, "tokenizer": "ab"}, "'tokenizer' is 'ab', and that of this run is '"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_refused_by_file_and_line(name, tmp_path):
    change, message = BAD[name]
    path = write(tmp_path / "r.jsonl", [{**ROW, "version": 2}, {**ROW, **change}])
    with pytest.raises(ValueError, match=rf"r\.jsonl:2: {message}"):
        reader(newest=2).read(path)


def test_a_source_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"mopps\(.*knows prompts by number"):
        chain.chain((source.arriving(str(tmp_path)), source.mopps()))
    with pytest.raises(ValueError, match=r"partial\(.*samples the policy"):
        chain.chain((source.arriving(str(tmp_path)), source.partial(4)))
    with pytest.raises(ValueError, match=r"^lag=-2 must be at least 0"):
        source.arriving(str(tmp_path), lag=-2)
    with pytest.raises(ValueError, match="absent: no such folder"):
        programs.build(config(tmp_path / "absent"), devices=jax.devices()[:1])
    with pytest.raises(ValueError, match=r"rescore='kept' .*rows of arriving\(.* lack the support"):
        resolve.run(config(tmp_path, sampler__rescore="kept", sampler__top_k=5))
    with pytest.raises(ValueError, match=r"runs 0 \(seed=0\) and 1 \(seed=1\) read rows of .*the policy of one run"):
        sweep.expand([{"seed": 0}, {"seed": 1}], config(tmp_path))
    warnings = resolve.run(config(tmp_path, run__lag=1)).phases[0].warnings
    assert any("config.run.lag=1 has no effect: no phase samples rows" in text for text in warnings)


@pytest.mark.full
def test_groups_behind_the_lag_are_left_out_and_counted(folder):
    stale = [{**row, "version": 0} for row in recorded()[0][1]]
    write(folder / "1.jsonl", stale)
    write(folder / "1b.jsonl", recorded()[0][1])
    (folder / "2.jsonl").unlink()
    result = train(folder, more=", lag=0", phase__main__steps=2)
    assert [h["late"] for h in result.history] == [0.0, 4.0] and result.history[1]["age"] == 0.0
    assert train(folder, more=", lag=1", phase__main__steps=2).history[1]["age"] == 1.0


@pytest.mark.full
def test_a_fork_before_a_phase_of_rows_trains_on_them_as_the_run_did(folder, tmp_path):
    source, results = f"arriving({str(folder)!r})", []
    for name, init in (("run", ""), ("fork", f"{tmp_path / 'run'}@warm")):
        fields = {"phase__warm__steps": 1, "phase__main__seam__source": source, "checkpoint__init": init}
        c = tiny.phases(ALGORITHM, **SMALL, **fields)
        results.append(loop.train(c, tmp_path / name, progress=False, devices=jax.devices()[:1]))
    assert tiny.equal(results[0].params, results[1].params) and taken(tmp_path / "run") == taken(tmp_path / "fork")
    assert [h["age"] for h in results[1].history] == [1.0] * STEPS  # the versions of the run count its first phase


@pytest.mark.full
def test_a_run_that_ends_for_its_rows_is_saved_and_goes_on(folder, tmp_path):
    whole, work = train(folder), tmp_path / "work"
    fields = {"checkpoint__every": 100, "more": ", timeout=0.3"}
    good = (folder / "2.jsonl").read_bytes()
    (folder / "2.jsonl").write_bytes(good[:-20] + b"\n")
    with pytest.raises(pool.VerifierError, match=r"step 3, arriving\(.*2\.jsonl:8"):
        train(folder, work, **fields)
    (folder / "2.jsonl").unlink()
    with pytest.raises(
        pool.VerifierError, match=r"rows has 0 groups to take, and a step needs 4; none .* timeout=0.3 sec"
    ):
        train(folder, work, **fields)
    assert [f.name for f in (work / "checkpoints").iterdir() if f.name.isdigit()] == ["2"]
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(loop.Interrupted, match="SIGTERM: stopped while step 3 waited for rows in"):
        train(folder, work, checkpoint__every=100, more=", timeout=60.0", allow=True)
    (folder / "2.jsonl").write_bytes(good)
    assert tiny.equal(train(folder, work, **fields, allow=True).params, whole.params)


@pytest.mark.full
def test_a_step_that_is_repeated_after_a_kill_takes_the_same_rows(folder, tmp_path):
    whole, work, good = train(folder), tmp_path / "work", (folder / "2.jsonl").read_bytes()
    (folder / "2.jsonl").unlink()
    run = subprocess.Popen([sys.executable, "-c", RUN, str(folder), str(work)], env=ONE)
    until = time.monotonic() + 120
    while len(taken(work)) < 2 and run.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    run.kill()
    run.wait()
    assert taken(work) == [["0.jsonl"], ["1.jsonl"]]
    (folder / "00.jsonl").write_bytes(good)  # the first by its name
    result = train(folder, work, checkpoint__every=100)
    assert tiny.equal(result.params, whole.params) and taken(work) == [["0.jsonl"], ["1.jsonl"], ["00.jsonl"]]
    shutil.rmtree(work / "checkpoints")
    write(folder / "1.jsonl", recorded()[0][2])
    with pytest.raises(pool.VerifierError, match=r"1\.jsonl: has changed since a step has taken rows of it"):
        train(folder, work, checkpoint__every=100, log_gap=True)


@pytest.mark.full
def test_another_process_samples_from_the_checkpoints(tmp_path):
    """The loop of rljax/data/README.md: version 0 is ``config.model.weights``, version k the checkpoint of step k."""
    program = programs.build(config(None), devices=jax.devices()[:1])
    policy = program.steps[0].begin(None, program.key).params["policy"]
    start, folder, work = str(tmp_path / "start"), tmp_path / "rows", tmp_path / "work"
    weights.save(start, program.policy.architecture, policy, tokenizer=tokenizers.files(program.tokenizer))
    folder.mkdir()
    outside = subprocess.Popen([sys.executable, "-c", OUTSIDE, str(folder), str(work), str(STEPS)], env=ONE)
    try:
        result = train(folder, work, ", timeout=40.0", model__weights=start, checkpoint__every=1)
        assert outside.wait(60) == 0
    finally:
        outside.kill()
    assert [h["age"] for h in result.history] == [0.0] * STEPS
    assert max(h["sampler_gap"] for h in result.history) < 1e-4
    timings = [json.loads(line) for line in (work / "timings.jsonl").read_text().splitlines()]
    assert timings[1]["verify"] > timings[1]["dispatch"]


def taken(work):
    """Return the files of which each step has taken rows."""
    log = work / "arrived.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [[pathlib.Path(f["file"]).name for f in json.loads(line)["files"]] for line in lines]


RUN = """
import sys
from tests.run.producers import test_arriving_rows as t
t.train(*sys.argv[1:], checkpoint__every=100)
"""

OUTSIDE = """
import json, os, pathlib, sys, time
from rljax.config import files
from rljax.run import programs
from rljax.run.evaluation import loading, sample

folder, work, steps = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
for version in range(steps):
    while not (work / (f"checkpoints/{version}" if version else "config.json")).exists():
        time.sleep(0.1)
    if version:
        program, params, _ = loading.load(str(work), step=version)
    else:
        program = programs.build(files.from_dict(json.loads((work / "config.json").read_text())), trains=False)
        params = program.initial(0)["policy"]
    with open(folder / ".new", "w") as file:
        for n in range(4):
            prompt = program.tasks[0].text(4 * version + n, "train")
            for row in sample.complete(program, params, prompt, samples=2, seed=4 * version + n):
                fields = {name: row[name] for name in ("token", "behaviour_logp")}
                reward = float(len(row["token"]) % 2)
                file.write(json.dumps({"prompt": prompt, "reward": reward, "version": version, **fields}) + "\\n")
    os.rename(folder / ".new", folder / f"{version:06}.jsonl")
"""
