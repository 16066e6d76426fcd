"""Time a step, its parts, and other libraries on the same work: ``python -m rljax bench``.

``python -m rljax bench choices`` times every choice of the config, ``python -m rljax bench algebra`` the loss algebra
alone; ``python -m rljax bench gap`` compares the sampler's log-probabilities with the trainer's; ``tasks`` times the
verifiers of device tasks, ``verifier`` steps with a slow host verifier, ``worlds`` conversations in the compiled
program beside the same on the host, ``critic`` what a critic adds to an update, and ``members`` runs in one program
beside the same runs one after another. ``tune`` searches for the fields that make a config faster on this machine.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from rljax import __main__, bench
from rljax.bench import (
    algebra,
    ceilings,
    choices,
    critic,
    gap,
    host,
    members,
    parts,
    peers,
    shapes,
    tasks,
    tune,
    workers,
    worlds,
)
from rljax.config import files, schema
from rljax.host import backends

FLAGS = flags.FLAGS
_NAMES = ("algebra", "choices", "critic", "gap", "members", "tasks", "tune", "verifier", "worlds")


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string(
        "config",
        "",
        "Config, with an argument after a colon. Default: quickstart for algebra and critic, else the schema's. tune "
        "times the model and the task of a config that is given, and --shape without it.",
    )
    flags.DEFINE_integer(
        "rounds", 20, "algebra, critic, members, tune: of each. Step: rounds with the peers.", lower_bound=1
    )
    flags.DEFINE_integer("count", 16, "members: number of runs.", lower_bound=2)
    flags.DEFINE_integer(
        "width", 0, "members: runs that a device computes at a time; 0: 1 on a CPU, else all.", lower_bound=0
    )
    flags.DEFINE_multi_string("algorithms", [], "algebra: two algorithms to compare; give the flag twice.")
    flags.DEFINE_enum("shape", "tiny", list(shapes.SHAPES), "Model shape.")
    flags.DEFINE_enum(
        "lengths", "fixed", ["fixed", "longtail"], "fixed: full completions; longtail: a quarter of that on average."
    )
    flags.DEFINE_integer("prompts", 8, "Prompts per step.", lower_bound=1)
    flags.DEFINE_integer("samples", 8, "Completions per prompt.", lower_bound=1)
    flags.DEFINE_integer("prompt_length", 11, "Tokens per prompt.", lower_bound=1)
    flags.DEFINE_integer("new_tokens", 64, "Maximum tokens per completion.", lower_bound=1)
    flags.DEFINE_integer("steps", 6, "Steps to time.", lower_bound=1)
    flags.DEFINE_multi_string("set", [], "Set a field of the config, such as learner.lanes=2; may be repeated.")
    flags.DEFINE_list("fields", [], "tune: the fields to search, in this order; default: all that change only speed.")
    flags.DEFINE_string("figure", "", "choices: image file to write.")
    flags.DEFINE_multi_string("peer", [], "Script that runs another library on these shapes; may be repeated.")
    flags.DEFINE_multi_string("peer_python", [], "Python interpreter of each --peer, in the same order.")


def _config() -> schema.ConfigDict:
    """Return the config of the timed step: on-policy GRPO with one update and AdamW, unless --config is set."""
    f = FLAGS
    config = files.load(*f.config.split(":", 1)) if f.config else schema.default()
    if not f.config:
        config.algorithm = "grpo(kl=0.0)"
        config.phase.main.optimizer = "adamw(learning_rate=1e-4)"
    shapes.set_model(config, f.shape)
    config.batch.prompts, config.batch.samples = f.prompts, f.samples
    for edit in f.set:
        _override(config, edit)
    return config


def _override(config: schema.ConfigDict, edit: str) -> None:
    """Set a field of the config, such as "learner.lanes=2", in place."""
    field, _, value = edit.partition("=")
    try:
        files.override(config, field, json.loads(value))
    except json.JSONDecodeError:
        files.override(config, field, value)


def _work() -> workers.Work:
    """Return the step that tune times: of --config as it is, or without it of --shape."""
    f = FLAGS
    if not f.config:
        return workers.Work(_config(), f.lengths, f.shape, f.prompt_length, f.new_tokens)
    config = files.load(*f.config.split(":", 1))
    for edit in f.set:
        _override(config, edit)
    return workers.Work(config, f.lengths)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _step() -> dict[str, Any]:
    f = FLAGS
    step = shapes.work(_config(), f.shape, f.prompt_length, f.new_tokens, f.lengths)
    compiled = parts.compile_step(step)
    times = bench.seconds(compiled.run, f.steps)
    record: dict[str, Any] = {
        "bench": "step",
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "shape": f.shape,
        "lengths": f.lengths,
        "new_tokens": f.new_tokens,
        "step_ms": 1e3 * statistics.median(times),
        "best_ms": 1e3 * min(times),
        "first_step_s": compiled.first,
        "peak_gib": parts.peak_memory() / 2**30,  # of the step alone, as nothing else has run
        "slot_utilisation": float(compiled.metrics["slot_utilisation"]),
        "sampler_gap": float(compiled.metrics["sampler_gap"]),
        "params": sum(x.size for x in jax.tree.leaves(compiled.state.params["policy"])),
    }
    record["peers"] = (
        peers.compare(compiled.run, step.setup, f.peer, f.peer_python, f.rounds, f.steps) if f.peer else []
    )
    record["parts"] = parts.split(compiled, f.steps)
    record["matmul"] = ceilings.matmul(step.setup.networks["policy"].architecture.dtype)
    record["bandwidth"] = ceilings.bandwidth()
    return record


def _table(record: dict[str, Any]) -> str:
    best, bandwidth = max(record["matmul"].values()), record["bandwidth"]
    sizes = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in record["matmul"].items())
    lines = [
        f"{record['shape']}, {record['lengths']}, {record['new_tokens']} tokens: step {record['step_ms']:.0f} ms "
        f"(best {record['best_ms']:.0f}), peak {record['peak_gib']:.2f} GiB, "
        f"first step {record['first_step_s']:.1f} s, slot utilization {100 * record['slot_utilisation']:.0f} %, "
        f"sampler gap {record['sampler_gap']:.1e}",
        f"matmul GFLOP/s: {sizes}; memory {bandwidth / 1e9:.1f} GB/s; {record['devices']} x {record['device']}",
        f"{'part':10s} {'ms':>9s} {'tokens/s':>10s} {'of matmul':>10s} {'of memory':>10s} {'compile s':>10s}",
    ]
    for part in record["parts"]:
        seconds = part["ms"] / 1e3
        shares = (part["flops"] / seconds / best, part["bytes"] / seconds / bandwidth)
        cells = "".join(f" {100 * s:8.0f} %" if s else f" {'':>10s}" for s in shares)
        lines.append(
            f"{part['part']:10s} {part['ms']:9.1f} {part['tokens_per_s']:10.0f}{cells} {part['compile_s']:10.1f}"
        )
    for peer in record["peers"]:
        spread = f"{peer['ratios'][0]:.3f} to {peer['ratios'][-1]:.3f}"
        peer_s = statistics.median(peer["step_s"])
        lines.append(
            f"rljax / {peer['peer']}: {peer['ratio']:.3f} ({spread}); {peer['peer']}: step {peer_s:.2f} s, "
            f"peak {peer['peak_gib']:.2f} GiB (ratio {record['peak_gib'] / peer['peak_gib']:.2f})"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Run a benchmark; print a table and one line of JSON."""
    f = FLAGS
    if argv[1:] not in ([], *([name] for name in _NAMES)):
        raise ValueError(f"benchmark: got {' '.join(argv[1:])!r}, must be {', '.join(_NAMES)}, or none for the step")
    if len(f.algorithms) not in (0, 2):
        raise ValueError(f"--algorithms: got {len(f.algorithms)}, must be given twice or not at all")
    backends.start()
    if argv[1:] == ["choices"]:
        record = choices.choices(_config(), f.shape, f.prompt_length, f.new_tokens, f.steps, f.figure)
        table = choices.table
    elif argv[1:] == ["gap"]:
        record, table = gap.gap(f.shape, f.prompts, f.samples, f.prompt_length, f.new_tokens), gap.table
    elif argv[1:] == ["verifier"]:
        cases = [(workers, chunks) for chunks in (1, 2, 4, 8) for workers in (4, 16) if f.prompts % chunks == 0]
        record, table = host.host(_config(), f.shape, f.new_tokens, f.steps, cases), host.table
    elif argv[1:] == ["worlds"]:
        record, table = worlds.worlds(_config(), f.shape, f.new_tokens, f.steps), worlds.table
    elif argv[1:] == ["tune"]:
        record, table = tune.tune(_work(), f.rounds, f.fields, report=_progress), tune.table
    elif argv[1:] == ["tasks"]:
        record, table = tasks.tasks(f.steps), tasks.table
    elif argv[1:]:
        config = files.load(*(f.config or "quickstart").split(":", 1))
        for edit in f.set:
            _override(config, edit)
        if argv[1:] == ["members"]:
            backends.start(config.cpu_devices, f.count)
            record, table = members.members(config, f.count, f.rounds, f.width), members.table
        elif argv[1:] == ["critic"]:
            record, table = critic.critic(config, f.rounds), critic.table
        else:
            record, table = algebra.algebra(config, f.rounds, f.algorithms), algebra.table
    else:
        peers.check(f.peer, f.peer_python)
        record, table = _step(), _table
    print(table(record))
    print(json.dumps(record))


if __name__ == "__main__":
    __main__.run("bench", sys.argv[1:])
