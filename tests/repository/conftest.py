"""Fixtures that several files of this folder use."""

import os
import shutil
import signal
import subprocess

import pytest

from tests.repository.launch_cases import TPU, Cloud


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
