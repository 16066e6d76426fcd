"""Several processes on loopback: the same numbers as one, one writer, and runs that survive being stopped and killed."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from rljax import distributed, loop

ROOT = pathlib.Path(__file__).parent.parent
HEARTBEAT = 10
STEPS = 24

# A host task with a verifier that draws lots, and says in which process it was asked.
TASK = """
import os, pathlib, zlib
from rljax.tasks import gsm8k
from tests import tiny


def judge(text, reference):
    with open(pathlib.Path(__file__).parent / f"calls-{os.environ['CALLS']}", "a") as calls:
        calls.write(".")
    return {"reward": zlib.crc32(text.encode()) % 2, "wanted": float(reference)}


def questions(path):
    import dataclasses
    task = gsm8k.gsm8k(path, prompt_length=28, completion_length=4)
    return dataclasses.replace(task, reward=judge, parts=("wanted",))
"""

CONFIG = f"""
import pathlib
from rljax import config as configs
from tests import tiny


def get_config(arg=""):
    config = tiny.config("grpo(kl=0.0)", phases=("main",), phase__main__steps={STEPS}, evaluation__final_prompts=4)
    config.task = f"task_of_test_multihost.questions(path={{str(pathlib.Path(__file__).parent)!r}})"
    config.phase.main = configs.phase(steps={STEPS}, optimizer="sgd(learning_rate=1.0)", warmup=0, evaluate="result")
    config.model.update({{"remat": "none", "layers": 1}})
    config.sampler.block = 0
    config.learner.clip_norm = 0.0
    config.verifier.update({{"workers": 1, "chunks": 2, "timeout": 60.0}})
    config.checkpoint.every, config.log.every = 6, 1
    return config
"""


def environment(folder, number, processes, devices, **more):
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("RLJAX_", "JAX_COMPILATION"))},
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
        "RLJAX_CACHE": str(folder / "cache"),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
        "CALLS": str(number),
        "RLJAX_NUM_PROCESSES": str(processes),
        **({"RLJAX_PROCESS_ID": str(number)} if processes > 1 else {}),
        **more,
    }


class Group:
    """Processes of one run, each with its output in a file; none of them outlives the ``with``."""

    def __init__(self, folder, arguments, processes, devices):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.logs = [folder / f"output-{i}" for i in range(processes)]
        self.members = [
            subprocess.Popen(
                [sys.executable, *arguments],
                env=environment(folder, i, processes, devices, **({"RLJAX_COORDINATOR": address} if processes > 1 else {})),
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

    def said(self):
        return [log.read_text() for log in self.logs]

    def send_at(self, step, sign, number, workdir):
        """Signal one process once the run has logged so many steps."""
        log, deadline = workdir / "metrics.jsonl", time.monotonic() + 150
        while not log.exists() or log.read_bytes().count(b"\n") < step:
            assert self.members[number].poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.01)
        self.members[number].send_signal(sign)


def run(folder, name, processes=2, devices=2):
    """Start the command line on a work directory."""
    arguments = ("-m", "rljax", "--config", str(folder / "config.py"), "--workdir", str(folder / name))
    return Group(folder, (*arguments, f"--heartbeat_seconds={HEARTBEAT}"), processes, devices)
