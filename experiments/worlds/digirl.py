"""Is a critic that picks turns better than fitting whole episodes? ``digirl`` against ``filtered_cloning`` on a maze.

python -m experiments.worlds.digirl
"""

import pathlib

from experiments.worlds import seeds

TASK = "maze(side=3, turns=4, walls=0.3)"
FULL = seeds.Size(seeds=3, clone=16, steps=120, prompts=256)
ARMS = {"filtered": "filtered_cloning()", "digirl": "digirl()"}  # the critic last: a state keeps the modules it has


def run(size: seeds.Size = FULL) -> dict[str, list[seeds.Curve]]:
    """Return held-out success of each arm and seed against the step of RL; the arms of a seed start from one clone."""
    steps = seeds.build(seeds.config(size, TASK, ARMS, learning_rate=1e-3))
    curves: dict[str, list[seeds.Curve]] = {name: [] for name in ARMS}

    def measure(state):
        return seeds.success(steps["filtered"], state.params["policy"], size.prompts)

    for seed in range(size.seeds):
        cloned, _ = seeds.train(steps["clone"], seeds.begin(steps["clone"], None, seed), seed, size.clone)
        for name in ARMS:
            start = seeds.begin(steps[name], cloned, seed)
            _, curve = seeds.train(steps[name], start, seed, size.steps, measure, max(1, size.steps // 8))
            curves[name].append(curve)
            print(f"seed {seed}, {name}: {curve}", flush=True)
    return curves


def table(curves: dict[str, list[seeds.Curve]]) -> str:
    """Return the table of the page: success at the start and at the end, in percent."""
    first, second = ([curve[-1][1] for curve in curves[name]] for name in ARMS)
    rows = {
        "clone, where both start": seeds.percent([curve[0][1] for curve in curves["filtered"]]),
        "`filtered_cloning()`": seeds.percent(first),
        "`digirl()`": seeds.percent(second),
        "`digirl()` minus `filtered_cloning()`": seeds.gap(first, second),
    }
    return "\n".join(
        ["| arm | held-out success, % |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows.items())]
    )


def main(size: seeds.Size, out: pathlib.Path) -> None:
    """Run the study, print its table and draw its figure."""
    curves = run(size)
    print(table(curves))
    seeds.draw(curves, "maze: held-out success", out / "digirl.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__)
    main(seeds.QUICK if given.quick else FULL, given.out)
