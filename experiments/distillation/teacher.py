"""On-policy distillation of a stronger policy against GRPO from the same base.

python -m experiments.distillation.teacher

The teacher is the end of GRPO; the student is the base again, and is taught on its own samples: by the log-prob of
the sampled token, or by whole distributions. The curves of each seed are stored in ``teacher.json`` when it ends; seeds
that are there are not run again, and the table and the figure have all of them.
"""

import argparse
import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import figure

import rljax
from experiments.worlds import seeds
from rljax import sampling, types
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots
from rljax.training import phases, steps

TASK = "arithmetic(operands=2, digits=2, slip=0.6, noise=0.25)"  # that of the quickstart
ARMS = {
    "GRPO": "grpo(kl=0.0)",
    "sampled token": "on_policy_distillation(('teacher',))",
    "exact": "gkd(('teacher',), 'reverse_kl')",
}
WITHIN = 0.03  # of the teacher's accuracy


@dataclasses.dataclass(frozen=True)
class Size(seeds.Size):
    """How much the study runs."""

    prompts: int = 512  # of a measurement
    every: int = 20  # steps between two measurements
    teacher: int = 240  # steps of GRPO
    batch: int = 32  # prompts of a step
    samples: int = 8


FULL = Size(seeds=5, clone=300, steps=160, width=64)
QUICK = Size(seeds=2, clone=1, steps=2, layers=1, width=16, prompts=4, every=1, teacher=2, batch=4, samples=2)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One arm of one seed: held-out accuracy, and the exact KL from the teacher in nats a token, against the step."""

    accuracy: list[Sequence[float]]
    kl: list[Sequence[float]]

    def needed(self, target: float) -> float:
        """Return the step at which the accuracy first is ``target``, between measurements; infinity without one."""
        if self.accuracy[0][1] >= target:
            return 0.0
        for (before, low), (step, high) in itertools.pairwise(self.accuracy):
            if high >= target:
                return before + (target - low) / (high - low) * (step - before)
        return math.inf


def build(size: Size) -> dict[str, steps.Step]:
    """Return the steps: "clone", and one of each arm."""
    names = {name: f"arm{number}" for number, name in enumerate(ARMS)}
    c = seeds.config(size, TASK, {names[n]: algorithm for n, algorithm in ARMS.items()}, learning_rate=5e-4)
    c.batch.update({"prompts": size.batch, "samples": size.samples})
    c.phase.clone.batch.prompts = 4 * size.batch
    c.log.update({"rollout_rows": 0})
    c.module.teacher = rljax.module()
    built = seeds.build(c)
    return {"clone": built["clone"], **{name: built[phase] for name, phase in names.items()}}


Measure = Callable[[types.Tree, types.Tree], tuple[float, float]]


def measure(step: steps.Step, prompts: int) -> Measure:
    """Return a function of (policy, teacher): held-out accuracy, and KL(policy || teacher) in nats a token.

    Both are of one sample of each of the first held-out prompts, at temperature 1; the keys are always the same.
    """
    setup, index = step.setup, jnp.arange(prompts, dtype=jnp.int32)
    needs = types.Needs(divergence=frozenset({"reverse_kl"}))
    whole = functools.partial(phases.score, setup, "policy", samples=0)  # each row has a prompt of its own
    score = jax.jit(lambda params, rows, teacher: whole(params, rows, needs, reference=teacher))

    def measured(params: types.Tree, teacher: types.Tree) -> tuple[float, float]:
        asked = setup.task.prompts(index, "heldout")
        keys = sampling.row_keys(seeds.key(1_000_003), jnp.int32(0), index, jnp.zeros_like(index))
        out = step.generate(params, asked, keys, 1, setup.settings.sampler)
        right = np.asarray(step.verify(index, "heldout", out.token, out.mask).outcome) == types.Outcome.CORRECT
        context = types.Context(token=asked.token, mask=asked.mask)
        action = types.Action(token=out.token, length=out.length)
        rows = types.Rollout(out.mask, jnp.zeros(prompts), index, context=context, action=action)
        kl = score(params, rows, teacher).divergence["reverse_kl"]
        return float(right.mean()), float(jnp.sum(kl * out.mask) / jnp.sum(out.mask))

    return measured


def train(
    step: steps.Step, state: types.TrainState, seed: int, count: int, every: int, measure: Measure, teacher: types.Tree
) -> tuple[types.TrainState, Arm]:
    """Train one arm from ``state`` for ``count`` steps; return its state and curves."""
    kl: list[float] = []

    def accuracy(state: types.TrainState) -> float:
        right, apart = measure(state.params["policy"], teacher)
        kl.append(apart)
        return right

    state, curve = seeds.train(step, state, seed, count, accuracy, every)
    return state, Arm(list(curve), [(number, x) for (number, _), x in zip(curve, kl, strict=True)])


def one(built: Mapping[str, steps.Step], measure: Measure, seed: int, size: Size) -> dict[str, Arm]:
    """Return the arms of a seed. The KL of GRPO is from the base, since its end is the teacher."""
    base, _ = seeds.train(built["clone"], seeds.begin(built["clone"], None, seed), seed, size.clone)
    start = seeds.begin(built["GRPO"], base, seed)
    before = jax.tree.map(jnp.copy, base.params["policy"])
    trained, grpo = train(built["GRPO"], start, seed, size.teacher, size.every, measure, before)
    teacher, arms = trained.params["policy"], {"GRPO": grpo}
    for name in [*ARMS][1:]:
        taught = seeds.begin(built[name], base, seed).replace(frozen={"teacher": jax.tree.map(jnp.copy, teacher)})
        _, arms[name] = train(built[name], taught, seed, size.steps, size.every, measure, teacher)
    for name, arm in arms.items():
        print(f"seed {seed}, {name}: {arm.accuracy}, KL {[round(x, 4) for _, x in arm.kl]}", flush=True)
    return arms


def run(numbers: Sequence[int], size: Size, file: pathlib.Path) -> dict[str, list[Arm]]:
    """Return the arms of each seed, those of earlier runs included; store them after each seed.

    Raises:
      ValueError: the file has curves of another size.
    """

    def start():
        built = build(size)
        measured = measure(built["GRPO"], size.prompts)
        return lambda seed: {n: dataclasses.asdict(arm) for n, arm in one(built, measured, seed, size).items()}

    stored = seeds.resumed(file, size, numbers, start, what="curves")
    return {name: [Arm(**arms[name]) for arms in stored] for name in ARMS}


def table(arms: Mapping[str, Sequence[Arm]], size: Size) -> str:
    """Return the table of the page; an arm that does not come within reach counts with its steps, a lower bound."""
    teachers = [arm.accuracy[-1][1] for arm in arms["GRPO"]]
    first = [arm.accuracy[0][1] for arm in arms["GRPO"]]
    lines = ["| arm | accuracy, % | minus the teacher's, points | steps until within 3 points | share of GRPO's |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    lines += [f"| base | {seeds.percent(first)} | {seeds.gap(teachers, first)} | | |"]
    within = {n: [a.needed(t - WITHIN) for a, t in zip(arm, teachers, strict=True)] for n, arm in arms.items()}
    for name, arm in arms.items():
        last = [a.accuracy[-1][1] for a in arm]
        needed = [min(x, arm[0].accuracy[-1][0]) for x in within[name]]
        gap = "" if name == "GRPO" else seeds.gap(teachers, last)
        share = [math.log(max(x, 1.0) / max(y, 1.0)) for x, y in zip(needed, within["GRPO"], strict=True)]
        bound = "" if all(map(math.isfinite, within[name])) else ">= "
        cells = [seeds.percent(last), gap, bound + _text(intervals.mean(needed), ".0f")]
        cells += ["" if name == "GRPO" else bound + _text(intervals.mean(share), ".2f", math.exp)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| KL from the teacher, nats a token | start | smallest | end |", "| --- | --- | --- | --- |"]
    for name in [*ARMS][1:]:
        kl = np.array([[x for _, x in arm.kl] for arm in arms[name]])
        cells = [_text(intervals.mean(x), ".4f") for x in (kl[:, 0], kl.min(1), kl[:, -1])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(x: intervals.Estimate, form: str, of: Callable[[float], float] = float) -> str:
    mean, low, high = (format(of(v), form) for v in (x.mean, x.low, x.high))
    return mean if math.isnan(x.low) else f"{mean} [{low}, {high}]"


def draw(arms: Mapping[str, Sequence[Arm]], path: pathlib.Path) -> None:
    """Draw accuracy and KL against the step: a thin line for each seed, a thick one for their mean."""
    canvas = figure.Figure(figsize=(9, 3.6), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for color, (name, arm) in zip(plots.COLORS, arms.items(), strict=False):
        panels = [(left, [a.accuracy for a in arm], 100.0)]
        panels += [(right, [a.kl for a in arm], 1.0)] if name != "GRPO" else []
        for ax, curves, unit in panels:
            y = unit * np.array([[x for _, x in curve] for curve in curves])
            x = [step for step, _ in curves[0]]
            ax.plot(x, y.T, color=color, linewidth=0.8, alpha=0.4)
            mean = y.mean(0) if ax is left else np.exp(np.log(np.maximum(y, 1e-6)).mean(0))
            ax.plot(x, mean, color=color, linewidth=2.2, label=name)
    right.set_yscale("log")
    plots.decorate(left, "sums: held-out accuracy", "step", "%")
    plots.decorate(right, "exact KL from the teacher", "step", "nats a token")
    left.legend(frameon=False, fontsize=9)
    canvas.savefig(path, dpi=100)


def main(numbers: Sequence[int], size: Size, out: pathlib.Path) -> None:
    """Run the study, print its tables, and write its figure and its curves."""
    arms = run(numbers, size, out / "teacher.json")
    print(table(arms, size))
    draw(arms, out / "teacher.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every part, too short to learn")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="folder of the figure")
    parser.add_argument("--seeds", default="", help="from the first to before the last, such as 0:5")
    given = parser.parse_args()
    chosen = QUICK if given.quick else FULL
    first, last = map(int, (given.seeds or f"0:{chosen.seeds}").split(":"))
    main(tuple(range(first, last)), chosen, given.out)
