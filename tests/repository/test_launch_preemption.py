"""The scripts of tpu/, run against a simulated cloud: preemption; a worker's loop; GKE."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
import yaml

from tests.repository.launch_cases import ACTIVE, ARGUMENTS, PLACE_FLAGS, STATE, TPU, shown

# --- preemption -----------------------------------------------------------------------


@pytest.mark.full
def test_watch_recreates_preempted_tpus_until_the_run_has_finished(cloud):
    states = ["", "PROVISIONING", "ACTIVE", "ACTIVE", "SUSPENDING", "SUSPENDED", "", "ACTIVE"]
    cloud.plan((STATE, [{"out": s and s + "\n"} for s in states]))
    cloud.codes("sleep", "sleep", 0, 0)  # the first two runs end with their machines
    arguments = [*ARGUMENTS, "--workdir", "gs://bucket/run"]
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--spot", "--delete", "--", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (checked,) = [line for line in (cloud.path / "installs").read_text().splitlines() if "--check" in line]
    assert checked.startswith("-m rljax --config quick start") and checked.endswith(" --check --devices 16")
    verbs = [
        a[1] if a[1] != "ssh" else re.search(r"worker (\w+)", a[-1])[1] for a in cloud.requests() if a[1] != "list"
    ]
    once = ["create", "status", "stop", "scp", "setup", "start"]
    assert [v for v in verbs if v != "status"] == [v for v in [*once, "delete", *once, "delete"] if v != "status"]
    assert ["queued-resources", "delete", "mine", "--force", "--quiet"] in cloud.requests()
    assert cloud.arguments() == [["-m", "rljax", *arguments]] * 4
    assert "the run has finished on every worker" in done.stdout


@pytest.mark.full
def test_watch_survives_a_preemption_during_setup(cloud):
    states = (STATE, [{"out": "ACTIVE\n"}, {"out": "SUSPENDED\n"}, {}, {"out": "ACTIVE\n"}])
    cloud.plan(states, ("scp", [{"err": "connection lost\n", "code": 255}, {}]))
    cloud.codes(0, 0)
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--spot", "--", "--workdir=gs://b/r")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error: setup: could not copy to the workers" in done.stderr and len(cloud.arguments()) == 2


@pytest.mark.full
def test_watch_stops_all_workers_when_one_fails(cloud):
    cloud.plan(ACTIVE)
    cloud.codes("sleep", 2)
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--", "--config", "x")
    assert done.returncode == 1 and "watch: a worker failed, so all were stopped" in done.stderr
    states = sorted((cloud.path / f"worker-{i}/rljax-run/state").read_text() for i in range(2))
    assert states == ["ended 2\n", "stopped\n"]


@pytest.mark.full
def test_watch_launches_again_after_a_machine_was_rebooted(cloud):
    cloud.plan(ACTIVE)
    cloud.pod("setup", "mine")
    cloud.codes("sleep", "sleep")
    cloud.pod("launch", "mine", "--", "--config", "x")
    cloud.wait_for(lambda: (cloud.path / "codes").read_text() == "")
    os.killpg(int((cloud.path / "worker-1/rljax-run/pid").read_text()), signal.SIGKILL)
    assert "lost (was: running" in cloud.pod("status", "mine").stdout
    cloud.codes(0, 0)
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--", "--config", "x")
    assert done.returncode == 0 and len(cloud.arguments()) == 4
    assert not any(a[1] == "scp" for a in cloud.requests()[4:])  # setup is not repeated


@pytest.mark.full
def test_watch_ignores_the_states_of_an_earlier_run(cloud):
    cloud.plan(ACTIVE)
    cloud.pod("setup", "mine")
    cloud.codes(0, 2)
    cloud.pod("launch", "mine", "--", "--config", "earlier")
    ended = [cloud.path / f"worker-{i}/rljax-run/state" for i in range(2)]
    cloud.wait_for(lambda: sorted(f.read_text() for f in ended) == ["ended 0\n", "ended 2\n"])
    cloud.codes(0, 0)
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--", "--config", "x")
    assert done.returncode == 0 and cloud.arguments()[2:] == [["-m", "rljax", "--config", "x"]] * 2


@pytest.mark.full
def test_watch_does_not_restart_a_stopped_run(cloud):
    cloud.plan(ACTIVE, ("worker status", [{}, {}, {"out": "rljax-worker a stopped\n" * 2, "code": 0}]))
    cloud.codes("sleep", "sleep")
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--", "--config", "x")
    assert done.returncode == 1 and "watch: the run was stopped" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([(STATE, [{"out": "FAILED\n"}])], "the request for mine failed"),
        ([(STATE, [{"code": 1}])], "did not respond 3 times in a row"),
        ([ACTIVE, ("ssh", [{"code": 255}])], "did not respond 3 times in a row"),
        ([ACTIVE, ("scp", [{"code": 1}])], "setup or launch failed 3 times in a row"),
        ([(STATE, [{}]), ("create", [{"code": 1}])], "create: gcloud failed"),
        ([(STATE, [{"out": "SUSPENDED\n"}])], "preempted 5 times, above the limit --max-recreations"),
    ],
)
def test_watch_ends_within_its_limits(cloud, replies, message):
    cloud.plan(*replies)
    bounds = ["--max-recreations", "4", "--max-misses", "2", "--interval", "0"]
    done = cloud.pod("watch", "mine", "--type", "v4-8", *bounds, "--", "--config", "x")
    assert done.returncode == 1 and message in done.stderr, done.stderr


def test_a_run_that_the_check_refuses_is_not_launched(cloud, small, tmp_path_factory):
    cloud.executable("bin/python3", "#!/bin/sh\necho 'error: config.task: no such file' >&2\nexit 2\n")
    done = cloud.pod("watch", "mine", "--type", "v5p-64", "--", "--config", "x")
    assert done.returncode == 1 and cloud.calls() == []
    assert "config.task: no such file" in done.stderr and "the check failed" in done.stderr
    assert "--check --devices 32" in done.stdout  # a v5p-64 has 64 cores in 32 chips
    copy = tmp_path_factory.mktemp("own") / "repository"
    shutil.copytree(small, copy)
    (copy / "mine.py").write_text("")
    done = subprocess.run(
        [str(copy / "tpu/pod"), "launch", "mine", *PLACE_FLAGS, "--", "--config=mine.py:quick"],
        env=cloud.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "git does not track mine.py" in done.stderr and cloud.calls() == []


@pytest.mark.full
def test_watch_stops_the_run_and_deletes_the_tpus_after_some_hours(cloud):
    cloud.plan(ACTIVE, ("tail", [{"out": "the last lines\n", "code": 0}]))
    cloud.codes("sleep", "sleep")
    bounds = ["--hours", "0.001", "--delete"]  # 3 s
    done = cloud.pod("watch", "mine", "--type", "v4-8", *bounds, "--", "--config", "x", "--workdir", "gs://b/r")
    assert done.returncode == 1 and "stopped after 0.001 hours. The same command resumes" in done.stderr
    assert "the last lines" in done.stdout and cloud.requests()[-1][1] == "delete"
    assert (cloud.path / "asleep").exists()  # the run was in progress


def test_a_dry_watch_shows_the_first_round(cloud):
    done = cloud.pod("watch", "mine", "--type", "v4-8", "--dry-run", "--", *ARGUMENTS)
    assert done.returncode == 0 and cloud.calls() == []
    start = next(c for c in shown(done.stdout) if "worker start" in str(c))
    command = next(a for a in start if a.startswith("--command=")).removeprefix("--command=")
    assert shlex.split(command)[-len(ARGUMENTS) - 1 :] == ["--", *ARGUMENTS]


# --- a worker's loop ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "runs", "state"),
    [
        ([0], 1, "ended 0"),
        ([75, 134, 0], 3, "ended 0"),  # saved and unfinished; aborted because another process was lost
        ([2], 1, "ended 2"),
        ([75, 1], 2, "ended 1"),
        ([75] * 9, 4, "ended 75"),
    ],
)
def test_the_loop_restarts_unfinished_runs_within_limits(cloud, codes, runs, state):
    cloud.codes(*codes)
    done = cloud.worker("start", "--max-restarts", "3", "--", *ARGUMENTS)
    assert done.returncode == 0 and done.stdout.endswith(" started\n")
    file = cloud.path / "worker-0/rljax-run/state"
    cloud.wait_for(lambda: file.read_text() == f"{state}\n")
    assert cloud.arguments() == [["-m", "rljax", *ARGUMENTS]] * runs
    assert ("giving up" in (file.parent / "log").read_text()) == (runs == 4)
    assert cloud.worker("status").stdout.endswith(f" {state}\n")


def test_long_runs_reset_the_restart_count_and_pauses_grow(cloud):
    cloud.environment |= {"RLJAX_SETTLED": "0"}
    cloud.codes(75, 75, 75, 0)
    cloud.worker("start", "--max-restarts", "1", "--", "x")
    file = cloud.path / "worker-0/rljax-run/state"
    cloud.wait_for(lambda: file.read_text() == "ended 0\n")
    cloud.environment |= {"RLJAX_SETTLED": "600", "RLJAX_BACKOFF": "1", "RLJAX_LONGEST": "1"}
    cloud.codes(75, 0)
    cloud.worker("start", "--", "x")
    cloud.wait_for(lambda: file.read_text() == "waiting 1 s, then restart 1 (ended 75)\n")
    assert "waiting" in cloud.worker("status").stdout
    assert cloud.worker("stop").stdout.endswith(" stopped\n") and (cloud.path / "codes").read_text() == "0\n"


def test_a_second_start_is_refused_and_a_run_that_does_not_save_is_killed(cloud):
    assert cloud.worker("status").stdout.endswith(" none\n")
    assert cloud.worker("stop").stdout.endswith(" stopped\n")
    cloud.executable(
        "worker-0/rljax-venv/bin/python", "#!/usr/bin/env bash\ntrap '' TERM\ntouch $CLOUD/asleep\nsleep 20\n"
    )
    cloud.worker("start", "--", "x")
    cloud.wait_for((cloud.path / "asleep").exists)
    second = cloud.worker("start", "--", "x")
    assert second.returncode == 1 and "a run is already in progress" in second.stderr
    cloud.environment["RLJAX_GRACE"] = "1"
    assert "did not save within 1 s and was killed" in cloud.worker("stop").stderr
    assert cloud.worker("status").stdout.endswith(" stopped\n")


# --- GKE ------------------------------------------------------------------------------


def jobset(cloud, *arguments):
    line = [sys.executable, str(TPU / "jobset.py"), "--name", "mine", "--image", "place/rljax:1", *arguments]
    return subprocess.run(line, env=cloud.environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("kind", "topology", "label", "hosts", "chips"),
    [  # machine types ct4p- and ct5p-hightpu-4t, ct5lp-hightpu-{1,4,8}t, ct6e-standard-{1,4,8}t: chips of a host
        ("v4", "2x2x1", "tpu-v4-podslice", 1, 4),
        ("v5e", "1x1", "tpu-v5-lite-podslice", 1, 1),
        ("v5e", "2x4", "tpu-v5-lite-podslice", 1, 8),
        ("v5e", "4x4", "tpu-v5-lite-podslice", 4, 4),
        ("v5p", "4x4x4", "tpu-v5p-slice", 16, 4),
        ("v6e", "16x16", "tpu-v6e-slice", 64, 4),
        ("tpu7x", "2x2x2", "tpu7x", 2, 4),
    ],
)
def test_the_manifest_has_a_pod_for_each_host(cloud, kind, topology, label, hosts, chips):
    options = ["--type", kind, "--topology", topology, "--slices", "2", "--max-restarts", "7"]
    done = jobset(cloud, *options, "--", *ARGUMENTS, "$(HOME)")
    assert done.returncode == 0, done.stderr
    manifest = yaml.safe_load(done.stdout)
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (manifest["kind"], manifest["metadata"]["name"], job["replicas"]) == ("JobSet", "mine", 2)
    assert spec["completions"] == spec["parallelism"] == hosts and spec["backoffLimit"] == 0
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    assert container["command"] + container["args"] == ["python", "-m", "rljax", *ARGUMENTS, "$$(HOME)"]
    assert pod["restartPolicy"] == "Never"  # required by podFailurePolicy
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    final = spec["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert final == {"containerName": container["name"], "operator": "In", "values": [1, 2]}
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] == 7
    assert manifest["spec"]["failurePolicy"]["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_the_manifest_is_applied_or_its_command_shown(cloud):
    options = ["--type", "v5e", "--topology", "4x4", "--spot"]
    plain, dry, real = (
        jobset(cloud, *options, *more, "--", "--config", "x") for more in ([], ["--dry-run"], ["--apply"])
    )
    (call,) = cloud.calls("kubectl")
    assert call["argv"] == ["apply", "-f", "-"] and call["stdin"] == plain.stdout and real.returncode == 0
    assert dry.stdout == plain.stdout + "# + kubectl apply -f -\n"
    assert '"cloud.google.com/gke-spot": "true"' in plain.stdout
    cloud.plan(("kubectl", [{"err": "no JobSet here", "code": 1}]))
    failed = jobset(cloud, *options, "--apply", "--", "--config", "x")
    assert failed.returncode == 1 and "no JobSet here" in failed.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--type", "v5p", "--topology", "4x4"], "v5p has topologies such as 4x4x4"),
        (["--type", "v6e", "--topology", "3x1"], "3 chips; must be a multiple of the 4 chips of a host"),
        (["--type", "v5q", "--topology", "4x4"], "invalid choice: 'v5q'"),
        (["--type", "v5e", "--topology", "4x4", "--name", "Mine"], "--name 'Mine'"),
        (["--type", "v5e", "--topology", "4x4", "--slices", "0"], "at least 1"),
    ],
)
def test_invalid_options_of_a_manifest_are_refused(cloud, options, message):
    done = jobset(cloud, *options, "--apply", "--", "--config", "x")
    assert done.returncode == 2 and message in done.stderr and cloud.calls("kubectl") == []
