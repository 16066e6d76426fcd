"""Does a baseline for each role help self-play? ``spiral`` with two roles and with one, on tic-tac-toe.

python -m experiments.worlds.tic_tac_toe
"""

import pathlib

import jax.numpy as jnp
import numpy as np
from matplotlib import figure

from experiments.worlds import seeds
from rljax.run.reports.pages import plots
from rljax.transforms import trajectories

SELF = "game('tic_tac_toe', rows='chapters')"
OPENED = "game('tic_tac_toe', rows='chapters', openings=2)"  # demonstrations see more than perfect games
AGAINST = {name: f"game('tic_tac_toe', opponent='{name}', rows='chapters')" for name in ("random", "expert")}
FULL = seeds.Size(seeds=5, clone=30, steps=30, prompts=256)
ARMS = {"one": "spiral(roles=1)", "role": "spiral(roles=2)"}


def totals(rows, seats: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what each seat of each game got, [games, seats], and whether it wrote a turn."""
    shape, seat = (-1, rows.episode.shape[0] // np.unique(rows.episode).size), np.asarray(rows.agent)
    wrote = (np.asarray(rows.mask).sum(axis=1) > 0).reshape(shape)
    paid, seat = np.asarray(trajectories.total(rows)).reshape(shape), seat.reshape(shape)
    has = np.stack([(wrote & (seat == s)).any(axis=1) for s in range(seats)], axis=1)
    value = np.stack([np.where(wrote & (seat == s), paid, -np.inf).max(axis=1) for s in range(seats)], axis=1)
    return np.where(has, value, 0.0), has


def advantages(paid: np.ndarray, has: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Return the advantages of all seats that wrote, with a baseline of each role or one for all."""
    return (paid - np.broadcast_to(baseline, paid.shape[1:]))[has]


def against(step, params, games: int) -> tuple[float, float]:
    """Return the shares of games won, and of games not lost, against the opponent of a step."""
    index = jnp.arange(games, dtype=jnp.int32)
    rows = step.play(params, index, seeds.key(1_000_003), "heldout", 1, step.setup.settings.sampler)
    paid, _ = totals(rows, 1)
    return float(np.mean(paid > 0)), float(np.mean(paid >= 0))


def self_play(step, state, seed: int, count: int):
    """Take ``count`` steps; return the state, variances of the advantages of each step, and the baselines of the roles.

    The variances, with the single baseline and with that of the role, are of the same games. The baseline of a role is
    the running mean of its rewards, with the decay of ``spiral``; the single one is that of both roles.
    """
    role, one, variances = np.zeros(2), np.zeros(1), []
    for _ in range(count):
        rows = step.rollout(state, seeds.key(seed))
        paid, has = totals(rows, 2)
        variances.append([advantages(paid, has, b).var() for b in (one, role)])
        mean = paid.sum(axis=0, where=has) / np.maximum(has.sum(axis=0), 1)
        role, one = 0.95 * role + 0.05 * mean, 0.95 * one + 0.05 * paid[has].mean()
        state, _ = step.update(state, rows, seeds.key(seed))
    return state, np.array(variances), role


def config(size: seeds.Size):
    """Return the config of the phases: clone, the arms, and the games against the opponents."""
    c = seeds.config(size, SELF, {**ARMS, **dict.fromkeys(AGAINST, "reinforce()")}, learning_rate=3e-4, samples=4)
    c.phase.clone.task = OPENED
    for name, task in AGAINST.items():
        c.phase[name].task = task
    return c


def run(size: seeds.Size = FULL) -> dict[str, np.ndarray]:
    """Return shares and variances by seed: {arm: [seeds, (won, not lost) of each opponent, and the two variances]}."""
    steps = seeds.build(config(size))

    def measure(state):
        return [x for name in AGAINST for x in against(steps[name], state.params["policy"], size.prompts)]

    results: dict[str, list[list[float]]] = {"clone": [], **{name: [] for name in ARMS}}
    for seed in range(size.seeds):
        cloned, _ = seeds.train(steps["clone"], seeds.begin(steps["clone"], None, seed), seed, size.clone)
        results["clone"].append([*measure(cloned), np.nan, np.nan])
        for name in ARMS:
            state = seeds.begin(steps[name], cloned, seed)
            state, variances, role = self_play(steps[name], state, seed, size.steps)
            results[name].append([*measure(state), *variances[len(variances) // 2 :].mean(axis=0)])
            print(f"seed {seed}, {name}: {np.round(results[name][-1], 3)}, baselines {np.round(role, 2)}", flush=True)
    return {name: np.array(values) for name, values in results.items()}


def table(results: dict[str, np.ndarray]) -> str:
    """Return the tables of the page: shares of games in percent, then the variances of the second half of training."""
    columns = [f"{what} against {name}" for name in AGAINST for what in ("won", "not lost")]
    lines = [f"| % of games | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for name, values in results.items():
        lines.append(f"| {name} | {' | '.join(seeds.percent(v) for v in values.T[:4])} |")
    gaps = (seeds.gap(a, b) for a, b in zip(results["one"].T[:4], results["role"].T[:4], strict=True))
    lines += [f"| role minus one | {' | '.join(gaps)} |", ""]
    lines += ["| games of arm | variance, role baseline / single baseline, % |", "| --- | --- |"]
    lines += [f"| {name} | {seeds.percent(results[name][:, 5] / results[name][:, 4])} |" for name in ARMS]
    return "\n".join(lines)


def draw(results: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Draw a dot for each seed and arm: games not lost against each opponent; the arms of a seed are joined."""
    canvas = figure.Figure(figsize=(6, 3.4), layout="constrained")
    for ax, (number, name) in zip(canvas.subplots(1, 2), enumerate(AGAINST), strict=True):
        values = 100 * np.stack([arm[:, 2 * number + 1] for arm in results.values()])
        ax.plot(range(len(results)), values, color=plots.GREY, marker="o", linewidth=0.8)
        ax.plot(range(len(results)), values.mean(axis=1), color=plots.COLORS[0], linewidth=2.2)
        ax.set_xticks(range(len(results)), list(results))
        plots.decorate(ax, f"not lost against {name}", "", "% of games")
    canvas.savefig(path, dpi=100)


def main(size: seeds.Size, out: pathlib.Path) -> None:
    """Run the study, print its table and draw its figure."""
    results = run(size)
    print(table(results))
    draw(results, out / "tic_tac_toe.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__)
    main(seeds.QUICK if given.quick else FULL, given.out)
