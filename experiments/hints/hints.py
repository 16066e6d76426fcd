"""A task whose base never succeeds: plain GRPO against sources that put a part of the solution in front of the policy.

python -m experiments.hints.hints
"""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

import rljax
from experiments.worlds import seeds
from rljax import types
from rljax.training import steps

TASK = "arithmetic(operands=2, digits=3)"  # demonstrations and hints are right
# The base has learned sums from these, and then, for a fourth as many steps, from a demonstrator that is wrong in 93 of
# 100 columns, so that three in a row are right in 1 of 3,000.
HABIT = "arithmetic(operands=2, digits=3, noise=0.93)"
FULL = seeds.Size(seeds=3, clone=400, steps=900, prompts=64)
EVALUATIONS = 6  # of each arm
ARMS = {  # algorithm, and the source in place of its own
    "GRPO": ("grpo(kl=0.0)", ""),
    "prefix, falling": ("grpo(kl=0.0)", "prefixed(linear(0.9, 0.0, 720))"),
    "prefix, backward": ("grpo(kl=0.0)", "backward(0.9, 0.05, 0.5, 'batch')"),
    "GHPO": ("grpo(kl=0.0)", "ghpo()"),
    "Guide": ("guide_grpo()", "guide(hint=0.75)"),
    "LUFFY": ("luffy()", "guided(1)"),
}
Curves = dict[str, list[seeds.Curve]]


def build(size: seeds.Size) -> dict[str, steps.Step]:
    """Return the steps of the base, "clone" and "habit", and that of each arm."""
    phases = {name: f"arm{number}" for number, name in enumerate(ARMS)}
    c = seeds.config(size, TASK, {phases[name]: ARMS[name][0] for name in ARMS}, learning_rate=3e-4)
    c.batch.prompts //= 2
    c.phases = ("clone", "habit", *phases.values())
    c.phase.habit = rljax.phase(**{**c.phase.clone.to_dict(), "task": HABIT, "steps": max(1, size.clone // 4)})
    for name, (_, source) in ARMS.items():
        c.phase[phases[name]].seam.source = source or None
    built = seeds.build(c)
    return {"clone": built["clone"], "habit": built["habit"], **{name: built[phase] for name, phase in phases.items()}}


def run(size: seeds.Size = FULL) -> tuple[Curves, Curves]:
    """Return two curves of each arm and seed: held-out success, and the reward of the rows that are trained on.

    All start from one base. Rows with a hint count in the reward, as do LUFFY's demonstrations.
    """
    built = build(size)
    curves: Curves = {name: [] for name in ARMS}
    paid: Curves = {name: [] for name in ARMS}

    def measure(state: types.TrainState) -> float:
        return seeds.answered(built["GRPO"], state.params["policy"], size.prompts)

    base, _ = seeds.train(built["clone"], seeds.begin(built["clone"], None, 0), 0, size.clone)
    print(f"taught: {seeds.answered(built['GRPO'], base.params['policy'], 8 * size.prompts)}", flush=True)
    base, _ = seeds.train(built["habit"], seeds.begin(built["habit"], base, 0), 0, max(1, size.clone // 4))
    print(f"base: {seeds.answered(built['GRPO'], base.params['policy'], 8 * size.prompts)}", flush=True)
    for seed in range(size.seeds):
        for name in ARMS:
            start, rewards = seeds.begin(built[name], base, seed), []
            _, curve = seeds.train(
                built[name],
                start,
                seed,
                size.steps,
                measure,
                max(1, size.steps // EVALUATIONS),
                lambda metrics, rewards=rewards: rewards.append(float(metrics["reward"])),
            )
            curves[name].append(curve)
            paid[name].append(list(enumerate(rewards, 1)))
            shown = rewards[:: max(1, size.steps // 20)]
            print(f"seed {seed}, {name}: {curve}, reward {[round(r, 2) for r in shown]}", flush=True)
    return curves, paid


def table(curves: Mapping[str, Sequence[seeds.Curve]], paid: Mapping[str, Sequence[seeds.Curve]]) -> str:
    """Return the table of the page, in percent: success at the end, and the reward over the last tenth of training."""
    first = [curve[0][1] for curve in next(iter(curves.values()))]
    lines = ["| arm | held-out success, % | reward of trained rows, % |", "| --- | --- | --- |"]
    lines.append(f"| base | {seeds.percent(first)} | |")
    for name, arm in curves.items():
        tails = [[reward for _, reward in curve[-max(1, len(curve) // 10) :]] for curve in paid[name]]
        rewards = [float(np.mean(tail)) for tail in tails]
        lines.append(f"| {name} | {seeds.percent([c[-1][1] for c in arm])} | {seeds.percent(rewards)} |")
    return "\n".join(lines)


def main(size: seeds.Size, out: pathlib.Path) -> None:
    """Run the study, print its table and draw its figure."""
    curves, paid = run(size)
    print(table(curves, paid))
    seeds.draw(curves, "sums of three digits: held-out success", out / "hints.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__)
    main(seeds.QUICK if given.quick else FULL, given.out)
