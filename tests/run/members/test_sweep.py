"""A sweep file becomes commands that a shell can run; errors are reported before any of them runs."""

import io
import itertools
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import rich.console
from absl import flags

from rljax.config import files
from rljax.language import parse
from rljax.run.members import commands, results, sweep

ROOT = pathlib.Path(__file__).parents[3]
HEAD = "from rljax import sweep\n\ndef get_sweep():\n    return "


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a sweep file and returns its path."""

    def write(body):
        (tmp_path / "a sweep.py").write_text(HEAD + body)
        return str(tmp_path / "a sweep.py")

    return write


def line(file, *more):
    return [file, "--config", "quickstart:quick", "--workdir", "gs://bucket/a study/", *more]


# --- lists of runs -------------------------------------------------------------------------------


def test_grids_and_products_are_all_combinations_and_zipped_lists_are_rows():
    values = {"a": [1, 2], "b": "xy", "c": range(3)}
    expected = [dict(zip("abc", row, strict=True)) for row in itertools.product([1, 2], "xy", range(3))]
    assert sweep.grid(values) == expected
    assert sweep.product(*(sweep.grid({k: v}) for k, v in values.items())) == expected
    assert sweep.zipped({"a": [1, 2], "b": "xy"}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    both = sweep.product([*sweep.zipped({"a": [1, 2], "b": "xy"}), {"c": 0}], sweep.grid({"seed": [0, 1]}))
    assert len(both) == 6 and both[-1] == {"c": 0, "seed": 1}
    assert sweep.grid({}) == [{}] and sweep.grid({"a": []}) == []


def test_incompatible_lists_are_refused():
    with pytest.raises(ValueError, match=r"zipped: different numbers of values: \{'a': 2, 'b': 1\}"):
        sweep.zipped({"a": [1, 2], "b": [1]})
    with pytest.raises(ValueError, match="product: 'b' is set twice"):
        sweep.product([{"a": 1}, {"b": 1}], [{"b": 2}])


# --- names and settings --------------------------------------------------------------------------


def test_names_distinguish_runs_and_are_plain():
    base = files.load("quickstart", "quick")
    runs = sweep.grid({"algorithm": ["grpo(kl=0.0)", "grpo( kl = 0.01 )"], "phase.main.steps": [3, 4], "seed": [0]})
    names = [run.name for run in sweep.expand(runs, base)]
    assert names == [f"algorithm=grpo-kl-{k},steps={s},seed=0" for k in ("0.0", "0.01") for s in (3, 4)]
    two = sweep.expand(sweep.grid({"phase.main.steps": [3], "phase.warm.steps": [4]}), base)
    assert two[0].name == "phase.main.steps=3,phase.warm.steps=4"
    piece = "experiments.example_pieces.pieces.tapered_rloo(power=0.5)"
    assert sweep.expand([{"algorithm": piece}], base)[0].name == "algorithm=tapered_rloo-power-0.5"
    long = sweep.expand([{"name": "n" * 300}], base)[0].name
    assert re.fullmatch(r"name=n{115}-[0-9a-f]{6}", long)


def test_values_with_equal_names_get_distinct_names():
    base = files.load("quickstart", "quick")
    runs = sweep.expand([{"name": "a b"}, {"name": "a/b"}, {"name": "c"}], base)
    assert len({run.name for run in runs}) == 3 and runs[2].name == "name=c"
    assert all(re.fullmatch(r"name=a-b-[0-9a-f]{6}", run.name) for run in runs[:2])


@pytest.mark.parametrize("name", ["rloo()", "0.1", "it's", 'say "x"', "$HOME `ls`", "True", "(1, 2)", " a  b ", "ünï"])
def test_values_survive_shell_and_set(write, name):
    file = write(f"[{{'name': {name!r}, 'sampler.stop': ('a', 'b c'), 'algorithm.kl': 0.5, 'batch.samples': 4}}]")
    _, (words,) = commands.of_sweep(line(file))
    assert shlex.split(shlex.join(words)) == words
    config = files.load("quickstart", "quick")
    edits = [text for word, text in itertools.pairwise(words) if word == "--set"]
    for edit in edits:  # as python -m rljax does
        files.override(config, *parse.setting(edit))
    assert (config.name, config.sampler.stop, config.batch.samples) == (name, ("a", "b c"), 4)
    assert config.algorithm == "grpo(kl=0.5)"


def test_a_call_is_set_before_its_arguments():
    base = files.load("quickstart", "quick")
    (run,) = sweep.expand([{"algorithm.positive": 0.5, "algorithm": "w_reinforce()"}], base)
    assert run.settings == ("algorithm=w_reinforce()", "algorithm.positive=0.5")


# --- commands ------------------------------------------------------------------------------------


def test_each_run_is_a_command_with_a_separate_work_directory(write):
    file = write("sweep.grid({'seed': [0, 1]})")
    common = ["--config.algorithm=rloo()", "--set", "batch.samples=4", "--allow_config_change", "--config.name=7"]
    common += ["--width", "2", "--config.batch.prompts", "8"]
    _, runs = commands.of_sweep(line(file, *common))
    assert runs == [
        [
            *("-m", "rljax", "--config", "quickstart:quick", *common, "--set", f"seed={seed}"),
            *("--workdir", f"gs://bucket/a study/seed={seed}"),
        ]
        for seed in (0, 1)
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[{'batch.sample': 4}]", r"run 0 \(sample=4\): config.batch.sample: unknown field. Did you mean 'samples'"),
        ("[{'seed': 0}, {'algorithm.hihg': 1}]", r"run 1 \(hihg=1\): .*no argument 'hihg'"),
        ("[{'seed': 'one'}]", r"run 0 \(seed=one\): config.seed='one': must be of type int"),
        ("[{'batch.samples': 1}]", r"run 0 .*needs at least 2 samples"),
        ("sweep.grid({'seed': [0, 1, 0]})", r"runs 0 \(seed=0.*\) and 2 \(seed=0.*\) are the same run"),
        ("[{'seed': 5}, {'seed': 5, 'algorithm': 'grpo(kl=0.0)'}]", "runs 0 .* and 1 .* are the same run"),
        ("[]", "must return a list"),
        ("{'seed': [1]}", "must return a list"),
        ("[{}]", "must return a list"),
    ],
)
def test_an_invalid_run_is_named(write, body, message):
    with pytest.raises(ValueError, match=message):
        commands.of_sweep(line(write(body)))


def test_an_invalid_command_line_is_refused(write, tmp_path):
    file = write("[{'seed': 1}]")
    (tmp_path / "empty.py").write_text("")
    for words, message in [
        (line(file)[1:], "expected one sweep file, got none"),
        (line(file, file), "expected one sweep file, got ["),
        ([file], "Flag --config must have a value"),
        ([file, "--config"], "Missing value for flag --config"),
        ([file, "--config", "quickstart"], "--workdir missing"),
        (line("nowhere.py"), "sweep 'nowhere.py': no such file"),
        (line(str(tmp_path / "empty.py")), "has no function get_sweep"),
        (line(file, "--index", "1"), "--index 1: the sweep has 1 runs, 0 to 0"),
        (line(file, "--index=x"), "flag --index=x: "),
        (line(file, "--index=-1"), "flag --index=-1: "),
        (line(file, "--indx=1"), "Unknown command line flag 'indx'"),
        (line(file, "--config.sed=1"), "config.sed: unknown field. Did you mean 'seed'"),
        ([file, "--config", "quickstrat", "--workdir", "x"], "no shipped config of this name. Did you mean"),
    ]:
        with pytest.raises((ValueError, flags.Error), match=re.escape(message)):
            commands.of_sweep(words)


@pytest.mark.full
def test_the_command_prints_counts_and_runs(write, tmp_path, capsys):
    """--index runs one run in this process, here until an error, and exits with the run's code."""
    file = write("sweep.grid({'seed': range(2)})")
    words = [file, "--config", "quickstart:quick", f"--workdir={tmp_path}/study"]

    commands.main(["sweep", *words])
    printed = capsys.readouterr().out.splitlines()
    assert [shlex.split(p) for p in printed] == [["python", *c] for c in commands.of_sweep(words)[1]]
    commands.main(["sweep", *words, "--count"])
    assert capsys.readouterr().out == "2\n"
    with pytest.raises(ValueError, match=r"^run 0 \(seed=0\): config\.batch\.samples=0"):
        commands.main(["sweep", *words, "--count", "--config.batch.samples=0"])
    (tmp_path / "study" / "seed=1").mkdir(parents=True)
    (tmp_path / "study" / "seed=1" / "config.json").write_text(files.load("countdown").to_json())
    command = [sys.executable, "-m", "rljax", "sweep", *words, "--index", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    # the run detects that its work directory belongs to another config
    assert refused.returncode == 2 and "seed=1 contains a run of another config" in refused.stderr


def test_the_example_of_the_repository_expands():
    _, runs = commands.of_sweep(line(str(ROOT / "experiments/example_pieces/sweep.py")))
    assert len(runs) == 12 and len({words[-1] for words in runs}) == 12


def test_a_file_may_have_the_config_and_the_sweep():
    file = str(ROOT / "experiments/worlds/retry.py")
    _, (words, *_) = commands.of_sweep(["--config", file, "--init=other@3", file, "--workdir", "runs/retry"])
    assert words[:5] == ["-m", "rljax", "--config", file, "--init=other@3"] and words.count(file) == 1


# --- seeds ----------------------------------------------------------------------------------------


def test_seeds_are_a_range_or_a_list():
    assert (
        sweep.seeds_of("0:4") == [0, 1, 2, 3]
        and sweep.seeds_of("0,3,5") == [0, 3, 5]
        and sweep.seeds_of("7,0:2") == [7, 0, 1]
    )
    for text, message in (("0:0", "no seed"), ("1,0:2", "given twice"), ("a", "like 0:4"), ("-1", "like")):
        with pytest.raises(ValueError, match=f"--seeds='{text}'.*{message}"):
            sweep.seeds_of(text)


def test_seeds_and_values_are_combined():
    runs = sweep.of_flags("0:2", ["algorithm.low=[0.1, 0.2]"])
    assert runs == [{"seed": s, "algorithm.low": x} for s in (0, 1) for x in (0.1, 0.2)]
    for texts, message in ((["algorithm.low=0.1"], "FIELD="), (["a=[1]", "a=[2]"], "given twice"), (["a=[]"], "value")):
        with pytest.raises(ValueError, match=message):
            sweep.of_flags("", texts)


def test_the_table_of_seeds_has_students_interval():
    def result(accuracy):
        return {"result": {"pass_at_k": {"1": [accuracy, 0, 1]}, "greedy": [0.5, 0, 1]}}

    out = io.StringIO()
    trained = [({"seed": s}, result(x)) for s, x in enumerate((0.2, 0.3, 0.4))]
    results.table(trained, rich.console.Console(file=out, width=100))
    # mean 30, s = 10, t_2 = 4.3027: half of the width is 4.3027 * 10 / sqrt(3) = 24.84
    assert "30.0 [5.2, 54.8]" in out.getvalue() and out.getvalue().rstrip().endswith(" 50.0")
    out = io.StringIO()
    trained += [({"seed": s, "batch.prompts": 8}, result(0.1)) for s in range(2)]
    results.table(trained, rich.console.Console(file=out, width=100))
    assert "batch.prompts=8" in out.getvalue() and "30.0 [5.2, 54.8]" in out.getvalue()


@pytest.mark.full
def test_the_command_says_which_runs_share_a_program(tmp_path):
    (tmp_path / "small.py").write_text("from tests.support import tiny\n\nget_config = lambda _='': tiny.config()\n")
    words = ["-m", "rljax", "--config", "small.py", "--seeds=0,3", "--workdir", "runs", "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("program ", "config ", "work directory "))]
    assert lines == [
        "program 1: 2 runs that differ in seed (2 values)",
        *("config          tiny, seed 0", "work directory  runs/seed=0: new, 2 steps"),
    ]
