"""The loop as a person meets it: killed, stopped, resumed, mistaken; and from Python without files."""

import csv
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

from experiments.worlds import curves
from rljax import types
from rljax.config import files
from rljax.data import tokenizers
from rljax.host import workdirs
from rljax.models.checkpoints import weights
from rljax.run import convert, loop, preview
from rljax.run.evaluation import evaluate, loading
from rljax.run.records import checkpoints, glossary
from rljax.run.reports import show_rollouts
from tests.run import kills
from tests.run.loop_cases import ONE, ROOT, command
from tests.run.records.test_metrics import read_events
from tests.support import tiny

CONFIG = """
from tests.support import tiny


def get_config(arg=""):
    return tiny.phases("grpo(kl=0.01)", phase__warm__steps=10, phase__main__steps=50,
                       checkpoint__every=15, log__rollouts=20, log__report=True, evaluation__every=20,
                       log__sinks="tensorboard() | csv()")
"""


FOREGROUND = ("env", "--default-signal=INT")  # pytest itself may run in the background and ignore Ctrl-C


def run(*arguments, module=""):
    return subprocess.run(**command(module, *arguments), timeout=240)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return (config file, work directory, output) of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny_config.py").write_text(CONFIG)
    done = run("--config", str(folder / "tiny_config.py"), "--workdir", str(folder / "whole"))
    assert done.returncode == 0, done.stdout
    return folder / "tiny_config.py", folder / "whole", done.stdout


def same(one, other):
    """Hold the states of two work directories after step 60 to the same bits."""
    jax.tree.map(np.testing.assert_array_equal, *(kills.final_state(workdir, 60) for workdir in (one, other)))


LATE = """
import os, sys

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=15):
        kill(process, number)

sys.late = Late()  # deleted as Python ends
"""


def test_sigterm_in_the_last_moment_keeps_the_exit_code(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LATE)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-m", "rljax", "-h"], env=environment, stdout=subprocess.DEVNULL)
    assert done.returncode == 0


def test_a_run_writes_everything_it_promises(finished):
    _, workdir, output = finished
    for name in ("metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "rollouts.jsonl", "config.json"):
        assert (workdir / name).stat().st_size > 0, name
    assert json.loads((workdir / "code.json").read_text()) == {}  # the config names nothing outside rljax
    assert {"10", "45", "60"} <= set(os.listdir(workdir / "checkpoints"))  # the end of a phase is kept
    assert f"next:\n  python -m rljax report {workdir}\n" in output
    assert (workdir / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert (workdir / "passk.png").read_bytes()[:4] == b"\x89PNG"
    steps = [event.step for event in read_events(workdir / "tensorboard")]  # Weights & Biases ignores lower ones
    assert steps == sorted(steps) and steps[-1] == 60
    assert "scale_by_group(epsilon=1e-06, ddof=1)" in (workdir / "algorithm.txt").read_text()
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    assert [r["step"] for r in records] == list(range(1, 61))
    assert {r["phase"] for r in records} == {"warm", "main"}
    assert [e["name"] for e in map(json.loads, (workdir / "evaluations.jsonl").open())] == [
        "base", "training", "training", "result",
    ]  # fmt: skip
    for name in ("metrics", "timings", "evaluations"):
        rows = [*csv.DictReader((workdir / f"{name}.csv").open(newline=""))]
        assert [int(row["step"]) for row in rows] == [
            json.loads(line)["step"] for line in (workdir / f"{name}.jsonl").open()
        ]
        entries = getattr(glossary, name.upper())
        assert glossary.missing(rows[0].keys() - {"step", "phase"}, entries) == []
    note = "note: phase 'main': clip(low=0.2, high=0.2) has no effect"  # of a default, which the user did not write
    assert note not in output and (workdir / "algorithm.txt").read_text().count(note) == 1
    assert "pass@4" in output and "greedy" in output and "sample completions" in output
    rollouts = [json.loads(line) for line in (workdir / "rollouts.jsonl").open()]
    assert {rollout["step"] for rollout in rollouts} == {10, 20, 40, 60}  # 10 is the end of a phase
    rollout = rollouts[-1]
    assert {"prompt", "completion", "reward", "parts", "advantage", "finish", "outcome"} <= set(rollout)
    assert {"text", "advantage", "ratio", "entropy", "kl"} == set(rollout["tokens"])
    assert "Step 60 of 60, finished" in (workdir / "report.html").read_text()
    events = [json.loads(line) for line in (workdir / "events.jsonl").open()]
    assert events[0]["event"] == "start" and events[0]["command"][:3] == ["python", "-m", "rljax"]
    assert events[-1]["event"] == "end" and events[-1]["step"] == 60


def test_the_curves_of_a_study_are_those_of_a_run(finished, tmp_path):
    groups = curves.read(str(finished[1]), [])
    curves.draw(groups, ["whole"], ["accuracy"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 0
    assert any(line.startswith("main: accuracy, end") for line in curves.table(groups, ["whole"], ["accuracy"]))


@pytest.mark.full
def test_a_kill_and_a_sigterm_at_random_moments_change_nothing(tmp_path):
    signals, failures = kills.campaign(tmp_path, kills=1, terms=1, seed=10, jobs=1, tasks=("device",), report=False)
    print(kills.table(signals))
    assert failures == [] and {signal.drawn for signal in signals} == {"save", "step"}


@pytest.mark.parametrize(("sign", "name", "code"), [(signal.SIGTERM, "SIGTERM", 75), (signal.SIGINT, "Ctrl-C", 130)])
def test_a_signal_before_the_imports_exits_with_its_code(sign, name, code):
    arguments = ("--config", "quickstart", "--workdir", "/nonexistent/run")
    process = subprocess.Popen(**command("", *arguments, prefix=FOREGROUND))
    while not kills.handles(process.pid, signal.SIGTERM):
        assert process.poll() is None, process.communicate()[0]
    time.sleep(0.05)  # SIGTERM is the first of its handlers
    process.send_signal(sign)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code and code in (loop.RESUMABLE, loop.INTERRUPTED)
    assert output == f"{name}: to resume, run the same command again.\n"


@pytest.mark.full
def test_a_fork_interrupted_and_resumed_ends_as_the_run_that_did_everything(finished, tmp_path, capsys):
    config, whole, _ = finished
    fork = tmp_path / "fork"
    arguments = ("--config", str(config), "--workdir", str(fork), "--init", f"{whole}@warm")
    process = subprocess.Popen(**command("", *arguments, "--set", "log.report=False", prefix=FOREGROUND))
    while not (fork / "metrics.jsonl").exists() or (fork / "metrics.jsonl").read_bytes().count(b"\n") < 3:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == loop.INTERRUPTED == 130, output
    assert "begins at step 10 with the parameters of" in output and "skipped phases: warm" in output
    assert re.search(r"Ctrl-C: stopped after step \d+ of 60, saved\. To resume, run the same command again", output)
    capsys.readouterr()
    loop.train(plain(config, checkpoint__init=f"{whole}@warm"), fork, devices=ONE)
    output = capsys.readouterr().out
    assert re.search(rf"^resumes after step \d+ of 60, from {fork}$", output, re.M) and "begins at" not in output
    assert json.loads((fork / "config.json").read_text())["checkpoint"]["init"] == f"{whole}@10"
    for name, left_out in (("metrics", 10), ("evaluations", 1)):
        lines = (whole / f"{name}.jsonl").read_bytes().splitlines()
        assert (fork / f"{name}.jsonl").read_bytes().splitlines() == lines[left_out:], name
    same(fork, whole)


@pytest.mark.full
def test_the_tokenizer_of_a_run_is_written_with_its_policy(finished, tmp_path):
    _, whole, _ = finished
    architecture, params, tokenizer = convert._read(str(whole), None, "", [])
    weights.save(str(tmp_path / "out"), architecture, params, tokenizer=tokenizer)
    assert tokenizers.load(tmp_path / "out") == tokenizers.load(whole)


def plain(config, **fields):
    """Return the config of a file without the report and its pictures, which take longer than some steps."""
    return tiny.edited(files.load(str(config)), {"log__report": False, **fields})


def listing(folder):
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_a_work_directory_in_use_is_refused_before_anything_is_written(tmp_path):
    first = workdirs.WorkDirectory(tmp_path / "run")
    first.owner.acquire()
    before = listing(tmp_path)
    with pytest.raises(ValueError, match=rf"run is used by process {os.getpid()} on {socket.gethostname()}, started 2"):
        loop.train(tiny.config(), tmp_path / "run", progress=False, devices=ONE)
    assert listing(tmp_path) == before
    first.close()
    assert listing(tmp_path) == {}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "acquired\n"
    with pytest.raises(ValueError, match=rf"is used by process {holder.pid} on "):
        first.owner.acquire()
    holder.kill()
    holder.communicate()
    first.owner.acquire()  # the kernel has released the lock
    first.close()


HOLDER = """
import sys, time
from rljax.host import workdirs
directory = workdirs.WorkDirectory(sys.argv[1])
directory.owner.acquire()
print("acquired", flush=True)
time.sleep(600)
"""


@pytest.mark.full
def test_a_second_process_ends_with_one_line_and_readers_are_not_blocked(finished):
    config, whole, _ = finished
    first = workdirs.WorkDirectory(whole)
    first.owner.acquire()
    before = listing(whole)
    done = run("--config", str(config), "--workdir", str(whole))
    assert done.returncode == 2 and f"{whole} is used by process {os.getpid()} on" in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout
    done = run(str(whole), "--prompts", "8", "--samples", "8", "--k", "1,3,8", module="evaluate")
    assert done.returncode == 0, done.stdout
    record = json.loads(done.stdout.strip().splitlines()[-1])
    assert list(record["pass_at_k"]) == ["1", "3", "8"] and record["step"] == 60
    assert listing(whole) == before
    first.close()


@pytest.mark.parametrize(("place", "why"), [("file", "it is a file"), ("file/run", "Not a directory")])
def test_a_work_directory_that_cannot_be_made_is_refused(tmp_path, place, why):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=rf"{place}: cannot be written to \({why}\)"):
        loop.train(tiny.config(), tmp_path / place, progress=False, devices=ONE)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.full
def test_a_work_directory_deleted_during_the_run_is_an_error(finished, tmp_path):
    config, _, _ = finished
    workdir = tmp_path / "run"
    arguments = ("--config", str(config), "--workdir", str(workdir), "--set", "phases=('main',)")
    process = subprocess.Popen(**command("", *arguments))
    while not (workdir / "metrics.jsonl").exists() or (workdir / "metrics.jsonl").read_bytes().count(b"\n") < 3:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.002)
    workdir.rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 2 and "Traceback" not in output, output
    (line,) = re.findall(r"^error: .*", output, re.MULTILINE)  # a log, or the checkpoint that was being written
    assert str(workdir) in line and ("was deleted or replaced during the run" in line or "was not written" in line)


@pytest.mark.full
def test_a_full_disk_ends_the_run_with_one_line_and_complete_files(finished, tmp_path):
    config, _, _ = finished
    arguments = command("", "--config", str(config), "--workdir", str(tmp_path / "run"))
    arguments["args"] = ["bash", "-c", 'ulimit -f 5; exec "$@"', "bash", *arguments["args"]]  # no file above 5 KiB
    done = subprocess.run(**arguments, timeout=240)
    assert done.returncode == 2 and "Traceback" not in done.stdout, done.stdout
    (line,) = re.findall(r"^error: .*", done.stdout, re.MULTILINE)
    assert "[Errno 27] File too large" in line and str(tmp_path / "run") in line
    for log in (tmp_path / "run").glob("*.jsonl"):
        content = log.read_text()
        assert all(json.loads(line) for line in content.splitlines()) and content[-1:] in ("", "\n")
    assert not [file for file in (tmp_path / "run").rglob("*") if file.name.endswith((".writing", ".lock"))]


@pytest.mark.full
def test_a_gap_in_the_logs_is_refused_unless_allowed_and_a_finished_run_says_so_again(finished, tmp_path, capsys):
    config, whole, _ = finished
    shutil.copytree(whole, tmp_path / "copy")
    record = checkpoints.Checkpointer(whole / "checkpoints").read_extras()["logs"]
    for name in ("metrics", "evaluations", "rollouts"):
        content = (whole / f"{name}.jsonl").read_bytes()
        assert record[name] == [len(content), zlib.crc32(content)]
    log = tmp_path / "copy" / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:40] + lines[45:]))
    before = listing(tmp_path)
    loaded = plain(config)
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl: records from before the checkpoint of step 60 are .*--allow_log_gap"
    ):
        loop.train(loaded, tmp_path / "copy", allow_config_change=True, progress=False)
    assert listing(tmp_path) == before
    result = loop.train(loaded, tmp_path / "copy", allow_config_change=True, allow_log_gap=True, devices=ONE)
    assert len(result.history) == 55 and int(result.state.step) == 60
    assert "already finished at step 60 of 60: nothing was run (--fresh starts anew)\n" in capsys.readouterr().out
    assert [e["name"] for e in result.evaluations][::3] == ["base", "result"]  # of the table that the command prints
    after = listing(tmp_path)
    changed = {file.name for file in before if after[file] != before[file]}
    assert changed <= {"config.json", "events.jsonl", "metrics.csv"}
    same(whole, tmp_path / "copy")


@pytest.mark.full
def test_a_changed_config_is_refused_unless_allowed_and_a_corrupt_newest_checkpoint_is_replayed(finished, tmp_path):
    _, whole, _ = finished
    config = files.from_dict(json.loads((whole / "config.json").read_text()))
    config.phase.main.steps, config.log.report = 51, False
    config.algorithm = "rloo()"
    with pytest.raises(ValueError, match="another config") as error:
        loop.train(config, whole)
    assert "config.algorithm: 'grpo(kl=0.01)' -> 'rloo()'" in str(error.value)
    assert "config.phase.main.steps: 50 -> 51" in str(error.value)
    assert "config.seed" not in str(error.value)
    copy = shutil.copytree(whole, tmp_path / "copy")
    for file in (copy / "checkpoints" / "60").rglob("*"):
        if file.is_file():
            file.write_bytes(b"garbage")
    config.algorithm = "grpo(kl=0.01)"
    with pytest.warns(checkpoints.CheckpointWarning, match=r"(?s)step 60.*step 45"):
        result = loop.train(config, copy, allow_config_change=True, progress=False, devices=ONE)
    assert int(result.state.step) == 61
    for name, more in (("metrics", 1), ("evaluations", 1), ("rollouts", 4)):
        first, second = ((folder / f"{name}.jsonl").read_bytes().splitlines() for folder in (whole, copy))
        shared = len(first) - (name == "evaluations")  # the last one is "training" now
        assert second[:shared] == first[:shared] and len(second) == len(first) + more, name
    same(whole, copy)


def test_the_rollouts_of_a_step_are_shown(finished):
    out = io.StringIO()
    show_rollouts.show(str(finished[1]), step=40, count=2, console=rich.console.Console(file=out))
    assert "step 40: 1 of 1 logged prompts, 4 completions" in out.getvalue() and "advantage" in out.getvalue()


@pytest.mark.full
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_completions_are_judged_by_the_prompts_of_their_split(split):
    step = tiny.program(task="arithmetic(operands=2, digits=1, working=False)").steps[0]
    index = jnp.arange(8, dtype=jnp.int32)
    token, mask = step.setup.task.demonstrations(index, split, jax.random.key(0))
    assert (step.verify(index, split, token, mask).outcome == types.Outcome.CORRECT).all()


@pytest.mark.full
def test_evaluation_on_another_task_uses_the_runs_tokenizer(finished):
    _, whole, _ = finished
    program, params, _ = loading.load(str(whole), "arithmetic(operands=3, digits=1, working=False, votes=True)")
    record = evaluate.evaluate(program, params, name="other", step=0, prompts=8, samples=4)
    assert record["prompts"] == 8 and set(record["pass_at_k"]) == {"1", "2", "4"}
    assert len(record["correct"]) == 8 and sum(record["correct"]) == pytest.approx(record["pass_at_k"]["1"][0] * 32)
    assert record["majority_at_k"]["1"] == pytest.approx(record["pass_at_k"]["1"])
    assert {*record["majority_at_k"]} == {*record["pass_at_k"]}
    assert sum(record["greedy_correct"]) == pytest.approx(record["greedy"][0] * 8)
    with pytest.raises(ValueError, match=r"lacks|missing|character"):
        loading.load(str(whole), "countdown()")


def test_a_check_names_what_would_run_and_writes_nothing(tmp_path):
    config = tiny.phases(mesh__data=8)
    config.seam.penalty = "+ kl('k3', 0.02)"
    lines = preview.lines(config, tmp_path / "run")
    text = "\n".join(lines)
    assert "penalty   kl(estimator='k3', coefficient=0.02" in text
    assert "note: phase 'main': clip(low=0.2, high=0.2) has no effect" in text
    assert f"{tmp_path / 'run'}: new, 4 steps" in text and "8 assumed (data 8)" in text
    assert "phase warm: steps 1 to 2, sft()" in text and "phase main: steps 3 to 4, grpo(" in text
    assert "8 prompts x 4 samples = 32 rows of up to 4 + " in text
    size = int(re.search(r"policy ([\d,]+)", text)[1].replace(",", ""))
    assert f"params {4 * size / 1024:.2f} KiB" in text  # float32
    assert not (tmp_path / "run").exists()
    assert "value_error" in "\n".join(preview.lines(files.load("control"), tmp_path / "control", devices=8))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(files.dumps(tiny.config("rloo()")))
    with pytest.raises(ValueError, match=r"run of another config.*\n.*algorithm"):
        preview.lines(config, tmp_path / "run")


@pytest.mark.full
def test_a_check_has_the_devices_of_the_run(finished, tmp_path):
    fields = ("--config.mesh.data=-1", "--config.mesh.rollout=1", "--config.cpu_devices=3")
    done = run("--config", str(finished[0]), "--workdir", str(tmp_path / "new"), "--check", *fields)
    assert "2 assumed (data 2), and 1 that sample" in done.stdout, done.stdout


@pytest.mark.full
def test_a_check_of_a_run_that_exists_does_not_touch_it(finished):
    config, whole, _ = finished
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    text = "\n".join(preview.lines(files.load(str(config)), whole, devices=8))
    assert "finished at step 60 of 60; nothing would be run" in text
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
