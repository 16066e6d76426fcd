"""Is a mixture of domains that a surrogate over runs picks better than equal parts?

python -m experiments.curriculum.mixtures
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import figure

import rljax
from experiments.arms import ADAM
from experiments.worlds import seeds
from rljax.run import loop
from rljax.run.members import mixtures, sweep
from rljax.run.reports.pages import plots

DIGITS = (1, 2, 3)
CANDIDATES = 65_536  # prompts that are drawn from
UNIFORM = tuple(1 / len(DIGITS) for _ in DIGITS)


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs.

    Attributes:
      seeds: their number.
      task: its domains are mixed.
      clone: steps on demonstrations, in equal parts.
      steps: of GRPO.
      prompts: of a step.
      heldout: prompts of an evaluation, of which the first half scores mixtures, and the second compares arms.
      samples: of each.
      layers: of the policy.
      width: of the policy.
    """

    seeds: int = 5
    task: str = f"arithmetic(digits={DIGITS}, slip=0.4, noise=0.1)"
    clone: int = 300
    steps: int = 80
    prompts: int = 32
    heldout: int = 768
    samples: int = 4
    layers: int = 2
    width: int = 96


QUICK = Size(2, f"arithmetic(digits={DIGITS}, working=False)", 1, 2, 4, 8, 2, 1, 16)


def config(size: Size, *phases: str) -> Any:
    """Return a config whose phases are ``clone``, or ``clone`` and ``main``."""
    c = rljax.default_config()
    c.task, c.algorithm = size.task, "grpo(kl=0.0)"
    c.model.update({"layers": size.layers, "width": size.width, "heads": 2, "kv_heads": 2, "hidden": 3 * size.width})
    c.model.remat = "none"
    c.mesh.data = 1
    c.batch.update({"prompts": size.prompts, "samples": 8})
    c.log.update({"rollout_rows": 0, "report": False, "sinks": "none"})
    c.evaluation.update({"final_prompts": size.heldout, "final_samples": size.samples})
    c.phases = phases
    clone = {"algorithm": "sft()", "steps": size.clone, "batch": {"prompts": 4 * size.prompts}, "evaluate": "base"}
    c.phase.clone = rljax.phase(**clone, optimizer=ADAM.format(2e-3), warmup=min(30, size.clone))
    if "main" in phases:
        c.phase.main = rljax.phase(steps=size.steps, optimizer=ADAM.format(3e-4), warmup=5, evaluate="result")
    return c


def score(result: loop.Result) -> float:
    """Return pass@1 on the first half of the held-out prompts."""
    return float(np.mean(halves(result)[0]))


def halves(result: loop.Result) -> np.ndarray:
    """Return the share of right samples of each prompt of the last evaluation, ``[2, prompts / 2]``."""
    last = result.evaluations[-1]
    return np.array(last["correct"], np.float64).reshape(2, -1) / last["samples"]


def ended(run: sweep.Run, size: Size) -> list[float]:
    """Return pass@1 on the second half of the held-out prompts: of all, and of each domain."""
    assert run.result is not None, run.failure
    right, task = halves(run.result)[1], run.result.program.setups[-1].task
    domain = np.asarray(task.domain(np.arange(size.heldout, dtype=np.int32), "heldout"))[size.heldout // 2 :]
    return [float(right.mean()), *(float(right[domain == d].mean()) for d in range(len(DIGITS)))]


def one(size: Size, seed: int) -> dict[str, Any]:
    """Clone, search, and train the arms from the clone with another seed; return what the page needs."""
    with tempfile.TemporaryDirectory() as folder:
        (base,) = rljax.train_many(config(size, "clone"), {"seed": [seed]}, f"{folder}/base", progress=False)
        c = config(size, "clone", "main")
        c.seed, c.checkpoint.init = seed, f"{base.workdir}@clone"
        given = mixtures.design(len(DIGITS))
        result = mixtures.search(c, given, f"{folder}/search", candidates=CANDIDATES, score=score, progress=False)
        scores = [score(run.result) for run in result.runs if run.result is not None]
        arms = {"equal parts": UNIFORM, "best that ran": given[int(np.argmax(scores))], "chosen": result.weights}
        c.seed = 100 + seed
        every = sorted({*arms.values()})
        runs = mixtures.train(c, every, f"{folder}/arms", candidates=CANDIDATES, progress=False)
        of = dict(zip(every, runs, strict=True))
        out = {
            "runs": [{"weights": w, "score": s} for w, s in zip(given, scores, strict=True)],
            "predicted": result.predicted,
            "errors": result.errors,
            "base": ended(base, size),
            "arms": {name: {"weights": w, "ended": ended(of[w], size)} for name, w in arms.items()},
        }
    print(f"seed {seed}: {out['arms']}", flush=True)
    return out


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page, in percent."""
    head = ["", *(f"{d} digit{'s' * (d > 1)}" for d in DIGITS)]
    lines = ["| | weights, mean |" + "".join(f" {h or 'all'} |" for h in head), "| --- " * (2 + len(head)) + "|"]
    base = np.array([r["base"] for r in results])
    cells = " | ".join(seeds.percent(list(x)) for x in base.T)
    lines.append(f"| clone, where all start | | {cells} |")
    for name in results[0]["arms"]:
        arm = [r["arms"][name] for r in results]
        weights = ", ".join(f"{x:.2f}" for x in np.mean([a["weights"] for a in arm], axis=0))
        cells = " | ".join(seeds.percent(list(x)) for x in np.array([a["ended"] for a in arm]).T)
        lines.append(f"| {name} | {weights} | {cells} |")
    first = {name: [r["arms"][name]["ended"][0] for r in results] for name in results[0]["arms"]}
    for name in ("equal parts", "best that ran"):
        lines.append(f"| chosen minus {name} | | {seeds.gap(first[name], first['chosen'])} |" + " |" * len(DIGITS))
    off = [abs(r["predicted"] - r["arms"]["chosen"]["ended"][0]) for r in results]
    lines += ["", f"The prediction at the chosen mixture is off by {100 * np.mean(off):.1f} points, mean of seeds."]
    return "\n".join(lines)


def draw(results: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draw the mean score of each mixture that ran, on the triangle, and the chosen ones."""
    corners = np.array([(0.0, 0.0), (1.0, 0.0), (0.5, np.sqrt(0.75))])
    weights = np.array([run["weights"] for run in results[0]["runs"]])
    means = np.mean([[run["score"] for run in r["runs"]] for r in results], axis=0)
    canvas = figure.Figure(figsize=(6, 4.6), layout="constrained")
    ax = canvas.subplots()
    x, y = np.meshgrid(np.linspace(0, 1, 201), np.linspace(0, np.sqrt(0.75), 201))
    third = y / np.sqrt(0.75)
    every = np.stack([1 - (x - 0.5 * third) - third, x - 0.5 * third, third], axis=-1)
    values = mixtures.features(every.reshape(-1, 3)) @ mixtures.fit(weights, means)
    inside = np.where(np.all(every > -1e-9, axis=-1), values.reshape(x.shape), np.nan)
    lines = ax.contour(x, y, 100 * inside, colors=plots.GREY, linewidths=0.8)
    ax.clabel(lines, fontsize=8)
    places = weights @ corners
    ax.scatter(*places.T, color=plots.COLORS[0], zorder=3, label="mixtures that ran, mean score")
    for place, mean in zip(places, means, strict=True):
        ax.annotate(f"{100 * mean:.1f}", place, xytext=(6, 5), textcoords="offset points", fontsize=9)
    chosen = np.array([r["arms"]["chosen"]["weights"] for r in results]) @ corners
    ax.scatter(*chosen.T, color=plots.COLORS[1], marker="x", zorder=4, label="chosen, each seed")
    ax.plot(*corners[[0, 1, 2, 0]].T, color=plots.GREY, linewidth=0.8)
    for corner, digits, below in zip(corners, DIGITS, (-18, -18, 18), strict=True):
        name = f"{digits} digit{'s' * (digits > 1)}"
        ax.annotate(name, corner, xytext=(0, below), textcoords="offset points", ha="center", va="center")
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.0), aspect="equal")
    ax.set_axis_off()
    ax.set_title("held-out pass@1 against the mixture, %, and its surrogate", fontsize=10)
    canvas.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    canvas.savefig(path, dpi=100)


def main() -> None:
    """Run the seeds that are not stored, print the table and draw the figure."""
    given = seeds.arguments(__doc__)
    size = QUICK if given.quick else Size()
    results = seeds.resumed(given.out / "mixtures.json", size, range(size.seeds), lambda: lambda seed: one(size, seed))
    print(table(results))
    draw(results, given.out / "mixtures.png")


if __name__ == "__main__":
    main()
