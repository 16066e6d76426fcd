"""What the loss algebra costs: ``python -m rljax bench algebra``.

It times the update of the longest chain of pieces in the table beside that of the shortest with the same
needs, on one batch, turn about.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rljax import algorithms, bench, types
from rljax.algorithms import interpreter, seams
from rljax.config import files, resolve, schema
from rljax.run import programs


def pieces(algorithm: types.Algorithm) -> int:
    """Count the pieces of an algorithm."""
    return sum(len(specs) for specs in algorithms.by_seam(algorithm).values())


def extremes(config: schema.ConfigDict) -> tuple[str, str]:
    """Return the shortest and the longest recipe of equal needs that run on the config's task, furthest apart.

    Recipes of one objective and a plain source: what they differ in is the chain alone.
    """
    found: dict[types.Needs, list[tuple[int, str]]] = {}
    for name in algorithms.TABLE:
        algorithm = algorithms.example(name)
        needs = interpreter.needs(algorithm)
        alone = len(algorithm.objectives) == 1 and algorithm.source.spec == "task()" and not algorithm.after
        if alone and runs(config, algorithm.spec):
            found.setdefault(needs, []).append((pieces(algorithm), algorithm.spec))
    chains = max(found.values(), key=lambda c: max(c)[0] - min(c)[0])
    return min(chains)[1], max(chains)[1]


def runs(config: schema.ConfigDict, call: str) -> bool:
    """Tell whether a config takes an algorithm."""
    config = config.copy_and_resolve_references()
    config.algorithm = call
    try:
        resolve.phases(config)
    except ValueError:
        return False
    return True


def updater(config: schema.ConfigDict, call: str) -> tuple[Callable[[], None], float]:
    """Return a function that makes one update of the last phase on a fixed rollout, compiled, and its compile time."""
    config = files.last_phase(config)
    config.algorithm = call
    program = programs.build(config)
    step, key = program.steps[-1], program.key
    state = step.begin(None, key)
    rollout = step.rollout(state, key)

    def update() -> None:
        nonlocal state
        state, metrics = step.update(state, rollout, key)
        jax.block_until_ready(metrics)

    start = time.perf_counter()
    update()
    return update, time.perf_counter() - start


def algebra(config: schema.ConfigDict, rounds: int, calls: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the algebra's cost: update times of the shortest and the longest chain, and their ratio.

    ``calls``: two algorithms to compare in place of the table's extremes.
    """
    short, long = calls or extremes(config)
    made = {call: updater(config, call) for call in (short, long)}
    times = bench.interleaved({call: update for call, (update, _) in made.items()}, rounds)
    ratios = sorted(b / a for a, b in zip(times[short], times[long], strict=True))
    middle = statistics.median
    return {
        "bench": "algebra",
        "device": jax.devices()[0].device_kind,
        "rounds": rounds,
        "chains": [
            {
                "algorithm": call,
                "pieces": pieces(seams.algorithm(call, "bench")),
                "median_ms": 1e3 * middle(t),
                "best_ms": 1e3 * min(t),
                "compile_s": made[call][1],
            }
            for call, t in times.items()
        ],
        "ratio": middle(times[long]) / middle(times[short]),
        "ratio_of_best": min(times[long]) / min(times[short]),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
    }


def table(found: dict[str, Any]) -> str:
    """Return what was found, as lines to read."""
    lines = [
        f"{chain['pieces']:3d} pieces  median {chain['median_ms']:8.2f} ms  best {chain['best_ms']:8.2f} ms  "
        f"first call {chain['compile_s']:.1f} s  {chain['algorithm']}"
        for chain in found["chains"]
    ]
    low, high = found["ratio_quartiles"]
    ratio = f"second / first: {found['ratio']:.3f} of medians, {found['ratio_of_best']:.3f} of the best, "
    return "\n".join([*lines, f"{ratio}pairs {low:.3f} to {high:.3f} (quartiles)"])
