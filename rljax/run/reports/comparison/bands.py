"""Figures of a comparison: arms with their runs, differences, pass@k, and curves with bands."""

import numpy as np
from matplotlib import figure, ticker

from rljax.run.reports.comparison import arms, quantities, results
from rljax.run.reports.pages import plots

_MOST_POINTS = 250  # of a curve
_LONGEST = 30  # characters of a name


def label(name: str) -> str:
    """Return the name of an arm for a figure: short, and without formulas."""
    cut = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
    return plots.plain(cut)


def estimates(result: results.Result, legend: bool = True) -> list[figure.Figure]:
    """Return figures of the first quantity: each arm, and its difference from the baseline; and of pass@k."""
    name = result.main[0]
    rows = {arm.name: result.estimate(arm.name, name) for arm in result.arms}
    figures = [_dots(result, rows, f"{name} of each arm", runs=True)]
    if len(result.arms) > 1:
        gaps = {arm.name: result.difference(arm.name, name) for arm in result.arms[1:]}
        figures.append(_dots(result, gaps, f"{name} minus that of {label(result.arms[0].name)}", runs=False))
    return [*figures, *_passk(result, legend)]


def _dots(result: results.Result, rows: dict[str, results.Row | None], title: str, runs: bool) -> figure.Figure:
    """Return a figure with a line for each arm: the mean with its interval, and its runs."""
    name = result.main[0]
    scale = 100 if quantities.in_unit(name) else 1
    fig = plots.small()
    fig.set_figheight(max(1.0 + 0.34 * len(rows), 2.0))
    ax = fig.subplots()
    for i, (arm, row) in enumerate(rows.items()):
        if runs:
            x = [scale * run[name] for run in result.runs if run["arm"] == arm and name in run]
            ax.scatter(x, np.full(len(x), i), s=14, color=plots.GREY, alpha=0.6, linewidths=0, zorder=2)
        if row is not None:
            center, low, high = (scale * row[key] for key in ("mean", "low", "high"))
            error = np.nan_to_num([[max(center - low, 0)], [max(high - center, 0)]])
            color = plots.style([other.name for other in result.arms].index(arm))["color"]
            ax.errorbar(center, i, xerr=error, fmt="o", markersize=6, capsize=4, color=color)
    ax.set_yticks(range(len(rows)), [label(arm) for arm in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    if not runs:
        ax.axvline(0, color=plots.GREY, linewidth=0.9)
    unit = "%, " if scale == 100 else ""
    plots.decorate(ax, title, f"{unit}mean with 95 % interval" + ("; grey: runs" if runs else ""), "")
    return fig


def _passk(result: results.Result, legend: bool) -> list[figure.Figure]:
    names = result.tries
    if len(names) < 2:
        return []
    fig = plots.small()
    ax = fig.subplots()
    for i, arm in enumerate(result.arms):
        rows = [row for row in (result.estimate(arm.name, name) for name in names) if row]
        k = [int(row["quantity"].removeprefix("pass@")) for row in rows]
        if rows:
            low, high = ([100 * row[end] for row in rows] for end in ("low", "high"))
            ax.fill_between(k, low, high, color=plots.style(i)["color"], alpha=0.15, linewidth=0)
            mean = [100 * row["mean"] for row in rows]
            ax.plot(k, mean, marker="o", markersize=3.5, label=label(arm.name), **plots.style(i))
    ax.set_xscale("log", base=2)
    ticks = [int(name.removeprefix("pass@")) for name in names]
    ax.set_xticks(ticks, [str(k) for k in ticks])
    ax.minorticks_off()
    plots.decorate(ax, "pass@k, %", "k, samples per prompt; band: 95 % interval", "")
    return [_with_legend(fig, legend)]


def curves(result: results.Result, legend: bool = True) -> list[figure.Figure]:
    """Return a figure for each metric: the mean over the runs of each arm, and the range of its runs as a band."""
    every = result.loaded
    panels = [panel for run in every[:: max(1, len(every) // 8)] for panel in plots.panels(run.history)]
    units = {name: panel.unit for panel in panels for name in panel.names}
    asked = [name for name in result.main if any(name in record for run in every for record in run.metrics[-1:])]
    figures = []
    for name in list(dict.fromkeys([*asked, *units]))[:12]:
        fig = plots.small()
        ax = fig.subplots()
        for i, arm in enumerate(result.arms):
            _band(ax, arm, name, i)
        plots.decorate(ax, name.replace("_", " "), "step", units.get(name, ""))
        longest = max(every, key=lambda run: run.steps)
        plots.mark_phases(ax, longest.phases, *ax.dataLim.intervalx)
        ax.xaxis.set_major_locator(ticker.MaxNLocator(7, integer=True))
        figures.append(_with_legend(fig, legend))
    return figures


def _band(ax, arm: arms.Arm, name: str, number: int) -> None:
    parts = [plots.by_phase(plots.points(run.history, name), run.phases) for run in arm.runs.values()]
    text, style = label(arm.name), plots.style(number)
    for phase in sorted(set.intersection(*(set(part) for part in parts))):
        steps = sorted(set.intersection(*(set(part[phase][0]) for part in parts)))
        if not steps:  # the runs have this phase at other steps
            continue
        rows = [plots.smooth(part[phase][1][np.isin(part[phase][0], steps)]) for part in parts]
        kept = np.unique(np.linspace(0, len(steps) - 1, _MOST_POINTS).round().astype(int))
        x, y = np.array(steps)[kept], np.array(rows)[:, kept]
        if len(parts) > 1:
            ax.fill_between(x, y.min(axis=0), y.max(axis=0), color=style["color"], alpha=0.18, linewidth=0)
        ax.plot(x, y.mean(axis=0), linewidth=1.5, label=text, **style)
        text = "_"


def _with_legend(fig: figure.Figure, legend: bool) -> figure.Figure:
    if legend and len(fig.axes[0].get_legend_handles_labels()[1]) > 1:
        fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return fig
