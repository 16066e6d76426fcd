"""Other libraries on the same work: a script that takes the shapes as flags and prints one JSON line."""

import json
import pathlib
import statistics
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from rljax import bench
from rljax.training import phases


def arguments(setup: phases.Setup, steps: int) -> list[str]:
    """Return the flags that give a peer the shapes of a plan."""
    a, task = setup.networks["policy"].architecture, setup.task
    flags = {
        "prompts": setup.prompts,
        "group": setup.samples,
        "prompt-len": task.prompt_length + 1,  # of which the script's prompts fill all but one
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
    """Run a peer in a process of its own and return the JSON object of its last line.

    Raises:
      RuntimeError: it failed, with the end of what it printed.
    """
    done = subprocess.run([python, script, *flags], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"peer {script}: exit {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(lines[-1])


def check(scripts: Sequence[str], pythons: Sequence[str]) -> None:
    """Raise ValueError unless every script and interpreter is there and they come in pairs."""
    if len(scripts) != len(pythons):
        raise ValueError(f"--peer {len(scripts)} times and --peer_python {len(pythons)} times: give one for each.")
    for flag, paths in (("peer", scripts), ("peer_python", pythons)):
        for path in paths:
            if not pathlib.Path(path).exists():
                raise ValueError(f"--{flag}={path}: no such file.")


def compare(
    own: Callable[[], None],
    setup: phases.Setup,
    scripts: Sequence[str],
    pythons: Sequence[str],
    rounds: int,
    steps: int,
) -> list[dict[str, Any]]:
    """Time our step and each peer's, turn about; ratios below 1 mean that ours is faster."""
    ours: list[float] = []
    theirs: dict[str, list[dict[str, Any]]] = {script: [] for script in scripts}
    for _ in range(rounds):
        for script, python in zip(scripts, pythons, strict=True):
            ours.append(statistics.median(bench.seconds(own, steps)))
            theirs[script].append(run(python, script, arguments(setup, steps)))
    ours.append(statistics.median(bench.seconds(own, steps)))
    found = []
    for i, (script, reports) in enumerate(theirs.items()):
        beside = [(a + b) / 2 for a, b in zip(ours[i :: len(scripts)], ours[i + 1 :: len(scripts)], strict=False)]
        ratios = sorted(o / r["step_s_median"] for o, r in zip(beside, reports, strict=False))
        found.append(
            {
                "peer": reports[0].get("peer", pathlib.Path(script).stem),
                "step_s": [r["step_s_median"] for r in reports],
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "first_step_s": reports[0].get("first_step_s"),
                "peak_gib": max(r.get("peak_rss_gib", 0.0) for r in reports),
                "params": reports[0].get("params"),
            }
        )
    return found
