"""The scripts of tpu/, run against a simulated cloud: gcloud, kubectl, srun and others are stubs on the PATH.

The stub of gcloud records its calls and replies according to a plan. It runs the workers' commands on this machine,
each worker in a separate home directory, so that tpu/worker is tested too.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.repository.launch_cases import ACTIVE, ARGUMENTS, PLACE, STATE, TPU, shown

SCRIPTS = ("pod", "worker", "slurm.sh")


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing(script):
    installed = pathlib.Path(sys.executable).with_name("shellcheck")
    command = str(installed) if installed.exists() else shutil.which("shellcheck")
    assert command, "pip install -e '.[test]' installs shellcheck"
    done = subprocess.run([command, str(TPU / script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert os.access(TPU / script, os.X_OK)


# --- requesting TPUs ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (["--type", "v4-32"], ["--node-id=mine", "--accelerator-type=v4-32", "--runtime-version=tpu-ubuntu2204-base"]),
        (
            ["--type", "v5litepod-16", "--spot", "--valid-until", "6h"],
            [
                *("--node-id=mine", "--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"),
                *("--spot", "--valid-until-duration=6h"),
            ],
        ),
        (
            ["--type", "v5p-64", "--slices", "2", "--create-flag", "--reserved", "--create-flag", "--network=a b"],
            [
                *("--node-count=2", "--node-prefix=mine", "--accelerator-type=v5p-64"),
                *("--runtime-version=v2-alpha-tpuv5", "--reserved", "--network=a b"),
            ],
        ),
        (
            ["--type", "v6e-8", "--runtime", "custom"],
            ["--node-id=mine", "--accelerator-type=v6e-8", "--runtime-version=custom"],
        ),
    ],
    ids=["v4", "spot", "slices", "runtime"],
)
def test_create_requests_the_tpus_and_waits(cloud, options, flags):
    cloud.plan((STATE, [{"out": "WAITING_FOR_RESOURCES\n"}, {"out": "PROVISIONING\n"}, {"out": "ACTIVE\n"}]))
    done = cloud.pod("create", "mine", *options)
    assert done.returncode == 0, done.stderr
    state = ["queued-resources", "list", "--filter=name~/mine$", "--format=value(state.state)"]
    assert cloud.requests() == [["queued-resources", "create", "mine", *flags], state, state, state]
    assert "mine: PROVISIONING" in done.stdout


def test_a_quota_error_is_shown_and_ends_create(cloud):
    cloud.plan(("create", [{"err": "ERROR: Quota 'TPUV5sPreemptible' exhausted\n", "code": 1}]))
    done = cloud.pod("create", "mine", "--type", "v5litepod-16")
    assert done.returncode == 1 and len(cloud.calls()) == 1
    assert "Quota 'TPUV5sPreemptible' exhausted" in done.stderr and "error: create: gcloud failed" in done.stderr


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (["PROVISIONING", "FAILED"], "mine is FAILED and will not become active"),
        (["ACTIVE"], None),
        ([""], "no resource mine in zone us-east5-b"),
        (["WAITING_FOR_RESOURCES"], "WAITING_FOR_RESOURCES after 1 s. The request remains"),
    ],
)
def test_wait_ends_with_the_state_of_the_resource(cloud, states, message):
    cloud.plan((STATE, [{"out": s + "\n" * bool(s)} for s in states]))
    done = cloud.pod("wait", "mine", "--timeout", "1" if message and "after 1 s" in message else "50")
    assert done.returncode == (0 if message is None else 1)
    assert message is None or message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "mine"], "--type is required"),
        (["create", "mine", "--type", "v9-8"], "--type v9-8: unknown runtime version"),
        (["create", "--type", "v4-8"], "got the name '--type', must be"),
        (["delete"], "got the name '', must be"),
        (["delete", "Mine"], "got the name 'Mine', must be"),
        (["delete", "mine", "other"], "got 1 arguments after the name, must be 0"),
        (["launch", "mine"], "launch: no arguments"),
        (["launch", "mine", "--config", "x"], "unknown option '--config'"),
        (["create", "mine", "--type", "v4-8", "--slices", "two"], "--slices: got 'two', must be an integer"),
        (["launch", "mine", "--env", "A B=1", "--", "x"], "--env: got 'A B=1', must be NAME=VALUE"),
        (["create", "mine", "--type"], "--type: requires a value"),
        (["watch", "mine", "--", "x"], "watch: --type is required"),
        (
            ["watch", "mine", "--type", "v4-8", "--hours", "1h", "--", "x"],
            "--hours: got '1h', must be a number of hours",
        ),
        (["launch", "mine", "--delete", "--", "x"], "--hours and --delete are options of watch"),
        (
            ["watch", "mine", "--type", "v4-8", "--spot", "--", "--workdir", "a"],
            "--spot: a preempted TPU loses its disk",
        ),
        (["watch", "mine", "--type", "v4-8", "--delete", "--", "x"], "--delete: the work directory would be deleted"),
    ],
)
def test_an_invalid_command_is_refused_before_any_call(cloud, arguments, message):
    place = {"CLOUDSDK_COMPUTE_ZONE": "z", "CLOUDSDK_CORE_PROJECT": "p"}
    done = cloud.run("pod", *arguments, **place)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert cloud.calls() == []


def test_zone_and_project_are_needed_and_read_from_the_environment(cloud):
    assert "no zone" in cloud.run("pod", "status", "mine").stderr
    assert "no project" in cloud.run("pod", "status", "mine", CLOUDSDK_COMPUTE_ZONE="z").stderr
    cloud.run("pod", "delete", "mine", CLOUDSDK_COMPUTE_ZONE="z", CLOUDSDK_CORE_PROJECT="p")
    (call,) = cloud.calls()
    assert call["argv"][2:] == ["queued-resources", "delete", "mine", "--force", "--quiet", "--zone=z", "--project=p"]
    assert cloud.run("pod", "no such thing").returncode == 2


# --- the workers ----------------------------------------------------------------------


def test_setup_launch_status_and_stop(cloud):
    """Run all commands in order, on two workers of which only the interpreter is a stub."""
    cloud.plan(ACTIVE)
    cloud.codes("sleep", "sleep")
    done = cloud.pod("setup", "mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rljax-worker") >= 2 and done.stdout.count(" ready") == 2
    copied = cloud.path / "worker-1" / "rljax"
    listed = subprocess.run(["git", "ls-files"], cwd=cloud.tpu, capture_output=True, text=True, check=True)
    tracked = [f"tpu/{name}" for name in listed.stdout.split()]
    assert {str(p.relative_to(copied)) for p in copied.rglob("*") if p.is_file()} == set(tracked)
    pinned = "-m uv pip install --quiet --python rljax-venv/bin/python -c rljax/tpu/constraints.txt"
    installs = (cloud.path / "installs").read_text().splitlines()
    assert installs.count(f"{pinned} --reinstall-package rljax-lm ./rljax[tpu]") == 2

    done = cloud.pod("launch", "mine", "--max-restarts", "3", "--env", "NOTE=a 'b'", "--", *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    asleep = cloud.path / "asleep"
    cloud.wait_for(lambda: asleep.exists() and asleep.read_text().count("\n") == 2)
    assert cloud.arguments() == [["-m", "rljax", *ARGUMENTS]] * 2
    assert "run with NOTE=a 'b'\n" in (cloud.path / "worker-0/rljax-run/log").read_text()
    assert cloud.pod("status", "mine").stdout.count(" running (restarts: 0)\n") == 2
    again = cloud.pod("setup", "mine")
    assert again.returncode == 1 and "a run is already in progress" in again.stderr and copied.exists()

    done = cloud.pod("stop", "mine")
    assert done.returncode == 0 and done.stdout.count(" stopped\n") == 2
    assert "saved\n" in (cloud.path / "worker-1/rljax-run/log").read_text()
    assert cloud.pod("status", "mine").stdout.count(" stopped\n") == 2


def test_setup_fails_if_a_worker_fails(cloud):
    cloud.plan(ACTIVE)
    cloud.executable(
        "bin/python3", '#!/bin/sh\n[ "$(basename "$HOME")" = worker-0 ] || { echo no wheel >&2; exit 1; }\n'
    )
    done = cloud.pod("setup", "mine")
    assert done.returncode == 1 and "no wheel" in done.stderr
    assert "mine: 1 of 2 workers replied; gcloud's exit code is 1" in done.stderr
    assert "error: setup: not every worker is ready" in done.stderr


def test_a_launch_that_does_not_reach_all_workers_stops_the_others(cloud):
    cloud.plan(ACTIVE)
    cloud.pod("setup", "mine")
    cloud.codes("sleep")
    cloud.plan(ACTIVE, reached=1)  # gcloud itself succeeds
    done = cloud.pod("launch", "mine", "--", "--config", "x")
    assert done.returncode == 1 and "1 of 2 workers replied; gcloud's exit code is 0" in done.stderr
    assert "launch: failed on some workers" in done.stderr
    assert (cloud.path / "worker-0/rljax-run/state").read_text() == "stopped\n"


def test_logs_commands_and_profiles(cloud):
    cloud.plan(("queued-resources", [{"code": 0}]), ("storage", [{"code": 0}]))
    cloud.pod("logs", "mine", "--worker", "3", "--lines", "5")
    cloud.pod("ssh", "mine", "echo 'a b'")
    cloud.pod("profile", "mine", "/home/me/run/", "here")
    cloud.pod("profile", "mine", "gs://bucket/run", "here")
    *ssh, storage = [call["argv"] for call in cloud.calls()]
    head = ["compute", "tpus", "queued-resources"]
    assert ssh == [
        [*head, "ssh", "mine", "--node=0", "--worker=3", "--command=tail -n 5 -F rljax-run/log", *PLACE],
        [*head, "ssh", "mine", "--node=all", "--worker=all", "--command=echo 'a b'", *PLACE],
        [*head, "scp", "--recurse", "mine:/home/me/run/profile", "here", "--node=0", "--worker=0", *PLACE],
    ]
    assert storage == ["storage", "cp", "--recursive", "gs://bucket/run/profile", "here", "--project=lab"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "mine", "--type", "v5p-64", "--slices", "2", "--spot"],
        ["wait", "mine"],
        ["setup", "mine"],
        ["launch", "mine", "--env", "NOTE=a 'b'", "--", *ARGUMENTS],
        ["status", "mine"],
        ["logs", "mine"],
        ["profile", "mine", "gs://b/run", "here"],
        ["ssh", "mine", "echo 'a b'"],
        ["stop", "mine"],
        ["delete", "mine"],
    ],
    ids=lambda a: a[0],
)
def test_a_dry_run_calls_nothing_and_prints_what_a_run_calls(cloud, arguments):
    dry = cloud.pod(*arguments[:2], "--dry-run", *arguments[2:])
    assert dry.returncode == 0 and cloud.calls() == []
    cloud.plan(
        ACTIVE, ("ssh", [{"out": "rljax-worker a ready\nrljax-worker b ready\n", "code": 0}]), ("scp", [{"code": 0}])
    )
    real = cloud.pod(*arguments)
    assert real.returncode == 0, real.stderr
    assert shown(dry.stdout) == shown(real.stdout) == [["gcloud", *call["argv"]] for call in cloud.calls()] != []


# --- SLURM ----------------------------------------------------------------------------


def slurm(cloud, code, *arguments, state="RUNNING", **environment):
    cloud.codes(code)
    cloud.plan(("squeue", [{"out": f"{state}\n"}]))
    cloud.executable("bin/srun", '#!/bin/sh\nprintf "%s\\n" "$@" >$CLOUD/srun\nshift 4\nexec "$CLOUD/program" "$@"\n')
    variables = {"SLURM_JOB_ID": "12", "PYTHON": "python3.11"} | environment
    return cloud.run("slurm.sh", *arguments, **variables)


def test_a_slurm_job_runs_requeues_and_ends(cloud):
    done = slurm(cloud, 0, *ARGUMENTS)
    assert done.returncode == 0 and cloud.calls("scontrol") == []
    assert cloud.arguments() == [["rljax", *ARGUMENTS]]  # after python3.11 -m
    head = ["--kill-on-bad-exit=0", "--wait=600", "python3.11", "-m", "rljax"]
    assert (cloud.path / "srun").read_text().splitlines()[:5] == head
    for code in (75, 134):
        slurm(cloud, code, "--config", "x")
    assert [c["argv"] for c in cloud.calls("scontrol")] == [["requeue", "12"]] * 2
    assert slurm(cloud, 2, "--config", "x").returncode == 2
    assert slurm(cloud, 75, "--config", "x", SLURM_RESTART_COUNT="100").returncode == 75
    assert slurm(cloud, 75, "--config", "x", state="COMPLETING").returncode == 75  # being cancelled
    assert len(cloud.calls("scontrol")) == 2
    assert slurm(cloud, 0).returncode == 2


def test_a_slurm_array_runs_a_sweep(cloud):
    slurm(cloud, 0, "sweep.py", "--config", "x", SLURM_ARRAY_TASK_ID="3")
    assert cloud.arguments() == [["rljax", "sweep", "--index", "3", "sweep.py", "--config", "x"]]


def test_slurm_forwards_its_signal_and_waits_for_the_save(cloud):
    slurm(cloud, 0, "x")  # creates the stubs
    cloud.codes("sleep")
    environment = cloud.environment | {"SLURM_JOB_ID": "12"}
    process = subprocess.Popen([str(TPU / "slurm.sh"), "x"], env=environment, stdout=subprocess.PIPE, text=True)
    cloud.wait_for((cloud.path / "asleep").exists)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert "saved" in output and "rljax: exit code 75" in output
    assert [c["argv"] for c in cloud.calls("scontrol")] == [["requeue", "12"]]


def test_the_batch_script_has_the_documented_options():
    options = re.findall(r"^#SBATCH (--\S+)", (TPU / "slurm.sh").read_text(), re.M)
    assert {"--requeue", "--signal=B:TERM@120", "--ntasks-per-node=1", "--open-mode=append"} <= set(options)
