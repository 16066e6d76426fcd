"""Comparisons of runs: intervals, pairing, what is named instead of averaged, what is refused, and the page."""

import html.parser
import io
import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import rich.console
from matplotlib import figure
from scipy import stats

import rljax
from rljax.run.evaluation import intervals, passk
from rljax.run.reports import runs
from rljax.run.reports.pages import figures

PASS = {"grpo()": (0.50, 0.56, 0.61), "rloo(kl=0.1)": (0.55, 0.62, 0.65)}  # by seed


def write(folder, algorithm="grpo()", seed=0, *, steps=6, reached=None, shift=0.0, prompts=4, starts=(0,), **fields):
    """Write a work directory of two phases; ``fields`` are of the config."""
    phases = {"warm": {"steps": 2}, "main": {"steps": steps - 2, "evaluate": "result"}}
    config = {"name": "study", "seed": seed, "task": "sums()", "algorithm": algorithm, "learner": {"clip": 1.0}}
    config |= {"phases": ["warm", "main"], "phase": phases, **fields}
    center = PASS.get(algorithm, PASS["grpo()"])[seed % 3] + shift
    last = steps if reached is None else reached
    history = [{"step": s, "phase": "warm", "loss": 2.0 / s} for s in (1, 2)]
    history += [{"step": s, "phase": "main", "reward": center * s / steps, "loss": 0.0} for s in range(3, last + 1)]
    timings = [{"step": r["step"], "phase": r["phase"], "seconds": 2.0, "tokens_per_second": 50.0} for r in history]
    evaluation = {"name": "result", "task": "sums()", "step": steps, "prompts": prompts, "samples": 2}
    evaluation["pass_at_k"] = {"1": [center, center - 0.1, center + 0.2], "2": [center + 0.1, center, center + 0.2]}
    evaluation["majority_at_k"] = {"2": [center + 0.05, center, center + 0.1]}
    logs = {"metrics": history, "timings": timings, "evaluations": [evaluation] if last == steps else []}
    logs["events"] = [{"step": step, "event": "start"} for step in starts]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "algorithm.txt").write_text(f"main: {algorithm}\n")
    for name, records in logs.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return a folder of two arms of three seeds."""
    folder = tmp_path_factory.mktemp("study")
    for algorithm, seed in itertools.product(PASS, range(3)):
        write(folder / f"{algorithm[:4]}-seed={seed}", algorithm, seed)
    return folder


def test_an_interval_over_runs_is_students():
    values = [0.3, 0.5, 0.45, 0.61]
    estimate = intervals.mean(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    np.testing.assert_allclose([estimate.mean, estimate.low, estimate.high], [np.mean(values), low, high], rtol=1e-9)
    assert (estimate.count, estimate.over) == (4, "seed")
    assert intervals.mean([0.99, 0.9], bounds=intervals.UNIT).high == 1.0  # of a fraction
    equal = intervals.mean([0.1, 0.1, 0.1])  # no interval: one of width 0 would claim certainty
    assert np.isnan(equal.high) and equal.over == "equal seed"
    assert np.isnan(intervals.difference({0: 0.1, 1: 0.2}, {0: 0.2, 1: 0.3}).low)
    single = intervals.mean([0.3])
    assert np.isnan(single.low) and not single.over


def test_differences_are_paired_by_seed_where_seeds_are_equal_and_else_welchs():
    first, second = {0: 0.3, 1: 0.5, 2: 0.9}, {2: 1.0, 0: 0.42, 1: 0.61}
    a, b = [first[s] for s in range(3)], [second[s] for s in range(3)]
    paired = intervals.difference(first, second)
    np.testing.assert_allclose([paired.low, paired.high], stats.ttest_rel(b, a).confidence_interval(), rtol=1e-9)
    assert (paired.count, paired.over) == (3, "paired seed")
    welch = intervals.difference({**first, 7: 0.4}, second)
    expected = stats.ttest_ind(b, [*a, 0.4], equal_var=False).confidence_interval()
    np.testing.assert_allclose([welch.low, welch.high], expected, rtol=1e-9)
    assert (welch.count, welch.over) == (7, "unpaired seed") and welch.high - welch.low > paired.high - paired.low


def test_two_runs_are_paired_by_prompt():
    def prompts(correct):
        values = passk.pass_at_k(correct, 4, [1])[:, 0]
        low, high = passk.bootstrap(values)
        return intervals.Prompts(values.mean(), (low[0], high[0]), values)

    one, other = prompts([0, 4, 1]), prompts([1, 4, 3])
    estimate = intervals.difference_over_prompts(one, other, 0.25)
    # of the 27 resamples of (0.25, 0, 0.5), one in 27 > 2.5 % has mean 0, and one has mean 0.5
    assert (estimate.mean, estimate.low, estimate.high) == (0.25, 0.0, 0.5) and estimate.over == "paired prompts"
    same = intervals.difference_over_prompts(one, one, 0.0)
    assert same.low == -same.high < 0
    none, every = prompts([0, 0, 0]), prompts([4, 4, 4])  # a difference of 1 everywhere, in both directions
    up, down = (intervals.difference_over_prompts(*pair) for pair in ((none, every, 1.0), (every, none, -1.0)))
    assert (up.low, up.high) == (-down.high, -down.low) and up.low < up.high == 1.0
    totals = [intervals.Prompts(x, (x, x), np.full(3, x)) for x in (-100.0, -90.0)]  # no share: its range is unknown
    assert np.isnan(intervals.difference_over_prompts(*totals, 10.0).low)
    without = [intervals.Prompts(p.mean, p.interval) for p in (one, other)]
    assert intervals.difference_over_prompts(*without, estimate.mean).over == "prompts"


def test_a_return_is_of_evaluations_and_not_of_training_batches(tmp_path):
    """A run whose evaluation has other prompts than the others' counts in the return of its batches alone."""
    for seed, prompts in ((0, 4), (1, 4), (2, 8)):
        folder = tmp_path / str(seed)
        write(folder, seed=seed, prompts=prompts)
        for name, more in (("evaluations", {"total": [-100.0 - seed] * prompts}), ("metrics", {"return": -500.0})):
            records = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(r | more) + "\n" for r in records))
    result = rljax.compare([tmp_path])
    means = {row["quantity"]: (row["mean"], row["count"]) for row in result.table}
    assert means["return"] == (-100.5, 2) and result.runs[2].get("return") is None
    assert {run["training return"] for run in result.runs} == {-500.0}


def test_runs_are_grouped_by_what_differs_and_averaged_over_seeds(study):
    result = rljax.compare([study])
    assert result.by == ["algorithm"] and [arm.name for arm in result.arms] == list(PASS)
    assert [list(arm.runs) for arm in result.arms] == [[0, 1, 2]] * 2 and result.notes == []
    row, gap = result.estimate("grpo()", "pass@1"), result.difference("rloo(kl=0.1)", "pass@1")
    assert row["mean"] == pytest.approx(np.mean(PASS["grpo()"])) and row["count"] == 3
    expected = stats.ttest_rel(PASS["rloo(kl=0.1)"], PASS["grpo()"]).confidence_interval()
    np.testing.assert_allclose([gap["low"], gap["high"]], expected, rtol=1e-9)
    assert result.estimate("grpo()", "reward")["mean"] == pytest.approx(np.mean(PASS["grpo()"]))  # of the last step
    costs = [result.estimate("grpo()", name)["mean"] for name in ("steps", "minutes", "tokens", "tokens/s")]
    assert costs == pytest.approx([6, 0.2, 600, 50])
    assert result.fields == {"seed": ["0, 1, 2"] * 2, "algorithm": list(PASS)}
    assert {"task": "sums()", "learner.clip": "1.0"}.items() <= result.common.items()
    other = rljax.compare([f"{study}/*-seed=[01]"], by=["algorithm.kl"], baseline="0.1", metrics=["reward"])
    assert [arm.name for arm in other.arms] == ["kl=0.1", "kl=-"] and other.main == ["reward"]
    votes = rljax.compare([study], metrics=["maj@2"]).estimate("grpo()", "maj@2")
    assert votes["mean"] == pytest.approx(np.mean(PASS["grpo()"]) + 0.05)
    assert [len(arm.runs) for arm in other.arms] == [2, 2]


def test_with_one_run_the_interval_is_over_prompts_and_says_so(study):
    result = rljax.compare([f"{study}/*-seed=0"])
    row = result.estimate("grpo()", "pass@1")
    assert (row["low"], row["high"], row["over"]) == (0.4, 0.7, "prompts")
    assert "prompts, one run" in shown(result)
    assert "Means with 95 % intervals over 3 seeds" in rljax.compare([study]).html()
    text = rljax.compare([f"{study}/*-seed=0"], metrics=["reward"]).html()
    assert "Means and differences without intervals, which need several runs" in text and "Bold: " not in text
    assert np.isnan(result.estimate("grpo()", "reward")["low"])


def shown(result):
    """Return what is printed where there is no terminal."""
    out = io.StringIO()
    result.show(rich.console.Console(file=out, width=250))
    return out.getvalue()


def test_what_cannot_be_averaged_is_named(tmp_path):
    write(tmp_path / "a0", seed=0)
    write(tmp_path / "a1", seed=1, starts=(0, 0, 4, 6))  # killed twice; at last already finished
    write(tmp_path / "a2", seed=2, reached=4)
    write(tmp_path / "b0", "rloo(kl=0.1)", 0, prompts=5)
    write(tmp_path / "b1", "rloo(kl=0.1)", 1, learner={"clip": 0.5})
    result = rljax.compare([tmp_path], by=["algorithm"])
    assert result.notes == [
        "a2: left out, at step 4 of 6.",
        "grpo() (seed 1): resumed at step 4, so that the time includes several compilations.",
        "rloo(kl=0.1): the runs differ in learner.clip as well as in seed.",
        "rloo(kl=0.1) (seed 0): the evaluation is left out, 5 prompts x 2 samples; "
        "the others have 4 prompts x 2 samples.",
    ]
    assert result.estimate("rloo(kl=0.1)", "pass@1")["count"] == 1
    assert result.estimate("rloo(kl=0.1)", "reward")["count"] == 2
    assert all(note in shown(result) for note in result.notes)
    early = rljax.compare([tmp_path], by=["algorithm"], step=4)
    assert [list(arm.runs) for arm in early.arms] == [[0, 1, 2], [0, 1]]
    assert any("no pass@k" in note for note in early.notes)


def test_what_else_differs_between_arms_is_named(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b", "rloo(kl=0.1)", learner={"clip": 0.5}, log={"metrics": 5}, checkpoint={"init": "x"})
    result = rljax.compare([tmp_path])
    assert result.notes == ["all arms: they differ in learner.clip, checkpoint.init as well as in algorithm."]
    assert rljax.compare([tmp_path], by=["algorithm", "learner.clip", "checkpoint.init"]).notes == []


def test_differences_of_what_is_no_fraction_after_all_have_no_bound(tmp_path):
    for name, values in {"grpo()": (-5.1, -4.9, -5.0), "rloo(kl=0.1)": (0.9, 0.8, 0.85)}.items():
        for seed, value in enumerate(values):
            write(tmp_path / f"{name[:4]}{seed}", name, seed)
            log = tmp_path / f"{name[:4]}{seed}" / "metrics.jsonl"
            records = [json.loads(line) | {"value/explained_variance": value} for line in log.read_text().splitlines()]
            log.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = rljax.compare([tmp_path], by="algorithm", metrics="value/explained_variance")
    (gap,) = [row for row in result.differences if row["quantity"] == "value/explained_variance"]
    assert gap["low"] < gap["mean"] < gap["high"] and 5.8 < gap["mean"] < 5.9


def test_an_argument_is_averaged_over(tmp_path):
    for number, kl in enumerate((0.1, 0.2, 0.3)):
        write(tmp_path / str(number), f"grpo(kl={kl})", prompts=4 + (number > 0))
    for options in ({}, {"by": ["task"]}):
        result = rljax.compare([tmp_path], over="algorithm.kl", **options)
        assert [len(arm.runs) for arm in result.arms] == [3]
        assert not any("differ" in note for note in result.notes)
    assert "evaluated on 5 prompts" in result.html()  # the evaluation of the first run was left out


def test_runs_whose_phases_are_at_other_steps_have_no_band(tmp_path):
    for seed, first in enumerate((2, 6)):
        phase = {"warm": {"steps": first}, "main": {"steps": 4}}
        write(tmp_path / str(seed), seed=seed, phase=phase)
        log = tmp_path / str(seed) / "metrics.jsonl"
        history = [{"step": s + 1, "phase": "warm" if s < first else "main", "reward": s} for s in range(first + 4)]
        log.write_text("".join(json.dumps(record) + "\n" for record in history))
    assert "reward" in rljax.compare([tmp_path], by=["algorithm"]).html()


@pytest.mark.parametrize(
    ("several", "options", "message"),
    [
        ([], {}, "no run: no folder with a config.json"),
        ([{"reached": 5}], {}, "none of 1 runs is finished. --step 5 compares"),
        ([{"task": "sums()"}, {"task": "sorting()", "seed": 1}], {}, r"2 tasks: sums\(\) \(0\); sorting\(\) \(1\)"),
        ([{}], {"by": ["algoritm"]}, "no run has this field.*Did you mean 'algorithm'"),
        ([{}], {"metrics": ["rewards"]}, "no run has it. Did you mean 'reward'"),
        ([{}], {"by": ["seed"]}, "in --by and --over"),
        ([{}, {}], {}, "both seed=0.*Their configs are equal"),
        ([{}, {"learner": {"clip": 0.5}}], {"by": ["algorithm"]}, "differ in learner.clip: add it to --by"),
        ([{}], {"baseline": "x"}, "must be one of"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, several, options, message):
    for number, fields in enumerate(several):
        write(tmp_path / str(number), **fields)
    with pytest.raises(ValueError, match=message):
        rljax.compare([tmp_path], **options)


def test_a_pattern_or_a_folder_finds_the_runs_below_it(study, tmp_path):
    write(tmp_path / "deep" / "er" / "run")
    assert runs.find([tmp_path]) == [f"{tmp_path}/deep/er/run"] == runs.find([f"{tmp_path}/*/er"])
    assert len(runs.find([f"{study}/grpo*", f"{study}/*-seed=0"])) == 4  # each once
    for place in (tmp_path / "absent", f"{study}/x*"):
        with pytest.raises(ValueError, match="no such folder"):
            runs.find([place])


class Checked(html.parser.HTMLParser):
    """Checks that elements are closed in order, and collects ids, references and addresses."""

    VOID = ("meta", "img", "br", "line", "path", "use", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.references, self.tags = [], [], set(re.findall(r"url\(#([^)]+)\)", text)), set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):  # noqa: D102 (of html.parser)
        self.tags.add(tag)
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        target = values.get("href") or values.get("xlink:href") or values.get("src") or "#"
        assert target.startswith(("#", "data:")), target
        self.references |= {target[1:]} if target.startswith("#") and target != "#" else set()
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):  # noqa: D102 (of html.parser)
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):  # noqa: D102 (of html.parser)
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_self_contained_well_formed_and_escaped(tmp_path):
    for number, name in enumerate(("<script>alert(1)</script>", "$x^{&'\"")):
        for seed in (0, 1):
            write(tmp_path / f"{number}{seed}", seed=seed, variant=name, shift=0.1 * number)
    result = rljax.compare([tmp_path])
    page = result.html("python -m rljax compare <here>")
    checked = Checked(page)
    assert len(set(checked.ids)) == len(checked.ids) and checked.references <= set(checked.ids)
    assert {"main", "nav", "section", "h1", "h2", "svg", "table", "details"} <= checked.tags
    assert not {"script", "link", "iframe"} & checked.tags
    assert "http" not in page and "@import" not in page and page.count("<h1>") == 1
    assert "prefers-color-scheme: dark" in page and "&lt;script&gt;" in page and "compare &lt;here&gt;" in page


@pytest.mark.full
def test_a_notebook_shows_tables_and_figures(study):
    result = rljax.compare([study])
    titles = [fig.axes[0].get_title("left") for fig in result.figures()]
    assert titles == ["pass@1 of each arm", "pass@1 minus that of grpo()", "pass@k, %", "reward", "loss"]
    notebook = result._repr_html_()
    Checked(notebook)
    assert "<svg" in notebook and "http" not in notebook


def test_a_picture_is_small_and_keeps_its_lines():
    fig = figure.Figure(figsize=(5, 3))
    ax = fig.subplots()
    for seed in range(24):
        ax.plot(np.random.default_rng(seed).normal(size=500), alpha=0.25)
    inline = figures.inline(fig, "24 runs", limit=2_000_000)
    assert inline.count("stroke-opacity: 0.25") == 24  # numbers of paths alone are rounded
    small = figures.inline(fig, "24 runs", limit=50_000)
    assert small.startswith("<figure>") and "data:image/png;base64," in small and 'alt="24 runs"' in small


@pytest.mark.full
def test_the_command_needs_no_jax_and_prints_plain_text_to_a_file(study, tmp_path):
    code = "import sys; from rljax import __main__ as m; m.main(sys.argv[1:]); print('jax' in sys.modules)"
    words = ["compare", str(study), "--by", "algorithm", "--metric", "pass@2,reward", "--out", str(tmp_path / "c.html")]
    program = f"import atexit, sys; atexit.register(lambda: print('jax' in sys.modules)); {code}"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("False\n") and done.stdout.isascii()
    assert "pass@2, %" in done.stdout and "3 seeds, paired" in done.stdout
    page = (tmp_path / "c.html").read_text()
    assert f"python -m rljax compare {study} --by=algorithm --metric=pass@2,reward" in page
