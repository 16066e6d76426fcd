"""What is installed is what is in the tree: packages, configs, licence, requirements."""

import ast
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import jax
import pytest

import rljax
from rljax.config import resolve
from tests.support import compiler

ROOT = pathlib.Path(__file__).parents[2]
TEXTS = (".md", ".py", ".ipynb", ".sh", "")
SHIPPED = sorted(p.stem for p in (ROOT / "configs").glob("*.py") if p.stem != "__init__")


def setup_arguments():
    """Return the literal arguments of setup.py's call."""
    calls = [n for n in ast.walk(ast.parse((ROOT / "setup.py").read_text())) if isinstance(n, ast.Call)]
    (call,) = [c for c in calls if ast.unparse(c.func) == "setuptools.setup"]
    out = {}
    for keyword in call.keywords:
        try:
            out[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            pass  # computed, such as the list of packages
    return out


def normal(name):
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=\[ ]", name)[0]).lower()


def test_the_version_is_one():
    assert setup_arguments()["version"] == rljax.__version__


def test_no_page_installs_the_other_project_of_this_name():
    assert setup_arguments()["name"] == "rljax-lm"
    folders = ("rljax", "configs", "experiments", "notebooks", "tpu")
    for path in [
        ROOT / "README.md",
        *(p for f in folders for p in (ROOT / f).rglob("*") if p.is_file() and p.suffix in TEXTS),
    ]:
        assert not re.search(r"pip install [^\n`&]*['\" ]rljax['\"\[ `]", path.read_text()), path


def test_the_licence_is_apache_2_whole_and_ours():
    text = (ROOT / "LICENSE").read_text()
    assert setup_arguments()["license"] == "Apache-2.0"
    assert "Apache License\n" in text and "Version 2.0, January 2004" in text
    assert all(f"\n   {i}. " in text for i in range(1, 10)) and "END OF TERMS AND CONDITIONS" in text
    assert re.search(r"Copyright (\d{4} )?The rljax authors", text)


def test_whatever_is_imported_is_required():
    imported = set()
    for path in [*(ROOT / "rljax").rglob("*.py"), *(ROOT / "configs").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {a.name.split(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    homes = importlib.metadata.packages_distributions()
    required = {normal(r) for r in setup_arguments()["install_requires"]}
    third = imported - set(sys.stdlib_module_names) - {"rljax"}
    third -= {
        "IPython",
        "bm25s",
        "openenv",
        "pgx",
        "pyarrow",
        "reasoning_gym",
        "resvg_py",
        "textarena",
        "wandb",
    }  # only used where it runs us, or with an extra
    missing = {m for m in third if not {normal(d) for d in homes.get(m, [])} & required}
    assert {"jax", "flax", "optax"} <= third
    assert not missing


def test_every_public_name_is_there():
    for name in ("train", "get_config", "default_config", "make_program", "make_step", "config", "evaluate", "sample"):
        assert name in dir(rljax)
    for name in dir(rljax):
        assert getattr(rljax, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = rljax.trian


def test_importing_the_package_does_not_load_jax():
    code = "import rljax, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_config_says_its_command_and_has_a_quick_variant(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no configs/
    header = ast.get_docstring(ast.parse((ROOT / "configs" / f"{name}.py").read_text()))
    assert header and f"python -m rljax --config configs/{name}.py" in header
    assert rljax.get_config(f"configs/{name}.py").to_json() == rljax.get_config(name).to_json()
    full, quick = rljax.get_config(name), rljax.get_config(name, "quick")
    assert full.name == quick.name == name

    def steps(c):
        return sum(c.phase[p].steps for p in c.phases)

    assert steps(quick) < steps(full) and (steps(quick) <= 10 or name == "quickstart")
    with pytest.raises(ValueError, match=f"{name}:quik"):
        rljax.get_config(name, "quik")


@pytest.mark.parametrize("name", sorted({"quickstart", "countdown", "ppo"} & set(SHIPPED)))
def test_a_config_that_makes_its_own_data_resolves(name):
    for argument in ("", "quick"):
        assert resolve.phases(rljax.get_config(name, argument))[-1].last > 0


@pytest.mark.full
def test_a_wheel_holds_the_tree_and_runs_a_shipped_config_from_any_directory(tmp_path):
    source, installed, elsewhere = (tmp_path / n for n in ("source", "installed", "elsewhere"))
    elsewhere.mkdir()
    skip = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "runs")
    shutil.copytree(ROOT, source, ignore=skip)  # building writes into the source
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    tree = {str(p.relative_to(ROOT)) for e in ("py", "html", "toml", "txt") for p in (ROOT / "rljax").rglob(f"*.{e}")}
    tree |= {f"rljax/configs/{p.name}" for p in (ROOT / "configs").glob("*.py")}
    tree |= {f"rljax/configs/reasoning_base/{p.name}" for p in (ROOT / "configs" / "reasoning_base").iterdir()}
    files = {str(p.relative_to(installed)) for p in installed.rglob("*") if p.is_file()}
    assert {f for f in files if ".dist-info/" not in f} == tree
    assert any(f.endswith("LICENSE") for f in files)

    environment = os.environ | {
        "XLA_FLAGS": compiler.QUICK,
        "PYTHONPATH": str(installed),
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    where = [sys.executable, "-c", "import rljax; print(rljax.__file__)"]
    out = subprocess.run(where, cwd=elsewhere, env=environment, check=True, capture_output=True, text=True)
    assert out.stdout.strip() == str(installed / "rljax" / "__init__.py")
    short = ["--config.phases=('main',)", "--config.phase.main.steps=2", "--workdir", "run"]
    short += [f"--config.evaluation.final_{what}=4" for what in ("prompts", "samples")]
    for name, words, shown in (
        ("quickstart:quick", (), "pass@4"),
        ("configs/quickstart.py:quick", ("--check",), "finished at step 2 of 2"),  # the same config: the same run
    ):
        run = [sys.executable, "-m", "rljax", "--config", name, *short, *words]
        out = subprocess.run(run, cwd=elsewhere, env=environment, check=True, capture_output=True, text=True)
        assert shown in out.stdout and (elsewhere / "run" / "passk.png").is_file()
