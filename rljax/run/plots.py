"""The two figures of a run: how it learned, and what the policy can do in k tries.

Figures are matplotlib ``Figure`` objects made without pyplot, so nothing is global; a notebook shows
one that a cell returns. 1000 x 600 pixels, colours of the Okabe-Ito palette, which colour-blind
readers can tell apart.
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

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#595959"

# Of each panel: title, unit, and the metrics drawn with their labels.
_PANELS = (
    ("Reward and accuracy", "mean over completions", (("reward", "reward"), ("accuracy", "accuracy"))),
    ("Entropy", "nats per token", (("entropy", "entropy"),)),
    ("Completion length", "tokens", (("length", "length"),)),
    ("KL to the reference", "nats per token", (("kl", "KL"),)),
    ("Gradient norm", "L2, before clipping", (("gradient_norm", "gradient norm"),)),
)
_MOST = 4  # panels in the figure: the KL displaces the gradient norm


def learning_curve(
    history: Sequence[Record], path: Path | None = None, phases: Sequence[tuple[str, int]] = ()
) -> figure.Figure:
    """Draw reward, accuracy, entropy, length, and KL or gradient norm against the step.

    Every step is drawn light, their moving average within a phase dark. Panels without data and
    values that are not finite are left out.

    Args:
        history: records with "step", "phase" and metrics, as ``metrics.Logger.history``.
        path: PNG to write, whole or not at all; None writes none.
        phases: (name, last step) of each phase in order; by default what the history says.

    Raises:
        ValueError: an empty history, or one with none of the metrics.
    """
    present = {name for record in history for name in record}
    panels = [panel for panel in _PANELS if any(name in present for name, _ in panel[2])][:_MOST]
    if not panels:
        raise ValueError(f"history: got {len(history)} records with {sorted(present)}, needs some of reward, ...")
    phases = list(phases) or _phases_of(history)
    made = _figure()
    columns = 2 if len(panels) > 1 else 1
    grid = made.subplots(math.ceil(len(panels) / columns), columns, sharex=True, squeeze=False).ravel()
    for ax, (title, unit, lines) in zip(grid, panels, strict=False):
        for colour, (name, label) in zip(_COLOURS, lines, strict=False):
            _line(ax, history, phases, name, label, colour)
        _dress(ax, title, "step", unit)
        _mark_phases(ax, phases, history[-1]["step"])
        if len(ax.get_legend_handles_labels()[1]) > 1:
            place = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97)}  # beside the title
            ax.legend(**place, ncols=2, frameon=False, fontsize=9, handlelength=1.2, columnspacing=1.2)
    for ax in grid[len(panels) :]:
        ax.remove()
    for ax in grid[: len(panels)]:
        ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        ax.tick_params(labelbottom=True)
    return _finish(made, path)


def passk(evaluations: Sequence[Record], path: Path | None = None) -> figure.Figure:
    """Draw pass@k with 95 % bands against k, and greedy accuracy beside it, for each evaluation.

    Args:
        evaluations: records with "name", "step", "pass_at_k" {k: [mean, low, high]} and, where
            known, "greedy" [accuracy, low, high], as ``evaluate.evaluate`` returns them.
        path: PNG to write, whole or not at all; None writes none.

    Raises:
        ValueError: no evaluation.
    """
    if not evaluations:
        raise ValueError("evaluations: got none, needs at least one")
    made = _figure()
    ax = made.subplots()
    ks = sorted({int(k) for record in evaluations for k in record["pass_at_k"]})
    for i, record in enumerate(evaluations):
        colour, dashes = _COLOURS[i % len(_COLOURS)], ("-", "--", ":")[i // len(_COLOURS) % 3]
        label = f"{record['name']} (step {record['step']})"
        own = sorted((int(k), row) for k, row in record["pass_at_k"].items())
        x = [k for k, _ in own]
        mean, low, high = np.array([row for _, row in own], float).T
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(x, mean, marker="o", markersize=5, color=colour, linestyle=dashes, label=label)
        if "greedy" in record:
            centre, bottom, top = record["greedy"]
            apart = min(0.18, 0.8 / len(evaluations))
            place = ks[0] / 2 * 2 ** (apart * (i - (len(evaluations) - 1) / 2))  # side by side
            error = [[centre - bottom], [top - centre]]
            ax.errorbar(place, centre, error, color=colour, marker="D", markersize=7, capsize=4)
    ax.set_xscale("log", base=2)
    greedy = any("greedy" in record for record in evaluations)
    ticks = [*([ks[0] / 2] if greedy else []), *ks]
    ax.set_xticks(ticks, labels=[*(["greedy"] if greedy else []), *(str(k) for k in ks)])
    ax.minorticks_off()
    if greedy:
        ax.axvline(ks[0] / 2**0.5, color=_GREY, linewidth=0.8)
    ax.set_ylim(-0.02, 1.02)
    ax.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    _dress(ax, "Held-out prompts solved in k tries, with 95 % intervals", "k, samples of each prompt", "pass@k")
    ax.legend(loc="best")
    return _finish(made, path)


def _line(
    ax: axes.Axes, history: Sequence[Record], phases: Sequence[tuple[str, int]], name: str, label: str, colour: str
) -> None:
    points = [(record["step"], float(record[name])) for record in history if name in record]
    step, value = np.array([point for point in points if math.isfinite(point[1])], float).reshape(-1, 2).T
    phase = np.searchsorted([last for _, last in phases], step)  # the first phase whose last step is not before it
    for number in np.unique(phase):
        x, y = step[phase == number], value[phase == number]
        ax.plot(x, y, color=colour, alpha=0.25, linewidth=0.8)
        ax.plot(x, _smooth(y), color=colour, linewidth=1.8, label=label)
        label = "_"  # once in the legend


def _smooth(values: np.ndarray) -> np.ndarray:
    """Return the centred moving average over about a twentieth of the values, over what there is at the ends."""
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


def _mark_phases(ax: axes.Axes, phases: Sequence[tuple[str, int]], end: int) -> None:
    """Draw a line between phases, and each one's name at its top left."""
    if len(phases) < 2:
        return
    ax.set_ylim(top=ax.get_ylim()[0] + 1.14 * (ax.get_ylim()[1] - ax.get_ylim()[0]))  # room for the names
    high = transforms.blended_transform_factory(ax.transData, ax.transAxes)
    first = 0
    for name, last in phases:
        if first >= end:
            break
        if first:
            ax.axvline(first + 0.5, color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        narrow = (min(last, end) - first) / end < 0.015 * len(name) + 0.02
        ax.annotate(
            name,
            (first + 0.5, 1.0),
            xycoords=high,
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
    made = figure.Figure(figsize=(10, 6), dpi=100, layout="constrained")
    # What IPython asks of an object that a cell returns, where no inline backend is set up.
    setattr(made, "_repr_png_", functools.partial(_png, made))  # noqa: B010 (no declared attribute)
    return made


def _dress(ax: axes.Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=12, fontweight="bold")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(color="#DDDDDD", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _png(made: figure.Figure) -> bytes:
    content = io.BytesIO()
    made.savefig(content, format="png")
    return content.getvalue()


def _finish(made: figure.Figure, path: Path | None) -> figure.Figure:
    if path is not None:
        storage.write(path, _png(made))
    return made
