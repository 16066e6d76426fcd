"""Does ILQL learn more from stored conversations with a world than cloning their successes?

python -m experiments.worlds.offline
"""

import json
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from experiments.worlds import seeds
from rljax.host import backends
from rljax.run import programs
from rljax.run.reports import records
from rljax.types import Outcome

TASK = "maze(side=3, turns=4, walls=0.3)"
PROBLEMS, EACH = 2048, 8  # of the stored episodes
SIZE = seeds.Size(3, clone=16, steps=300, prompts=256)
RATE = 3e-4
ARMS = {"filtered_cloning": "filtered_cloning()", "ilql": "ilql(lam=0.9, beta=8.0)"}
CRITICS = "q_critics(lam=0.9)", "adamw(learning_rate=1e-3, weight_decay=0.0)"  # of ``ilql``, before it


def stored(size: seeds.Size, seed: int, file: pathlib.Path) -> tuple[Any, float]:
    """Clone demonstrations, and write episodes of the clone to a file; return its state and their success."""
    backends.start()
    program = programs.build(seeds.config(size, TASK, {}, 0.0), devices=jax.devices()[:1])
    (step,) = program.steps
    state, _ = seeds.train(step, seeds.begin(step, None, seed), seed, size.clone)
    index = jnp.arange(PROBLEMS if size == SIZE else 8, dtype=jnp.int32)
    rows = step.play(state.params["policy"], index, seeds.key(seed), "train", EACH, step.setup.settings.sampler)
    rows = jax.device_get(rows)
    written = records.rollouts(program, program.setups[0], 1, rows)
    file.write_text("".join(json.dumps(record) + "\n" for record in written))
    return state, float(np.mean(rows.outcome == Outcome.CORRECT))


def trained(size: seeds.Size, name: str, seed: int, file: pathlib.Path, clone: Any) -> seeds.Curve:
    """Train an arm from the clone on the stored episodes; return held-out success against the step.

    The critics of ``ilql`` start from the clone too, and are trained alone for as many steps before.
    """
    first = {"critics": CRITICS[0]} if name == "ilql" else {}
    c = seeds.config(size, TASK, {**first, name: ARMS[name]}, RATE)
    for phase in c.phases[1:]:
        c.phase[phase].seam = {"source": f"stored({str(file)!r})"}
    if first:
        c.phase.critics.optimizer = CRITICS[1]
        c.phase.ilql.reference = "start"
        for q in ("q", "q_2"):
            c.module[q] = rljax.module()
            c.module[f"{q}_target"] = rljax.module(follows=q, rate=0.1)
    steps = seeds.build(c)
    state = clone
    if first:
        state, _ = seeds.train(steps["critics"], seeds.begin(steps["critics"], clone, seed), seed, size.steps)

    def measure(state: Any) -> float:
        return seeds.success(steps[name], state.params["policy"], size.prompts)

    start = seeds.begin(steps[name], state, seed)
    return seeds.train(steps[name], start, seed, size.steps, measure, max(1, size.steps // 6))[1]


def run(size: seeds.Size, seed: int) -> dict[str, Any]:
    """Return of a seed the success of the stored episodes, and the curve of each arm, which begins at the clone."""
    with tempfile.TemporaryDirectory() as folder:
        clone, data = stored(size, seed, file := pathlib.Path(folder) / "rows.jsonl")
        out: dict[str, Any] = {"data": data}
        for name in ARMS:
            out[name] = trained(size, name, seed, file, clone)
            print(f"seed {seed}, {name}: {out[name]}", flush=True)
    return out


def table(results: list[dict[str, Any]]) -> str:
    """Return the table of the page: held-out success at the end, in percent."""
    ends = {name: [r[name][-1][1] for r in results] for name in ARMS}
    start = [r["ilql"][0][1] for r in results]
    rows = {
        "stored episodes, on their problems": seeds.percent([r["data"] for r in results]),
        "clone, which wrote them": seeds.percent(start),
        **{f"`{name}()`": seeds.percent(values) for name, values in ends.items()},
        "`ilql()` minus the clone": seeds.gap(start, ends["ilql"]),
        "`ilql()` minus `filtered_cloning()`": seeds.gap(ends["filtered_cloning"], ends["ilql"]),
    }
    return "\n".join(["| | success, % |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows.items())])


def main() -> None:
    """Run the seeds that are not stored, print the table and draw the curves."""
    given = seeds.arguments(__doc__)
    size = seeds.QUICK if given.quick else SIZE
    file = given.out / "offline.json"
    results = seeds.resumed(file, size, range(size.seeds), lambda: lambda seed: run(size, seed))
    print(table(results))
    curves = {name: [r[name] for r in results] for name in ARMS}
    seeds.draw(curves, "maze: held-out success", given.out / "offline.png", "step on stored episodes")


if __name__ == "__main__":
    main()
