"""Other libraries on the same work, each run by a script that takes the shapes as flags and prints one line of JSON."""

import json
import pathlib
import statistics
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from rljax import bench
from rljax.training import phases


def arguments(setup: phases.Setup, steps: int) -> list[str]:
    """Return the flags that pass the shapes of a step to a peer's script, which then times ``steps`` steps."""
    a, task = setup.networks["policy"].architecture, setup.task
    flags = {
        "prompts": setup.prompts,
        "group": setup.samples,
        "prompt-len": task.prompt_length + 1,  # the script's prompts fill all but one
        "new-tokens": task.completion_length,
        "layers": a.layers,
        "dim": a.width,
        "heads": a.heads,
        "kv-heads": a.kv_heads,
        "head-dim": a.head_size,
        "ffn": a.hidden,
        "vocab": a.vocabulary,
        "steps": steps,
        "warmup": 2,
    }
    return [text for name, value in flags.items() for text in (f"--{name}", str(value))]


def run(python: str, script: str, flags: Sequence[str]) -> dict[str, Any]:
    """Run a peer's script in a separate process.

    Args:
      python: its interpreter.
      script: its path.
      flags: its flags.

    Returns:
      The JSON object on the last line of its output.

    Raises:
      RuntimeError: it failed; the message has the end of its error output.
    """
    done = subprocess.run([python, script, *flags], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"peer {script}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(lines[-1])


def check(scripts: Sequence[str], pythons: Sequence[str]) -> None:
    """Raise ValueError unless every script and interpreter exists and their numbers are equal."""
    if len(scripts) != len(pythons):
        raise ValueError(
            f"--peer: got {len(scripts)} scripts and {len(pythons)} of --peer_python, must be one for each."
        )
    for flag, paths in (("peer", scripts), ("peer_python", pythons)):
        for path in paths:
            if not pathlib.Path(path).exists():
                raise ValueError(f"--{flag}={path}: no such file.")


def compare(
    function: Callable[[], None],
    setup: phases.Setup,
    scripts: Sequence[str],
    pythons: Sequence[str],
    rounds: int,
    steps: int,
) -> list[dict[str, Any]]:
    """Time our step and each peer's, interleaved.

    Args:
      function: runs one of our steps.
      setup: what our step is compiled for.
      scripts: the peers' scripts.
      pythons: the interpreter of each script.
      rounds: number of rounds, in each of which all are timed.
      steps: steps timed in each round.

    Returns:
      For each peer a JSON-able record; its ratios are our seconds over the peer's, so below 1 ours is faster.
    """
    ours: list[float] = []
    reports: dict[str, list[dict[str, Any]]] = {script: [] for script in scripts}
    for _ in range(rounds):
        for script, python in zip(scripts, pythons, strict=True):
            ours.append(statistics.median(bench.seconds(function, steps)))
            reports[script].append(run(python, script, arguments(setup, steps)))
    ours.append(statistics.median(bench.seconds(function, steps)))
    records = []
    for i, (script, results) in enumerate(reports.items()):
        neighbours = [(a + b) / 2 for a, b in zip(ours[i :: len(scripts)], ours[i + 1 :: len(scripts)], strict=False)]
        ratios = sorted(o / r["step_s_median"] for o, r in zip(neighbours, results, strict=False))
        records.append(
            {
                "peer": results[0].get("peer", pathlib.Path(script).stem),
                "step_s": [r["step_s_median"] for r in results],
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "first_step_s": results[0].get("first_step_s"),
                "peak_gib": max(r.get("peak_rss_gib", 0.0) for r in results),
                "params": results[0].get("params"),
            }
        )
    return records
