"""The README keeps its word: commands resolve, the example runs, the tree and the table are whole."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from rljax import __main__, algorithms
from rljax.config import files, resolve
from tests import compiler

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_every_run_command_resolves():
    commands = [shlex.split(c) for c in re.findall(r"python -m rljax --config .*", README)]
    assert len(commands) >= 8
    for _, _, _, _, name, *flags in commands:
        path, _, argument = name.partition(":")
        config = files.load(str(ROOT / path), argument)
        for flag in flags:
            field, _, value = flag.removeprefix("--config.").partition("=")
            if value:  # "--set" stands alone before its field
                number = re.fullmatch(r"[\d.]+", value)
                files.override(config, field, float(value) if number else value)
        if "DIRECTORY" not in config.task:
            resolve.phases(config)


def test_every_command_exists():
    names = set(re.findall(r"python -m rljax (\w+)", README))
    assert {"evaluate", "sample", "sweep", "bench"} <= names <= set(__main__.COMMANDS)


@pytest.mark.full
def test_the_python_example_runs():
    example = re.search(r"```python\n(.*?)```", README, re.S)[1]
    assert len(example.strip().splitlines()) <= 18
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": compiler.QUICK}
    done = subprocess.run(
        [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pass@4" in done.stdout


def test_the_tree_names_every_module_and_the_table_every_recipe():
    house = README[README.index("## The house") :]
    for path in (ROOT / "rljax").rglob("*.py"):
        if path.name != "__init__.py":
            name = path.stem if "transforms" in path.parts else path.name
            assert name in house, path
    for name in algorithms.TABLE:
        assert f"`{name}`" in README, name
