"""A reward model trained on pairs of the base's completions, and the policy trained on its scores alone.

python -m experiments.reward_model.pairs
"""

import dataclasses
import pathlib

import rljax
from experiments.worlds import seeds
from rljax import types
from rljax.run import ranking
from rljax.training import steps

TASK = "arithmetic(operands=2, digits=2, slip=0.6, noise=0.25)"  # that of the quickstart
ARMS = {"verifier": "", "reward model": "learned()"}  # the seam ``reward`` of each


@dataclasses.dataclass(frozen=True)
class Size(seeds.Size):
    """How much the study runs."""

    pairs: int = 0  # steps of the reward model
    samples: int = 8


FULL = Size(seeds=5, clone=300, steps=150, prompts=256, layers=2, width=96, pairs=150)
QUICK = Size(seeds=2, clone=1, steps=2, prompts=4, layers=1, width=16, pairs=2, samples=2)
EVALUATIONS = 5


@dataclasses.dataclass(frozen=True)
class Seed:
    """One seed: held-out ranking of the base's completions, and curves of accuracy and learned reward by arm."""

    ranking: dict
    accuracy: dict[str, seeds.Curve]
    learned: dict[str, seeds.Curve]


def build(size: Size) -> dict[str, steps.Step]:
    """Return the steps: "clone", "reward", and one of each arm."""
    phases = {name: f"arm{number}" for number, name in enumerate(ARMS)}
    c = seeds.config(size, TASK, dict.fromkeys(phases.values(), "grpo(kl=0.0)"), learning_rate=3e-4)
    c.batch.update({"prompts": 32 if size.seeds > 2 else 4, "samples": size.samples})
    c.phase.clone.batch.prompts = 8 * c.batch.prompts
    c.phase.clone.optimizer = "adamw(learning_rate=2e-3, weight_decay=0.0)"
    c.phase.reward = rljax.phase(
        algorithm="bradley_terry()",
        steps=size.pairs,
        optimizer="adamw(learning_rate=1e-3, weight_decay=0.0)",
        warmup=10,
    )
    c.phases = ("clone", "reward", *phases.values())
    for name, learned in ARMS.items():
        c.phase[phases[name]].seam.reward = learned or None
    built = seeds.build(c)
    return {"clone": built["clone"], "reward": built["reward"], **{name: built[p] for name, p in phases.items()}}


def run(size: Size = FULL) -> list[Seed]:
    """Return what each seed gave."""
    built = build(size)
    out = []
    for number in range(size.seeds):
        clone, teach = built["clone"], built["reward"]
        base, _ = seeds.train(clone, seeds.begin(clone, None, number), number, size.clone)
        model, _ = seeds.train(teach, seeds.begin(teach, base, number), number, size.pairs)
        report = ranking.report(*ranking.scored(teach, model, seeds.key(number), size.prompts, 8, "reward"))
        print(f"seed {number}: {report}", flush=True)
        result = Seed(report, {}, {})
        for name in ARMS:
            result.accuracy[name], result.learned[name] = curves(built[name], teach, model, number, size)
            print(f"seed {number}, {name}: {result.accuracy[name]}, learned {result.learned[name]}", flush=True)
        out.append(result)
    return out


def curves(
    arm: steps.Step, teach: steps.Step, model: types.TrainState, seed: int, size: Size
) -> tuple[seeds.Curve, seeds.Curve]:
    """Train an arm; return held-out accuracy and the mean reward by ``model``, against the step."""
    learned: list[float] = []

    def measure(state: types.TrainState) -> float:
        rows = model.replace(params={**model.params, "policy": state.params["policy"]})
        reward, score = ranking.scored(teach, rows, seeds.key(1_000_003), size.prompts, 4, "reward")
        learned.append(float(score.mean()))
        return float((reward > 0).mean())

    every = max(1, size.steps // EVALUATIONS)
    _, accuracy = seeds.train(arm, seeds.begin(arm, model, seed), seed, size.steps, measure, every)
    return accuracy, [(step, x) for (step, _), x in zip(accuracy, learned, strict=True)]


def table(results: list[Seed]) -> str:
    """Return the table of the page, in percent."""
    base = [next(iter(r.accuracy.values()))[0][1] for r in results]
    ranked = [r.ranking["accuracy"][0] for r in results if r.ranking["pairs"]]
    lines = [f"held-out pairs ranked right: {seeds.percent(ranked) if ranked else 'no pairs'}", ""]
    lines += ["| arm | held-out accuracy, % | gain over the base, points |", "| --- | --- | --- |"]
    lines.append(f"| base | {seeds.percent(base)} | |")
    for name in ARMS:
        last = [r.accuracy[name][-1][1] for r in results]
        lines.append(f"| {name} | {seeds.percent(last)} | {seeds.gap(base, last)} |")
    return "\n".join(lines)


def main(size: Size, out: pathlib.Path) -> None:
    """Run the study, print its table and draw its figure."""
    results = run(size)
    print(table(results))
    curves = {name: [r.accuracy[name] for r in results] for name in ARMS}
    seeds.draw(curves, "sums: held-out accuracy by reward", out / "pairs.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__)
    main(QUICK if given.quick else FULL, given.out)
