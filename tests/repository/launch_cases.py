"""What the tests of launch share."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]

TPU = ROOT / "tpu"

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
