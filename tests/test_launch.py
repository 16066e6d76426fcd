"""The scripts of tpu/, run against a simulated cloud: gcloud, kubectl, srun and others are stubs on the PATH.

The stub of gcloud records its calls and replies according to a plan. It runs the workers' commands on this machine,
each worker in a separate home directory, so that tpu/worker is tested too.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

ROOT = pathlib.Path(__file__).parent.parent
TPU = ROOT / "tpu"
SCRIPTS = ("pod", "worker", "slurm.sh")
PLACE = ["--zone=us-east5-b", "--project=lab"]
PLACE_FLAGS = ["--zone", "us-east5-b", "--project", "lab"]

STUB = """
import json, os, pathlib, re, shutil, signal, subprocess, sys

cloud = pathlib.Path(os.environ["CLOUD"])
name, argv = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
entry = {"name": name, "argv": argv}
if name == "kubectl":
    entry["stdin"] = sys.stdin.read()
with (cloud / "calls.jsonl").open("a") as file:
    file.write(json.dumps(entry) + "\\n")
plan = json.loads((cloud / "plan.json").read_text())
homes = [cloud / f"worker-{i}" for i in range(plan["workers"])]
line = " ".join([name, *argv])
for number, (pattern, replies) in enumerate(plan["replies"]):  # one reply per call, the last one repeatedly
    if re.search(pattern, line):
        count = cloud / f"count-{number}"
        call = int(count.read_text()) if count.exists() else 0
        count.write_text(str(call + 1))
        reply = replies[min(call, len(replies) - 1)]
        print(reply.get("out", ""), end="")
        print(reply.get("err", ""), end="", file=sys.stderr)
        if reply.get("code") is not None:
            sys.exit(reply["code"])
if " delete " in line or " create " in line:  # new machines have no processes and no files
    for home in homes:
        pid = home / "rljax-run" / "pid"
        if pid.exists():
            try:
                os.killpg(int(pid.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
if name == "gcloud" and "tpu-vm list" in line:
    print(plan["workers"])
code = 0
if "queued-resources scp" in line:
    for home in homes:
        shutil.copy(argv[4], home / argv[5].partition(":")[2])
if "queued-resources ssh" in line:
    command = next(a for a in argv if a.startswith("--command="))[len("--command="):]
    for home in homes[: plan.get("reached", len(homes))]:
        environment = {**os.environ, "HOME": str(home)}
        code = subprocess.run(["bash", "-c", command], cwd=home, env=environment).returncode or code
sys.exit(code)
"""

# python3 of a worker: its "uv venv" creates an interpreter that records its arguments and exits with planned codes.
PYTHON3 = """#!/usr/bin/env bash
echo "$*" >>"$CLOUD/installs"
if [[ "$*" == *"uv venv"* ]]; then
  mkdir -p "$HOME/rljax-venv/bin"
  cp "$CLOUD/program" "$HOME/rljax-venv/bin/python"
fi
"""

PROGRAM = """#!/usr/bin/env bash
echo "run with NOTE=${NOTE:-}"
exec 9>"$CLOUD/lock"
flock 9 # one process at a time
printf '%s\\0' "$@" >>"$CLOUD/arguments"
echo >>"$CLOUD/arguments"
code=$(head -n 1 "$CLOUD/codes")
sed -i 1d "$CLOUD/codes"
exec 9>&-
if [[ $code == sleep ]]; then
  trap 'echo saved; exit 75' TERM
  echo "saves on SIGTERM" >>"$CLOUD/asleep"
  sleep 20 >/dev/null & wait $!
fi
exit "$code"
"""


class Cloud:
    """A folder with stubs for the PATH, a plan of their replies, and a log of their calls."""

    def __init__(self, path, root):
        self.path, self.tpu = path, root / "tpu"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "CLOUDSDK"))},
            "PATH": f"{path / 'bin'}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            "CLOUD": str(path),
            "TMPDIR": str(path),
            "RLJAX_BACKOFF": "0",
        }
        (path / "bin").mkdir()
        for name in ("gcloud", "kubectl", "scontrol", "squeue"):
            self.executable(f"bin/{name}", f"#!{sys.executable} -IS\n{STUB}")
        self.executable("bin/python3", PYTHON3)
        self.executable("program", PROGRAM)
        self.plan()
        self.codes()

    def executable(self, name, text):
        """Write an executable file."""
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def plan(self, *replies, workers=2, **more):
        """Set the replies: (pattern of the command line, [reply of each call])."""
        (self.path / "plan.json").write_text(json.dumps({"replies": replies, "workers": workers, **more}))
        for i in range(workers):
            (self.path / f"worker-{i}").mkdir(exist_ok=True)

    def codes(self, *codes):
        """Set the exit codes of the program on the workers, one per run."""
        (self.path / "codes").write_text("".join(f"{c}\n" for c in codes))

    def run(self, script, *arguments, **more):
        """Run a script of tpu/."""
        return subprocess.run(
            [str(self.tpu / script), *arguments],
            env=self.environment | more,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.path,
        )

    def pod(self, *arguments, **more):
        """Run tpu/pod with a zone and a project."""
        head, tail = arguments, []
        if "--" in arguments:
            head, tail = arguments[: arguments.index("--")], arguments[arguments.index("--") :]
        return self.run("pod", *head, *PLACE_FLAGS, "--interval", "0.05", *tail, **more)

    def worker(self, *arguments):
        """Run tpu/worker on the first worker, after its setup."""
        home = self.path / "worker-0"
        if not (home / "rljax").exists():
            (home / "rljax").symlink_to(self.tpu.parent)
            (home / "rljax-venv" / "bin").mkdir(parents=True)
            shutil.copy(self.path / "program", home / "rljax-venv" / "bin" / "python")
        return subprocess.run(
            ["bash", str(home / "rljax/tpu/worker"), *arguments],
            env=self.environment | {"HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self, name="gcloud"):
        """Return the calls of a program."""
        log = self.path / "calls.jsonl"
        return [c for c in map(json.loads, log.read_text().splitlines()) if c["name"] == name] if log.exists() else []

    def requests(self):
        """Return the arguments of gcloud without the prefix, zone and project, which every call has."""
        requests = []
        for call in self.calls():
            argv = call["argv"]
            assert [a for a in argv if a.startswith(("--zone", "--project"))] == PLACE
            requests.append([a for a in argv if a not in PLACE][2:])
        return requests

    def arguments(self):
        """Return the arguments of each run of the program."""
        lines = (self.path / "arguments").read_text().split("\0\n")[:-1]
        return [line.split("\0") for line in lines]

    def wait_for(self, condition):
        """Wait until ``condition()`` is true."""
        limit = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < limit
            time.sleep(0.02)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Return a repository with tpu/ alone, which is copied to the workers quickly."""
    root = tmp_path_factory.mktemp("small")
    shutil.copytree(TPU, root / "tpu", ignore=shutil.ignore_patterns("__pycache__"))
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.fixture
def cloud(tmp_path, small):
    yield Cloud(tmp_path, small)
    for pid in tmp_path.glob("worker-*/rljax-run/pid"):
        try:
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass


def shown(output):
    """Return the gcloud commands that a script printed, parsed as by a shell."""
    return [shlex.split(line[2:]) for line in output.splitlines() if line.startswith("+ gcloud")]


STATE = r"queued-resources list"
ACTIVE = (STATE, [{"out": "ACTIVE\n"}])
ARGUMENTS = [
    "--config",
    "quick start",
    '--config.algorithm=grpo(like="verl")',
    "--config.name=it's $HOME; `x` \\ *",
    "",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing(script):
    installed = pathlib.Path(sys.executable).with_name("shellcheck")
    command = str(installed) if installed.exists() else shutil.which("shellcheck")
    assert command, "pip install -e '.[test]' installs shellcheck"
    done = subprocess.run([command, str(TPU / script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert os.access(TPU / script, os.X_OK)


# --- requesting TPUs ------------------------------------------------------------------------------


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


# --- the workers ----------------------------------------------------------------------------------


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


# --- preemption -----------------------------------------------------------------------------------


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


# --- a worker's loop ------------------------------------------------------------------------------


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


# --- GKE ------------------------------------------------------------------------------------------


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


# --- SLURM ----------------------------------------------------------------------------------------


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
