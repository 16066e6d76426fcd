"""Compile a step for TPUs that are not there, and say what it would need.

    python tpu/compile.py --config configs/quickstart.py --topology v5e:4x4
    python tpu/compile.py --config configs/pretrained.py:qwen3-8b --topology v5p:4x4x4 --num_slices 2 \
        --prompt_length 512 --completion_length 1024 --set mesh.tensor=4 --set learner.microbatches=8

Needs ``pip install 'rljax[tpu]'`` and no TPU. Each program of the step is compiled (rollout, score, update, and the
whole step where the task is on the device); printed are times, memory against a chip's, operations, bytes moved and
sent by kind of collective and mesh axis, and a roofline. It ends with code 1 and the largest arrays where a program
does not fit. ``--page`` writes tpu/TOPOLOGIES.md and tpu/scaling.png.
"""

import json
import pathlib
import sys
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))  # also where the package is not installed

from absl import app, flags, logging

from rljax.aot import page, programs, report, topology
from rljax.config import files, schema
from rljax.language import parse

FLAGS = flags.FLAGS
flags.DEFINE_string("config", "", "Config file or the name of a shipped one, and its argument after a colon.")
flags.DEFINE_string("topology", "", "Kind of TPU and shape of a slice, such as v5e:4x4 or v5p:4x4x4.")
flags.DEFINE_integer("num_slices", 1, "Slices; between them goes the data centre's network.")
flags.DEFINE_multi_string("set", [], "A field of the config, such as mesh.tensor=4.")
flags.DEFINE_integer("prompt_length", 0, "Tokens of a prompt, in place of the config's task.", lower_bound=0)
flags.DEFINE_integer("completion_length", 0, "Tokens of a completion, in place of the config's task.", lower_bound=0)
flags.DEFINE_integer("prompts", 0, "Prompts of a step; 0: the config's.", lower_bound=0)
flags.DEFINE_integer("samples", 0, "Completions of a prompt; 0: the config's.", lower_bound=0)
flags.DEFINE_list("programs", [], f"Some of {', '.join(programs.NAMES)}; none: all that the step has.")
flags.DEFINE_string("json", "", "File for the records.")
flags.DEFINE_string("hlo", "", "Folder for the texts of the optimised programs.")
flags.DEFINE_boolean("page", False, "Write tpu/TOPOLOGIES.md and its figure, every row in a process of its own.")
flags.DEFINE_list("rows", [], "page: parts of names of what to compile; the rest is taken from the page's records.")


def _config() -> schema.ConfigDict:
    f = FLAGS
    if not f.config:
        raise ValueError("--config: a config file, such as configs/quickstart.py.")
    config = files.load(*f.config.split(":", 1))
    for field, value in (("prompts", f.prompts), ("samples", f.samples)):
        if value:
            config.phase[config.phases[-1]].batch[field] = value
    for edit in f.set:
        files.override(config, *parse.setting(edit))
    return config


def _tokens() -> tuple[int, int] | None:
    given = FLAGS.prompt_length, FLAGS.completion_length
    if any(given) and not all(given):
        raise ValueError("--prompt_length and --completion_length: both, or neither.")
    return given if all(given) else None


def _run() -> None:
    f = FLAGS
    if not f.topology:
        raise ValueError(f"--topology: one of {', '.join(f'{k}:{v.example}' for k, v in topology.KINDS.items())}, ...")
    config, tokens = _config(), _tokens()
    target = topology.describe(f.topology, f.num_slices)
    step = programs.make(config, target, tokens)
    mesh = ", ".join(f"{axis} {size}" for axis, size in step.setup.mesh.shape.items() if size > 1)
    setup = step.setup
    print(
        f"{config.name} on {target.name}, {len(target.devices)} devices ({mesh or 'alone'}): {setup.prompts} prompts "
        f"of {setup.task.prompt_length} tokens x {setup.samples} completions of {setup.task.completion_length}, "
        f"{setup.learner.microbatches} micro-batches\n"
    )
    records = []
    for name in f.programs or programs.names(step):
        made = programs.compile_one(step, name, target)
        if f.hlo:
            pathlib.Path(f.hlo).mkdir(parents=True, exist_ok=True)
            pathlib.Path(f.hlo, f"{name}.hlo").write_text(made.text)
        records.append(report.describe(step, made, target))
        print(report.table(records[-1]) + "\n", flush=True)
        if f.json:
            found = {"config": f.config, "topology": target.name, "devices": len(target.devices), "programs": records}
            pathlib.Path(f.json).write_text(json.dumps(found, indent=1))
    print("\n".join(filter(None, (report.shares(records, step), "", report.ASSUMPTIONS))))


def main(argv: Sequence[str]) -> None:
    """Compile, print, and end with 1 where a program does not fit, 2 where the command is wrong."""
    logging.set_verbosity(logging.WARNING)
    try:
        if argv[1:]:
            raise ValueError(f"unexpected argument {argv[1]!r}")
        if FLAGS.page:
            page.write(pathlib.Path(__file__).resolve(), FLAGS.rows)
        else:
            _run()
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except programs.DoesNotFitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
