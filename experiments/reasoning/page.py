"""What a page says of the runs that have ended: claims at matched KL, tables and the figure of the frontier."""

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
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots

Floats = npt.NDArray[np.float64]
Records = Sequence[Mapping[str, Any]]
KS = (1, 4, 16, 64, 256)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A contrast that is decided before the runs.

    Attributes:
      text: the claim.
      first: an arm.
      second: the arm that it is compared with, or "base".
      quantity: "pass@1", "pass@K", or a number of the last measurement or of the end of a curve.
      below: whether the first is claimed to be below the second, in place of above.
      matched: whether the arms are compared at equal KL to the base: see ``matched``.
      domain: the name of the domain whose prompts count; "": all.
    """

    text: str
    first: str
    second: str
    quantity: str
    below: bool = False
    matched: bool = False
    domain: str = ""


@dataclasses.dataclass(frozen=True)
class Topic:
    """A question with a page: its arms, the first of which the figure begins with, and claims, the first is primary."""

    arms: tuple[str, ...]
    claims: tuple[Claim, ...]


# --- values ----------------------------------------------------------------------------------------


def each(measured: Mapping[str, Any], quantity: str, tries: int) -> Floats:
    """Return an estimate of pass@k for each prompt, ``[P]``, or a number of the measurement, ``[1]``.

    Args:
      measured: from ``runs.measure``.
      quantity: "pass@1", from all of the first ``tries`` samples; "pass@K", whether the first right sample is among K;
        or the name of a number.
      tries: see ``runs.Size``.
    """
    if quantity == "pass@1":
        return arms.unpack(measured["right"]) / tries
    if quantity.startswith("pass@"):
        first = arms.unpack(measured["first"])
        return ((first > 0) & (first <= int(quantity.removeprefix("pass@")))).astype(np.float64)
    return np.array([measured[quantity]])


def path(record: Mapping[str, Any], base: Mapping[str, Any], quantity: str, tries: int) -> list[tuple[float, Floats]]:
    """Return the KL to the base and the value of a quantity, of the base and at each measurement of a run."""
    points = [base["at"]["0"], *record["at"].values()]
    return [(x["kl"], each(x, quantity, tries)) for x in points]


def at_kl(points: Sequence[tuple[float, Floats]], kl: float) -> Floats:
    """Return the value of a path where it first reaches a KL, interpolated linearly in KL; its last if never."""
    for (low, before), (high, after) in itertools.pairwise(points):
        if low <= kl <= high:
            share = (kl - low) / (high - low) if high > low else 1.0
            return before + share * (after - before)
    return points[-1][1]


def matched(first: Sequence[tuple[float, Floats]], second: Sequence[tuple[float, Floats]]) -> tuple[Floats, Floats]:
    """Return the values of two paths at the largest KL that both reach: the smaller of their last ones."""
    kl = min(first[-1][0], second[-1][0])
    return at_kl(first, kl), at_kl(second, kl)


@dataclasses.dataclass(frozen=True)
class Results:
    """The records of ``runs``, of which the base is one."""

    records: Records
    tries: int

    @property
    def base(self) -> Mapping[str, Any]:
        """The record of the base."""
        return next(r for r in self.records if r["arm"] == "base")

    def runs(self, arm: str) -> dict[int, Mapping[str, Any]]:
        """Return the runs of an arm by seed."""
        return {r["seed"]: r for r in self.records if r["arm"] == arm}

    def path(self, record: Mapping[str, Any], quantity: str, domain: str = "") -> list[tuple[float, Floats]]:
        """Return the path of a run over the prompts of a domain, see ``path``."""
        points = path(record, self.base, quantity, self.tries)
        if not domain:
            return points
        counted = np.array([*self.base["domain"]]) == str(self.base["domains"].index(domain))
        return [(kl, x[counted]) for kl, x in points]

    def pairs(self, claim: Claim) -> tuple[dict[Hashable, intervals.Values], dict[Hashable, intervals.Values]]:
        """Return the values of both arms of a claim by seed, of the seeds of which both have ended."""
        first, second = self.runs(claim.first), self.runs(claim.second)
        if claim.second == "base":
            second = dict.fromkeys(first, self.base)
        values: tuple[dict[Hashable, intervals.Values], dict[Hashable, intervals.Values]] = {}, {}
        for seed in sorted(first.keys() & second.keys()):
            if claim.quantity in first[seed].get("curves", {}):
                ends = [np.array([r["curves"][claim.quantity][-1]]) for r in (first[seed], second[seed])]
            elif claim.second == "base":
                points = self.path(first[seed], claim.quantity, claim.domain)
                ends = [points[-1][1], points[0][1]]
            else:
                a, b = (self.path(r, claim.quantity, claim.domain) for r in (first[seed], second[seed]))
                ends = [*matched(a, b)] if claim.matched else [a[-1][1], b[-1][1]]
            for of, value in zip(values, ends, strict=True):
                of[seed] = value
        return values

    def difference(self, claim: Claim) -> intervals.Estimate | None:
        """Return the first arm minus the second, over seeds and prompts; None without two seeds."""
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
        cells = _text(x, claim.quantity), "0" if x is None else str(x.count), "not run yet" if x is None else verdict
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[Floats]) -> str:
    """Return a mean over runs in percent, with its interval over seeds and prompts."""
    return arms.text(intervals.mean(list(values), bounds=intervals.UNIT))


def table(results: Results, topic: Topic) -> str:
    """Return the table of the base and of the arms at each of their measurements."""
    names = [f"pass@{k}" for k in KS]
    last = results.base["domains"][-1]
    columns = ["KL", *names, f"pass@{KS[-1]}, {last}", "gained", "lost", "entropy", "length"]
    lines = [f"| arm | rate | seeds | step | {' | '.join(columns)} |", "| --- " * (len(columns) + 4) + "|"]
    base = results.base["at"]["0"]
    solved = each(base, f"pass@{KS[-1]}", results.tries)

    def row(arm: str, rate: str, runs: Sequence[Mapping[str, Any]], step: str, number: int) -> str:
        at = [r["at"][step] for r in runs]
        cells = [f"{np.mean([x['kl'] for x in at]):.3f}"]
        cells += [_cell([each(x, name, results.tries) for x in at]) for name in names]
        cells.append(_cell([results.path(r, names[-1], last)[number][1] for r in runs]))
        ends = [each(x, names[-1], results.tries) for x in at]
        gained, lost = (100 * np.mean([np.maximum(s * (x - solved), 0) for x in ends]) for s in (1, -1))
        cells += [f"{gained:.1f}", f"{lost:.1f}"]
        cells += [f"{np.mean([x[name] for x in at]):.3g}" for name in ("entropy", "length")]
        return f"| {arm} | {rate} | {len(runs)} | {step} | {' | '.join(cells)} |"

    lines.append(row("base", "", [results.base], "0", 0))
    for arm in topic.arms:
        runs = [*results.runs(arm).values()]
        if not runs:
            lines.append(f"| {arm} | | 0 | not run yet |" + " |" * len(columns))
            continue
        steps = enumerate(runs[0]["at"], 1)
        lines += [row(arm, f"{runs[0]['rate']:g}", runs, step, number) for number, step in steps]
    return "\n".join(lines)


def text(results: Results, topic: Topic) -> str:
    """Return what the command writes to a page."""
    counted = [r for r in results.records if r["arm"] in (*topic.arms, "base")]
    hours = sum(r["cpu_seconds"] for r in counted) / 3600
    spent = f"{len(counted) - 1} runs and the base, {hours:.1f} hours of processor time."
    covered = "Intervals of pass@k cover seeds and prompts, those of the base prompts; of other quantities, seeds."
    return f"{claims(results, topic)}\n\n{table(results, topic)}\n\n{covered} {spent}"


# --- the figure ------------------------------------------------------------------------------------


def draw(results: Results, topic: Topic, file: pathlib.Path) -> None:
    """Draw pass@256 against pass@1, both against the KL, and pass@k minus the base's."""
    canvas = figure.Figure(figsize=(12, 3.8), layout="constrained")
    frontier, by_kl, by_k = canvas.subplots(1, 3)
    most = f"pass@{KS[-1]}"
    for color, arm in zip(plots.COLORS, topic.arms, strict=False):
        runs = [*results.runs(arm).values()]
        if not runs:
            continue
        one, many = ([results.path(r, quantity) for r in runs] for quantity in ("pass@1", most))
        x, y = (100 * np.array([[v.mean() for _, v in points] for points in paths]) for paths in (one, many))
        kl = np.array([[kl for kl, _ in points] for points in one])
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
