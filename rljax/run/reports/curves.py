"""The parts of a report that are figures: curves by phase, held-out accuracy."""

from collections.abc import Sequence

import numpy as np
from matplotlib import figure

from rljax.run.reports import evaluations as held_out
from rljax.run.reports import runs
from rljax.run.reports.pages import figures, html, plots, tables

_POINTS = 80  # of a small curve in the table
_ROUNDING = 1e-6  # a loss that stays below is 0 up to float32 rounding, as one of normalized advantages on policy


def section(run: runs.Run) -> html.Html:
    """Return the curves of a run: the panels of its learning curve, and a small curve of every metric by phase."""
    if not run.metrics:
        return html.tag("p", "No metrics yet.")
    drawn = [*plots.learning_curves(run.history, run.phases), *losses(run.history)]
    return html.join([figures.gallery(drawn), html.folded("Every metric, by phase", table(run).html())])


def losses(history: Sequence[runs.Record]) -> list[figure.Figure]:
    """Return a figure for each phase with the terms of its losses, which have other scales in other phases."""
    drawn = []
    for phase, records in runs.by_phase(history).items():
        terms = [
            name for name in runs.numbers(records) if name.rpartition("/")[2] == "loss" or name.startswith("loss/")
        ]
        terms = [name for name in terms if not (name == "loss" and len(terms) == 2)]  # one term is the loss itself
        terms = [name for name in terms if np.any(np.abs(_points(records, name)[1]) > _ROUNDING)]
        if not terms or (len(terms) == 1 and not any("reward" in record for record in records)):
            continue  # the loss of a phase without rewards is a panel of the learning curve
        drawn.append(plots.small())
        ax = drawn[-1].subplots()
        for color, name in zip(plots.COLORS, terms, strict=False):
            step, value = _points(records, name)
            plots.curve(ax, step, value, color, plots.plain(name))
        plots.decorate(ax, f"Losses of {phase}", "step", "minimized")
        ax.legend(frameon=False, fontsize=9)
    return drawn


def _points(records: Sequence[runs.Record], name: str) -> np.ndarray:
    return plots.points([{k: r[k] for k in ("step", name) if k in r} for r in records], name).T


def table(run: runs.Run) -> tables.Table:
    """Return a table of every metric by phase: its first value, the mean of the last tenth, and a small curve."""
    rows = [
        [f"{phase}: {name}", first, *rest, spark(values)]
        for phase, records in runs.by_phase(run.metrics).items()
        for name, values, (first, _, *rest) in runs.courses(records, runs.numbers(records))
    ]
    return tables.Table(["metric", "first", "last tenth", "smallest", "largest", ""], rows)


def spark(values: Sequence[float]) -> html.Html:
    """Return a small curve, without axes."""
    points = runs.heights(values, _POINTS, 18)
    path = " ".join(f"{120 * i / max(len(points) - 1, 1):.0f},{19 - y:.1f}" for i, y in enumerate(points))
    line = f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.2"/>'
    return html.Html(f'<svg viewBox="0 0 120 20" width="120" height="20" aria-hidden="true">{line}</svg>')


def evaluations(run: runs.Run) -> html.Html:
    """Return pass@k of the evaluations at the ends of phases, and tables of all evaluations."""
    if not run.evaluations:
        return html.tag("p", "No evaluations yet.")
    shown = [record for record in run.evaluations if record["name"] != "training"] or run.evaluations[-1:]
    fig = plots.passk(shown)
    fig.set_size_inches(6.6, 4.2)
    table = held_out.accuracy_by_step(run.evaluations).html()
    return html.join([figures.gallery([fig]), table, held_out.episodes(run)])
