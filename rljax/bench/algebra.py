"""The cost of the loss algebra: ``python -m rljax bench algebra``.

Times the updates of the longest chain of pieces in the table and of the shortest with the same needs, on one batch,
interleaved.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rljax import algorithms, bench, types
from rljax.algorithms import interpreter, seams
from rljax.bench import parts
from rljax.config import files, resolve, schema
from rljax.run import programs


def pieces(algorithm: types.Algorithm) -> int:
    """Return the number of pieces of an algorithm."""
    return sum(len(specs) for specs in algorithms.by_seam(algorithm).values())


def extremes(config: schema.ConfigDict) -> tuple[str, str]:
    """Return the shortest and the longest recipe with equal needs and the largest difference in length.

    Only recipes with one objective and the source ``task()`` that run on the config's task are considered, so that they
    differ in the chain of pieces alone.
    """
    recipes: dict[types.Needs, list[tuple[int, str]]] = {}
    for name in algorithms.TABLE:
        algorithm = algorithms.example(name)
        needs = interpreter.needs(algorithm)
        plain = len(algorithm.objectives) == 1 and algorithm.source.spec == "task()" and not algorithm.after
        if plain and runs(config, algorithm.spec):
            recipes.setdefault(needs, []).append((pieces(algorithm), algorithm.spec))
    chains = max(recipes.values(), key=lambda chain: max(chain)[0] - min(chain)[0])
    return min(chains)[1], max(chains)[1]


def runs(config: schema.ConfigDict, call: str) -> bool:
    """Return whether a config is valid with an algorithm."""
    config = config.copy_and_resolve_references()
    config.algorithm = call
    try:
        resolve.phases(config)
    except ValueError:
        return False
    return True


def updater(
    config: schema.ConfigDict, call: str, devices: Sequence[Any] | None = None
) -> tuple[Callable[[], None], float]:
    """Return a compiled function that runs one update of the last phase on a fixed rollout, and its compile seconds."""
    config = files.last_phase(config)
    config.algorithm = call
    program = programs.build(config, devices=devices)
    run = parts.Runner(program.steps[-1], program.key)
    run.rollout()
    return run.update, parts.first_call(run.update)


def algebra(
    config: schema.ConfigDict, rounds: int, calls: Sequence[str] = (), devices: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Measure the update times of the shortest and the longest chain of pieces, and their ratio.

    Args:
      config: the config, whose last phase is timed.
      rounds: updates of each chain.
      calls: two algorithms to compare instead of the table's extremes.
      devices: the devices of the mesh; None: all devices.

    Returns:
      A JSON-able record: the chains with their times in ms, and ratios of the second to the first.
    """
    short, long = calls or extremes(config)
    updaters = {call: updater(config, call, devices) for call in (short, long)}
    times = bench.interleaved({call: update for call, (update, _) in updaters.items()}, rounds)
    return {
        "rounds": rounds,
        "chains": [
            {
                "algorithm": call,
                "pieces": pieces(seams.algorithm(call, "bench")),
                "median_ms": 1e3 * statistics.median(t),
                "best_ms": 1e3 * min(t),
                "compile_s": updaters[call][1],
            }
            for call, t in times.items()
        ],
        "ratio_of_best": min(times[long]) / min(times[short]),
        **bench.compared(times[short], times[long]),
    }


def table(record: dict[str, Any]) -> str:
    """Return the record of ``algebra`` as text."""
    lines = [
        f"{chain['pieces']:3d} pieces  median {chain['median_ms']:8.2f} ms  best {chain['best_ms']:8.2f} ms  "
        f"first call {chain['compile_s']:.1f} s  {chain['algorithm']}"
        for chain in record["chains"]
    ]
    low, high = record["ratio_quartiles"]
    ratio = f"second / first: {record['ratio']:.3f} of medians, {record['ratio_of_best']:.3f} of the minima, "
    return "\n".join([*lines, f"{ratio}pairs {low:.3f} to {high:.3f} (quartiles)"])
