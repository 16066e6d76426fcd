"""The notebooks run from top to bottom in a new kernel, as for a reader."""

import base64
import io
import os
import pathlib
import re

import jax
import matplotlib.image
import nbclient
import nbformat
import pytest

from tests import compiler

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Execute the first notebook and return its code cells and directory; its second run need not learn."""
    short = {"weighted = ": "config.phase.warm.steps = config.phase.main.steps = 2\n"}
    return execute("first_run", tmp_path_factory.mktemp("notebook"), short)


def execute(name, workdir, before=()):
    """Execute a notebook in quick mode, on one device, and return its code cells and directory.

    ``before`` maps a piece of code to what is inserted before it.
    """
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {
        "RLJAX_QUICK": "1",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": compiler.QUICK,
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }
    notebook = read(name)
    for code, inserted in dict(before).items():
        (cell,) = [c for c in notebook.cells if c.cell_type == "code" and code in c.source]
        cell.source = cell.source.replace(code, inserted + code)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(workdir)}})
    client.execute(env=environment)
    return [cell for cell in notebook.cells if cell.cell_type == "code"], workdir


def outputs(cell, kind):
    return [o.data[kind] for o in cell.outputs if kind in o.get("data", {})]


def text(cell):
    return "".join(o.get("text", "") for o in cell.outputs) + "".join(outputs(cell, "text/plain"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_valid_and_committed_without_outputs(name):
    notebook = read(name)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None


@pytest.mark.full
def test_every_cell_runs_and_draws_its_figures(executed):
    cells, workdir = executed
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    assert not [o for c in cells for o in c.outputs if o.output_type == "error"]
    for call in ("result.learning_curve(", "result.passk(", "plots.passk("):
        (cell,) = [c for c in cells if call in c.source]
        (png,) = outputs(cell, "image/png")
        picture = matplotlib.image.imread(io.BytesIO(base64.b64decode(png)))
        height, width, _ = picture.shape
        assert min(height, width) > 300
        assert picture[..., :3].std() > 0.05  # neither empty nor uniform
    assert list(workdir.iterdir()) == []  # nothing is written without a work directory


@pytest.mark.full
def test_the_table_the_algorithm_and_the_completions_are_printed(executed):
    cells, _ = executed
    printed = {c.source: text(c) for c in cells}
    (table,) = [t for source, t in printed.items() if "evaluate.table" in source]
    assert "pass@1" in table and "greedy" in table and "base" in table and "result" in table
    (row,) = [line for line in table.splitlines() if "pass@1 " in line]
    base, result = re.findall(r"\[([\d.]+), ([\d.]+)\]", row)
    assert float(base[1]) < float(result[0])  # the quick run learns: the intervals are apart
    described = [t for source, t in printed.items() if "algorithms.describe" in source]
    assert "grpo(" in described[0] and "w_reinforce(positive=0.1" in described[1]
    (completions,) = [t for source, t in printed.items() if "sample.complete" in source]
    assert completions.count("'logp'") == 4


@pytest.mark.full
def test_the_notebook_of_own_data_trains_on_its_file_and_reward(tmp_path):
    cells, _ = execute("own_data", tmp_path)
    printed = {c.source: text(c) for c in cells}
    (sizes,) = [t for source, t in printed.items() if "task.size(" in source]
    assert "'sort " in sizes and "'heldout': " in sizes
    (run,) = [t for source, t in printed.items() if "rljax.train(" in source]
    assert "reward" in run
    (table,) = [t for source, t in printed.items() if "evaluate.table" in source]
    assert "pass@1" in table and "base" in table and "result" in table


@pytest.mark.full
def test_the_notebook_of_worlds_plays_trains_and_shows_its_rows(tmp_path):
    cells, _ = execute("worlds", tmp_path)
    printed = {c.source: text(c) for c in cells}
    (played,) = [t for source, t in printed.items() if "guess(numbers=16" in source]
    assert played.endswith("paid 1; the episode is over\n")
    (paid,) = [t for source, t in printed.items() if "import vending" in source]
    assert paid.splitlines()[-1] == "2 -> '0', paid 1; the episode is over"
    (rows,) = [t for source, t in printed.items() if "step.rollout(" in source]
    masks = [line.split()[1] for line in rows.splitlines()[2:]]
    assert {*masks} == {"0", "1"} and masks[0] == "1"
    (dump,) = [t for source, t in printed.items() if "show_rollouts" in source]
    assert "policy" in dump and "world" in dump
