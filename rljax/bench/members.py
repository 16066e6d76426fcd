"""Runs beside each other in one program against the same runs one after another: ``python -m rljax bench members``."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rljax import bench
from rljax.config import schema
from rljax.run import programs
from rljax.run.members import cohorts, sweep, together
from rljax.training import members as members_lib


def members(
    config: schema.ConfigDict, count: int, rounds: int, width: int = 0, devices: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Time steps of the last phase: ``count`` seeds in one program, and one after another, interleaved.

    Policies are new, so that completions are as long as they may be. Both sides may use every core: a program on one
    CPU device uses several threads. The runs one after another share a compiled program.

    Args:
      config: the config, whose last phase is timed.
      count: number of seeds.
      rounds: steps of each side, of all runs.
      width: members that a device computes at a time; 0: one on a CPU, all of them elsewhere.
      devices: the devices over which members are split; None: all devices.

    Returns:
      A JSON-able record: seconds of compiling, of a step of all runs, and ratios; ``ratio_of_phase`` is the ratio of
      the whole phase, compiling included.
    """
    listed = jax.devices() if devices is None else devices
    (cohort,) = cohorts.plan(sweep.expand(sweep.grid({"seed": range(count)}), config))
    program = programs.build(config, devices=listed[:1])
    step, number = program.steps[-1], len(program.phases) - 1
    start = time.perf_counter()
    alone = step.fused.lower(step.shape, program.key).compile()  # type: ignore[union-attr]
    compiled_alone = time.perf_counter() - start
    several = together.Programs(cohort, program, listed, width)
    start = time.perf_counter()
    size, _ = several.fitting(count, program.phases[-1].first)
    compiled_together = time.perf_counter() - start
    if size != -(-count // len(several.devices)) * len(several.devices):
        raise ValueError(f"bench members: {count} runs do not fit into memory at once, only {size}.")
    split = members_lib.sharding(several.mesh)
    keys = jax.device_put(jax.random.split(program.key, size), split)
    one = step.begin(None, program.key, {})
    states = jax.device_put(jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), one), split)
    held = {"alone": one, "together": states}

    def one_after_another() -> None:
        metrics: Any = None
        for _ in range(count):
            held["alone"], metrics = alone(held["alone"], program.key)
        jax.block_until_ready(metrics)

    def beside() -> None:
        held["together"], metrics = several.steps[number, size](None, held["together"], keys, {})
        jax.block_until_ready(metrics)

    times = bench.interleaved({"alone": one_after_another, "together": beside}, rounds)
    steps = program.phases[-1].start.steps
    compiled = {"alone": compiled_alone, "together": compiled_together}
    whole = {name: seconds + steps * statistics.median(times[name]) for name, seconds in compiled.items()}
    return {
        "devices": len(several.devices),
        "count": count,
        "rounds": rounds,
        "compile_s": compiled,
        "step_s": {name: statistics.median(x) for name, x in times.items()},
        **bench.compared(times["alone"], times["together"]),
        "ratio_of_phase": whole["together"] / whole["alone"],
    }


def table(record: dict[str, Any]) -> str:
    """Return the record of ``members`` as text."""
    compiled, step = record["compile_s"], record["step_s"]
    low, high = record["ratio_quartiles"]
    return (
        f"{record['count']} runs on {record['devices']} devices ({record['device']}), {record['rounds']} rounds\n"
        f"one after another   compile {compiled['alone']:6.1f} s   a step of all {step['alone']:7.2f} s\n"
        f"beside each other   compile {compiled['together']:6.1f} s   a step of all {step['together']:7.2f} s\n"
        f"ratio of steps {record['ratio']:.3f} (quartiles {low:.3f} to {high:.3f}); of the phase "
        f"{record['ratio_of_phase']:.3f}"
    )
