"""Time a step, its parts, and other libraries on the same work: ``python -m rljax bench``.

``python -m rljax bench choices`` times every choice of the config, ``python -m rljax bench algebra`` the loss algebra
alone; ``python -m rljax bench gap`` compares the sampler's log-probabilities with the trainer's; ``tasks`` times the
verifiers of device tasks, ``verifier`` steps with a slow host verifier, ``worlds`` conversations in the compiled
program beside the same on the host, ``critic`` what a critic adds to an update, ``pictures`` what a tower adds to a
step, ``members`` runs in one program beside the same runs one after another, and ``ahead`` rollouts that run ahead of
updates beside the same in turn. ``tune`` searches for the fields that make a config faster on this machine. ``device
--out DIR`` runs the most useful of them on a new accelerator, in at most ``--minutes``, and writes a page.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import flags

from rljax import __main__
from rljax.bench import (
    algebra,
    choices,
    device,
    gap,
    members,
    parts,
    peers,
    shapes,
    sleepers,
    tasks,
    tune,
    verifier,
    workers,
    worlds,
)
from rljax.config import files, schema
from rljax.host import backends
from rljax.language import parse

FLAGS = flags.FLAGS


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
    flags.DEFINE_string("out", "", "device: folder of the records and of the page.")
    flags.DEFINE_float("minutes", 25.0, "device: for all parts.", lower_bound=0.0)
    flags.DEFINE_list("parts", [], f"device: parts to run, of {', '.join(device.PARTS)}; default: all, in this order.")
    flags.DEFINE_boolean("quick", False, "device: tiny sizes, to try the command.")
    flags.DEFINE_multi_string("peer", [], "Script that runs another library on these shapes; may be repeated.")
    flags.DEFINE_multi_string("peer_python", [], "Python interpreter of each --peer, in the same order.")


def _config() -> schema.ConfigDict:
    """Return the config of the timed step: on-policy GRPO with one update and AdamW, unless --config is set."""
    f = FLAGS
    config = files.load(*f.config.split(":", 1)) if f.config else shapes.config()
    shapes.set_model(config, f.shape)
    for batch in (config.batch, config.phase[config.phases[-1]].batch):
        batch.prompts, batch.samples = f.prompts, f.samples
    return _set(config)


def _set(config: schema.ConfigDict) -> schema.ConfigDict:
    """Set the fields of --set, such as "learner.lanes=2", in place."""
    for edit in FLAGS.set:
        files.override(config, *parse.setting(edit))
    return config


def _work() -> workers.Work:
    """Return the step that tune times: of --config as it is, or without it of --shape."""
    f = FLAGS
    if not f.config:
        return workers.Work(_config(), f.lengths, f.shape, f.prompt_length, f.new_tokens)
    return workers.Work(_edited(), f.lengths)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _edited() -> schema.ConfigDict:
    """Return --config, or the quickstart, with the fields of --set."""
    return _set(files.load(*(FLAGS.config or "quickstart").split(":", 1)))


def _twins() -> tuple[schema.ConfigDict, schema.ConfigDict]:
    """Return a config of pictures and its twin in text."""
    call = FLAGS.config or "pictures:charts"
    return tuple(_set(files.load(*f"{call}{end}".split(":", 1))) for end in ("", "_twin"))  # type: ignore[return-value]


def _verifier() -> dict[str, Any]:
    f = FLAGS
    cases = [(workers, chunks) for chunks in (1, 2, 4, 8) for workers in (4, 16) if f.prompts % chunks == 0]
    return verifier.verifier(_config(), f.shape, f.new_tokens, f.steps, cases)


def _ahead() -> dict[str, Any]:
    f, config = FLAGS, _config()
    backends.start(config.cpu_devices, 2)
    workers = max(1, round(2 * f.prompts * f.samples * sleepers.SECONDS))  # half a second for all rows
    return verifier.ahead(config, f.shape, f.prompt_length, f.new_tokens, f.rounds, f.steps, workers)


def _members() -> dict[str, Any]:
    config = _edited()
    backends.start(config.cpu_devices, FLAGS.count)
    return members.members(config, FLAGS.count, FLAGS.rounds, FLAGS.width)


def _step() -> dict[str, Any]:
    f = FLAGS
    peers.check(f.peer, f.peer_python)
    step = shapes.work(_config(), f.shape, f.prompt_length, f.new_tokens, f.lengths)
    compiled, first = parts.compile_step(step)
    given = {"shape": f.shape, "lengths": f.lengths, "new_tokens": f.new_tokens}
    whole = parts.whole(compiled, first, f.steps)
    others = peers.compare(compiled.whole, step.setup, f.peer, f.peer_python, f.rounds, f.steps) if f.peer else []
    return {**given, **whole, "peers": others, "parts": parts.split(compiled, f.steps), **parts.ceilings(step.setup)}


def _choices() -> dict[str, Any]:
    f = FLAGS
    return choices.choices(_config(), f.shape, f.prompt_length, f.new_tokens, f.steps, f.figure)


# name -> what measures it, and what writes its record as text; "" is the step
SUBJECTS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], str]]] = {
    "": (_step, parts.table),
    "ahead": (_ahead, verifier.table_ahead),
    "algebra": (lambda: algebra.algebra(_edited(), FLAGS.rounds, FLAGS.algorithms), algebra.table),
    "choices": (_choices, choices.table),
    "critic": (lambda: algebra.critic(_edited(), FLAGS.rounds), algebra.table_forms),
    "gap": (
        lambda: gap.gap(FLAGS.shape, FLAGS.prompts, FLAGS.samples, FLAGS.prompt_length, FLAGS.new_tokens),
        gap.table,
    ),
    "members": (_members, members.table),
    "pictures": (lambda: algebra.pictures(*_twins(), FLAGS.rounds), algebra.table_forms),
    "tasks": (lambda: tasks.tasks(FLAGS.steps), tasks.table),
    "tune": (lambda: tune.tune(_work(), FLAGS.rounds, FLAGS.fields, report=_progress), tune.table),
    "verifier": (_verifier, verifier.table),
    "worlds": (lambda: worlds.worlds(_config(), FLAGS.shape, FLAGS.new_tokens, FLAGS.steps), worlds.table),
}


def main(argv: Sequence[str]) -> None:
    """Run a benchmark; print a table and one line of JSON."""
    name, f = " ".join(argv[1:]), FLAGS
    if name == "device":
        device.run(f.out, f.minutes, f.parts, f.quick)
        return
    if name not in SUBJECTS or len(argv) > 2:
        names = ", ".join(filter(None, (*SUBJECTS, "device")))
        raise ValueError(f"benchmark: got {name!r}, must be {names}, or none for the step")
    if len(f.algorithms) not in (0, 2):
        raise ValueError(f"--algorithms: got {len(f.algorithms)}, must be given twice or not at all")
    backends.start()
    measure, table = SUBJECTS[name]
    fields = measure()  # may choose the devices
    record = {"bench": name or "step", "device": jax.devices()[0].device_kind, **fields}
    print(table(record))
    print(json.dumps(record))


if __name__ == "__main__":
    __main__.run("bench", sys.argv[1:])
