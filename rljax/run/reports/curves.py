"""The parts of a report that are pictures: curves by phase, held-out accuracy."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import figure

from rljax.run import plots
from rljax.run.reports import episodes, html, pictures, runs

_POINTS = 80  # of a small curve in the table
_ROUNDING = 1e-6  # a loss that stays below is 0 up to float32 rounding, as one of normalized advantages on policy


def section(run: runs.Run) -> html.Html:
    """Return the curves of a run: the panels of its learning curve, and a small curve of every metric by phase."""
    if not run.metrics:
        return html.tag("p", "No metrics yet.")
    figures = [*plots.learning_curves(run.history, run.phases), *losses(run.history)]
    return html.join([pictures.gallery(figures), html.folded("Every metric, by phase", table(run))])


def losses(history: Sequence[runs.Record]) -> list[figure.Figure]:
    """Return a figure for each phase with the terms of its losses, which have other scales in other phases."""
    figures = []
    for phase, records in runs.by_phase(history).items():
        terms = [
            name for name in runs.numbers(records) if name.rpartition("/")[2] == "loss" or name.startswith("loss/")
        ]
        terms = [name for name in terms if not (name == "loss" and len(terms) == 2)]  # one term is the loss itself
        terms = [name for name in terms if np.any(np.abs(_points(records, name)[1]) > _ROUNDING)]
        if not terms or (len(terms) == 1 and not any("reward" in record for record in records)):
            continue  # the loss of a phase without rewards is a panel of the learning curve
        figures.append(plots.small())
        ax = figures[-1].subplots()
        for color, name in zip(plots.COLORS, terms, strict=False):
            step, value = _points(records, name)
            plots.curve(ax, step, value, color, plots.plain(name))
        plots.decorate(ax, f"Losses of {phase}", "step", "minimized")
        ax.legend(frameon=False, fontsize=9)
    return figures


def _points(records: Sequence[runs.Record], name: str) -> np.ndarray:
    return plots.points([{k: r[k] for k in ("step", name) if k in r} for r in records], name).T


def table(run: runs.Run) -> html.Html:
    """Return a table of every metric by phase: its first value, the mean of the last tenth, and a small curve."""
    rows = []
    for phase, records in runs.by_phase(run.metrics).items():
        for name in runs.numbers(records):
            values = [float(record[name]) for record in records if name in record]
            ends = values[0], runs.tail(records, name)
            rows.append([f"{phase}: {name}", *ends, min(values), max(values), spark(values)])
    return html.table(["metric", "first", "last tenth", "smallest", "largest", ""], rows)


def thinned(values: Sequence[float], points: int) -> list[float]:
    """Return at most ``points`` means of adjacent values; of values that are not finite, nothing."""
    finite = [value for value in values if math.isfinite(value)]
    parts = np.array_split(finite, min(points, len(finite))) if finite else []
    return [float(np.mean(part)) for part in parts]


def spark(values: Sequence[float]) -> html.Html:
    """Return a small curve, without axes."""
    points = thinned(values, _POINTS)
    low, high = min(points, default=0.0), max(points, default=0.0)
    scale = 18 / (high - low) if high > low else 0.0
    path = " ".join(
        f"{120 * i / max(len(points) - 1, 1):.0f},{19 - scale * (y - low):.1f}" for i, y in enumerate(points)
    )
    line = f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.2"/>'
    return html.Html(f'<svg viewBox="0 0 120 20" width="120" height="20" aria-hidden="true">{line}</svg>')


def evaluations(run: runs.Run) -> html.Html:
    """Return pass@k of the evaluations at the ends of phases, and a table of all evaluations."""
    if not run.evaluations:
        return html.tag("p", "No evaluations yet.")
    ks = sorted({int(k) for record in run.evaluations for k in record.get("pass_at_k", {})})
    ranks = sorted({module for record in run.evaluations for module in record.get("ranking", {})})
    rows = []
    for record in run.evaluations:
        cells = [_interval(record.get("pass_at_k", {}).get(str(k))) for k in ks]
        size = f"{record.get('prompts')} x {record.get('samples')}"
        cells += [_interval(record.get("ranking", {}).get(module, {}).get("accuracy")) for module in ranks]
        rows.append([record["name"], record["step"], size, _interval(record.get("greedy")), *cells])
    ranked = (f"pairs ranked right, {module}" for module in ranks)
    columns = ["evaluation", "step", "prompts x samples", "greedy", *(f"pass@{k}" for k in ks), *ranked]
    shown = [record for record in run.evaluations if record["name"] != "training"] or run.evaluations[-1:]
    text = "Means in %, with 95 % intervals over prompts."
    fig = plots.passk(shown)
    fig.set_size_inches(6.6, 4.2)
    return html.join([pictures.gallery([fig]), html.table(columns, rows, caption=text), episodes.section(run)])


def _interval(values: Sequence[float] | None) -> str | None:
    if values is None:
        return None
    mean, low, high = (100 * value for value in values)
    return f"{mean:.1f} ({low:.1f}, {high:.1f})"
