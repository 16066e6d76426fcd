"""Does RL on a world need cloning first? ``webagent_r1`` on a maze, with and without a few demonstrations.

python -m experiments.worlds.maze
"""

import pathlib
from collections.abc import Mapping

from experiments.worlds import seeds

TASKS = {"3": "maze(side=3, turns=4, walls=0.3)", "4": "maze(side=4, turns=2, moves=3, walls=0.3)"}  # by side
FULL = {  # by side
    "3": seeds.Size(seeds=3, clone=16, steps=200, prompts=256),
    "4": seeds.Size(seeds=3, clone=64, steps=80, prompts=256),
}
CLONED, ALONE, BOTH = "cloning", "RL", "cloning + RL"


def run(task: str, size: seeds.Size) -> dict[str, list[seeds.Curve]]:
    """Return held-out success of each arm and seed against the step of RL."""
    steps = seeds.build(seeds.config(size, task, {"main": "webagent_r1()"}, learning_rate=1e-3))
    clone, main = steps["clone"], steps["main"]

    def measure(state):
        return seeds.success(main, state.params["policy"], size.prompts)

    curves: dict[str, list[seeds.Curve]] = {ALONE: [], CLONED: [], BOTH: []}
    for seed in range(size.seeds):
        fresh = seeds.begin(clone, None, seed)
        starts = {ALONE: seeds.begin(main, fresh, seed)}
        cloned, _ = seeds.train(clone, fresh, seed, size.clone)
        starts[BOTH] = seeds.begin(main, cloned, seed)
        for name, start in starts.items():
            _, curve = seeds.train(main, start, seed, size.steps, measure, max(1, size.steps // 8))
            curves[name].append(curve)
            print(f"seed {seed}, {name}: {curve}", flush=True)
        curves[CLONED].append([(step, curves[BOTH][-1][0][1]) for step, _ in curves[BOTH][-1]])
    return curves


def table(curves: dict[str, list[seeds.Curve]]) -> str:
    """Return the table of the page: success at the end, in percent."""
    last = {name: [curve[-1][1] for curve in arm] for name, arm in curves.items()}
    lines = ["| arm | held-out success, % |", "| --- | --- |"]
    lines += [f"| {name} | {seeds.percent(values)} |" for name, values in last.items()]
    lines += [f"| {BOTH} minus {name} | {seeds.gap(last[name], last[BOTH])} |" for name in (CLONED, ALONE)]
    return "\n".join(lines)


def main(sizes: Mapping[str, seeds.Size], out: pathlib.Path) -> None:
    """Run the study on mazes of some sides, print their tables and draw their figures."""
    for side, size in sizes.items():
        curves = run(TASKS[side], size)
        print(f"{TASKS[side]}\n{table(curves)}")
        seeds.draw(curves, f"{side} x {side} maze: held-out success", out / f"maze_{side}.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__, FULL)
    main({side: seeds.QUICK if given.quick else FULL[side] for side in given.only}, given.out)
