"""The house: what may import what, how long things may be, and what may lie where."""

import ast
import fnmatch
import graphlib
import pathlib
import statistics
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted((ROOT / "rljax").rglob("*.py"))

# One row for each floor, the lowest first. A module (a file, or a package of rljax/) imports what it likes from
# the floors below, nothing from those above, and from its own floor only what stands beside it here.
FLOORS = {
    "mathematics": {
        "language.outline": (),  # which the records use
        "language.ranges": (),
        "types": ("language.outline", "language.ranges"),
        "language": ("types",),
        "transforms": ("language", "types"),
        "algorithms": ("language", "transforms", "types"),
    },
    "machinery": {
        "data": (),
        "models": ("data",),
        "sampling": ("models",),
        "environments": ("data",),
    },
    "assembly": {"training": ()},
    "host": {
        "__init__": ("__main__",),  # imports by name, at first use
        "host": (),
        "run.config": (),  # settings of the loop, which the schema collects
        "run.sinks": (),  # their names, which a config is checked against
        "config": ("host", "run.config", "run.sinks"),
        "run": ("config", "host", "run.sinks"),
        "bench": ("__main__", "config", "host", "run"),
        "aot": ("bench", "config", "run"),
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


def imports(path):
    """Yield the dotted names a file imports, wherever in the file, as (line, name)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{a.name}") for a in node.names)


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


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_imports_from_below_and_what_its_row_allows(path):
    home = FLOOR[module(path)]
    for line, other in own_imports(path):
        where = f"{name(path)}:{line} ({home}) imports {other}"
        assert other in FLOOR, f"{where}: import modules, not names"
        height, floor = HEIGHT[FLOOR[other]], HEIGHT[home]
        assert height <= floor, f"{where} of the floor above, {FLOOR[other]}"
        if height == floor:
            assert other in FLOORS[home][module(path)], f"{where} of its own floor, which the table does not allow"


def test_the_table_allows_nothing_that_is_not_used_and_no_circle():
    used = {(module(f), other) for f in FILES for _, other in own_imports(f)}
    for modules in FLOORS.values():
        for row, allowed in modules.items():
            assert [a for a in allowed if (row, a) not in used] == [], row
        graphlib.TopologicalSorter(modules).prepare()  # raises CycleError


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_imports_nothing_it_should_not(path):
    banned = {"torch", "tensorflow", "wandb", "ray", "configs", "experiments", "notebooks", "tests", "tpu"}
    banned -= {"wandb"} if path.stem == "weights_and_biases" else set()  # imported if a config names the sink
    for line, dotted in imports(path):
        assert not dotted.startswith("."), f"{name(path)}:{line}: relative import"
        assert dotted.partition(".")[0] not in banned, f"{name(path)}:{line}: {dotted}"


def test_files_are_short():
    lines = {name(f): len(f.read_text().splitlines()) for f in [*FILES, *(ROOT / "configs").glob("*.py")]}
    assert {k: n for k, n in lines.items() if n > 400} == {}
    assert statistics.median(lines.values()) <= 150


@pytest.mark.parametrize("path", FILES, ids=name)
def test_functions_are_short(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (path.stem, node.name) != ("loop", "train"):
            docstring = node.body[0] if ast.get_docstring(node) else None
            documented = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            length = node.end_lineno - node.lineno + 1 - documented
            assert length <= 60, f"{name(path)}: {node.name} has {length} lines beside its docstring"


def test_recipes_are_expressions():
    for path in (ROOT / "rljax" / "algorithms").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "recipe" for d in node.decorator_list):
                first = node.body[1]  # after the docstring
                assert node.end_lineno - first.lineno + 1 <= 12, f"{node.name}: a dozen lines beside its docstring"


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
