"""On-policy distillation of a stronger policy against GRPO from the same base.

python -m experiments.distillation.teacher

The teacher is the base after GRPO; the student is the base again, taught log-prob by log-prob on its own samples.
"""

import dataclasses
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from experiments.worlds import seeds
from rljax import sampling, types
from rljax.run.reports import intervals
from rljax.training import phases, steps

TASK = "arithmetic(operands=2, digits=2, slip=0.6, noise=0.25)"  # that of the quickstart
ARMS = {"GRPO": "grpo(kl=0.0)", "distillation": "on_policy_distillation(teachers=('teacher',))"}
WITHIN = 0.03  # of the teacher's accuracy


@dataclasses.dataclass(frozen=True)
class Size(seeds.Size):
    """How much the study runs."""

    every: int = 10  # steps between two measurements
    samples: int = 8


FULL = Size(seeds=5, clone=300, steps=150, prompts=256, layers=2, width=96)
QUICK = Size(seeds=2, clone=1, steps=2, prompts=4, layers=1, width=16, every=1, samples=2)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One arm of one seed: held-out accuracy, and the exact KL from the teacher, in nats a token, against the step."""

    accuracy: seeds.Curve
    kl: seeds.Curve

    def needed(self, target: float) -> float:
        """Return the first measured step at which the accuracy is at least ``target``; infinity without one."""
        return next((step for step, x in self.accuracy if x >= target), math.inf)


def build(size: Size) -> dict[str, steps.Step]:
    """Return the steps: "clone", and one of each arm."""
    names = {name: f"arm{number}" for number, name in enumerate(ARMS)}
    c = seeds.config(size, TASK, {names[n]: algorithm for n, algorithm in ARMS.items()}, learning_rate=3e-4)
    c.batch.update({"prompts": 32 if size.seeds > 2 else 4, "samples": size.samples})
    c.phase.clone.batch.prompts = 8 * c.batch.prompts
    c.phase.clone.optimizer = "adamw(learning_rate=2e-3, weight_decay=0.0)"
    c.module.teacher = rljax.module()
    built = seeds.build(c)
    return {"clone": built["clone"], **{name: built[phase] for name, phase in names.items()}}


class Measure:
    """Held-out accuracy of a policy, and its exact KL from another on the tokens that it wrote."""

    def __init__(self, step: steps.Step, prompts: int):
        """Compile for the first ``prompts`` held-out prompts, one sample of each."""
        self._step, self._index = step, jnp.arange(prompts, dtype=jnp.int32)
        setup, needs = step.setup, types.Needs(divergence=frozenset({"reverse_kl"}))
        self._score = jax.jit(
            lambda params, rows, teacher: phases.score(setup, "policy", params, rows, needs, reference=teacher)
        )

    def __call__(self, params: types.Tree, teacher: types.Tree) -> tuple[float, float]:
        """Return (accuracy, KL(policy | teacher) in nats a token)."""
        asked = self._step.setup.task.prompts(self._index, "heldout")
        keys = sampling.row_keys(seeds.key(1_000_003), jnp.int32(0), self._index, jnp.zeros_like(self._index))
        out = self._step.generate(params, asked, keys, 1, self._step.setup.settings.sampler)
        right = np.asarray(self._step.verify(self._index, out.token, out.mask).outcome) == types.Outcome.CORRECT
        context = types.Context(token=asked.token, mask=asked.mask)
        action = types.Action(token=out.token, length=out.length)
        rows = types.Rollout(out.mask, jnp.zeros(right.shape), self._index, context=context, action=action)
        kl = self._score(params, rows, teacher).divergence["reverse_kl"]
        return float(right.mean()), float(jnp.sum(kl * out.mask) / jnp.sum(out.mask))


def train(
    step: steps.Step, start: types.TrainState, seed: int, size: Size, measure: Measure, teacher: types.Tree
) -> tuple[types.TrainState, Arm]:
    """Train one arm from ``start``."""
    both: list[float] = []

    def accuracy(state: types.TrainState) -> float:
        right, kl = measure(state.params["policy"], teacher)
        both.append(kl)
        return right

    state, curve = seeds.train(step, start, seed, size.steps, accuracy, size.every)
    return state, Arm(curve, [(number, kl) for (number, _), kl in zip(curve, both, strict=True)])


def run(size: Size = FULL) -> tuple[dict[str, list[Arm]], list[float]]:
    """Return the arms of each seed, and the accuracy of each seed's teacher, which is the end of GRPO."""
    built = build(size)
    measure = Measure(built["GRPO"], size.prompts)
    arms: dict[str, list[Arm]] = {name: [] for name in ARMS}
    for seed in range(size.seeds):
        base, _ = seeds.train(built["clone"], seeds.begin(built["clone"], None, seed), seed, size.clone)
        start = seeds.begin(built["GRPO"], base, seed)
        trained, grpo = train(built["GRPO"], start, seed, size, measure, jax.tree.map(jnp.copy, base.params["policy"]))
        teacher = trained.params["policy"]
        taught = base.replace(frozen={"teacher": teacher})
        _, student = train(
            built["distillation"], seeds.begin(built["distillation"], taught, seed), seed, size, measure, teacher
        )
        for name, arm in zip(ARMS, (grpo, student), strict=True):
            arms[name].append(arm)
            print(f"seed {seed}, {name}: {arm.accuracy}, KL {[round(kl, 4) for _, kl in arm.kl]}", flush=True)
    return arms, [arm.accuracy[-1][1] for arm in arms["GRPO"]]


def table(arms: dict[str, list[Arm]], teachers: list[float], size: Size) -> str:
    """Return the table of the page; an arm that does not come within reach counts with its steps, a lower bound."""
    lines = [f"teacher: {seeds.percent(teachers)} %", ""]
    lines += ["| arm | held-out accuracy, % | minus the teacher's, points | steps until within 3 points |"]
    lines += ["| --- | --- | --- | --- |"]
    for name, seeds_ in arms.items():
        last = [arm.accuracy[-1][1] for arm in seeds_]
        needed = [min(arm.needed(t - WITHIN), float(size.steps)) for arm, t in zip(seeds_, teachers, strict=True)]
        x = intervals.mean(needed)
        span = "" if math.isnan(x.low) else f" [{x.low:.0f}, {x.high:.0f}]"
        lines.append(f"| {name} | {seeds.percent(last)} | {seeds.gap(teachers, last)} | {x.mean:.0f}{span} |")
    kl = [arm.kl for arm in arms["distillation"]]
    lines += ["", f"KL from the teacher, nats a token: {np.mean([k[0][1] for k in kl]):.4f} at the start, "]
    lines[-1] += f"{np.mean([k[-1][1] for k in kl]):.4f} at the end, smallest {min(x for k in kl for _, x in k):.4f}"
    return "\n".join(lines)


def main(size: Size, out: pathlib.Path) -> None:
    """Run the study, print its table and draw its figure."""
    arms, teachers = run(size)
    print(table(arms, teachers, size))
    seeds.draw({n: [a.accuracy for a in s] for n, s in arms.items()}, "sums: held-out accuracy", out / "teacher.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__)
    main(QUICK if given.quick else FULL, given.out)
