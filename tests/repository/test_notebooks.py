"""The notebooks run from top to bottom in a new kernel, as for a reader."""

import base64
import io
import re

import jax
import matplotlib.image
import nbformat
import pytest

from tests.repository import notebooks
from tests.repository.notebooks import read
from tests.support import compiler

NAMES = sorted(path.stem for path in (notebooks.ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Execute the first notebook and return its code cells and directory."""
    return execute("first_run", tmp_path_factory.mktemp("notebook"))


def execute(name, workdir, before=()):
    """Execute a notebook in quick mode, on one device, and return its code cells and directory.

    ``before`` maps a piece of code to what is inserted before it.
    """
    environment = {
        "RLJAX_QUICK": "1",
        "XLA_FLAGS": compiler.QUICK,
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    notebook = read(name)
    for code, inserted in dict(before).items():
        (cell,) = [c for c in notebook.cells if c.cell_type == "code" and code in c.source]
        cell.source = cell.source.replace(code, inserted + code)
    notebooks.execute(notebook, workdir, environment)
    return [cell for cell in notebook.cells if cell.cell_type == "code"], workdir


def outputs(cell, kind):
    return [o.data[kind] for o in cell.outputs if kind in o.get("data", {})]


def text(cell):
    return "".join(o.get("text", "") for o in cell.outputs) + "".join(outputs(cell, "text/plain"))


INSTALL = """\
import importlib.util

if importlib.util.find_spec("rljax") is None:
    SOURCE = "git+ADDRESS"  # of the repository, or a path to a checkout or a wheel
    %pip install --quiet """


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_committed_with_the_outputs_of_one_whole_run(name):
    notebook = read(name)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells[0].source.startswith(INSTALL) and cells[0].outputs == []
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [o for cell in cells for o in cell.outputs]
    assert outputs and not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    for output in outputs:
        data = dict(output.get("data", {}))
        png = data.pop("image/png", "")
        assert len(base64.b64decode(png)) <= 60 * 1024
        written = output.get("text", "") + "".join(map(str, data.values()))
        assert not re.search(r"https?://|/tmp/|/home/|/root/|/work/|site-packages|[Ww]arning", written)


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
    assert [path.name for path in workdir.iterdir()] == ["runs"]


@pytest.mark.full
def test_the_table_the_algorithm_and_the_completions_are_printed(executed):
    cells, _ = executed
    printed = {c.source: text(c) for c in cells}
    (table,) = [t for source, t in printed.items() if "evaluate.table" in source]
    assert "pass@1" in table and "greedy" in table and "base" in table and "result" in table
    described = [t for source, t in printed.items() if "algorithms.describe" in source]
    assert "grpo(" in described[0] and "w_reinforce(positive=0.1" in described[1]
    shown = [t for source, t in printed.items() if "show(base, " in source or "show(result.params, " in source]
    assert len(shown) == 2 and all(t.count("\n  reward ") == 12 for t in shown)
    paid = [line for t in shown for line in t.splitlines() if line.startswith("  reward 1")]
    assert not [line for line in paid if "[wrong]" in line]


@pytest.mark.full
def test_the_notebook_of_own_data_trains_on_its_file_and_reward(tmp_path):
    cells, _ = execute("own_data_and_reward", tmp_path)
    printed = {c.source: text(c) for c in cells}
    (sizes,) = [t for source, t in printed.items() if "task.size(" in source]
    assert "'sort " in sizes and "'heldout': " in sizes
    (run,) = [t for source, t in printed.items() if "rljax.train(" in source]
    assert "reward" in run
    (table,) = [t for source, t in printed.items() if "evaluate.table" in source]
    assert "pass@1" in table and "base" in table and "result" in table


@pytest.mark.full
def test_the_notebook_of_pictures_draws_trains_and_exchanges_them(tmp_path):
    cells, _ = execute("see_and_reason", tmp_path)
    printed = {c.source: text(c) for c in cells}
    (known,) = [t for source, t in printed.items() if "drawn.prior" in source]
    shares = [float(x) for x in re.findall(r"([\d.]+) %", known)]
    assert abs(sum(shares[:-1]) - 100) < 1 and shares[-1] == max(shares)  # the best guess is the most frequent answer
    (seen,) = [t for source, t in printed.items() if "jnp.roll" in source]
    assert re.findall(r"^(.+?) +[\d.]+ % correct$", seen, re.MULTILINE) == ["its picture", "a blank one", "another's"]


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


def checked(name, tmp_path):
    """Execute a notebook that is the same in quick mode, compare with what it kept, and return its code cells."""
    cells, _ = execute(name, tmp_path)
    kept = [cell for cell in read(name).cells if cell.cell_type == "code"]
    for cell, before in zip(cells, kept, strict=True):
        assert text(cell) == text(before), f"to keep new outputs: python -m tests.repository.notebooks {name}"
        assert len(outputs(cell, "image/png")) == len(outputs(before, "image/png"))
    return {cell.source: text(cell) for cell in cells}


@pytest.mark.full
def test_the_notebook_of_a_loss_assembles_grpo(tmp_path):
    printed = checked("anatomy_of_a_loss", tmp_path)
    (same,) = [t for source, t in printed.items() if "push(whole) - push(recipe)" in source]
    assert same.startswith("largest difference: 0.000000\ngrpo(")


@pytest.mark.full
def test_the_notebook_of_kl_measures_what_theory_says(tmp_path):
    printed = checked("kl_and_its_estimators", tmp_path)
    for gradient in ("gradients['k3'] - forward", "exact - truth"):
        (same,) = [t for source, t in printed.items() if gradient in source]
        assert " 0.000000\n" in same
    (near,) = [t for source, t in printed.items() if "vmap(errors)" in source]
    errors = dict(re.findall(r"(k\d in the \w+) ([\d.]+)", near))  # the last line: 0.5 nats
    assert float(errors["k1 in the reward"]) < 1e-3 and float(errors["k1 in the loss"]) == pytest.approx(1, abs=1e-3)
    assert float(errors["k2 in the loss"]) < float(errors["k3 in the loss"]) < float(errors["k2 in the reward"])


@pytest.mark.full
def test_the_notebook_of_an_own_algorithm_proves_and_trains_it(tmp_path):
    cells, _ = execute("write_your_own_algorithm", tmp_path)
    printed = {c.source: text(c) for c in cells}
    (proof,) = [t for source, t in printed.items() if 'rljax.check("my_algorithm' in source]
    assert proof.count("pass ") == 8 and "FAIL" not in proof
    (mistake,) = [t for source, t in printed.items() if "my_mistake.normalized()" in source and "failed" in source]
    assert "FAIL  micro-batches add" in mistake and "pass " not in mistake
    (run,) = [t for source, t in printed.items() if "rljax.train(" in source]
    assert run.startswith("faded(width=0.2)") and "reward" in run


@pytest.mark.full
def test_the_notebook_of_a_pod_compiles_or_says_what_is_missing(tmp_path):
    cells, _ = execute("scale_to_a_pod", tmp_path)
    printed = "".join(text(c) for c in cells)
    if "Everything below is skipped: the TPU compiler is not installed" not in printed:
        assert re.search(r"4 chips with 16 GiB each.*params.*rollout: compiled in .* of 16.00 GiB", printed, re.DOTALL)


@pytest.mark.full
def test_without_the_tpu_compiler_the_notebook_of_a_pod_skips_it(tmp_path):
    cells, _ = execute("scale_to_a_pod", tmp_path, {"import os\n": "import sys\nsys.modules['libtpu'] = None\n"})
    printed = "".join(text(c) for c in cells)
    assert printed.startswith("Everything below is skipped: the TPU compiler is not installed. To fix, ")
    assert len(printed.splitlines()) == 1 and not [o for c in cells for o in outputs(c, "image/png")]


@pytest.mark.full
def test_the_notebook_of_ablations_trains_members_like_runs_alone(tmp_path):
    cells, _ = execute("ablate_with_vmap", tmp_path)
    printed = {c.source: text(c) for c in cells}
    (plan,) = [t for source, t in printed.items() if '"runs/rates")' in source]
    assert "6 runs that differ in phase.main.optimizer.learning_rate (3 values) and seed (2 values)" in plan
    (drift,) = [t for source, t in printed.items() if "abs(one - two)" in source]
    assert float(drift.split()[1]) <= 1e-5


@pytest.mark.full
def test_the_notebook_of_negative_reinforcement_compares_with_the_base(tmp_path):
    cells, _ = execute("negative_reinforcement", tmp_path)
    (table,) = [text(c) for c in cells if "passk.support(" in c.source]
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == ["base", "right only"]
