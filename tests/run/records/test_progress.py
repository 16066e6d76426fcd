"""The progress line in every kind of output."""

import io

import rich.console

from rljax.run.records import progress


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
