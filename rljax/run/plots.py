"""The two figures of a run: the learning curve, and pass@k of its evaluations.

Figures are matplotlib ``Figure`` objects created without pyplot, so there is no global state; a notebook displays the
figure that a cell returns. They have 1000 x 600 pixels and the colors of the Okabe-Ito palette, which color-blind
readers can distinguish.
"""

import functools
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import axes, figure, ticker, transforms

from rljax.data import storage

Record = Mapping[str, Any]
Path = str | os.PathLike[str]

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#595959"

# The title, the unit, and the metrics with their labels of each panel.
_PANELS = (
    ("Reward and accuracy", "mean over completions", (("reward", "reward"), ("accuracy", "accuracy"))),
    ("Entropy", "nats per token", (("entropy", "entropy"),)),
    ("Completion length", "tokens", (("length", "length"),)),
    ("KL to the reference", "nats per token", (("kl", "KL"),)),
    ("Gradient norm", "L2, before clipping", (("gradient_norm", "gradient norm"),)),
)
_MAX_PANELS = 4  # with KL, the gradient norm is left out


def learning_curve(
    history: Sequence[Record], path: Path | None = None, phases: Sequence[tuple[str, int]] = ()
) -> figure.Figure:
    """Draw reward, accuracy, entropy, length, and KL or gradient norm against the step.

    Values are drawn light, their moving average within a phase dark. Panels without data and non-finite values are left
    out.

    Args:
      history: records with "step", "phase" and metrics, as in ``metrics.Logger.history``.
      path: PNG file to write atomically; None writes none.
      phases: (name, last step) of each phase in order; by default those of the history.

    Returns:
      The figure.

    Raises:
      ValueError: the history is empty or has none of the metrics.
    """
    present = {name for record in history for name in record}
    panels = [panel for panel in _PANELS if any(name in present for name, _ in panel[2])][:_MAX_PANELS]
    if not panels:
        names = ", ".join(name for panel in _PANELS for name, _ in panel[2])
        raise ValueError(f"history: got {len(history)} records with {sorted(present)}, must have one of {names}")
    phases = list(phases) or _phases_of(history)
    fig = _figure()
    columns = 2 if len(panels) > 1 else 1
    grid = fig.subplots(math.ceil(len(panels) / columns), columns, sharex=True, squeeze=False).ravel()
    for ax, (title, unit, lines) in zip(grid, panels, strict=False):
        for color, (name, label) in zip(_COLORS, lines, strict=False):
            _line(ax, history, phases, name, label, color)
        _decorate(ax, title, "step", unit)
        _mark_phases(ax, phases, history[0]["step"] - 1, history[-1]["step"])
        if len(ax.get_legend_handles_labels()[1]) > 1:
            position = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97)}  # beside the title
            ax.legend(**position, ncols=2, frameon=False, fontsize=9, handlelength=1.2, columnspacing=1.2)
    for ax in grid[len(panels) :]:
        ax.remove()
    for ax in grid[: len(panels)]:
        ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        ax.tick_params(labelbottom=True)
    return _finish(fig, path)


def passk(evaluations: Sequence[Record], path: Path | None = None) -> figure.Figure:
    """Draw pass@k with 95 % bands against k, and greedy accuracy beside it, for each evaluation.

    Args:
      evaluations: records with "name", "step", "pass_at_k" {k: [mean, low, high]} and optionally "greedy" [accuracy,
        low, high], as returned by ``evaluate.evaluate``.
      path: PNG file to write atomically; None writes none.

    Returns:
      The figure.

    Raises:
      ValueError: there is no evaluation.
    """
    if not evaluations:
        raise ValueError("evaluations: got none, must be at least one")
    fig = _figure()
    ax = fig.subplots()
    ks = sorted({int(k) for record in evaluations for k in record["pass_at_k"]})
    for i, record in enumerate(evaluations):
        color, dashes = _COLORS[i % len(_COLORS)], ("-", "--", ":")[i // len(_COLORS) % 3]
        label = f"{record['name']} (step {record['step']})"
        rows = sorted((int(k), row) for k, row in record["pass_at_k"].items())
        x = [k for k, _ in rows]
        mean, low, high = np.array([row for _, row in rows], float).T
        ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        ax.plot(x, mean, marker="o", markersize=5, color=color, linestyle=dashes, label=label)
        if "greedy" in record:
            center, bottom, top = record["greedy"]
            distance = min(0.18, 0.8 / len(evaluations))
            position = ks[0] / 2 * 2 ** (distance * (i - (len(evaluations) - 1) / 2))  # side by side
            error = [[center - bottom], [top - center]]
            ax.errorbar(position, center, error, color=color, marker="D", markersize=7, capsize=4)
    ax.set_xscale("log", base=2)
    greedy = any("greedy" in record for record in evaluations)
    ticks = [*([ks[0] / 2] if greedy else []), *ks]
    ax.set_xticks(ticks, labels=[*(["greedy"] if greedy else []), *(str(k) for k in ks)])
    ax.minorticks_off()
    if greedy:
        ax.axvline(ks[0] / 2**0.5, color=_GREY, linewidth=0.8)
    ax.set_ylim(-0.02, 1.02)
    ax.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    _decorate(ax, "Held-out prompts solved in k tries, with 95 % intervals", "k, samples per prompt", "pass@k")
    ax.legend(loc="best")
    return _finish(fig, path)


def _line(
    ax: axes.Axes, history: Sequence[Record], phases: Sequence[tuple[str, int]], name: str, label: str, color: str
) -> None:
    points = [(record["step"], float(record[name])) for record in history if name in record]
    step, value = np.array([point for point in points if math.isfinite(point[1])], float).reshape(-1, 2).T
    phase = np.searchsorted([last for _, last in phases], step)  # the first phase whose last step is at or after it
    for number in np.unique(phase):
        x, y = step[phase == number], value[phase == number]
        ax.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
        ax.plot(x, _smooth(y), color=color, linewidth=1.8, label=label)
        label = "_"  # one legend entry for all phases


def _smooth(values: np.ndarray) -> np.ndarray:
    """Return the centered moving average over about a twentieth of the values; windows are cut at the ends."""
    half = len(values) // 40
    i = np.arange(len(values))
    first, last = np.maximum(i - half, 0), np.minimum(i + half + 1, len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    return (total[last] - total[first]) / (last - first)


def _phases_of(history: Sequence[Record]) -> list[tuple[str, int]]:
    phases: list[tuple[str, int]] = []
    for record in history:
        if phases and phases[-1][0] == record.get("phase", ""):
            phases.pop()
        phases.append((record.get("phase", ""), record["step"]))
    return phases


def _mark_phases(ax: axes.Axes, phases: Sequence[tuple[str, int]], first: int, end: int) -> None:
    """Draw a line between the phases of the steps above ``first``, and the name of each at its top left."""
    phases = [phase for phase in phases if phase[1] > first]
    if len(phases) < 2:
        return
    ax.set_ylim(top=ax.get_ylim()[0] + 1.14 * (ax.get_ylim()[1] - ax.get_ylim()[0]))  # room for the names
    top = transforms.blended_transform_factory(ax.transData, ax.transAxes)
    start = first
    for name, last in phases:
        if first >= end:
            break
        if first > start:
            ax.axvline(first + 0.5, color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        narrow = (min(last, end) - first) / (end - start) < 0.015 * len(name) + 0.02
        ax.annotate(
            name,
            (first + 0.5, 1.0),
            xycoords=top,
            xytext=(4, -4),
            textcoords="offset points",
            ha="left",
            va="top",
            rotation=90 if narrow else 0,
            fontsize=9,
            color=_GREY,
            zorder=1,  # behind the data
        )
        first = last


def _figure() -> figure.Figure:
    fig = figure.Figure(figsize=(10, 6), dpi=100, layout="constrained")
    # IPython's display method, for notebooks without an inline backend.
    setattr(fig, "_repr_png_", functools.partial(_png, fig))  # noqa: B010 (no declared attribute)
    return fig


def _decorate(ax: axes.Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=12, fontweight="bold")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(color="#DDDDDD", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _png(fig: figure.Figure) -> bytes:
    content = io.BytesIO()
    fig.savefig(content, format="png")
    return content.getvalue()


def _finish(fig: figure.Figure, path: Path | None) -> figure.Figure:
    if path is not None:
        storage.write(path, _png(fig))
    return fig
