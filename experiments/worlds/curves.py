"""Draw metrics of finished runs against the step, and print them with intervals over seeds.

    python experiments/worlds/curves.py runs/retry --by seam.reward --metric accuracy,reward/retries --out retry.png

Each arm is the mean over its seeds; a band spans the smallest and the largest seed. A metric may be a difference of
two, such as "reward/second - reward/first".
"""

import argparse
import collections
import math
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib import figure

from rljax.run.evaluation import intervals
from rljax.run.reports import runs
from rljax.run.reports.comparison import arms
from rljax.run.reports.pages import plots


def read(folder: str, by: Sequence[str]) -> list[arms.Arm]:
    """Return the finished runs of a folder by arm; the arm's runs are keyed by seed."""
    notes: arms.Notes = collections.defaultdict(list)
    names = tuple(name for name in runs.LOGS if name != "rollouts")
    every = arms.usable([runs.read(path, names=names) for path in runs.find([folder])], notes)
    return arms.group(every, by, "seed", notes)


def history(run: runs.Run, metrics: Sequence[str]) -> list[runs.Record]:
    """Return the metrics of a run's steps, with those of ``metrics`` that are differences of two."""
    out = [dict(record) for record in run.metrics]
    for name in metrics:
        first, minus, second = name.partition(" - ")
        for record in out if minus else ():
            if first in record and second in record:
                record[name] = record[first] - record[second]
    return out


def draw(groups: Sequence[arms.Arm], labels: Sequence[str], metrics: Sequence[str], path: pathlib.Path) -> None:
    """Write a PNG with a panel for each metric, over the steps that have it."""
    fig = figure.Figure(figsize=(5 * len(metrics), 3.4), layout="constrained")
    panels = np.atleast_1d(fig.subplots(1, len(metrics)))
    for ax, metric in zip(panels, metrics, strict=True):
        for color, arm, label in zip(plots.COLORS, groups, labels, strict=False):
            points = [plots.points(history(run, metrics), metric) for run in arm.runs.values()]
            x, y = points[0][:, 0], np.stack([plots.smooth(p[:, 1]) for p in points])
            ax.plot(x, y.mean(axis=0), color=color, label=label, linewidth=1.8)
            ax.fill_between(x, y.min(axis=0), y.max(axis=0), color=color, alpha=0.2, linewidth=0)
        plots.decorate(ax, metric, "step", "mean over episodes")
    if len(groups) > 1:
        panels[0].legend(frameon=False, fontsize=9)
    fig.savefig(path, dpi=100)


def values(run: runs.Run, metrics: Sequence[str]) -> dict[str, float]:
    """Return pass@1 of each evaluation, and metrics of each phase: at its first step, over all, over the last tenth."""
    by_name = {f"{record['name']}: held-out pass@1": record["pass_at_k"]["1"][0] for record in run.evaluations}
    for phase, records in runs.by_phase(history(run, metrics)).items():
        for name in metrics:
            if name in records[0]:
                by_name[f"{phase}: {name}, first step"] = records[0][name]
                by_name[f"{phase}: {name}, mean"] = float(np.mean([record[name] for record in records]))
                by_name[f"{phase}: {name}, end"] = runs.tail(records, name)
    return by_name


def table(groups: Sequence[arms.Arm], labels: Sequence[str], metrics: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table: mean [95 % interval over seeds] of each arm, and its difference from the first."""
    measured = [{seed: values(run, metrics) for seed, run in arm.runs.items()} for arm in groups]
    every = [by_name for arm in measured for by_name in arm.values()]
    for name in (name for name in every[0] if all(name in by_name for by_name in every)):
        columns = [{seed: by_name[name] for seed, by_name in arm.items()} for arm in measured]
        cells = [f"{label} {_text(intervals.mean([*c.values()]))}" for label, c in zip(labels, columns, strict=True)]
        cells += [f"difference {_text(intervals.difference(columns[0], c))}" for c in columns[1:]]
        yield f"{name:<52}" + "   ".join(cells)


def _text(estimate: intervals.Estimate) -> str:
    interval = "" if math.isnan(estimate.low) else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.mean:.3f}{interval}"


def main() -> None:
    """Draw the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of the runs")
    parser.add_argument("--by", default="", help="fields of the config that make the arms, separated by commas")
    parser.add_argument("--labels", default="", help="names of the arms, separated by commas")
    parser.add_argument("--metric", default="accuracy", help="what is drawn, separated by commas")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the PNG file")
    given = parser.parse_args()
    groups = read(given.folder, given.by.split(",") if given.by else [])
    labels = given.labels.split(",") if given.labels else [arm.name for arm in groups]
    for arm, label in zip(groups, labels, strict=True):
        print(f"{label}: {arm.name}, seeds {', '.join(map(str, arm.runs))}")
    draw(groups, labels, given.metric.split(","), given.out)
    print("\n".join(table(groups, labels, given.metric.split(","))))


if __name__ == "__main__":
    main()
