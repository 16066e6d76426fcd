"""Do goals in hindsight help soft actor-critic in a maze that pays only at its goal?

python -m experiments.worlds.hindsight
"""

import dataclasses
import pathlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from experiments.arms import decided
from experiments.worlds import seeds
from rljax import types
from rljax.run.evaluation import intervals

SHARES = {"SAC": 0.0, "hindsight in 2 of 5 rows": 0.4, "hindsight in 4 of 5 rows": 0.8}
FIRST, LAST = "SAC", "hindsight in 4 of 5 rows"


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs.

    Attributes:
      seeds: their number.
      steps: of a run, each of 16 windows of ``window`` steps of time and 8 gradient steps on as many stored ones.
      every: steps between two measurements; arms are compared in the middle and at the end.
      window: steps of time.
      horizon: the most steps of an episode.
      prompts: held-out problems of a measurement, the same for all seeds.
      batches: that the memory holds.
    """

    seeds: int = 5
    steps: int = 2000
    every: int = 250
    window: int = 50
    horizon: int = 100
    prompts: int = 512
    batches: int = 100


QUICK = Size(2, 4, 1, 5, 10, 16, 2)


def config(size: Size) -> Any:
    """Return a config with a phase for each arm."""
    c = rljax.get_config("control", "sac")
    c.task = f"point_maze(side=3, view=2, horizon={size.horizon})"
    c.algorithm = "sac(alpha=0.001, gamma=0.98)"
    c.mesh.data = 1
    c.phases = tuple(f"arm{number}" for number in range(len(SHARES)))
    c.seam.source = f"unrolled({size.window}) | replay(1.0, {size.batches})"
    for name, share in zip(c.phases, SHARES.values(), strict=True):
        c.phase[name] = rljax.phase(steps=size.steps, optimizer="adam(learning_rate=1e-3)")
        if share:
            c.phase[name].seam.source = f"{c.seam.source} | hindsight({share})"
    return c


def start(size: Size) -> Callable[[int], Any]:
    """Return the function that runs all arms of a seed, from one random policy; of each its held-out success."""
    built = dict(zip(SHARES, seeds.build(config(size)).values(), strict=True))
    index = jnp.arange(size.prompts, dtype=jnp.int32)
    keys = jax.random.split(seeds.key(1_000_003), size.prompts)

    def one(seed: int) -> dict[str, seeds.Curve]:
        out = {}
        for name, step in built.items():

            def solved(state: types.TrainState, step: Any = step) -> float:
                ended = step.act(state.params["policy"], index, keys, "heldout", 1.0)
                return float(np.mean(np.asarray(ended.outcome) == types.Outcome.CORRECT))

            _, out[name] = seeds.train(step, seeds.begin(step, None, seed), seed, size.steps, solved, size.every)
            print(f"seed {seed}, {name}: {out[name]}", flush=True)
        return out

    return one


def table(results: Sequence[Mapping[str, Any]], size: Size) -> str:
    """Return the tables of the page, in percent."""
    places = size.steps // size.every // 2, size.steps // size.every
    solved = {(name, at): [r[name][at][1] for r in results] for name in SHARES for at in places}
    cases = []
    for at in places:
        plain, other = (dict[Hashable, float](enumerate(solved[name, at])) for name in (FIRST, LAST))
        gap = intervals.difference(plain, other, bounds=intervals.UNIT)
        cases.append((f"After {at * size.every} steps, {LAST} solve more than {FIRST}", gap, 0.0, False))
    lines = decided(cases)
    lines += ["", "| arm | " + " | ".join(f"solved after {at * size.every} steps" for at in places) + " |"]
    lines.append("| --- " * 3 + "|")
    for name in SHARES:
        lines.append(f"| {name} | " + " | ".join(seeds.percent(solved[name, at]) for at in places) + " |")
    return "\n".join(lines)


def main(size: Size, out: pathlib.Path) -> None:
    """Run the seeds that are not stored, print the tables and draw the figure."""
    results = seeds.resumed(out / "hindsight.json", size, range(size.seeds), lambda: start(size))
    print(table(results, size))
    curves = {name: [[(step, share) for step, share in r[name]] for r in results] for name in SHARES}
    seeds.draw(curves, "maze of side 3: held-out problems solved", out / "hindsight.png", "step of SAC")


if __name__ == "__main__":
    given = seeds.arguments(__doc__)
    main(QUICK if given.quick else Size(), given.out)
