"""Reward against the divergence from the cloned chain, by quadrature: how far do methods stay from the best trade?

python -m experiments.denoising.study
"""

import argparse
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import figure

import rljax
from experiments.denoising import quadrature
from rljax import environments, plots

FOLDER = pathlib.Path(__file__).parent
RUNS = pathlib.Path("runs/denoising_study")
SEEDS, STEPS, EVERY = (0, 1, 2), 200, 20
PROMPTS = 8  # held-out directions whose densities are computed
BETAS = np.geomspace(0.02, 20.0, 60)  # of the best trade

SPARSE = {"task": "modes(reward='mode')"}
WHOLE = {"phase.main.seam.prepare": ""}  # trained on all steps and all branches
GROUPS = {"phase.main.seam.advantage": "", "phase.main.task": ""}  # standardized by group
ONE = {"model.denoising.split": 0}  # one network for all steps
ARMS = {  # config of configs/denoising.py, and what differs from it
    "DDPO": ("ddpo", GROUPS),
    "Flow-GRPO, 0.05": ("flow_grpo", {"phase.main.seam.penalty": "+ exact_kl('reverse_kl', 0.05)"}),
    "Flow-GRPO, 0.2": ("flow_grpo", {}),
    "Flow-GRPO, 1": ("flow_grpo", {"phase.main.seam.penalty": "+ exact_kl('reverse_kl', 1.0)"}),
    "DanceGRPO": ("dance_grpo", WHOLE),
    "DPPO, all steps": ("dppo", ONE | {"phase.main.algorithm": "diffusion_ppo()"}),
    "DPPO, last 5": ("dppo", ONE | {"phase.main.algorithm": "diffusion_ppo(last=5)"}),
    "DPPO, last 2": ("dppo", ONE | {"phase.main.algorithm": "diffusion_ppo(last=2)"}),
    "sparse: whole chain": ("ddpo", GROUPS | SPARSE),
    "sparse: backward": ("ddpo", GROUPS | SPARSE | {"phase.main.seam.weight": "+ turn_end(linear(2.0, 10.0, 100))"}),
    "sparse: branches, backward": (
        "b2_diffurl",
        SPARSE | WHOLE | {"phase.main.algorithm": "grpo(kl=0.0, low=0.1, high=0.1)"},
    ),
}


def config(name: str, seed: int) -> Any:
    """Return the config of one run, without the cloning phase."""
    base, changes = ARMS[name]
    c = rljax.get_config("denoising", base)
    c.seed, c.phases = seed, ("main",)
    c.checkpoint.update({"init": str(RUNS / "base"), "every": EVERY, "max_to_keep": STEPS // EVERY})
    c.phase.main.update({"steps": STEPS, "evaluate": ""})
    for field, value in changes.items():
        *groups, last = field.split(".")
        group = c
        for each in groups:
            group = group[each]
        group[last] = value
    return c


def directions() -> np.ndarray:
    """Return held-out directions, ``[PROMPTS, 2]``."""
    rules = environments.lookup("modes")().rules
    return np.stack([rules.observe(rules.begin(jnp.int32(i), "heldout")) for i in range(PROMPTS)])


def scored(direction: np.ndarray) -> dict[str, np.ndarray]:
    """Return reward and success of each point of the grid, which the world clips to [-1, 1]."""
    rules = environments.lookup("modes")().rules
    point = jnp.clip(jnp.asarray(quadrature.points(), jnp.float32), -1.0, 1.0)
    solved = jax.vmap(lambda x: rules.solved({"direction": jnp.asarray(direction), "point": x}, 0.0))(point)
    return {"reward": np.asarray(point @ direction) / 0.7, "solved": np.asarray(solved, float)}


def measured(densities: list[np.ndarray], bases: list[np.ndarray]) -> dict[str, float]:
    """Return means over the directions: reward, success, and divergence from the base in nats."""
    rows = []
    for p, q, u in zip(densities, bases, directions(), strict=True):
        rows.append({name: float(np.sum(p * x) / p.sum()) for name, x in scored(u).items()})
        rows[-1]["kl"] = quadrature.divergence(p, q)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def densities(folder: pathlib.Path, step: int | None = None) -> list[np.ndarray]:
    """Return the densities of a run's policy for each direction."""
    program, params, _ = rljax.load(str(folder), step=step)
    actor = program.model("policy")
    return [np.asarray(quadrature.densities(actor, params, jnp.asarray(u))[-1], np.float64) for u in directions()]


def best(bases: list[np.ndarray]) -> list[dict[str, float]]:
    """Return the best trade, base times exp(reward / beta), for each beta."""
    given = [scored(u)["reward"] for u in directions()]
    each = ([quadrature.tilted(p, r, beta) for p, r in zip(bases, given, strict=True)] for beta in BETAS)
    return [{"beta": float(beta), **measured(q, bases)} for beta, q in zip(BETAS, each, strict=True)]


def measure() -> dict[str, Any]:
    """Run what has not been run, and return the numbers of all runs."""
    base = rljax.get_config("denoising", "flow_grpo")
    base.phases = ("clone",)
    if not (RUNS / "base" / "checkpoints").exists():
        rljax.train(base, workdir=RUNS / "base")
    bases = densities(RUNS / "base")
    out: dict[str, Any] = {"base": measured(bases, bases), "best": best(bases), "runs": {}}
    for name in ARMS:
        for seed in SEEDS:
            folder = RUNS / f"{name.replace(' ', '_').replace(',', '').replace(':', '')}_{seed}"
            rljax.train(config(name, seed), workdir=folder)  # resumes, or returns at once
            points = [
                {"step": step, **measured(densities(folder, step), bases)} for step in range(EVERY, STEPS + 1, EVERY)
            ]
            out["runs"].setdefault(name, []).append(points)
            print(name, seed, points[-1], flush=True)
    return out


def table(results: dict[str, Any]) -> str:
    """Return the table of the page: numbers after the last step, mean and deviation over seeds."""
    trade = results["best"][::-1]
    lines = ["| | reward | best at this KL | solved, % | KL, nats |", "| --- | --- | --- | --- | --- |"]
    for name, runs in {"base": [[results["base"]]], **results["runs"]}.items():
        last = {key: np.array([points[-1][key] for points in runs]) for key in ("reward", "solved", "kl")}
        kl, (levels, rewards) = last["kl"].mean(), ([x[key] for x in trade] for key in ("kl", "reward"))
        bound = f"{np.interp(kl, levels, rewards):.2f}" if kl <= levels[-1] else f"above {rewards[-1]:.2f}"
        bound = "" if name.startswith("sparse") else bound
        cells = [f"{last[key].mean() * scale:.{digits}f} ± {last[key].std(ddof=len(runs) > 1) * scale:.{digits}f}"
                 for key, scale, digits in (("reward", 1, 2), ("solved", 100, 1), ("kl", 1, 2))]  # fmt: skip
        lines.append(f"| {name} | {cells[0]} | {bound} | {cells[1]} | {cells[2]} |")
    return "\n".join(lines)


def draw(results: dict[str, Any]) -> None:
    """Draw reward and success against KL, a line for each run, and the best trade."""
    canvas = figure.Figure(figsize=(9.0, 3.8), layout="constrained")
    axes = canvas.subplots(1, 2)
    for ax, key in zip(axes, ("reward", "solved"), strict=True):
        ax.plot([x["kl"] for x in results["best"]], [x[key] for x in results["best"]], "k--", label="best trade")
        dense = [name for name in results["runs"] if not name.startswith("sparse")]
        for number, name in enumerate(dense):
            color, style = plots.COLORS[number % len(plots.COLORS)], ".-" if number < len(plots.COLORS) else ".:"
            for run, points in enumerate(results["runs"][name]):
                line, label = [results["base"], *points], None if run else name
                ax.plot([x["kl"] for x in line], [x[key] for x in line], style, color=color, label=label, ms=3, lw=0.8)
        plots.decorate(ax, f"{key} against the KL from the base", "KL, nats", key)
        ax.set_xlim(0.0, 8.0)
    axes[0].legend(fontsize=7)
    canvas.savefig(FOLDER / "frontier.png", dpi=100)


def main() -> None:
    """Run the study, or with ``--page`` write table and figure from its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="write table and figure from results.json")
    file = FOLDER / "results.json"
    if not parser.parse_args().page:
        file.write_text(json.dumps(measure()))
    results = json.loads(file.read_text())
    draw(results)
    print(table(results))


if __name__ == "__main__":
    main()
