"""The tables and the figure of the study, from what its seeds gave."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import axes, figure

from experiments.overoptimisation import scaling
from experiments.worlds import seeds
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots

N = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_BESIDE = (4, 16, 64)  # n at whose KL best-of-n stands beside RL
_ONE = "medium"  # beside which the others stand, paired by seed


@dataclasses.dataclass(frozen=True)
class Curve:
    """A proxy optimized further and further, on held-out prompts."""

    at: list[int]  # steps of RL, or n
    kl: list[float]  # from the base, nats a completion
    proxy: list[float]  # mean of the proxy, nats
    gold: list[float]  # verified accuracy


@dataclasses.dataclass(frozen=True)
class Arm:
    """One proxy of one seed."""

    ranked: float  # share of held-out pairs of the base, averaged over prompts
    best: Curve  # of n
    rl: Curve


Seed = Mapping[str, Arm]


def arm(stored: Mapping[str, Any]) -> Arm:
    """Return an arm from what ``dataclasses.asdict`` made of it."""
    return Arm(stored["ranked"], Curve(**stored["best"]), Curve(**stored["rl"]))


def gain(curve: Curve) -> list[float]:
    """Return the gold reward less that of the base."""
    return [x - curve.gold[0] for x in curve.gold]


def turned(curve: Curve) -> bool:
    """Return whether the gold reward ends 5 points or more below its peak, and the proxy above what it was there."""
    peak = int(np.argmax(curve.gold))
    return curve.gold[-1] <= curve.gold[peak] - 0.05 and curve.proxy[-1] > curve.proxy[peak]


def fits(curve: Curve, logarithm: bool) -> scaling.Fit:
    """Fit the form of Gao et al. to the gain of a curve."""
    return scaling.fit(curve.kl, gain(curve), logarithm)


def table(results: Sequence[Seed]) -> str:
    """Return the tables of the page: means over seeds with Student's 95 % intervals; gains in points of accuracy."""
    return "\n\n".join("\n".join(make(results)) for make in (_turns, _beside, _forms))


def _turns(results: Sequence[Seed]) -> list[str]:
    places = [f"{x} at {place}" for place in ("its peak", "the end") for x in ("gold gain of RL", "KL", "proxy gain")]
    rows = [_row(["proxy", "pairs ranked right, %", *places, "turned down"]), _row(["---"] * 9)]
    for name in results[0]:
        cells, rl = [seeds.percent([seed[name].ranked for seed in results])], [seed[name].rl for seed in results]
        for at in ([int(np.argmax(c.gold)) for c in rl], [-1 for _ in rl]):
            points = list(zip(rl, at, strict=True))
            cells.append(_text([100 * gain(c)[i] for c, i in points], 1))
            cells.append(_text([c.kl[i] for c, i in points], 2))
            cells.append(_text([c.proxy[i] - c.proxy[0] for c, i in points], 2))
        rows.append(_row([name, *cells, f"{sum(map(turned, rl))} of {len(rl)}"]))
    base = [next(iter(seed.values())).rl.gold[0] for seed in results]
    return [f"Verified accuracy of the base: {seeds.percent(base)} %.", "", *rows]


def _beside(results: Sequence[Seed]) -> list[str]:
    titles = [f"{way}, KL {scaling.best_of_n_kl(n):.2f}" for n in _BESIDE for way in (f"best of {n}", "RL")]
    titles += [f"{what}, less that of {_ONE}" for what in (f"best of {_BESIDE[-1]}", "peak of RL")]
    rows = [_row(["proxy", *titles]), _row(["---"] * (1 + len(titles)))]
    for name in results[0]:
        cells = [name]
        for n in _BESIDE:
            cells.append(_text([100 * gain(seed[name].best)[N.index(n)] for seed in results], 1))
            rl = [seed[name].rl for seed in results]
            cells.append(_text([100 * scaling.at(c.kl, gain(c), scaling.best_of_n_kl(n)) for c in rl], 1))
        ends = [[[seed[a].best.gold[-1], max(seed[a].rl.gold)] for seed in results] for a in (_ONE, name)]
        for one, other in zip(*(zip(*x, strict=True) for x in ends), strict=True):
            cells.append("" if name == _ONE else seeds.gap(one, other))
        rows.append(_row(cells))
    return rows


def _forms(results: Sequence[Seed]) -> list[str]:
    columns = [f"{way}: {x}" for way in ("best of n", "RL") for x in ("alpha", "beta", "R²", "KL of the peak")]
    rows = [_row(["proxy", *columns]), _row(["---"] * (1 + len(columns)))]
    for name in results[0]:
        cells = [name]
        for logarithm in (False, True):
            of = [fits(seed[name].rl if logarithm else seed[name].best, logarithm) for seed in results]
            cells += [_text([100 * x.alpha for x in of], 1), _text([100 * x.beta for x in of], 1)]
            cells += [_text([x.explained for x in of], 2), f"{_mean_fit(of).peak:.2f}"]
        rows.append(_row(cells))
    return rows


def _mean_fit(of: Sequence[scaling.Fit]) -> scaling.Fit:
    alpha, beta = (float(np.mean([getattr(x, name) for x in of])) for name in ("alpha", "beta"))
    return dataclasses.replace(of[0], alpha=alpha, beta=beta)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(values: Sequence[float], digits: int) -> str:
    """Return mean and interval of the values that are numbers, and how many these are if some are not."""
    numbers = [x for x in values if math.isfinite(x)]
    if not numbers:
        return "none"
    x = intervals.mean(numbers)
    low, high = (f"{end:.{digits}f}" for end in (x.low, x.high))
    text = f"{x.mean:.{digits}f}" + ("" if math.isnan(x.low) else f" [{low}, {high}]")
    return text if len(numbers) == len(values) else f"{text} ({len(numbers)} of {len(values)} seeds)"


def draw(results: Sequence[Seed], path: pathlib.Path) -> None:
    """Draw gold gain, with the mean fit, and proxy gain against sqrt(KL): points are measurements of all seeds."""
    canvas = figure.Figure(figsize=(12, 6.4), layout="constrained")
    grid = canvas.subplots(2, 3, sharex="col")
    names = list(results[0])
    sizes, ensembles = names[:3], [names[1], *names[3:]]
    columns = [("RL: reward models of three sizes", sizes, True), ("RL: ensembles of 3 medium ones", ensembles, True)]
    columns.append(("best of n, n = 1 to 64", names, False))
    for (title, shown, rl), (top, bottom) in zip(columns, grid.T, strict=True):
        for name in shown:
            color = plots.COLORS[names.index(name)]
            _line(top, bottom, [seed[name].rl if rl else seed[name].best for seed in results], name, color, rl)
        plots.decorate(top, title, "", "gold: points of accuracy gained")
        plots.decorate(bottom, "", "sqrt(KL from the base in nats)", "proxy: nats gained")
        top.axhline(0.0, color=plots.GREY, linewidth=0.8)
        top.legend(frameon=False, fontsize=9)
    canvas.savefig(path, dpi=100)


def _line(top: axes.Axes, bottom: axes.Axes, curves: Sequence[Curve], name: str, color: str, rl: bool) -> None:
    for curve in curves:
        d = np.sqrt(np.maximum(curve.kl, 0.0))
        top.plot(d, 100 * np.array(gain(curve)), ".", markersize=4, color=color, alpha=0.4)
        bottom.plot(
            d, np.array(curve.proxy) - curve.proxy[0], ".-", linewidth=0.8, markersize=4, color=color, alpha=0.5
        )
    mean = _mean_fit([fits(curve, rl) for curve in curves])
    grid = np.linspace(0.01, max(0.1, *(math.sqrt(max(0.0, *c.kl)) for c in curves)), 200)
    top.plot(grid, 100 * mean(grid), color=color, linewidth=2, label=name)
