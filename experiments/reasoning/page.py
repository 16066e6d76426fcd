"""What a page says of the runs that have ended: claims at equal KL or entropy, tables, the figure of the frontier."""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import figure

from experiments import arms
from experiments.reasoning import runs
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots

Records = Sequence[Mapping[str, Any]]
Path = Sequence[tuple[float, float]]  # KL to the base or entropy lost, nats, and a value
KS = (1, 4, 16, 64, 256)
SEEDS = tuple(range(5))  # of a study; before all have ended there is no verdict


@dataclasses.dataclass(frozen=True)
class Claim:
    """A contrast that is decided before the runs.

    Attributes:
      text: the claim.
      first: an arm.
      second: the arm that it is compared with, or "base".
      quantity: "pass@1", "pass@K", or a number of the last measurement or of the end of a curve.
      below: whether the first is claimed to be below the second, in place of above.
      matched: "kl" or "entropy" compares the arms at an equal one, see ``matched``; "" at their ends.
    """

    text: str
    first: str
    second: str
    quantity: str
    below: bool = False
    matched: str = ""


@dataclasses.dataclass(frozen=True)
class Topic:
    """A question with a page.

    Attributes:
      arms: the figure begins with the first.
      claims: the first is primary.
      law: whether the page has the table of ``law``.
    """

    arms: tuple[str, ...]
    claims: tuple[Claim, ...]
    law: bool = False


# --- values ----------------------------------------------------------------------------------------


def value(measured: Mapping[str, Any], quantity: str, tries: int) -> float:
    """Return an estimate of pass@k, the mean over prompts, or a number of a measurement.

    Args:
      measured: of a policy, see ``runs.Runs``.
      quantity: "pass@1", from all of the first ``tries`` samples; "pass@K", whether the first right sample is among K;
        or the name of a number.
      tries: see ``runs.Size``.
    """
    if quantity == "pass@1":
        return float(arms.unpack(measured["right"]).mean() / tries)
    if quantity.startswith("pass@"):
        return float(solved(measured, int(quantity.removeprefix("pass@"))).mean())
    return measured[quantity]


def solved(measured: Mapping[str, Any], k: int) -> npt.NDArray[np.bool_]:
    """Return the prompts of which one of the first k samples is right, ``[P]``."""
    first = arms.unpack(measured["first"])
    return (first > 0) & (first <= k)


def at(path: Path, spent: float) -> float:
    """Return the value of a path where it has first spent so much, interpolated linearly; its last if never.

    A path begins with nothing spent: what is negative, as entropy that was gained, is at its first value.
    """
    if spent < 0:
        return path[0][1]
    for (low, before), (high, after) in itertools.pairwise(path):
        if low <= spent <= high:
            share = (spent - low) / (high - low) if high > low else 1.0
            return before + share * (after - before)
    return path[-1][1]


def matched(first: Path, second: Path) -> tuple[float, float]:
    """Return the values of two paths where both have spent the smaller of what they have at their ends.

    The path that ends there has its last value, even if it had spent more before.
    """
    spent = min(first[-1][0], second[-1][0])
    first, second = (path[-1:] if path[-1][0] == spent > 0 else path for path in (first, second))
    return at(first, spent), at(second, spent)


@dataclasses.dataclass(frozen=True)
class Results:
    """The records of the runs and of the base.

    Attributes:
      records: of all runs.
      size: how much a run did.
    """

    records: Records
    size: runs.Size

    def of(self, arm: str) -> dict[int, Mapping[str, Any]]:
        """Return the runs of an arm by seed."""
        return {r["seed"]: r for r in self.records if r["arm"] == arm}

    def path(self, arm: str, seed: int, quantity: str, along: str = "kl") -> Path:
        """Return what is spent and the value, of the base and at each measurement that has the quantity.

        Along "kl" it is the KL to the base; along "entropy" the entropy of a token that the base has more.
        """
        points = [*self.of("base")[seed]["at"].values(), *self.of(arm)[seed]["at"].values()]
        if quantity.startswith("pass@") and int(quantity.removeprefix("pass@")) > self.size.meanwhile:
            points = [points[0], points[-1]]
        spent = [x["kl"] if along == "kl" else points[0]["entropy"] - x["entropy"] for x in points]
        return [(s, value(x, quantity, self.size.tries)) for s, x in zip(spent, points, strict=True)]

    def pairs(self, claim: Claim) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
        """Return the values of both arms of a claim by seed, of the seeds of which both have ended."""
        first, second, base = self.of(claim.first), self.of(claim.second), self.of("base")
        values: tuple[dict[Hashable, float], dict[Hashable, float]] = {}, {}
        for seed in sorted(first.keys() & second.keys() & base.keys()):
            if claim.second == "base":
                path = self.path(claim.first, seed, claim.quantity)
                ends = path[-1][1], path[0][1]
            elif claim.quantity in first[seed]["curves"]:
                ends = tuple(r["curves"][claim.quantity][-1] for r in (first[seed], second[seed]))
            else:
                along = claim.matched or "kl"
                paths = [self.path(arm, seed, claim.quantity, along) for arm in (claim.first, claim.second)]
                ends = matched(*paths) if claim.matched else tuple(path[-1][1] for path in paths)
            for by_seed, end in zip(values, ends, strict=True):
                by_seed[seed] = end
        return values

    def difference(self, claim: Claim) -> intervals.Estimate | None:
        """Return the first arm minus the second, paired by seed; None without two seeds."""
        first, second = self.pairs(claim)
        if len(first) < 2:
            return None
        bounds = intervals.UNIT if claim.quantity.startswith("pass@") else intervals.ANY
        return intervals.difference(second, first, bounds=bounds)


# --- tables ----------------------------------------------------------------------------------------


def _text(x: intervals.Estimate | None, quantity: str) -> str:
    if x is None:
        return "not run yet"
    return arms.text(x) if quantity.startswith("pass@") else arms.text(x, 1.0, ".3g")


def claims(results: Results, topic: Topic) -> str:
    """Return the table of the claims, see ``arms.verdicts``."""
    gaps = [results.difference(claim) for claim in topic.claims]
    said = arms.verdicts([(x, 0.0, c.below, True) for x, c in zip(gaps, topic.claims, strict=True)])
    lines = ["| claim | difference | seeds | verdict |", "| --- | --- | --- | --- |"]
    for number, (claim, x, verdict) in enumerate(zip(topic.claims, gaps, said, strict=True)):
        name = claim.text + (" (primary)" if number == 0 else "")
        ended = 0 if x is None else x.count
        verdict = verdict if ended >= len(SEEDS) else "not before all seeds" if ended else "not run yet"
        cells = _text(x, claim.quantity), str(ended), verdict
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(results: Results, topic: Topic) -> str:
    """Return the table of the base and of the arms at each of their measurements."""
    names, size = [f"pass@{k}" for k in KS], results.size
    columns = ["KL", *names, "gained", "lost", "entropy", "length"]
    lines = [f"| arm | rate | seeds | step | {' | '.join(columns)} |", "| --- " * (len(columns) + 4) + "|"]
    base = results.of("base")
    for arm in ("base", *topic.arms):
        runs_of = {seed: run for seed, run in results.of(arm).items() if seed in base}
        if not runs_of:
            lines.append(f"| {arm} | | 0 | not run yet |" + " |" * len(columns))
            continue
        first = next(iter(runs_of.values()))
        for step in first["at"]:
            at = {seed: run["at"][step] for seed, run in runs_of.items()}
            reached = size.limit if step == [*first["at"]][-1] else size.meanwhile
            cells = [f"{np.mean([x['kl'] for x in at.values()]):.3f}"]
            for k, name in zip(KS, names, strict=True):
                values = [value(x, name, size.tries) for x in at.values()]
                cells.append(arms.text(intervals.mean(values, bounds=intervals.UNIT)) if k <= reached else "")
            ends = [(solved(base[seed]["at"]["0"], reached), solved(x, reached)) for seed, x in at.items()]
            cells += [
                f"{100 * np.mean([np.mean(a & ~b) for a, b in pairs]):.1f}"
                for pairs in ([(after, before) for before, after in ends], ends)
            ]
            cells += [f"{np.mean([x[name] for x in at.values()]):.3g}" for name in ("entropy", "length")]
            rate = f"{first['rate']:g}" if "rate" in first else ""
            lines.append(f"| {arm} | {rate} | {len(at)} | {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def law(results: Results, topic: Topic) -> str:
    """Return the table of pass@1 at the end of each arm minus what a law R = b - a exp(H) of the entropy H predicts.

    It is the law through the base and the first measurement of the arm in that seed; beside it is pass@1 minus the
    first arm's at equal entropy. Source: arXiv 2505.22617.
    """
    reference = topic.arms[0]
    lines = [f"| arm | seeds | minus the law of its beginning | minus {reference} at equal entropy |"]
    lines.append("| --- " * 4 + "|")
    for arm in topic.arms:
        gaps = []
        for seed in sorted(results.of(arm).keys() & results.of("base").keys()):
            (_, base), (first, early), *_, (last, end) = results.path(arm, seed, "pass@1", "entropy")
            gaps.append(end - base - (early - base) * math.expm1(-last) / math.expm1(-first))
        apart = results.difference(Claim("", arm, reference, "pass@1", matched="entropy"))
        cells = [arms.text(intervals.mean(gaps, bounds=intervals.ANY)) if gaps else ""]
        cells.append("" if arm == reference or apart is None else arms.text(apart))
        lines.append(f"| {arm} | {len(gaps)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def text(results: Results, topic: Topic) -> str:
    """Return what the command writes to a page."""
    counted = [r for r in results.records if r["arm"] in (*topic.arms, "base")]
    hours = sum(r["cpu_seconds"] for r in counted) / 3600
    ended = sum(r["arm"] != "base" for r in counted)
    covered = "Intervals are Student's t over seeds, each of which has prompts of its own, so that they cover both."
    spent = f"{ended} runs and {len(counted) - ended} measurements of the base, {hours:.1f} hours of processor time."
    tables = [claims(results, topic), *([law(results, topic)] if topic.law else []), table(results, topic)]
    return "\n\n".join([*tables, f"{covered} {spent}"])


# --- the figure ------------------------------------------------------------------------------------


def draw(results: Results, topic: Topic, file: pathlib.Path) -> None:
    """Draw pass@64 against pass@1, both against the KL, and pass@k minus the base's."""
    canvas = figure.Figure(figsize=(12, 3.8), layout="constrained")
    frontier, by_kl, by_k = canvas.subplots(1, 3)
    most = f"pass@{results.size.meanwhile}"
    for color, arm in zip(plots.COLORS, topic.arms, strict=False):
        seeds = sorted(results.of(arm).keys() & results.of("base").keys())
        if not seeds:
            continue
        one, many = ([results.path(arm, seed, quantity) for seed in seeds] for quantity in ("pass@1", most))
        x, y = (100 * np.array([[v for _, v in path] for path in paths]) for paths in (one, many))
        kl = np.array([[kl for kl, _ in path] for path in one])
        for ax, across in ((frontier, x), (by_kl, kl)):
            ax.plot(across.T, y.T, color=color, linewidth=0.6, alpha=0.35)
            ax.plot(across.mean(axis=0), y.mean(axis=0), color=color, marker="o", markersize=4, label=arm)
        gaps = {k: results.difference(Claim("", arm, "base", f"pass@{k}")) for k in KS}
        known = {k: 100 * np.array([g.mean, g.low, g.high]) for k, g in gaps.items() if g and not math.isnan(g.low)}
        if known:
            mean, low, high = np.array([*known.values()]).T
            by_k.plot([*known], mean, color=color, marker="o", markersize=3, label=arm)
            by_k.fill_between([*known], low, high, color=color, alpha=0.15, linewidth=0)
    by_k.axhline(0, color=plots.GREY, linewidth=0.8)
    by_k.set_xscale("log", base=2)
    plots.decorate(frontier, "the frontier", "pass@1, %", f"{most}, %")
    plots.decorate(by_kl, "from the base on", "KL to the base, nats a completion", f"{most}, %")
    plots.decorate(by_k, "at the end", "k", "pass@k minus the base's, points")
    arms.legend(canvas, columns=6)
    canvas.savefig(file, dpi=100)
