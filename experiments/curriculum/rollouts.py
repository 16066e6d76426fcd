"""How many rollouts does a source need until 90 % of sums of mixed difficulty are right?

python -m experiments.curriculum.rollouts

All arms of a seed start from the same policy, trained on faulty demonstrations. A rollout is a completion that was
sampled, also one that a filter drops. ``SOURCES`` is the only thing to extend. The curves of each seed are stored when
it ends, in ``rollouts.json``; seeds that are there are not run again, and the table and the figure have all of them.
"""

import argparse
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import figure

import rljax
from rljax import types
from rljax.data import storage
from rljax.host import backends
from rljax.run import programs
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots
from rljax.sampling import row_keys
from rljax.training import steps

CANDIDATES = 3072  # prompts of a source that keeps statistics of them
SOURCES = {
    "uniform": "task()",
    "dynamic": "dynamic(oversample=2)",
    "mopps": f"mopps(candidates={CANDIDATES})",
    "sec": f"sec(candidates={CANDIDATES})",
    "learnability": f"learnability(candidates={CANDIDATES})",
}
TARGET = 0.9


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs."""

    seeds: tuple[int, ...] = tuple(range(10))
    task: str = "arithmetic(digits=(1, 2), slip=0.4, noise=0.15)"
    clone: int = 300  # steps on demonstrations
    rollouts: int = 25_600  # of each arm, at most
    prompts: int = 32  # of a step
    samples: int = 8
    every: int = 2560  # rollouts between two measurements
    heldout: int = 256  # prompts of a measurement
    layers: int = 2
    width: int = 96


QUICK = Size(
    seeds=(0, 1),
    task="arithmetic(digits=(1, 2), working=False)",
    clone=1,
    rollouts=32,
    prompts=4,
    samples=2,
    every=16,
    heldout=4,
    layers=1,
    width=16,
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """One arm of one seed: rollouts so far, and held-out accuracy of all prompts and of each domain."""

    rollouts: list[int]
    accuracy: list[float]
    domains: list[list[float]]

    @property
    def needed(self) -> float:
        """Rollouts until the target, interpolated between measurements; infinity if it is not reached."""
        before = (0, 0.0)
        for point in zip(self.rollouts, self.accuracy, strict=True):
            if point[1] >= TARGET:
                part = (TARGET - before[1]) / (point[1] - before[1])
                return before[0] + part * (point[0] - before[0])
            before = point
        return math.inf


def config(size: Size, sources: Mapping[str, str]):
    """Return a config whose phases are ``clone`` and one of each source, by its name."""
    c = rljax.default_config()
    c.task = size.task
    c.algorithm = "grpo(kl=0.0)"
    c.model.update({"layers": size.layers, "width": size.width, "heads": 2, "kv_heads": 2, "hidden": 3 * size.width})
    c.model.remat = "none"
    c.mesh.data = 1
    c.batch.update({"prompts": size.prompts, "samples": size.samples})
    c.log.update({"rollout_rows": 0, "report": False})
    adam = "adamw(learning_rate={}, weight_decay=0.0)"
    c.phases = ("clone", *sources)
    clone = {"algorithm": "sft()", "steps": size.clone, "batch": {"prompts": 4 * size.prompts}}
    c.phase.clone = rljax.phase(**clone, optimizer=adam.format(2e-3), warmup=min(30, size.clone))
    for name, source in sources.items():
        phase = {"steps": size.rollouts // (size.prompts * size.samples), "warmup": 5, "seam": {"source": source}}
        c.phase[name] = rljax.phase(**phase, optimizer=adam.format(3e-4))
    return c


def measure(step: steps.Step, params: types.Tree, count: int) -> tuple[float, list[float]]:
    """Return the accuracy at temperature 1 on the first ``count`` held-out prompts, one sample each; by domain too."""
    task, index = step.setup.task, jnp.arange(count, dtype=jnp.int32)
    keys = row_keys(root(1_000_003), 0, index, jnp.zeros_like(index))
    out = step.generate(params, task.prompts(index, "heldout"), keys, 1, step.setup.settings.sampler)
    right = np.asarray(step.verify(index, "heldout", out.token, out.mask).outcome) == types.Outcome.CORRECT
    domain = np.asarray(task.domain(index, "heldout"))
    return float(right.mean()), [float(right[domain == d].mean()) for d in range(task.domains)]


def root(seed: int) -> types.Key:
    """Return the root key of a run."""
    return jax.random.key(seed, impl="threefry2x32")


def train(step: steps.Step, start: types.TrainState, seed: int, size: Size) -> Curve:
    """Train until the target is reached or the rollouts are spent."""
    state, curve, spent, due = step.begin(jax.tree.map(jnp.copy, start), root(seed), None), Curve([], [], []), 0, 0
    each = size.prompts * step.setup.algorithm.source.oversample * size.samples
    while True:
        if spent >= due or spent + each > size.rollouts:
            accuracy, domains = measure(step, state.params["policy"], size.heldout)
            curve.rollouts.append(spent)
            curve.accuracy.append(accuracy)
            curve.domains.append(domains)
            due += size.every
        if curve.accuracy[-1] >= TARGET or spent + each > size.rollouts:
            return curve
        assert step.fused is not None
        state, _ = step.fused(state, root(seed))
        spent += each


def run(size: Size, sources: Mapping[str, str], file: pathlib.Path) -> dict[str, list[Curve]]:
    """Return the curve of each source and seed, those of earlier runs included; store them after each seed.

    Raises:
      ValueError: the file has curves of another size.
    """
    settings = {name: value for name, value in dataclasses.asdict(size).items() if name != "seeds"}
    record = json.loads(file.read_text()) if file.exists() else {"size": settings, "seeds": {}}
    if record["size"] != settings:
        raise ValueError(f"{file}: has curves of the size {record['size']}. Set --out to another folder.")
    done: dict[str, dict[str, dict]] = record["seeds"]
    backends.start()
    c = config(size, sources)
    compiled = dict(zip(c.phases, programs.build(c, devices=jax.devices()[:1]).steps, strict=True))
    for seed in size.seeds:
        if all(name in done.get(str(seed), {}) for name in sources):
            continue
        clone = compiled["clone"]
        start = clone.begin(None, root(seed), None)
        for _ in range(size.clone):
            assert clone.fused is not None
            start, _ = clone.fused(start, root(seed))
        curves = done.setdefault(str(seed), {})
        for name in sources:
            curve = train(compiled[name], start, seed, size)
            curves[name] = dataclasses.asdict(curve)
            first, last = curve.domains[0], curve.domains[-1]
            print(f"seed {seed}, {name}: {curve.needed:.0f} rollouts; by domain {first} to {last}", flush=True)
        storage.write(file, json.dumps(record))
    whole = [curves for _, curves in sorted(done.items(), key=lambda item: int(item[0])) if {*sources} <= {*curves}]
    return {name: [Curve(**curves[name]) for curves in whole] for name in sources}


def table(curves: Mapping[str, Sequence[Curve]], size: Size) -> str:
    """Return the table of the page; where a seed has not reached the target, its budget counts, a lower bound."""
    lines = ["| source | seeds at 90 % | rollouts to 90 % | share of uniform's |", "| --- | --- | --- | --- |"]
    needed = {name: [min(c.needed, float(size.rollouts)) for c in arm] for name, arm in curves.items()}
    baseline = next(iter(needed.values()))
    for name, arm in curves.items():
        reached = sum(math.isfinite(c.needed) for c in arm)
        bound = "" if reached == len(arm) else ">= "
        ratio = [math.log(max(a, 1.0) / max(b, 1.0)) for a, b in zip(needed[name], baseline, strict=True)]
        mean, share = intervals.mean(needed[name]), intervals.mean(ratio)
        cells = f"{bound}{_text(mean, '.0f')}", _text(share, ".2f", math.exp)
        lines.append(f"| {name} | {reached} of {len(arm)} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def _text(x: intervals.Estimate, form: str, of=float) -> str:
    mean, low, high = (format(of(v), form) for v in (x.mean, x.low, x.high))
    return mean if math.isnan(x.low) else f"{mean} [{low}, {high}]"


def draw(curves: Mapping[str, Sequence[Curve]], path: pathlib.Path) -> None:
    """Draw mean accuracy, a curve that has ended counting with its last value, and the seeds at the target."""
    canvas = figure.Figure(figsize=(9, 3.6), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for color, (name, arm) in zip(plots.COLORS, curves.items(), strict=False):
        rollouts = max((c.rollouts for c in arm), key=len)
        accuracy = [c.accuracy + [c.accuracy[-1]] * (len(rollouts) - len(c.accuracy)) for c in arm]
        left.plot(rollouts, 100 * np.mean(accuracy, axis=0), color=color, linewidth=1.8, label=name)
        needed = sorted(c.needed for c in arm if math.isfinite(c.needed))
        x = [0.0, *needed, rollouts[-1]]
        right.step(x, [*range(len(needed) + 1), len(needed)], where="post", color=color, linewidth=1.8)
    left.axhline(100 * TARGET, color=plots.GREY, linewidth=0.8, linestyle=":")
    plots.decorate(left, "sums of mixed difficulty: held-out accuracy", "rollouts", "%")
    plots.decorate(right, "seeds at the target", "rollouts", f"of {len(arm)}")
    left.legend(frameon=False, fontsize=9)
    canvas.savefig(path, dpi=100)


def main(size: Size, out: pathlib.Path, sources: Mapping[str, str] = SOURCES) -> None:
    """Run the study, print its table, and write its figure and its curves."""
    curves = run(size, sources, out / "rollouts.json")
    print(table(curves, size))
    draw(curves, out / "rollouts.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every part, too short to learn")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="folder of the figure")
    parser.add_argument("--only", nargs="*", default=list(SOURCES), choices=list(SOURCES), help="some of the sources")
    parser.add_argument("--seeds", default="0:10", help="from the first to before the last")
    given = parser.parse_args()
    numbers = tuple(range(*map(int, given.seeds.split(":"))))
    main(QUICK if given.quick else Size(seeds=numbers), given.out, {name: SOURCES[name] for name in given.only})
