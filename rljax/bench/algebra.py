"""The cost of the loss algebra, of a critic and of pictures: ``bench algebra``, ``bench critic``, ``bench pictures``.

Times the updates of the longest chain of pieces in the table and of the shortest with the same needs, on one batch,
interleaved.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from rljax import algorithms, bench, types
from rljax.algorithms import interpreter, seams
from rljax.bench import parts
from rljax.config import files, resolve, schema
from rljax.host import flops
from rljax.run import programs
from rljax.run.reports.pages import tables

FORMS: dict[str, tuple[str, dict[str, Any]]] = {  # algorithm, and fields of config.module.value
    "no critic": ("reinforce_plus_plus(kl=0.0)", {}),
    "on the policy's trunk": ("ppo(kl=0.0)", {"trunk": "policy", "trunk_weight": 0.5}),
    "on it, without gradient": ("ppo(kl=0.0)", {"trunk": "policy", "stop_trunk": True}),
    "a network of its own": ("ppo(kl=0.0)", {}),
}


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
                **bench.milliseconds(t),
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


def critic(
    config: schema.ConfigDict, rounds: int, devices: Sequence[Any] | None = None, forms: Sequence[str] = tuple(FORMS)
) -> dict[str, Any]:
    """Time an update without a critic, with one on the policy's trunk, and with one of its own, interleaved.

    All sample equal rows, whiten the advantage and clip the ratio.

    Args:
      config: the config, whose last phase is timed.
      rounds: updates of each form.
      devices: the devices of the mesh; None: all devices.
      forms: names in ``FORMS``.

    Returns:
      A JSON-able record: the forms with their times in ms, and the ratios to the first.
    """
    updaters = {}
    for name in forms:
        call, fields = FORMS[name]
        edited = config.copy_and_resolve_references()
        edited.module.value.update(fields)
        updaters[name] = updater(edited, call, devices)[0]
    return {"rounds": rounds, "forms": _beside_the_first(updaters, rounds)}


def _beside_the_first(calls: Mapping[str, Callable[[], None]], rounds: int) -> list[dict[str, Any]]:
    """Return the times in ms of functions by form, timed interleaved, and their ratios to the first."""
    times = bench.interleaved(calls, rounds)
    alone = times[next(iter(calls))]
    return [
        {
            "form": name,
            **bench.milliseconds(seconds),
            "ratio_of_best": min(seconds) / min(alone),
            **bench.compared(alone, seconds),
        }
        for name, seconds in times.items()
    ]


def pictures(
    seeing: schema.ConfigDict, twin: schema.ConfigDict, rounds: int, devices: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Time a step whose prompts have pictures beside the same step on prompts of text of the same length, interleaved.

    Args:
      seeing: the config, whose last phase is timed, with a trained tower and with a frozen one.
      twin: the config whose prompts are text.
      rounds: steps of each form.
      devices: the devices of the mesh; None: all devices.

    Returns:
      A JSON-able record: the forms with their times in ms, and ratios to the text of times, and of the operations of
      matrix products.
    """
    edited = {name: files.last_phase(x) for name, x in (("text", twin), ("trained", seeing), ("frozen", seeing))}
    edited["frozen"].model.vision.trained = False
    length = max(programs.build(x, devices=devices).steps[-1].setup.task.prompt_length for x in edited.values())
    runs, operations = {}, {}
    for name, config in edited.items():
        config.task = f"{config.task.removesuffix(')')}, prompt_length={length})"
        program = programs.build(config, devices=devices)
        runs[name], _ = parts.compile_step(program.steps[-1])
        fused, most = program.steps[-1].fused, program.steps[-1].setup.task.completion_length
        assert fused is not None
        traced = jax.make_jaxpr(fused)(runs[name].state, program.key)
        operations[name] = flops.of_jaxpr(traced, flops.Assumed(most))
    forms = _beside_the_first({name: run.whole for name, run in runs.items()}, rounds)
    for form in forms:
        form["operations"] = operations[form["form"]] / operations["text"]
    return {"rounds": rounds, "prompt_length": length, "forms": forms}


def table_forms(record: dict[str, Any]) -> str:
    """Return the record of ``critic`` or of ``pictures`` as text."""
    rows, counted = [], "operations" in record["forms"][0]
    for form in record["forms"]:
        times = [f"{form[name]:.1f}" for name in ("median_ms", "best_ms")]
        ratios = [
            form["ratio"],
            form["ratio_of_best"],
            *form["ratio_quartiles"],
            *([form["operations"]] if counted else []),
        ]
        rows.append([form["form"], *times, *(f"{x:.3f}" for x in ratios)])
    columns = [
        "form",
        "median ms",
        "best ms",
        "ratio",
        "of best",
        "quartiles",
        "",
        *(["of operations"] if counted else []),
    ]
    return "\n".join(tables.Table(columns, rows).lines())
