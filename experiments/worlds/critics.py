"""Are critics of turns worth it on a maze? ``digirl`` against ``filtered_cloning``, ``archer`` against ``turn_ppo``.

And ``digirl`` with its filter of episodes against ``digirl`` without it.

python -m experiments.worlds.critics [--only digirl digirl_filter archer] [--choose]
"""

import dataclasses
import pathlib

import rljax
from experiments.worlds import seeds

TASK = "maze(side=3, turns=4, walls=0.3)"
# the paper's critics learn at twice the rate of its policy, in 50 passes where it takes one
CALLS = {"archer": "archer(critic_optimizer='adam(learning_rate=1e-3)')", "digirl_filter": "digirl(episodes=0.1)"}


@dataclasses.dataclass(frozen=True)
class Contrast:
    """A recipe and the one that it is compared with, with their learning rates; the second has more modules."""

    control: tuple[str, float]
    treated: tuple[str, float]
    size: seeds.Size
    rates: tuple[float, ...] = ()  # that ``--choose`` compares


CONTRASTS = {
    "digirl": Contrast(("filtered_cloning", 1e-3), ("digirl", 1e-3), seeds.Size(5, clone=16, steps=120, prompts=256)),
    "digirl_filter": Contrast(
        ("digirl", 1e-3), ("digirl_filter", 1e-3), seeds.Size(5, clone=16, steps=120, prompts=256)
    ),
    "archer": Contrast(
        ("turn_ppo", 3e-4),
        ("archer", 1e-4),
        seeds.Size(5, clone=16, steps=120, prompts=256),
        rates=(1e-4, 3e-4, 1e-3),
    ),
}


def build(contrast: Contrast, size: seeds.Size):
    """Return the step of the cloning, "clone", and of each recipe."""
    pairs = (contrast.control, contrast.treated)
    c = seeds.config(size, TASK, {name: CALLS.get(name, f"{name}()") for name, _ in pairs}, 0.0)
    for name, rate in pairs:
        c.phase[name].optimizer = f"adamw(learning_rate={rate}, weight_decay=0.0)"
    if contrast.treated[0].startswith("digirl"):
        c.module.value_2 = rljax.module(weights="random")
    else:
        for name in ("q", "q_2", "value", "value_2"):
            c.module[f"{name}_target"] = rljax.module(follows=name, rate=0.1)
            c.module[name] = rljax.module(weights="random")
        alone = size.steps // 4  # steps in which only the critics are trained, as the paper does
        c.phase.archer.seam = {"weight": f"+ constant(piecewise(((0, 0.0), ({alone}, 1.0))))"}
    return seeds.build(c)


def run(contrast: Contrast, size: seeds.Size, numbers: range | None = None) -> dict[str, list[seeds.Curve]]:
    """Return held-out success of each recipe and seed against the step of RL; both start from the clone of a seed."""
    steps = build(contrast, size)
    names = contrast.control[0], contrast.treated[0]
    curves: dict[str, list[seeds.Curve]] = {name: [] for name in names}

    def measure(state):
        return seeds.success(steps[names[0]], state.params["policy"], size.prompts)

    for seed in numbers or range(size.seeds):
        cloned, _ = seeds.train(steps["clone"], seeds.begin(steps["clone"], None, seed), seed, size.clone)
        for name in names:
            start = seeds.begin(steps[name], cloned, seed)
            _, curve = seeds.train(steps[name], start, seed, size.steps, measure, max(1, size.steps // 8))
            curves[name].append(curve)
            print(f"seed {seed}, {name}: {curve}", flush=True)
    return curves


def table(curves: dict[str, list[seeds.Curve]]) -> str:
    """Return the table of the page: success at the start, at the end and over the last half, in percent."""
    names = [*curves]
    ends = [[curve[-1][1] for curve in curves[name]] for name in names]
    late = [[sum(y for _, y in curve[-4:]) / len(curve[-4:]) for curve in curves[name]] for name in names]
    rows = {
        "clone, where both start": seeds.percent([curve[0][1] for curve in curves[names[0]]]),
        **{f"`{name}()`": seeds.percent(values) for name, values in zip(names, ends, strict=True)},
        f"`{names[1]}()` minus `{names[0]}()`": seeds.gap(*ends),
        "the same, mean of the last four evaluations": seeds.gap(*late),
    }
    return "\n".join(
        ["| arm | held-out success, % |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows.items())]
    )


def choose(contrast: Contrast) -> None:
    """Print the mean of the last four evaluations of each recipe at each rate, on a seed that the study leaves out."""
    for rate in contrast.rates:
        pair = {"control": (contrast.control[0], rate), "treated": (contrast.treated[0], rate)}
        curves = run(dataclasses.replace(contrast, **pair), contrast.size, range(100, 101))
        for name, (curve,) in curves.items():
            print(f"{name}, {rate:g}: {100 * sum(y for _, y in curve[-4:]) / 4:.1f} %", flush=True)


def main(only: list[str], out: pathlib.Path, quick: bool = False, chosen: bool = False) -> None:
    """Run the contrasts, print their tables and draw their figures; with ``chosen`` compare learning rates instead."""
    for name in only:
        contrast = CONTRASTS[name]
        if chosen:
            choose(contrast)
            continue
        curves = run(contrast, seeds.QUICK if quick else contrast.size)
        print(table(curves))
        seeds.draw(curves, "maze: held-out success", out / f"{name}.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__, CONTRASTS, choose="compare learning rates instead")
    main(given.only, given.out, given.quick, given.choose)
