"""PPO minus GRPO in pass@1 at equal samples on the task of the quickstart, paired by seed.

python -m experiments.ppo.pass_at_1

Both arms of a seed start from the same policy. The arms are those of ``configs/ppo.py`` and ``configs/quickstart.py``
on a smaller network, with fewer rows and steps. The curves of each seed are stored when it ends, in
``pass_at_1.json``; seeds that are there are not run again, and the table and the figure have all of them.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Mapping

import rljax
from experiments.worlds import seeds
from rljax import types
from rljax.training import steps

Curves = dict[str, seeds.Curve]  # of one seed, by arm: completions sampled so far, and held-out pass@1


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs."""

    seeds: tuple[int, ...] = tuple(range(5))
    clone: int = 300  # steps on demonstrations
    critic: int = 6  # steps of the critic alone, which count among those of PPO
    steps: int = 60  # of each arm
    rows: int = 256  # of a step
    every: int = 30  # steps between two measurements
    prompts: int = 256  # of a measurement
    samples: int = 4  # of each
    width: int = 96


QUICK = Size((0, 1), clone=1, critic=1, steps=2, rows=8, every=1, prompts=4, samples=2, width=16)


def config(size: Size):
    """Return a config whose phases are "warm", "critic", "main" (PPO) and "grpo"."""
    c, group = rljax.get_config("ppo"), 8 if size.rows > 8 else 2
    c.phases = ("warm", "critic", "main", "grpo")
    c.phase.grpo = rljax.phase(**rljax.get_config("quickstart").phase.main.to_dict())
    c.model.update({"width": size.width, "hidden": 3 * size.width, "remat": "none"})
    c.mesh.data = 1
    c.log.update({"rollout_rows": 0, "report": False})
    c.phase.warm.update({"steps": size.clone, "batch": {"prompts": size.rows // 2}, "warmup": min(50, size.clone)})
    single, groups = {"prompts": size.rows, "samples": 1}, {"prompts": size.rows // group, "samples": group}
    c.phase.critic.update({"steps": size.critic, "batch": single})
    c.phase.main.update({"steps": size.steps - size.critic, "batch": single, "warmup": 10})
    c.phase.grpo.update({"steps": size.steps, "batch": groups, "warmup": 10})
    return c


def one(built: Mapping[str, steps.Step], size: Size, seed: int) -> Curves:
    """Return the curve of each arm of a seed."""

    def measure(state: types.TrainState) -> float:
        return seeds.answered(built["grpo"], state.params["policy"], size.prompts, size.samples)

    base, _ = seeds.train(built["warm"], seeds.begin(built["warm"], None, seed), seed, size.clone)
    curves, start = {}, (0, measure(base))
    for arm, phases in {"GRPO": ("grpo",), "PPO": ("critic", "main")}.items():
        state, spent, curve = base, 0, [start]
        for name in phases:
            state, count = seeds.begin(built[name], state, seed), built[name].setup.phase.start.steps
            for _ in range(count):
                state, _ = seeds.train(built[name], state, seed, 1)
                spent += 1
                if spent % size.every == 0:
                    curve.append((spent * size.rows, measure(state)))
        curves[arm] = curve
        print(f"seed {seed}, {arm}: {curve}", flush=True)
    return curves


def run(size: Size, file: pathlib.Path) -> list[Curves]:
    """Return the curves of each seed, those of earlier runs included; store them after each seed.

    Raises:
      ValueError: the file has curves of another size.
    """

    def start():
        built = seeds.build(config(size))
        return lambda seed: one(built, size, seed)

    return seeds.resumed(file, size, size.seeds, start, what="curves")


def table(curves: list[Curves]) -> str:
    """Return the table of the page: pass@1 of the base and at the end, and PPO's minus GRPO's, paired by seed."""
    end = {arm: [c[arm][-1][1] for c in curves] for arm in ("GRPO", "PPO")}
    lines = ["| arm | pass@1, % | minus GRPO, points |", "| --- | --- | --- |"]
    lines.append(f"| base | {seeds.percent([c['GRPO'][0][1] for c in curves])} | |")
    lines.append(f"| GRPO | {seeds.percent(end['GRPO'])} | |")
    lines.append(f"| PPO | {seeds.percent(end['PPO'])} | {seeds.gap(end['GRPO'], end['PPO'])} |")
    return "\n".join(lines)


def main(size: Size, out: pathlib.Path) -> None:
    """Run the study, print its table, and write its figure and its curves."""
    curves = run(size, out / "pass_at_1.json")
    print(table(curves))
    arms = {arm: [[(int(x), y) for x, y in c[arm]] for c in curves] for arm in ("GRPO", "PPO")}
    seeds.draw(arms, "held-out pass@1 on two-digit sums", out / "pass_at_1.png", "completions sampled")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every part, too short to learn")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="folder of the figure")
    parser.add_argument("--seeds", default="0:5", help="from the first to before the last")
    given = parser.parse_args()
    numbers = tuple(range(*map(int, given.seeds.split(":"))))
    main(QUICK if given.quick else Size(seeds=numbers), given.out)
