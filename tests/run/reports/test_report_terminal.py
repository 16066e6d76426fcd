"""Looking at one run: the terminal; what a run records."""

import io
import json
import logging
import re
import sys
import warnings

import absl.logging
import pytest
import rich.console

from rljax.data import storage
from rljax.host import workdirs
from rljax.run.records import events
from rljax.run.reports import completions, curves, report, runs, show_metrics, show_rollouts
from rljax.run.reports.pages import tables
from tests.run.reports.report_cases import begun, write

# --- the terminal ---------------------------------------------------------------------


def shown(source, **options):
    environment = options.pop("environment", {})
    out = io.StringIO()
    console = rich.console.Console(
        file=out, width=80, force_terminal=True, color_system="truecolor", _environ={"TERM": "xterm", **environment}
    )
    show_rollouts.show(source, console=console, **options)
    return out.getvalue()


def test_tokens_are_colored_by_the_chosen_number_unless_no_color(tmp_path):
    tokens = {"text": ["+", "-", "0\x1b"], "advantage": [1.0, -1.0, 0.0], "entropy": [0.0, 0.0, 2.0]}
    row = {"step": 1, "index": 5, "group": 0, "prompt": "p", "completion": "+-0", "reward": 1.0, "tokens": tokens}
    rows = [row, {**row, "index": 6, "group": 1, "prompt": "12 apples"}]
    text = shown(rows)
    assert re.search(r"\x1b\[30;48;2;90;160;220m\+", text) and re.search(r"\x1b\[30;48;2;230;140;60m-", text)
    assert re.search(r"\x1b\[30;48;2;230;140;60m0\\x1b", shown(rows, colour="entropy"))
    plain = shown(rows, environment={"NO_COLOR": "1"})
    assert "48;2" not in plain and "+-0" in plain
    assert "48;2" not in shown(rows, colour="kl")  # a quantity that was not logged
    broken = {**row, "tokens": {**tokens, "advantage": [1.0, float("nan"), float("inf")]}}
    assert re.search(r"\x1b\[30;48;2;90;160;220m\+", shown([broken]))
    assert "1 of 1 logged prompts" in shown(rows, prompt="5") and "apples" not in shown(rows, prompt="5")
    assert "apples" in shown(rows, prompt="apples") and "apples" not in shown(rows, count=1)
    with pytest.raises(ValueError, match="--prompt='pears': no logged prompt"):
        shown(rows, prompt="pears")


def test_the_newest_step_with_gradients_is_unfolded():
    def unfolded(advantages):
        row = {"prompt": "p", "completion": "c", "reward": 1.0}
        rows = [{**row, "step": step, "advantage": a} for step, a in enumerate(advantages, 1)]
        config = {"phases": ["warm", "main"], "phase": {"warm": {"steps": 1}, "main": {"steps": 3}}}
        text = completions.section(runs.Run("", config, rollouts=rows))
        return re.findall(r'<details open="open">\s*<summary>step (\d)', text), text.count("all advantages 0")

    assert unfolded([1.0, 0.5, -0.5, 1e-8]) == (["3"], 1)
    assert unfolded([1.0, 0.5, -0.5, 0.1]) == (["4"], 0)
    assert unfolded([1.0, 0.0, 0.0, 0.0]) == (["4"], 3)  # not a step of an earlier phase


def test_a_loss_that_is_rounding_noise_is_not_drawn():
    def titles(policy, value):
        records = [
            {"step": s, "phase": "main", "reward": 1.0, "loss/policy": policy * s, "loss/value": value} for s in (1, 2)
        ]
        return [
            [line.get_label() for line in f.axes[0].lines if line.get_label()[0] != "_"] for f in curves.losses(records)
        ]

    assert titles(3e-9, -2e-9) == [] and titles(3e-9, -0.2) == [["loss/value"]] == titles(float("nan"), -0.2)


def test_numbers_of_a_page_have_three_digits():
    values = (0.93392, 6.8182e-10, 1738.62, 999.6, 163.11, -2.0, 12345678, None)
    page = tables.Table(["", ""], [["", x] for x in values]).html()
    cells = re.findall(r'<td class="number">(.*?)</td>', page)
    assert cells == ["0.934", "6.82e-10", "1,739", "1,000", "163", "-2", "12345678", ""]


def test_a_table_is_written_as_plain_text_and_as_markdown():
    table = tables.Table(["arm", "runs", "pass@1"], [["grpo()", 3, 0.123456], ["rloo()"], ["", 10, None]])
    assert table.lines() == [
        "arm     runs  pass@1",
        "grpo()     3  0.1235",
        "rloo()",
        "          10",
    ]
    assert table.markdown() == [
        "| arm | runs | pass@1 |",
        "| --- | ---: | ---: |",
        "| grpo() | 3 | 0.123456 |",
        "| rloo() | | |",
        "| | 10 | |",
    ]


def test_metrics_are_shown_by_phase_and_as_csv(tmp_path):
    write(tmp_path / "run", steps=4)
    rows = runs.records(tmp_path / "run", "metrics")
    assert show_metrics.chosen(rows, ["loss*", "kl"]) == ["kl", "loss", "loss/policy"]
    with pytest.raises(ValueError, match=r"no metric 'rewrd'\. Did you mean 'reward'"):
        show_metrics.chosen(rows, ["rewrd"])
    out = io.StringIO()
    show_metrics.table(rows, ["loss", "reward"], rich.console.Console(file=out, width=100))
    narrow = io.StringIO()
    show_metrics.table(rows, ["loss", "reward"], rich.console.Console(file=narrow, width=60))
    assert "smallest" in out.getvalue() and "smallest" not in narrow.getvalue() and "\u2588" not in narrow.getvalue()
    lines = [line.split() for line in narrow.getvalue().splitlines() if line.startswith(("loss", "reward"))]
    assert [len(line) for line in lines] == [4, 4, 4]  # nothing is folded
    hostile = [{"step": 1, "phase": "main", "own/[red]\x1b[31m": 1.0}]
    show_metrics.table(hostile, ["own/[red]\x1b[31m"], rich.console.Console(file=out, width=100))
    assert r"own/[red]\x1b[31m" in out.getvalue()
    assert "warm: steps 1 to 2" in out.getvalue() and f"{rows[3]['reward']:.4g}" in out.getvalue()
    assert show_metrics.spark([0.0, 1.0, 2.0, float("nan"), 7.0]) == "▁▂▃█"
    out = io.StringIO()
    show_metrics.values(rows, ["reward"], out)
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["step,phase,reward", "1,warm,"] and float(lines[4].split(",")[2]) == rows[3]["reward"]


# --- what a run records ---------------------------------------------------------------


def test_warnings_are_recorded_once_with_the_start_and_the_end(tmp_path):
    place = workdirs.WorkDirectory(tmp_path)
    with warnings.catch_warnings(record=True), pytest.raises(RuntimeError), events.Events() as happened:
        warnings.warn("early", stacklevel=1)
        happened.open(place, 4, report=False)
        for _ in range(3):
            warnings.warn("late", stacklevel=1)
        happened.memory("checkpoint", 6)
        raise RuntimeError("gone")
    written = [json.loads(line) for line in (tmp_path / "events.jsonl").open()]
    assert [(r["step"], r["event"]) for r in written] == [
        (4, "start"), (0, "warning"), (4, "warning"), (6, "checkpoint"), (6, "end"),
    ]  # fmt: skip
    assert written[0]["packages"]["jax"] and "cpu" in written[0]["devices"][0]
    assert written[1]["text"] == "UserWarning: early" and written[4]["reason"] == "RuntimeError: gone"
    assert written[3]["host_bytes"] > 2**20


def test_hooks_are_removed_so_that_two_runs_of_a_process_are_apart(tmp_path):
    before = warnings.showwarning, [*logging.getLogger("absl").handlers]
    for name in ("one", "two"):
        place = workdirs.WorkDirectory(tmp_path / name)
        (tmp_path / name).mkdir()
        with warnings.catch_warnings(record=True), events.Events() as happened:
            happened.open(place, 0, report=False)
            absl.logging.warning("phase %s has no effect", name)
            warnings.warn(name, stacklevel=1)
        texts = [r["text"] for r in map(json.loads, (tmp_path / name / "events.jsonl").open()) if "text" in r]
        assert texts == [f"phase {name} has no effect", f"UserWarning: {name}"]
    assert (warnings.showwarning, logging.getLogger("absl").handlers) == before


def test_a_run_that_ends_as_its_store_is_down_does_not_wait_for_it_again(tmp_path):
    place = workdirs.WorkDirectory(begun(tmp_path / "run"))
    with pytest.raises(storage.Unavailable), events.Events() as happened:
        happened.open(place, 0, report=True)
        raise storage.Unavailable("503")
    assert not (tmp_path / "run" / report.NAME).exists()
    with events.Events() as happened:
        happened.open(place, 0, report=True)
    assert (tmp_path / "run" / report.NAME).exists()


def test_the_command_that_resumes_a_run_does_not_start_it_anew(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rljax/__main__.py", "--config=x", "--fresh", "--set", "task=a(1)", "--fresh=1"])
    assert events.command() == ["python", "-m", "rljax", "--config=x", "--set", "task=a(1)"]
