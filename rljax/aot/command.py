r"""Compile the programs of a step ahead of time for TPUs or GPUs that are not attached, and report what they need.

    python -m rljax aot --config quickstart --target v5e:4x4
    python -m rljax aot --config pretrained:qwen3-8b --target h200:8 --prompt_length 512 --completion_length 1024 \
        --set mesh.fsdp_tensor=8 --set sampler.layout=resident --set learner.microbatches=8
    python -m rljax aot --config pretrained:qwen3-8b --target h100:16x8 --set mesh.data=16 --set mesh.fsdp=8 ...

A target is a kind and the chips of a slice, such as v5p:4x4x4 (``--num_slices`` of them), or the GPUs of a node, such
as h200:8, or nodes and GPUs, such as h100:16x8. TPUs need ``pip install -e '.[tpu]'``, GPUs
``pip install -e '.[gpu_aot]'``, and neither needs the hardware.

It compiles each program of the step (rollout, score, update, and the fused step if the task runs on the device; with
``run.overlap`` a part, accumulate and finish) and prints its memory per chip, what that holds at the peak, operations,
bytes moved, bytes sent by kind of collective, mesh axis and network, and a roofline time. If a program does not fit,
the command lists what it holds and its largest arrays, and exits with code 1. ``--page`` writes
tpu/TOPOLOGIES.md, tpu/GPUS.md and tpu/scaling.png.
"""

import json
import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from rljax.aot import compiling, page, report, topology
from rljax.bench import shapes
from rljax.config import files, schema
from rljax.language import messages, parse
from rljax.run import sharding

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string(
        "config", "", "Config file, or the name of a shipped one; an argument may follow after a colon."
    )
    flags.DEFINE_enum("shape", None, list(shapes.SHAPES), "In place of --config: the step that bench times.")
    target = "Kind of TPU or GPU and chips, such as v5p:4x4x4, h200:8 or h100:16x8; attached: this machine's devices."
    flags.DEFINE_string("target", "", target)
    flags.DEFINE_integer("num_slices", 1, "Slices of a TPU, connected by the data-center network.")
    flags.DEFINE_multi_string("set", [], "Set a field of the config, such as mesh.tensor=4; may be repeated.")
    flags.DEFINE_integer("prompt_length", 0, "Tokens per prompt, in place of the task's.", lower_bound=0)
    flags.DEFINE_integer("completion_length", 0, "Tokens per completion, in place of the task's.", lower_bound=0)
    flags.DEFINE_integer("prompts", 0, "Prompts per step; 0 uses the config's value.", lower_bound=0)
    flags.DEFINE_integer("samples", 0, "Completions per prompt; 0 uses the config's value.", lower_bound=0)
    names = ", ".join(compiling.NAMES)
    flags.DEFINE_list("programs", [], f"Programs to compile, from {names}; by default all of the step.")
    flags.DEFINE_string("json", "", "File to write the records to.")
    flags.DEFINE_string("hlo", "", "Folder to write the optimized HLO to.")
    flags.DEFINE_boolean("page", False, "Write the pages and the figure.")
    flags.DEFINE_list("rows", [], "With --page: compile only rows whose name contains one of these.")


def _config() -> schema.ConfigDict:
    f = FLAGS
    if not (f.config or f.shape):
        raise ValueError("--config is required: a config file, such as configs/quickstart.py.")
    config = files.load(*f.config.split(":", 1)) if f.config else shapes.config()
    if f.shape:
        shapes.set_model(config, f.shape)
        config.model.vocabulary = shapes.SHAPES[f.shape][1]
    for field, value in (("prompts", f.prompts), ("samples", f.samples)):
        if value:
            config.phase[config.phases[-1]].batch[field] = value
    for edit in f.set:
        files.override(config, *parse.setting(edit))
    return config


def _tokens() -> tuple[int, int] | None:
    lengths = FLAGS.prompt_length, FLAGS.completion_length
    if any(lengths) and not all(lengths):
        raise ValueError("--prompt_length and --completion_length: set both or neither.")
    return lengths if all(lengths) else None


def _run() -> None:
    f = FLAGS
    if not f.target:
        examples = ", ".join(f"{name}:{kind.example}" for name, kind in topology.KINDS.items())
        raise ValueError(f"--target is required: {examples}, ...")
    config, tokens = _config(), _tokens()
    target = topology.attached() if f.target == "attached" else topology.describe(f.target, f.num_slices)
    whole = compiling.make(config, target, tokens)
    step, sampler = whole.steps[-1], whole.sampler.steps[-1]
    for name in f.programs:
        compiling.check(step, name)
    count = step.setup.mesh.size
    mesh = ", ".join(f"{axis} {size}" for axis, size in step.setup.mesh.shape.items() if size > 1)
    setup = step.setup
    print(
        f"{config.name} on {target.name}, {count} devices ({mesh or 'no mesh axes'})"
        f"{f', and {len(target.devices) - count} that sample' if whole.rollout is not None else ''}: "
        f"{setup.prompts} prompts of {setup.task.prompt_length} tokens x {setup.samples} completions of "
        f"{setup.task.completion_length}, {setup.learner.microbatches} micro-batches\n"
        f"parameters and their memory on a chip: {', '.join(sharding.modules(step.shape))}\n"
    )
    records = []
    for name in f.programs or compiling.names(step):
        of = sampler if name in compiling.SAMPLED else step
        program = compiling.compile_one(of, name, target)
        if f.hlo:
            pathlib.Path(f.hlo).mkdir(parents=True, exist_ok=True)
            pathlib.Path(f.hlo, f"{name}.hlo").write_text(program.text)
        records.append(report.describe(of, program, target))
        print(report.table(records[-1]) + "\n", flush=True)
        if f.json:
            content = {"config": f.config, "topology": target.name, "devices": len(target.devices), "programs": records}
            pathlib.Path(f.json).write_text(json.dumps(content, indent=1))
    copy = report.copied(sampler, step, target) if whole.rollout is not None else None
    print("\n".join(filter(None, (copy, report.shares(records, step), "", report.ASSUMPTIONS))))


def main(argv: Sequence[str]) -> None:
    """Compile and print; exit with 1 if a program does not fit."""
    if argv[1:]:
        raise ValueError(f"unexpected argument {argv[1]!r}")
    if FLAGS.page:
        page.write(FLAGS.rows)
        return
    try:
        _run()
    except compiling.DoesNotFitError as error:
        print("error: " + "\n".join(map(messages.printable, str(error).splitlines())), file=sys.stderr)
        sys.exit(1)
    except RuntimeError as error:  # no compiler, or what it reports
        raise ValueError(str(error)) from error
