"""Time a step, its parts and its peers: ``python -m rljax bench``.

``python -m rljax bench choices`` times every choice of the config, ``algebra`` the loss algebra alone.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import app, flags, logging

from rljax import __main__, bench
from rljax.bench import algebra, ceilings, choices, parts, peers, shapes
from rljax.config import files, schema

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string(
        "config", "", "Config, and its argument after a colon. algebra: 'quickstart'; else the default."
    )
    flags.DEFINE_integer("rounds", 20, "algebra: updates of each. Else: turns about with the peers.", lower_bound=1)
    flags.DEFINE_multi_string("algorithms", [], "algebra: two algorithms in place of the table's extremes.")
    flags.DEFINE_enum("shape", "tiny", list(shapes.SHAPES), "Model.")
    flags.DEFINE_enum(
        "lengths", "fixed", ["fixed", "longtail"], "Every completion full, or a quarter of that on average."
    )
    flags.DEFINE_integer("prompts", 8, "Prompts of a step.", lower_bound=1)
    flags.DEFINE_integer("samples", 8, "Completions of a prompt.", lower_bound=1)
    flags.DEFINE_integer("prompt_length", 11, "Tokens of a prompt.", lower_bound=1)
    flags.DEFINE_integer("new_tokens", 64, "Tokens of a completion, at most.", lower_bound=1)
    flags.DEFINE_integer("steps", 6, "Steps timed in a row.", lower_bound=1)
    flags.DEFINE_multi_string("set", [], "A field of the config, such as learner.lanes=2.")
    flags.DEFINE_string("figure", "", "choices: a picture to write.")
    flags.DEFINE_multi_string("peer", [], "Script that runs another library on these shapes.")
    flags.DEFINE_multi_string("peer_python", [], "Its interpreter.")


def _config() -> schema.ConfigDict:
    """Return the config of the timed step: on-policy GRPO in one update, AdamW, nothing beside."""
    f = FLAGS
    config = files.load(*f.config.split(":", 1)) if f.config else schema.default()
    if not f.config:
        config.algorithm = "grpo(kl=0.0)"
        config.phase.main.optimizer = "adamw(learning_rate=1e-4)"
        config.model.remat = "none"
    config.batch.prompts, config.batch.samples = f.prompts, f.samples
    for edit in f.set:
        field, _, value = edit.partition("=")
        try:
            files.override(config, field, json.loads(value))
        except json.JSONDecodeError:
            files.override(config, field, value)
    return config


def _step() -> dict[str, Any]:
    f = FLAGS
    step = shapes.work(_config(), f.shape, f.prompt_length, f.new_tokens, f.lengths)
    made = parts.whole(step)
    times = bench.seconds(made.run, f.steps)
    found: dict[str, Any] = {
        "bench": "step",
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "shape": f.shape,
        "lengths": f.lengths,
        "new_tokens": f.new_tokens,
        "step_ms": 1e3 * statistics.median(times),
        "best_ms": 1e3 * min(times),
        "first_step_s": made.first,
        "peak_gib": parts.peak_memory() / 2**30,  # of the step alone: nothing else has run yet
        "slot_utilisation": float(made.metrics["slot_utilisation"]),
        "sampler_gap": float(made.metrics["sampler_gap"]),
        "params": sum(x.size for x in jax.tree.leaves(made.state.params["policy"])),
    }
    found["peers"] = peers.compare(made.run, step.setup, f.peer, f.peer_python, f.rounds, f.steps) if f.peer else []
    found["parts"] = parts.split(made, f.steps)
    found["matmul"] = ceilings.matmul(step.setup.networks["policy"].architecture.dtype)
    found["bandwidth"] = ceilings.bandwidth()
    return found


def _table(found: dict[str, Any]) -> str:
    best = max(found["matmul"].values())
    sizes = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in found["matmul"].items())
    lines = [
        f"{found['shape']}, {found['lengths']}, {found['new_tokens']} tokens: step {found['step_ms']:.0f} ms "
        f"(best {found['best_ms']:.0f}), peak {found['peak_gib']:.2f} GiB, first step {found['first_step_s']:.1f} s, "
        f"slots used {100 * found['slot_utilisation']:.0f} %, sampler gap {found['sampler_gap']:.1e}",
        f"matmul GFLOP/s: {sizes}; memory {found['bandwidth'] / 1e9:.1f} GB/s; {found['devices']} x {found['device']}",
        f"{'part':10s} {'ms':>9s} {'tokens/s':>10s} {'of matmul':>10s} {'of memory':>10s} {'compile s':>10s}",
    ]
    for part in found["parts"]:
        seconds = part["ms"] / 1e3
        shares = (part["flops"] / seconds / best, part["bytes"] / seconds / found["bandwidth"])
        cells = "".join(f" {100 * s:8.0f} %" if s else f" {'':>10s}" for s in shares)
        lines.append(
            f"{part['part']:10s} {part['ms']:9.1f} {part['tokens_per_s']:10.0f}{cells} {part['compile_s']:10.1f}"
        )
    for peer in found["peers"]:
        spread = f"{peer['ratios'][0]:.3f} to {peer['ratios'][-1]:.3f}"
        theirs = statistics.median(peer["step_s"])
        lines.append(
            f"ours / {peer['peer']}: {peer['ratio']:.3f} ({spread}); its step {theirs:.2f} s, "
            f"peak {peer['peak_gib']:.2f} GiB (ours / its {found['peak_gib'] / peer['peak_gib']:.2f})"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Run a bench and print a table and one JSON line."""
    logging.set_verbosity(logging.WARNING)
    f = FLAGS
    if argv[1:] not in ([], ["algebra"], ["choices"]):
        raise app.UsageError(f"the benches are the step (no name), choices and algebra; got {' '.join(argv[1:])}")
    if len(f.algorithms) not in (0, 2):
        raise app.UsageError(f"--algorithms twice or not at all, got {len(f.algorithms)}")
    try:
        if argv[1:] == ["choices"]:
            found = choices.choices(_config(), f.shape, f.prompt_length, f.new_tokens, f.steps, f.figure)
            table = choices.table
        elif argv[1:]:
            config = files.load(*(f.config or "quickstart").split(":", 1))
            found, table = algebra.algebra(config, f.rounds, f.algorithms), algebra.table
        else:
            peers.check(f.peer, f.peer_python)
            found, table = _step(), _table
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    __main__.run("bench", sys.argv[1:])
