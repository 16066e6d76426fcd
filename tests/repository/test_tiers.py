"""The default tier imports every module and holds every recipe against its oracle."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

from rljax import __main__, algorithms, environments
from tests.algorithms import test_algorithms
from tests.support import compiler

ROOT = pathlib.Path(__file__).parents[2]


def imported(path):
    """Return the files of rljax that a file imports, wherever in the file, or names in a string to import later."""
    names = set()
    text = path.read_text()
    text += "\n".join(re.findall(r"^from rljax\S* import \w+$", text, re.MULTILINE))  # of a program in a string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.]+(:\w+)?", str(node.value)):
            name = str(node.value).partition(":")[0]
            names |= {name, f"rljax.{name}"} if "." in name else set()
    if path == ROOT / "rljax" / "language" / "tables.py":  # imports every module of the rooms of a table
        rooms = ("rljax/algorithms/recipes", "rljax/methods")
        files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
        names |= {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files}
    if path == ROOT / "rljax" / "__main__.py":
        names |= {module for module, _ in __main__.COMMANDS.values()}
    if path == ROOT / "rljax" / "environments" / "__init__.py":
        names |= {place.partition(":")[0] for place in environments.TASKS.values()}
    files = set()
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):  # the packages above a module are imported with it
            place = ROOT.joinpath(*parts[:length])
            files |= {file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()}
    return {file for file in files if (ROOT / "rljax") in file.parents}


def has_default_test(path):
    """Return whether a file has a test that is not marked full as a whole."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    tests = [node for node in functions if node.name.startswith("test_")]
    return any("pytest.mark.full" not in map(ast.unparse, node.decorator_list) for node in tests)


def test_every_module_is_imported_by_the_default_tier():
    seen, new = set(), set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if has_default_test(path):
            new |= imported(path)
    while new:
        seen |= new
        new = set().union(*map(imported, new)) - seen
    modules = set((ROOT / "rljax").rglob("*.py"))
    assert sorted(str(path.relative_to(ROOT)) for path in modules - seen) == []


def test_every_recipe_is_held_against_its_oracle_in_the_default_tier():
    test = test_algorithms.test_float64_equals_the_oracle_whatever_the_padding_holds
    marks = {mark.name: mark for mark in test.pytestmark}
    assert set(marks) == {"parametrize"}  # neither full nor a choice of cases
    _, cases = marks["parametrize"].args
    assert {name for name, _ in cases} >= set(algorithms.TABLE)


@pytest.mark.default_tier("second")
@pytest.mark.parametrize("case", ["first", "second"])
def test_cases_that_the_mark_does_not_name_are_full(case, request):
    assert (request.node.get_closest_marker("full") is None) == (case == "second")


@pytest.mark.full
def test_only_flags_that_xla_knows_are_set_and_a_worker_that_dies_says_why():
    assert compiler.known(("--xla_backend_optimization_level=0", "--xla_no_such_flag=1")) == [
        "--xla_backend_optimization_level=0"
    ]
    environment = {**os.environ, "XLA_FLAGS": "--xla_no_such_flag=1"}
    words = [sys.executable, "-m", "pytest", "-q", "-n", "1", __file__]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode and "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1" in done.stderr
