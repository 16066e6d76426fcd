"""Steps with a slow host verifier: ``python -m rljax bench verifier``.

The verifier sleeps, so that the number of cores does not matter. The step would take the longer of the two times below
if decoding and judging overlapped completely.
"""

import functools
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rljax import bench
from rljax.bench import sleepers
from rljax.config import files, schema
from rljax.environments.verifiers import pool
from rljax.run import host_rollouts, programs, verdicts


def stepper(program: programs.Program, chunks: int) -> Callable[[pool.Verifiers], None]:
    """Return a function that runs a step with given workers and waits for it."""
    step = program.steps[-1]
    state, journal = step.begin(None, program.key), verdicts.Journal(None, 0)

    def run(verifiers: pool.Verifiers) -> None:
        nonlocal state
        rows = host_rollouts.rollout(program, step, state, verifiers, journal, chunks)
        state, metrics = step.update(state, rows, program.key)
        jax.block_until_ready(metrics)

    return run


def host(
    config: schema.ConfigDict,
    shape: str,
    new_tokens: int,
    rounds: int,
    cases: Sequence[tuple[int, int]],
    devices: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Measure steps with a verifier that takes ``sleepers.SECONDS``, and with one that takes none, interleaved.

    Args:
      config: the config, whose model is set.
      shape: its name.
      new_tokens: the most tokens of a completion.
      rounds: steps of each case.
      cases: numbers of workers and chunks.
      devices: the devices of the mesh; None: all devices.

    Returns:
      A JSON-able record: for each case the seconds of both, and their ratio to max(device, host / workers).
    """
    config = files.last_phase(config)
    config.log.rollout_rows = 0
    rows = config.batch.prompts * config.batch.samples
    record: dict[str, Any] = {
        "bench": "verifier",
        "device": jax.devices()[0].device_kind,
        "rows": rows,
        "seconds": sleepers.SECONDS,
    }
    record |= {"shape": shape, "new_tokens": new_tokens, "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps({"question": f"{i:04}?", "answer": "1"}) + "\n" for i in range(1024)))
        config.task = (
            f"jsonl({str(path)!r}, reward='{sleepers.__name__}:awake', heldout=0.1, completion_length={new_tokens})"
        )
        program = programs.build(config, devices=devices)
        runs = {chunks: stepper(program, chunks) for _, chunks in cases}
        with pool.Verifiers(sleepers.awake, 2) as fast:
            for run in runs.values():
                run(fast)  # compiles
            for workers, chunks in cases:
                with pool.Verifiers(sleepers.asleep, workers) as slow:
                    calls = {
                        "awake": functools.partial(runs[chunks], fast),
                        "asleep": functools.partial(runs[chunks], slow),
                    }
                    times = bench.interleaved(calls, rounds)
                device, measured = (statistics.median(times[name]) for name in calls)
                judging = rows * sleepers.SECONDS / workers
                case = {"workers": workers, "chunks": chunks, "device_s": device, "host_s": judging}
                record["cases"].append(case | {"step_s": measured, "ratio": measured / max(device, judging)})
    return record


def table(record: dict[str, Any]) -> str:
    """Return the record of ``host`` as text."""
    lines = [f"{record['rows']} answers of {1e3 * record['seconds']:.0f} ms; {record['shape']}, {record['device']}"]
    lines.append("workers  chunks  device s  host / workers s  step s  step / larger")
    for case in record["cases"]:
        numbers = f"{case['device_s']:9.2f}{case['host_s']:18.2f}{case['step_s']:8.2f}{case['ratio']:15.2f}"
        lines.append(f"{case['workers']:7d}{case['chunks']:8d}{numbers}")
    return "\n".join(lines)
