"""Figures of runs: learning curves and pass@k."""

import os

import numpy as np
import pytest

from rljax.run.reports.pages import plots

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


def test_names_in_figures_are_no_formulas(tmp_path):
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
