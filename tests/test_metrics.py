"""Logs that are truncated and torn, the progress line in every kind of output, and the display of rollouts."""

import contextlib
import io
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
from tensorboardX.proto import event_pb2

from rljax import __main__
from rljax.data import storage
from rljax.run import host_rollouts, metrics, plots, progress, sinks
from rljax.run.reports import show_rollouts


def read_events(directory):
    """Return (file order, event) of TensorBoard files: length u64, crc u32, event, crc u32 each."""
    events = []
    for file in sorted(pathlib.Path(directory).iterdir(), key=lambda f: int(f.name.rsplit(".", 1)[1])):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            events.append(event_pb2.Event.FromString(data[at + 12 : at + 12 + size]))
            at += size + 16
    return events


def test_a_log_returns_the_appended_records(tmp_path):
    log = metrics.StepLog(tmp_path / "deep" / "a.jsonl")
    assert log.read() == []
    log.cut(3)  # nothing to cut: no file is created
    assert not (tmp_path / "deep").exists()
    records = [{"step": 1, "text": "a\u2028b é\n"}, {"step": 2, "x": [0.1, -0.0, 1e-45]}, {"step": 2, "n": None}]
    for record in records:
        log.append(record)
        assert log.read()[-1] == record  # flushed line by line
    assert (tmp_path / "deep" / "a.jsonl").read_bytes().count(b"\n") == 3
    log.append({"step": np.int64(3), "x": np.float32(0.5), "y": jnp.arange(2), "bad": "\udc80"})
    assert log.read()[-1] == {"step": 3, "x": 0.5, "y": [0, 1], "bad": "\udc80"}


def test_cut_removes_later_steps_in_any_order_and_appending_continues(tmp_path):
    path = tmp_path / "a.jsonl"
    log = metrics.StepLog(path)
    for step in (1, 3, 2, 5):
        log.append({"step": step})
    log.cut(2)
    assert [r["step"] for r in log.read()] == [1, 2]
    log.append({"step": 4})
    assert [r["step"] for r in metrics.StepLog(path).read()] == [1, 2, 4]
    inode = path.stat().st_ino
    log.cut(4)
    assert path.stat().st_ino == inode  # nothing to remove: the file is unchanged
    assert os.listdir(tmp_path) == ["a.jsonl"]


@pytest.mark.parametrize("torn", [b'{"step": 3, "x', b'{"step": 3}', b"\x00\x00"])
def test_a_torn_last_line_is_dropped_by_read_append_and_cut(tmp_path, torn):
    complete = b'{"step": 1}\n{"step": 2}\n'
    path = tmp_path / "a.jsonl"
    path.write_bytes(complete + torn)
    log = metrics.StepLog(path)
    assert [r["step"] for r in log.read()] == [1, 2]
    assert path.read_bytes() == complete + torn
    log.append({"step": 3})
    assert path.read_bytes() == complete + b'{"step": 3}\n'
    path.write_bytes(complete + torn)
    metrics.StepLog(path).cut(9)
    assert path.read_bytes() == complete


def test_a_broken_line_elsewhere_is_an_error_and_bad_records_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    for line in ("{", "[1]", '{"step": 1.5}', "{}", "7"):
        path.write_text('{"step": 0}\n' + line + '\n{"step": 2}\n')
        for use in (lambda: metrics.StepLog(path).read(), lambda: metrics.StepLog(path).cut(0)):
            with pytest.raises(ValueError, match=r"a\.jsonl: line 2"):
                use()
        assert path.read_text().endswith('{"step": 2}\n')
    log = metrics.StepLog(tmp_path / "b.jsonl")
    for record in ({"x": 1}, {"step": 1.0}, {"step": 1, "x": {1, 2}}):
        with pytest.raises(ValueError, match=r"b\.jsonl: a record needs an integer 'step'"):
            log.append(record)
    assert not (tmp_path / "b.jsonl").exists()


def test_metrics_are_sorted_exact_and_free_of_clocks(tmp_path):
    for name in ("a", "b"):
        logger = metrics.Logger(tmp_path / name)
        logger.step(1, "sft", {"reward": jnp.float32(0.1), "accuracy": 0.25}, {"seconds": 1.0 if name == "a" else 2.0})
        logger.step(2, "grpo", {"reward": float("nan"), "count": np.int32(3)})
        logger.close()
    # float32 0.1 is 0.100000001490116119..., written with the digits that restore that double
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert lines == [
        '{"step": 1, "phase": "sft", "accuracy": 0.25, "reward": 0.10000000149011612}',
        '{"step": 2, "phase": "grpo", "count": 3, "reward": NaN}',
    ]
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()
    assert json.loads((tmp_path / "b" / "timings.jsonl").read_text()) == {"step": 1, "phase": "sft", "seconds": 2.0}


BOARD = sinks.build("tensorboard()", "test")


def run_steps(logger, first, last):
    for step in range(first, last + 1):
        logger.rollouts([{"step": step, "prompt": "1+1=", "completion": str(step), "reward": 1.0}])
        logger.step(step, "grpo", {"reward": step / 3}, {"seconds": 0.5})
        if step % 2 == 0:
            logger.evaluation({"step": step, "name": "training", "pass_at_k": {"1": [0.5, 0.4, 0.6]}})


def test_a_resumed_run_leaves_the_files_and_history_of_an_uninterrupted_one(tmp_path):
    whole = metrics.Logger(tmp_path / "whole", resume_step=0)
    run_steps(whole, 1, 6)
    whole.close()
    killed = metrics.Logger(tmp_path / "resumed", resume_step=0)
    run_steps(killed, 1, 5)
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ph')
    resumed = metrics.Logger(tmp_path / "resumed", resume_step=3)
    assert [r["step"] for r in resumed.history] == [1, 2, 3]
    run_steps(resumed, 4, 6)
    resumed.close()
    for name in ("metrics", "evaluations", "rollouts", "timings"):
        file = f"{name}.jsonl"
        assert (tmp_path / "resumed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert resumed.history == whole.history == [{"step": s, "phase": "grpo", "reward": s / 3} for s in range(1, 7)]
    assert resumed.evaluations == whole.evaluations
    assert [e["step"] for e in whole.evaluations] == [2, 4, 6]


def test_a_resumed_run_notices_what_its_logs_lack(tmp_path):
    logger = metrics.Logger(tmp_path)
    run_steps(logger, 1, 4)
    written = logger.sync()  # with the checkpoint of step 4
    run_steps(logger, 5, 6)
    logger.close()
    for name in ("metrics", "timings", "evaluations", "rollouts"):
        path = tmp_path / f"{name}.jsonl"
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        for damaged in (None, b"", b"".join(lines[:1]), b"".join(lines[1:]), whole.replace(b"2", b"3", 1)):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
            with pytest.raises(
                ValueError, match=rf"{name}\.jsonl: records from before the checkpoint of step 4 are .*gap"
            ):
                metrics.Logger(tmp_path, resume_step=4, written=written)
            assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
        path.write_bytes(whole)
    (tmp_path / "metrics.jsonl").unlink()
    allowed = metrics.Logger(tmp_path, resume_step=4)
    assert allowed.history == [] and [e["step"] for e in allowed.evaluations] == [2, 4]
    allowed.close()


def test_a_log_that_is_deleted_or_replaced_during_the_run_is_noticed(tmp_path):
    for deed in (lambda f: f.unlink(), lambda f: f.replace(f.with_suffix(".moved")), lambda f: shutil.rmtree(f.parent)):
        folder = tmp_path / "run"
        logger = metrics.Logger(folder, resume_step=0)
        run_steps(logger, 1, 2)
        logger.sync()
        deed(folder / "metrics.jsonl")
        run_steps(logger, 3, 4)
        with pytest.raises(OSError, match=r"metrics\.jsonl was deleted or replaced during the run"):
            logger.sync()
        logger.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def full_disk(size):
    """Let no file of this process grow beyond ``size`` bytes; a write stops there and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_it_complete(tmp_path):
    path = tmp_path / "a.jsonl"
    log = metrics.StepLog(path)
    log.append({"step": 1})
    with full_disk(len(b'{"step": 1}\n') + 5):
        with pytest.raises(OSError, match=r"\[Errno \d+\].*a\.jsonl"):
            log.append({"step": 2})
        log.close()
    assert path.read_bytes() == b'{"step": 1}\n'
    log.append({"step": 3})
    assert [r["step"] for r in log.read()] == [1, 3]
    with full_disk(5), pytest.raises(OSError, match=r"\[Errno \d+\].*/b'"):
        storage.write(tmp_path / "b", b"content")
    assert os.listdir(tmp_path) == ["a.jsonl"]
    board = BOARD[0](sinks.Run(tmp_path, "run", 0, {}, {}))
    with full_disk(500):  # the events are written by this thread, so that it sees the error
        with pytest.raises(OSError, match=r"\[Errno \d+\].*tensorboard"):
            for step in range(1000):
                board.scalars("metrics", step, "main", {"reward": 1.0})
        board.close()


def test_a_new_run_removes_the_records_of_a_killed_one(tmp_path):
    run_steps(metrics.Logger(tmp_path), 1, 2)
    new = metrics.Logger(tmp_path)
    assert new.history == [] and new.evaluations == []
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_tensorboard_gets_scalars_and_purges_on_resume(tmp_path):
    logger = metrics.Logger(tmp_path, openers=BOARD)
    run_steps(logger, 1, 2)
    logger.close()
    logger = metrics.Logger(tmp_path, openers=BOARD, resume_step=1)
    run_steps(logger, 2, 2)
    logger.close()
    events = read_events(tmp_path / "tensorboard")
    scalars = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert scalars.count((1, "reward", np.float32(1 / 3))) == 1
    assert scalars.count((2, "reward", np.float32(2 / 3))) == 2
    assert scalars.count((2, "time/seconds", 0.5)) == 2
    assert scalars.count((2, "evaluation/pass_at_1", 0.5)) == 2
    # TensorBoard hides earlier events at or after the step of a START mark: 0 in a new run, 2 when resumed after 1.
    assert [e.step for e in events if e.session_log.status] == [0, 2]


def test_without_a_directory_all_stays_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = metrics.Logger(None)
    run_steps(logger, 1, 2)
    logger.close()
    assert [r["step"] for r in logger.history] == [1, 2]
    assert [r["step"] for r in logger.evaluations] == [2]
    assert os.listdir(tmp_path) == []


def test_bad_metrics_are_refused_by_name(tmp_path):
    logger = metrics.Logger(None)
    for values, pattern in (
        ({"reward": np.zeros(2)}, r"reward: got .*must be one number"),
        ({"reward": "high"}, r"reward: got 'high'"),
        ({"step": 1.0}, r"metrics: \['step'\] is reserved"),
    ):
        with pytest.raises(ValueError, match=pattern):
            logger.step(1, "sft", values)
    with pytest.raises(ValueError, match=r"evaluations\.jsonl: a record needs"):
        logger.evaluation({"name": "final"})
    assert logger.history == [] and logger.evaluations == []


def test_the_line_has_the_available_metrics_and_fits():
    values = {"reward": 0.5321, "accuracy": 0.25, "entropy": 1.2345, "length": 12.34, "other": 3.0}
    line = progress.progress_line(12, 345, "grpo", values, 12_345.0, 3_725.0)
    assert line == ("grpo  12/345  reward 0.532  accuracy 0.250  entropy 1.234  length 12.3  12.3k tok/s  1:02:05 left")
    assert progress.progress_line(1, 2, "sft", {}) == "sft 1/2"
    assert "reward nan" in progress.progress_line(1, 2, "sft", {"reward": float("nan")})
    wide = progress.progress_line(10**6, 10**6, "a_phase_of_long_name", {k: -1e9 for k in values}, 9.99e8, 1e6)
    assert len(wide) <= 100
    some = progress.progress_line(99_999, 99_999, "warm_start", values, 999_999.0, 86_399.0)
    assert len(some) <= 100 and "23:59:59 left" in some and "rew 0.532" in some


def test_without_a_terminal_plain_lines_are_printed_at_intervals():
    out, now = io.StringIO(), [0.0]
    console = rich.console.Console(file=out, width=40)
    with progress.Progress(20, console=console, interval=5.0, clock=lambda: now[0]) as bar:
        for step in range(1, 17):  # two steps per second
            now[0] = step / 2
            bar.update(step, "sft" if step < 8 else "grpo", {"reward": step}, tokens_per_second=10.0)
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()
    # shown: the first step; the last of a phase; 5 s after the first, at 5.5 s; the last of all
    assert [line[:10].split("/")[0] for line in out.getvalue().splitlines()] == [
        "sft  1",
        "sft  7",
        "grpo 11",
        "grpo 16",
    ]
    # grpo at two steps per second from step 8 on: 4 left at step 16 is 2 s
    assert out.getvalue().endswith("grpo 16/20  reward 16.000  10 tok/s  0:00:02 left\n")


def test_the_time_left_ignores_the_first_batch_of_steps():
    out, now = io.StringIO(), [0.0]
    bar = progress.Progress(100, console=rich.console.Console(file=out), interval=0.0, clock=lambda: now[0])
    for step in range(1, 11):  # the first batch, all at once
        bar.update(step, "grpo", {})
    assert "left" not in out.getvalue()
    now[0] = 5.0
    bar.update(20, "grpo", {})
    assert out.getvalue().endswith("grpo  20/100  0:00:40 left\n")  # ten steps in 5 s, 80 to go


def test_in_a_terminal_the_line_is_updated_in_place():
    out, now = io.StringIO(), [0.0]
    console = rich.console.Console(file=out, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with progress.Progress(3, console=console, clock=lambda: now[0]) as bar:
        for step in (1, 2, 3):
            now[0] += 1.0
            bar.update(step, "grpo", {"reward": step})
    text = out.getvalue()
    assert "\x1b[" in text and "grpo 3/3  reward 3.000" in text
    assert text.rstrip().endswith("\x1b[?25h")  # the terminal's cursor is visible again


def test_quiet_shows_nothing():
    out = io.StringIO()
    with progress.Progress(3, quiet=True, console=rich.console.Console(file=out)) as bar:
        bar.update(1, "grpo", {"reward": 1.0})
    assert out.getvalue() == ""


ROLLOUTS = [
    {"step": 4, "prompt": "1+1=", "completion": "3", "reward": 0.0, "outcome": "wrong"},
    {
        "step": 8,
        "prompt": "[red]2+2=",
        "completion": "4\x1b[31m\nok",
        "reward": 1.0,
        "parts": {"format": 0.5},
        "advantage": 0.25,
        "outcome": "correct",
        "finish": "stop",
    },
    {"step": 8, "prompt": "5+5=", "completion": "", "reward": 0.0},
]


def shown(source, **options):
    out = io.StringIO()
    show_rollouts.show(source, console=rich.console.Console(file=out, width=80), **options)
    return out.getvalue()


def test_rollouts_are_shown_with_their_scores_and_escaped(tmp_path):
    text = shown(ROLLOUTS)
    assert "step 8: 2 of 2" in text and "1+1=" not in text
    for part in (
        "correct",
        "reward 1",
        "format 0.5",
        "advantage +0.250",
        "finish stop",
        "[red]2+2=",
        "4\\x1b[31m",
        "ok",
    ):
        assert part in text
    assert "\x1b" not in text
    logger = metrics.Logger(tmp_path)
    logger.rollouts(ROLLOUTS)
    logger.close()
    assert shown(tmp_path) == shown(tmp_path / "rollouts.jsonl") == text
    assert "1+1=" in shown(tmp_path, step=4)
    assert "5+5=" not in shown(tmp_path, count=1)


def test_the_command_shows_rollouts_and_names_the_logged_steps(tmp_path):
    logger = metrics.Logger(tmp_path)
    logger.rollouts(ROLLOUTS)
    logger.close()
    shown = command(tmp_path, "--step", "4", "--count", "1")
    assert "step 4: 1 of 1" in shown.stdout
    missing = command(tmp_path, "--step", "5")
    assert missing.returncode == 2 and "step: got 5, must be one of the logged steps [4, 8]" in missing.stderr
    assert re.search(r"no rollouts in .*absent", command(tmp_path / "absent").stderr)


def command(*arguments):
    words = [sys.executable, "-m", "rljax", "rollouts", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


HISTORY = [
    {"step": s, "phase": "sft" if s <= 10 else "grpo", "reward": s / 30, "accuracy": 0.5}
    | {"entropy": 1 / s, "length": 4.0 + s % 2, "truncated": 0.0}
    for s in range(1, 31)
]
EVALUATIONS = [
    {"name": "base", "step": 10, "pass_at_k": {"1": [0.3, 0.2, 0.4], "2": [0.5, 0.4, 0.6]}, "greedy": [0.4, 0.3, 0.5]},
    {"name": "grpo", "step": 30, "pass_at_k": {"1": [0.7, 0.6, 0.8], "2": [0.8, 0.7, 0.9]}},
]
PNG = b"\x89PNG\r\n\x1a\n"


def test_the_learning_curve_has_a_panel_for_each_metric_and_names_the_phases(tmp_path):
    history = [{**r, "gradient_norm": 2.0 * r["step"]} for r in HISTORY]
    history.append({**history[-1], "step": 31, "reward": float("nan")})
    fig = plots.learning_curve(history, tmp_path / "curve.png", [("warm", 10), ("rl", 31), ("never_reached", 99)])
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    assert titles == ["Reward and accuracy", "Entropy", "Completion length", "Gradient norm"]
    assert all(ax.get_xlabel() == "step" and ax.get_ylabel() for ax in fig.axes)
    assert {text.get_text() for text in fig.axes[0].texts} == {"warm", "rl"}
    # Two phases of two metrics, raw and smoothed, and the line between the phases; non-finite values are left out.
    lines = fig.axes[0].get_lines()
    assert len(lines) == 9
    assert max(np.max(line.get_xdata()) for line in lines[:8]) == 31 and len(lines[2].get_xdata()) == 20
    assert os.listdir(tmp_path) == ["curve.png"]
    data = (tmp_path / "curve.png").read_bytes()
    assert data.startswith(PNG) and data[16:24] == (1000).to_bytes(4, "big") + (600).to_bytes(4, "big")
    assert fig._repr_png_().startswith(PNG)  # the display in a notebook


def test_names_in_pictures_are_no_formulas(tmp_path):
    name = "reward/$x^$_\\frac{$"
    rows = [{"step": s, "phase": "main", name: 1.0 * s, "reward": 0.5} for s in (1, 2)]
    plots.learning_curve(rows, tmp_path / "curve.png")
    evaluation = {"name": "$x^$", "step": 2, "pass_at_k": {"1": [0.5, 0.4, 0.6]}}
    plots.passk([evaluation], tmp_path / "passk.png")


def test_the_learning_curve_infers_the_phases_and_leaves_out_missing_metrics():
    fig = plots.learning_curve([{k: r[k] for k in ("step", "phase", "reward")} for r in HISTORY])
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["Reward and accuracy"]
    assert [text.get_text() for text in fig.axes[0].texts] == ["sft", "grpo"]
    with pytest.raises(ValueError, match="history: got 0 records"):
        plots.learning_curve([])


def test_the_panels_fit_what_was_trained():
    def panels(*phases):  # each a list of metrics, all of which vary
        numbered = [{name: 1.0 + step % 3 for name in phase} for phase in phases for step in range(6)]
        return {p.title: p.names for p in plots.panels([{**r, "step": i + 1} for i, r in enumerate(numbered)])}

    assert panels(["loss", "length", "gradient_norm"]) == {
        "Loss": ("loss",),
        "Completion length": ("length",),
        "Gradient norm": ("gradient_norm",),
    }
    both = panels(["loss"], ["reward", "accuracy", "loss", "value/loss", "margin", "reward/format", "reward/length"])
    assert list(both) == ["Reward and accuracy", "Loss", "Preferences", "Critics", "Parts of the reward"]
    assert both["Parts of the reward"] == ("reward/format", "reward/length") and both["Critics"] == ("value/loss",)
    assert "Loss" not in panels(["reward", "loss"])  # a policy gradient's loss is no measure of progress
    # the loss of the first phase alone, and constants only where nothing varies
    history = [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 0.1, "reward": 0.5},
        {"step": 3, "loss": 0.1, "reward": 0.5},
    ]
    assert plots.points(history, "loss").tolist() == [[1, 2]]
    assert [p.title for p in plots.panels([*history, {"step": 4, "entropy": 1.0}, {"step": 5, "entropy": 2.0}])] == [
        "Reward and accuracy",
        "Entropy",
    ]


def test_smoothing_is_a_mean_over_a_twentieth_of_the_values():
    values = np.random.default_rng(0).random(80)  # half a window: 80 // 40 = 2
    expected = [values[max(0, i - 2) : i + 3].mean() for i in range(80)]
    np.testing.assert_allclose(plots.smooth(values), expected, rtol=1e-12)


def test_passk_draws_each_evaluation_with_its_band_and_the_greedy_mark(tmp_path):
    fig = plots.passk(EVALUATIONS, tmp_path / "passk.png")
    ax = fig.axes[0]
    assert ax.get_legend_handles_labels()[1] == ["base (step 10)", "grpo (step 30)"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["greedy", "1", "2"]
    base = ax.get_lines()[0]
    np.testing.assert_array_equal(base.get_xydata(), [[1, 0.3], [2, 0.5]])
    band = ax.collections[0].get_paths()[0].vertices
    assert {(x, round(y, 3)) for x, y in band} == {(1, 0.2), (1, 0.4), (2, 0.4), (2, 0.6)}
    assert len(ax.containers) == 1  # one greedy mark, with its interval
    assert (tmp_path / "passk.png").read_bytes().startswith(PNG)
    with pytest.raises(ValueError, match="evaluations: got none"):
        plots.passk([])


def test_a_warning_of_rljax_names_no_line_of_its_code():
    place = ("/a/file.py", 7, "warnings.warn(text)")
    assert __main__.warning_text("set x", host_rollouts.VerifierWarning, *place) == "warning: set x\n"
    assert "/a/file.py:7" in __main__.warning_text("set x", UserWarning, *place)
