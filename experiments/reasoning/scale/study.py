"""Contrasts of other topics at three sizes: do they depend on the size of the policy?

python -m experiments.reasoning.scale.study 128
python -m experiments.reasoning.scale.study

The first command runs a width and writes the page, the second one writes the page alone. The runs of the shipped base
are those of the other topics. What a run gave is stored when it ends, so that the same command resumes.
"""

import argparse
import dataclasses
import pathlib
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import figure

from experiments import arms
from experiments.reasoning import page, runs, study
from experiments.reasoning.page import Claim
from experiments.reasoning.scale import bases
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots

SHIPPED = 256
WIDTHS = (*bases.FACTORS, SHIPPED)  # each has four times the parameters of the one before
PARAMETERS = {64: 222_144, 128: 871_040, SHIPPED: 3_469_056}
FOLDER = bases.FOLDER
ARMS = ("GRPO", "NSR", study.STEPS, study.FEW)
SAME = " at 1e-4"  # the rate of the shipped base, for arms that no claim is about
OTHERS = ("GRPO" + SAME, "NSR" + SAME)
WIDEST = 0.10  # half the interval of a prediction; wider ones are not stated


@dataclasses.dataclass(frozen=True)
class Trend:
    """A contrast, and the claim that it grows with the size, or falls.

    Attributes:
      text: the claim.
      contrast: two arms and a quantity.
      below: whether it is claimed to fall.
    """

    text: str
    contrast: Claim
    below: bool = False


TRENDS = (
    Trend("The larger the policy, the more pass@1 GRPO gains", Claim("GRPO minus the base", "GRPO", "base", "pass@1")),
    Trend(
        "The larger the policy, the less rewards of steps lose",
        Claim("steps minus outcomes", study.STEPS, "GRPO", "pass@1"),
    ),
    Trend(
        "The larger the policy, the less pass@1 NSR loses at equal KL",
        Claim("NSR minus GRPO at equal KL", "NSR", "GRPO", "pass@1", matched="kl"),
    ),
    Trend(
        "The larger the policy, the more pass@256 NSR has at equal KL",
        Claim("NSR minus GRPO at equal KL", "NSR", "GRPO", "pass@256", matched="kl"),
    ),
    Trend(
        "The larger the policy, the less 16 problems are behind all",
        Claim("16 problems minus all", study.FEW, "GRPO", "pass@1"),
    ),
)


def arm(name: str, width: int) -> runs.Arm:
    """Return an arm of the other topics with a rate that is inversely proportional to the width (arXiv 2203.03466)."""
    original = study.ARMS[name.removesuffix(SAME)]
    if name in OTHERS:
        return original
    return dataclasses.replace(original, rate=original.rate * SHIPPED / width)


def stored(width: int, folder: pathlib.Path) -> page.Results:
    """Return the runs of a width that have ended."""
    file = study.RESULTS if width == SHIPPED else folder / f"results_{width}.json"
    ended = runs.Runs(runs.Size(), file)
    return page.Results(ended.records, ended.size)


# --- the page --------------------------------------------------------------------------------------


def gaps(results: Mapping[int, page.Results], contrast: Claim) -> dict[int, dict[int, float]]:
    """Return the contrast of each seed at each width, of the seeds that have all of them, by width."""
    pairs = {width: results[width].pairs(contrast) for width in WIDTHS}
    seeds = set.intersection(*[set(first) for first, _ in pairs.values()])
    return {w: {s: first[s] - second[s] for s in sorted(seeds)} for w, (first, second) in pairs.items()}


def trend(values: Mapping[int, Mapping[int, float]]) -> tuple[intervals.Estimate, ...] | None:
    """Fit a line to the contrast of each seed over the logarithm of the size.

    With d_0, d_1 and d_2 at sizes that are each four times the one before, the slope of least squares is
    (d_2 - d_0) / 2, the curvature d_2 - 2 d_1 + d_0, and the line's value one factor of four beyond the last size
    (d_0 + d_1 + d_2) / 3 + 2 slope.

    Args:
      values: contrast by width and seed.

    Returns:
      Slope for a factor of four, curvature and predicted value, means over seeds with intervals; None without two
      seeds.
    """
    d = np.array([list(values[width].values()) for width in WIDTHS])
    if d.shape[1] < 2:
        return None
    slope = (d[2] - d[0]) / 2
    return tuple(
        intervals.mean(list(x), bounds=intervals.ANY) for x in (slope, d[2] - 2 * d[1] + d[0], d.mean(0) + 2 * slope)
    )


def predicted(fitted: tuple[intervals.Estimate, ...]) -> str:
    """Return the predicted value, or why none is stated."""
    _, bend, value = fitted
    if not bend.low <= 0 <= bend.high:
        return "refused: not a line"
    return "refused: too wide" if value.high - value.low > 2 * WIDEST else arms.text(value)


def text(results: Mapping[int, page.Results]) -> str:
    """Return what the command writes to the page."""
    fits = [trend(gaps(results, t.contrast)) for t in TRENDS]
    slopes = [None if fitted is None else fitted[0] for fitted in fits]
    said = arms.verdicts([(x, 0.0, t.below, True) for x, t in zip(slopes, TRENDS, strict=True)])
    lines = ["| claim | slope for 4 times the size | seeds | verdict | at 14 million |", "| --- " * 5 + "|"]
    for number, (t, fitted, verdict) in enumerate(zip(TRENDS, fits, said, strict=True)):
        name = t.text + (" (primary)" if number == 0 else "")
        if fitted is None:
            lines.append(f"| {name} | not run yet | | | |")
            continue
        ended = fitted[0].count
        verdict = verdict if ended >= len(page.SEEDS) else "not before all seeds"
        lines.append(f"| {name} | {arms.text(fitted[0])} | {ended} | {verdict} | {predicted(fitted)} |")
    names = [f"{PARAMETERS[width] / 1e6:.2g} million" for width in WIDTHS]
    lines += ["", f"| contrast | quantity | {' | '.join(names)} |", "| --- " * 5 + "|"]
    for contrast in (t.contrast for t in TRENDS):
        gaps_of = [results[width].difference(contrast) for width in WIDTHS]
        cells = ["not run yet" if x is None else arms.text(x) + f", {x.count} seeds" * (x.count < 5) for x in gaps_of]
        lines.append(f"| {contrast.text} | {contrast.quantity} | {' | '.join(cells)} |")
    lines += [
        "",
        "Intervals are Student's t over seeds, each of which has prompts of its own; slopes are paired by seed.",
    ]
    for width, name in zip(WIDTHS[:-1], names, strict=False):
        hours = sum(r["cpu_seconds"] for r in results[width].records) / 3600
        lines += ["", f"**{name}**, {hours:.1f} hours of processor time:", ""]
        ended = {record["arm"] for record in results[width].records}
        lines.append(page.table(results[width], page.Topic((*ARMS, *(x for x in OTHERS if x in ended)), ())))
    return "\n".join(lines)


def draw(results: Mapping[int, page.Results], file: pathlib.Path) -> None:
    """Draw each contrast against the number of parameters."""
    canvas = figure.Figure(figsize=(12, 3.4), layout="constrained")
    axes = canvas.subplots(1, len(TRENDS))
    for ax, t in zip(axes, TRENDS, strict=True):
        at = {PARAMETERS[w]: results[w].difference(t.contrast) for w in WIDTHS}
        known = {size: x for size, x in at.items() if x is not None}
        if known:
            mean, low, high = 100 * np.array([(x.mean, x.low, x.high) for x in known.values()]).T
            ax.errorbar([*known], mean, [mean - low, high - mean], color=plots.COLORS[0], marker="o", capsize=3)
        ax.axhline(0, color=plots.GREY, linewidth=0.8)
        ax.set_xscale("log")
        ax.set_xlim(0.5 * PARAMETERS[WIDTHS[0]], 2 * PARAMETERS[SHIPPED])
        ax.set_xticks([*PARAMETERS.values()], [f"{size / 1e6:.2g}" for size in PARAMETERS.values()])
        ax.minorticks_off()
        plots.decorate(ax, textwrap.fill(t.contrast.text, 16), "million parameters", f"{t.contrast.quantity}, points")
    canvas.savefig(file, dpi=100)


def write(folder: pathlib.Path) -> str:
    """Write the figure and the tables to a folder; return the tables."""
    results = {width: stored(width, folder) for width in WIDTHS}
    draw(results, folder / "sizes.png")
    written = text(results)
    arms.fill(folder / "README.md", written)
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing of a width and write the page after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("width", type=int, nargs="?", choices=[*bases.FACTORS])
    parser.add_argument("--arms", nargs="*", choices=(*ARMS, *OTHERS), default=ARMS, help="by default all")
    parser.add_argument("--seeds", type=int, nargs="*", default=page.SEEDS, help="of the runs")
    given = parser.parse_args(arguments)
    if given.width:
        running = runs.Runs(runs.Size(), FOLDER / f"results_{given.width}.json", bases.model(given.width))
        for name in running.run({name: arm(name, given.width) for name in given.arms}, given.seeds):
            print(name, flush=True)
            write(FOLDER)
    print(write(FOLDER))


if __name__ == "__main__":
    main()
