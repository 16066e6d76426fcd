"""The house: what may import what, how long things may be, and what may lie where."""

import ast
import fnmatch
import functools
import graphlib
import inspect
import pathlib
import re
import statistics
import subprocess
import sys

import pytest

from rljax import algorithms

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "rljax").rglob("*.py"))

# One row for each floor, the lowest first. A module (a file, or a package of rljax/) imports what it likes from
# the floors below, nothing from those above, and from its own floor only what stands beside it here.
FLOORS = {
    "mathematics": {
        "language.fields": (),  # which the records use
        "language.outline": (),
        "language.ranges": (),
        "types": ("language.fields", "language.outline", "language.ranges"),
        "language": ("types",),
        "transforms": ("language", "types"),
        "algorithms": ("language", "transforms", "types"),
        "methods": ("algorithms", "transforms", "types"),
    },
    "machinery": {
        "data": (),
        "models": ("data",),
        "sampling": ("models",),
        "environments": ("data",),
    },
    "assembly": {"training": ()},
    "host": {
        "__init__": (),  # imports by name, at first use
        "host": (),
        "config": ("host",),
        "run": ("config", "host"),
        "bench": ("__main__", "config", "host", "run"),
        "aot": ("bench", "config", "host", "run"),
        "__main__": (),  # imports the command's module by name
    },
}
FLOOR = {module: floor for floor, modules in FLOORS.items() for module in modules}
HEIGHT = {floor: height for height, floor in enumerate(FLOORS)}

TOP = {
    *("LICENSE", "README.md", "configs", "experiments", "notebooks", "pyproject.toml"),
    *("rljax", "setup.py", "tests", "tpu"),
}


def name(path):
    return str(path.relative_to(ROOT))


def module(path):
    """Return the module a file belongs to: its own name, or that of its package below rljax/; a program is its own."""
    parts = path.relative_to(ROOT / "rljax").parts
    if len(parts) > 1 and (inner := f"{parts[0]}.{parts[1].removesuffix('.py')}") in FLOOR:
        return inner
    return parts[0] if len(parts) > 1 else path.stem


@functools.cache
def nodes(path):
    """Return the nodes of a file's syntax tree, the module first."""
    return [*ast.walk(ast.parse(path.read_text()))]


@functools.cache
def imports(path):
    """Return the dotted names a file imports, wherever in the file, as (line, name)."""
    names = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names += [(node.lineno, f"{base}.{a.name}") for a in node.names]
    return names


def own_imports(path):
    """Yield (line, module of rljax) for the imports of other modules of rljax."""
    for line, dotted in imports(path):
        parts = dotted.split(".")
        if parts[0] == "rljax" and len(parts) > 1:
            other = ".".join(parts[1:3]) if ".".join(parts[1:3]) in FLOOR else parts[1]
            if other != module(path):
                yield line, other


def test_every_module_has_a_floor_and_every_row_a_module():
    assert {module(f) for f in FILES} == set(FLOOR)


@pytest.mark.parametrize("home", FLOORS)
def test_files_import_from_below_and_what_their_row_allows(home):
    for path, line, other in [(f, *i) for f in FILES if FLOOR[module(f)] == home for i in own_imports(f)]:
        where = f"{name(path)}:{line} ({home}) imports {other}"
        assert other in FLOOR, f"{where}: import modules, not names"
        height, floor = HEIGHT[FLOOR[other]], HEIGHT[home]
        assert height <= floor, f"{where} of the floor above, {FLOOR[other]}"
        if height == floor:
            assert other in FLOORS[home][module(path)], f"{where} of its own floor, which the table does not allow"


def test_nothing_imports_the_collection():
    assert [(name(f), line) for f in FILES for line, other in own_imports(f) if other == "methods"] == []


def test_the_core_runs_without_the_collection():
    code = (
        "import sys, rljax; rljax.algorithms.grpo(); rljax.config.resolve.phases(rljax.default_config())\n"
        "sys.exit(any(name.startswith('rljax.methods') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_table_allows_nothing_that_is_not_used_and_no_circle():
    used = {(module(f), other) for f in FILES for _, other in own_imports(f)}
    for modules in FLOORS.values():
        for row, allowed in modules.items():
            assert [a for a in allowed if (row, a) not in used] == [], row
        graphlib.TopologicalSorter(modules).prepare()  # raises CycleError


def test_no_file_imports_what_it_should_not():
    banned = {"torch", "tensorflow", "wandb", "ray", "configs", "experiments", "notebooks", "tests", "tpu"}
    for path, line, dotted in [(f, *i) for f in FILES for i in imports(f)]:
        package, where = dotted.partition(".")[0], f"{name(path)}:{line}: {dotted}"
        assert package, f"{where}: relative import"
        sink = (package, path.stem) == ("wandb", "weights_and_biases")  # imported if a config names it
        assert package not in banned or sink, where


def test_files_are_short():
    lines = {name(f): len(f.read_text().splitlines()) for f in [*FILES, *(ROOT / "configs").glob("*.py")]}
    assert {k: n for k, n in lines.items() if n > 400} == {}
    assert statistics.median(lines.values()) <= 150


def test_functions_are_short():
    for path, node in [(f, node) for f in FILES for node in nodes(f)]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (path.stem, node.name) != ("loop", "train"):
            docstring = node.body[0] if ast.get_docstring(node) else None
            documented = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            length = node.end_lineno - node.lineno + 1 - documented
            assert length <= 60, f"{name(path)}: {node.name} has {length} lines beside its docstring"


def test_recipes_are_expressions():
    for path in [
        file for room in ("algorithms", "methods") for file in (ROOT / "rljax" / room / "recipes").glob("*.py")
    ]:
        for node in nodes(path)[0].body:
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "recipe" for d in node.decorator_list):
                first = node.body[1]  # after the docstring
                assert node.end_lineno - first.lineno + 1 <= 12, f"{node.name}: a dozen lines beside its docstring"


def test_help_explains_every_argument_of_every_recipe():
    for recipe, function in algorithms.TABLE.items():
        for argument in inspect.signature(function).parameters:
            entry = rf"^  {argument}: (?!A |One of|True or|Required)\S"  # the meaning, before what is allowed
            assert re.search(entry, inspect.getdoc(function), re.MULTILINE), f"{recipe}: {argument}"


def test_public_functions_of_the_mathematics_say_what_they_return():
    mathematics = [f for f in FILES if module(f) in ("transforms", "algorithms", "methods")]
    for path, node in [(f, node) for f in mathematics for node in nodes(f)[0].body]:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert node.returns is not None, f"{name(path)}: {node.name}"


def test_names_that_mean_nothing_are_not_used():
    banned = "old" + "_logp"
    for path in [p for folder in ("rljax", "configs", "tests", "notebooks") for p in (ROOT / folder).rglob("*")]:
        assert path.name not in ("utils.py", "util.py", "helpers.py"), name(path)
        if path.suffix in (".py", ".ipynb"):
            assert banned not in path.read_text(), name(path)


def test_importing_rljax_does_not_import_jax():
    code = "import sys, rljax; dir(rljax); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_top_level_holds_what_the_design_lists():
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split() if not line.startswith("#")]
    names = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    assert {n for n in names if not any(fnmatch.fnmatch(n, pattern) for pattern in ignored)} == TOP


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff_finds_nothing(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command, str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def entries(folder):
    """Return what a folder holds, pages, ``__init__``, ``__main__`` and conftest aside."""
    aside = {"__init__.py", "__main__.py", "__pycache__", "conftest.py"}
    return [p.name for p in folder.iterdir() if p.name not in aside and p.suffix != ".md"]


def folders(base):
    return [p for p in sorted((ROOT / base).rglob("*")) if p.is_dir() and p.name != "__pycache__"]


def test_a_folder_holds_at_most_sixteen_entries():
    held = {name(f): entries(f) for base in ("rljax", "tests") for f in (ROOT / base, *folders(base))}
    assert {folder: names for folder, names in held.items() if len(names) > 16} == {}


def test_tests_have_the_folders_of_rljax():
    own = {"support", "repository"}  # what tests share, and tests of the whole
    rooms = [p.relative_to(ROOT / "tests") for p in folders("tests")]
    assert [str(r) for r in rooms if r.parts[0] not in own and not (ROOT / "rljax" / r).is_dir()] == []


def test_a_frame_imports_nothing_that_ships():
    for path in (ROOT / "rljax" / "environments").rglob("*.py"):
        if "shipped" not in path.parts:
            assert [dotted for _, dotted in imports(path) if ".shipped" in dotted] == [], name(path)
