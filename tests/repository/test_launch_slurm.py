"""The scripts of tpu/, run against a simulated cloud: SLURM."""

import re
import signal
import subprocess

from tests.repository.launch_cases import ARGUMENTS, TPU


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
