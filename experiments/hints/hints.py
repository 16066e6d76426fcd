"""A task whose base never succeeds: plain GRPO against sources that put a part of the solution in front of the policy.

python -m experiments.hints.hints
"""

import pathlib

import jax.numpy as jnp
import numpy as np

from experiments.worlds import seeds
from rljax import sampling, types
from rljax.training import steps

# The base is cloned from a demonstrator that is wrong in 85 of 100 columns; five in a row are right in 1 of 13,000.
BASE = "arithmetic(operands=2, digits=5, noise=0.85)"
TASK = "arithmetic(operands=2, digits=5)"  # the same problems; hints and demonstrations are right
FULL = seeds.Size(seeds=3, clone=150, steps=200, prompts=128)
ARMS = {  # algorithm, and the source in place of its own
    "GRPO": ("grpo(kl=0.0)", ""),
    "GHPO": ("grpo(kl=0.0)", "ghpo()"),
    "Guide": ("guide_grpo()", "guide(hint=0.75)"),
    "LUFFY": ("luffy()", "guided(1)"),
}


def build(size: seeds.Size) -> dict[str, steps.Step]:
    """Return the step of the base, "clone", and of each arm."""
    c = seeds.config(size, TASK, {name: algorithm for name, (algorithm, _) in ARMS.items()}, learning_rate=1e-3)
    c.phase.clone.task = BASE
    for name, (_, source) in ARMS.items():
        c.phase[name].seam.source = source or None
    return seeds.build(c)


def success(step: steps.Step, params: types.Tree, prompts: int, samples: int = 8) -> float:
    """Return the share of right answers to held-out problems, at temperature 1, without any hint."""
    index = jnp.arange(prompts, dtype=jnp.int32)
    asked = step.setup.task.prompts(index, "heldout")
    of, number = jnp.repeat(index, samples), jnp.tile(jnp.arange(samples, dtype=jnp.int32), prompts)
    keys = sampling.row_keys(seeds.key(1_000_003), jnp.int32(0), of, number)
    out = step.generate(params, asked, keys, samples, step.setup.settings.sampler)
    return float(np.mean(np.asarray(step.verify(of, out.token, out.mask).outcome) == types.Outcome.CORRECT))


def run(size: seeds.Size = FULL) -> dict[str, list[seeds.Curve]]:
    """Return held-out success of each arm and seed against the step of RL; the arms of a seed start from one base."""
    built = build(size)
    curves: dict[str, list[seeds.Curve]] = {name: [] for name in ARMS}

    def measure(state: types.TrainState) -> float:
        return success(built["GRPO"], state.params["policy"], size.prompts)

    for seed in range(size.seeds):
        base, _ = seeds.train(built["clone"], seeds.begin(built["clone"], None, seed), seed, size.clone)
        for name in ARMS:
            start = seeds.begin(built[name], base, seed)
            _, curve = seeds.train(built[name], start, seed, size.steps, measure, max(1, size.steps // 8))
            curves[name].append(curve)
            print(f"seed {seed}, {name}: {curve}", flush=True)
    return curves


def table(curves: dict[str, list[seeds.Curve]]) -> str:
    """Return the table of the page: success at the start and at the end, in percent."""
    first = [curve[0][1] for curve in next(iter(curves.values()))]
    last = {name: [curve[-1][1] for curve in arm] for name, arm in curves.items()}
    lines = ["| arm | held-out success, % |", "| --- | --- |", f"| base | {seeds.percent(first)} |"]
    return "\n".join([*lines, *(f"| {name} | {seeds.percent(values)} |" for name, values in last.items())])


def main(size: seeds.Size, out: pathlib.Path) -> None:
    """Run the study, print its table and draw its figure."""
    curves = run(size)
    print(table(curves))
    seeds.draw(curves, "sums of five digits: held-out success", out / "hints.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__)
    main(seeds.QUICK if given.quick else FULL, given.out)
