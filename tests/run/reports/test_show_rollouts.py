"""The display of logged rollouts in a terminal."""

import io
import re
import subprocess
import sys

import rich.console

from rljax.run.records import metrics
from rljax.run.reports import show_rollouts

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
    numbered = [
        {"step": 1, "index": i, "prompt": p, "completion": "", "reward": 0.0} for i, p in ((3, "7+1="), (4, "3+3="))
    ]
    assert "7+1=" in shown(numbered, prompt="3") and "3+3=" not in shown(numbered, prompt="3")
    assert "3+3=" in shown(numbered, prompt="3+")
    seats = [{"step": 1, "prompt": "p", "completion": "c", "reward": 1.0, "seat": 1, "agent": 1}]
    assert "p" in shown(seats)


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
