"""Is the best of a population, whose worst members continue from its best, better than the best of fixed rates?

python -m experiments.curriculum.population
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import figure

import rljax
from experiments.arms import decided
from experiments.curriculum import mixtures
from experiments.worlds import seeds
from rljax.run.evaluation import intervals
from rljax.run.members import population, sweep
from rljax.run.reports.pages import plots

RATE = "phase.main.optimizer.learning_rate"
RATES = tuple(float(f"{1e-5 * 10 ** (x / 2):.2g}") for x in range(6))  # 1e-5 to 3.2e-3
POPULATION, FIXED = "population", "fixed rates"
CLAIMS = {"best": "Its best member is above the best of fixed rates", "mean": "The mean of its members is above theirs"}


@dataclasses.dataclass(frozen=True)
class Size(mixtures.Size):
    """How much the study runs; ``steps`` is the length of a round."""

    steps: int = 20
    prompts: int = 16
    rounds: int = 4


QUICK = Size(**{**dataclasses.asdict(mixtures.QUICK), "steps": 1}, rounds=2)


def one(size: Size, seed: int) -> dict[str, Any]:
    """Clone, and train both arms from the clone; return of each round of the population, and of the end."""
    with tempfile.TemporaryDirectory() as folder:
        (base,) = rljax.train_many(mixtures.config(size, "clone"), {"seed": [seed]}, f"{folder}/base", progress=False)
        c = mixtures.config(size, "clone", "main")
        c.seed, c.checkpoint.init = 100 * (1 + seed), f"{base.workdir}@clone"
        given = {"rounds": size.rounds, "steps": size.steps, "score": mixtures.score, "progress": False}
        rounds = population.evolve(c, {RATE: RATES}, f"{folder}/population", **given)
        fields = {RATE.replace("main", f"main_{n}"): RATES for n in range(1, size.rounds + 1)}
        fields["seed"] = tuple(c.seed + m for m in range(len(RATES)))
        parts = population.in_rounds(c, size.rounds, size.steps)
        runs = rljax.train_many(parts, sweep.zipped(fields), f"{folder}/fixed", progress=False)
        out = {
            "base": mixtures.ended(base, size)[0],
            "rates": [[values[RATE] for values in r.values] for r in rounds],
            POPULATION: _measured(rounds[-1].runs, size),
            FIXED: _measured(runs, size),
        }
    print(f"seed {seed}: {out}", flush=True)
    return out


def _measured(runs: Sequence[sweep.Run], size: Size) -> list[tuple[float, float]]:
    """Return pass@1 of each member on the prompts that score it, and on the others; of failed ones -1 and 0."""
    return [(-1.0, 0.0) if r.result is None else (mixtures.score(r.result), mixtures.ended(r, size)[0]) for r in runs]


def ended(result: Mapping[str, Any], arm: str, what: str) -> float:
    """Return pass@1 on the prompts that do not score: of the member with the best score, or the mean."""
    members = result[arm]
    return max(members)[1] if what == "best" else float(np.mean([ended for _, ended in members]))


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page, in percent."""
    values = {(arm, what): [ended(r, arm, what) for r in results] for arm in (POPULATION, FIXED) for what in CLAIMS}
    cases = []
    for what, claim in CLAIMS.items():
        fixed, other = (dict[Hashable, float](enumerate(values[arm, what])) for arm in (FIXED, POPULATION))
        cases.append((claim, intervals.difference(fixed, other, bounds=intervals.UNIT), 0.0, False))
    lines = decided(cases)
    lines += ["", "| | best member | mean of members |", "| --- | --- | --- |"]
    lines.append(f"| clone, where all start | {seeds.percent([r['base'] for r in results])} | |")
    for arm in (POPULATION, FIXED):
        lines.append(f"| {arm} | " + " | ".join(seeds.percent(values[arm, what]) for what in CLAIMS) + " |")
    return "\n".join(lines)


def draw(results: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draw pass@1 against the fixed rate, and the rates of populations by round."""
    canvas = figure.Figure(figsize=(8.5, 3.4), layout="constrained")
    left, right = canvas.subplots(1, 2)
    fixed = 100 * np.array([[ended for _, ended in r[FIXED]] for r in results])
    left.plot(RATES, fixed.T, color=plots.COLORS[0], linewidth=0.8, alpha=0.4)
    left.plot(RATES, fixed.mean(axis=0), color=plots.COLORS[0], marker="o", label=FIXED)
    best = 100 * np.mean([ended(r, POPULATION, "best") for r in results])
    left.axhline(best, color=plots.COLORS[1], label=f"best of the {POPULATION}")
    left.legend(frameon=False, fontsize=9)
    for color, r in zip(plots.COLORS, results, strict=False):
        rates = np.array(r["rates"])
        right.scatter(np.repeat(range(1, 1 + len(rates)), rates.shape[1]), rates, color=color, s=14, alpha=0.6)
    left.set_xscale("log")
    right.set_yscale("log")
    right.set_xticks(range(1, 1 + len(results[0]["rates"])))
    plots.decorate(left, "held-out pass@1 at the end", "learning rate", "%")
    plots.decorate(right, "rates of the populations, a colour for each seed", "round", "learning rate")
    canvas.savefig(path, dpi=100)


def main() -> None:
    """Run the seeds that are not stored, print the tables and draw the figure."""
    given = seeds.arguments(__doc__)
    size = QUICK if given.quick else Size()
    file = given.out / "population.json"
    results = seeds.resumed(file, size, range(size.seeds), lambda: lambda seed: one(size, seed))
    print(table(results))
    draw(results, given.out / "population.png")


if __name__ == "__main__":
    main()
