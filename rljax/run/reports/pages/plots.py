"""The two figures of a run: the learning curve, and pass@k of its evaluations.

Figures are matplotlib ``Figure`` objects created without pyplot, so there is no global state; a notebook displays the
figure that a cell returns. They are 1000 pixels wide and have the colors of the Okabe-Ito palette, which color-blind
readers can distinguish.
"""

import dataclasses
import fnmatch
import functools
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import axes, figure, ticker, transforms

from rljax.data import storage

Record = Mapping[str, Any]
Path = str | os.PathLike[str]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#595959"


def style(number: int) -> dict[str, Any]:
    """Return color and dashes of a curve among several."""
    return {"color": COLORS[number % len(COLORS)], "linestyle": ("-", "--", ":")[number // len(COLORS) % 3]}


@dataclasses.dataclass(frozen=True)
class Panel:
    """A panel of a learning curve: title, unit, the patterns of its metrics, and whether it names a single one."""

    title: str
    unit: str
    names: tuple[str, ...]
    named: bool = False


# Of all phases that train on rewards, on demonstrations, on pairs, and on values. A panel without data is left out, and
# one whose metrics do not vary if another varies; of the others, the first ``_MAX_PANELS`` are drawn.
_PANELS = (
    Panel("Reward and accuracy", "mean over completions", ("reward", "accuracy")),
    Panel("Return", "of an episode, mean", ("return",)),
    Panel("Loss", "of phases without rewards", ("loss",)),  # a policy gradient's loss is no measure of progress
    Panel("Preferences", "mean over pairs", ("*margin", "preference_accuracy"), named=True),
    Panel("Critics", "mean over tokens", ("*/loss", "loss/value", "*explained_variance"), named=True),
    Panel("Entropy", "nats per token", ("entropy",)),
    Panel("KL to the reference", "nats per token", ("kl",)),
    Panel("Completion length", "tokens", ("length",)),
    Panel("Turns", "of an episode, mean", ("turns",)),
    Panel("Fractions", "of completions, groups or prompts", ("truncated", "flat_groups", "fired"), named=True),
    Panel("Accuracy by domain", "mean over completions", ("accuracy/domain/*",), named=True),
    Panel("Parts of the reward", "mean over completions", ("reward/*",), named=True),
    Panel("Gradient norm", "L2, before clipping", ("gradient_norm",)),
)
_MAX_PANELS = 6
_MAX_LINES = len(COLORS)


def panels(history: Sequence[Record]) -> list[Panel]:
    """Return the panels that fit what was trained, with the metrics that the history has.

    Raises:
      ValueError: the history has none of the metrics.
    """
    present = sorted({name for record in history for name in record})
    chosen = []
    # metrics of other modules than the policy that no panel shows, and rewards by domain beside accuracies by domain
    hidden = ["*/gradient_norm", "*/skipped", "*/loss/*"]
    hidden += ["reward/domain/*"] * bool(fnmatch.filter(present, "accuracy/domain/*"))
    taken = {name for pattern in hidden for name in fnmatch.filter(present, pattern)}
    for panel in _PANELS:
        names = [name for pattern in panel.names for name in fnmatch.filter(present, pattern)]
        names = [name for name in dict.fromkeys(names) if name not in taken and len(points(history, name))]
        if names:
            chosen.append(dataclasses.replace(panel, names=tuple(names[:_MAX_LINES])))
            taken |= set(names)
    if not chosen:
        names = ", ".join(name for panel in _PANELS for name in panel.names)
        raise ValueError(f"history: got {len(history)} records with {present}, must have one of {names}")
    vary = [panel for panel in chosen if any(np.ptp(points(history, name)[:, 1]) > 0 for name in panel.names)]
    return [panel for panel in chosen if panel in vary or panel is chosen[0]][:_MAX_PANELS]


def points(history: Sequence[Record], name: str) -> np.ndarray:
    """Return the steps and finite values of a metric, ``[points, 2]``; the loss only of steps without a reward."""
    records = [record for record in history if name in record and not (name == "loss" and "reward" in record)]
    rows = [(record["step"], float(record[name])) for record in records]
    return np.array([row for row in rows if math.isfinite(row[1])], float).reshape(-1, 2)


def learning_curve(
    history: Sequence[Record], path: Path | None = None, phases: Sequence[tuple[str, int]] = ()
) -> figure.Figure:
    """Draw the metrics that fit what was trained against the step: rewards, losses, entropy, KL, length, and so on.

    Values are drawn light, their moving average within a phase dark. Panels without data and non-finite values are left
    out.

    Args:
      history: records with "step", "phase" and metrics, as in ``metrics.Logger.history``.
      path: PNG file to write atomically; None writes none.
      phases: (name, last step) of each phase in order; by default the phases of the history.

    Returns:
      The figure.

    Raises:
      ValueError: the history is empty or has none of the metrics.
    """
    chosen, phases = panels(history), phases or phases_of(history)
    columns = 2 if len(chosen) > 1 else 1
    rows = math.ceil(len(chosen) / columns)
    fig = _figure(3.0 * max(rows, 2))
    grid = fig.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for ax, panel in zip(grid, chosen, strict=False):
        _draw(ax, history, panel, phases)
        mark_phases(ax, phases, history[0]["step"], history[-1]["step"])  # the panels share their axis
    for ax in grid[len(chosen) :]:
        ax.remove()
    return _finish(fig, path)


def learning_curves(history: Sequence[Record], phases: Sequence[tuple[str, int]] = ()) -> list[figure.Figure]:
    """Return the panels of ``learning_curve`` as a figure each, for pages."""
    figures, phases = [], phases or phases_of(history)
    for panel in panels(history):
        figures.append(small())
        ax = figures[-1].subplots()
        _draw(ax, history, panel, phases)
        mark_phases(ax, phases, *ax.dataLim.intervalx)
    return figures


def _draw(ax: axes.Axes, history: Sequence[Record], panel: Panel, phases: Sequence[tuple[str, int]]) -> None:
    shared = len({name.rpartition("/")[0] for name in panel.names}) == 1  # the title says it
    for color, name in zip(COLORS, panel.names, strict=False):
        label = plain((name.rpartition("/")[2] if shared else name).replace("_", " "))
        for x, y in by_phase(points(history, name), phases).values():
            curve(ax, x, y, color, label)
            label = "_"  # one legend entry for all phases
    rows = math.ceil(len(panel.names) / 2)  # of the legend
    decorate(ax, panel.title, "step", panel.unit, above=15 * rows if rows > 1 else 0)
    if len(panel.names) > 1 or panel.named:
        position = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97)}  # beside the title
        ax.legend(**position, ncols=2, frameon=False, fontsize=9, handlelength=1.2, columnspacing=1.2)
    ax.xaxis.set_major_locator(ticker.MaxNLocator(7, integer=True))
    ax.tick_params(labelbottom=True)


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
        color = style(i)["color"]
        label = plain(f"{record['name']} (step {record['step']})")
        rows = sorted((int(k), row) for k, row in record["pass_at_k"].items())
        x = [k for k, _ in rows]
        mean, low, high = np.array([row for _, row in rows], float).T
        ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        ax.plot(x, mean, marker="o", markersize=5, label=label, **style(i))
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
        ax.axvline(ks[0] / 2**0.5, color=GREY, linewidth=0.8)
    ax.set_ylim(-0.02, 1.02)
    ax.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    decorate(ax, "Held-out prompts solved in k tries, with 95 % intervals", "k, samples per prompt", "pass@k")
    ax.legend(loc="best")
    return _finish(fig, path)


def curve(ax: axes.Axes, x: np.ndarray, y: np.ndarray, color: str, label: str) -> None:
    """Draw values light, and their moving average dark."""
    ax.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
    ax.plot(x, smooth(y), color=color, linewidth=1.8, label=label)


def plain(text: str) -> str:
    """Return a text that matplotlib does not read as a formula."""
    return re.sub(r"(?<!\\)\$", r"\\$", text)


def by_phase(values: np.ndarray, phases: Sequence[tuple[str, int]]) -> dict[int, np.ndarray]:
    """Return the points of each phase, [2, points], by its number in ``phases``, (name, last step) in order."""
    phase = np.searchsorted([last for _, last in phases], values[:, 0])  # the first that ends at or after the step
    return {int(number): values[phase == number].T for number in np.unique(phase)}


def smooth(values: np.ndarray) -> np.ndarray:
    """Return the centered moving average over about a twentieth of the values; windows are cut at the ends."""
    half = len(values) // 40
    i = np.arange(len(values))
    first, last = np.maximum(i - half, 0), np.minimum(i + half + 1, len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    return (total[last] - total[first]) / (last - first)


def phases_of(history: Sequence[Record]) -> list[tuple[str, int]]:
    """Return the (name, last step) of each phase of a history, in order."""
    phases: list[tuple[str, int]] = []
    for record in history:
        if phases and phases[-1][0] == record.get("phase", ""):
            phases.pop()
        phases.append((record.get("phase", ""), record["step"]))
    return phases


def mark_phases(ax: axes.Axes, phases: Sequence[tuple[str, int]], first_step: float, end: float) -> None:
    """Draw a line between the phases from one step to another, and the name of each at its top left."""
    if len(phases) < 2:
        return
    ax.set_ylim(top=ax.get_ylim()[0] + 1.14 * (ax.get_ylim()[1] - ax.get_ylim()[0]))  # room for the names
    top = transforms.blended_transform_factory(ax.transData, ax.transAxes)
    first = 0
    for name, last in phases:
        start, first = first + 0.5, last
        if last < first_step or start > end:
            continue
        if start > first_step:
            ax.axvline(start, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        start = max(start, first_step)
        narrow = (min(last, end) - start) / max(end - first_step, 1) < 0.015 * len(name) + 0.02
        ax.annotate(
            name,
            (start, 1.0),
            xycoords=top,
            xytext=(4, -4),
            textcoords="offset points",
            ha="left",
            va="top",
            rotation=90 if narrow else 0,
            fontsize=9,
            color=GREY,
            zorder=1,  # behind the data
        )


def small() -> figure.Figure:
    """Return a figure for one panel of a page."""
    return _figure(3.4, 5.4)


def _figure(height: float = 6.0, width: float = 10.0) -> figure.Figure:
    fig = figure.Figure(figsize=(width, height), dpi=100, layout="constrained")
    # IPython's display method, for notebooks without an inline backend.
    setattr(fig, "_repr_png_", functools.partial(_png, fig))  # noqa: B010 (no declared attribute)
    return fig


def decorate(ax: axes.Axes, title: str, x: str, y: str, above: float = 0) -> None:
    """Set the title, ``above`` points higher than usual, and the labels of the axes, and draw a grid."""
    ax.set_title(plain(title), loc="left", fontsize=12, fontweight="bold", wrap=True, pad=6 + above)
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
