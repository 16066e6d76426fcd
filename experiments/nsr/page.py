"""What the page says of the runs that are there: learning rates, tables, verdicts and figures."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import figure
from scipy import special

from experiments import arms
from rljax.run.evaluation import intervals, passk
from rljax.run.reports.pages import plots

KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MARGIN = 0.02  # a loss of pass@k below it counts as none
DRAWN = ("PSR", "NSR", "W-REINFORCE 0.1", "GRPO", "PPO")  # arms of the figures of curves

Floats = npt.NDArray[np.float64]
Records = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A contrast that is decided before the runs.

    Attributes:
      text: the claim.
      first: an arm.
      second: the arm that it is compared with; "base": the bases of its seeds.
      quantity: a k of pass@k, 0 for the mean over ``KS``, or -1 for the entropy of a token.
      direction: what is claimed of the first minus the second: "above" or "below" 0, or "not below" ``-MARGIN``.
      untestable: why the study cannot test the claim, if so.
    """

    text: str
    first: str
    second: str
    quantity: int
    direction: str
    untestable: str = ""


BEST = "W-REINFORCE 0.1"
CLAIMS = (
    Claim("NSR raises pass@1", "NSR", "base", 1, "above"),  # the primary claim
    Claim("NSR raises mean pass@k", "NSR", "base", 0, "above"),
    Claim("NSR raises pass@256", "NSR", "base", 256, "above", "the bases leave 1 to 2 points"),
    Claim("NSR does not lower pass@256", "NSR", "base", 256, "not below"),
    Claim("PSR raises pass@1", "PSR", "base", 1, "above"),
    Claim("PSR lowers pass@256", "PSR", "base", 256, "below"),
    Claim("NSR is no worse than GRPO at k = 1", "NSR", "GRPO", 1, "not below"),
    Claim("NSR is better than GRPO at k = 256", "NSR", "GRPO", 256, "above"),
    Claim("NSR is no worse than PPO at k = 1", "NSR", "PPO", 1, "not below"),
    Claim("NSR is better than PPO at k = 256", "NSR", "PPO", 256, "above"),
    *(
        Claim(f"W-REINFORCE 0.1 has a higher mean pass@k than {x}", BEST, x, 0, "above")
        for x in ("PSR", "NSR", "GRPO", "PPO")
    ),
    Claim("NSR ends with more entropy than PSR", "NSR", "PSR", -1, "above"),
)


# --- the runs ----------------------------------------------------------------------------------------


def curve(record: Mapping[str, Any]) -> Floats:
    """Return pass@k of each prompt, ``[P, K]``, for the k of ``KS`` that the samples allow."""
    tries = record["tries"]
    return passk.pass_at_k(arms.unpack(record["correct"]), tries, [k for k in KS if k <= tries])


def of(records: Records, stage: str, family: str, arm: str) -> dict[int, Mapping[str, Any]]:
    """Return the runs of an arm that did not fail, by seed."""
    where = {"stage": stage, "family": family, "arm": arm}
    ended = (r for r in records if "failure" not in r)
    selected = [r for r in ended if all(r[name] == value for name, value in where.items())]
    return {r["seed"]: r for r in sorted(selected, key=lambda r: r["seed"])}


def choose(records: Records, family: str, arm: str) -> float:
    """Return the learning rate of an arm: that of the largest pass@1, the mean over the seeds that choose.

    A rate of which a run failed is not chosen; among equals, the lowest.

    Raises:
      ValueError: a run of the arm is missing, or one failed at every rate.
    """
    scores: dict[float, list[float]] = {}
    for r in records:
        if (r["stage"], r["family"], r["arm"]) == ("tune", family, arm):
            scores.setdefault(r["rate"], []).append(-math.inf if "failure" in r else float(curve(r)[:, 0].mean()))
    if not scores or max(map(np.mean, scores.values())) == -math.inf:
        raise ValueError(f"{arm} on {family}: no learning rate has finished")
    return max(sorted(scores), key=lambda rate: float(np.mean(scores[rate])))


# --- differences -------------------------------------------------------------------------------------


def values(records: Records, stage: str, family: str, arm: str, quantity: int) -> dict[int, Floats]:
    """Return a quantity of the runs of an arm, ``[P]`` or ``[1]`` by seed, see ``Claim``."""
    runs = of(records, "base" if arm == "base" else stage, family, arm)
    if quantity == -1:
        return {seed: np.array([r["entropy"]]) for seed, r in runs.items()}
    if quantity == 0:
        return {seed: curve(r).mean(axis=1) for seed, r in runs.items()}
    return {seed: curve(r)[:, KS.index(quantity)] for seed, r in runs.items() if quantity <= r["tries"]}


def difference(
    first: Mapping[int, Floats], second: Mapping[int, Floats], bounds: tuple[float, float] = intervals.UNIT
) -> intervals.Estimate | None:
    """Return the mean of ``first`` minus ``second`` over the seeds of both, see ``intervals.difference``.

    Args:
      first: ``[P]`` by seed; the prompts of all seeds are the same.
      second: the same of the other arm.
      bounds: the range of the quantity.

    Returns:
      The estimate; without an interval if there is one seed; None if there is none.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    if len(seeds) == 1:  # an interval over prompts alone would not contain the variation between bases
        return intervals.Estimate(float((first[seeds[0]] - second[seeds[0]]).mean()), math.nan, math.nan, 1)
    return intervals.difference({s: second[s] for s in seeds}, {s: first[s] for s in seeds}, bounds=bounds)


def contrast(
    records: Records, family: str, first: str, second: str, quantity: int, stage: str = "main"
) -> intervals.Estimate | None:
    """Return the difference of two arms in a quantity, see ``Claim``."""
    pair = (values(records, stage, family, arm, quantity) for arm in (first, second))
    return difference(*pair, bounds=(0.0, math.inf) if quantity == -1 else intervals.UNIT)


def verdicts(records: Records, family: str) -> list[str]:
    """Return the verdicts on the claims in a family, see ``arms.verdicts``; "not run yet" without two seeds."""
    estimates = [contrast(records, family, c.first, c.second, c.quantity) for c in CLAIMS]
    known = [None if x is None or math.isnan(x.low) else x for x in estimates]
    said = arms.verdicts(
        [
            (x, -MARGIN if c.direction == "not below" else 0.0, c.direction == "below", not c.untestable)
            for x, c in zip(known, CLAIMS, strict=True)
        ]
    )
    return [v if x is not None else "not run yet" for v, x in zip(said, known, strict=True)]


def smallest(gaps: Sequence[float], seeds: int) -> float:
    """Return the difference that paired seeds detect with power 80 % at level 5 %: (t_0.975 + t_0.8) s / sqrt(n).

    Args:
      gaps: differences of the seeds of a pilot, whose standard deviation is s.
      seeds: n, seeds of the study; Student's t has n - 1 degrees of freedom.

    Returns:
      The difference, in the unit of ``gaps``.
    """
    quantiles = special.stdtrit(seeds - 1, 0.975) + special.stdtrit(seeds - 1, 0.8)
    return float(quantiles * np.std(gaps, ddof=1) / math.sqrt(seeds))


def pilot(records: Records, family: str, first: str, second: str, seeds: int) -> str:
    """Return the table of the smallest differences that the study detects, from the runs of a pilot."""
    lines = ["| contrast | quantity | deviation between seeds | smallest difference |", "| --- | --- | --- | --- |"]
    for one, other in ((first, "base"), (second, "base"), (first, second)):
        for quantity, name in ((1, "pass@1"), (256, "pass@256"), (0, "mean pass@k")):
            a, b = (values(records, "pilot", family, arm, quantity) for arm in (one, other))
            gaps = [100 * float((a[seed] - b[seed]).mean()) for seed in a.keys() & b.keys()]
            cells = f"{np.std(gaps, ddof=1):.1f} | {smallest(gaps, seeds):.1f}"
            lines.append(f"| {one} - {other} | {name} | {cells} |")
    return "\n".join(lines)


# --- tables ------------------------------------------------------------------------------------------


def points(x: intervals.Estimate | None, scale: float = 100.0, form: str = ".1f") -> str:
    """Return an estimate in percentage points, or in another unit."""
    return "not run yet" if x is None else arms.text(x, scale, form)


def _mean(runs: Mapping[int, Mapping[str, Any]], of: Any) -> float:
    return float(np.mean([of(r) for r in runs.values()]))


def bases(records: Records, families: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the table of the bases of the study, the means over its seeds."""
    lines = ["| family | seeds | " + " | ".join(f"pass@{k}" for k in KS[::2]) + " | entropy | length |"]
    lines.append("| --- " * (len(KS[::2]) + 4) + "|")
    for family in families:
        runs = {seed: r for seed, r in of(records, "base", family, "base").items() if seed in seeds}
        if not runs:
            lines.append(f"| {family} | not run yet |" + " |" * (len(KS[::2]) + 2))
            continue
        means = np.mean([curve(r).mean(axis=0) for r in runs.values()], axis=0)[::2]
        cells = [f"{100 * x:.1f}" for x in means] + [""] * (len(KS[::2]) - len(means))
        cells += [f"{_mean(runs, lambda r: r['entropy']):.2f}", f"{_mean(runs, lambda r: r['length']):.1f}"]
        lines.append(f"| {family} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(records: Records, family: str, names: Sequence[str], stage: str = "main") -> str:
    """Return the table of the arms of a family, as differences from the bases of their seeds."""
    quantities = "pass@1", "pass@16", "pass@256", "mean pass@k", "entropy", "distinct", "gained", "lost", "length"
    lines = [f"| arm | rate | seeds | {' | '.join(quantities)} |", "| --- " * 12 + "|"]
    base = of(records, "base", family, "base")
    for name in names:
        runs = {seed: r for seed, r in of(records, stage, family, name).items() if seed in base}
        if not runs:
            lines.append(f"| {name} | | not run yet |" + " |" * 9)
            continue
        cells = [points(contrast(records, family, name, "base", k, stage)) for k in (1, 16, 256, 0)]
        entropy, distinct, length = (
            _mean(runs, lambda r, n=n: r[n] - base[r["seed"]][n]) for n in ("entropy", "distinct", "length")
        )
        support = [passk.support(arms.unpack(base[s]["correct"]), arms.unpack(r["correct"])) for s, r in runs.items()]
        gained, lost = (100 * float(np.mean([s[n] for s in support])) for n in ("result", "base"))
        rate = ", ".join(f"{x:g}" for x in sorted({r["rate"] for r in runs.values()}))
        others = f"{entropy:+.2f} | {distinct:+.1f} | {gained:.1f} | {lost:.1f} | {length:+.1f}"
        lines.append(f"| {name} | {rate} | {len(runs)} | {' | '.join(cells)} | {others} |")
    return "\n".join(lines)


def claims(records: Records, families: Sequence[str]) -> str:
    """Return the table of the claims, a column for each family."""
    lines = ["| claim | " + " | ".join(families) + " |", "| --- " * (len(families) + 1) + "|"]
    said = {family: verdicts(records, family) for family in families}
    for number, claim in enumerate(CLAIMS):
        cells = []
        for family in families:
            x = contrast(records, family, claim.first, claim.second, claim.quantity)
            unit = (1.0, ".2f") if claim.quantity == -1 else (100.0, ".1f")
            verdict = said[family][number]
            cells.append(verdict if verdict == "not run yet" else f"{points(x, *unit)}: {verdict}")
        notes = [*(["primary"] if number == 0 else []), *([claim.untestable] if claim.untestable else [])]
        lines.append(f"| {claim.text}{f' ({notes[0]})' if notes else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def settings(records: Records, family: str, changes: Sequence[str]) -> str:
    """Return the table of claim 5 where a factor changes: the entropy that NSR ends with, minus that of PSR, nats."""
    lines = ["| setting | NSR - PSR, entropy |", "| --- | --- |"]
    stages = {"base setting": ("main", ""), **{change: ("factor", f", {change}") for change in changes}}
    for name, (stage, suffix) in stages.items():
        x = contrast(records, family, f"NSR{suffix}", f"PSR{suffix}", -1, stage)
        lines.append(f"| {name} | {points(x, 1.0, '.2f')} |")
    return "\n".join(lines)


def equal(records: Records, families: Sequence[str], names: Sequence[str]) -> str:
    """Return the table of NSR minus arms that ran at its learning rate, in points."""
    lines = ["| family | arm | pass@1 | pass@256 | mean pass@k |", "| --- | --- | --- | --- | --- |"]
    for family in families:
        for name in names:
            cells = []
            for quantity in (1, 256, 0):
                first = values(records, "main", family, "NSR", quantity)
                cells.append(points(difference(first, values(records, "equal", family, name, quantity))))
            if cells != ["not run yet"] * 3:
                lines.append(f"| {family} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rates(records: Records, families: Sequence[str], names: Sequence[str]) -> str:
    """Return the table of pass@1 and pass@256 at each learning rate, on the seeds that choose one."""
    tuned = [r for r in records if r["stage"] == "tune"]
    every = sorted({r["rate"] for r in tuned})
    lines = ["| family | arm | " + " | ".join(f"{x:g}" for x in every) + " |", "| --- " * (len(every) + 2) + "|"]
    for family in families:
        for name in names:
            cells = []
            for rate in every:
                runs = [r for r in tuned if (r["family"], r["arm"], r["rate"]) == (family, name, rate)]
                failed = any("failure" in r for r in runs)
                means = [] if failed else [100 * curve(r).mean(axis=0)[[0, -1]] for r in runs]
                shown = "{:.1f}, {:.1f}".format(*np.mean(means, axis=0)) if means else "not run yet"
                cells.append("failed" if failed else shown)
            lines.append(f"| {family} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


# --- figures -----------------------------------------------------------------------------------------


def draw_passk(records: Records, families: Sequence[str], path: pathlib.Path) -> None:
    """Draw pass@k of arms minus that of their bases, with bands over prompts and seeds."""
    canvas = figure.Figure(figsize=(3.6 * len(families), 3.4), layout="constrained")
    for ax, family in zip(np.atleast_1d(canvas.subplots(1, len(families))), families, strict=True):
        for color, name in zip(plots.COLORS, DRAWN, strict=False):
            of_k = {k: contrast(records, family, name, "base", k) for k in KS}
            shown = {k: x for k, x in of_k.items() if x is not None}
            if shown:
                rows = 100 * np.array([[x.mean, x.low, x.high] for x in shown.values()])
                ax.fill_between([*shown], rows[:, 1], rows[:, 2], color=color, alpha=0.15, linewidth=0)
                ax.plot([*shown], rows[:, 0], color=color, marker="o", markersize=3, label=name)
        ax.axhline(0, color=plots.GREY, linewidth=0.8)
        ax.set_xscale("log", base=2)
        plots.decorate(ax, family, "k", "pass@k minus the base's, points")
    arms.legend(canvas, columns=6)
    canvas.savefig(path, dpi=100)


def draw_arms(records: Records, families: Sequence[str], names: Sequence[str], path: pathlib.Path) -> None:
    """Draw the differences of all arms from their bases at k = 1 and at k = 256."""
    canvas = figure.Figure(figsize=(3.6 * len(families), 0.28 * len(names) + 1.2), layout="constrained")
    axes = np.atleast_1d(canvas.subplots(1, len(families), sharey=True))
    for ax, family in zip(axes, families, strict=True):
        for color, k, shift in zip(plots.COLORS, (1, 256), (-0.15, 0.15), strict=False):
            for row, name in enumerate(names):
                x = contrast(records, family, name, "base", k)
                if x is not None and not math.isnan(x.low):
                    mean, low, high = 100 * x.mean, 100 * x.low, 100 * x.high
                    spread = [[mean - low], [high - mean]]
                    label = f"pass@{k}" if row == 0 else None
                    ax.errorbar(mean, row + shift, xerr=spread, color=color, marker="o", markersize=3, label=label)
        ax.axvline(0, color=plots.GREY, linewidth=0.8)
        ax.set_yticks(range(len(names)), names)
        plots.decorate(ax, family, "points from the base", "")
    axes[0].invert_yaxis()
    arms.legend(canvas, columns=6)
    canvas.savefig(path, dpi=100)


def draw_entropy(records: Records, families: Sequence[str], path: pathlib.Path) -> None:
    """Draw the entropy of a token while arms train, nats, the mean over seeds."""
    canvas = figure.Figure(figsize=(3.6 * len(families), 3.2), layout="constrained")
    for ax, family in zip(np.atleast_1d(canvas.subplots(1, len(families))), families, strict=True):
        for color, name in zip(plots.COLORS, DRAWN, strict=False):
            runs = of(records, "main", family, name)
            if runs:
                each = np.array([r["curves"]["entropy"] for r in runs.values()])
                x = (np.arange(each.shape[1]) + 0.5) / each.shape[1]
                ax.plot(x, each.mean(axis=0), color=color, linewidth=1.8, label=name)
        plots.decorate(ax, family, "part of the run", "entropy of a token, nats")
    arms.legend(canvas, columns=6)
    canvas.savefig(path, dpi=100)
