"""Several processes on loopback: the numbers of one process, one writer, and runs that are stopped and killed."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from rljax.host import processes
from rljax.run import loop
from rljax.run.records import checkpoints
from tests.host import process
from tests.run.producers import test_arriving_rows
from tests.run.producers.stored_rows_cases import write
from tests.support import compiler

ROOT = pathlib.Path(__file__).parents[2]
HEARTBEAT = 10
STEPS = 14
# What the library between processes prints of its connections, from several threads at once: parts of its lines mix.
GLOO = re.compile(
    r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : |\d|\s"
)

# A host task whose verifier gives pseudo-random rewards and records the process in which it was called.
TASK = """
import dataclasses, os, pathlib, zlib
from rljax import environments
from rljax.environments.questions import published


def judge(text, target):
    if not text.endswith(f"#### {target}"):  # a reference solution, which process 0 tries first
        with open(pathlib.Path(__file__).parent / f"calls-{os.environ['CALLS']}", "a") as calls:
            calls.write(".")
    return {"reward": zlib.crc32(text.encode()) % 2, "wanted": float(target)}


@environments.task
def questions(path):
    task = published.gsm8k(path, prompt_length=28, completion_length=4)
    return dataclasses.replace(task, reward=judge, parts=("wanted",))
"""

CONFIG = f"""
import pathlib
import rljax
from tests.support import tiny


def get_config(evaluate=""):
    config = tiny.config("grpo(kl=0.0)", evaluation__final_prompts=4)
    config.task = f"task_of_test_multihost.questions(path={{str(pathlib.Path(__file__).parent)!r}})"
    config.phase.main = rljax.phase(steps={STEPS}, optimizer="sgd(learning_rate=1.0)", warmup=0, evaluate=evaluate)
    config.model.update({{"remat": "none", "layers": 1}})
    config.sampler.cache_block = 0
    config.learner.clip_norm = 0.0
    config.verifier.update({{"workers": 1, "chunks": 2, "timeout": 60.0}})
    config.checkpoint.every, config.log.every = 5, 1
    return config
"""


def environment(folder, name, number, processes, devices, address):
    variables = {"RLJAX_COORDINATOR": address, "RLJAX_PROCESS_ID": str(number)} if processes > 1 else {}
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("RLJAX_", "JAX_COMPILATION"))},
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
        "RLJAX_CACHE": str(folder / "cache"),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {compiler.QUICK}",
        "CALLS": f"{name}-{number}",
        "RLJAX_NUM_PROCESSES": str(processes),
        **variables,
    }


class Group:
    """Processes of one run, each with its output in a file; all are killed at the end of the ``with``."""

    def __init__(self, folder, name, arguments, processes, devices):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.logs = [folder / f"output-{name}-{i}" for i in range(processes)]
        self.members = [
            subprocess.Popen(
                [sys.executable, *arguments],
                env=environment(folder, name, i, processes, devices, address),
                stdout=log.open("w"),
                stderr=subprocess.STDOUT,
            )
            for i, log in enumerate(self.logs)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for member in self.members:
            member.kill()
            member.wait()

    def wait(self, seconds=150):
        """Return the exit codes."""
        deadline = time.monotonic() + seconds
        return [m.wait(max(0.1, deadline - time.monotonic())) for m in self.members]

    def output(self):
        """Return the output of each process so far."""
        return [log.read_text() for log in self.logs]

    def send_at(self, step, sign, number, workdir):
        """Signal one process once the run has logged ``step`` steps."""
        log, deadline = workdir / "metrics.jsonl", time.monotonic() + 150
        while not log.exists() or log.read_bytes().count(b"\n") < step:
            assert self.members[number].poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.01)
        self.members[number].send_signal(sign)


def run(folder, name, evaluation="", before=("-m", "rljax")):
    """Start a run in two processes of two devices, with an evaluation at its end if it has a name."""
    config = f"{folder / 'config.py'}:{evaluation}".removesuffix(":")
    arguments = (*before, "--config", config, "--workdir", str(folder / name))
    return Group(folder, name, (*arguments, f"--heartbeat_seconds={HEARTBEAT}"), processes=2, devices=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a config, its task and its questions."""
    folder = tmp_path_factory.mktemp("multihost")
    (folder / "task_of_test_multihost.py").write_text(TASK)
    (folder / "config.py").write_text(CONFIG)
    for file, numbers in (("train", range(24)), ("test", range(24, 32))):
        rows = [{"question": f"{i}+{i % 5}", "answer": f"#### {i + i % 5}"} for i in numbers]
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def one(folder):
    """Return the program of this process alone, with whole parameters on four devices, and what it computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("CALLS", "one")
        program = process.build(folder, "4x1", jax.devices()[:4])
        return program, process.updated(folder, program)


@pytest.fixture(scope="module")
def whole(folder, one):
    """Return the work directory and the outputs of an uninterrupted run of two processes, with whole parameters.

    Each process then goes on with a part of the parameters, as tests/host/process.py says.
    """
    np.savez(folder / "fixed.npz", **one[1])
    script = (str(ROOT / "tests" / "host" / "process.py"), str(folder), "two", "1x4")
    with run(folder, "whole", "result", script) as group:
        assert group.wait(240) == [0, 0], group.output()
    facts = [json.loads((folder / f"two-{i}.json").read_text()) for i in range(2)]
    assert facts == [{"process": i, "count": 2, "devices": 2} for i in range(2)]
    return folder / "whole", group.output()


@pytest.fixture(scope="module")
def layouts(folder, one, whole):
    """Return the arrays of tests/host/process.py with 1 and 2 processes; both have four devices and the same rows."""
    return {1: one[1] | process.restored(folder, one[0]), 2: dict(np.load(folder / "two.npz"))}


def part(arrays, prefix):
    return {name: value for name, value in arrays.items() if name.startswith(prefix)}


def saved(workdir, step):
    """Read a checkpoint's arrays as stored on disk."""
    leaves = checkpoints.Checkpointer(workdir / "checkpoints")._read_record(step)["leaves"]
    stored = {name: 0 for name, (shape, _, _) in leaves.items() if 0 not in shape}
    arguments = ocp.args.PyTreeRestore(stored, {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in stored})
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(
        workdir / "checkpoints" / str(step) / "state", args=arguments
    )


WORLD = """
from tests.run.producers import {cases} as cases


def get_config(argument=""):
    config = cases.training(mesh__data=4, verifier__workers=1, log__every=1)
    config.phase.main.evaluate = "result"
    return config
"""


def trained(folder, name, count, metric):
    """Train the config ``name`` in so many processes; return numbers of each step, and the work directory."""
    workdir = folder / f"{name}-{count}"
    words = ("-m", "rljax", "--config", str(folder / f"{name}.py"), "--workdir", str(workdir))
    with Group(folder, workdir.name, words, processes=count, devices=4 // count) as group:
        assert group.wait(240) == [0] * count, group.output()
    lines = [json.loads(x) for x in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(x["step"], x.get("reward", 0), x[metric], x["gradient_norm"]) for x in lines], workdir


@pytest.mark.full
@pytest.mark.parametrize("cases", ["test_host_driver", "test_host_seats"])
def test_a_host_world_in_two_processes_is_that_of_one(cases, folder):
    (folder / f"{cases}.py").write_text(WORLD.format(cases=cases))
    metrics = {}
    for count in (1, 2):
        metrics[count], workdir = trained(folder, cases, count, "length")
        assert (workdir / "turns.jsonl").read_text().count('"turn": 0') > 0
    np.testing.assert_allclose(metrics[2], metrics[1], rtol=1e-4)
    records = [(folder / f"{cases}-{count}" / "evaluations.jsonl").read_text() for count in (1, 2)]
    one, two = (json.loads(text.splitlines()[-1]) for text in records)
    assert one["pass_at_k"] == two["pass_at_k"]


ARRIVING = """
from tests.run.producers import test_arriving_rows as cases


def get_config(argument=""):
    return cases.config({rows!r}, mesh__data=4, log__every=1)
"""


@pytest.mark.full
def test_arriving_rows_in_two_processes_are_those_of_one(folder):
    rows = folder / "rows"
    rows.mkdir()
    for n, lines in enumerate(test_arriving_rows.recorded()[0]):
        write(rows / f"{n}.jsonl", lines)
    (folder / "arriving.py").write_text(ARRIVING.format(rows=str(rows)))
    written = {}
    for count in (1, 2):
        metrics, workdir = trained(folder, "arriving", count, "age")
        written[count] = metrics, (workdir / "arrived.jsonl").read_text()
    np.testing.assert_allclose(written[2][0], written[1][0], rtol=1e-4)
    assert len(written[1][0]) > 1 and written[2][1] == written[1][1]


# --- the same numbers ---------------------------------------------------------------------------


@pytest.mark.full
def test_loss_and_gradient_of_an_update_are_those_of_one_process(whole, layouts):
    gradient = {
        count: {n: value - arrays[n.replace("after", "before")] for n, value in part(arrays, "after/").items()}
        for count, arrays in layouts.items()  # SGD with learning rate 1: the change is minus the gradient
    }
    assert max(np.abs(g).max() for g in gradient[1].values()) > 0.01
    for name, value in gradient[1].items():
        np.testing.assert_allclose(gradient[2][name], value, rtol=0, atol=1e-6, err_msg=name)
    first = json.loads((whole[0] / "metrics.jsonl").open().readline())
    metrics = part(layouts[1], "metric/")
    assert len(first.keys() & {name.removeprefix("metric/") for name in metrics}) == len(metrics) - 1
    for name, value in metrics.items():
        logged = first.get(name.removeprefix("metric/"), value)  # all but skipped_in_row
        for other in (layouts[2][name], logged):
            np.testing.assert_allclose(other, value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_two_processes_sample_and_judge_as_one_does(folder, layouts):
    for name in ("rows/action/token", "rows/mask", "rows/reward", "rows/outcome", "rows/parts/wanted", "rows/episode"):
        np.testing.assert_array_equal(layouts[2][name], layouts[1][name], err_msg=name)
    assert set(layouts[1]["rows/reward"]) == {0.0, 1.0}
    assert (folder / "calls-one").stat().st_size == 32


@pytest.mark.full
def test_a_checkpoint_of_two_processes_is_read_by_one_and_by_two_on_another_mesh(whole, layouts):
    stored = saved(whole[0], STEPS)
    for count in (1, 2):
        assert int(layouts[count]["step"]) == STEPS
        restored = part(layouts[count], "restored/")
        for name, value in stored.items():
            np.testing.assert_array_equal(restored[f"restored/{name}"], value, err_msg=name)


# --- a run --------------------------------------------------------------------------------------


@pytest.mark.full
def test_process_0_writes_and_prints_and_both_judge(folder, whole):
    workdir, output = whole
    assert "pass@4" in output[0] and "written to" in output[0]
    assert not GLOO.sub("", output[1])
    assert sum(x.isdigit() for x in output[1]) == 3 * output[1].count("[Gloo] Rank ")  # its ranks and counts, below 10
    assert len(list((workdir / "tensorboard").iterdir())) == 1
    for name in ("metrics", "verdicts"):
        assert [json.loads(x)["step"] for x in (workdir / f"{name}.jsonl").open()] == list(range(1, STEPS + 1))
    for i in (0, 1):  # half of the rows of the steps, of the evaluation's 4 prompts sampled 4 times and once, and one
        assert (folder / f"calls-whole-{i}").stat().st_size == (STEPS + 1) * 16 + 8 + 2  # more step


@pytest.mark.full
def test_a_run_killed_and_stopped_goes_on_bit_for_bit_as_an_uninterrupted_one(folder, whole):
    workdir = folder / "cut"
    with run(folder, "cut") as group:
        group.send_at(6, signal.SIGKILL, 1, workdir)
        began = time.monotonic()
        code, killed = group.wait()
        assert killed == -signal.SIGKILL and time.monotonic() - began < HEARTBEAT + 5
        assert code in (loop.RESUMABLE, -signal.SIGABRT), group.output()  # jax's heartbeat may detect it first
        words = ("another process of this run is gone", "another task died")[code != loop.RESUMABLE]
        assert words in group.output()[0]
        assert code != loop.RESUMABLE or "Run the same command again on every host" in group.output()[0]

    with run(folder, "cut") as group:
        group.send_at(10, signal.SIGTERM, 1, workdir)  # to the process that writes no logs
        assert group.wait() == [loop.RESUMABLE] * 2, group.output()
    assert "To resume, run the same command again" in group.output()[0]
    stopped = checkpoints.Checkpointer(workdir / "checkpoints").latest_step()
    assert 10 <= stopped < STEPS
    for name in ("metrics", "verdicts", "rollouts"):
        lines = (workdir / f"{name}.jsonl").read_bytes().splitlines()
        expected = (whole[0] / f"{name}.jsonl").read_bytes().splitlines()
        assert json.loads(lines[-1])["step"] == stopped and lines == expected[: len(lines)], name
    stored = saved(whole[0], 10)
    for name, value in saved(workdir, 10).items():
        np.testing.assert_array_equal(value, stored[name], err_msg=name)


# --- initialization -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "flags", "expected"),
    [
        (
            {"TPU_SKIP_MDS_QUERY": "1"},
            (None, None, None),
            None,
        ),  # a laptop: jax detected no TPU chips
        ({}, (None, 1, None), None),
        ({}, ("10.0.0.2:8476", 4, 3), {"coordinator_address": "10.0.0.2:8476", "num_processes": 4, "process_id": 3}),
        (
            {"RLJAX_COORDINATOR": "host:1", "RLJAX_NUM_PROCESSES": "2", "RLJAX_PROCESS_ID": "1"},
            (None, None, 0),  # flags come first
            {"coordinator_address": "host:1", "num_processes": 2, "process_id": 0},
        ),
        ({}, (None, None, None), {}),  # a TPU VM asks its metadata server
        ({"JAX_PLATFORMS": "cpu"}, (None, None, None), None),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, (None, None, None), None),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_SKIP_MDS_QUERY": "true"}, (None, None, None), {}),
        ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, (None, None, None), {}),
    ],
)
def test_the_processes_of_a_run_are_determined_by_flags_and_environment(environment, flags, expected):
    options = processes.arguments(environment, *flags)
    if options:
        assert options.pop("cluster_detection_method") == "deactivate"  # jax looks for no other cluster
    assert options == expected


def test_the_tasks_of_a_slurm_step_are_processes():
    step = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "TPU_SKIP_MDS_QUERY": "1"}
    batch_script = {**step, "SLURM_NTASKS": "4"}
    assert processes.arguments(batch_script, None, None, None) is None
    in_step = {
        **batch_script,
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NUM_NODES": "2",
    }
    expected = {"num_processes": 4, "cluster_detection_method": "slurm"}
    assert processes.arguments(in_step, None, None, None) == expected
    one_per_node = {**in_step, "SLURM_STEP_NUM_TASKS": "2"}
    assert processes.arguments(one_per_node, None, None, None) == {
        **expected,
        "num_processes": 2,
        "local_device_ids": [],
    }
    assert processes.arguments({**in_step, "SLURM_STEP_NUM_TASKS": "1"}, None, None, None) is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("host:1", 2, None), r"--coordinator .* and --num_processes .* set, but not --process_id"),
        (("host", 2, 0), r"--coordinator \(RLJAX_COORDINATOR\) is 'host': must be HOST:PORT"),
        (("host:x", 2, 0), "must be HOST:PORT"),
        (("host:1", 2, 2), r"--process_id \(RLJAX_PROCESS_ID\) is 2: must be from 0 to 1"),
        (("host:1", 0, 0), "must be at least 1"),
    ],
)
def test_errors_name_the_flag_and_the_variable(flags, message):
    with pytest.raises(ValueError, match=message):
        processes.arguments({}, *flags)
    with pytest.raises(ValueError, match="RLJAX_NUM_PROCESSES='two': must be an integer"):
        processes.arguments({"RLJAX_NUM_PROCESSES": "two"}, None, None, None)
