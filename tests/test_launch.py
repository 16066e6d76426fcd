"""The scripts of tpu/, run against a pretended cloud: gcloud, kubectl, srun and the rest are stubs on the PATH.

The stub of gcloud writes down how it was called and answers from a plan; what would run on the workers it runs here,
each worker in a home directory of its own, so that tpu/worker is itself under test.
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
for number, (pattern, answers) in enumerate(plan["answers"]):  # answers in turn, the last for ever
    if re.search(pattern, line):
        count = cloud / f"count-{number}"
        turn = int(count.read_text()) if count.exists() else 0
        count.write_text(str(turn + 1))
        answer = answers[min(turn, len(answers) - 1)]
        print(answer.get("out", ""), end="")
        print(answer.get("err", ""), end="", file=sys.stderr)
        if answer.get("code") is not None:
            sys.exit(answer["code"])
if " delete " in line or " create " in line:  # machines that go take all with them
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
        there = {**os.environ, "HOME": str(home)}
        code = subprocess.run(["bash", "-c", command], cwd=home, env=there).returncode or code
sys.exit(code)
"""

# python3 of a worker: its "uv venv" makes an interpreter that writes down its arguments and does as it is told.
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
flock 9 # one after the other
printf '%s\\0' "$@" >>"$CLOUD/arguments"
echo >>"$CLOUD/arguments"
code=$(head -n 1 "$CLOUD/codes")
sed -i 1d "$CLOUD/codes"
exec 9>&-
if [[ $code == sleep ]]; then
  trap 'echo saved; exit 75' TERM
  echo "it saves when told to" >>"$CLOUD/asleep"
  sleep 20 >/dev/null & wait $!
fi
exit "$code"
"""


class Cloud:
    """A folder with stubs on the PATH, a plan for them, and what they were asked."""

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

    def plan(self, *answers, workers=2, **more):
        """Answers are (pattern of the command line, [what is answered in turn])."""
        (self.path / "plan.json").write_text(json.dumps({"answers": answers, "workers": workers, **more}))
        for i in range(workers):
            (self.path / f"worker-{i}").mkdir(exist_ok=True)

    def codes(self, *codes):
        """What the program on the workers ends with, one run after the other."""
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
        """Run tpu/pod as a person does who gives zone and project."""
        head, tail = arguments, []
        if "--" in arguments:
            head, tail = arguments[: arguments.index("--")], arguments[arguments.index("--") :]
        return self.run("pod", *head, "--zone", "us-east5-b", "--project", "lab", "--interval", "0.05", *tail, **more)

    def worker(self, *arguments):
        """Run tpu/worker on the first worker, which is installed."""
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
        """Return how a program was called."""
        log = self.path / "calls.jsonl"
        return [c for c in map(json.loads, log.read_text().splitlines()) if c["name"] == name] if log.exists() else []

    def asked(self):
        """Return what gcloud was asked, without the prefix and the place, which every command has."""
        out = []
        for call in self.calls():
            argv = call["argv"]
            assert [a for a in argv if a.startswith(("--zone", "--project"))] == PLACE
            out.append([a for a in argv if a not in PLACE][2:])
        return out

    def arguments(self):
        """Return the arguments of each run of the program."""
        lines = (self.path / "arguments").read_text().split("\0\n")[:-1]
        return [line.split("\0") for line in lines]

    def wait_for(self, done):
        """Wait until done() says so."""
        limit = time.monotonic() + 20
        while not done():
            assert time.monotonic() < limit
            time.sleep(0.02)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Return a repository of nothing but tpu/, which is copied to the workers in no time."""
    root = tmp_path_factory.mktemp("small")
    shutil.copytree(TPU, root / "tpu", ignore=shutil.ignore_patterns("__pycache__"))
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.fixture
def cloud(tmp_path, small):
    made = Cloud(tmp_path, small)
    yield made
    for pid in tmp_path.glob("worker-*/rljax-run/pid"):
        try:
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass


def shown(output):
    """Return the gcloud commands that a script printed, as a shell would read them."""
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
    beside = pathlib.Path(sys.executable).with_name("shellcheck")
    command = str(beside) if beside.exists() else shutil.which("shellcheck")
    assert command, "pip install -e '.[test]' brings shellcheck"
    done = subprocess.run([command, str(TPU / script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert os.access(TPU / script, os.X_OK)


# --- asking for TPUs ------------------------------------------------------------------------------


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
            ["--type", "v6e-8", "--runtime", "own"],
            ["--node-id=mine", "--accelerator-type=v6e-8", "--runtime-version=own"],
        ),
    ],
    ids=["v4", "spot", "slices", "runtime"],
)
def test_create_asks_for_what_was_said_and_waits(cloud, options, flags):
    cloud.plan((STATE, [{"out": "WAITING_FOR_RESOURCES\n"}, {"out": "PROVISIONING\n"}, {"out": "ACTIVE\n"}]))
    done = cloud.pod("create", "mine", *options)
    assert done.returncode == 0, done.stderr
    state = ["queued-resources", "list", "--filter=name~/mine$", "--format=value(state.state)"]
    assert cloud.asked() == [["queued-resources", "create", "mine", *flags], state, state, state]
    assert "mine: PROVISIONING" in done.stdout


def test_a_quota_error_is_shown_and_ends_it(cloud):
    cloud.plan(("create", [{"err": "ERROR: Quota 'TPUV5sPreemptible' exhausted\n", "code": 1}]))
    done = cloud.pod("create", "mine", "--type", "v5litepod-16")
    assert done.returncode == 1 and len(cloud.calls()) == 1
    assert "Quota 'TPUV5sPreemptible' exhausted" in done.stderr and "error: create: gcloud's message" in done.stderr


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (["PROVISIONING", "FAILED"], "mine is FAILED and will not come"),
        (["ACTIVE"], None),
        ([""], "there is no mine in us-east5-b"),
        (["WAITING_FOR_RESOURCES"], "WAITING_FOR_RESOURCES after 1 s. The request stands"),
    ],
)
def test_waiting_ends_with_the_state_it_found(cloud, states, said):
    cloud.plan((STATE, [{"out": s + "\n" * bool(s)} for s in states]))
    done = cloud.pod("wait", "mine", "--timeout", "1" if said and "after 1 s" in said else "50")
    assert done.returncode == (0 if said is None else 1)
    assert said is None or said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "mine"], "--type: which TPUs?"),
        (["create", "mine", "--type", "v9-8"], "--type v9-8: no runtime version is known"),
        (["create", "--type", "v4-8"], "name the pod first"),
        (["delete"], "name the pod first"),
        (["delete", "Mine"], "not 'Mine'"),
        (["delete", "mine", "other"], "takes 0 arguments after the name, not 1"),
        (["launch", "mine"], "launch: nothing to run"),
        (["launch", "mine", "--config", "x"], "unknown option '--config'"),
        (["create", "mine", "--type", "v4-8", "--slices", "two"], "--slices 'two': a whole number"),
        (["launch", "mine", "--env", "A B=1", "--", "x"], "--env 'A B=1': NAME=VALUE"),
        (["create", "mine", "--type"], "--type: a value is missing"),
        (["watch", "mine", "--", "x"], "watch: --type"),
    ],
)
def test_a_mistake_is_named_before_anything_is_called(cloud, arguments, said):
    place = {"CLOUDSDK_COMPUTE_ZONE": "z", "CLOUDSDK_CORE_PROJECT": "p"}
    done = cloud.run("pod", *arguments, **place)
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert cloud.calls() == []


def test_zone_and_project_are_needed_and_read_from_the_environment(cloud):
    assert "which zone?" in cloud.run("pod", "status", "mine").stderr
    assert "which project?" in cloud.run("pod", "status", "mine", CLOUDSDK_COMPUTE_ZONE="z").stderr
    cloud.run("pod", "delete", "mine", CLOUDSDK_COMPUTE_ZONE="z", CLOUDSDK_CORE_PROJECT="p")
    (call,) = cloud.calls()
    assert call["argv"][2:] == ["queued-resources", "delete", "mine", "--force", "--quiet", "--zone=z", "--project=p"]
    assert cloud.run("pod", "no such thing").returncode == 2


# --- the workers ----------------------------------------------------------------------------------


def test_set_up_launch_look_and_stop(cloud):
    """The whole way of a person, on two workers that are real but for their interpreter."""
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
    assert installs.count(f"{pinned} --reinstall-package rljax ./rljax[tpu]") == 2

    done = cloud.pod("launch", "mine", "--max-restarts", "3", "--env", "NOTE=a 'b'", "--", *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    asleep = cloud.path / "asleep"
    cloud.wait_for(lambda: asleep.exists() and asleep.read_text().count("\n") == 2)
    assert cloud.arguments() == [["-m", "rljax", *ARGUMENTS]] * 2
    assert "run with NOTE=a 'b'\n" in (cloud.path / "worker-0/rljax-run/log").read_text()
    assert cloud.pod("status", "mine").stdout.count(" running (restarts: 0)\n") == 2
    again = cloud.pod("setup", "mine")
    assert again.returncode == 1 and "a run is going on here" in again.stderr and copied.exists()

    done = cloud.pod("stop", "mine")
    assert done.returncode == 0 and done.stdout.count(" stopped\n") == 2
    assert "saved\n" in (cloud.path / "worker-1/rljax-run/log").read_text()
    assert cloud.pod("status", "mine").stdout.count(" stopped\n") == 2


def test_a_worker_that_fails_its_set_up_fails_it(cloud):
    cloud.plan(ACTIVE)
    cloud.executable(
        "bin/python3", '#!/bin/sh\n[ "$(basename "$HOME")" = worker-0 ] || { echo no wheel >&2; exit 1; }\n'
    )
    done = cloud.pod("setup", "mine")
    assert done.returncode == 1 and "no wheel" in done.stderr
    assert "mine: 1 of 2 workers answered; gcloud ended with 1" in done.stderr
    assert "error: setup: not every worker is ready" in done.stderr


def test_a_launch_that_did_not_reach_all_stops_those_it_reached(cloud):
    cloud.plan(ACTIVE)
    cloud.pod("setup", "mine")
    cloud.codes("sleep")
    cloud.plan(ACTIVE, reached=1)  # gcloud itself ends well then
    done = cloud.pod("launch", "mine", "--", "--config", "x")
    assert done.returncode == 1 and "1 of 2 workers answered; gcloud ended with 0" in done.stderr
    assert "launch: not on every worker, so on none" in done.stderr
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


def test_watch_recreates_what_is_preempted_until_the_run_is_done(cloud):
    states = ["", "PROVISIONING", "ACTIVE", "ACTIVE", "SUSPENDING", "SUSPENDED", "", "ACTIVE"]
    cloud.plan((STATE, [{"out": s and s + "\n"} for s in states]))
    cloud.codes("sleep", "sleep", 0, 0)  # the first two runs go with their machines
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--spot", "--", *ARGUMENTS)
    assert done.returncode == 0, done.stdout + done.stderr
    verbs = [a[1] if a[1] != "ssh" else re.search(r"worker (\w+)", a[-1])[1] for a in cloud.asked() if a[1] != "list"]
    once = ["create", "status", "stop", "scp", "setup", "start"]
    assert [v for v in verbs if v != "status"] == [v for v in [*once, "delete", *once] if v != "status"]
    assert ["queued-resources", "delete", "mine", "--force", "--quiet"] in cloud.asked()
    assert cloud.arguments() == [["-m", "rljax", *ARGUMENTS]] * 4
    assert "the run is done on every worker" in done.stdout


@pytest.mark.full
def test_watch_outlives_a_preemption_during_the_set_up(cloud):
    states = (STATE, [{"out": "ACTIVE\n"}, {"out": "SUSPENDED\n"}, {}, {"out": "ACTIVE\n"}])
    cloud.plan(states, ("scp", [{"err": "connection lost\n", "code": 255}, {}]))
    cloud.codes(0, 0)
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--spot", "--", "--config", "x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error: setup: copying to the workers" in done.stderr and len(cloud.arguments()) == 2


@pytest.mark.full
def test_watch_stops_all_when_a_worker_gives_up(cloud):
    cloud.plan(ACTIVE)
    cloud.codes("sleep", 2)
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--", "--config", "x")
    assert done.returncode == 1 and "watch: a worker gave up, so all were stopped" in done.stderr
    states = sorted((cloud.path / f"worker-{i}/rljax-run/state").read_text() for i in range(2))
    assert states == ["ended 2\n", "stopped\n"]


@pytest.mark.full
def test_watch_launches_again_where_a_machine_was_started_again(cloud):
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
    assert not any(a[1] == "scp" for a in cloud.asked()[4:])  # installed is installed


@pytest.mark.full
def test_watch_does_not_take_an_earlier_run_for_its_own(cloud):
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
def test_watch_does_not_start_again_what_somebody_stopped(cloud):
    cloud.plan(ACTIVE, ("worker status", [{}, {}, {"out": "rljax-worker a stopped\n" * 2, "code": 0}]))
    cloud.codes("sleep", "sleep")
    done = cloud.pod("watch", "mine", "--type", "v5litepod-16", "--", "--config", "x")
    assert done.returncode == 1 and "watch: somebody stopped the run" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([(STATE, [{"out": "FAILED\n"}])], "the request for mine failed"),
        ([(STATE, [{"code": 1}])], "out of reach 3 times in a row"),
        ([ACTIVE, ("ssh", [{"code": 255}])], "out of reach 3 times in a row"),
        ([ACTIVE, ("scp", [{"code": 1}])], "set-up or launch failed 3 times in a row"),
        ([(STATE, [{}]), ("create", [{"code": 1}])], "create: gcloud's message is above"),
        ([(STATE, [{"out": "SUSPENDED\n"}])], "preempted 5 times, more than --max-recreations"),
    ],
)
def test_watch_does_not_go_on_for_ever(cloud, answers, said):
    cloud.plan(*answers)
    bounds = ["--max-recreations", "4", "--max-misses", "2", "--interval", "0"]
    done = cloud.pod("watch", "mine", "--type", "v4-8", *bounds, "--", "--config", "x")
    assert done.returncode == 1 and said in done.stderr, done.stderr


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
        ([75, 134, 0], 3, "ended 0"),  # saved and unfinished; aborted because a peer is gone
        ([2], 1, "ended 2"),
        ([75, 1], 2, "ended 1"),
        ([75] * 9, 4, "ended 75"),
    ],
)
def test_the_loop_restarts_what_is_unfinished_within_bounds(cloud, codes, runs, state):
    cloud.codes(*codes)
    done = cloud.worker("start", "--max-restarts", "3", "--", *ARGUMENTS)
    assert done.returncode == 0 and done.stdout.endswith(" started\n")
    file = cloud.path / "worker-0/rljax-run/state"
    cloud.wait_for(lambda: file.read_text() == f"{state}\n")
    assert cloud.arguments() == [["-m", "rljax", *ARGUMENTS]] * runs
    assert ("giving up" in (file.parent / "log").read_text()) == (runs == 4)
    assert cloud.worker("status").stdout.endswith(f" {state}\n")


def test_runs_that_got_on_do_not_count_and_pauses_grow(cloud):
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


def test_a_second_start_is_refused_and_one_that_will_not_save_is_killed(cloud):
    assert cloud.worker("status").stdout.endswith(" none\n")
    assert cloud.worker("stop").stdout.endswith(" stopped\n")
    cloud.executable(
        "worker-0/rljax-venv/bin/python", "#!/usr/bin/env bash\ntrap '' TERM\ntouch $CLOUD/asleep\nsleep 20\n"
    )
    cloud.worker("start", "--", "x")
    cloud.wait_for((cloud.path / "asleep").exists)
    second = cloud.worker("start", "--", "x")
    assert second.returncode == 1 and "a run is going on here" in second.stderr
    cloud.environment["RLJAX_GRACE"] = "1"
    assert "not saved within 1 s, killed" in cloud.worker("stop").stderr
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
    made = yaml.safe_load(done.stdout)
    (job,) = made["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (made["kind"], made["metadata"]["name"], job["replicas"]) == ("JobSet", "mine", 2)
    assert spec["completions"] == spec["parallelism"] == hosts and spec["backoffLimit"] == 0
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    assert container["command"] + container["args"] == ["python", "-m", "rljax", *ARGUMENTS, "$$(HOME)"]
    assert pod["restartPolicy"] == "Never"  # which podFailurePolicy asks for
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    final = spec["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert final == {"containerName": container["name"], "operator": "In", "values": [1, 2]}
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 7
    assert made["spec"]["failurePolicy"]["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]


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
    ("options", "said"),
    [
        (["--type", "v5p", "--topology", "4x4"], "v5p has topologies such as 4x4x4"),
        (["--type", "v6e", "--topology", "3x1"], "3 chips are not hosts of 4"),
        (["--type", "v5q", "--topology", "4x4"], "invalid choice: 'v5q'"),
        (["--type", "v5e", "--topology", "4x4", "--name", "Mine"], "--name 'Mine'"),
        (["--type", "v5e", "--topology", "4x4", "--slices", "0"], "at least 1"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(cloud, options, said):
    done = jobset(cloud, *options, "--apply", "--", "--config", "x")
    assert done.returncode == 2 and said in done.stderr and cloud.calls("kubectl") == []


# --- SLURM ----------------------------------------------------------------------------------------


def slurm(cloud, code, *arguments, state="RUNNING", **environment):
    cloud.codes(code)
    cloud.plan(("squeue", [{"out": f"{state}\n"}]))
    cloud.executable("bin/srun", '#!/bin/sh\nprintf "%s\\n" "$@" >$CLOUD/srun\nshift 4\nexec "$CLOUD/program" "$@"\n')
    given = {"SLURM_JOB_ID": "12", "PYTHON": "python3.11"} | environment
    return cloud.run("slurm.sh", *arguments, **given)


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


def test_slurm_passes_its_signal_on_and_waits_for_the_save(cloud):
    slurm(cloud, 0, "x")  # makes the stubs
    cloud.codes("sleep")
    given = cloud.environment | {"SLURM_JOB_ID": "12"}
    process = subprocess.Popen([str(TPU / "slurm.sh"), "x"], env=given, stdout=subprocess.PIPE, text=True)
    cloud.wait_for((cloud.path / "asleep").exists)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert "saved" in output and "ended with code 75" in output
    assert [c["argv"] for c in cloud.calls("scontrol")] == [["requeue", "12"]]


def test_the_options_of_the_batch_script_are_those_the_page_tells_of():
    options = re.findall(r"^#SBATCH (--\S+)", (TPU / "slurm.sh").read_text(), re.M)
    assert {"--requeue", "--signal=B:TERM@120", "--ntasks-per-node=1", "--open-mode=append"} <= set(options)
