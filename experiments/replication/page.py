"""The tables, figures and verdicts of the study, from results.json alone."""

import json
import pathlib
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from matplotlib import figure

from experiments.arms import Record, fill, legend, text, unpack
from rljax import plots
from rljax.run.evaluation import intervals

SEEDS = (0, 1, 2, 3, 4)
SAMPLES = 4  # completions of a held-out prompt
BOUND = 0.03  # |TRL - rljax| of held-out pass@1 below which both count as equal
FIRST = 1e-4  # largest relative difference of the first rollout's gradient norm that counts as rounding
LAST, TIMES = 1e-2, 10  # largest relative difference of the changes after the last, also in those of TRL beside TRL
METRICS = {"loss": "loss", "kl": "KL", "clipped": "clipped", "gradient norm": "gradient norm"}
SIDES = {"rljax": "rljax", "trl": "TRL"}


def of(records: Sequence[Record], side: str) -> dict[Hashable, Any]:
    """Return pass@1 of each held-out prompt, ``[P]``, by seed."""
    return {r["seed"]: unpack(r["correct"]) / SAMPLES for r in records if r["part"] == "free" and r["side"] == side}


def contrast(records: Sequence[Record]) -> intervals.Estimate | None:
    """Return held-out pass@1 of TRL minus rljax, paired by seed and prompt; None without two seeds of both."""
    first, second = of(records, "rljax"), of(records, "trl")
    seeds = [seed for seed in SEEDS if seed in first and seed in second]
    if len(seeds) < 2:
        return None
    ours: dict[Hashable, Any] = {seed: first[seed] for seed in seeds}
    theirs: dict[Hashable, Any] = {seed: second[seed] for seed in seeds}
    return intervals.difference(ours, theirs, bounds=intervals.UNIT)


def verdict(x: intervals.Estimate | None) -> str:
    """Return what the interval over all seeds says of the claim that the difference is within the bound."""
    if x is None or np.isnan(x.low) or x.count < len(SEEDS):
        return "inconclusive"
    if -BOUND <= x.low and x.high <= BOUND:
        return "holds"
    return "refuted" if x.low > BOUND or x.high < -BOUND else "inconclusive"


def same(record: Record) -> str:
    """Return what the differences of parameters say of the claim that both compute the same updates."""
    last, control = record["apart"][-1]["relative"], record["control"][-1]["relative"]
    holds = apart(record, "gradient norm")[0] <= FIRST and last <= min(LAST, TIMES * control)
    return "holds" if holds else "refuted"


def apart(record: Record, metric: str) -> list[float]:
    """Return |TRL - rljax| of a metric after each rollout, for the gradient norm divided by rljax's."""
    scale = [row[metric] if metric == "gradient norm" else 1.0 for row in record["rljax"]]
    pairs = zip(record["rljax"], record["TRL"], scale, strict=True)
    return [abs(theirs[metric] - ours[metric]) / by for ours, theirs, by in pairs]


def identical_table(records: Sequence[Record]) -> str:
    """Return differences after some rollouts, of each setting."""
    head = ["setting", "rollouts", "KL", "clipped", *(f"Δ {name}" for name in METRICS.values())]
    head += ["Δ parameter", "Δ change", "TRL's Δ change", "verdict"]
    lines = [_row(head), _row(["---"] * len(head))]
    for record in records:
        for count in [n for n in (1, 2, 5, 10) if n <= len(record["rljax"])]:
            row = [f"{record['rljax'][count - 1][name]:.2g}" for name in ("kl", "clipped")]
            row += [f"{apart(record, name)[count - 1]:.1e}" for name in METRICS]
            row += [f"{record['apart'][count - 1][name]:.1e}" for name in ("largest", "relative")]
            last = count == len(record["rljax"])
            row += [f"{record['control'][count - 1]['relative']:.1e}", f"**{same(record)}**" if last else ""]
            lines.append(_row([record["setting"], str(count), *row]))
    return "\n".join(lines)


def free_table(records: Sequence[Record]) -> str:
    """Return pass@1 and time of both sides, and the primary contrast."""
    bounds = intervals.UNIT
    head = ["policy", "seeds", "pass@1", "greedy", "reward of the last five steps", "seconds of a step"]
    lines = [_row(head), _row(["---"] * len(head))]
    base = [r for r in records if r["part"] == "free" and r["side"] == "base"]
    for r in base:
        lines.append(_row(["base", "", text(intervals.mean([of(base, "base")[r["seed"]]])), f"{r['greedy']:.1%}"[:-1]]))
        lines[-1] += "  |  |"
    for side, name in SIDES.items():
        runs = [r for r in records if r["part"] == "free" and r["side"] == side]
        if not runs:
            continue
        rewards = [float(np.mean(r["reward"][-5:])) for r in runs]
        seconds = np.median(np.concatenate([r["seconds"][1:] for r in runs]))
        cells = [text(intervals.mean(list(of(records, side).values()), bounds=bounds))]
        cells += [text(intervals.mean(x, bounds=bounds)) for x in ([r["greedy"] for r in runs], rewards)]
        lines.append(_row([name, str(len(runs)), *cells, f"{seconds:.1f}"]))
    x = contrast(records)
    shown = "fewer than two pairs" if x is None else f"{text(x)} points, {x.count} pairs"
    claim = f"within {100 * BOUND:g} points of 0, {len(SEEDS)} pairs"
    return "\n".join([*lines, "", f"TRL minus rljax: {shown}; {claim}: **{verdict(x)}**."])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw_identical(records: Sequence[Record], path: pathlib.Path) -> None:
    """Draw the relative difference of the parameters' changes, and differences of metrics, over rollouts."""
    canvas = figure.Figure(figsize=(4.2 * len(records), 3.4), layout="constrained")
    for ax, record in zip(canvas.subplots(1, len(records), squeeze=False)[0], records, strict=True):
        curves = {
            "change: TRL beside rljax": [row["relative"] for row in record["apart"]],
            "change: TRL beside TRL, other kernels": [row["relative"] for row in record["control"]],
            "gradient norm, relative": apart(record, "gradient norm"),
            "loss": apart(record, "loss"),
            "KL": apart(record, "kl"),
        }
        for n, (name, values) in enumerate(curves.items()):
            ax.semilogy(range(1, len(values) + 1), values, label=name, linewidth=2.2 - 0.3 * n, **plots.style(n))
        plots.decorate(ax, record["setting"], "rollout", "difference")
    legend(canvas, columns=2)
    canvas.savefig(path, dpi=100)


def draw_free(records: Sequence[Record], path: pathlib.Path) -> None:
    """Draw the training reward of both sides, mean and 95 % interval over seeds, and pass@1 of each seed."""
    canvas = figure.Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    for n, (side, name) in enumerate(SIDES.items()):
        curves = np.array([r["reward"] for r in records if r["part"] == "free" and r["side"] == side])
        color = plots.COLORS[n]
        if not len(curves):
            continue
        steps = np.arange(1, curves.shape[1] + 1)
        left.plot(steps, curves.mean(axis=0), color=color, label=name)
        if len(curves) > 1:
            at = [intervals.mean(list(column), bounds=intervals.UNIT) for column in curves.T]
            left.fill_between(steps, [e.low for e in at], [e.high for e in at], color=color, alpha=0.15, linewidth=0)
        ends = {seed: 100 * x.mean() for seed, x in of(records, side).items()}
        right.plot(list(ends), list(ends.values()), "o", color=color)
    for x in of(records, "base").values():
        right.axhline(100 * x.mean(), color="0.5", linestyle=":", label="base")
    plots.decorate(left, "training reward", "step", "share of right answers")
    plots.decorate(right, "held-out prompts, at the end", "seed", "pass@1, %")
    right.set(xticks=SEEDS, xlim=(SEEDS[0] - 0.5, SEEDS[-1] + 0.5))
    legend(canvas, columns=3)
    canvas.savefig(path, dpi=100)


def tables(records: Sequence[Record]) -> str:
    """Return both tables."""
    given = [r for r in records if r["part"] == "identical"]
    return "\n".join(
        ["**Identical rollouts.**", "", identical_table(given), "", "**Free runs.**", "", free_table(records)]
    )


def write(folder: pathlib.Path) -> None:
    """Write the figures of a folder's results.json, and the tables into its README."""
    records = json.loads((folder / "results.json").read_text())
    draw_identical([r for r in records if r["part"] == "identical"], folder / "identical.png")
    draw_free(records, folder / "free.png")
    fill(folder / "README.md", tables(records))
