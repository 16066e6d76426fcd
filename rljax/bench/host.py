"""Steps with a slow host verifier: ``python -m rljax bench verifier``.

The verifier sleeps, so that the number of cores does not matter. The step would take the longer of the two times below
if decoding and judging overlapped completely.
"""

import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rljax import bench
from rljax.config import files, schema
from rljax.environments.verifiers import pool
from rljax.run import host_rollouts, programs

SECONDS = 0.05
"""Seconds that the verifier takes for an answer."""


def asleep(completion: str, reference: str) -> float:
    """Return a reward after ``SECONDS``."""
    time.sleep(SECONDS)
    return float(len(completion) % 2)


def awake(completion: str, reference: str) -> float:
    """Return the same reward at once."""
    return float(len(completion) % 2)


def stepper(program: programs.Program, verifiers: pool.Verifiers, chunks: int) -> Callable[[], None]:
    """Return a function that runs a step and waits for it; compiled."""
    step = program.steps[-1]
    state = step.begin(None, program.key)

    def run() -> None:
        nonlocal state
        rows = host_rollouts.rollout(program, step, state, verifiers, host_rollouts.Journal(None, 0), chunks)
        state, metrics = step.update(state, rows, program.key)
        jax.block_until_ready(metrics)

    run()
    return run


def host(
    config: schema.ConfigDict, shape: str, new_tokens: int, rounds: int, cases: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Measure steps with a verifier that takes ``SECONDS``, and with one that takes none, interleaved.

    Args:
      config: the config, whose model is set.
      shape: its name.
      new_tokens: the most tokens of a completion.
      rounds: steps of each case.
      cases: numbers of workers and chunks.

    Returns:
      A JSON-able record: for each case the seconds of both, and their ratio to max(device, host / workers).
    """
    config = files.last_phase(config)
    config.log.rollout_rows, config.tokenizer = 0, "bytes()"
    rows = config.batch.prompts * config.batch.samples
    record = {"bench": "verifier", "device": jax.devices()[0].device_kind, "rows": rows, "seconds": SECONDS}
    record |= {"shape": shape, "new_tokens": new_tokens, "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps({"question": f"{i:04}?", "answer": "1"}) + "\n" for i in range(1024)))
        for workers, chunks in cases:
            times = _case(config, path, new_tokens, rounds, workers, chunks)
            device, measured = (statistics.median(times[name]) for name in ("awake", "asleep"))
            bound = max(device, rows * SECONDS / workers)
            case = {"workers": workers, "chunks": chunks, "device_s": device, "host_s": rows * SECONDS / workers}
            record["cases"].append(case | {"step_s": measured, "ratio": measured / bound})
    return record


def _case(
    config: schema.ConfigDict, path: pathlib.Path, new_tokens: int, rounds: int, workers: int, chunks: int
) -> dict[str, list[float]]:
    steppers = {}
    with pool.Verifiers(asleep, workers) as slow, pool.Verifiers(awake, min(workers, 2)) as fast:
        for name, verifiers in {"asleep": slow, "awake": fast}.items():
            config.task = (
                f"jsonl({str(path)!r}, reward='{__name__}:{name}', heldout=0.1, completion_length={new_tokens})"
            )
            steppers[name] = stepper(programs.build(config), verifiers, chunks)
        return bench.interleaved(steppers, rounds)


def table(record: dict[str, Any]) -> str:
    """Return the record of ``host`` as text."""
    lines = [f"{record['rows']} answers of {1e3 * record['seconds']:.0f} ms; {record['shape']}, {record['device']}"]
    lines.append("workers  chunks  device s  host / workers s  step s  step / larger")
    for case in record["cases"]:
        numbers = f"{case['device_s']:9.2f}{case['host_s']:18.2f}{case['step_s']:8.2f}{case['ratio']:15.2f}"
        lines.append(f"{case['workers']:7d}{case['chunks']:8d}{numbers}")
    return "\n".join(lines)
