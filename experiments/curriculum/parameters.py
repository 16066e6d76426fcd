"""Does learning progress over continuous parameters find the problems that can be learned among many that cannot?

python -m experiments.curriculum.parameters
"""

import dataclasses
import pathlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import figure

import rljax
from experiments.arms import decided
from experiments.worlds import seeds
from rljax import types
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots

# A weak motor on carts of up to 400 kg, under gravity of up to six times ours: most poles fall whatever is done.
TASK = "cartpole(length=(0.05, 2.0), cart=(1.0, 400.0), gravity=(1.0, 60.0), shown=True, bands=16, horizon={})"
SOURCES = {"uniform": "task()", "ALP by bands": "alp(candidates=4096)", "ALP-GMM": "alp_gmm()"}
SHOWN = 3  # which measurement the arms are compared at; the draws since the one before are shown


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs.

    Attributes:
      seeds: their number.
      measured: steps after which a run is measured; the last is its length.
      prompts: problems of a step, an episode each.
      heldout: problems of a measurement, the same for all seeds.
      horizon: the most steps of an episode.
    """

    seeds: int = 8
    measured: tuple[int, ...] = (60, 120, 180, 240, 360, 480, 720, 960)
    prompts: int = 16
    heldout: int = 2048
    horizon: int = 200


QUICK = Size(2, (1, 2, 3, 4), 4, 16, 20)


def config(size: Size) -> Any:
    """Return a config with a phase for each source."""
    c = rljax.default_config()
    c.task, c.algorithm = TASK.format(size.horizon), "ppo(gamma=0.99, kl=0.0, value_clip=None)"
    c.seam.reward = "scale(0.05)"
    c.model.kind = "mlp"
    c.model.mlp.normalise = True
    c.mesh.data = 1
    c.batch.update({"prompts": size.prompts, "samples": 1})
    c.learner.update({"epochs": 4, "minibatches": 4, "clip_norm": 0.5})
    c.phases = tuple(f"arm{number}" for number in range(len(SOURCES)))
    for name, source in zip(c.phases, SOURCES.values(), strict=True):
        c.phase[name] = rljax.phase(steps=size.measured[-1], optimizer="adam(learning_rate=1e-3)")
        c.phase[name].seam.source = source
    return c


def start(size: Size) -> Callable[[int], Any]:
    """Return the function that runs all arms of a seed: the share of held-out problems solved, and what was drawn."""
    built = dict(zip(SOURCES, seeds.build(config(size)).values(), strict=True))
    index = jnp.arange(size.heldout, dtype=jnp.int32)
    keys = jax.random.split(seeds.key(1_000_003), size.heldout)

    def solved(step: Any, state: types.TrainState) -> float:
        ended = step.act(state.params["policy"], index, keys, "heldout", 0.0)
        return float(np.mean(np.asarray(ended.outcome) == types.Outcome.CORRECT))

    def run(step: Any, seed: int) -> dict[str, Any]:
        state = seeds.begin(step, None, seed)
        curve, drawn = [(0, solved(step, state))], []
        for number in range(1, size.measured[-1] + 1):
            rows = step.rollout(state, seeds.key(seed))
            if size.measured[SHOWN - 1] < number <= size.measured[SHOWN]:
                drawn.append(np.asarray(step.setup.task.parameters(rows.index, "train"))[:, 1:])
            state, _ = step.update(state, rows, seeds.key(seed))
            if number in size.measured:
                curve.append((number, solved(step, state)))
        points = np.concatenate(drawn)
        low = np.mean(np.all(points < 0.25, axis=1))
        return {"curve": curve, "low": float(low)} | ({"drawn": points.round(3).tolist()} if seed == 0 else {})

    def one(seed: int) -> dict[str, Any]:
        out = {name: run(step, seed) for name, step in built.items()}
        print(f"seed {seed}:", {name: arm["curve"] for name, arm in out.items()}, flush=True)
        return out

    return one


def solved(results: Sequence[Mapping[str, Any]], arm: str, step: int) -> dict[Hashable, float]:
    """Return the share of held-out problems that an arm solves after a step, by seed."""
    return {seed: dict(map(tuple, r[arm]["curve"]))[step] for seed, r in enumerate(results)}


def table(results: Sequence[Mapping[str, Any]], size: Size) -> str:
    """Return the tables of the page, in percent."""
    early, last = size.measured[SHOWN], size.measured[-1]
    claims = (("ALP-GMM", "uniform", early), ("ALP-GMM", "ALP by bands", early), ("ALP-GMM", "uniform", last))
    cases = []
    for a, b, step in claims:
        gap = intervals.difference(solved(results, b, step), solved(results, a, step), bounds=intervals.UNIT)
        cases.append((f"After {step} steps, {a} solves more than {b}", gap, 0.0, False))
    lines = decided(cases)
    lines += ["", f"| source | solved after {early} steps | after {last} | drawn from the lowest sixteenth |"]
    lines.append("| --- " * 4 + "|")
    for name in SOURCES:
        columns = *(solved(results, name, step).values() for step in (early, last)), (r[name]["low"] for r in results)
        lines.append(f"| {name} | " + " | ".join(seeds.percent([*column]) for column in columns) + " |")
    return "\n".join(lines)


def draw(results: Sequence[Mapping[str, Any]], size: Size, path: pathlib.Path) -> None:
    """Draw the curves of all seeds, and what the first seed drew before the comparison."""
    canvas = figure.Figure(figsize=(10, 3.4), layout="constrained")
    left, *others = canvas.subplots(1, 3, width_ratios=(1.5, 1, 1))
    for color, name in zip(plots.COLORS, SOURCES, strict=False):
        curves = np.array([r[name]["curve"] for r in results])
        left.plot(curves[0, :, 0], 100 * curves[:, :, 1].T, color=color, linewidth=0.6, alpha=0.4)
        left.plot(curves[0, :, 0], 100 * curves[:, :, 1].mean(axis=0), color=color, linewidth=2.2, label=name)
    plots.decorate(left, "held-out problems solved", "step", "%")
    left.legend(frameon=False, fontsize=9)
    for ax, name, color in zip(others, ("uniform", "ALP-GMM"), (plots.COLORS[0], plots.COLORS[2]), strict=True):
        cart, gravity = np.array(results[0][name]["drawn"]).T
        ax.scatter(1 + 399 * cart, 1 + 59 * gravity, s=3, color=color)
        low, high = size.measured[SHOWN - 1], size.measured[SHOWN]
        plots.decorate(ax, f"{name}, {low} to {high}", "cart, kg", "gravity, m/s²")
        ax.set(xlim=(0, 400), ylim=(0, 60))
    canvas.savefig(path, dpi=100)


def main() -> None:
    """Run the seeds that are not stored, print the tables and draw the figure."""
    given = seeds.arguments(__doc__)
    size = QUICK if given.quick else Size()
    results = seeds.resumed(given.out / "parameters.json", size, range(size.seeds), lambda: start(size))
    print(table(results, size))
    draw(results, size, given.out / "parameters.png")


if __name__ == "__main__":
    main()
