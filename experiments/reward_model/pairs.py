"""A reward model trained on pairs of the base's completions, and the policy trained on its reward and a KL alone.

python -m experiments.reward_model.pairs

The base of each seed is a clone of faulty demonstrations. The verifier labels the pairs of the reward model and
measures; it pays nothing in RL. ``ARMS`` is the only thing to extend. What each seed gave is stored when it ends, in
``pairs.json``; seeds that are there are not run again, and the table and the figure have all of them.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import figure

import rljax
from experiments.worlds import seeds
from rljax import types
from rljax.run.evaluation import intervals, ranking
from rljax.run.reports.pages import plots
from rljax.training import steps

TASK = "arithmetic(operands=2, digits=2, slip=0.6, noise=0.25)"  # that of the quickstart
MODEL = "implicit_bradley_terry(center=0.01)"  # R_i + R_j of a pair is held near 0
# Coefficient of the KL from the base, in nats of the learned reward, for each arm; the first is the result. At 1 the
# optimum is the reward model itself, read as a policy: it is beta log(model / base), beta = 1.
ARMS = {"KL 1": 1.0, "KL 1/2": 0.5}


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)  # the settings were chosen on seed 0
    clone: int = 300  # steps on demonstrations
    demonstrations: int = 128  # of each of them
    pairs: int = 80  # steps of the reward model
    pair_prompts: int = 64  # of each of them
    steps: int = 80  # of RL, of each arm
    prompts: int = 32  # of each of them
    samples: int = 8
    every: int = 20  # steps of RL between two measurements
    heldout: int = 256  # prompts of a measurement
    layers: int = 2
    width: int = 96


QUICK = Size(
    seeds=(1, 2),
    clone=1,
    demonstrations=4,
    pairs=1,
    pair_prompts=4,
    steps=2,
    prompts=2,
    every=1,
    heldout=4,
    layers=1,
    width=16,
)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One arm of one seed, against the step of RL, on held-out prompts."""

    steps: list[int]
    accuracy: list[float]  # verified
    learned: list[float]  # mean reward of the same completions by the reward model, nats
    kl: list[float]  # from the base, nats a completion


@dataclasses.dataclass(frozen=True)
class Seed:
    """One seed: how the reward model ranks pairs of the base's held-out completions, and the arms of RL."""

    ranked: float  # share of pairs, averaged over prompts
    calibration_error: float
    pairs: int
    arms: dict[str, Arm]


def build(size: Size) -> dict[str, steps.Step]:
    """Return the steps: "clone", "reward", and one of each arm."""
    phases = {name: f"arm{number}" for number, name in enumerate(ARMS)}
    c = rljax.default_config()
    c.task = TASK
    c.model.update({"layers": size.layers, "width": size.width, "heads": 2, "kv_heads": 2, "hidden": 3 * size.width})
    c.model.remat = "none"
    c.mesh.data = 1
    c.batch.update({"prompts": size.prompts, "samples": size.samples})
    adam = "adamw(learning_rate={}, weight_decay=0.0)"
    c.phases = ("clone", "reward", *phases.values())
    clone = {"algorithm": "sft()", "steps": size.clone, "batch": {"prompts": size.demonstrations}}
    c.phase.clone = rljax.phase(**clone, optimizer=adam.format(2e-3), warmup=min(30, size.clone))
    model = {"algorithm": MODEL, "steps": size.pairs, "batch": {"prompts": size.pair_prompts}}
    c.phase.reward = rljax.phase(**model, optimizer=adam.format(1e-3), warmup=min(10, size.pairs))
    for name, kl in ARMS.items():
        rl = {"algorithm": f"rloo(kl={kl})", "seam": {"reward": f"implicit() | kl(coefficient={kl})"}}
        c.phase[phases[name]] = rljax.phase(
            **rl, steps=size.steps, optimizer=adam.format(3e-4), warmup=min(5, size.steps)
        )
    built = seeds.build(c)
    return {"clone": built["clone"], "reward": built["reward"], **{name: built[p] for name, p in phases.items()}}


@dataclasses.dataclass(frozen=True)
class Judge:
    """The trained reward model and the base, which is its reference."""

    step: steps.Step
    model: types.Tree
    base: types.Tree
    prompts: int

    def __call__(self, policy: types.Tree, key: types.Key, samples: int) -> tuple[types.Array, types.Array, float]:
        """Return the verifier's rewards and the learned ones of held-out completions, [P, G], and their mean KL."""
        rows = ranking.sampled(self.step, policy, key, self.prompts, samples)

        def logp(module: str, params: types.Tree) -> types.Array:
            return jnp.sum(self.step.score(module, params, rows, types.Needs()).logp * rows.mask, axis=1)

        base = logp("policy", self.base)
        learned, kl = logp("prm", self.model) - base, logp("policy", policy) - base
        return rows.reward.reshape(-1, samples), learned.reshape(-1, samples), float(jnp.mean(kl))


def one(built: dict[str, steps.Step], seed: int, size: Size) -> Seed:
    """Run a seed: the base, the reward model on pairs of it, and RL on the reward model alone, always to the end."""
    clone, reward = built["clone"], built["reward"]
    base, _ = seeds.train(clone, seeds.begin(clone, None, seed), seed, size.clone)
    kept = jax.tree.map(jnp.copy, base.params["policy"])
    model, _ = seeds.train(reward, seeds.begin(reward, base, seed), seed, size.pairs)
    judge = Judge(reward, jax.tree.map(jnp.copy, model.params["prm"]), kept, size.heldout)
    report = ranking.report(*judge(kept, seeds.key(seed), 8)[:2])
    print(f"seed {seed}: {report}", flush=True)
    arms = {}
    for name in ARMS:
        arms[name] = curves(built[name], seeds.begin(built[name], model, seed), seed, judge, size)
        print(f"seed {seed}, {name}: {arms[name]}", flush=True)
    ranked = report["accuracy"][0] if report["pairs"] else 0.5
    return Seed(ranked, report["calibration_error"] or 0.0, report["pairs"], arms)


def curves(arm: steps.Step, start: types.TrainState, seed: int, judge: Judge, size: Size) -> Arm:
    """Train an arm of RL from ``start`` and measure it."""
    learned, kl = [], []

    def measure(state: types.TrainState) -> float:
        verified, scores, distance = judge(state.params["policy"], seeds.key(1_000_003), 4)
        learned.append(float(jnp.mean(scores)))
        kl.append(distance)
        return float(jnp.mean(verified))

    _, curve = seeds.train(arm, start, seed, size.steps, measure, size.every)
    return Arm([step for step, _ in curve], [x for _, x in curve], learned, kl)


def run(size: Size, file: pathlib.Path) -> list[Seed]:
    """Return what each seed gave, those of earlier runs included; store it after each seed.

    Raises:
      ValueError: the file has seeds of another size.
    """

    def start():
        built = build(size)
        return lambda seed: dataclasses.asdict(one(built, seed, size))

    stored = seeds.resumed(file, size, size.seeds, start)
    return [Seed(**{**r, "arms": {name: Arm(**arm) for name, arm in r["arms"].items()}}) for r in stored]


def table(results: Sequence[Seed]) -> str:
    """Return the table of the page: shares in percent, the rest in nats; means over seeds, Student's 95 % intervals."""
    lines = [f"held-out pairs ranked right: {seeds.percent([r.ranked for r in results])} %; calibration error "]
    lines[0] += f"{_mean([r.calibration_error for r in results])}"
    lines += ["", "| arm | verified accuracy, % | gain, points | best step's, % | learned reward | KL from the base |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    first = [next(iter(r.arms.values())) for r in results]
    base, score = [arm.accuracy[0] for arm in first], _mean([arm.learned[0] for arm in first])
    lines.append(f"| base | {seeds.percent(base)} | | | {score} | 0 |")
    for name in results[0].arms:
        arms = [r.arms[name] for r in results]
        last = [arm.accuracy[-1] for arm in arms]
        cells = [seeds.percent(last), seeds.gap(base, last), seeds.percent([max(arm.accuracy) for arm in arms])]
        cells += [_mean([arm.learned[-1] for arm in arms]), _mean([arm.kl[-1] for arm in arms])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> str:
    x = intervals.mean(values)
    return f"{x.mean:.2f}" if np.isnan(x.low) else f"{x.mean:.2f} [{x.low:.2f}, {x.high:.2f}]"


def draw(results: Sequence[Seed], path: pathlib.Path) -> None:
    """Draw verified accuracy and learned reward against the step of RL; thick lines are means."""
    canvas = figure.Figure(figsize=(8, 3.4), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for color, name in zip(plots.COLORS, results[0].arms, strict=False):
        arms = [r.arms[name] for r in results]
        for ax, values in (
            (left, 100 * np.array([arm.accuracy for arm in arms])),
            (right, np.array([arm.learned for arm in arms])),
        ):
            ax.plot(arms[0].steps, values.T, color=color, linewidth=0.8, alpha=0.4)
            ax.plot(arms[0].steps, values.mean(axis=0), color=color, linewidth=2.2, label=name)
    plots.decorate(left, "verified held-out accuracy", "step of RL", "%")
    plots.decorate(right, "learned reward", "step of RL", "nats a completion")
    left.legend(frameon=False, fontsize=9)
    canvas.savefig(path, dpi=100)


def main(size: Size, out: pathlib.Path) -> None:
    """Run the study, print its table, and write its figure and what the seeds gave."""
    results = run(size, out / "pairs.json")
    print(table(results))
    draw(results, out / "pairs.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every part, too short to learn")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="folder of the results")
    parser.add_argument("--seeds", default="1:6", help="from the first to before the last")
    given = parser.parse_args()
    numbers = tuple(range(*map(int, given.seeds.split(":"))))
    main(QUICK if given.quick else Size(seeds=numbers), given.out)
