"""What things cost on this machine, measured side by side: ``python -m rljax.bench algebra``.

``algebra`` times the update of the longest chain of pieces in the table beside that of the shortest with the same
needs, on one batch, turn about: what the loss algebra itself costs.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from absl import app, flags, logging

from rljax import algorithms, losses, seams, types
from rljax import config as configs
from rljax import program as programs


def pieces(algorithm: types.Algorithm) -> int:
    """Count the pieces of an algorithm."""
    return sum(len(specs) for specs in algorithms.seams(algorithm).values())


def extremes(config: configs.ConfigDict) -> tuple[str, str]:
    """Return the shortest and the longest recipe of equal needs that run on the config's task, furthest apart.

    Recipes of one objective and a plain source: what they differ in is the chain alone.
    """
    found: dict[types.Needs, list[tuple[int, str]]] = {}
    for name in algorithms.TABLE:
        algorithm = algorithms.example(name)
        needs = losses.needs(algorithm)
        alone = len(algorithm.objectives) == 1 and algorithm.source.spec == "task()" and not algorithm.after
        if alone and runs(config, algorithm.spec):
            found.setdefault(needs, []).append((pieces(algorithm), algorithm.spec))
    chains = max(found.values(), key=lambda c: max(c)[0] - min(c)[0])
    return min(chains)[1], max(chains)[1]


def runs(config: configs.ConfigDict, call: str) -> bool:
    """Tell whether a config takes an algorithm."""
    config = config.copy_and_resolve_references()
    config.algorithm = call
    try:
        configs.resolve(config)
    except ValueError:
        return False
    return True


def updater(config: configs.ConfigDict, call: str) -> tuple[Callable[[], None], float]:
    """Return a function that makes one update of the last phase on a fixed rollout, compiled, and its compile time."""
    config = config.copy_and_resolve_references()
    config.algorithm, config.phases = call, config.phases[-1:]
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


def interleaved(functions: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Time functions turn about, the order turned round every other time; seconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(rounds):
        for name in list(functions)[:: 1 if i % 2 else -1]:
            start = time.perf_counter()
            functions[name]()
            times[name].append(time.perf_counter() - start)
    return times


def algebra(config: configs.ConfigDict, rounds: int, calls: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the algebra's cost: update times of the shortest and the longest chain, and their ratio.

    ``calls``: two algorithms to compare in place of the table's extremes.
    """
    short, long = calls or extremes(config)
    made = {call: updater(config, call) for call in (short, long)}
    times = interleaved({call: update for call, (update, _) in made.items()}, rounds)
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


def main(argv: Sequence[str]) -> None:
    """Run the bench and print a table and one JSON line."""
    f = flags.FLAGS
    if argv[1:] != ["algebra"]:
        raise app.UsageError(f"name a bench: algebra; got {' '.join(argv[1:]) or 'none'}")
    logging.set_verbosity(logging.WARNING)
    if len(f.algorithms) not in (0, 2):
        raise app.UsageError(f"--algorithms twice or not at all, got {len(f.algorithms)}")
    found = algebra(configs.load(*f.config.split(":", 1)), f.rounds, f.algorithms)
    for chain in found["chains"]:
        print(
            f"{chain['pieces']:3d} pieces  median {chain['median_ms']:8.2f} ms  best {chain['best_ms']:8.2f} ms  "
            f"first call {chain['compile_s']:.1f} s  {chain['algorithm']}"
        )
    low, high = found["ratio_quartiles"]
    print(f"second / first: {found['ratio']:.3f} of medians, {found['ratio_of_best']:.3f} of the best, ", end="")
    print(f"pairs {low:.3f} to {high:.3f} (quartiles)")
    print(json.dumps(found))


if __name__ == "__main__":
    flags.DEFINE_string("config", "quickstart", "Config, and its argument after a colon, such as 'quickstart:quick'.")
    flags.DEFINE_integer("rounds", 20, "Updates of each.", lower_bound=1)
    flags.DEFINE_multi_string("algorithms", [], "Two algorithms to compare in place of the table's extremes.")
    app.run(main)
